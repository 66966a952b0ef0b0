// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/healthstream"
)

// healthView is a list for people and, in JSON, for scripts. Its keys are those of the exporter's
// /api/v1/health (docs/health-api.md) as far as the stream has what they say.
type healthView struct {
	Node    string    `json:"node"`
	Source  string    `json:"source"`
	Epoch   string    `json:"epoch"`
	Version uint64    `json:"version"`
	Time    time.Time `json:"time"`
	BootID  string    `json:"bootID"`

	Devices   []verdictView  `json:"devices"`
	Clearings []clearingView `json:"clearings"`
}

type verdictView struct {
	UUID gpu.UUID `json:"uuid"`
	// Card is the physical GPU.
	Card gpu.UUID `json:"card"`
	// Index is nil for a GPU that is not listed any more.
	Index    *int     `json:"index,omitempty"`
	Listed   bool     `json:"listed"`
	Lost     bool     `json:"lost"`
	Model    string   `json:"model,omitempty"`
	PCIBusID string   `json:"pciBusID,omitempty"`
	MIG      *migView `json:"mig,omitempty"`

	Status     string          `json:"status"`
	Since      time.Time       `json:"since,omitzero"`
	Avoid      bool            `json:"avoid"`
	Reason     string          `json:"reason,omitempty"`
	Conditions []conditionView `json:"conditions"`
	History    *historyView    `json:"history,omitempty"`
}

type migView struct {
	GPUInstance     int    `json:"gpuInstance"`
	ComputeInstance int    `json:"computeInstance"`
	Profile         string `json:"profile"`
}

type conditionView struct {
	Kind  string `json:"kind"`
	Class string `json:"class"`
	// Scope is "gpu" for the whole card and "instance" for a part of it.
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

type historyView struct {
	Transitions      map[string]uint64 `json:"transitions"`
	UnhealthySeconds float64           `json:"unhealthySeconds"`
	Clearings        uint64            `json:"clearings"`
}

type clearingView struct {
	Device   gpu.UUID        `json:"device"`
	Time     time.Time       `json:"time"`
	By       string          `json:"by"`
	Reason   string          `json:"reason"`
	Ended    []conditionView `json:"ended"`
	Standing []conditionView `json:"standing"`
}

func viewOf(l *healthstream.List) healthView {
	v := healthView{
		Node: l.Node, Source: l.Source, Epoch: l.Epoch, Version: l.Report.Version, Time: l.Report.Time, BootID: l.Report.BootID,
		Devices: []verdictView{}, Clearings: []clearingView{},
	}
	devices := make(map[gpu.UUID]gpu.Device, len(l.Devices))
	for _, d := range l.Devices {
		devices[d.UUID] = d.Device
	}
	records := make(map[gpu.UUID]*historyView, len(l.Report.Records))
	for _, r := range l.Report.Records {
		records[r.Device] = &historyView{Transitions: r.Transitions, UnhealthySeconds: r.Unhealthy.Seconds(), Clearings: r.Clearings}
	}
	for _, verdict := range l.Report.Verdicts {
		out := verdictViewOf(verdict, records[verdict.Device])
		if d, listed := devices[verdict.Device]; listed {
			out.describe(d)
		}
		v.Devices = append(v.Devices, out)
	}
	for _, c := range l.Report.Clearings {
		v.Clearings = append(v.Clearings, clearingView{
			Device: c.Device, Time: c.Time, By: c.By, Reason: c.Reason, Ended: conditionViews(c.Ended), Standing: conditionViews(c.Standing),
		})
	}
	return v
}

func verdictViewOf(v health.Verdict, history *historyView) verdictView {
	return verdictView{
		UUID: v.Device, Card: v.Card, Status: v.Status.String(), Since: v.Since, Avoid: v.Avoid && v.Status != health.Unhealthy, Reason: v.Reason,
		Conditions: conditionViews(v.Conditions), History: history,
	}
}

// describe adds what is known of a device that is listed.
func (v *verdictView) describe(d gpu.Device) {
	v.Index, v.Listed, v.Lost, v.Model, v.PCIBusID = &d.Index, true, d.Lost, d.Model, d.PCIBusID
	if d.IsMIG() {
		v.MIG = &migView{GPUInstance: d.GPUInstance, ComputeInstance: d.ComputeInstance, Profile: d.Profile.Name}
	}
}

func conditionViews(all []health.Condition) []conditionView {
	out := make([]conditionView, 0, len(all))
	for _, c := range all {
		scope := "gpu"
		if c.GPUInstance != gpu.NoInstance {
			scope = "instance"
		}
		out = append(out, conditionView{
			Kind: string(c.Kind), Class: c.Class.String(), Scope: scope, Withdraws: c.Withdraws(), Since: c.Since, Last: c.Last, Count: c.Count,
			BootID: c.BootID, XID: c.XID, Evidence: c.Evidence, Recovery: c.Recovery, RecoveringSince: c.RecoveringSince,
		})
	}
	return out
}

// about is the view of one device, and of the MIG devices that are cut from it.
func (v healthView) about(device gpu.UUID) healthView {
	all := v.Devices
	v.Devices = []verdictView{}
	for _, d := range all {
		if d.UUID == device || d.Card == device {
			v.Devices = append(v.Devices, d)
		}
	}
	return v
}

// exitCode is that of gpumeter health. Where there are no devices, nobody can tell.
func (v healthView) exitCode() int {
	n := v.counts()
	switch {
	case n[health.Unhealthy.String()] > 0:
		return exitUnhealthy
	case n[health.Unknown.String()] > 0 || len(v.Devices) == 0:
		return exitUnknown
	default:
		return 0
	}
}

// counts are the devices by status.
func (v healthView) counts() map[string]int {
	n := make(map[string]int)
	for _, d := range v.Devices {
		n[d.Status]++
	}
	return n
}

func (v healthView) writeJSON(w io.Writer, indent string) error {
	e := json.NewEncoder(w)
	e.SetIndent("", indent)
	return e.Encode(v)
}

func (v healthView) writeTable(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "GPU\tUUID\tSTATUS\tSINCE\tCONDITIONS\tREASON")
	for _, d := range v.Devices {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n",
			d.place(), oneLine(string(d.UUID)), d.word(), stamp(d.Since), d.kinds(), orDash(oneLine(d.Reason)))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w, v.summary())
	return err
}

// summary is the last line of the table.
func (v healthView) summary() string {
	n := v.counts()
	var parts []string
	for _, s := range []health.Status{health.Healthy, health.Unhealthy, health.Unknown} {
		if n[s.String()] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n[s.String()], s))
		}
	}
	if len(parts) == 0 {
		parts = []string{"no devices"}
	}
	return fmt.Sprintf("%s on %s (%s), as of %s", strings.Join(parts, ", "), orDash(oneLine(v.Node)), orDash(oneLine(v.Source)), stamp(v.Time))
}

// place is the GPU's number, with the profile and the instances of a MIG device.
func (v verdictView) place() string {
	switch {
	case v.Index == nil:
		return "gone"
	case v.MIG == nil:
		return fmt.Sprint(*v.Index)
	default:
		return fmt.Sprintf("%d %s GI %d CI %d", *v.Index, oneLine(v.MIG.Profile), v.MIG.GPUInstance, v.MIG.ComputeInstance)
	}
}

func (v verdictView) word() string {
	if v.Avoid {
		return v.Status + ", avoid"
	}
	return v.Status
}

func (v verdictView) kinds() string {
	var kinds []string
	for _, c := range v.Conditions {
		kinds = append(kinds, c.word())
	}
	return orDash(strings.Join(kinds, ", "))
}

// word is the condition with its class, and with how its end stands.
func (c conditionView) word() string {
	if c.Recovery != "" {
		return fmt.Sprintf("%s (%s, recovering)", oneLine(c.Kind), c.Class)
	}
	return fmt.Sprintf("%s (%s)", oneLine(c.Kind), c.Class)
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
