// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// linkLimit is more NVLinks than a card has.
const linkLimit = 64

// The fields of defects that other code in this package refers to.
const (
	fieldRecoveryAction gpu.FieldID = 1523
	fieldLinkState      gpu.FieldID = 1508
)

// The words of row_remap's state and incident's result.
const (
	statePending = "pending"
	stateFailed  = "failed"
	resultWarn   = "warn"
	resultFail   = "fail"
)

// actionWords are the driver's recovery actions in the order of NVML's numbers.
func actionWords() []string {
	return []string{"none", "reset", "reboot", "drain_p2p", "drain_and_reset", "recover_imex", "bus_reset", "system_reboot"}
}

// slowdowns are NVML's bits for what holds clocks back when something is wrong: the slowdown by
// hardware (8), with its cause, or by software (0x20).
func slowdowns() map[string]int64 {
	return map[string]int64{"thermal": 0x48, "software_thermal": 0x20, "power": 0x88}
}

func slowdownWords() []string { return slices.Sorted(maps.Keys(slowdowns())) }

func systemWords() []string {
	var words []string
	for _, s := range gpu.HealthSystems() {
		words = append(words, string(s))
	}
	return words
}

func resultOf(word string) gpu.HealthResult {
	if word == resultWarn {
		return gpu.HealthWarn
	}
	return gpu.HealthFail
}

// defects are the levels of a card that say that something is wrong. A defects value is never
// modified.
type defects struct {
	// action is NVML's number of the recovery action.
	action                    int
	remapPending, remapFailed bool
	// retired counts the memory pages that were retired for double-bit errors.
	retired              int
	retiredPending       bool
	sram, unrepairable   bool
	slowdown             int64
	linksDown, incidents []*eventSpec
}

// with is f after an event has begun, or after it has ended.
func (f defects) with(e *eventSpec, begun bool) defects {
	switch e.do {
	case doRecoveryAction:
		f.action = 0
		if begun {
			f.action = slices.Index(actionWords(), e.word)
		}
	case doRowRemap:
		if e.word == stateFailed {
			f.remapFailed = begun
		} else {
			f.remapPending = begun
		}
	case doRetiredPages:
		f.retired, f.retiredPending = f.retired+e.count, true
	case doSRAMThreshold:
		f.sram = begun
	case doUnrepairable:
		f.unrepairable = begun
	case doSlowdown:
		f.slowdown = 0
		if begun {
			f.slowdown = slowdowns()[e.word]
		}
	case doNVLinkDown:
		f.linksDown = amended(f.linksDown, e, begun)
	case doIncident:
		f.incidents = amended(f.incidents, e, begun)
	}
	return f
}

// amended is a list with an event more, or without it.
func amended(list []*eventSpec, e *eventSpec, more bool) []*eventSpec {
	if more {
		return append(slices.Clone(list), e)
	}
	return slices.DeleteFunc(slices.Clone(list), func(o *eventSpec) bool { return o == e })
}

// afterReset is what a reset leaves: what waited for it is done, what is broken stays so.
func (f defects) afterReset() defects {
	f.action, f.remapPending, f.retiredPending = 0, false, false
	return f
}

// level is the value of a field.
func (f *defects) level(id gpu.FieldID) gpu.Value {
	flag := func(set bool) gpu.Value {
		if set {
			return gpu.Int(1)
		}
		return gpu.Int(0)
	}
	switch id {
	case 346:
		return flag(f.sram)
	case 391:
		return gpu.Int(int64(f.retired))
	case 392:
		return flag(f.retiredPending)
	case 395:
		return flag(f.remapFailed)
	case 396:
		return flag(f.remapPending)
	case 1507:
		return flag(f.unrepairable)
	case fieldRecoveryAction:
		return gpu.Int(int64(f.action))
	default:
		return gpu.Int(0)
	}
}

// linkUp reports whether a link of the card is active.
func (f *defects) linkUp(link int) bool {
	return !slices.ContainsFunc(f.linksDown, func(e *eventSpec) bool { return e.link == link })
}

// appendLinks adds the NVLinks of the cards, where their state is asked for.
func (n *Node) appendLinks(samples []gpu.Sample, columns []column, m moment, at time.Time) []gpu.Sample {
	state := slices.IndexFunc(columns, func(c column) bool { return c.id == fieldLinkState })
	if state < 0 {
		return samples
	}
	// Links differ in their state only, and there are many.
	rows := make([][]gpu.Value, 2)
	for up := range rows {
		rows[up] = make([]gpu.Value, len(columns))
		for k := range columns {
			rows[up][k] = gpu.Absent(gpu.ReasonScope)
			if columns[k].scope == gpu.ScopeLink {
				rows[up][k] = gpu.Absent(gpu.ReasonNotSupported)
			}
		}
		rows[up][state] = gpu.Int(int64(up))
	}
	for i := range n.cards {
		c := m.state.cards[i]
		if c.silent() || !n.gpus.Major(i) {
			continue
		}
		for link := range n.cards[i].model.nvlinks {
			values := rows[0]
			if c.defects.linkUp(link) {
				values = rows[1]
			}
			samples = append(samples, gpu.Sample{Entity: gpu.Entity{Kind: gpu.KindLink, GPU: n.cards[i].uuid, ID: link}, Time: at, Values: values})
		}
	}
	return samples
}

// defectIncidents are what a health check finds in the levels.
func (p *physics) defectIncidents(add func(gpu.HealthSystem, gpu.HealthResult, int, string)) {
	f := &p.state.defects
	if len(f.linksDown) > 0 {
		add(gpu.HealthNVLink, gpu.HealthFail, frNVLinkDown, fmt.Sprintf("NVLink %d is down", f.linksDown[0].link))
	}
	if f.retiredPending {
		add(gpu.HealthMemory, gpu.HealthWarn, frPagesPending, "pages wait to be retired by a reset")
	}
	if f.sram {
		add(gpu.HealthMemory, gpu.HealthFail, frSRAMThreshold, "more errors in SRAM than the threshold")
	}
	switch {
	case f.slowdown&0x88 == 0x88:
		add(gpu.HealthPower, gpu.HealthWarn, frClocksPower, "clocks are held back by the power supply")
	case f.slowdown != 0:
		add(gpu.HealthThermal, gpu.HealthWarn, frClocksThermal, "clocks are held back by heat")
	}
	// DCGM knows the first four actions only.
	if f.action >= 1 && f.action <= 4 {
		result := gpu.HealthFail
		if f.action == 3 {
			result = gpu.HealthWarn
		}
		add(gpu.HealthAll, result, frRecoveryAction+f.action-1, "the driver asks for "+actionWords()[f.action])
	}
	for _, e := range f.incidents {
		add(gpu.HealthSystem(e.word), e.result, e.code, fmt.Sprintf("a check of %s found error %d", e.word, e.code))
	}
}

// sorted orders a card's incidents by system and code.
func sorted(incidents []gpu.HealthIncident) []gpu.HealthIncident {
	systems := gpu.HealthSystems()
	slices.SortStableFunc(incidents, func(a, b gpu.HealthIncident) int {
		return cmp.Or(cmp.Compare(slices.Index(systems, a.System), slices.Index(systems, b.System)), cmp.Compare(a.Code, b.Code))
	})
	return incidents
}

// boots are the times in a round at which the machine is restarted.
func boots(s *Scenario) []time.Duration {
	var at []time.Duration
	for i := range s.events {
		if e := &s.events[i]; e.do == doReboot && (s.Loop == 0 || e.at < s.Loop) {
			at = append(at, e.at)
		}
	}
	return at
}

// BootID is the kernel's boot id at a time since the story began: another one from each reboot
// of the story on.
func (n *Node) BootID(elapsed time.Duration) string {
	l := n.line
	m := l.at(elapsed)
	booted, _ := slices.BinarySearch(l.boots, m.t+1)
	return uuidFrom(mix(n.seed, hashText("boot"), uint64(m.round)*uint64(len(l.boots))+uint64(booted)))
}
