// SPDX-License-Identifier: Apache-2.0

package sim

// loadKind is how a workload uses a GPU. Every shape stays within 0..1 by
// construction: clamping would break the closed form of its integral.
type loadKind struct {
	name    string
	process string
	// peak is the most the shape reaches at level 1.
	peak float64
	// The rest are ratios to utilisation, but for memory, which is the part of the
	// holder's share of memory that is used.
	sm, tensor, dram, pcie, memory float64
	// draw is the part of the card's dynamic power that full utilisation takes.
	draw    float64
	encodes bool
	parts   []function
}

func loadKinds() []loadKind {
	return []loadKind{
		{name: "idle", process: "python3", memory: 0.02, parts: []function{{shape: shapeConstant}}},
		{name: "steady", draw: 0.9, process: "python3", peak: 1, sm: 0.86, tensor: 0.45, dram: 0.5, pcie: 0.1, memory: 0.7,
			parts: []function{{shape: shapeConstant, a: 1}}},
		{name: "train", draw: 0.96, process: "python3", peak: 0.99, sm: 0.88, tensor: 0.58, dram: 0.55, pcie: 0.12, memory: 0.86,
			parts: []function{
				{shape: shapeSquare, a: 0.94, b: 0.3, period: 97, duty: 0.93},
				{shape: shapeNoise, b: 0.05, period: 7},
			}},
		{name: "inference", draw: 0.72, process: "vllm", peak: 0.78, sm: 0.7, tensor: 0.32, dram: 0.68, pcie: 0.05, memory: 0.9,
			parts: []function{
				{shape: shapeSine, a: 0.42, b: 0.22, period: 311},
				{shape: shapeNoise, b: 0.08, period: 5},
				{shape: shapeNoise, b: 0.06, period: 29},
			}},
		{name: "batch", draw: 0.8, process: "python3", peak: 0.9, sm: 0.8, tensor: 0.4, dram: 0.45, pcie: 0.3, memory: 0.6,
			parts: []function{
				{shape: shapeSaw, a: 0.5, b: 0.86, period: 41},
				{shape: shapeNoise, b: 0.04, period: 6},
			}},
		{name: "notebook", draw: 0.5, process: "ipykernel", peak: 0.72, sm: 0.6, tensor: 0.15, dram: 0.25, pcie: 0.06, memory: 0.35,
			parts: []function{{shape: shapeSquare, a: 0.72, period: 173, duty: 0.24}}},
		{name: "transcode", draw: 0.45, process: "ffmpeg", peak: 0.35, sm: 0.3, tensor: 0, dram: 0.2, pcie: 0.5, memory: 0.12, encodes: true,
			parts: []function{
				{shape: shapeConstant, a: 0.3},
				{shape: shapeNoise, b: 0.05, period: 4},
			}},
	}
}

// load is one container's use of one device: a sum of functions of its age.
type load struct {
	kind  *loadKind
	level float64
	parts []function
}

// newLoad gives a load its own phases, so that no two containers move in step.
func newLoad(kind *loadKind, level float64, seed uint64) load {
	l := load{kind: kind, level: level, parts: make([]function, len(kind.parts))}
	for i, p := range kind.parts {
		p.seed = mix(seed, uint64(i))
		if p.period > 0 {
			p.phase = p.period * unit01(mix(p.seed, 1))
		}
		l.parts[i] = p
	}
	return l
}

func (l *load) peak() float64 { return l.level * l.kind.peak }

// at is the utilisation, 0..1, at an age in seconds.
func (l *load) at(age float64) float64 {
	var v float64
	for i := range l.parts {
		v += l.parts[i].at(age)
	}
	return l.level * v
}

// integral is the area under the utilisation since age 0.
func (l *load) integral(age float64) float64 {
	var v float64
	for i := range l.parts {
		v += l.parts[i].integral(age)
	}
	return l.level * v
}

// warmup is how long a container takes to fill its memory, in seconds.
const warmup = 20

// memory is the used part, 0..1, of the holder's share of memory.
func (l *load) memory(fraction, age float64) float64 {
	return fraction * (0.1 + 0.9*min(age/warmup, 1))
}
