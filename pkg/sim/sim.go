// SPDX-License-Identifier: Apache-2.0

// Package sim is a whole pretend GPU node: its cards with their telemetry, and the
// kubelet's PodResources service on a real socket. It runs the demo, and it is the
// machine that tests are written against.
//
// A node is a pure function of its scenario, its seed and the time elapsed: two
// nodes with the same seed answer alike at the same simulated instant, whatever
// they were asked before, and counters are integrals that hold at any cadence.
//
// A scenario is a YAML file; the shipped ones show all of it. Its keys:
//
//	description, node, driver, seed
//	loop: 20m                 how long a round is; none: the story has no end
//	device_ids: nvidia | gke  "GPU-…::1" or "nvidia0/vgpu1"
//	gpus:                     model, count, mig: [3g.40gb, 1g.10gb@6], numa: [0, 1], lost, fields,
//	                          uuid: GPU-…, mig_uuids: [MIG-…, MIG-…] in the order of mig
//	minors: [1, 0]            where they differ from the GPUs' numbers
//	models:                   cards the program does not know: name, memory_mib, power_limit, …
//	sharing:                  resource, replicas, rename: true for .shared, strategy, gpus: 2-5
//	pods:                     name, namespace, container, sidecars, labels, resource, count, copies,
//	                          suffix: index | random, start, stop, process,
//	                          repeat: {every: 4m, lifetime: 1m..3m, jitter: 30s},
//	                          load: train or {shape: train, level: 0.8, memory: 0.5}
//	background_pods: 60       pods without a GPU
//	processes: true           whether readings have the pods' processes
//	fields:                   DCGM_FI_DEV_GPU_TEMP: {sine: {mean: 60, amplitude: 5, period: 5m}}; also
//	                          constant, noise, ramp, saw, square, counter, text, blank, not_supported
//	events:                   at, do, and what the verb takes: xid {gpu, code, count, instance: NVML's
//	                          id of a GPU instance}, gpu_lost {gpu, for},
//	                          gpu_back {gpu}, ecc_dbe {gpu, count}, repartition {gpu, layout},
//	                          kubelet_restart {for}, kubelet_slow {delay, for},
//	                          plugin_away {for, resource}, replica_unhealthy {gpu, replica, for},
//	                          hang {gpu, for}, slow {gpu, delay, for}; of a card's health:
//	                          gpu_gone {gpu, for}: not even listed any more, gpu_reset {gpu},
//	                          recovery_action {gpu, action: none | reset | reboot | drain_p2p |
//	                          drain_and_reset | recover_imex | bus_reset | system_reboot, for},
//	                          row_remap {gpu, state: pending | failed, for}, retired_pages {gpu, count},
//	                          sram_threshold {gpu, for}, memory_unrepairable {gpu, for},
//	                          nvlink_down {gpu, link, for}, incident {gpu, system: MEM, code, result:
//	                          warn | fail, for}: what DCGM's checks find,
//	                          slowdown {gpu, reason: thermal | software_thermal | power, for},
//	                          reboot {for}: of the machine, with another boot id
//
// A reset, which gpu_back and reboot are too, clears what the driver knows only until then: the last
// XID, the recovery action, and what waited for it. Times count from the beginning of a round; delays alone pass in real time. At the
// end of a round everything is as it was at the beginning, but counters go on, and
// so do the pods that were there all along.
//
// UUIDs come from the seed unless they are given, as for the replay of a known machine.
// An instance that a repartition makes again, of the same profile in the same place, has
// the UUID that it had before.
package sim

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// SeedOf is a seed that follows from a node's name, so that each pretend node of a cluster has GPUs of its own.
func SeedOf(node string) uint64 {
	h := fnv.New64a()
	_, _ = io.WriteString(h, node)
	return h.Sum64()
}

// Options are how a scenario is played.
type Options struct {
	// Start is the simulated wall clock at which the story begins; zero is now.
	Start time.Time
	// Speed is how many simulated seconds pass in a second; zero is 1.
	Speed float64
	// Seed replaces the scenario's own.
	Seed *uint64
	// GPUs chooses the cards (by index) and GPU instances (by InstanceEntity) that have
	// samples; the inventory and the events are always whole. Zero is all.
	GPUs gpu.Selection
	// Checkpoint is the file in which the kubelet keeps its devices with their pods'
	// UIDs while ServeKubelet runs; empty is none. Its folder must exist by then.
	Checkpoint string
	// Log is told of what the node does to its socket; nil is silent.
	Log *slog.Logger
}

// Node is one pretend node, whose time has passed since it was made. It holds no
// state but its timeline and what Read has handed over, and is safe for concurrent use.
type Node struct {
	scenario *Scenario
	seed     uint64
	line     *timeline
	cards    []card
	start    time.Time
	born     time.Time
	speed    float64
	log      *slog.Logger
	// checkpoint is where the kubelet's is kept, empty for nowhere.
	checkpoint string
	gpus       gpu.Selection

	mu sync.Mutex
	// told is how many events since the story's beginning readings have had.
	told int64
	// answered is when each card last answered a reading.
	answered []time.Time
	// alarm is there once somebody asked for it, with the bell that rings at the next event.
	alarm  chan struct{}
	bell   *time.Timer
	closed bool
}

// card is what never changes about a GPU.
type card struct {
	uuid   gpu.UUID
	model  *model
	serial string
	// idle is in watts, warmth in degrees above the model's mean, energy in joules
	// counted before the story began.
	idle, warmth, energy float64
	replays              int64
	fields               map[gpu.FieldID]function
}

// NewNode works a scenario out and starts its clock.
func NewNode(s *Scenario, o Options) (*Node, error) {
	if s == nil {
		return nil, errors.New("simulate a node: no scenario (use sim.LoadShipped or sim.Load)")
	}
	if o.Speed == 0 {
		o.Speed = 1
	}
	if !(o.Speed > 0 && o.Speed <= 1e6) {
		return nil, fmt.Errorf("simulate %s at speed %v: the speed must be above 0 and at most a million", s.Name, o.Speed)
	}
	n := &Node{scenario: s, seed: s.seed, start: o.Start, born: time.Now(), speed: o.Speed, log: o.Log, checkpoint: o.Checkpoint, gpus: o.GPUs}
	if o.Seed != nil {
		n.seed = *o.Seed
	}
	if n.start.IsZero() {
		n.start = n.born.Round(0)
	}
	if n.log == nil {
		n.log = slog.New(slog.DiscardHandler)
	}
	uuids := make([]string, len(s.cards))
	for i := range s.cards {
		c := s.newCard(i, n.seed)
		n.cards, uuids[i] = append(n.cards, c), string(c.uuid)
	}
	n.line, n.answered = play(s, n.seed, uuids), make([]time.Time, len(n.cards))
	return n, nil
}

// newCard is the i-th GPU; what the scenario leaves open about it, the seed decides.
func (s *Scenario) newCard(i int, seed uint64) card {
	spec, h := &s.cards[i], mix(seed, hashText("card"), uint64(i))
	m := spec.model
	c := card{
		uuid: gpu.UUID(cmp.Or(spec.uuid, "GPU-"+uuidFrom(h))), model: m, serial: fmt.Sprintf("16%011d", mix(h, 9)%1e11),
		idle: m.idle * (0.96 + 0.08*unit01(mix(h, 3))), warmth: 6*unit01(mix(h, 4)) - 3,
		energy: m.idle * 86400 * (1 + 30*unit01(mix(h, 5))), replays: int64(mix(h, 6) % 4 / 3),
		fields: map[gpu.FieldID]function{},
	}
	for _, fields := range []map[gpu.FieldID]function{s.fields, spec.fields} {
		for id, f := range fields {
			f.seed = mix(f.seed, h)
			c.fields[id] = f
		}
	}
	return c
}

// pciAddress is where the i-th card is plugged.
func pciAddress(i int) string {
	return fmt.Sprintf("%08X:%02X:00.0", i/14, 0x18+0x10*(i%14))
}

// Scenario is what the node plays.
func (n *Node) Scenario() *Scenario { return n.scenario }

// Elapsed is the simulated time since the story began.
func (n *Node) Elapsed() time.Duration {
	return scale(time.Since(n.born), n.speed)
}

// scale is a duration times a factor, but no longer than 146 years: at speed a story
// outlasts what a Duration can count.
func scale(d time.Duration, factor float64) time.Duration {
	return time.Duration(min(float64(d)*factor, 1<<62))
}

// Now is the node's wall clock.
func (n *Node) Now() time.Time { return n.start.Add(n.Elapsed()) }

// wall is how much real time a simulated duration takes.
func (n *Node) wall(d time.Duration) time.Duration {
	return scale(d, 1/n.speed)
}

// Truth is who holds which device ids at a time since the story began, with the
// pods' UIDs and the instants since which they hold them. Ordered by pod start.
func (n *Node) Truth(elapsed time.Duration) []sharing.Allocation {
	m := n.line.at(elapsed)
	var out []sharing.Allocation
	for _, p := range m.state.active {
		holder := sharing.Holder{
			Namespace: p.spec.namespace, Pod: p.name(n.seed, m.round), Container: p.spec.container,
			PodUID: p.uid(n.seed, m.round),
		}
		since := n.start.Add(elapsed - m.t + p.start)
		if p.lasting {
			since = n.start
		}
		for _, st := range p.seats {
			out = append(out, sharing.Allocation{
				Holder: holder, Resource: p.spec.resource, DeviceID: n.scenario.seatID(st.unit, st.replica), Since: since,
			})
		}
	}
	return out
}

// Advertised are the device ids that the kubelet could hand out at a time since the
// story began: the healthy ones, and none while their plugin is away.
func (n *Node) Advertised(elapsed time.Duration) []sharing.Advertised {
	return n.advertised(n.line.at(elapsed).state)
}

func (n *Node) advertised(state *nodeState) []sharing.Advertised {
	var out []sharing.Advertised
	state.eachOffered(func(st seat) {
		out = append(out, sharing.Advertised{Resource: st.unit.resource, DeviceID: n.scenario.seatID(st.unit, st.replica)})
	})
	return out
}

func (n *nodeState) eachOffered(yield func(seat)) {
	for _, u := range n.units {
		for r := range max(u.replicas, 1) {
			if st := (seat{u, r}); n.offered(st) {
				yield(st)
			}
		}
	}
}

// uid is the pod's UID in a round of the story.
func (p *placement) uid(seed uint64, round int64) string {
	return uuidFrom(mix(p.hash(seed, round), 7))
}

// Labels are the labels of a pod that runs at a time since the story began.
func (n *Node) Labels(elapsed time.Duration, namespace, pod string) (map[string]string, bool) {
	m := n.line.at(elapsed)
	for _, p := range m.state.active {
		if p.spec.namespace == namespace && p.name(n.seed, m.round) == pod {
			return maps.Clone(p.spec.labels), true
		}
	}
	return nil, false
}
