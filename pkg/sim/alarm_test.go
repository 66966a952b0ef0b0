// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestTheAlarmIsRaisedWhenTheStoryHasAnEvent(t *testing.T) {
	for _, tc := range []struct {
		name  string
		story string
		speed float64
		// at are the real times of the alarms within two minutes.
		at []time.Duration
	}{
		{"as fast as time", "events: [{at: 10s, do: xid, gpu: 0, code: 31}, {at: 40s, do: gpu_lost, gpu: 0}]", 1, []time.Duration{10 * time.Second, 40 * time.Second}},
		{"ten times as fast, in rounds", "loop: 5m\nevents: [{at: 60s, do: xid, gpu: 0, code: 31}]", 10, []time.Duration{6 * time.Second, 36 * time.Second, 66 * time.Second, 96 * time.Second}},
		{"at the very beginning", "events: [{at: 0s, do: xid, gpu: 0, code: 31}]", 1, []time.Duration{0}},
		{"nothing of the driver's", "events: [{at: 10s, do: kubelet_restart, for: 5s}]", 1, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, err := Parse("alarms.yaml", []byte("gpus: [{model: H100-80, count: 1}]\n"+tc.story))
				if err != nil {
					t.Fatal(err)
				}
				n, err := NewNode(s, Options{Start: story, Speed: tc.speed})
				if err != nil {
					t.Fatal(err)
				}
				begun, end := time.Now(), time.After(2*time.Minute)
				for heard := 0; ; heard++ {
					select {
					case <-n.Alarms():
						at := time.Since(begun)
						if heard >= len(tc.at) || at < tc.at[heard] || at > tc.at[heard]+2*alarmPause {
							t.Fatalf("alarm %d after %v, want %v", heard, at, tc.at)
						}
						if r, err := n.Read(t.Context(), nil); err != nil || len(r.Events) == 0 {
							t.Errorf("the reading after the alarm has no event (%v)", err)
						}
						continue
					case <-end:
						if heard != len(tc.at) {
							t.Errorf("%d alarms, want %v", heard, tc.at)
						}
					}
					break
				}
				if err := n.Close(); err != nil {
					t.Error(err)
				}
				time.Sleep(time.Hour)
				synctest.Wait()
				select {
				case <-n.Alarms():
					t.Error("an alarm of a node that was closed")
				default:
				}
			})
		})
	}
}

func TestAReadingTakesBackTheAlarmForWhatItTells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := Parse("alarms.yaml", []byte("gpus: [{model: H100-80, count: 1}]\nevents: [{at: 10s, do: xid, gpu: 0, code: 31}]"))
		if err != nil {
			t.Fatal(err)
		}
		n, err := NewNode(s, Options{Start: story, Speed: 1})
		if err != nil {
			t.Fatal(err)
		}
		alarms := n.Alarms()
		time.Sleep(11 * time.Second)
		synctest.Wait()
		if len(alarms) != 1 {
			t.Fatal("the XID raised no alarm")
		}
		if r, err := n.Read(t.Context(), nil); err != nil || len(r.Events) != 1 {
			t.Fatalf("the reading has %d events (%v), want the XID", len(r.Events), err)
		}
		if len(alarms) != 0 {
			t.Error("the alarm stands after the reading that told of it")
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
}
