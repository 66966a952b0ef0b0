// SPDX-License-Identifier: Apache-2.0

package gputest

import (
	"fmt"
	"slices"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// defaultCountersArePresent: a healthy card has power, energy, temperature and memory, and
// the driver has a version; energy grows.
func defaultCountersArePresent(s *subject) {
	first := s.settled()
	for _, sample := range first.Samples {
		if sample.Entity.Kind != gpu.KindGPU {
			continue
		}
		v := values(first, sample.Entity)
		if version, ok := v[gpu.FieldDriverVersion].AsText(); !ok || version == "" || version != first.Origin.Driver {
			s.Errorf("%s: the driver is %q (%s), by the origin %q", sample.Entity.GPU, version,
				v[gpu.FieldDriverVersion].Reason(), first.Origin.Driver)
		}
	}
	energy := func(r gpu.Reading) int64 {
		c, _ := cardAt(r, 0)
		mJ, _ := values(r, cardEntity(c.UUID))[fieldEnergy].AsInt()
		return mJ
	}
	s.until("energy grows", counters(), func(r gpu.Reading) string {
		if energy(r) > energy(first) {
			return ""
		}
		return fmt.Sprintf("it stands at %d mJ", energy(r))
	})
	if len(first.Troubles) > 0 {
		s.Errorf("a healthy node is in trouble: %+v", first.Troubles)
	}
}

// absentIsNotZero: what the hardware does not have and what nobody knows has no value, and
// the reason says so, wherever it stands among the columns.
func absentIsNotZero(s *subject) {
	s.settled()
	fields := []gpu.FieldID{fieldUnknown, fieldPower}
	if s.Unsupported != 0 {
		fields = append(fields, s.Unsupported, fieldTemperature)
	}
	r := s.until("the fields that there are", fields, func(r gpu.Reading) string { return answers(r, 0) })
	for _, sample := range r.Samples {
		for i, id := range r.Fields {
			v := sample.Values[i]
			strange := id == fieldUnknown || id == s.Unsupported && id != 0
			allowed := v.Reason() == gpu.ReasonNotSupported ||
				sample.Entity.Kind == gpu.KindGPUInstance && v.Reason() == gpu.ReasonScope
			if strange && !allowed {
				s.Errorf("field %d of %+v is %+v for %q, want it absent as not supported", id, sample.Entity, v, v.Reason())
			}
		}
	}
}

// computedMetricsHaveNoColumn: dcgm-exporter's computed metrics are wishes, not quantities.
func computedMetricsHaveNoColumn(s *subject) {
	s.settled()
	fields := []gpu.FieldID{gpu.FieldXIDErrorsCount, fieldPower, gpu.FieldClockEventsCount, gpu.FieldXIDErrorsTotal, gpu.FieldClockEventsTotal}
	r := s.until("power between wishes", fields, func(r gpu.Reading) string { return answers(r, 0) })
	for _, sample := range r.Samples {
		for i, id := range r.Fields {
			if id.Computed() && sample.Values[i].Reason() != gpu.ReasonScope {
				s.Errorf("the computed field %d of %+v is %+v", id, sample.Entity, sample.Values[i])
			}
		}
	}
}

// fieldsChangeBetweenReadings: other fields, in another order, are answered under their own
// columns; what was asked before and is still asked has no gap.
func fieldsChangeBetweenReadings(s *subject) {
	s.settled()
	backwards := counters()
	slices.Reverse(backwards)
	for _, fields := range [][]gpu.FieldID{backwards, {fieldPower}, nil, counters()} {
		s.until(fmt.Sprintf("fields %v", fields), fields, func(r gpu.Reading) string { return answers(r, 0) })
	}
	s.settled()
	more := append(counters(), 112, 190, 1523)
	slices.Sort(more)
	r := s.read(slices.Compact(more))
	if why := answers(r, 0); why != "" {
		s.Errorf("with three fields more, those that were there are gone: %s", why)
	}
}

// healthIsReportedWhenAsked: the last round of health checks, once there has been one, looked
// at every card; what it found is in order.
func healthIsReportedWhenAsked(s *subject) {
	s.needs(s.Health, "check health")
	s.settled()
	fields := append(counters(), gpu.FieldHealthStatus)
	r := s.until("a round of health checks", fields, func(r gpu.Reading) string {
		if r.Health.Time.IsZero() {
			return "no round is complete"
		}
		return ""
	})
	if r.Health.Time.After(r.Time) {
		s.Errorf("a round at %s in a reading at %s", r.Health.Time, r.Time)
	}
	var want []gpu.UUID
	for _, c := range cards(r) {
		want = append(want, c.UUID)
	}
	if !slices.Equal(want, r.Health.Checked) {
		s.Errorf("checked are %v, want %v", r.Health.Checked, want)
	}
	for _, i := range r.Health.Incidents {
		bad := i.Result != gpu.HealthWarn && i.Result != gpu.HealthFail
		if bad || !slices.Contains(want, i.GPU) || !slices.Contains(gpu.HealthSystems(), i.System) {
			s.Errorf("an odd incident: %+v", i)
		}
	}
	s.read(counters())
}

// peersAreReportedWhenAsked: every card has a way to every other.
func peersAreReportedWhenAsked(s *subject) {
	s.needs(s.Peers, "tell the ways between GPUs")
	s.settled()
	fields := append(counters(), gpu.FieldP2PStatus)
	n := len(cards(s.last))
	r := s.until("the ways between the GPUs", fields, func(r gpu.Reading) string {
		if len(r.Peers) != n*(n-1) {
			return fmt.Sprintf("%d ways between %d cards", len(r.Peers), n)
		}
		return ""
	})
	seen := map[[2]gpu.UUID]bool{}
	for _, p := range r.Peers {
		way := [2]gpu.UUID{p.From, p.To}
		if p.From == p.To || seen[way] || !has(cards(r), p.From) || !has(cards(r), p.To) {
			s.Errorf("an odd way: %+v", p)
		}
		seen[way] = true
		if p.Status < gpu.PeerOK || p.Status > gpu.PeerUnknown {
			s.Errorf("an odd status: %+v", p)
		}
	}
	s.read(counters())
}
