// SPDX-License-Identifier: Apache-2.0

package app

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/healthstream"
)

var noon = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

// cards are n physical GPUs, GPU-0 and on.
func cards(n int) []gpu.Device {
	out := make([]gpu.Device, n)
	for i := range out {
		out[i] = gpu.Device{UUID: gpu.UUID(fmt.Sprintf("GPU-%d", i)), Index: i, Minor: i, GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance}
	}
	return out
}

// reportOf has a verdict for each status, of GPU-0 and on.
func reportOf(statuses ...health.Status) *health.Report {
	r := &health.Report{Time: noon, Version: 1}
	for i, s := range statuses {
		uuid := gpu.UUID(fmt.Sprintf("GPU-%d", i))
		v := health.Verdict{Device: uuid, Card: uuid, Status: s, Since: noon}
		if s == health.Unhealthy {
			v.Reason = "XID 79: fell off the bus"
		}
		r.Verdicts = append(r.Verdicts, v)
	}
	return r
}

// listOf is a stream's list with these verdicts about its cards.
func listOf(statuses ...health.Status) *healthstream.List {
	l := &healthstream.List{Epoch: "e", Source: "dcgm", Report: *reportOf(statuses...)}
	for _, d := range cards(len(statuses)) {
		l.Devices = append(l.Devices, healthstream.Device{Device: d})
	}
	return l
}

const (
	unknown   = health.Unknown
	healthy   = health.Healthy
	unhealthy = health.Unhealthy
)

func TestWhoseVerdictHolds(t *testing.T) {
	never := lostPolicy{}
	tenMinutes := lostPolicy{unhealthy: true, after: 10 * time.Minute}
	for _, c := range []struct {
		name   string
		heard  heard
		own    *health.Report
		policy lostPolicy
		source string
		// want are the statuses of three cards, and how many of them nobody has judged.
		want     []health.Status
		unjudged int
	}{
		{"nobody's", heard{}, nil, never, verdictNone, []health.Status{unknown, unknown, unknown}, 3},
		{"a policy is not for a stream that never was", heard{since: noon.Add(-time.Hour)}, nil, tenMinutes, verdictNone, []health.Status{unknown, unknown, unknown}, 3},
		{"the plugin's own", heard{}, reportOf(healthy, unhealthy, healthy), never, verdictOwn, []health.Status{healthy, unhealthy, healthy}, 0},
		{"the stream's", heard{list: listOf(healthy, healthy, unhealthy), up: true}, reportOf(healthy, unknown, healthy), never, verdictStream, []health.Status{healthy, healthy, unhealthy}, 0},
		{"a device that the stream does not know stays", heard{list: listOf(healthy, unhealthy), up: true}, nil, never, verdictStream, []health.Status{healthy, unhealthy, unknown}, 1},
		{"a device that the stream does not know is the plugin's", heard{list: listOf(healthy, healthy), up: true}, reportOf(healthy, healthy, unhealthy), never, verdictStream, []health.Status{healthy, healthy, unhealthy}, 0},
		{"the worse of both while the stream is lost", heard{list: listOf(healthy, unhealthy, healthy)}, reportOf(unhealthy, healthy, healthy), never, verdictHeld, []health.Status{unhealthy, unhealthy, healthy}, 0},
		{"who can tell, before who cannot", heard{list: listOf(unknown, unknown, unhealthy)}, reportOf(healthy, unknown, unknown), never, verdictHeld, []health.Status{healthy, unknown, unhealthy}, 0},
		{"keep is for ever", heard{list: listOf(healthy, healthy, healthy), since: noon.Add(-240 * time.Hour)}, nil, lostPolicy{after: time.Minute}, verdictHeld, []health.Status{healthy, healthy, healthy}, 0},
		{"unhealthy is not yet", heard{list: listOf(healthy, healthy, healthy), since: noon.Add(-9 * time.Minute)}, nil, tenMinutes, verdictHeld, []health.Status{healthy, healthy, healthy}, 0},
		{"unhealthy in the end, known or not", heard{list: listOf(healthy, unhealthy), since: noon.Add(-10 * time.Minute)}, nil, tenMinutes, verdictPolicy, []health.Status{unhealthy, unhealthy, unhealthy}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := judge(cards(3), c.heard, c.own, nil, c.policy, noon)
			if j.source != c.source || j.unjudged != c.unjudged {
				t.Errorf("verdicts are %s, %d unjudged; want %s, %d", j.source, j.unjudged, c.source, c.unjudged)
			}
			for i, d := range cards(3) {
				v, _ := j.report.Verdict(d.UUID)
				if v.Status != c.want[i] {
					t.Errorf("%s is %s, want %s", d.UUID, v.Status, c.want[i])
				}
				if v.Status == unhealthy && v.Reason == "" {
					t.Errorf("%s is withdrawn without a reason", d.UUID)
				}
			}
		})
	}
}

func TestThePolicySaysWhySinceWhen(t *testing.T) {
	h := heard{list: listOf(healthy, unhealthy), since: noon.Add(-time.Hour)}
	j := judge(cards(2), h, nil, nil, lostPolicy{unhealthy: true, after: time.Minute}, noon)
	if r := j.report.Verdicts[0].Reason; !strings.Contains(r, "lost since 2026-12-01T11:00:00Z") {
		t.Errorf("reason %q", r)
	}
	if r := j.report.Verdicts[1].Reason; !strings.Contains(r, "XID 79") {
		t.Errorf("a broken GPU's own reason gave way: %q", r)
	}
}

func TestAnythingHeldBackByEitherIsHeldBack(t *testing.T) {
	list := listOf(healthy, healthy)
	list.Report.Verdicts[0].Avoid = true
	own := reportOf(healthy, healthy)
	own.Verdicts[1].Avoid = true
	j := judge(cards(2), heard{list: list}, own, nil, lostPolicy{}, noon)
	if !j.report.Verdicts[0].Avoid || !j.report.Verdicts[1].Avoid {
		t.Errorf("avoided: %v", j.report.Verdicts)
	}
}

// Law 6, where two who judge meet: unknown is not unhealthy, only an explicit verdict or the policy
// withdraws a device, and losing the stream heals none.
func TestLosingTheStreamNeitherHealsNorHurts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		statuses := rapid.SliceOfN(rapid.SampledFrom(health.Statuses()), 0, 6)
		list, own := listOf(statuses.Draw(t, "stream")...), reportOf(statuses.Draw(t, "own")...)
		if rapid.Bool().Draw(t, "no engine") {
			own = nil
		}
		devices := cards(6)
		up := judge(devices, heard{list: list, up: true}, own, nil, lostPolicy{}, noon)
		lost := judge(devices, heard{list: list}, own, nil, lostPolicy{}, noon)
		for _, d := range devices {
			before, _ := up.report.Verdict(d.UUID)
			after, _ := lost.report.Verdict(d.UUID)
			told, _ := list.Report.Verdict(d.UUID)
			mine, _ := verdictOf(own, d.UUID)
			if before.Status == unhealthy && after.Status != unhealthy {
				t.Fatalf("%s: losing the stream healed it", d.UUID)
			}
			if after.Status == unhealthy && told.Status != unhealthy && mine.Status != unhealthy {
				t.Fatalf("%s: withdrawn, and nobody said so", d.UUID)
			}
		}
	})
}
