// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// nodeHolder is what a container holds of a device.
type nodeHolder struct {
	Namespace, Pod, Container string
	// Device is the UUID of what is held, DeviceName the page's name of it.
	Device, DeviceName string
	Resource, How      string
	Share              amount
	Tint               string
	// Charged is false of what is booked to a cause.
	Charged bool
	index   int
}

// holders are all of them, by namespace, pod and container, and how many are left out.
func (p *nodePainter) holders() (rows []nodeHolder, more int) {
	row := func(h *sharing.Holder, card, device gpu.UUID, part sharing.Fraction) nodeHolder {
		out := nodeHolder{
			Namespace: displayed(h.Namespace), Pod: displayed(h.Pod), Container: displayed(h.Container),
			Device: displayed(string(device)), DeviceName: displayed(string(device)), Share: amountOf(part), Tint: p.tints[h.Namespace], index: gpu.NoInstance,
		}
		if d := cmp.Or(p.n.devices[device], p.n.devices[card]); d != nil {
			out.DeviceName, out.index = deviceName(d), d.Index
		}
		return out
	}
	for i := range p.s.Division.Shares {
		s := &p.s.Division.Shares[i]
		r := row(&s.Holder, s.Card, s.Device, s.Part)
		r.Resource, r.How, r.Charged = displayed(s.Resource), modeText(s), true
		rows = append(rows, r)
	}
	for i := range p.s.Division.Unallocated {
		u := &p.s.Division.Unallocated[i]
		if u.Holder == (sharing.Holder{}) {
			continue
		}
		r := row(&u.Holder, u.Card, cmp.Or(u.Device, u.Card), u.Part)
		r.How = string(u.Cause) + ": not charged"
		rows = append(rows, r)
	}
	slices.SortStableFunc(rows, func(a, b nodeHolder) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Container, b.Container),
			cmp.Compare(a.index, b.index), cmp.Compare(a.DeviceName, b.DeviceName))
	})
	if more = len(rows) - maxHolderRows; more <= 0 {
		return rows, 0
	}
	return rows[:maxHolderRows], more
}

func modeText(s *sharing.Share) string {
	switch {
	case s.Mode == sharing.ModeExclusive:
		return "whole GPU"
	case s.Mode == sharing.ModeMIG:
		return "whole MIG device"
	case s.Seats == 1:
		return fmt.Sprintf("1 of %d seats", s.Of)
	}
	return fmt.Sprintf("%d of %d seats", s.Seats, s.Of)
}

// nodeNamespace is what the pods of a namespace are charged for now.
type nodeNamespace struct {
	Name    string
	Pods    int
	Amount  amount
	Percent string
	Tint    string
}

// namespaces are those that are charged for something, the largest first. What is shown of them adds up to held, the
// thousandths that are shown as held.
func (p *nodePainter) namespaces(held int64) []nodeNamespace {
	sums, pods := make(map[string]sharing.Fraction), make(map[string]map[string]bool)
	for i := range p.s.Division.Shares {
		s := &p.s.Division.Shares[i]
		ns := s.Holder.Namespace
		sums[ns] = sums[ns].Add(s.Part)
		if pods[ns] == nil {
			pods[ns] = make(map[string]bool)
		}
		pods[ns][s.Holder.Pod] = true
	}
	names := slices.SortedFunc(maps.Keys(sums), func(a, b string) int {
		return cmp.Or(sums[b].Cmp(sums[a]), cmp.Compare(a, b))
	})
	parts := make([]sharing.Fraction, len(names))
	for i, name := range names {
		parts[i] = sums[name]
	}
	var out []nodeNamespace
	for i, shown := range apportion(parts, held) {
		name := names[i]
		out = append(out, nodeNamespace{
			Name: displayed(name), Pods: len(pods[name]), Amount: amountAs(parts[i], shown), Tint: p.tints[name],
			Percent: percentOf(parts[i], sharing.NewFraction(int64(len(p.n.cards)), 1)),
		})
	}
	return out[:min(len(out), maxHolderRows/4)]
}
