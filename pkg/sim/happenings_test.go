// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// eventWords are events as "time GPU index/instance kind code".
func eventWords(n *Node, events []gpu.Event) (out []string) {
	for _, e := range events {
		where := fmt.Sprint(slices.IndexFunc(n.cards, func(c card) bool { return c.uuid == e.GPU }))
		if e.GPUInstance != gpu.NoInstance {
			where += fmt.Sprintf("/%d/%d", e.GPUInstance, e.ComputeInstance)
		}
		kind := map[gpu.EventKind]string{gpu.EventXID: "xid", gpu.EventECCDoubleBit: "dbe", gpu.EventRecoveryAction: "action"}[e.Kind]
		out = append(out, fmt.Sprintf("%s GPU %s %s %d", brief(e.Time.Sub(n.start)), where, kind, e.Code))
	}
	return out
}

const troubled = `
loop: 10m
gpus:
  - {model: H100-80, count: 2}
  - {model: H100-80, mig: [3g.40gb, 1g.10gb]}
events:
  - {at: 0s, do: xid, gpu: 0, code: 13}
  - {at: 1m, do: xid, gpu: 0, code: 43}
  - {at: 1m, do: xid, gpu: 0, code: 43, count: 2}
  - {at: 2m, do: ecc_dbe, gpu: 1, count: 2}
  - {at: 3m, do: xid, gpu: 2, code: 45, instance: 1}
  - {at: 4m, do: gpu_lost, gpu: 1, for: 1m}
  - {at: 6m, do: hang, gpu: 0, for: 1m}
`

// What happens to cards is told as the driver tells it: each XID, each double-bit error with
// its XID, and the fall off the bus.
func TestEventsOfARound(t *testing.T) {
	n := parsed(t, troubled)
	first := []string{
		"0s GPU 0 xid 13", "1m GPU 0 xid 43", "1m GPU 0 xid 43", "1m GPU 0 xid 43",
		"2m GPU 1 xid 48", "2m GPU 1 xid 48", "2m GPU 1 dbe 0", "2m GPU 1 dbe 0",
		"3m GPU 2/1/0 xid 45", "4m GPU 1 xid 79",
	}
	for _, tc := range []struct {
		after, until time.Duration
		want         []string
	}{
		{-1, 10*time.Minute - 1, first},
		{-1, 0, first[:1]},
		{0, time.Minute - 1, nil},
		{0, time.Minute, first[1:4]},
		{time.Minute, 3 * time.Minute, first[4:9]},
		{5 * time.Minute, 11 * time.Minute, []string{"10m GPU 0 xid 13", "11m GPU 0 xid 43", "11m GPU 0 xid 43", "11m GPU 0 xid 43"}},
		{60 * time.Minute, 60 * time.Minute, nil},
		{60*time.Minute - 1, 60 * time.Minute, []string{"1h GPU 0 xid 13"}},
		{5 * time.Minute, 4 * time.Minute, nil},
	} {
		if diff := cmp.Diff(tc.want, eventWords(n, n.Events(tc.after, tc.until))); diff != "" {
			t.Errorf("after %s until %s (-want +got):\n%s", tc.after, tc.until, diff)
		}
	}
	if got := n.ReadingAt(time.Minute, nil).Events; got != nil {
		t.Errorf("a reading that depends on nothing but its time has events: %v", got)
	}
}

// An XID of a GPU instance is not the card's.
func TestXIDOfAnInstanceLeavesTheCardsField(t *testing.T) {
	n := parsed(t, troubled)
	if got := number(t, value(t, n, 5*time.Minute, 2, -1, gpu.FieldXID)); got != 0 {
		t.Errorf("field 230 of the card is %v after an XID of its instance", got)
	}
}

// However often a node is read, its readings have every event once and in order.
func TestEveryEventIsInOneReading(t *testing.T) {
	for _, name := range []string{"bad-day", "bad-health", "default"} {
		rapid.Check(t, func(r *rapid.T) {
			pauses := rapid.SliceOfN(rapid.Uint64(), 1, 40).Draw(r, "pauses")
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t, name, Options{Speed: 60})
				var got []gpu.Event
				for _, h := range pauses {
					time.Sleep(time.Duration(mix(1, h) % uint64(time.Minute)))
					failed, cancel := context.WithCancel(t.Context())
					cancel()
					if _, err := n.Read(failed, nil); err == nil {
						t.Fatal("read after the context ended")
					}
					reading, err := n.Read(t.Context(), nil)
					if err != nil {
						t.Fatal(err)
					}
					got = append(got, reading.Events...)
				}
				want := n.Events(-1, n.Elapsed())
				if !slices.Equal(want, got) {
					t.Fatalf("%s, pauses %v: %s", name, pauses, cmp.Diff(want, got))
				}
			})
		})
	}
}

// Whatever is between two instants is there in whichever parts it is asked for.
func TestEventsAddUp(t *testing.T) {
	n := newNode(t, "bad-day", Options{})
	rapid.Check(t, func(t *rapid.T) {
		a := instant(t, "a", 2*time.Hour)
		b := a + instant(t, "b", time.Hour)
		c := b + instant(t, "c", time.Hour)
		whole := n.Events(a, c)
		if parts := append(n.Events(a, b), n.Events(b, c)...); !slices.Equal(whole, parts) {
			t.Fatalf("%s", cmp.Diff(whole, parts))
		}
		for _, e := range whole {
			if at := e.Time.Sub(n.start); at <= a || at > c {
				t.Fatalf("an event at %s between %s and %s", at, a, c)
			}
		}
	})
}

// More events than a reading takes come with the next ones.
func TestManyEventsComeInParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := parsed(t, "gpus: [{model: H100-80}]\nevents:\n"+strings.Repeat("  - {at: 1s, do: xid, gpu: 0, code: 13, count: 9000}\n", 3))
		time.Sleep(time.Minute)
		var counts []int
		for range 4 {
			r, err := n.Read(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			counts = append(counts, len(r.Events))
		}
		if diff := cmp.Diff([]int{eventLimit, eventLimit, 7000, 0}, counts); diff != "" {
			t.Errorf("events of each reading (-want +got):\n%s", diff)
		}
	})
}

// A health check finds what happened before it, and looks every half minute.
func TestHealthFollowsTheStory(t *testing.T) {
	n := parsed(t, troubled+`
  - {at: 7m10s, do: xid, gpu: 0, code: 74}
  - {at: 8m, do: xid, gpu: 0, code: 94}
  - {at: 9m, do: xid, gpu: 0, code: 31}
`)
	words := func(at time.Duration) string {
		h := n.ReadingAt(at, []gpu.FieldID{fieldPower, gpu.FieldHealthStatus}).Health
		out := []string{brief(h.Time.Sub(n.start))}
		for _, id := range h.Checked {
			out = append(out, fmt.Sprint(slices.IndexFunc(n.cards, func(c card) bool { return c.uuid == id })))
		}
		for _, i := range h.Incidents {
			index := slices.IndexFunc(n.cards, func(c card) bool { return c.uuid == i.GPU })
			out = append(out, fmt.Sprintf("%d:%s=%d(%d)", index, i.System, i.Result, i.Code))
			if i.GPUInstance != gpu.NoInstance || i.Text == "" {
				t.Errorf("an odd incident: %+v", i)
			}
		}
		return strings.Join(out, " ")
	}
	for at, want := range map[time.Duration]string{
		0:                               "0s 0 1 2",
		89 * time.Second:                "1m 0 1 2",
		2*time.Minute - 1:               "1m30s 0 1 2",
		2 * time.Minute:                 "2m 0 1 2 1:MEM=20(4)",
		4*time.Minute + 3*time.Second:   "4m 0 1 2 1:ALL=20(120)",
		5*time.Minute + time.Second:     "5m 0 1 2",
		6*time.Minute + 31*time.Second:  "6m30s 1 2",
		7*time.Minute + 20*time.Second:  "7m 0 1 2",
		7*time.Minute + 40*time.Second:  "7m30s 0 1 2 0:NVLINK=20(71)",
		8 * time.Minute:                 "8m 0 1 2 0:MEM=10(131)",
		9*time.Minute + 29*time.Second:  "9m 0 1 2",
		12*time.Minute + 10*time.Second: "12m 0 1 2 1:MEM=20(4)",
	} {
		if got := words(at); got != want {
			t.Errorf("at %s: %q, want %q", at, got, want)
		}
	}
}

// NVLink reaches where it is, not a card in MIG mode, and nobody knows of a lost card.
func TestPeersAreReachedOverNVLink(t *testing.T) {
	n := parsed(t, `
gpus:
  - {model: H100-80, count: 3}
  - {model: H100-80, mig: []}
  - {model: A30-24}
events: [{at: 1m, do: gpu_lost, gpu: 2}]
`)
	for at, want := range map[time.Duration]string{
		0:           "-0055 0-055 00-55 555-5 5555-",
		time.Minute: "-0655 0-655 66-66 556-5 5565-",
	} {
		status := map[[2]gpu.UUID]gpu.PeerStatus{}
		peers := n.ReadingAt(at, []gpu.FieldID{gpu.FieldP2PStatus}).Peers
		for _, p := range peers {
			status[[2]gpu.UUID{p.From, p.To}] = p.Status
		}
		var rows []string
		for _, from := range n.cards {
			row := ""
			for _, to := range n.cards {
				if s, ok := status[[2]gpu.UUID{from.uuid, to.uuid}]; ok {
					row += fmt.Sprint(int(s))
				} else {
					row += "-"
				}
			}
			rows = append(rows, row)
		}
		if got := strings.Join(rows, " "); got != want || len(peers) != 20 {
			t.Errorf("at %s: %d ways, %s, want %s", at, len(peers), got, want)
		}
	}
}

// DCGM numbers the GPU instances of all cards through, by profile and not by NVML's id.
func TestInstanceEntities(t *testing.T) {
	n := parsed(t, `
gpus:
  - {model: A30-24, mig: [2g.12gb, 1g.6gb]}
  - {model: H100-80}
  - {model: H100-80, mig: [3g.40gb, 2g.20gb, 1g.10gb, 1g.10gb]}
`)
	var got []string
	for _, d := range n.ReadingAt(0, nil).Devices {
		got = append(got, fmt.Sprintf("%d/%d=%d", d.Index, d.GPUInstance, d.InstanceEntity))
	}
	want := []string{"0/-1=-1", "0/1=1", "0/5=0", "1/-1=-1", "2/-1=-1", "2/2=17", "2/3=16", "2/9=14", "2/10=15"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("index/instance=entity (-want +got):\n%s", diff)
	}
}

// A card's clock is held down by nothing to do, by its power limit, or not at all.
func TestClockReasonsFollowTheLoad(t *testing.T) {
	n := parsed(t, `
gpus: [{model: H100-80, count: 3}]
pods:
  - {name: full, load: steady, start: 1m}
  - {name: half, load: {shape: steady, level: 0.4}, start: 1m}
`)
	got := func(at time.Duration) (reasons []int64) {
		for i := range n.cards {
			v, _ := value(t, n, at, i, -1, gpu.FieldClockReasons).AsInt()
			reasons = append(reasons, v)
		}
		slices.Sort(reasons)
		return reasons
	}
	if diff := cmp.Diff([]int64{1, 1, 1}, got(0)); diff != "" {
		t.Errorf("idle (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]int64{0, 1, 4}, got(2*time.Minute)); diff != "" {
		t.Errorf("one full, one half, one idle (-want +got):\n%s", diff)
	}
}
