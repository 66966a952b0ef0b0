// SPDX-License-Identifier: Apache-2.0

package app

import (
	"fmt"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/healthstream"
)

// Whose verdicts hold, a label's value.
const (
	// verdictNone: nobody has said anything yet, and every device is handed out.
	verdictNone = "none"
	// verdictStream: the exporter's, of now.
	verdictStream = "stream"
	// verdictOwn: those of the plugin's own readings.
	verdictOwn = "own"
	// verdictHeld: the exporter's last ones, and with them the worse of the plugin's own.
	verdictHeld = "held"
	// verdictPolicy: the exporter has been silent for so long that the policy speaks.
	verdictPolicy = "policy"
)

// verdictSources are all of them.
func verdictSources() []string {
	return []string{verdictNone, verdictStream, verdictOwn, verdictHeld, verdictPolicy}
}

// heard is what is known of the health stream.
type heard struct {
	// list is the last one, also one of before a restart; nil for none.
	list *healthstream.List
	// up says that the stream stands; since is from when it has been as it is.
	up    bool
	since time.Time
}

// lostPolicy is what is done about a stream that is lost.
type lostPolicy struct {
	unhealthy bool
	after     time.Duration
}

// judgement is what is known of each device's health now.
type judgement struct {
	// report is never nil. It has verdicts for those devices that somebody has judged.
	report *health.Report
	source string
	// unjudged are devices that nobody knows of. They are handed out: only an explicit verdict
	// takes a device away.
	unjudged int
	// unanswered are conditions of the plugin's own of which the exporter's list says nothing.
	unanswered []health.Condition
}

// judge puts together what the stream and the plugin's own engine say. own is nil where there is no engine or no reading yet.
// While the stream stands its verdicts hold, but for what the plugin itself knows against a device and
// the exporter does not: that stands until it has answered. facts are what the plugin's own parts say now, and
// wait for nobody.
func judge(devices []gpu.Device, h heard, own *health.Report, facts []health.Fact, policy lostPolicy, now time.Time) judgement {
	j := judgement{report: &health.Report{Time: now}, source: verdictNone}
	var told *health.Report
	switch {
	case h.list != nil && h.up:
		j.source, told = verdictStream, &h.list.Report
	case h.list != nil:
		j.source, told = verdictHeld, &h.list.Report
	case own != nil:
		j.source = verdictOwn
	}
	if told != nil {
		j.report.BootID, j.report.Version = told.BootID, told.Version
	}
	expired := j.source == verdictHeld && policy.unhealthy && policy.after > 0 && now.Sub(h.since) >= policy.after
	if expired {
		j.source = verdictPolicy
	}
	for _, d := range devices {
		v, known := verdictOf(told, d.UUID)
		mine, judged := verdictOf(own, d.UUID)
		switch {
		case judged && !known:
			v = mine
		case judged && !h.up:
			v = worse(v, mine)
		case judged && mine.Status == health.Unhealthy:
			if open := unanswered(mine, told); len(open) > 0 {
				v = worse(v, mine)
				j.unanswered = append(j.unanswered, open...)
			}
		}
		if fact, ok := against(d, facts); ok && v.Status != health.Unhealthy {
			v, judged = health.Verdict{
				Device: d.UUID, Card: d.Card(), Status: health.Unhealthy, Since: now, Avoid: v.Avoid, Conditions: v.Conditions,
				Reason: fmt.Sprintf("%s (%s)", fact.Text, fact.Class),
			}, true
		}
		if expired {
			v, known = withdrawn(v, d, h.since), true
		}
		if !known && !judged {
			j.unjudged++
			continue
		}
		j.report.Verdicts = append(j.report.Verdicts, v)
	}
	return j
}

// against is the fact that withdraws a device, if one does.
func against(d gpu.Device, facts []health.Fact) (health.Fact, bool) {
	for _, f := range facts {
		if f.GPU == d.Card() && f.Class >= health.ClassReset {
			return f, true
		}
	}
	return health.Fact{}, false
}

func verdictOf(r *health.Report, device gpu.UUID) (health.Verdict, bool) {
	if r == nil {
		return health.Verdict{}, false
	}
	return r.Verdict(device)
}

// worse is the verdict that says less good, with what either has against the device.
func worse(a, b health.Verdict) health.Verdict {
	out := a
	if b.Status == health.Unhealthy && a.Status != health.Unhealthy {
		out = b
	}
	if a.Status == health.Unknown && b.Status == health.Healthy {
		// Whoever reads the device now knows better than who cannot tell.
		out = b
	}
	out.Avoid = a.Avoid || b.Avoid
	return out
}

// withdrawn is the verdict of the policy about a stream that has been lost for too long.
func withdrawn(v health.Verdict, d gpu.Device, since time.Time) health.Verdict {
	if v.Status == health.Unhealthy {
		return v
	}
	return health.Verdict{
		Device: d.UUID, Card: d.Card(), Status: health.Unhealthy, Since: since, Conditions: v.Conditions,
		Reason: fmt.Sprintf("the health stream has been lost since %s, and the policy for that is unhealthy", since.UTC().Format(time.RFC3339)),
	}
}

// standing is what of a verdict concerns who hands the device out.
type standing struct {
	status health.Status
	avoid  bool
	reason string
}

// standings are those of a report, by device, to tell whether anything changed.
func standings(r *health.Report) map[gpu.UUID]standing {
	out := make(map[gpu.UUID]standing, len(r.Verdicts))
	for _, v := range r.Verdicts {
		out[v.Device] = standing{v.Status, v.Avoid, v.Reason}
	}
	return out
}
