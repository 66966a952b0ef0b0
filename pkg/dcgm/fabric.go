// SPDX-License-Identifier: Apache-2.0

package dcgm

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// shelf reads entities that are not of one GPU: links and switches, or CPUs and cores. It
// belongs to the goroutine of its worker.
type shelf struct {
	*settings
	// kinds are what it reads, in the order of a reading.
	kinds   []shelfKind
	records records

	ss   *session
	cols *columns
	gpus []uint32
	sets []*set
	rows rows
	err  error
	// there are the numbers of all entities that were found, selected or not.
	there map[gpu.Kind][]int
	// looked is when it last looked what there is, troubled that it or a reading failed since.
	looked   time.Time
	troubled bool
}

// shelfKind is one kind of entity.
type shelfKind struct {
	name  string
	scope gpu.Scope
	kind  gpu.Kind
	// find are all entities of the kind; selected tells by its number whether one is read.
	find     func(*session) ([]spot, error)
	selected func(*settings, int) bool
}

// shelfJob is one reading; gpus are the GPUs there are, whose links may have come or gone.
type shelfJob struct {
	ss   *session
	cols *columns
	gpus []uint32
}

// shelfAnswer is what it got. The rows are the worker's from the next job on.
type shelfAnswer struct {
	rows     *rows
	troubles []trouble
	there    map[gpu.Kind][]int
}

// read does one job.
func (f *shelf) read(job shelfJob) shelfAnswer {
	if job.ss != f.ss {
		f.ss, f.cols, f.sets = job.ss, nil, nil
	}
	if job.cols != f.cols || !slices.Equal(job.gpus, f.gpus) || time.Since(f.looked) >= f.pause() {
		f.prepare(job)
	}
	f.rows.empty()
	a := shelfAnswer{rows: &f.rows, there: f.there}
	err := f.err
	for _, s := range f.sets {
		err = both(err, f.latest(s))
	}
	if err != nil {
		f.troubled = true
		a.troubles = []trouble{troubleOf(err)}
	}
	return a
}

// pause is the least time between two looks.
func (f *shelf) pause() time.Duration {
	if f.troubled {
		return f.pauses.rewatch
	}
	return f.pauses.relook
}

// prepare finds the entities and watches them. What cannot be had of one kind costs that kind.
func (f *shelf) prepare(job shelfJob) {
	f.cols, f.gpus, f.looked, f.troubled, f.err = job.cols, job.gpus, time.Now(), false, nil
	var plans []setPlan
	places := map[string][]spot{}
	f.there = map[gpu.Kind][]int{}
	for _, kind := range f.kinds {
		ids := job.cols.ids(kind.scope)
		if len(ids) == 0 {
			continue
		}
		found, err := kind.find(f.ss)
		if err != nil {
			_ = f.ss.fail(err)
			f.log.Debug("DCGM does not list them", "what", kind.name, "error", err)
			if !notSupported(err) {
				f.err = both(f.err, fmt.Errorf("looking for %s: %w", kind.name, err))
			}
			continue
		}
		f.there[kind.kind] = numbersOf(found)
		found = slices.DeleteFunc(found, func(s spot) bool { return !kind.selected(f.settings, s.ID) })
		if len(found) == 0 {
			continue
		}
		plan := setPlan{name: "gpumeter " + kind.name, read: ids}
		plan.watches[watchValues] = ids
		for _, s := range found {
			plan.members = append(plan.members, s.entity)
		}
		plans, places[plan.name] = append(plans, plan), found
	}
	f.follow(plans)
	var spots []spot
	for _, s := range f.sets {
		spots = append(spots, places[s.plan.name]...)
	}
	f.rows.layOut(job.cols, spots, func(s spot) []gpu.Value { return job.cols.row(s.Kind, false, gpu.ReasonBlank) })
}

// numbersOf are the numbers of the entities, ascending, each once: two GPUs have links of one
// number.
func numbersOf(spots []spot) []int {
	numbers := make([]int, 0, len(spots))
	for _, s := range spots {
		numbers = append(numbers, s.ID)
	}
	slices.Sort(numbers)
	return slices.Compact(numbers)
}

// follow makes the sets those of the plans: all anew where one differs, the old ones ended
// before. DCGM's modules for switches and for CPUs end all watches of a client where it ends
// one. What was sampled stays readable, so that there is no gap.
func (f *shelf) follow(plans []setPlan) {
	if slices.EqualFunc(f.sets, plans, func(s *set, p setPlan) bool { return s.complaint() == nil && s.plan.same(p) }) {
		return
	}
	for _, s := range f.sets {
		s.close()
	}
	f.sets = nil
	for _, plan := range plans {
		s, err := openSet(f.ss, plan, f.interval)
		f.err = both(f.err, err)
		if s != nil {
			f.sets = append(f.sets, s)
			f.err = both(f.err, s.complaint())
		}
	}
}

func (f *shelf) latest(s *set) error {
	for _, list := range s.read {
		if err := f.ss.latest(s.id, list.id, &f.records); err != nil {
			return f.ss.fail(fmt.Errorf("reading %s: %w", s.plan.name, err))
		}
		for i := range f.records.len() {
			rec := f.records.at(i)
			col, asked := f.cols.first[rec.field]
			if !asked {
				continue
			}
			v := rec.value()
			if rec.status == stNotWatched {
				v = gpu.Absent(s.unwatchedReason(rec.field))
			}
			f.rows.put(rec.entity, col, v, rec.ts)
		}
	}
	return nil
}

// fabricKinds are the NVLinks and the switches between them.
func fabricKinds() []shelfKind {
	return []shelfKind{
		{"NVLinks", gpu.ScopeLink, gpu.KindLink, findLinks, func(c *settings, port int) bool { return c.switches.Minor(port) }},
		{"NvSwitches", gpu.ScopeSwitch, gpu.KindSwitch, findSwitches, func(c *settings, id int) bool { return c.switches.Major(id) }},
	}
}

// hostKinds are the CPUs that DCGM can see into.
func hostKinds() []shelfKind {
	return []shelfKind{
		{"CPUs", gpu.ScopeCPU, gpu.KindCPU, findCPUs, func(c *settings, id int) bool { return c.cpus.Major(id) }},
		{"CPU cores", gpu.ScopeCPUCore, gpu.KindCPUCore, findCores, func(c *settings, id int) bool { return c.cpus.Minor(id) }},
	}
}

// findLinks are the links of the GPUs, then those of the switches, by port. The GPU of a link
// is DCGM's number for now: who knows the devices puts its UUID there.
func findLinks(ss *session) ([]spot, error) {
	if !ss.links {
		// Older engines number links otherwise, and a wrong number is another link.
		return nil, fmt.Errorf("links need DCGM 4.3.1 or newer on both sides: %w", errMissing)
	}
	links, err := ss.handle.links()
	if err != nil {
		return nil, err
	}
	slices.SortFunc(links, func(a, b link) int {
		return cmp.Or(cmp.Compare(a.parent.group, b.parent.group), cmp.Compare(a.parent.id, b.parent.id), cmp.Compare(a.port, b.port))
	})
	var spots []spot
	for _, l := range links {
		e := gpu.Entity{Kind: gpu.KindLink, ID: l.port}
		if l.parent.group == groupSwitch {
			e.Parent = int(l.parent.id)
		}
		spots = append(spots, spot{entity: l.entity(), Entity: e})
	}
	return spots, nil
}

func findSwitches(ss *session) ([]spot, error) {
	ids, err := ss.entities(groupSwitch)
	if err != nil {
		return nil, err
	}
	slices.Sort(ids)
	var spots []spot
	for _, id := range ids {
		spots = append(spots, spot{entity: entity{groupSwitch, id}, Entity: gpu.Entity{Kind: gpu.KindSwitch, ID: int(id)}})
	}
	return spots, nil
}

func findCPUs(ss *session) ([]spot, error) {
	cpus, err := ss.cpuCores()
	if err != nil {
		return nil, err
	}
	var spots []spot
	for _, p := range cpus {
		spots = append(spots, spot{entity: entity{groupCPU, p.id}, Entity: gpu.Entity{Kind: gpu.KindCPU, ID: int(p.id)}})
	}
	return spots, nil
}

func findCores(ss *session) ([]spot, error) {
	cpus, err := ss.cpuCores()
	if err != nil {
		return nil, err
	}
	var spots []spot
	for _, p := range cpus {
		for _, core := range p.cores {
			spots = append(spots, spot{
				entity: entity{groupCPUCore, core},
				Entity: gpu.Entity{Kind: gpu.KindCPUCore, ID: int(core), Parent: int(p.id)},
			})
		}
	}
	return spots, nil
}
