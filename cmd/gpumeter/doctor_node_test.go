// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/cmd/gpumeter-exporter/app"
	"github.com/gpumeter/gpumeter/pkg/exporter"
	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/nvml"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// driver answers readings one after the other, the last for ever.
type driver struct {
	readings []gpu.Reading
	reads    int
	// never are fields that it can give on no GPU.
	never []gpu.FieldID
}

func (d *driver) Read(context.Context, []gpu.FieldID) (gpu.Reading, error) {
	r := d.readings[min(d.reads, len(d.readings)-1)]
	d.reads++
	return r, nil
}
func (d *driver) Origin() gpu.Origin           { return gpu.Origin{} }
func (d *driver) Facts() []string              { return nil }
func (d *driver) Supports(id gpu.FieldID) bool { return !slices.Contains(d.never, id) }

// fieldsExam is an exam of a counter file whose first reading has been made.
func fieldsExam(t *testing.T, csv string, d *driver) exam {
	t.Helper()
	counters, problems := exporter.ParseCounters("counters.csv", []byte(csv))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	first, err := d.Read(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return exam{counters: counters, chosen: &app.Chosen{Name: "nvml", Driver: d}, reading: &first}
}

// oneGPU is a reading of one GPU with the values of the fields.
func oneGPU(fields []gpu.FieldID, values ...gpu.Value) gpu.Reading {
	return gpu.Reading{
		Fields: fields, Devices: []gpu.Device{{UUID: "GPU-0"}},
		Samples: []gpu.Sample{{Entity: gpu.Entity{Kind: gpu.KindGPU, GPU: "GPU-0"}, Values: values}},
	}
}

func written(findings []finding) []string {
	var out []string
	for _, f := range findings {
		out = append(out, string(f.Status)+" "+f.Text)
	}
	return out
}

func TestAFieldThatComesLateIsNotOneThatNeverComes(t *testing.T) {
	const csv = "DCGM_FI_DEV_GPU_TEMP, gauge\nDCGM_FI_PROF_GR_ENGINE_ACTIVE, gauge\nDCGM_FI_DEV_XID_ERRORS, gauge\n"
	fields := []gpu.FieldID{150, gpu.FieldXID, 1001}
	blank := gpu.Absent(gpu.ReasonBlank)
	late := &driver{readings: []gpu.Reading{
		oneGPU(fields, gpu.Int(40), blank, blank), oneGPU(fields, gpu.Int(40), blank, blank), oneGPU(fields, gpu.Int(40), blank, gpu.Float(0.5)),
	}}
	never := &driver{readings: late.readings[:1]}
	d := &doctor{pause: time.Millisecond}
	for _, tt := range []struct {
		driver *driver
		want   []string
	}{
		// There is no XID before the first one, and that is well.
		{late, []string{"ok 3 of the counter file's 3 rows have a value on every GPU that answers"}},
		{never, []string{
			"ok 2 of the counter file's 3 rows have a value on every GPU that answers",
			"warn blank (no value came) on GPU 0: DCGM_FI_PROF_GR_ENGINE_ACTIVE",
		}},
	} {
		o := d.checkFields(t.Context(), fieldsExam(t, csv, tt.driver))
		if d := cmp.Diff(tt.want, written(o.findings)); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
	}
}

func TestWhyFieldsAreAbsent(t *testing.T) {
	const csv = "DCGM_FI_DEV_GPU_TEMP, gauge\nDCGM_FI_DEV_POWER_USAGE, gauge\nDCGM_FI_PROF_GR_ENGINE_ACTIVE, gauge\nDCGM_FI_PROF_SM_ACTIVE, gauge\n"
	fields := []gpu.FieldID{150, 155, 1001, 1002}
	one, absent := gpu.Int(1), gpu.Absent
	tests := []struct {
		name   string
		values []gpu.Value
		want   string
	}{
		{"hardware", []gpu.Value{absent(gpu.ReasonNotSupported), one, one, one}, "info not supported on GPU 0: DCGM_FI_DEV_GPU_TEMP"},
		{"source", []gpu.Value{one, absent(gpu.ReasonNotSupported), one, one}, "warn not given by nvml on GPU 0: DCGM_FI_DEV_POWER_USAGE"},
		{"one profiling field", []gpu.Value{one, one, absent(gpu.ReasonNotSupported), one}, "info not supported on GPU 0: DCGM_FI_PROF_GR_ENGINE_ACTIVE"},
		{"no profiling", []gpu.Value{one, one, absent(gpu.ReasonNotSupported), absent(gpu.ReasonNotSupported)}, "warn no profiling on GPU 0: DCGM_FI_PROF_GR_ENGINE_ACTIVE, DCGM_FI_PROF_SM_ACTIVE"},
		{"permission", []gpu.Value{one, one, absent(gpu.ReasonNotPermitted), one}, "warn not permitted on GPU 0: DCGM_FI_PROF_GR_ENGINE_ACTIVE"},
		{"implausible", []gpu.Value{absent(gpu.ReasonImplausible), one, one, one}, "warn implausible on GPU 0: DCGM_FI_DEV_GPU_TEMP"},
		{"nothing under it", []gpu.Value{absent(gpu.ReasonNotFound), one, one, one}, "info not found on GPU 0: DCGM_FI_DEV_GPU_TEMP"},
		{"no new sample", []gpu.Value{absent(gpu.ReasonStale), one, one, one}, "warn stale (no new value came) on GPU 0: DCGM_FI_DEV_GPU_TEMP"},
		{"text", []gpu.Value{absent(gpu.ReasonType), one, one, one}, "warn text instead of a number on GPU 0: DCGM_FI_DEV_GPU_TEMP"},
		{"error", []gpu.Value{absent(gpu.ReasonError), one, one, one}, "warn failed (error) on GPU 0: DCGM_FI_DEV_GPU_TEMP"},
		{"not a quantity of the GPU", []gpu.Value{absent(gpu.ReasonScope), one, one, one}, ""},
		{"a GPU that hangs is no field's matter", []gpu.Value{absent(gpu.ReasonTimeout), one, one, one}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := &doctor{pause: time.Millisecond}
			o := d.checkFields(t.Context(), fieldsExam(t, csv, &driver{readings: []gpu.Reading{oneGPU(fields, tt.values...)}, never: []gpu.FieldID{155}}))
			got := written(o.findings)[1:]
			if tt.want == "" && len(got) > 0 || tt.want != "" && (len(got) != 1 || got[0] != tt.want) {
				t.Errorf("found %q, want %q", got, tt.want)
			}
		})
	}
}

func TestPermissions(t *testing.T) {
	refused := []absentField{{id: 1001, reason: gpu.ReasonNotPermitted}}
	tests := []struct {
		name   string
		proc   fstest.MapFS
		csv    string
		absent []absentField
		remote bool
		status status
		says   string
	}{
		{"no profiling", fstest.MapFS{}, "DCGM_FI_DEV_GPU_TEMP, gauge", nil, false, statusOK, "no profiling fields"},
		{"capable", node(allCapabilities, nil), "DCGM_FI_PROF_SM_ACTIVE, gauge", nil, false, statusOK, "is effective"},
		{"capable and refused", node(allCapabilities, nil), "DCGM_FI_PROF_SM_ACTIVE, gauge", refused, false, statusWarn, "all the same"},
		{"not capable and refused", node(noCapabilities, nil), "DCGM_FI_PROF_SM_ACTIVE, gauge", refused, false, statusWarn, "not effective"},
		{"not capable and not refused", node(noCapabilities, nil), "DCGM_FI_PROF_SM_ACTIVE, gauge", nil, false, statusOK, "does not ask for it"},
		{"all capabilities but that one", node("000001ffffdfffff", nil), "DCGM_FI_PROF_SM_ACTIVE, gauge", refused, false, statusWarn, "not effective"},
		{"elsewhere", fstest.MapFS{}, "DCGM_FI_PROF_SM_ACTIVE, gauge", nil, true, statusOK, "the host engine"},
		{"no /proc", fstest.MapFS{}, "DCGM_FI_PROF_SM_ACTIVE, gauge", nil, false, statusWarn, "cannot be told"},
		{"strange /proc", node("0xzz", nil), "DCGM_FI_PROF_SM_ACTIVE, gauge", nil, false, statusWarn, "CapEff"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := &doctor{cfg: app.Defaults(), proc: tt.proc}
			if tt.remote {
				d.cfg.HostEngine = "/run/engine"
			}
			e := fieldsExam(t, tt.csv+"\n", &driver{readings: []gpu.Reading{{}}})
			e.absent = tt.absent
			f := d.checkPermissions(t.Context(), e).findings[0]
			if f.Status != tt.status || !strings.Contains(f.Text, tt.says) {
				t.Errorf("found %s, want %s with %q", f.line(), tt.status, tt.says)
			}
		})
	}
}

func TestDeviceIDsThatAreNoGPUsOfThisNode(t *testing.T) {
	devices := []gpu.Device{{UUID: "GPU-5f254f85-e708-4d24-bb15-7e20b2a941da", GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance}}
	held := func(pod, id string) sharing.Allocation {
		return sharing.Allocation{Holder: sharing.Holder{Namespace: "ml", Pod: pod, Container: "main"}, Resource: "nvidia.com/gpu", DeviceID: id}
	}
	listing := &sharing.Listing{Allocations: []sharing.Allocation{
		held("a", "GPU-5f254f85-e708-4d24-bb15-7e20b2a941da"), held("b", "GPU-5f254f85-e708-4d24-bb15-7e20b2a941da"),
		held("c", "GPU-00000000-0000-0000-0000-000000000001"), held("c", "GPU-00000000-0000-0000-0000-000000000002"), held("d", "fpga-1"),
	}}
	d := &doctor{cfg: app.Defaults()}
	o := d.checkDeviceIDs(t.Context(), exam{listing: listing, reading: &gpu.Reading{Devices: devices}})
	got := strings.Join(written(o.findings), "\n")
	for _, want := range []string{
		"warn nvidia.com/gpu: 2 ids cannot be tied to a GPU (unknown_device), such as GPU-00000000-0000-0000-0000-000000000001 held by ml/c/main",
		"warn nvidia.com/gpu: fpga-1 held by ml/d/main cannot be tied to a GPU (malformed_id)",
		"contradicts another allocation (exclusive) and is not charged; ml/",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("it does not say %q:\n%s", want, got)
		}
	}
	if len(o.findings) != 3 {
		t.Errorf("%d lines:\n%s", len(o.findings), got)
	}
	var e exam
	o.learn(&e)
	if pods := describePods(listing, e.division); len(pods.Unmatched) != 3 || len(pods.Conflicts) != 1 || pods.Holders != 4 {
		t.Errorf("for programs: %+v", pods)
	}
}

func TestALibraryThatIsNotThereIsNoFault(t *testing.T) {
	cfg := app.Defaults()
	cfg.NVMLLibrary = "/nowhere/libnvidia-ml.so.1"
	d := &doctor{cfg: cfg, sources: app.NewSources(cfg, slog.New(slog.DiscardHandler))}
	broken := app.Candidate{Name: app.SourceNVML, Open: func() (app.Driver, error) { return nil, nvml.ErrNoDriver }}
	for _, tt := range []struct {
		candidate app.Candidate
		want      status
	}{{d.sources.Candidates()[1], statusInfo}, {broken, statusWarn}} {
		if f := d.checkCandidate(tt.candidate)(t.Context(), exam{}).findings[0]; f.Status != tt.want {
			t.Errorf("found %s, want %s", f.line(), tt.want)
		}
	}
}

func TestWhatNoSampleHasIsAbsentToo(t *testing.T) {
	const csv = "DCGM_FI_DEV_GPU_TEMP, gauge\nDCGM_EXP_GPU_HEALTH_STATUS, gauge\nDCGM_EXP_P2P_STATUS, gauge\n"
	healthy := gpu.HealthReport{Time: time.Unix(1, 0)}
	reading := func(change func(*gpu.Reading)) gpu.Reading {
		r := oneGPU([]gpu.FieldID{150, gpu.FieldHealthStatus, gpu.FieldP2PStatus}, gpu.Int(40), gpu.Absent(gpu.ReasonScope), gpu.Absent(gpu.ReasonScope))
		r.Devices = append(r.Devices, gpu.Device{UUID: "GPU-1", Index: 1})
		r.Health, r.Peers = healthy, []gpu.Peer{{From: "GPU-0", To: "GPU-1"}}
		change(&r)
		return r
	}
	for _, tt := range []struct {
		name   string
		never  []gpu.FieldID
		change func(*gpu.Reading)
		want   []string
	}{
		{"all told", nil, func(*gpu.Reading) {}, []string{"ok 3 of the counter file's 3 rows have a value on every GPU that answers"}},
		{"NVML has no health checks", []gpu.FieldID{gpu.FieldHealthStatus}, func(r *gpu.Reading) { r.Health = gpu.HealthReport{} }, []string{
			"ok 2 of the counter file's 3 rows have a value on every GPU that answers",
			"warn not given by nvml on GPUs 0-1: DCGM_EXP_GPU_HEALTH_STATUS",
		}},
		{"no round yet", nil, func(r *gpu.Reading) { r.Health = gpu.HealthReport{} }, []string{
			"ok 2 of the counter file's 3 rows have a value on every GPU that answers",
			"warn blank (no value came) on GPUs 0-1: DCGM_EXP_GPU_HEALTH_STATUS",
		}},
		{"one GPU has no peer", nil, func(r *gpu.Reading) { r.Peers, r.Devices = nil, r.Devices[:1] }, []string{
			"ok 3 of the counter file's 3 rows have a value on every GPU that answers",
		}},
		{"a GPU that hangs", nil, func(r *gpu.Reading) {
			r.Peers = nil
			r.Troubles = []gpu.Trouble{{GPU: "GPU-1", Reason: gpu.ReasonTimeout}, {Reason: gpu.ReasonNotSupported}}
		}, []string{
			"ok 2 of the counter file's 3 rows have a value on every GPU that answers, which not all do",
			"warn not supported on GPU 0: DCGM_EXP_P2P_STATUS",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := &doctor{pause: time.Millisecond}
			o := d.checkFields(t.Context(), fieldsExam(t, csv, &driver{readings: []gpu.Reading{reading(tt.change)}, never: tt.never}))
			if d := cmp.Diff(tt.want, written(o.findings)); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

// TestEveryTroubleIsALine: on its GPU's where that is listed, else one of its own.
func TestEveryTroubleIsALine(t *testing.T) {
	trouble := func(id gpu.UUID, reason gpu.Reason, text string) gpu.Trouble {
		return gpu.Trouble{GPU: id, Reason: reason, Text: text}
	}
	d := &doctor{proc: node(noCapabilities, nil)}
	card := []gpu.Device{{UUID: "GPU-0", Model: "H100"}, {UUID: "MIG-0", Parent: "GPU-0"}}
	for _, tt := range []struct {
		name     string
		devices  []gpu.Device
		troubles []gpu.Trouble
		want     []string
	}{
		{"two of one GPU", card, []gpu.Trouble{trouble("GPU-0", gpu.ReasonStale, "old"), trouble("MIG-0", gpu.ReasonError, "bad"), trouble("GPU-0", gpu.ReasonStale, "old")},
			[]string{"warn GPU 0 GPU-0 H100: old; bad"}},
		{"no GPU's", card, []gpu.Trouble{trouble("", gpu.ReasonNotSupported, "no ways"), trouble("GPU-9", gpu.ReasonTimeout, "hangs")},
			[]string{"ok GPU 0 GPU-0 H100", "warn no ways", "warn hangs"}},
		{"all hang", nil, []gpu.Trouble{trouble("", gpu.ReasonTimeout, "GPU 0 hangs")}, []string{"warn GPU 0 hangs", "fail no GPU can be reached"}},
		{"none there", nil, []gpu.Trouble{trouble("", gpu.ReasonNotFound, "DCGM sees no GPU")}, []string{"warn DCGM sees no GPU", "fail the source answers, and knows no GPU"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			findings := d.inventory(&gpu.Reading{Devices: tt.devices, Troubles: tt.troubles})
			var got []string
			for _, f := range findings {
				got = append(got, oneLine(string(f.Status)+" "+f.Text))
				if f.Status != statusOK && f.Remedy == "" {
					t.Errorf("%q does not say what to do", f.Text)
				}
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
	before := &gpu.Reading{Troubles: []gpu.Trouble{trouble("GPU-0", gpu.ReasonStale, "old for 10s")}}
	later := &gpu.Reading{Devices: card, Troubles: []gpu.Trouble{trouble("GPU-0", gpu.ReasonStale, "old for 11s"), trouble("GPU-0", gpu.ReasonTimeout, "hangs")}}
	if d := cmp.Diff([]string{"warn since then, GPU 0: hangs"}, written(d.newTroubles(before, later))); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestRootIsNotToldToBecomeRoot(t *testing.T) {
	as := func(uid string) fstest.MapFS {
		proc := node(noCapabilities, nil)
		proc["self/status"].Data = append(proc["self/status"].Data, "Uid:\t1000\t"+uid+"\t0\t0\n"...)
		return proc
	}
	e := exam{counters: fieldsExam(t, "DCGM_FI_PROF_GR_ENGINE_ACTIVE, gauge\n", &driver{readings: []gpu.Reading{{}}}).counters}
	for _, tt := range []struct {
		proc   fstest.MapFS
		advice bool
	}{{as("0"), false}, {as("1000"), true}, {node(noCapabilities, nil), true}} {
		d := &doctor{cfg: app.Defaults(), proc: tt.proc}
		refused := d.explain(cause{reason: gpu.ReasonNotPermitted}, "nvml")
		profiling := d.checkPermissions(t.Context(), e).findings[0]
		for _, f := range []finding{refused, profiling} {
			if strings.Contains(f.Remedy, "run as root") != tt.advice {
				t.Errorf("advises %q", f.Remedy)
			}
		}
	}
}

func TestOnlyModulesThatDoNotWorkAreListed(t *testing.T) {
	bad, known := badModules("core loaded, nvswitch not loaded, sysmon failed, profiling denylisted")
	if d := cmp.Diff([]string{"info DCGM's module sysmon has failed", "info DCGM's module profiling is denylisted"}, written(bad)); d != "" || !known {
		t.Errorf("known %v (-want +got):\n%s", known, d)
	}
	if bad, known := badModules("dcgmModuleGetStatuses: not supported"); known {
		t.Errorf("a complaint is taken for a list: %v", bad)
	}
}
