// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

type policyKind uint8

const (
	policyBlend policyKind = iota
	policyCompute
	policyMemory
	policySM
	policyTable
)

var policyNames = [...]string{"blend", "compute", "memory", "sm", "table"}

// Policy gives MIG devices their weight, the part of the card that they are. It is
// immutable but for a memo of geometry, and safe for concurrent use. The zero
// Policy is blend without the memo.
type Policy struct {
	kind  policyKind
	table map[string]Fraction
	memo  *layoutMemo
}

// ParsePolicy is the policy called name:
//
//	blend    half the share of compute slices and half that of memory slices; also the empty name
//	compute  the share of compute slices
//	memory   the share of memory slices
//	sm       the share of streaming multiprocessors
//
// A table has weights of its own: see NewTablePolicy.
func ParsePolicy(name string) (Policy, error) {
	if name == "" {
		name = policyNames[policyBlend]
	}
	i := slices.Index(policyNames[:policyTable], name)
	if i < 0 {
		return Policy{}, fmt.Errorf("policy %q: want blend, compute, memory or sm", name)
	}
	return Policy{kind: policyKind(i), memo: newLayoutMemo()}, nil
}

// NewTablePolicy is a policy with the weight of each profile in a table. A key is
// the name of a profile, "1g.10gb", or the model and the name,
// "NVIDIA H100 80GB HBM3:1g.10gb", which goes first. A MIG device on a compute
// instance smaller than its GPU instance, "1c.3g.40gb", has the weight of its own
// name, or else its part by compute slices of the weight of "3g.40gb". The error
// names the key whose weight is not above 0 and at most 1. Whether the weights fit
// a card is asked with ValidateTable.
func NewTablePolicy(table map[string]Fraction) (Policy, error) {
	if len(table) == 0 {
		return Policy{}, errors.New("policy table: has no weights; want one for each MIG profile")
	}
	for _, key := range slices.Sorted(maps.Keys(table)) {
		if key[strings.LastIndexByte(key, ':')+1:] == "" {
			return Policy{}, fmt.Errorf("policy table: key %q has no profile", key)
		}
		if w := table[key]; w.Sign() <= 0 || w.Cmp(One()) > 0 {
			return Policy{}, fmt.Errorf("policy table: weight %s of %q is not above 0 and at most 1", w, key)
		}
	}
	return Policy{kind: policyTable, table: maps.Clone(table), memo: newLayoutMemo()}, nil
}

// Name is the policy's name, which ParsePolicy reads back but for "table".
func (p Policy) Name() string { return policyNames[p.kind] }

// Weight is the part of card that the MIG device mig is, above 0 and at most 1, or
// false where it is not known: the card's capacity or a count of the device is zero,
// the counts contradict each other, or the table has no weight for the profile.
//
// A compute instance smaller than its GPU instance has its own compute slices, and
// of the memory slices of the GPU instance a part by compute slices, so that the
// compute instances of one GPU instance add up to it.
func (p Policy) Weight(card, mig gpu.Device) (Fraction, bool) {
	w, ok := p.weight(&card, mig.Profile)
	if !ok || w.Sign() <= 0 || w.Cmp(One()) > 0 {
		return Fraction{}, false
	}
	return w, true
}

func (p Policy) weight(card *gpu.Device, f gpu.Profile) (Fraction, bool) {
	total := card.Capacity
	switch p.kind {
	case policyTable:
		return p.tableWeight(card.Model, f)
	case policySM:
		return ratio(f.ComputeInstanceSMs, total.SMs)
	}
	compute, okC := ratio(f.ComputeInstanceSlices, total.Compute)
	memory, okM := ratio(f.Memory, total.Memory)
	part, okPart := ratio(f.ComputeInstanceSlices, f.Compute)
	okPart = okPart && part.Cmp(One()) <= 0
	memory = memory.Mul(part)
	switch p.kind {
	case policyCompute:
		return compute, okC && okPart
	case policyMemory:
		return memory, okM && okPart
	default:
		return compute.Add(memory).Scale(1, 2), okC && okM && okPart
	}
}

// ratio is num/den, or false where one of them is unknown.
func ratio(num, den int) (Fraction, bool) {
	if num <= 0 || den <= 0 {
		return Fraction{}, false
	}
	return NewFraction(int64(num), int64(den)), true
}

func (p Policy) tableWeight(model string, f gpu.Profile) (Fraction, bool) {
	if w, ok := p.entry(model, f.Name); ok {
		return w, true
	}
	instance := instanceName(f.Name)
	if instance == f.Name {
		return Fraction{}, false
	}
	w, ok := p.entry(model, instance)
	part, okPart := ratio(f.ComputeInstanceSlices, f.Compute)
	if !ok || !okPart || part.Cmp(One()) > 0 {
		return Fraction{}, false
	}
	return w.Mul(part), true
}

func (p Policy) entry(model, name string) (Fraction, bool) {
	if w, ok := p.table[model+":"+name]; ok {
		return w, true
	}
	w, ok := p.table[name]
	return w, ok
}

// instanceName is the name of the GPU instance of a profile: "3g.40gb" for "1c.3g.40gb".
func instanceName(profile string) string {
	head, rest, ok := strings.Cut(profile, ".")
	if slices, isCI := strings.CutSuffix(head, "c"); ok && isCI && isDigits(slices) {
		return rest
	}
	return profile
}
