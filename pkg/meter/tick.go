// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// takeReading makes this tick's reading the present one, or lets the last one age.
func (m *Meter) takeReading(now time.Time, faults []Fault) []Fault {
	if r, ok := m.telemetry.good(); ok {
		var bad []Fault
		m.reading, bad = sound(r)
		faults = append(append(faults, bad...), m.tally.hear(&m.reading, cmp.Or(m.reading.Time, now))...)
		m.index = sharing.NewIndex(m.reading.Devices)
	} else if f, ok := m.telemetry.fault(now); ok {
		faults = append(faults, f)
		m.reading.Events = nil
		if now.Sub(m.telemetry.lastSuccess) > m.cfg.ReadingMaxAge {
			// The cards do not cease to exist when their driver is silent; what they
			// did is no longer known.
			m.reading = gpu.Reading{
				Time: m.reading.Time, Source: m.reading.Source, Origin: m.reading.Origin,
				Fields: m.reading.Fields, Devices: m.reading.Devices,
			}
			m.tally.recentClocks = nil
		}
	}
	lost := map[gpu.UUID]bool{}
	for _, t := range m.reading.Troubles {
		faults = append(faults, Fault{Source: SourceTelemetry, Subject: t.GPU, Kind: t.Reason.String(), Text: t.Text})
		lost[t.GPU] = lost[t.GPU] || t.Reason == gpu.ReasonLost
	}
	for _, d := range m.reading.Devices {
		if d.Lost && !lost[d.UUID] {
			faults = append(faults, Fault{
				Source: SourceTelemetry, Subject: d.UUID, Kind: gpu.ReasonLost.String(),
				Text: fmt.Sprintf("GPU %d at %s is lost: the driver can no longer reach it", d.Index, d.PCIBusID),
			})
		}
	}
	return faults
}

// follow brings the roster and the index of devices up to this tick's reading and verdicts.
func (m *Meter) follow() {
	_, fresh := m.telemetry.good()
	if m.roster.follow(m.reading.Devices, fresh, m.vigil.report()) {
		m.index = sharing.NewIndex(joined(m.reading.Devices, m.roster.missing))
	}
	undecided := slices.ContainsFunc(m.roster.missing, func(d gpu.Device) bool { return !d.Lost })
	m.urgency.lacks(undecided && len(m.reading.Devices) > 0, time.Now())
}

// takeListing makes this tick's listing the present one, or lets the last one stand
// in until it is too old. It says whether the allocations are known.
func (m *Meter) takeListing(now time.Time, faults []Fault) ([]Fault, bool) {
	if m.allocations == nil {
		return faults, false
	}
	if l, ok := m.allocations.good(); ok {
		l.Allocations = dated(l.Allocations, m.listing.Allocations, now)
		m.listing = l
	} else if f, ok := m.allocations.fault(now); ok {
		f.Text += m.meanwhile(now)
		faults = append(faults, f)
	}
	if m.allocations.lastSuccess.IsZero() || now.Sub(m.allocations.lastSuccess) > m.cfg.ListingMaxAge {
		return faults, false
	}
	// A listing that stands in may meet a new inventory, but is no later observation.
	m.seats = m.seats.Observe(m.allocations.lastSuccess, m.index, m.listing.Advertised).
		Recall(m.index, m.listing.Advertised, m.listing.Registered)
	return faults, true
}

// meanwhile says what a failing allocation source costs.
func (m *Meter) meanwhile(now time.Time) string {
	age := now.Sub(m.allocations.lastSuccess)
	switch {
	case m.allocations.lastSuccess.IsZero():
		return "; until it answers, who holds the GPUs is unobserved"
	case age > m.cfg.ListingMaxAge:
		return fmt.Sprintf("; its last answer is older than %v, and who holds the GPUs is unobserved", m.cfg.ListingMaxAge)
	default:
		return fmt.Sprintf("; its last answer stands in until it is %v old", m.cfg.ListingMaxAge)
	}
}

// sound is the reading without what would break or fool its readers: a device without a
// name or with another's, a sample that is not parallel to the fields, an event of nothing, a
// value that no hardware has.
func sound(r gpu.Reading) (gpu.Reading, []Fault) {
	var faults []Fault
	seen := make(map[gpu.UUID]bool, len(r.Devices))
	malformed := func(subject gpu.UUID, format string, args ...any) {
		faults = append(faults, Fault{Source: SourceTelemetry, Subject: subject, Kind: "malformed", Text: fmt.Sprintf(format, args...)})
	}
	keepDevice := func(d gpu.Device) bool {
		switch {
		case d.UUID == "":
			malformed("", "GPU %d has no UUID", d.Index)
		case seen[d.UUID]:
			malformed(d.UUID, "two devices have the UUID %q", d.UUID)
		case d.Parent != "" && !seen[d.Parent]:
			malformed(d.UUID, "the parent %q of MIG device %q is not listed before it", d.Parent, d.UUID)
		default:
			seen[d.UUID] = true
			return true
		}
		return false
	}
	devices := filter(r.Devices, keepDevice)
	samples := filter(r.Samples, func(s gpu.Sample) bool {
		if len(s.Values) == len(r.Fields) {
			return true
		}
		malformed(s.Entity.GPU, "%d values for %d fields", len(s.Values), len(r.Fields))
		return false
	})
	samples = plausible(samples, r.Fields)
	events := filter(r.Events, func(e gpu.Event) bool {
		if e.Kind != 0 && (e.Kind != gpu.EventXID || e.Code > 0) {
			return true
		}
		malformed(e.GPU, "an event of kind %d with code %d", e.Kind, e.Code)
		return false
	})
	r.Devices, r.Samples, r.Events = devices, samples, events
	return r, faults
}

// plausible is the samples without values that cannot be. What a source answered is copied
// where something is taken out of it.
func plausible(samples []gpu.Sample, fields []gpu.FieldID) []gpu.Sample {
	own := false
	for i := range samples {
		values := samples[i].Values
		mine := false
		for column, v := range values {
			kept := gpu.Plausible(fields[column], v)
			if kept == v {
				continue
			}
			if !own {
				samples, own = slices.Clone(samples), true
			}
			if !mine {
				values, mine = slices.Clone(values), true
				samples[i].Values = values
			}
			values[column] = kept
		}
	}
	return samples
}

// filter is in itself where all of it is kept, else a new slice: a source's answer is never written to.
func filter[T any](in []T, keep func(T) bool) []T {
	for i := range in {
		if keep(in[i]) {
			continue
		}
		out := slices.Clone(in[:i])
		for _, v := range in[i+1:] {
			if keep(v) {
				out = append(out, v)
			}
		}
		return out
	}
	return in
}

// dated gives each allocation the moment it was first seen. A pod UID that becomes known, or is not known for a while, is no
// new pod; another UID is.
func dated(now, before []sharing.Allocation, at time.Time) []sharing.Allocation {
	known := make(map[sharing.Allocation]sharing.Allocation, len(before))
	for _, a := range before {
		known[identity(a)] = a
	}
	out := slices.Clone(now)
	for i := range out {
		a := &out[i]
		if !a.Since.IsZero() {
			continue
		}
		a.Since = at
		old, again := known[identity(*a)]
		if again && (old.Holder.PodUID == a.Holder.PodUID || old.Holder.PodUID == "" || a.Holder.PodUID == "") {
			a.Since = old.Since
		}
	}
	return out
}

// identity is an allocation without what may change or become known while it lasts.
func identity(a sharing.Allocation) sharing.Allocation {
	a.Since, a.Terminal, a.Holder.PodUID = time.Time{}, false, ""
	return a
}

// kindPolicy is the fault of a policy that does not fit a card.
const kindPolicy = "policy"

// illegal says for which kinds of card the policy's weights could add up to more than the
// card. The answer is worked out once per kind, since it takes every legal layout.
func (m *Meter) illegal() []Fault {
	var faults []Fault
	for _, d := range m.reading.Devices {
		if d.IsMIG() || len(d.MIGProfiles) == 0 {
			continue
		}
		kind := fmt.Sprint(d.Model, d.Capacity, d.MIGProfiles)
		text, known := m.legality[kind]
		if !known {
			if err := sharing.ValidateTable(d, m.cfg.Policy); err != nil {
				text = err.Error()
			}
			m.legality[kind] = text
		}
		if text != "" {
			faults = append(faults, Fault{Source: SourceAttribution, Subject: d.UUID, Kind: kindPolicy, Text: text})
		}
	}
	return faults
}

// weights are what each device counts as under the policy. A card whose devices weigh more than
// itself is not charged by weight, and has none for them.
func weights(devices []gpu.Device, policy sharing.Policy, division *sharing.Division) map[gpu.UUID]sharing.Fraction {
	out := make(map[gpu.UUID]sharing.Fraction, len(devices))
	overweight := make(map[gpu.UUID]bool)
	for _, c := range division.Conflicts {
		if c.Kind == sharing.ConflictOverweight {
			overweight[c.Card] = true
		}
	}
	var card gpu.Device
	for _, d := range devices {
		if !d.IsMIG() {
			card, out[d.UUID] = d, sharing.One()
			continue
		}
		if card.UUID != d.Parent {
			// MIG devices follow their card; a source that lists them apart is heard, slowly.
			card = devices[slices.IndexFunc(devices, func(c gpu.Device) bool { return c.UUID == d.Parent })]
		}
		if w, known := policy.Weight(card, d); known && !overweight[card.UUID] {
			out[d.UUID] = w
		}
	}
	return out
}

// publish makes s, which has what this tick worked out, the present snapshot, and wakes its watchers.
func (m *Meter) publish(planned, began time.Time, s *Snapshot) {
	now := time.Now()
	old := m.current.Load()
	s.Seq, s.Time, s.Interval = old.snapshot.Seq+1, now, m.cfg.Interval
	s.Took, s.Late = now.Sub(began), began.Sub(planned)
	s.Reading, s.Recent, s.RecentClocks = m.reading, m.tally.recent, m.tally.recentClocks
	s.Seats, s.Health = m.seats, m.keeper.published(m.vigil.report())
	s.Sources = []SourceState{m.telemetry.state(now)}
	if m.allocations != nil {
		s.Sources = append(s.Sources, m.allocations.state(now))
	}
	if s.Observed {
		s.Listing = m.listing
	}
	if m.cfg.Jobs != nil {
		s.Jobs = m.cfg.Jobs()
	}
	s.Totals = old.snapshot.Totals
	s.Totals.XIDs, s.Totals.Clocks, s.Totals.Alarmed = m.tally.xids, m.tally.clocks, m.urgency.ticks
	s.Totals.add(s, old.snapshot)
	m.faults.report(s.Faults, now)
	m.xids.report(s.Reading.Events, m.roster.known, now)
	m.verdicts.report(s.Health, m.roster.known, &s.Division, now)
	m.current.Store(&cell{snapshot: s, stale: make(chan struct{})})
	close(old.stale)
	m.vigil.answer()
}

// add counts what is new in s since the snapshot before it.
func (t *Totals) add(s, before *Snapshot) {
	t.Ticks++
	if s.Late > s.Interval/2 {
		t.LateTicks++
	}
	if len(s.Faults) > 0 {
		t.Faults = maps.Clone(t.Faults)
		for _, f := range s.Faults {
			t.Faults[FaultKey{f.Source, f.Kind}]++
		}
	}
	t.Conflicts = counted(t.Conflicts, before.Division.Conflicts, s.Division.Conflicts, func(c sharing.Conflict) string { return c.Kind })
	t.NotCharged = counted(t.NotCharged, before.Division.Unmatched, s.Division.Unmatched, func(u sharing.Unmatched) string { return u.Reason })
}

// counted adds to totals, by word, the elements of now that were not there before.
func counted[T comparable](totals map[string]uint64, before, now []T, word func(T) string) map[string]uint64 {
	old := make(map[T]bool, len(before))
	for _, v := range before {
		old[v] = true
	}
	out, own := totals, false
	for _, v := range now {
		if old[v] {
			continue
		}
		if !own {
			out, own = make(map[string]uint64, len(totals)+1), true
			maps.Copy(out, totals)
		}
		out[word(v)]++
	}
	return out
}
