// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"cmp"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

const (
	// verdictLogLimit bounds the lines of one tick, podsTold the pods in one of them.
	verdictLogLimit = 32
	podsTold        = 8
)

// verdictLog gives the log a line when a device becomes Unhealthy, at once, and one when it no longer
// is. Where that turns again and again it is the second line that waits, until the device is not
// Unhealthy any more and there is credit for it; it then says how often it turned. Another reason for
// which a device is Unhealthy has a line of its own. A MIG device is not told of while its card is Unhealthy.
type verdictLog struct {
	log  *slog.Logger
	told map[gpu.UUID]*toldVerdict
}

type toldVerdict struct {
	credit
	// unhealthy is what the log said last, and causes what it said it for; nil while it did not.
	unhealthy bool
	causes    map[cause]bool
	// is says that it was Unhealthy at the last report; since when it became Unhealthy, and ended when it was that no
	// more. again counts how often it became so since the log said it.
	is           bool
	since, ended time.Time
	again        int
	// reason is why, and recovery on what evidence it would end.
	reason, recovery string
}

// cause is why a device is Unhealthy, the worst of it.
type cause struct {
	kind  health.Kind
	class health.Class
}

func causeFor(v *health.Verdict) cause {
	for i := range v.Conditions {
		if c := &v.Conditions[i]; c.Withdraws() {
			return cause{c.Kind, c.Class}
		}
	}
	return cause{}
}

// remedy is what to do about it, empty where that cannot be said.
func (c cause) remedy() string {
	switch {
	case c.kind == health.KindMPSDown:
		return "start the MPS control daemon of this GPU again"
	case c.class == health.ClassReset:
		return "drain the GPU and reset it"
	case c.class == health.ClassNode:
		return "drain the node and restart it"
	case c.class == health.ClassHardware:
		return "drain the GPU and have the card looked at; return it with gpumeter health clear"
	default:
		return ""
	}
}

func newVerdictLog(log *slog.Logger) *verdictLog {
	return &verdictLog{log: log, told: map[gpu.UUID]*toldVerdict{}}
}

// report takes the verdicts of a tick, the devices that are known, and who holds what.
func (l *verdictLog) report(r *health.Report, devices []gpu.Device, division *sharing.Division, now time.Time) {
	broken := unhealthy(r)
	if len(broken) == 0 && len(l.told) == 0 {
		return
	}
	lines, more := 0, 0
	here := make(map[gpu.UUID]bool, len(r.Verdicts))
	for i := range r.Verdicts {
		v := &r.Verdicts[i]
		here[v.Device] = true
		t := l.told[v.Device]
		if v.Device != v.Card && broken[v.Card] || t == nil && v.Status != health.Unhealthy {
			continue
		}
		if t == nil {
			t = &toldVerdict{credit: newCredit(now)}
			l.told[v.Device] = t
		}
		tell := t.follow(v, now)
		switch {
		case !tell && !t.is && !t.unhealthy && t.earned(now) == logBurst:
			delete(l.told, v.Device)
		case !tell:
		case lines == verdictLogLimit:
			more++
		default:
			lines++
			t.left--
			l.tell(v, t, r, append(placed(devices, v.Card), held(v, division)...))
		}
	}
	for device := range l.told {
		if !here[device] {
			delete(l.told, device)
		}
	}
	if more > 0 {
		l.log.Warn("verdicts of more devices changed; gpumeter_device_health has them all", "more", more)
	}
}

// follow takes over a verdict and says whether the log is to have a line about it now.
func (t *toldVerdict) follow(v *health.Verdict, now time.Time) bool {
	was := t.is
	t.is = v.Status == health.Unhealthy
	if !t.is {
		if was {
			t.ended = v.Since
		}
		return t.unhealthy && t.earned(now) >= 1
	}
	if !was && t.unhealthy {
		t.again++
	}
	// The conditions are gone when the line about the end is due.
	t.since, t.reason, t.recovery = v.Since, v.Reason, ""
	for _, c := range v.Conditions {
		if c.Withdraws() {
			t.recovery = cmp.Or(c.Recovery, t.recovery)
		}
	}
	t.earned(now)
	return !t.causes[causeFor(v)]
}

// tell writes the line that is due; where says more about the device.
func (l *verdictLog) tell(v *health.Verdict, t *toldVerdict, r *health.Report, where []any) {
	attrs := []any{"device", string(v.Device)}
	if v.Card != v.Device {
		attrs = append(attrs, "gpu", string(v.Card))
	}
	attrs = append(attrs, where...)
	if t.is {
		why := causeFor(v)
		if !t.unhealthy {
			t.unhealthy, t.causes, t.again = true, map[cause]bool{}, 0
		}
		t.causes[why] = true
		if r.Time.Sub(v.Since) >= time.Second {
			attrs = append(attrs, "since", v.Since)
		}
		attrs = append(attrs, "class", why.class.String(), "reason", v.Reason)
		if do := why.remedy(); do != "" {
			attrs = append(attrs, "do", do)
		}
		l.log.Warn("a device is unhealthy", attrs...)
		return
	}
	evidence := t.recovery
	if word, ok := lastWord(r, v); ok && evidence == "" {
		evidence = "cleared by an operator: " + word.Reason
	}
	attrs = append(attrs, "status", v.Status.String(), "was", t.reason, "evidence", evidence, "lasted", t.ended.Sub(t.since).Round(time.Second))
	if t.again > 0 {
		attrs = append(attrs, "times", t.again+1)
	}
	if r.Time.Sub(t.ended) >= time.Second {
		attrs = append(attrs, "since", t.ended)
	}
	l.log.Info("a device is no longer unhealthy", attrs...)
	t.unhealthy, t.causes = false, nil
}

// placed says which GPU of the node a card is, for people; nothing where it is not known.
func placed(devices []gpu.Device, card gpu.UUID) []any {
	i := slices.IndexFunc(devices, func(d gpu.Device) bool { return d.UUID == card })
	if i < 0 {
		return nil
	}
	out := []any{"index", devices[i].Index}
	if devices[i].PCIBusID != "" {
		out = append(out, "pci", devices[i].PCIBusID)
	}
	return out
}

// held names the pods that hold an Unhealthy device.
func held(v *health.Verdict, division *sharing.Division) []any {
	if v.Status != health.Unhealthy {
		return nil
	}
	if pods := holders(v, division); len(pods) > 0 {
		return []any{"pods", pods}
	}
	return nil
}

// lastWord is the latest clearing that concerns a device.
func lastWord(r *health.Report, v *health.Verdict) (health.Clearing, bool) {
	for _, c := range slices.Backward(r.Clearings) {
		if c.Device == v.Device || c.Device == v.Card {
			return c, true
		}
	}
	return health.Clearing{}, false
}

// holders are the pods that hold a device or a part of it, by namespace and name.
func holders(v *health.Verdict, division *sharing.Division) []string {
	var pods []string
	for i := range division.Unallocated {
		u := &division.Unallocated[i]
		concerns := u.Card == v.Card && (v.Device == v.Card || u.Device == v.Device)
		if concerns && u.Holder.Pod != "" {
			pods = append(pods, strings.Join([]string{u.Holder.Namespace, u.Holder.Pod}, "/"))
		}
	}
	slices.Sort(pods)
	pods = slices.Compact(pods)
	if len(pods) > podsTold {
		pods = append(pods[:podsTold], "...")
	}
	return pods
}
