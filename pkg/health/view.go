// SPDX-License-Identifier: Apache-2.0

package health

import (
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// DeviceView is a verdict as programs and people outside get it, in the exporter's JSON and in
// that of gpumeter health: with words for numbers, and with where the device is. docs/health-api.md
// promises the names.
type DeviceView struct {
	UUID gpu.UUID `json:"uuid"`
	// Card is the physical GPU.
	Card gpu.UUID `json:"card"`
	// Index is nil of a GPU that is not listed any more.
	Index    *int     `json:"index,omitempty"`
	Listed   bool     `json:"listed"`
	Lost     bool     `json:"lost"`
	Model    string   `json:"model,omitempty"`
	PCIBusID string   `json:"pciBusID,omitempty"`
	MIG      *MIGView `json:"mig,omitempty"`

	Status string    `json:"status"`
	Since  time.Time `json:"since,omitzero"`
	// Avoid is false of a device that is Unhealthy: nobody gets it anyway.
	Avoid      bool            `json:"avoid"`
	Reason     string          `json:"reason,omitempty"`
	Conditions []ConditionView `json:"conditions"`
	History    *HistoryView    `json:"history,omitempty"`
}

// MIGView is which part of its card a MIG device is.
type MIGView struct {
	GPUInstance     int    `json:"gpuInstance"`
	ComputeInstance int    `json:"computeInstance"`
	Profile         string `json:"profile"`
}

// ConditionView is a Condition with words for numbers.
type ConditionView struct {
	Kind  string `json:"kind"`
	Class string `json:"class"`
	// Scope is "gpu" for a condition of the whole card, else "instance".
	Scope           string    `json:"scope"`
	Withdraws       bool      `json:"withdraws"`
	Since           time.Time `json:"since,omitzero"`
	Last            time.Time `json:"last,omitzero"`
	Count           uint64    `json:"count"`
	BootID          string    `json:"bootID,omitempty"`
	XID             int       `json:"xid,omitempty"`
	Evidence        string    `json:"evidence"`
	Recovery        string    `json:"recovery,omitempty"`
	RecoveringSince time.Time `json:"recoveringSince,omitzero"`
}

// HistoryView is a Record with seconds, and with a count for each status.
type HistoryView struct {
	Transitions      map[string]uint64 `json:"transitions"`
	UnhealthySeconds float64           `json:"unhealthySeconds"`
	Clearings        uint64            `json:"clearings"`
}

// ClearingView is a Clearing with words for numbers.
type ClearingView struct {
	Device   gpu.UUID        `json:"device"`
	Time     time.Time       `json:"time"`
	By       string          `json:"by"`
	Reason   string          `json:"reason"`
	Ended    []ConditionView `json:"ended"`
	Standing []ConditionView `json:"standing"`
}

// ViewDevice is the view of a verdict. device is nil where the GPU is not listed any more, record
// where nothing was counted of it.
func ViewDevice(v *Verdict, device *gpu.Device, record *Record) DeviceView {
	out := DeviceView{
		UUID: v.Device, Card: v.Card, Status: v.Status.String(), Since: v.Since, Reason: v.Reason,
		Avoid: v.Avoided(), Conditions: ViewConditions(v.Conditions),
	}
	if device != nil {
		out.Index, out.Listed, out.Lost, out.Model, out.PCIBusID = &device.Index, true, device.Lost, device.Model, device.PCIBusID
		if device.IsMIG() {
			out.MIG = &MIGView{device.GPUInstance, device.ComputeInstance, device.Profile.Name}
		}
	}
	if record != nil {
		out.History = &HistoryView{map[string]uint64{}, record.Unhealthy.Seconds(), record.Clearings}
		for _, s := range Statuses() {
			out.History.Transitions[s.String()] = record.Transitions[s.String()]
		}
	}
	return out
}

// ViewConditions are the views of conditions, in their order; never nil.
func ViewConditions(conditions []Condition) []ConditionView {
	out := make([]ConditionView, 0, len(conditions))
	for i := range conditions {
		c := &conditions[i]
		scope := "instance"
		if c.GPUInstance == gpu.NoInstance {
			scope = "gpu"
		}
		out = append(out, ConditionView{
			Kind: string(c.Kind), Class: c.Class.String(), Scope: scope, Withdraws: c.Withdraws(), Since: c.Since, Last: c.Last,
			Count: c.Count, BootID: c.BootID, XID: c.XID, Evidence: c.Evidence, Recovery: c.Recovery, RecoveringSince: c.RecoveringSince,
		})
	}
	return out
}

// ViewClearings are the views of operators' words, in their order; never nil.
func ViewClearings(clearings []Clearing) []ClearingView {
	out := make([]ClearingView, 0, len(clearings))
	for i := range clearings {
		c := &clearings[i]
		out = append(out, ClearingView{c.Device, c.Time, c.By, c.Reason, ViewConditions(c.Ended), ViewConditions(c.Standing)})
	}
	return out
}
