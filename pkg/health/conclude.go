// SPDX-License-Identifier: Apache-2.0

package health

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// conclude makes the statuses, the records and the report of the state.
func (f *fold) conclude() {
	changed, conditions := f.old == nil || f.setBack, false
	for i := range f.d.Cards {
		c := &f.d.Cards[i]
		conditions = conditions || len(c.Conditions) > 0
		if f.statuses(c) {
			changed = true
		}
	}
	placed := f.places()
	var before *Report
	if f.old != nil {
		before = f.old.report
		for i := range f.old.Cards {
			conditions = conditions || len(f.old.Cards[i].Conditions) > 0
		}
	}
	report := &Report{Time: f.d.Time, BootID: f.d.BootID, Records: f.d.Records, Clearings: f.d.Clearings}
	report.Ended, report.Repartition = f.d.endings(), f.d.Repartition.view()
	if before == nil || changed || conditions || placed || !f.sameDevices(before) {
		report.Verdicts = f.d.verdicts()
		if before == nil || placed || !alike(before.Verdicts, report.Verdicts) || !slices.Equal(before.Ended, report.Ended) {
			f.d.Version++
			f.durable = true
		}
	} else {
		report.Verdicts = before.Verdicts
		if !slices.Equal(before.Ended, report.Ended) {
			f.d.Version++
			f.durable = true
		}
	}
	if f.durable {
		f.d.Durable++
	}
	report.Version = f.d.Version
	f.d.report = report.filled()
}

// filled is the report with lists in place of none.
func (r *Report) filled() *Report {
	if r.Verdicts == nil {
		r.Verdicts = []Verdict{}
	}
	if r.Records == nil {
		r.Records = []Record{}
	}
	if r.Clearings == nil {
		r.Clearings = []Clearing{}
	}
	return r
}

// places takes over what of the devices their readers go by, and says whether that changed.
func (f *fold) places() bool {
	if !f.e.Fresh {
		return false
	}
	devices := f.e.Reading.Devices
	same := len(devices) == len(f.d.places)
	for i := 0; same && i < len(devices); i++ {
		same = f.d.places[i] == placeOf(&devices[i])
	}
	if same {
		return false
	}
	known := f.d.places != nil
	f.d.places = make([]place, len(devices))
	for i := range devices {
		f.d.places[i] = placeOf(&devices[i])
	}
	return known
}

func (f *fold) sameDevices(before *Report) bool {
	i := 0
	for k := range f.d.Cards {
		c := &f.d.Cards[k]
		if i+1+len(c.Parts) > len(before.Verdicts) || before.Verdicts[i].Device != c.UUID {
			return false
		}
		for j := range c.Parts {
			if before.Verdicts[i+1+j].Device != c.Parts[j].UUID {
				return false
			}
		}
		i += 1 + len(c.Parts)
	}
	return i == len(before.Verdicts)
}

// statuses sets the status of a card and of its MIG devices, and says whether any changed.
func (f *fold) statuses(c *card) bool {
	note := f.note(c)
	otherwise := Healthy
	if note != "" {
		otherwise = Unknown
	}
	status := otherwise
	for i := range c.Conditions {
		if c.withdraws(&c.Conditions[i]) {
			status = Unhealthy
		}
	}
	changed := f.status(&c.device, status, note)
	own := false
	for i := range c.Parts {
		status := otherwise
		for j := range c.Conditions {
			if q := &c.Conditions[j]; q.Withdraws() && c.covers(q, &c.Parts[i]) {
				status = Unhealthy
			}
		}
		p := c.Parts[i]
		if !f.status(&p, status, note) {
			continue
		}
		if !own {
			c.Parts, own = slices.Clone(c.Parts), true
		}
		c.Parts[i], changed = p, true
	}
	return changed
}

// status sets the status of a device, keeps its record, and says whether the status or the
// reason of an unknown one changed.
func (f *fold) status(d *device, status Status, note string) bool {
	first := d.Since.IsZero()
	if !first && d.Status == Unhealthy && f.elapsed > 0 {
		f.record(d.UUID).Unhealthy += f.elapsed
	}
	if status != Unknown {
		note = ""
	}
	if !first && d.Status == status && d.Note == note {
		return false
	}
	f.durable = true
	if first || d.Status != status {
		r := f.record(d.UUID)
		r.Transitions = maps.Clone(r.Transitions)
		r.Transitions[status.String()]++
		d.Status, d.Since = status, f.now
	}
	d.Note = note
	return true
}

// record is a device's record, to be written to: made where there is none.
func (f *fold) record(id gpu.UUID) *Record {
	if !f.recording {
		f.d.Records, f.recording = slices.Clone(f.d.Records), true
	}
	i, there := slices.BinarySearchFunc(f.d.Records, id, func(r Record, id gpu.UUID) int { return cmp.Compare(r.Device, id) })
	if there {
		return &f.d.Records[i]
	}
	if len(f.d.Records) >= mostRecords {
		if k := slices.IndexFunc(f.d.Records, func(r Record) bool { return !f.d.knows(r.Device) }); k >= 0 {
			f.d.Records = slices.Delete(f.d.Records, k, k+1)
			if k < i {
				i--
			}
		}
	}
	f.d.Records = slices.Insert(f.d.Records, i, Record{Device: id, Transitions: map[string]uint64{}})
	return &f.d.Records[i]
}

// knows says whether the state has a status of a device.
func (d *data) knows(id gpu.UUID) bool {
	return slices.ContainsFunc(d.Cards, func(c card) bool {
		return c.UUID == id || slices.ContainsFunc(c.Parts, func(p device) bool { return p.UUID == id })
	})
}

// verdicts are those of all devices.
func (d *data) verdicts() []Verdict {
	n := len(d.Cards)
	for i := range d.Cards {
		n += len(d.Cards[i].Parts)
	}
	out := make([]Verdict, 0, n)
	for i := range d.Cards {
		c := &d.Cards[i]
		all := c.sorted()
		own, shared := []Condition{}, true
		for j := range all {
			q := &all[j]
			shared = shared && whole(q)
			if whole(q) || !c.MIG || c.stray(q) {
				own = append(own, q.Condition)
			}
		}
		v := verdict(&c.device, c.UUID, own)
		out = append(out, v)
		for j := range c.Parts {
			p := &c.Parts[j]
			if shared && p.Status == v.Status && p.Note == c.Note {
				w := v
				w.Device, w.Since = p.UUID, p.Since
				out = append(out, w)
				continue
			}
			covering := []Condition{}
			for k := range all {
				if c.covers(&all[k], p) {
					covering = append(covering, all[k].Condition)
				}
			}
			out = append(out, verdict(p, c.UUID, covering))
		}
	}
	return out
}

// sorted are the conditions of a card, the worst first, then the oldest.
func (c *card) sorted() []condition {
	return slices.SortedFunc(slices.Values(c.Conditions), func(a, b condition) int {
		return cmp.Or(cmp.Compare(b.Class, a.Class), a.Since.Compare(b.Since), cmp.Compare(a.Kind, b.Kind),
			cmp.Compare(a.GPUInstance, b.GPUInstance), cmp.Compare(a.ComputeInstance, b.ComputeInstance), cmp.Compare(a.Placement.Start, b.Placement.Start))
	})
}

func verdict(d *device, card gpu.UUID, conditions []Condition) Verdict {
	v := Verdict{Device: d.UUID, Card: card, Status: d.Status, Since: d.Since}
	var words []string
	if d.Note != "" {
		words = append(words, d.Note)
	}
	if len(conditions) > 0 {
		v.Conditions = conditions
		words = append(words, reason(&conditions[0]))
	}
	if n := len(conditions) - 1; n > 0 {
		words = append(words, fmt.Sprintf("and %d more", n))
	}
	v.Reason = strings.Join(words, "; ")
	for i := range conditions {
		v.Avoid = v.Avoid || !conditions[i].Withdraws() || conditions[i].Recovery != ""
	}
	return v
}

// reason is a condition in one line.
func reason(q *Condition) string {
	text := fmt.Sprintf("%s (%s), since %s", q.Evidence, q.Class, q.Since.Format(time.RFC3339))
	if q.Recovery != "" {
		text += fmt.Sprintf("; recovering since %s: %s", q.RecoveringSince.Format(time.RFC3339), q.Recovery)
	}
	return text
}

// alike says whether two lists of verdicts are the same but for times, counts and words.
func alike(a, b []Verdict) bool {
	return slices.EqualFunc(a, b, func(a, b Verdict) bool {
		return a.Device == b.Device && a.Card == b.Card && a.Status == b.Status && a.Avoid == b.Avoid &&
			slices.EqualFunc(a.Conditions, b.Conditions, func(a, b Condition) bool {
				return a.Subject == b.Subject && a.Kind == b.Kind && a.Class == b.Class && a.Recovery == b.Recovery
			})
	})
}
