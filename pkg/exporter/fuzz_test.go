// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/meter"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// foreign is the mixed node with every text that comes from outside replaced.
type foreign struct {
	model, pod, namespace, resource, driver, help, row, label, word string
}

func (f foreign) exporter(t *testing.T, copies bool) *Exporter {
	s := eventfulNode()
	for i := range s.Reading.Devices {
		d := &s.Reading.Devices[i]
		d.Model, d.PCIBusID = f.model, f.word
		if d.IsMIG() {
			d.Profile.Name = f.model
		}
	}
	for i := range s.Reading.Samples {
		s.Reading.Samples[i].Values[0] = gpu.Text(f.driver)
	}
	for i := range s.Division.Shares {
		share := &s.Division.Shares[i]
		share.Holder = sharing.Holder{Namespace: f.namespace, Pod: f.pod + share.Holder.Pod[:1], Container: f.word, PodUID: f.driver}
		share.Resource = f.resource
	}
	s.Division.Conflicts[0].Kind = f.word
	s.Division.Unmatched[0].Reason, s.Division.Unmatched[0].Allocation.Resource = f.word, f.resource
	s.Listing.Skipped = map[string]int{f.word: 1}
	s.Faults = append(s.Faults, meter.Fault{Source: f.word, Kind: f.resource, Subject: gpu.UUID(f.driver), Text: f.help})
	s.Totals.Faults = map[meter.FaultKey]uint64{{Source: f.word, Kind: f.resource}: 1}
	s.Totals.Conflicts = map[string]uint64{f.word: 2}
	s.Totals.NotCharged = map[string]uint64{f.resource: 3}

	s.Reading.Origin = gpu.Origin{Library: f.model, Engine: f.word, Driver: f.driver}
	s.Reading.Health.Incidents[0].System = gpu.HealthSystem(f.word)
	s.Recent[0].GPU, s.Totals.XIDs[meter.XIDKey{GPU: gpu.UUID(f.word), XID: 13}] = gpu.UUID(f.word), 1
	table, err := health.NewXIDTable([]health.XID{{Code: 31, Name: "x" + f.help, Class: health.ClassApp, Alert: true}})
	if err != nil {
		t.Fatal(err)
	}

	rows := rowsOf(t, mixedCounters+computedCounters+"DCGM_FI_DEV_XID_ERRORS, gauge\n").Rows()
	driver, _ := gpu.FieldByID(fieldDriver)
	temp, _ := gpu.FieldByID(fieldTemp)
	rows[0].Help = f.help
	rows = append(rows,
		Counter{Name: f.label, Field: driver, Type: TypeLabel},
		Counter{Name: f.row, Field: temp, Type: TypeCounter, Help: f.help},
		Counter{Name: f.row + "_total", Field: temp, Type: TypeCounter, Help: f.help})
	cfg := Config{Hostname: f.namespace, VirtualGPUs: copies, PodUID: true, Build: BuildInfo{Version: f.word}, XIDs: table, SourceReason: f.help}
	return exporterOf(t, s, &Counters{rows: rows}, cfg)
}

// series lists a family's series by their sorted labels.
func series(f *dto.MetricFamily) []string {
	var out []string
	for _, m := range f.GetMetric() {
		var labels []string
		for _, l := range m.GetLabel() {
			labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
		}
		slices.Sort(labels)
		out = append(out, strings.Join(labels, ","))
	}
	return out
}

// check makes every form of the page and reads each back: no text from outside
// makes a page invalid, takes a label or a family, or makes the formats differ.
func (f foreign) check(t *testing.T, copies bool) error {
	e := f.exporter(t, copies)
	page := writtenPage(t, e, FormatText)
	text, err := parsedText(page)
	if err != nil {
		return fmt.Errorf("text: %w\n%s", err, page)
	}
	protobuf, err := parsedProtobuf(writtenPage(t, e, FormatProtobuf))
	if err != nil {
		return fmt.Errorf("protobuf: %w", err)
	}
	if err := checkOpenMetrics([]byte(writtenPage(t, e, FormatOpenMetrics))); err != nil {
		return fmt.Errorf("OpenMetrics: %w", err)
	}
	made := e.current().families()
	if len(text) != len(made.families) || len(protobuf) != len(made.families) {
		return fmt.Errorf("%d and %d families are read, %d were made", len(text), len(protobuf), len(made.families))
	}
	for _, fam := range made.families {
		if !proto.Equal(text[fam.name], protobuf[fam.name]) {
			return fmt.Errorf("text and protobuf differ:\n%v\n%v", text[fam.name], protobuf[fam.name])
		}
		all := series(text[fam.name])
		if len(all) != fam.end-fam.first {
			return fmt.Errorf("%s: %d series are read, %d were made", fam.name, len(all), fam.end-fam.first)
		}
		slices.Sort(all)
		if len(slices.Compact(all)) != fam.end-fam.first {
			return fmt.Errorf("%s has a series twice: %v", fam.name, all)
		}
	}
	for _, m := range text["gpumeter_allocation_share"].GetMetric() {
		for _, l := range m.GetLabel() {
			if l.GetName() == "namespace" && l.GetValue() != clean(f.namespace) {
				return fmt.Errorf("namespace %q is read as %q", f.namespace, l.GetValue())
			}
		}
	}
	return nil
}

func FuzzPage(f *testing.F) {
	f.Add("NVIDIA H100", "pod", "ns", "nvidia.com/gpu", "550.90.07", "Temperature", "DCGM_FI_X", "DCGM_FI_Y", "w", false)
	f.Add(hostile, hostile, hostile, hostile, hostile, hostile, hostile, hostile, hostile, true)
	f.Add("", "", "", "", "", "", "", "", "", true)
	f.Add("\\", "\"", "\n", "\x00", "\xff", " \t\\", "gpumeter_fault", "UUID", "},a=\"", false)
	f.Add("1c.", "a\r", "{", "=", "\u2028", "# TYPE x gauge", "gpumeter_ticks", "__name__", "\\n", true)
	f.Add("m", "p", "n", "r", "d", "h", "DCGM_EXP_XID_ERRORS_TOTAL", "xid", "GPU-0", true)
	f.Add("m", "p", "n", "r", "d", "# EOF", "DCGM_FI_DEV_GPU_TEMP", "pod", "error", true)
	f.Fuzz(func(t *testing.T, model, pod, namespace, resource, driver, help, row, label, word string, copies bool) {
		in := foreign{model, pod, namespace, resource, driver, help, row, label, word}
		if err := in.check(t, copies); err != nil {
			t.Fatal(err)
		}
	})
}

// TestNoTextBreaksAPage is FuzzPage over texts put together from what has a meaning
// in some format.
func TestNoTextBreaksAPage(t *testing.T) {
	pieces := rapid.SampledFrom([]string{
		`"`, `\`, "\n", "\x00", "\xff", "{", "}", ",", "=", " ", "\t", "\r", "#", "# EOF\n", "# TYPE x gauge\n", "\u2028", "\ufffd", "ü",
		"a", "n", "1", "_", ":", "__name__", "UUID", "pod", "vgpu", "xid", "err_msg", "GPU-1", "DCGM_FI_DEV_GPU_TEMP", "gpumeter_", "gpumeter_fault", "_total", "1c.", "NaN",
	})
	texts := rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(pieces, 0, 5).Draw(t, "pieces"), "")
	})
	rapid.Check(t, func(r *rapid.T) {
		text := func(name string) string { return texts.Draw(r, name) }
		in := foreign{
			text("model"), text("pod"), text("namespace"), text("resource"), text("driver"),
			text("help"), text("row"), text("label"), text("word"),
		}
		if err := in.check(t, rapid.Bool().Draw(r, "copies")); err != nil {
			r.Fatal(err)
		}
	})
}
