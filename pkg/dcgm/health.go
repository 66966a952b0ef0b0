// SPDX-License-Identifier: Apache-2.0

package dcgm

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

const (
	// healthKeep is how long DCGM keeps what the checks look at.
	healthKeep = 10 * time.Minute
	// allSystems asks for every check there is.
	allSystems = 0xffffffff
)

// checker has DCGM's health checks run. It belongs to the goroutine of its worker: a round can
// block for the better part of a minute.
type checker struct {
	*settings
	ss      *session
	group   groupID
	grouped bool
	members []uint32
}

// healthJob is one round on the GPUs by DCGM's number, with their instances; without GPUs it
// ends the checks.
type healthJob struct {
	ss        *session
	cards     map[uint32]gpu.UUID
	instances map[uint32][]instance
}

// healthAnswer is what it found.
type healthAnswer struct {
	report gpu.HealthReport
	err    error
}

// check does one round.
func (c *checker) check(job healthJob) healthAnswer {
	members := slices.Sorted(maps.Keys(job.cards))
	if job.ss != c.ss {
		c.ss, c.grouped = job.ss, false
	}
	var a healthAnswer
	if len(members) == 0 {
		c.stop()
		return a
	}
	if a.err = c.prepare(members); a.err != nil {
		return a
	}
	incidents, err := c.ss.checkHealth(c.group)
	if err != nil {
		a.err = c.ss.fail(fmt.Errorf("checking health: %w", err))
		return a
	}
	a.report = gpu.HealthReport{Time: time.Now(), Incidents: job.incidents(incidents)}
	for _, id := range members {
		a.report.Checked = append(a.report.Checked, job.cards[id])
	}
	return a
}

// prepare asks for the checks, once as long as the GPUs are the same.
func (c *checker) prepare(members []uint32) error {
	if c.grouped && slices.Equal(members, c.members) {
		return nil
	}
	c.stop()
	var entities []entity
	for _, id := range members {
		entities = append(entities, entity{groupGPU, id})
	}
	group, err := c.ss.createGroup("gpumeter health", entities)
	if err != nil {
		return c.ss.fail(fmt.Errorf("checking health: %w", err))
	}
	if err := c.ss.setHealth(group, allSystems, c.pauses.round, healthKeep); err != nil {
		_ = c.ss.destroyGroup(group)
		return c.ss.fail(fmt.Errorf("asking for health checks: %w", err))
	}
	c.group, c.grouped, c.members = group, true, members
	return nil
}

// stop ends the checks.
func (c *checker) stop() {
	if !c.grouped {
		return
	}
	_ = c.ss.setHealth(c.group, 0, c.pauses.round, healthKeep)
	_ = c.ss.destroyGroup(c.group)
	c.grouped = false
}

// incidents are what DCGM found on GPUs and instances, ordered by GPU, system and code. What it
// found on switches is nobody's here.
func (j healthJob) incidents(found []incident) []gpu.HealthIncident {
	type placed struct {
		gpu.HealthIncident
		id     uint32
		system int
	}
	var all []placed
	order := gpu.HealthSystems()
	for _, f := range found {
		id, gi, ok := j.place(f.entity)
		if !ok {
			continue
		}
		system := systemOf(f.system)
		all = append(all, placed{gpu.HealthIncident{
			GPU: j.cards[id], GPUInstance: gi, System: system,
			Result: gpu.HealthResult(f.health), Code: int(f.code), Text: f.text,
		}, id, slices.Index(order, system)})
	}
	slices.SortStableFunc(all, func(a, b placed) int {
		return cmp.Or(cmp.Compare(a.id, b.id), cmp.Compare(a.system, b.system), cmp.Compare(a.Code, b.Code))
	})
	var out []gpu.HealthIncident
	for _, p := range all {
		out = append(out, p.HealthIncident)
	}
	return out
}

// place is the GPU that an entity is or belongs to, with NVML's id of the GPU instance.
func (j healthJob) place(e entity) (id uint32, gi int, ok bool) {
	if e.group == groupGPU {
		_, ok = j.cards[e.id]
		return e.id, gpu.NoInstance, ok
	}
	for id, instances := range j.instances {
		if gi, _ := instanceOfEntity(e, instances); gi != gpu.NoInstance && j.cards[id] != "" {
			return id, gi, true
		}
	}
	return 0, gpu.NoInstance, false
}

// systemOf is the part of the GPU that a bit of DCGM's mask means. Several bits, and those that
// are not of a GPU, are the whole.
func systemOf(mask uint32) gpu.HealthSystem {
	switch mask {
	case 0x1:
		return gpu.HealthPCIe
	case 0x2:
		return gpu.HealthNVLink
	case 0x4:
		return gpu.HealthPMU
	case 0x8:
		return gpu.HealthMCU
	case 0x10:
		return gpu.HealthMemory
	case 0x20:
		return gpu.HealthSM
	case 0x40:
		return gpu.HealthInfoROM
	case 0x80:
		return gpu.HealthThermal
	case 0x100:
		return gpu.HealthPower
	case 0x200:
		return gpu.HealthDriver
	default:
		return gpu.HealthAll
	}
}

// peersDesk is where readings hear of the ways between the GPUs, for which the clerk asks.
type peersDesk struct {
	ss    *session
	asked time.Time
	gpus  []uint32
	ways  []peer
	// direct are the links by pair, of the session and the GPUs that they were counted of. They
	// hardly ever change, and the engine asks the driver for them.
	direct map[[2]uint32]int
	linked *session
	of     []uint32
	err    error
}

// due reports whether the ways should be asked for, and notes that they are.
func (d *peersDesk) due(s *survey, pause time.Duration) bool {
	if s.ss == d.ss && time.Since(d.asked) < pause && slices.Equal(s.supported, d.gpus) {
		return false
	}
	d.ss, d.asked, d.gpus = s.ss, time.Now(), s.supported
	return true
}

func (d *peersDesk) heard(a clerkAnswer) {
	if d.err = a.err; a.ways != nil {
		d.ways = a.ways
	}
	if a.err == nil && a.links {
		d.direct, d.linked, d.of = a.direct, a.ss, a.before.supported
	}
}

// unlinked reports whether the links of these GPUs have not been counted.
func (d *peersDesk) unlinked(s *survey) bool {
	return d.linked != s.ss || !slices.Equal(d.of, s.supported)
}

// peers are the ways between GPUs that are known by name.
func (d *peersDesk) peers(cards map[uint32]gpu.UUID) []gpu.Peer {
	var out []gpu.Peer
	for _, w := range d.ways {
		from, to := cards[w.from], cards[w.to]
		if from == "" || to == "" {
			continue
		}
		status := w.status
		if status < gpu.PeerOK || status > gpu.PeerUnknown {
			status = gpu.PeerUnknown
		}
		out = append(out, gpu.Peer{From: from, To: to, Status: status, NVLinks: d.direct[[2]uint32{w.from, w.to}]})
	}
	return out
}
