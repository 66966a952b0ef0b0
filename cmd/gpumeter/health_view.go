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

	Devices   []health.DeviceView   `json:"devices"`
	Clearings []health.ClearingView `json:"clearings"`
}

func viewOf(l *healthstream.List) healthView {
	v := healthView{
		Node: l.Node, Source: l.Source, Epoch: l.Epoch, Version: l.Report.Version, Time: l.Report.Time, BootID: l.Report.BootID,
		Devices: []health.DeviceView{}, Clearings: health.ViewClearings(l.Report.Clearings),
	}
	devices := make(map[gpu.UUID]*gpu.Device, len(l.Devices))
	for i := range l.Devices {
		devices[l.Devices[i].UUID] = &l.Devices[i].Device
	}
	records := make(map[gpu.UUID]*health.Record, len(l.Report.Records))
	for i := range l.Report.Records {
		records[l.Report.Records[i].Device] = &l.Report.Records[i]
	}
	for i := range l.Report.Verdicts {
		verdict := &l.Report.Verdicts[i]
		v.Devices = append(v.Devices, health.ViewDevice(verdict, devices[verdict.Device], records[verdict.Device]))
	}
	return v
}

// about is the view of one device, and of the MIG devices that are cut from it.
func (v healthView) about(device gpu.UUID) healthView {
	all := v.Devices
	v.Devices = []health.DeviceView{}
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
			devicePlace(&d), oneLine(string(d.UUID)), statusWord(&d), stamp(d.Since), conditionWords(&d), orDash(oneLine(d.Reason)))
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

// devicePlace is the GPU's number, with the profile and the instances of a MIG device.
func devicePlace(v *health.DeviceView) string {
	switch {
	case v.Index == nil:
		return "gone"
	case v.MIG == nil:
		return fmt.Sprint(*v.Index)
	default:
		return fmt.Sprintf("%d %s GI %d CI %d", *v.Index, oneLine(v.MIG.Profile), v.MIG.GPUInstance, v.MIG.ComputeInstance)
	}
}

func statusWord(v *health.DeviceView) string {
	if v.Avoid {
		return v.Status + ", avoid"
	}
	return v.Status
}

func conditionWords(v *health.DeviceView) string {
	var words []string
	for i := range v.Conditions {
		words = append(words, conditionWord(&v.Conditions[i]))
	}
	return orDash(strings.Join(words, ", "))
}

// conditionWord is the condition with its class, and with how its end stands.
func conditionWord(c *health.ConditionView) string {
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
