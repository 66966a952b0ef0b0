// SPDX-License-Identifier: Apache-2.0

package dashboards

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// part is a part of a GPU as the scenario knows it: who holds it, or why nobody does.
type part struct {
	node, cluster, model string
	card                 gpu.UUID
	// state is held, or the reason of what is not.
	state                string
	namespace, pod, mode string
	// gpus is how much of a GPU it is, seats how many replicas.
	gpus, seats float64
}

// withdrawn are the GPUs that the stories have broken at the end, by their index: what the scenarios' files tell happened to them and was not
// repaired, or not for long enough. bad-day is nine and a half minutes into its story, told for the fourth time: GPU 0 was lost again and
// is back for half a minute, GPU 3 has had another double-bit error. bad-health is as far into its story, told for the third
// time: GPU 0 wants a reboot, GPU 2 a reset after five contained errors, and of GPU 4 the driver has asked for nothing any more for half a minute.
func withdrawn() map[string][]int {
	return map[string][]int{"gpu-h100-13": {0, 3}, "gpu-h100-14": {0, 2, 4}}
}

// parts are all of a node's GPUs at a time of its story, worked out from the scenario alone: what it gives to whom, and the arithmetic of
// docs/architecture.md.
func (n *player) parts(at time.Duration) []part {
	cards, weights, rest := map[gpu.UUID]gpu.Device{}, map[string]float64{}, map[gpu.UUID]float64{}
	of := map[string]gpu.UUID{}
	for _, d := range n.devices(at) {
		if d.Parent == "" {
			cards[d.UUID], rest[d.UUID] = d, 1
			weights[string(d.UUID)], of[string(d.UUID)] = 1, d.UUID
			continue
		}
		w := instanceWeight(d.Profile.Name)
		weights[string(d.UUID)], of[string(d.UUID)] = w, d.Parent
		weights[string(d.Parent)] = 0
		rest[d.Parent] -= w
	}
	replicas := n.replicas(at)
	var out []part
	held := map[string]float64{}
	add := func(p part) {
		if p.gpus < 1e-12 {
			return
		}
		d := cards[p.card]
		p.node, p.cluster, p.model = n.name, n.cluster, d.Model
		if slices.Contains(withdrawn()[n.name], d.Index) {
			p.state = "unhealthy"
		}
		out = append(out, p)
	}
	for _, a := range n.node.Truth(at) {
		id, _, shared := strings.Cut(a.DeviceID, "::")
		p := part{card: of[id], state: "held", namespace: a.Holder.Namespace, pod: a.Holder.Pod, gpus: weights[id], mode: "exclusive"}
		if strings.HasPrefix(id, "MIG-") {
			p.mode = "mig"
		}
		if shared {
			p.mode = map[string]string{"exclusive": "shared", "mig": "mig-shared"}[p.mode]
			p.gpus, p.seats = p.gpus/float64(replicas[id]), 1
		}
		held[id] += p.gpus
		add(p)
	}
	for _, id := range slices.Sorted(maps.Keys(weights)) {
		state := "free"
		if replicas[id] > 0 {
			state = "unrequested"
		}
		add(part{card: of[id], state: state, gpus: weights[id] - held[id]})
	}
	for _, card := range slices.Sorted(maps.Keys(cards)) {
		// What instances leave fits no other one, in each of the shipped layouts.
		if weights[string(card)] == 0 {
			add(part{card: card, state: "stranded", gpus: rest[card]})
		}
	}
	return out
}

// devices are a node's devices at a time of its story, with the GPUs that have left it: they are the node's still.
func (n *player) devices(at time.Duration) []gpu.Device {
	now := n.node.ReadingAt(at, nil).Devices
	there := map[gpu.UUID]bool{}
	for _, d := range now {
		there[d.UUID] = true
	}
	for _, d := range n.node.ReadingAt(0, nil).Devices {
		if d.Parent == "" && !there[d.UUID] {
			now = append(now, d)
		}
	}
	return now
}

// instanceWeight is the policy blend: half by compute slices of 7, half by memory slices of 8, of which each has 10 GB on these models.
func instanceWeight(profile string) float64 {
	var compute, gb float64
	if _, err := fmt.Sscanf(profile, "%fg.%fgb", &compute, &gb); err != nil {
		return 0
	}
	return (compute/7 + gb/10/8) / 2
}

// replicas are how many seats each shared device has.
func (n *player) replicas(at time.Duration) map[string]int {
	ids := map[string]bool{}
	for _, a := range n.node.Advertised(at) {
		ids[a.DeviceID] = true
	}
	for _, a := range n.node.Truth(at) {
		ids[a.DeviceID] = true
	}
	out := map[string]int{}
	for id := range ids {
		if device, _, shared := strings.Cut(id, "::"); shared {
			out[device]++
		}
	}
	return out
}

// parts are all GPUs of the fleet at the end.
func (r *rig) parts() []part {
	var out []part
	for _, n := range r.players {
		out = append(out, n.parts(r.at[n.name])...)
	}
	return out
}

// sums adds up parts by a word that is made of each; those without one are left out.
func sums(parts []part, by func(part) string) map[string]float64 {
	out := map[string]float64{}
	for _, p := range parts {
		if word := by(p); word != "" {
			out[word] += p.gpus
		}
	}
	return out
}

// field is a telemetry value of each of a node's GPUs at a time of its story; GPU instances are added up.
func (n *player) field(id gpu.FieldID, at time.Duration) map[gpu.UUID]float64 {
	out := map[gpu.UUID]float64{}
	for _, s := range n.node.ReadingAt(at, []gpu.FieldID{id}).Samples {
		if x, ok := s.Values[0].AsFloat(); ok {
			out[s.Entity.GPU] += x
		}
	}
	return out
}
