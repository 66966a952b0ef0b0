// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/gpumeter/gpumeter/cmd/gpumeter-exporter/app"
	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// status is how a finding is to be taken.
type status string

const (
	statusOK status = "ok"
	// statusInfo is worth knowing and no reason to do anything.
	statusInfo status = "info"
	// statusWarn: something that was asked for is missing.
	statusWarn status = "warn"
	// statusFail: GPUs cannot be read.
	statusFail status = "fail"
)

// finding is one line: what was seen, and what to do about it where there is something to do.
type finding struct {
	Check  string `json:"check"`
	Status status `json:"status"`
	Text   string `json:"text"`
	Remedy string `json:"remedy,omitempty"`
}

// line is the finding as people read it.
func (f finding) line() string {
	text := fmt.Sprintf("%-4s  %-11s  %s", f.Status, f.Check, oneLine(f.Text))
	if f.Remedy != "" {
		text += "  → " + oneLine(f.Remedy)
	}
	return text
}

// oneLine keeps foreign text from adding lines, and from speaking to the terminal.
func oneLine(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return ' '
		}
		return r
	}, s)
	return strings.Join(strings.Fields(s), " ")
}

// schema is the number of the JSON document's form. Keys are added within a number, none is
// taken away or given another meaning.
const schema = 1

// examination is everything the doctor found; docs/doctor.md explains it to its readers.
type examination struct {
	Schema   int    `json:"schema"`
	Version  string `json:"version"`
	Node     string `json:"node"`
	Result   string `json:"result"`
	ExitCode int    `json:"exit_code"`

	Findings []finding `json:"findings"`
	// Source is nil where there is nothing to read GPUs through.
	Source  *sourceReport  `json:"source"`
	Devices []deviceReport `json:"devices"`
	Absent  []absentField  `json:"absent_fields"`
	// Pods is nil where the kubelet was not asked or did not answer.
	Pods *podReport `json:"pods"`
}

type sourceReport struct {
	Name    string `json:"name"`
	Reason  string `json:"reason"`
	Library string `json:"library"`
	Engine  string `json:"engine"`
	Driver  string `json:"driver"`
}

type deviceReport struct {
	UUID     string `json:"uuid"`
	Parent   string `json:"parent,omitempty"`
	GPU      int    `json:"gpu"`
	PCIBusID string `json:"pci_bus_id"`
	Model    string `json:"model"`
	MIG      bool   `json:"mig_enabled"`
	Lost     bool   `json:"lost"`
	// The rest is of MIG devices.
	GPUInstance     *int   `json:"gpu_instance_id,omitempty"`
	ComputeInstance *int   `json:"compute_instance_id,omitempty"`
	Profile         string `json:"profile,omitempty"`
}

// absentField is a field of the counter file that an entity does not give.
type absentField struct {
	Field       string `json:"field"`
	ID          int    `json:"id"`
	UUID        string `json:"uuid"`
	GPU         int    `json:"gpu"`
	GPUInstance *int   `json:"gpu_instance_id,omitempty"`
	Reason      string `json:"reason"`

	id     gpu.FieldID
	reason gpu.Reason
}

type podReport struct {
	Pods        int              `json:"pods"`
	Containers  int              `json:"containers"`
	Allocations int              `json:"allocations"`
	Holders     int              `json:"holders"`
	Advertised  map[string]int   `json:"advertised"`
	Skipped     map[string]int   `json:"skipped"`
	Unmatched   []unmatchedID    `json:"unmatched"`
	Conflicts   []conflictReport `json:"conflicts"`
}

type unmatchedID struct {
	holderReport
	Resource string `json:"resource"`
	DeviceID string `json:"device_id"`
	Reason   string `json:"reason"`
}

type conflictReport struct {
	holderReport
	Kind   string `json:"kind"`
	UUID   string `json:"uuid"`
	Winner string `json:"winner,omitempty"`
}

type holderReport struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Container string `json:"container"`
}

func newExamination() examination {
	return examination{
		Schema: schema, Version: app.Version(), Result: "fine",
		Findings: []finding{}, Devices: []deviceReport{}, Absent: []absentField{},
	}
}

// add takes a finding in. The worst one decides.
func (r *examination) add(f finding) {
	r.Findings = append(r.Findings, f)
	switch {
	case f.Status == statusFail:
		r.Result, r.ExitCode = "broken", 2
	case f.Status == statusWarn && r.ExitCode == 0:
		r.Result, r.ExitCode = "degraded", 1
	}
}

// describe adds what is there, for programs.
func (r *examination) describe(e exam) {
	if e.chosen != nil {
		o := e.chosen.Driver.Origin()
		if e.reading != nil {
			o = e.reading.Origin
		}
		r.Source = &sourceReport{Name: e.chosen.Name, Reason: e.chosen.Reason, Library: o.Library, Engine: o.Engine, Driver: o.Driver}
	}
	if e.reading != nil {
		for _, d := range e.reading.Devices {
			r.Devices = append(r.Devices, describeDevice(d))
		}
	}
	if e.absent != nil {
		r.Absent = e.absent
	}
	if e.listing != nil {
		r.Pods = describePods(e.listing, e.division)
	}
}

func describeDevice(d gpu.Device) deviceReport {
	out := deviceReport{
		UUID: string(d.UUID), Parent: string(d.Parent), GPU: d.Index, PCIBusID: d.PCIBusID, Model: d.Model,
		MIG: d.MIGEnabled, Lost: d.Lost, Profile: d.Profile.Name,
	}
	if d.IsMIG() {
		out.GPUInstance, out.ComputeInstance = &d.GPUInstance, &d.ComputeInstance
	}
	return out
}

func (r *examination) writeJSON(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(r)
}

// summary is the last line.
func (r *examination) summary() string {
	counts := map[status]int{}
	for _, f := range r.Findings {
		counts[f.Status]++
	}
	switch r.ExitCode {
	case 0:
		return "Fine: gpumeter-exporter works here."
	case 1:
		return fmt.Sprintf("Degraded (%d warn): gpumeter-exporter works here, without some of what it was asked for.", counts[statusWarn])
	default:
		return fmt.Sprintf("Broken (%d fail, %d warn): gpumeter-exporter does not work here.", counts[statusFail], counts[statusWarn])
	}
}
