// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// Lines joins how a node's GPUs are divided in time with how their memory is: one line for every share and every
// unallocated part of either. Where no MIG device exists the two divisions are the same. Weights are the
// MIG devices' parts of their cards; a share has its own.
//
// The lines of a card add up to one where both divisions do.
func Lines(devices []gpu.Device, weights map[gpu.UUID]sharing.Fraction, time, memory sharing.Division) []Line {
	byUUID := make(map[gpu.UUID]*gpu.Device, len(devices))
	for i := range devices {
		byUUID[devices[i].UUID] = &devices[i]
	}
	j := joiner{devices: byUUID, weights: weights, lines: make([]Line, 0, len(time.Shares)+len(time.Unallocated))}
	for i := range time.Shares {
		l := j.share(&time.Shares[i])
		l.Part = time.Shares[i].Part
		j.lines = append(j.lines, l)
	}
	for i := range time.Unallocated {
		l := j.rest(&time.Unallocated[i])
		l.Part = time.Unallocated[i].Part
		j.lines = append(j.lines, l)
	}
	for i := range memory.Shares {
		at := i
		l := j.share(&memory.Shares[i])
		j.remember(at, l, memory.Shares[i].Part)
	}
	for i := range memory.Unallocated {
		l := j.rest(&memory.Unallocated[i])
		j.remember(len(time.Shares)+i, l, memory.Unallocated[i].Part)
	}
	return j.lines
}

// joiner adds memory to lines of time.
type joiner struct {
	devices map[gpu.UUID]*gpu.Device
	weights map[gpu.UUID]sharing.Fraction
	lines   []Line
	// byKey is made when a line is not where it is looked for first.
	byKey map[lineKey]int
}

// remember adds a part of memory to the line that is the same but for its numbers, which is likely at a position, or
// adds a line that has no time.
func (j *joiner) remember(at int, l Line, memory sharing.Fraction) {
	key := l.key()
	if at >= len(j.lines) || j.lines[at].key() != key {
		if j.byKey == nil {
			j.byKey = make(map[lineKey]int, len(j.lines))
			for i := range j.lines {
				j.byKey[j.lines[i].key()] = i
			}
		}
		found, ok := j.byKey[key]
		if !ok {
			l.Part = sharing.Fraction{}
			j.byKey[key] = len(j.lines)
			found, j.lines = len(j.lines), append(j.lines, l)
		}
		at = found
	}
	j.lines[at].Memory = j.lines[at].Memory.Add(memory)
}

func (j *joiner) share(s *sharing.Share) Line {
	l := Line{
		Card: s.Card, Device: s.Device, Holder: s.Holder, Resource: s.Resource, Mode: s.Mode,
		Seats: s.Seats, Of: s.Of, Weight: s.Weight,
	}
	j.describe(&l)
	return l
}

func (j *joiner) rest(u *sharing.Unallocated) Line {
	l := Line{Card: u.Card, Device: u.Device, Cause: u.Cause, Holder: u.Holder, Weight: sharing.One()}
	if u.Device != "" && u.Device != u.Card {
		l.Weight = j.weights[u.Device]
	}
	j.describe(&l)
	return l
}

func (j *joiner) describe(l *Line) {
	l.GPUInstance = gpu.NoInstance
	if d := j.devices[l.Device]; d != nil && d.IsMIG() {
		l.GPUInstance, l.Profile = d.GPUInstance, d.Profile.Name
	}
}
