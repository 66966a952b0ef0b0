// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/meter"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

var update = flag.Bool("update", false, "write the golden files anew")

// noon is when everything in these tests happens.
var noon = time.Date(2025, time.March, 4, 12, 0, 0, 0, time.UTC)

// latest is a Snapshots that shows one.
type latest struct{ *meter.Snapshot }

func (l latest) Latest() *meter.Snapshot { return l.Snapshot }

// rowsOf reads a counter file that must be without error.
func rowsOf(t testing.TB, text string) *Counters {
	t.Helper()
	c, problems := ParseCounters("counters.csv", []byte(text))
	for _, p := range problems {
		if p.Severity == SeverityError {
			t.Fatalf("counter file: %v", p)
		}
	}
	return c
}

// exporterOf shows s as if it had been started at noon.
func exporterOf(t testing.TB, s *meter.Snapshot, c *Counters, cfg Config) *Exporter {
	t.Helper()
	e, err := New(latest{s}, c, cfg)
	if err != nil {
		t.Fatal(err)
	}
	e.Reload(c, nil, noon)
	return e
}

// pageOf is the text page of s.
func pageOf(t testing.TB, s *meter.Snapshot, c *Counters, cfg Config) string {
	t.Helper()
	return writtenPage(t, exporterOf(t, s, c, cfg), FormatText)
}

func writtenPage(t testing.TB, e *Exporter, f Format) string {
	t.Helper()
	var b bytes.Buffer
	if err := e.WritePage(&b, f); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// seriesOf are a page's samples of one name, in order.
func seriesOf(page, name string) []string {
	var found []string
	for line := range strings.Lines(page) {
		if rest, ok := strings.CutPrefix(line, name); ok && (rest[0] == '{' || rest[0] == ' ') {
			found = append(found, strings.TrimSuffix(line, "\n"))
		}
	}
	return found
}

func wantSeries(t *testing.T, page, name string, want ...string) {
	t.Helper()
	for i := range want {
		want[i] = name + want[i]
	}
	if diff := cmp.Diff(want, seriesOf(page, name)); diff != "" {
		t.Errorf("series of %s (-want +got):\n%s", name, diff)
	}
}

// golden compares got with a file, or writes it.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; write it with: go test ./pkg/exporter -update", err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(string(got), "\n")); diff != "" {
		t.Errorf("%s is not what the exporter makes now (-want +got), see -update:\n%s", path, diff)
	}
}

// card is a physical H100 whose UUID is "GPU-" and its index.
func card(index int) gpu.Device {
	return gpu.Device{
		UUID:  gpu.UUID(fmt.Sprintf("GPU-%d", index)),
		Index: index, Minor: index,
		PCIBusID:    fmt.Sprintf("00000000:%d8:00.0", index+1),
		Model:       "NVIDIA H100 80GB HBM3",
		GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance,
		Capacity: gpu.Slices{Compute: 7, Memory: 8, SMs: 132},
	}
}

// slice is a MIG device of d that spans GPU instance id.
func slice(d gpu.Device, id int, profile string, compute int) gpu.Device {
	d.Parent, d.UUID = d.UUID, gpu.UUID(fmt.Sprintf("MIG-%d-%d", d.Index, id))
	d.Capacity, d.MIGEnabled = gpu.Slices{}, false
	d.GPUInstance, d.ComputeInstance = id, 0
	d.Profile = gpu.Profile{Name: profile, Slices: gpu.Slices{Compute: compute}, ComputeInstanceSlices: compute}
	return d
}

func holder(namespace, pod string) sharing.Holder {
	return sharing.Holder{Namespace: namespace, Pod: pod, Container: "main", PodUID: "uid-" + pod}
}

// whole is a share of all of d.
func whole(d gpu.Device, h sharing.Holder, weight sharing.Fraction) sharing.Share {
	s := sharing.Share{
		Card: d.Card(), Device: d.UUID, Holder: h, Resource: "nvidia.com/gpu",
		Mode: sharing.ModeExclusive, Seats: 1, Of: 1, Weight: weight, Part: weight,
	}
	if d.IsMIG() {
		s.Mode, s.Resource = sharing.ModeMIG, "nvidia.com/mig-"+d.Profile.Name
	}
	return s
}

// seats is a share of some replicas of d.
func seats(d gpu.Device, h sharing.Holder, weight sharing.Fraction, of int, ids ...int) sharing.Share {
	s := whole(d, h, weight)
	s.Seats, s.Of, s.SeatIDs = len(ids), of, ids
	s.Part = weight.Scale(len(ids), of)
	s.Mode = sharing.ModeShared
	if d.IsMIG() {
		s.Mode = sharing.ModeMIGShared
	}
	return s
}

// sampled is a sample of an entity at noon.
func sampled(e gpu.Entity, values ...gpu.Value) gpu.Sample {
	return gpu.Sample{Entity: e, Time: noon.Add(-250 * time.Millisecond), Values: values}
}

// ticked is a snapshot of a reading and a division, as of tick 7 at noon.
func ticked(r gpu.Reading, d sharing.Division) *meter.Snapshot {
	r.Source, r.Time = "sim", noon
	return &meter.Snapshot{
		Seq: 7, Time: noon, Interval: 15 * time.Second, Took: 12500 * time.Microsecond,
		Reading: r, Division: d, Observed: true,
		Listing: sharing.Listing{Time: noon, Pods: 12, Containers: 15, Skipped: map[string]int{"no_pod_name": 1}},
		Sources: []meter.SourceState{
			{Name: meter.SourceTelemetry, LastSuccess: noon.Add(-time.Second), Age: time.Second, Took: 8 * time.Millisecond, Up: true},
			{Name: meter.SourceAllocations, LastSuccess: noon.Add(-40 * time.Second), Age: 40 * time.Second, Took: 3 * time.Millisecond, Outstanding: 11 * time.Second},
		},
		Totals: meter.Totals{Ticks: 7, LateTicks: 1},
	}
}

// The fields of the counter file that most tests use.
const (
	fieldDriver = 1
	fieldSerial = 53
	fieldTemp   = 150
	fieldPower  = 155
	fieldEnergy = 156
	fieldUtil   = 203
	fieldFBUsed = 252
	fieldGraphs = 1001
)

const mixedCounters = `# What the mixed node is asked.
DCGM_FI_DEV_GPU_TEMP, gauge, "GPU temperature in C, ""hostile"" \ help"
DCGM_FI_DEV_POWER_USAGE, gauge, Power draw (in W).
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION, counter, Energy since the driver was loaded (in mJ).
DCGM_FI_DEV_GPU_UTIL, gauge, GPU utilisation (in %).
DCGM_FI_DEV_FB_USED, gauge, Framebuffer memory used (in MiB).
DCGM_FI_PROF_GR_ENGINE_ACTIVE, gauge,
DCGM_FI_DRIVER_VERSION, label, Driver version
DCGM_FI_DEV_SERIAL, label, Serial number
`

// hostile is text that a page must survive.
const hostile = "x\"} 1\n# EOF\nspoof{a=\"\\\x00\xffü"

// mixedNode is a node with one of each: an exclusive GPU, a shared one, one in MIG
// mode with three slices, and one that is lost.
func mixedNode() *meter.Snapshot {
	one, half := sharing.One(), sharing.NewFraction(1, 2)
	exclusive, shared, divided, lost := card(0), card(1), card(2), card(3)
	shared.Model = "NVIDIA " + hostile
	divided.MIGEnabled = true
	lost.Lost = true
	large, small, free := slice(divided, 1, "3g.40gb", 3), slice(divided, 7, "1g.10gb", 1), slice(divided, 8, "1g.10gb", 1)
	absent := gpu.Absent
	scope := absent(gpu.ReasonScope)
	onSlice := func(id int, used int64, active float64) gpu.Sample {
		return sampled(gpu.Entity{Kind: gpu.KindGPUInstance, GPU: divided.UUID, ID: id},
			gpu.Text("550.90.07"), scope, scope, scope, scope, absent(gpu.ReasonNotSupported), gpu.Int(used), gpu.Float(active))
	}
	onCard := func(d gpu.Device, values ...gpu.Value) gpu.Sample {
		return sampled(gpu.Entity{Kind: gpu.KindGPU, GPU: d.UUID}, values...)
	}
	gone := make([]gpu.Value, 8)
	for i := range gone {
		gone[i] = absent(gpu.ReasonLost)
	}
	s := ticked(gpu.Reading{
		Fields:  []gpu.FieldID{fieldDriver, fieldSerial, fieldTemp, fieldPower, fieldEnergy, fieldUtil, fieldFBUsed, fieldGraphs},
		Devices: []gpu.Device{exclusive, shared, divided, large, small, free, lost},
		Samples: []gpu.Sample{
			onCard(exclusive, gpu.Text("550.90.07"), gpu.Text("1650523000001"), gpu.Int(41), gpu.Float(312.875),
				gpu.Int(9007199254740993), gpu.Int(97), gpu.Int(70123), gpu.Float(0.9675)),
			onCard(shared, gpu.Text("550.90.07"), gpu.Text(hostile), gpu.Int(0), gpu.Float(1e-7),
				gpu.Int(12), gpu.Int(55), gpu.Int(40000), absent(gpu.ReasonNotPermitted)),
			onCard(divided, gpu.Text("550.90.07"), absent(gpu.ReasonNotSupported), gpu.Int(38), absent(gpu.ReasonStale),
				gpu.Int(77), gpu.Int(1), gpu.Int(2), gpu.Float(3)),
			onSlice(1, 30000, 0.5),
			onSlice(7, 9000, 0.25),
			onSlice(8, 0, 0),
			onCard(lost, gone...),
		},
		Processes: []gpu.Process{
			{PID: 10, GPU: exclusive.UUID, GPUInstance: gpu.NoInstance},
			{PID: 11, GPU: exclusive.UUID, GPUInstance: gpu.NoInstance},
			{PID: 12, GPU: divided.UUID, GPUInstance: 1},
		},
	}, sharing.Division{
		Shares: []sharing.Share{
			whole(exclusive, holder("team-a", "train-0"), one),
			seats(shared, holder("team-a", "notebook"), one, 4, 0),
			seats(shared, holder("team-b", hostile), one, 4, 1, 3),
			whole(large, holder("team-b", "serve"), sharing.NewFraction(13, 28)),
			seats(small, holder("team-c", "batch"), sharing.NewFraction(15, 112), 2, 1),
		},
		Unallocated: []sharing.Unallocated{
			{Card: shared.UUID, Cause: sharing.CauseUnrequested, Part: sharing.NewFraction(1, 4)},
			{Card: divided.UUID, Device: small.UUID, Cause: sharing.CauseUnrequested, Part: sharing.NewFraction(15, 112).Mul(half)},
			{Card: divided.UUID, Device: free.UUID, Cause: sharing.CauseFree, Part: sharing.NewFraction(15, 112)},
			{Card: divided.UUID, Cause: sharing.CauseFree, Part: sharing.NewFraction(15, 112)},
			{Card: divided.UUID, Cause: sharing.CauseStranded, Part: sharing.NewFraction(15, 112)},
			{Card: lost.UUID, Device: lost.UUID, Cause: sharing.CauseUnhealthy, Holder: holder("team-c", "sweep"), Part: half},
			{Card: lost.UUID, Cause: sharing.CauseUnhealthy, Part: half},
		},
		Conflicts: []sharing.Conflict{{Card: exclusive.UUID, Device: exclusive.UUID, Kind: "exclusive"}},
		Unmatched: []sharing.Unmatched{
			{Allocation: sharing.Allocation{Resource: "nvidia.com/gpu", DeviceID: "???"}, Reason: "malformed_id"},
			{Allocation: sharing.Allocation{Resource: "nvidia.com/gpu", DeviceID: "!!!"}, Reason: "malformed_id"},
		},
	})
	s.Faults = []meter.Fault{
		{Source: meter.SourceTelemetry, Subject: lost.UUID, Kind: "lost", Text: "gone"},
		{Source: meter.SourceAllocations, Kind: "timeout", Text: "no answer"},
		{Source: meter.SourceAllocations, Kind: "timeout", Text: "no answer, again"},
	}
	s.Totals.Faults = map[meter.FaultKey]uint64{
		{Source: meter.SourceTelemetry, Kind: "lost"}:      3,
		{Source: meter.SourceAllocations, Kind: "timeout"}: 2,
	}
	s.Totals.Conflicts = map[string]uint64{"exclusive": 1}
	s.Totals.NotCharged = map[string]uint64{"malformed_id": 2, "unknown_device": 1}
	return s
}

func mixedConfig() Config {
	return Config{Hostname: "node-7", Build: BuildInfo{Version: "1.2.3", Revision: "abcdef0", GoVersion: "go1.26"}}
}

// eventfulNode is the mixed node with errors, throttled clocks, a round of health checks and
// ways between its GPUs, as computedCounters asks for them.
func eventfulNode() *meter.Snapshot {
	s := mixedNode()
	none := gpu.NoInstance
	s.Reading.Origin = gpu.Origin{Library: "libdcgm 4.6.0", Engine: "embedded", Driver: "550.90.07"}
	s.Reading.Fields = append(s.Reading.Fields, gpu.FieldClockReasons, gpu.FieldXID)
	for id := gpu.FieldXIDErrorsCount; id.Computed(); id++ {
		s.Reading.Fields = append(s.Reading.Fields, id)
	}
	for i := range s.Reading.Samples {
		sample := &s.Reading.Samples[i]
		clocks, last := gpu.Int(4), gpu.Int(31)
		switch {
		case sample.Entity.Kind != gpu.KindGPU:
			clocks, last = gpu.Absent(gpu.ReasonScope), gpu.Absent(gpu.ReasonScope)
		case sample.Entity.GPU == "GPU-3":
			clocks, last = gpu.Absent(gpu.ReasonLost), gpu.Absent(gpu.ReasonLost)
		}
		sample.Values = append(sample.Values, clocks, last)
		for len(sample.Values) < len(s.Reading.Fields) {
			sample.Values = append(sample.Values, gpu.Absent(gpu.ReasonScope))
		}
	}
	s.Recent = []gpu.Event{xid("GPU-0", none, 31), xid("GPU-0", none, 31), xid("GPU-2", 7, 43), xid("GPU-3", none, 79)}
	s.Totals.XIDs = map[meter.XIDKey]uint64{
		{GPU: "GPU-0", GPUInstance: none, ComputeInstance: none, XID: 31}: 12,
		{GPU: "GPU-2", GPUInstance: 7, ComputeInstance: 0, XID: 43}:       1,
		{GPU: "GPU-3", GPUInstance: none, ComputeInstance: none, XID: 79}: 1,
		{GPU: "GPU-4", GPUInstance: none, ComputeInstance: none, XID: 48}: 2,
	}
	s.RecentClocks = map[gpu.UUID]meter.ClockWindow{
		"GPU-0": {Samples: 20, Reasons: meter.ClockReasons{0, 0, 20}}, "GPU-1": {Samples: 20}, "GPU-2": {Samples: 3, Reasons: meter.ClockReasons{1, 0, 0, 2, 0, 0, 2}},
	}
	s.Totals.Clocks = map[gpu.UUID]meter.ClockReasons{"GPU-0": {0, 0, 345}, "GPU-1": {}, "GPU-2": {77, 0, 0, 5, 0, 0, 5}}
	s.Reading.Health = gpu.HealthReport{
		Time: noon.Add(-12 * time.Second), Checked: []gpu.UUID{"GPU-0", "GPU-1", "GPU-2"},
		Incidents: []gpu.HealthIncident{{GPU: "GPU-0", GPUInstance: none, System: gpu.HealthMemory, Result: gpu.HealthWarn, Code: 85, Text: "rows are pending"}},
	}
	for _, from := range []gpu.UUID{"GPU-0", "GPU-1", "GPU-2"} {
		for _, to := range []gpu.UUID{"GPU-0", "GPU-1", "GPU-2"} {
			if from != to {
				s.Reading.Peers = append(s.Reading.Peers, gpu.Peer{From: from, To: to})
			}
		}
	}
	return s
}

func eventfulConfig(t testing.TB) Config {
	t.Helper()
	cfg := mixedConfig()
	cfg.XIDs, cfg.SourceReason = knownXIDs(t), "libdcgm.so.4 is there"
	return cfg
}
