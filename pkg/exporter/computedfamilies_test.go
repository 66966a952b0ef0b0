// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/meter"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

const computedCounters = `DCGM_EXP_XID_ERRORS_COUNT, gauge, XIDs in the window.
DCGM_EXP_XID_ERRORS_TOTAL, counter, XIDs since the start.
DCGM_EXP_CLOCK_EVENTS_COUNT, gauge, Samples in the window with a clock event.
DCGM_EXP_CLOCK_EVENTS_TOTAL, counter, Clock events since the start.
DCGM_EXP_GPU_HEALTH_STATUS, gauge, Health checks.
DCGM_EXP_P2P_STATUS, gauge, NVLink between GPUs.
`

// knownXIDs is a table with two codes to alert on.
func knownXIDs(t testing.TB) *health.XIDTable {
	t.Helper()
	table, err := health.NewXIDTable([]health.XID{
		{Code: 79, Name: "GPU has fallen off the bus", Class: health.ClassNode, Alert: true},
		{Code: 48, Name: "double-bit memory error", Class: health.ClassReset, Alert: true},
		{Code: 31, Name: "memory page fault", Class: health.ClassApp},
	})
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func xid(card gpu.UUID, instance, code int) gpu.Event {
	e := gpu.Event{Kind: gpu.EventXID, Time: noon, GPU: card, GPUInstance: instance, ComputeInstance: gpu.NoInstance, Code: code}
	if instance != gpu.NoInstance {
		e.ComputeInstance = 0
	}
	return e
}

// dividedNode has GPU 0, held by one pod, and GPU 1 with GPU instances 1 and 2.
func dividedNode() *meter.Snapshot {
	d, divided := bare(card(0)), bare(card(1))
	s1, s2 := slice(divided, 1, "3g.40gb", 3), slice(divided, 2, "3g.40gb", 3)
	absent := gpu.Absent(gpu.ReasonScope)
	return ticked(gpu.Reading{
		Fields: []gpu.FieldID{gpu.FieldXIDErrorsCount}, Devices: []gpu.Device{d, divided, s1, s2},
		Samples: []gpu.Sample{onGPU(d, absent), onGPU(divided, absent), onInstance(s1, absent), onInstance(s2, absent)},
	}, sharing.Division{Shares: []sharing.Share{whole(d, holder("ns", "p"), sharing.One())}})
}

const (
	onGPU0 = `{gpu="0",UUID="GPU-0",device="nvidia0",container="main",namespace="ns",pod="p"`
	onGPU1 = `{gpu="1",UUID="GPU-1",device="nvidia1"`
	onGI1  = onGPU1 + `,GPU_I_PROFILE="3g.40gb",GPU_I_ID="1"`
	onGI2  = onGPU1 + `,GPU_I_PROFILE="3g.40gb",GPU_I_ID="2"`
)

// TestAnXIDStandsWhereItHappened: on its GPU instance where it concerns one, each once.
func TestAnXIDStandsWhereItHappened(t *testing.T) {
	s := dividedNode()
	none := gpu.NoInstance
	s.Recent = []gpu.Event{
		xid("GPU-0", none, 31), xid("GPU-0", none, 31), xid("GPU-0", none, 8), xid("GPU-1", 1, 43),
		{Kind: gpu.EventECCDoubleBit, GPU: "GPU-1", GPUInstance: none, ComputeInstance: none},
	}
	s.Totals.XIDs = map[meter.XIDKey]uint64{
		{GPU: "GPU-0", GPUInstance: none, ComputeInstance: none, XID: 31}: 5,
		{GPU: "GPU-0", GPUInstance: none, ComputeInstance: none, XID: 79}: 1,
		{GPU: "GPU-1", GPUInstance: 1, ComputeInstance: 0, XID: 43}:       2,
		{GPU: "GPU-1", GPUInstance: 1, ComputeInstance: 1, XID: 43}:       3,
		{GPU: "GPU-9", GPUInstance: none, ComputeInstance: none, XID: 79}: 1,
	}
	page := pageOf(t, s, rowsOf(t, computedCounters), Config{XIDWindow: 90 * time.Second, XIDs: knownXIDs(t)})
	const window = `,window_size_in_ms="90000"`
	wantSeries(t, page, "DCGM_EXP_XID_ERRORS_COUNT",
		onGPU0+window+`,xid="8"} 1`, onGPU0+window+`,xid="31"} 2`,
		onGPU1+window+`} 0`, onGI1+window+`,xid="43"} 1`, onGI2+window+`} 0`)
	wantSeries(t, page, "DCGM_EXP_XID_ERRORS_TOTAL",
		onGPU0+`,xid="31"} 5`, onGPU0+`,xid="48"} 0`, onGPU0+`,xid="79"} 1`,
		onGPU1+`,xid="48"} 0`, onGPU1+`,xid="79"} 0`, onGI1+`,xid="43"} 5`)
}

func TestXIDsOfAnInstanceThatIsGoneAreStillCounted(t *testing.T) {
	s := dividedNode()
	s.Recent = []gpu.Event{xid("GPU-1", 5, 43), xid("GPU-7", 1, 43), xid("GPU-7", gpu.NoInstance, 79)}
	page := pageOf(t, s, rowsOf(t, computedCounters), Config{})
	wantSeries(t, page, "DCGM_EXP_XID_ERRORS_COUNT",
		onGPU0+`,window_size_in_ms="300000"} 0`, onGPU1+`,window_size_in_ms="300000"} 0`, onGI1+`,window_size_in_ms="300000"} 0`,
		onGI2+`,window_size_in_ms="300000"} 0`, onGPU1+`,GPU_I_ID="5",window_size_in_ms="300000",xid="43"} 1`)

	// Where the card is not among the sampled, its instances are not either.
	s.Reading.Samples = s.Reading.Samples[:1]
	page = pageOf(t, s, rowsOf(t, computedCounters), Config{})
	wantSeries(t, page, "DCGM_EXP_XID_ERRORS_COUNT", onGPU0+`,window_size_in_ms="300000"} 0`)
	wantSeries(t, page, "gpumeter_dropped_series", `{reason="duplicate"} 0`, `{reason="invalid_labels"} 0`, `{reason="invalid_name"} 0`, `{reason="unknown_device"} 0`)
}

func TestLabelsOfComputedSeriesCannotBeTaken(t *testing.T) {
	s := dividedNode()
	s.Reading.Fields[0] = fieldTemp
	s.Reading.Samples[0].Values = []gpu.Value{gpu.Int(40)}
	s.Recent = []gpu.Event{xid("GPU-0", gpu.NoInstance, 31)}
	field, _ := gpu.FieldByID(fieldTemp)
	rows := rowsOf(t, "DCGM_EXP_XID_ERRORS_COUNT,gauge\n").Rows()
	for _, name := range []string{"xid", "window_size_in_ms", "clock_event", "err_code", "err_msg", "health_watch", "health_error_code", "peer_gpu", "link_status"} {
		rows = append(rows, Counter{Name: name, Field: field, Type: TypeLabel})
	}
	page := pageOf(t, s, &Counters{rows: rows}, Config{})
	if got := seriesOf(page, "DCGM_EXP_XID_ERRORS_COUNT")[0]; got != "DCGM_EXP_XID_ERRORS_COUNT"+onGPU0+`,window_size_in_ms="300000",xid="31"} 1` {
		t.Error(got)
	}
}

// TestEveryXIDIsCountedOnce is a law of the page: whatever happened where, the counts of a
// sampled card and its instances add up to the events.
func TestEveryXIDIsCountedOnce(t *testing.T) {
	table := knownXIDs(t)
	rapid.Check(t, func(r *rapid.T) {
		s := dividedNode()
		events := rapid.SliceOfN(rapid.Custom(func(r *rapid.T) gpu.Event {
			return xid(rapid.SampledFrom([]gpu.UUID{"GPU-0", "GPU-1"}).Draw(r, "gpu"),
				rapid.SampledFrom([]int{gpu.NoInstance, 1, 2, 7}).Draw(r, "instance"),
				rapid.SampledFrom([]int{1, 31, 48, 79, 999}).Draw(r, "code"))
		}), 0, 30).Draw(r, "events")
		s.Recent, s.Totals.XIDs = events, make(map[meter.XIDKey]uint64)
		for _, e := range events {
			s.Totals.XIDs[meter.XIDKey{GPU: e.GPU, GPUInstance: e.GPUInstance, ComputeInstance: e.ComputeInstance, XID: e.Code}]++
		}
		page := pageOf(t, s, rowsOf(t, computedCounters), Config{XIDs: table})
		for _, name := range []string{"DCGM_EXP_XID_ERRORS_COUNT", "DCGM_EXP_XID_ERRORS_TOTAL", "gpumeter_xid_errors_total"} {
			sum := 0
			for _, series := range seriesOf(page, name) {
				n, err := strconv.Atoi(series[strings.LastIndexByte(series, ' ')+1:])
				if err != nil {
					r.Fatal(err)
				}
				sum += n
			}
			if sum != len(events) {
				r.Fatalf("%s adds up to %d for %d events: %v", name, sum, len(events), seriesOf(page, name))
			}
		}
		for _, dropped := range seriesOf(page, "gpumeter_dropped_series") {
			if !strings.HasSuffix(dropped, " 0") {
				r.Fatal(dropped)
			}
		}
	})
}

func TestClockEventsAreNamedByTheirBits(t *testing.T) {
	s := dividedNode()
	s.Reading.Fields = []gpu.FieldID{gpu.FieldClockReasons}
	for i := range s.Reading.Samples {
		s.Reading.Samples[i].Values = []gpu.Value{gpu.Absent(gpu.ReasonScope)}
	}
	s.Reading.Samples[0].Values = []gpu.Value{gpu.Int(0)}
	s.Reading.Samples[1].Values = []gpu.Value{gpu.Absent(gpu.ReasonNotSupported)}
	rows := rowsOf(t, "DCGM_EXP_CLOCK_EVENTS_COUNT, gauge\nDCGM_EXP_CLOCK_EVENTS_TOTAL, counter\n")
	const window = `,window_size_in_ms="300000"`
	page := func() string { return pageOf(t, s, rows, Config{}) }
	absences := []string{
		`{field="DCGM_EXP_CLOCK_EVENTS_COUNT",reason="not_supported"} 1`, `{field="DCGM_EXP_CLOCK_EVENTS_TOTAL",reason="not_supported"} 1`,
	}

	// A card that is not held back has a series of zero, one that cannot say has none.
	s.RecentClocks = map[gpu.UUID]meter.ClockWindow{"GPU-0": {Samples: 20}}
	s.Totals.Clocks = map[gpu.UUID]meter.ClockReasons{"GPU-0": {}}
	wantSeries(t, page(), "DCGM_EXP_CLOCK_EVENTS_COUNT", onGPU0+window+`} 0`)
	wantSeries(t, page(), "gpumeter_absent_values", absences...)

	s.RecentClocks["GPU-0"] = meter.ClockWindow{Samples: 20, Reasons: meter.ClockReasons{1, 2, 3, 4, 5, 6, 7, 0, 9}}
	s.Totals.Clocks["GPU-0"] = meter.ClockReasons{11, 12, 13, 14, 15, 16, 17, 0, 19}
	var counts, totals []string
	for i, name := range strings.Fields("gpu_idle clocks_setting power_cap hw_slowdown sync_boost sw_thermal hw_thermal hw_power_brake display_clocks") {
		n := i + 1
		if name == "hw_power_brake" {
			totals = append(totals, onGPU0+`,clock_event="hw_power_brake"} 0`)
			continue
		}
		counts = append(counts, fmt.Sprintf(`%s%s,clock_event="%s"} %d`, onGPU0, window, name, n))
		totals = append(totals, fmt.Sprintf(`%s,clock_event="%s"} %d`, onGPU0, name, 10+n))
	}
	wantSeries(t, page(), "DCGM_EXP_CLOCK_EVENTS_COUNT", counts...)
	wantSeries(t, page(), "DCGM_EXP_CLOCK_EVENTS_TOTAL", totals...)
}

func TestTheWorstIncidentOfASystemIsItsHealth(t *testing.T) {
	s := dividedNode()
	none := gpu.NoInstance
	page := func() string { return pageOf(t, s, rowsOf(t, computedCounters), Config{}) }
	s.Reading.Health.Checked = []gpu.UUID{"GPU-1"}
	wantSeries(t, page(), "DCGM_EXP_GPU_HEALTH_STATUS")

	s.Reading.Health = gpu.HealthReport{
		Time: noon, Checked: []gpu.UUID{"GPU-1"},
		Incidents: []gpu.HealthIncident{
			{GPU: "GPU-0", GPUInstance: none, System: gpu.HealthPCIe, Result: gpu.HealthFail, Code: 3},
			{GPU: "GPU-1", GPUInstance: none, System: gpu.HealthMemory, Result: gpu.HealthWarn, Code: 85},
			{GPU: "GPU-1", GPUInstance: 2, System: gpu.HealthMemory, Result: gpu.HealthFail, Code: 4},
			{GPU: "GPU-1", GPUInstance: none, System: gpu.HealthMemory, Result: gpu.HealthFail, Code: 81},
			{GPU: "GPU-1", GPUInstance: none, System: gpu.HealthThermal, Result: gpu.HealthWarn, Code: 10},
			{GPU: "GPU-1", GPUInstance: none, System: "NVSWITCH_FATAL", Result: gpu.HealthWarn, Code: 999},
		},
	}
	at := func(system, code string, result int) string {
		return fmt.Sprintf(`%s,health_watch="%s",health_error_code="%s"} %d`, onGPU1, system, code, result)
	}
	const ok = "DCGM_FR_OK"
	want := func() []string {
		return []string{
			at("PCIE", ok, 0), at("NVLINK", ok, 0), at("PMU", ok, 0), at("MCU", ok, 0), at("MEM", "DCGM_FR_VOLATILE_DBE_DETECTED", 20),
			at("SM", ok, 0), at("INFOROM", ok, 0), at("THERMAL", "DCGM_FR_CLOCK_THROTTLE_THERMAL", 10), at("POWER", ok, 0),
			at("DRIVER", ok, 0), at("ALL", "DCGM_FR_UNKNOWN(999)", 10),
		}
	}
	wantSeries(t, page(), "DCGM_EXP_GPU_HEALTH_STATUS", want()...)

	// Checks look at GPUs that are not sampled, too.
	s.Reading.Samples = s.Reading.Samples[:1]
	wantSeries(t, page(), "DCGM_EXP_GPU_HEALTH_STATUS", want()...)
}

func TestIncidentCodesAreDCGMsNumbers(t *testing.T) {
	for code, want := range map[int]string{
		0: "DCGM_FR_OK", 4: "DCGM_FR_VOLATILE_DBE_DETECTED", 43: "DCGM_FR_THROTTLING_VIOLATION", 44: "DCGM_FR_INTERNAL", 62: "DCGM_FR_MEMORY_BANDWIDTH",
		81: "DCGM_FR_UNCONTAINED_ERROR", 101: "DCGM_FR_XID_ERROR", 120: "DCGM_FR_FALLEN_OFF_BUS", 131: "DCGM_FR_CONTAINED_ERROR",
		133: "DCGM_FR_ERROR_SENTINEL", 134: "DCGM_FR_UNKNOWN(134)", -1: "DCGM_FR_UNKNOWN(-1)",
	} {
		if got := incidentCode(code); got != want {
			t.Errorf("code %d is %s, want %s", code, got, want)
		}
	}
}

func TestEachWayBetweenGPUsHasASeries(t *testing.T) {
	s := dividedNode()
	s.Reading.Peers = []gpu.Peer{
		{From: "GPU-0", To: "GPU-1", Status: gpu.PeerOK}, {From: "GPU-1", To: "GPU-0", Status: gpu.PeerTopologyNotSupported},
	}
	page := func() string { return pageOf(t, s, rowsOf(t, computedCounters), Config{}) }
	wantSeries(t, page(), "DCGM_EXP_P2P_STATUS",
		onGPU0+`,peer_gpu="1",link_status="OK"} 0`, onGPU1+`,peer_gpu="0",link_status="TopologyNotSupported"} 3`)

	// A GPU that the inventory does not have has no index to show; a status that DCGM adds is not known.
	s.Reading.Peers = []gpu.Peer{{From: "GPU-0", To: "GPU-8"}, {From: "GPU-8", To: "GPU-0"}, {From: "GPU-0", To: "GPU-1", Status: 7}}
	wantSeries(t, page(), "DCGM_EXP_P2P_STATUS", onGPU0+`,peer_gpu="1",link_status="Unknown"} 7`)
	wantSeries(t, page(), "gpumeter_dropped_series", `{reason="duplicate"} 0`, `{reason="invalid_labels"} 0`, `{reason="invalid_name"} 0`, `{reason="unknown_device"} 2`)
}

// TestHealthAndPeersThatAreNotToldAreCounted: a row of the counter file that gives nothing says why.
func TestHealthAndPeersThatAreNotToldAreCounted(t *testing.T) {
	s := dividedNode()
	rows := rowsOf(t, "DCGM_EXP_GPU_HEALTH_STATUS, gauge\nDCGM_EXP_P2P_STATUS, gauge\n")
	absent := func(want ...string) {
		t.Helper()
		page := pageOf(t, s, rows, Config{})
		for i := range want {
			want[i] = "{field=" + want[i]
		}
		wantSeries(t, page, "gpumeter_absent_values", want...)
	}
	absent(`"DCGM_EXP_GPU_HEALTH_STATUS",reason="blank"} 2`, `"DCGM_EXP_P2P_STATUS",reason="blank"} 2`)

	s.Reading.Troubles = []gpu.Trouble{{Reason: gpu.ReasonNotSupported, Text: "the ways between GPUs need DCGM 4.3"}}
	s.Reading.Health = gpu.HealthReport{Time: noon, Checked: []gpu.UUID{"GPU-0", "GPU-1"}}
	absent(`"DCGM_EXP_P2P_STATUS",reason="not_supported"} 2`)

	s.Reading.Peers = []gpu.Peer{{From: "GPU-0", To: "GPU-1"}, {From: "GPU-1", To: "GPU-0"}}
	s.Reading.Health.Checked = s.Reading.Health.Checked[:1]
	s.Reading.Troubles = []gpu.Trouble{{GPU: "GPU-1", Reason: gpu.ReasonTimeout}}
	absent(`"DCGM_EXP_GPU_HEALTH_STATUS",reason="timeout"} 1`)

	s.Reading.Peers, s.Reading.Troubles, s.Reading.Devices[1].Lost = nil, nil, true
	absent(`"DCGM_EXP_GPU_HEALTH_STATUS",reason="lost"} 1`, `"DCGM_EXP_P2P_STATUS",reason="blank"} 1`, `"DCGM_EXP_P2P_STATUS",reason="lost"} 1`)

	// A single GPU has no peer to reach.
	s.Reading.Devices, s.Reading.Samples = s.Reading.Devices[:1], s.Reading.Samples[:1]
	absent()
}

func TestComputedSeriesHaveTheLabelsOfTheirEntity(t *testing.T) {
	d := card(0)
	s := ticked(gpu.Reading{
		Fields: []gpu.FieldID{fieldDriver}, Devices: []gpu.Device{d}, Samples: []gpu.Sample{onGPU(d, gpu.Text("550"))},
	}, sharing.Division{Shares: []sharing.Share{seats(d, holder("ns", "p"), sharing.One(), 4, 1, 2)}})
	s.Reading.Health = gpu.HealthReport{Time: noon, Checked: []gpu.UUID{d.UUID}}
	page := pageOf(t, s, rowsOf(t, "DCGM_EXP_XID_ERRORS_COUNT,gauge\nDCGM_EXP_GPU_HEALTH_STATUS,gauge\nDCGM_FI_DRIVER_VERSION,label\n"),
		Config{Hostname: "n", VirtualGPUs: true, OldNamespace: true})
	const common = `{gpu="0",uuid="GPU-0",pci_bus_id="00000000:18:00.0",device="nvidia0",modelName="NVIDIA H100 80GB HBM3",hostname="n",` +
		`DCGM_FI_DRIVER_VERSION="550",container_name="main",pod_namespace="ns",pod_name="p",vgpu=`
	wantSeries(t, page, "DCGM_EXP_XID_ERRORS_COUNT", common+`"1",window_size_in_ms="300000"} 0`, common+`"2",window_size_in_ms="300000"} 0`)
	if n := len(seriesOf(page, "DCGM_EXP_GPU_HEALTH_STATUS")); n != 22 {
		t.Errorf("%d series of health for two copies of 11 systems", n)
	}
}

// TestOldValuesHaveNoCounts: a source that is silent for too long says nothing about the
// last minutes, and nothing happened is not what it says.
func TestOldValuesHaveNoCounts(t *testing.T) {
	s := dividedNode()
	s.Reading.Samples, s.RecentClocks = nil, nil
	page := pageOf(t, s, rowsOf(t, computedCounters), Config{XIDs: knownXIDs(t)})
	for line := range strings.Lines(computedCounters) {
		name, _, _ := strings.Cut(line, ",")
		wantSeries(t, page, name)
	}
	if n := len(seriesOf(page, "gpumeter_xid_errors_total")); n != 4 {
		t.Errorf("%d series of gpumeter_xid_errors_total, want two codes on two cards: totals go on", n)
	}
}

func TestTheLastXIDIsExplained(t *testing.T) {
	d, e, f := bare(card(0)), bare(card(1)), bare(card(2))
	s := ticked(gpu.Reading{
		Fields: []gpu.FieldID{gpu.FieldXID}, Devices: []gpu.Device{d, e, f},
		Samples: []gpu.Sample{onGPU(d, gpu.Int(0)), onGPU(e, gpu.Int(79)), onGPU(f, gpu.Int(4711))},
	}, sharing.Division{})
	rows := rowsOf(t, "DCGM_FI_DEV_XID_ERRORS,gauge\ndcgm_xid_errors,gauge\n")
	want := []string{
		`{gpu="0",UUID="GPU-0",device="nvidia0",err_code="0",err_msg="no error"} 0`,
		`{gpu="1",UUID="GPU-1",device="nvidia1",err_code="79",err_msg="GPU has fallen off the bus"} 79`,
		`{gpu="2",UUID="GPU-2",device="nvidia2",err_code="4711",err_msg="unknown"} 4711`,
	}
	page := pageOf(t, s, rows, Config{XIDs: knownXIDs(t)})
	wantSeries(t, page, "DCGM_FI_DEV_XID_ERRORS", append([]string(nil), want...)...)
	wantSeries(t, page, "dcgm_xid_errors", want...)
	wantSeries(t, pageOf(t, s, rows, Config{}), "DCGM_FI_DEV_XID_ERRORS",
		`{gpu="0",UUID="GPU-0",device="nvidia0"} 0`, `{gpu="1",UUID="GPU-1",device="nvidia1"} 79`, `{gpu="2",UUID="GPU-2",device="nvidia2"} 4711`)
}
