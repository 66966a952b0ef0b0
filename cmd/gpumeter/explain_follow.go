// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/pkg/bill"
	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// explainedInterval is one time in which one line stood.
type explainedInterval struct {
	Node   string    `json:"node"`
	GPU    int       `json:"gpu_index"`
	Card   gpu.UUID  `json:"card"`
	Device gpu.UUID  `json:"device,omitempty"`
	From   time.Time `json:"from"`
	To     time.Time `json:"to"`
	// Millis is the length by the boot clock, GPUMicros what was charged: less than 0 for what a correction took off.
	Millis    int64  `json:"milliseconds"`
	GPUMicros int64  `json:"gpu_microseconds"`
	Holder    string `json:"holder,omitempty"`
	PodUID    string `json:"pod_uid,omitempty"`
	Cause     string `json:"cause,omitempty"`
	Seats     int    `json:"seats,omitempty"`
	Of        int    `json:"of,omitempty"`
	Weight    string `json:"weight,omitempty"`
	Policy    string `json:"policy,omitempty"`
	Part      string `json:"part"`
	Opened    uint64 `json:"opened_by_record,omitempty"`
	Closed    uint64 `json:"closed_by_record,omitempty"`
	Began     string `json:"began"`
	Ended     string `json:"ended"`
}

// explainedFact is something that happened meanwhile.
type explainedFact struct {
	Node   string    `json:"node"`
	At     time.Time `json:"at"`
	Record uint64    `json:"record"`
	Kind   string    `json:"kind"`
	Device gpu.UUID  `json:"device,omitempty"`
	Text   string    `json:"text"`
}

// span is a time that was asked of one ledger.
type span struct{ from, to time.Time }

// follow finds the intervals and events in the ledgers, those of nodes first where there are copies.
func (x *explanation) follow(ctx context.Context, b *bill.Bill, readers []*ledger.Reader, nodes []string) error {
	byLedger := map[string]*ledger.Reader{}
	distinct, err := ledger.Distinct(ctx, readers, nodes)
	if err != nil {
		return err
	}
	for _, r := range distinct {
		id, err := r.Identity()
		if err != nil {
			x.Notes = append(x.Notes, err.Error())
			continue
		}
		byLedger[id.LedgerID] = r
	}
	x.Intervals = []explainedInterval{}
	var sum sharing.Fraction
	for n := range b.Nodes {
		windows, wanted := x.wanted(n)
		r := byLedger[b.Nodes[n].LedgerID]
		if len(windows) == 0 || r == nil {
			continue
		}
		devices := map[gpu.UUID]bool{"": true}
		for _, w := range windows {
			for i, err := range r.Intervals(ctx, nil, w.from, w.to) {
				if err != nil {
					x.Notes = append(x.Notes, err.Error())
					continue
				}
				if sign := x.takes(&i, wanted[w]); sign != 0 {
					amount := i.Amount().GPU.Mul(sharing.NewFraction(sign, 1))
					sum = sum.Add(amount)
					x.Intervals = append(x.Intervals, intervalOf(nodeName(b, n), &i, amount))
					devices[i.Card], devices[i.Device] = true, true
				}
			}
		}
		if err := x.happened(ctx, r, nodeName(b, n), windows, devices); err != nil {
			return err
		}
	}
	slices.SortStableFunc(x.Intervals, func(a, b explainedInterval) int {
		return cmp.Or(a.From.Compare(b.From), cmp.Compare(a.Node, b.Node), cmp.Compare(a.GPU, b.GPU), cmp.Compare(a.Device, b.Device))
	})
	x.Sum = ledger.Micro(sum)
	// Each register is rounded down at both ends of its window.
	off, registers := x.Sum-x.GPUMicros, int64(len(x.items))+1
	x.Agrees = off <= registers && off >= -registers
	return nil
}

// wanted are the windows of a node's items, and what is wanted of each.
func (x *explanation) wanted(node int) ([]span, map[span]map[behind]bool) {
	var windows []span
	wanted := map[span]map[behind]bool{}
	for i := range x.items {
		item := &x.items[i]
		if item.Node != node {
			continue
		}
		w := span{item.Start.UTC(), item.End.UTC()}
		if wanted[w] == nil {
			wanted[w] = map[behind]bool{}
			windows = append(windows, w)
		}
		key := behindItem(item)
		key.adjusts = item.Kind == bill.KindAdjustment
		wanted[w][key] = true
	}
	slices.SortFunc(windows, func(a, b span) int { return a.from.Compare(b.from) })
	return windows, wanted
}

// takes says how an interval counts: 1, or -1 where a correction took it from what the items are of, or 0. A correction of
// what an earlier period was billed is that of an adjustment.
func (x *explanation) takes(i *ledger.Interval, wanted map[behind]bool) int64 {
	key := behindLine(&i.Line, i.Model)
	if i.Corrects == "" {
		return sign(wanted[key], 1)
	}
	from := behind{cause: i.Corrects, card: i.Card}
	if i.From.Before(x.From) {
		key.adjusts, from.adjusts = true, true
	}
	return sign(wanted[key], 1) + sign(wanted[from], -1)
}

func sign(counts bool, n int64) int64 {
	if counts {
		return n
	}
	return 0
}

func intervalOf(node string, i *ledger.Interval, amount sharing.Fraction) explainedInterval {
	e := explainedInterval{
		Node: node, GPU: i.Index, Card: i.Card, Device: i.Device, From: i.From, To: i.To, Millis: i.Span, GPUMicros: ledger.Micro(amount),
		Cause: string(i.Cause), Seats: i.Seats, Of: i.Of, Policy: i.Policy, Part: i.Part.String(),
		Opened: i.Opened, Closed: i.Closed, Began: i.Began, Ended: i.Ended,
	}
	if i.Holder != (sharing.Holder{}) {
		e.Holder, e.PodUID = i.Holder.Namespace+"/"+i.Holder.Pod+"/"+i.Holder.Container, i.Holder.PodUID
	}
	if !i.Weight.IsZero() {
		e.Weight = i.Weight.String()
	}
	return e
}

// happened notes the events of a node that concern it as a whole, or one of the devices.
func (x *explanation) happened(ctx context.Context, r *ledger.Reader, node string, windows []span, devices map[gpu.UUID]bool) error {
	for event, err := range r.Events(ctx, windows[0].from, windows[len(windows)-1].to) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			x.Notes = append(x.Notes, fmt.Sprintf("%s: an event cannot be read: %v", node, err))
			continue
		}
		if devices[event.Device] {
			x.Events = append(x.Events, explainedFact{node, event.At, event.Record, string(event.Kind), event.Device, event.Text})
		}
	}
	return nil
}
