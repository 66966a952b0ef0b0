// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// chronicle is a verdictLog with what it said.
type chronicle struct {
	*verdictLog
	buf bytes.Buffer
}

func newChronicle() *chronicle {
	c := &chronicle{}
	c.verdictLog = newVerdictLog(slog.New(slog.NewTextHandler(&c.buf, nil)))
	return c
}

// said are the lines since the last call, without time and level's name.
func (c *chronicle) said() string {
	var out []string
	for line := range strings.Lines(c.buf.String()) {
		_, words, _ := strings.Cut(strings.TrimSpace(line), "level=")
		out = append(out, words)
	}
	c.buf.Reset()
	return strings.Join(out, "\n")
}

func verdict(device, card gpu.UUID, status health.Status, conditions ...health.Condition) health.Verdict {
	v := health.Verdict{Device: device, Card: card, Status: status, Conditions: conditions}
	for _, c := range conditions {
		v.Reason = c.Evidence
	}
	return v
}

// since is a verdict that has stood since a time.
func since(v health.Verdict, at time.Time) health.Verdict {
	v.Since = at
	return v
}

// tick reports verdicts of a moment.
func (c *chronicle) tick(at time.Time, vs ...health.Verdict) {
	c.report(&health.Report{Time: at, Verdicts: vs}, nil, &sharing.Division{}, at)
}

func TestATransitionIsToldWithWhoHoldsTheDeviceAndOnWhatEvidenceItEnds(t *testing.T) {
	now := time.Unix(1e9, 0)
	c := newChronicle()
	fell := health.Condition{Kind: health.XIDKind(79), Class: health.ClassNode, Evidence: "XID 79"}
	held := &sharing.Division{Unallocated: []sharing.Unallocated{
		{Card: "GPU-a", Cause: sharing.CauseUnhealthy, Holder: sharing.Holder{Namespace: "ml", Pod: "train"}},
		{Card: "GPU-a", Cause: sharing.CauseUnhealthy, Holder: sharing.Holder{Namespace: "ml", Pod: "train"}},
		{Card: "GPU-b", Cause: sharing.CauseFree},
	}}
	node := []gpu.Device{{UUID: "GPU-b"}, {UUID: "GPU-a", Index: 3, PCIBusID: "00000000:4E:00.0"}}
	at := func(seconds int) time.Time { return now.Add(time.Duration(seconds) * time.Second) }
	report := func(when time.Time, vs ...health.Verdict) {
		c.report(&health.Report{Time: when, Verdicts: vs}, node, held, when)
	}
	report(now, verdict("GPU-a", "GPU-a", health.Healthy))
	card, part := since(verdict("GPU-a", "GPU-a", health.Unhealthy, fell), at(1)), since(verdict("MIG-1", "GPU-a", health.Unhealthy, fell), at(1))
	report(at(1), card, part)
	want := `WARN msg="a device is unhealthy" device=GPU-a index=3 pci=00000000:4E:00.0 pods=[ml/train] class=node reason="XID 79" do="drain the node and restart it"`
	if got := c.said(); got != want {
		t.Errorf("broken:\n%s\nwant:\n%s", got, want)
	}
	card.Conditions = []health.Condition{fell}
	card.Conditions[0].Recovery = "the machine was restarted"
	report(at(60), card, part)
	if got := c.said(); got != "" {
		t.Errorf("told again: %s", got)
	}
	own := health.Condition{Kind: health.XIDKind(94), Class: health.ClassReset, Evidence: "XID 94"}
	report(at(61), since(verdict("GPU-a", "GPU-a", health.Healthy), at(61)), since(verdict("MIG-1", "GPU-a", health.Unhealthy, own), at(61)))
	want = `INFO msg="a device is no longer unhealthy" device=GPU-a index=3 pci=00000000:4E:00.0 status=healthy was="XID 79" evidence="the machine was restarted" lasted=1m0s
WARN msg="a device is unhealthy" device=MIG-1 gpu=GPU-a index=3 pci=00000000:4E:00.0 class=reset reason="XID 94" do="drain the GPU and reset it"`
	if got := c.said(); got != want {
		t.Errorf("back:\n%s\nwant:\n%s", got, want)
	}
	cleared := &health.Report{
		Verdicts:  []health.Verdict{verdict("GPU-a", "GPU-a", health.Healthy), verdict("MIG-1", "GPU-a", health.Healthy)},
		Clearings: []health.Clearing{{Device: "MIG-1", Reason: "tested"}},
	}
	c.report(cleared, node, held, at(62))
	if got := c.said(); !strings.Contains(got, `evidence="cleared by an operator: tested"`) {
		t.Errorf("cleared:\n%s", got)
	}
	c.report(cleared, node, held, now.Add(time.Hour))
	c.report(cleared, node, held, now.Add(time.Hour))
	if len(c.told) != 0 {
		t.Errorf("%d devices are remembered for ever", len(c.told))
	}
}

// A restart of the exporter is no transition: what is told of a device then is from when it has been so.
func TestAfterARestartTheLogSaysSinceWhenADeviceIsUnhealthy(t *testing.T) {
	now := time.Unix(1e9, 0)
	c := newChronicle()
	fell := health.Condition{Kind: health.XIDKind(79), Class: health.ClassNode, Evidence: "XID 79"}
	c.tick(now, since(verdict("GPU-a", "GPU-a", health.Unhealthy, fell), now.Add(-time.Hour)))
	if got := c.said(); !strings.Contains(got, " since="+now.Add(-time.Hour).Format(time.RFC3339)[:19]) {
		t.Errorf("at the start: %s", got)
	}
	c.tick(now.Add(time.Minute), since(verdict("GPU-a", "GPU-a", health.Healthy), now.Add(time.Minute)))
	if got := c.said(); !strings.Contains(got, "lasted=1h1m0s") {
		t.Errorf("at the end: %s", got)
	}
}

// The worst news about a device is another line, however often it has turned.
func TestAWorseReasonIsToldAtOnce(t *testing.T) {
	now := time.Unix(1e9, 0)
	c := newChronicle()
	fault := health.Condition{Kind: health.XIDKind(48), Class: health.ClassReset, Evidence: "XID 48"}
	flaps := health.Condition{Kind: health.KindFlapping, Class: health.ClassHardware, Evidence: "it broke 3 times"}
	for range 10 {
		c.tick(now, since(verdict("GPU-a", "GPU-a", health.Unhealthy, fault), now))
		now = now.Add(time.Second)
		c.tick(now, since(verdict("GPU-a", "GPU-a", health.Healthy), now))
		now = now.Add(time.Second)
	}
	c.said()
	c.tick(now, since(verdict("GPU-a", "GPU-a", health.Unhealthy, flaps, fault), now))
	if got := c.said(); !strings.Contains(got, "class=hardware") || !strings.Contains(got, "gpumeter health clear") {
		t.Errorf("told: %s", got)
	}
	for range 10 {
		now = now.Add(time.Second)
		c.tick(now, since(verdict("GPU-a", "GPU-a", health.Unhealthy, flaps, fault), now))
		c.tick(now, since(verdict("GPU-a", "GPU-a", health.Unhealthy, fault), now))
	}
	if got := c.said(); strings.Contains(got, "\n") {
		t.Errorf("reasons that come and go are told each time:\n%s", got)
	}
}

func TestADeviceThatTurnsWithEachTickDoesNotFillTheLogAndNoBreakingIsLate(t *testing.T) {
	now := time.Unix(1e9, 0)
	c := newChronicle()
	logged, lines, last := health.Healthy, 0, ""
	for i := range 600 {
		status := health.Healthy
		if i%2 == 0 {
			status = health.Unhealthy
		}
		at := now.Add(time.Duration(i) * time.Second)
		c.tick(at, since(verdict("GPU-a", "GPU-a", status), at))
		if said := c.said(); said != "" {
			lines++
			if logged = health.Healthy; strings.Contains(said, "is unhealthy") {
				logged = health.Unhealthy
			} else {
				last = said
			}
		}
		if status == health.Unhealthy && logged != health.Unhealthy {
			t.Fatalf("after %d s it is unhealthy and the log's last word is that it is not", i)
		}
	}
	if lines < logBurst || lines > logBurst+12 {
		t.Errorf("%d lines in ten minutes", lines)
	}
	if !strings.Contains(last, "lasted=1s") || !strings.Contains(last, "times=60") {
		t.Errorf("the repeats are not counted, or how long the last was is wrong: %s", last)
	}
}

func TestANodeWhereEverythingBreaksIsToldInNumbers(t *testing.T) {
	c := newChronicle()
	r := &health.Report{}
	for i := range 100 {
		uuid := gpu.UUID(fmt.Sprint("GPU-", i))
		r.Verdicts = append(r.Verdicts, verdict(uuid, uuid, health.Unhealthy))
	}
	now := time.Unix(1e9, 0)
	c.report(r, nil, &sharing.Division{}, now)
	if got := c.said(); strings.Count(got, "\n") != verdictLogLimit || !strings.Contains(got, "more=68") {
		t.Errorf("told:\n%s", got)
	}
	for range 3 {
		c.report(r, nil, &sharing.Division{}, now)
	}
	if got := strings.Count(c.said(), "a device is unhealthy"); got != 68 {
		t.Errorf("%d of the other 68 were told later", got)
	}
}
