// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/meter"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// ago is a time before noon.
func ago(d time.Duration) time.Time { return noon.Add(-d) }

func fault(s health.Subject, kind health.Kind, class health.Class, since time.Duration, evidence string) health.Condition {
	return health.Condition{
		Subject: s, Kind: kind, Class: class, Since: ago(since), Last: ago(since / 2), Count: 2, BootID: "boot-1", Evidence: evidence,
	}
}

// judgedNode is the mixed node with a verdict on each device: one to watch, one that was cleared, a MIG
// card with a condition of its own and one of an instance, one that is lost, and one that is not
// even listed any more.
func judgedNode() *meter.Snapshot {
	s := mixedNode()
	lost := fault(health.WholeCard("GPU-3"), health.KindLost, health.ClassNode, 10*time.Minute, "fell off the bus")
	recovering := fault(health.WholeCard("GPU-9"), health.XIDKind(79), health.ClassNode, time.Hour, "XID 79: GPU has fallen off the bus")
	recovering.XID, recovering.Recovery, recovering.RecoveringSince = 79, "another boot, and the GPU is clean", ago(30*time.Second)
	heat := fault(health.WholeCard("GPU-2"), health.KindThermal, health.ClassWatch, time.Minute, "clocks are held back by heat")
	contained := fault(health.Subject{GPU: "GPU-2", GPUInstance: 7, ComputeInstance: gpu.NoInstance}, health.XIDKind(94), health.ClassReset, 5*time.Minute, "XID 94, 5 times within 1h")
	contained.XID = 94
	milder := contained
	milder.ComputeInstance, milder.Class, milder.Evidence = 0, health.ClassContained, "XID 94: of one compute instance"
	watched := fault(health.WholeCard("GPU-0"), "dcgm_mem", health.ClassWatch, 2*time.Hour, hostile)
	verdict := func(device, card gpu.UUID, status health.Status, reason string, conditions ...health.Condition) health.Verdict {
		return health.Verdict{
			Device: device, Card: card, Status: status, Since: ago(time.Minute), Avoid: status == health.Healthy && len(conditions) > 0,
			Reason: reason, Conditions: conditions,
		}
	}
	s.Health = &health.Report{
		Time: noon, BootID: "boot-1", Version: 42,
		Verdicts: []health.Verdict{
			verdict("GPU-0", "GPU-0", health.Healthy, hostile, watched),
			verdict("GPU-1", "GPU-1", health.Unknown, "the card does not answer"),
			verdict("GPU-2", "GPU-2", health.Healthy, "hot", heat),
			verdict("MIG-2-1", "GPU-2", health.Healthy, "hot", heat),
			verdict("MIG-2-7", "GPU-2", health.Unhealthy, "XID 94, 5 times within 1h (reset)", contained, heat, milder),
			verdict("MIG-2-8", "GPU-2", health.Healthy, "hot", heat),
			verdict("GPU-3", "GPU-3", health.Unhealthy, "fell off the bus (node)", lost),
			verdict("GPU-9", "GPU-9", health.Unhealthy, "XID 79: GPU has fallen off the bus (node); recovering", recovering),
		},
		Records: []health.Record{
			{Device: "GPU-1", Transitions: map[string]uint64{"healthy": 3, "unhealthy": 2}, Unhealthy: 90500 * time.Millisecond, Clearings: 2},
			{Device: "GPU-3", Transitions: map[string]uint64{"healthy": 1, "unhealthy": 1}, Unhealthy: 10 * time.Minute},
			{Device: "GPU-9", Transitions: map[string]uint64{"unhealthy": 1}, Unhealthy: time.Hour},
			{Device: "MIG-2-7", Transitions: map[string]uint64{"unhealthy": 1}, Unhealthy: time.Minute},
			{Device: "MIG-gone", Transitions: map[string]uint64{"unhealthy": 7}},
		},
		Clearings: []health.Clearing{
			{Device: "GPU-1", Reason: "first look", By: "uid 0", Time: ago(3 * time.Hour)},
			{Device: "GPU-1", Reason: "reseated " + hostile, By: "uid 1000", Time: ago(time.Hour), Ended: []health.Condition{lost}},
		},
	}
	s.Health.Repartition = health.Repartition{
		State: health.MIGPending, Since: ago(2 * time.Minute), Began: ago(2 * time.Minute), Until: ago(-28 * time.Minute), Paused: true,
	}
	s.HealthStore = meter.StoreState{Saved: true, At: ago(2 * time.Second)}
	return s
}

func TestGoldenPageOfVerdicts(t *testing.T) {
	e := exporterOf(t, judgedNode(), rowsOf(t, "DCGM_FI_DEV_GPU_TEMP, gauge, Temperature.\n"), complete(mixedConfig()))
	golden(t, "health.prom", []byte(writtenPage(t, e, FormatText)))
	if err := checkOpenMetrics([]byte(writtenPage(t, e, FormatOpenMetrics))); err != nil {
		t.Error(err)
	}
}

// Each device has one status at any time, whatever the report says.
func TestADeviceHasOneStatus(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := mixedNode()
		s.Health = &health.Report{Version: 1}
		for i := range s.Reading.Devices {
			d := &s.Reading.Devices[i]
			s.Health.Verdicts = append(s.Health.Verdicts, health.Verdict{
				Device: d.UUID, Card: d.Card(), Status: rapid.SampledFrom(health.Statuses()).Draw(t, "status"),
			})
		}
		e, err := New(latest{s}, nil, Config{})
		if err != nil {
			t.Fatal(err)
		}
		sums, series := map[string]int{}, 0
		var b strings.Builder
		if err := e.WritePage(&b, FormatText); err != nil {
			t.Fatal(err)
		}
		for _, line := range seriesOf(b.String(), "gpumeter_device_health") {
			labels, value, _ := strings.Cut(line, " ")
			n, err := strconv.Atoi(value)
			if err != nil {
				t.Fatal(err)
			}
			device, _, _ := strings.Cut(labels, ",status=")
			sums[device] += n
			series++
		}
		if len(sums) != len(s.Reading.Devices) || series != 3*len(sums) {
			t.Fatalf("%d series of %d devices", series, len(sums))
		}
		for device, sum := range sums {
			if sum != 1 {
				t.Fatalf("%s has %d statuses", device, sum)
			}
		}
	})
}

func TestAConditionOfTheCardIsOnTheCardAlone(t *testing.T) {
	page := pageOf(t, judgedNode(), nil, Config{})
	wantSeries(t, page, "gpumeter_device_condition",
		`{UUID="GPU-0",kind="dcgm_mem",class="watch"} 1`,
		`{UUID="GPU-2",kind="thermal_slowdown",class="watch"} 1`,
		`{UUID="GPU-2",GPU_I_ID="7",GPU_I_PROFILE="1g.10gb",kind="xid_94",class="reset"} 1`,
		`{UUID="GPU-3",kind="gpu_lost",class="node"} 1`,
		`{UUID="GPU-9",kind="xid_79",class="node"} 1`)
	wantSeries(t, page, "gpumeter_device_condition_recovery_timestamp_seconds",
		fmt.Sprintf(`{UUID="GPU-9",kind="xid_79"} %d`, ago(30*time.Second).Unix()))
	if dropped := seriesOf(page, "gpumeter_dropped_series"); !slices.Contains(dropped, `gpumeter_dropped_series{reason="duplicate"} 0`) {
		t.Errorf("series were dropped: %q", dropped)
	}
}

// What is counted is counted of devices that can be named, each status from 0.
func TestRecordsOfNamedDevicesAreCounted(t *testing.T) {
	page := pageOf(t, judgedNode(), nil, Config{})
	wantSeries(t, page, "gpumeter_device_unhealthy_seconds_total",
		`{UUID="GPU-0"} 0`, `{UUID="GPU-1"} 90.5`, `{UUID="GPU-2"} 0`, `{UUID="GPU-2",GPU_I_ID="1",GPU_I_PROFILE="3g.40gb"} 0`,
		`{UUID="GPU-2",GPU_I_ID="7",GPU_I_PROFILE="1g.10gb"} 60`, `{UUID="GPU-2",GPU_I_ID="8",GPU_I_PROFILE="1g.10gb"} 0`,
		`{UUID="GPU-3"} 600`, `{UUID="GPU-9"} 3600`)
	if got := seriesOf(page, "gpumeter_device_health_transitions_total")[3:6]; strings.Join(got, "\n") != strings.Join([]string{
		`gpumeter_device_health_transitions_total{UUID="GPU-1",status="unknown"} 0`,
		`gpumeter_device_health_transitions_total{UUID="GPU-1",status="healthy"} 3`,
		`gpumeter_device_health_transitions_total{UUID="GPU-1",status="unhealthy"} 2`,
	}, "\n") {
		t.Errorf("transitions: %q", got)
	}
	wantSeries(t, page, "gpumeter_device_health_last_clearing_timestamp_seconds", fmt.Sprintf(`{UUID="GPU-1"} %d`, ago(time.Hour).Unix()))
}

func TestWithoutVerdictsThereIsNothingToSay(t *testing.T) {
	for name, report := range map[string]*health.Report{"no report": nil, "an empty one": {}} {
		s := mixedNode()
		s.Health = report
		for line := range strings.Lines(pageOf(t, s, nil, Config{})) {
			if strings.Contains(line, "gpumeter_health_") || strings.Contains(line, "gpumeter_device_health") || strings.Contains(line, "_condition") {
				t.Errorf("%s: %s", name, line)
			}
		}
	}
}

func TestWhetherConditionsAreSavedIsSaidWhereTheyCanBe(t *testing.T) {
	s := judgedNode()
	for _, tc := range []struct {
		store meter.StoreState
		want  []string
	}{
		{meter.StoreState{}, nil},
		{meter.StoreState{Saved: true, At: noon}, []string{"gpumeter_health_conditions_saved 1"}},
		{meter.StoreState{Err: "disk full"}, []string{"gpumeter_health_conditions_saved 0"}},
	} {
		s.HealthStore = tc.store
		if diff := cmp.Diff(tc.want, seriesOf(pageOf(t, s, nil, Config{}), "gpumeter_health_conditions_saved")); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", tc.store, diff)
		}
	}
}

// complete is a Config of a node whose verdicts are told and kept.
func complete(cfg Config) Config {
	cfg.Stream = func() Stream { return Stream{Epoch: "EPOCH", Version: 44, Clients: 2, Lists: 31, Dropped: 1} }
	cfg.Restored = "previous"
	return cfg
}

func TestWithoutAStreamOrALedgerThereIsNothingToSayOfThem(t *testing.T) {
	page := pageOf(t, judgedNode(), nil, Config{})
	body := bodyOf(t, get(exporterOf(t, judgedNode(), nil, Config{}).Handler(), "GET", "/api/v1/health"))
	if strings.Contains(page, "gpumeter_health_stream_") || strings.Contains(page, "gpumeter_health_conditions_restored") || strings.Contains(body, "stream") {
		t.Errorf("%s\n%s", page, body)
	}
	before := Config{Stream: func() Stream { return Stream{} }}
	if got := seriesOf(pageOf(t, judgedNode(), nil, before), "gpumeter_health_stream_version"); len(got) != 0 {
		t.Errorf("a version before the first list: %v", got)
	}
	if body := bodyOf(t, get(exporterOf(t, judgedNode(), nil, before).Handler(), "GET", "/api/v1/health")); strings.Contains(body, "stream") {
		t.Errorf("a list before the first one: %s", body)
	}
}

// Others are taken first while a device works; one that is withdrawn is not taken at all.
func TestADeviceThatIsWithdrawnIsNotToBeAvoided(t *testing.T) {
	s := judgedNode()
	for i := range s.Health.Verdicts {
		s.Health.Verdicts[i].Avoid = true
	}
	withdrawn := 0
	for _, line := range seriesOf(pageOf(t, s, nil, Config{}), "gpumeter_device_avoided") {
		if strings.HasSuffix(line, " 0") {
			withdrawn++
		}
	}
	if withdrawn != 3 {
		t.Errorf("%d of the 3 withdrawn devices are not to be avoided", withdrawn)
	}
	var page struct {
		Devices []struct {
			Status string
			Avoid  bool
		}
	}
	if err := json.Unmarshal([]byte(bodyOf(t, get(exporterOf(t, s, nil, Config{}).Handler(), "GET", "/api/v1/health"))), &page); err != nil {
		t.Fatal(err)
	}
	for _, d := range page.Devices {
		if d.Avoid == (d.Status == "unhealthy") {
			t.Errorf("%+v", d)
		}
	}
}

func TestGoldenHealthJSON(t *testing.T) {
	e := exporterOf(t, judgedNode(), nil, complete(mixedConfig()))
	r := get(e.Handler(), "GET", "/api/v1/health")
	body := bodyOf(t, r)
	if r.StatusCode != http.StatusOK || r.Header.Get("Content-Type") != "application/json; charset=utf-8" || r.Header.Get("Content-Length") != strconv.Itoa(len(body)) {
		t.Errorf("status %d, headers %v, %d bytes", r.StatusCode, r.Header, len(body))
	}
	var indented strings.Builder
	enc := json.NewEncoder(&indented)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(json.RawMessage(body)); err != nil {
		t.Fatal(err)
	}
	golden(t, "health.json", []byte(indented.String()))
}

// What the page asks for is one device: with its MIG devices for a whole card, alone for a part.
func TestHealthJSONOfOneDevice(t *testing.T) {
	h := exporterOf(t, judgedNode(), nil, Config{}).Handler()
	for _, tc := range []struct {
		query     string
		status    int
		devices   string
		clearings int
	}{
		{"?device=GPU-2", 200, "GPU-2 MIG-2-1 MIG-2-7 MIG-2-8", 0},
		{"?device=MIG-2-7", 200, "MIG-2-7", 0},
		{"?device=GPU-1", 200, "GPU-1", 2},
		{"?device=GPU-9", 200, "GPU-9", 0},
		{"?device=GPU-77", 404, "", 0},
		{"?device=", 400, "", 0},
		{"?gpu=0", 400, "", 0},
		{"?device=GPU-1&device=GPU-2", 400, "", 0},
	} {
		r := get(h, "GET", "/api/v1/health"+tc.query)
		var page struct {
			Error   string
			Devices []struct {
				UUID    string
				Holders []struct{ Pod string }
			}
			Clearings []struct{ By string }
		}
		if err := json.Unmarshal([]byte(bodyOf(t, r)), &page); err != nil {
			t.Fatalf("%s: %v", tc.query, err)
		}
		var devices []string
		for _, d := range page.Devices {
			devices = append(devices, d.UUID)
		}
		if r.StatusCode != tc.status || strings.Join(devices, " ") != tc.devices || len(page.Clearings) != tc.clearings || (page.Error == "") != (tc.status == 200) {
			t.Errorf("%s: status %d, %q, %+v", tc.query, r.StatusCode, devices, page)
		}
	}
}

// Whose work a broken GPU hurts is said also where the time is nobody's to pay.
func TestHoldersOfAWithdrawnGPUAreNamed(t *testing.T) {
	s := judgedNode()
	holders := holdersOf(&s.Division)
	names := func(device gpu.UUID) (out []string) {
		for _, h := range holders[device] {
			out = append(out, fmt.Sprintf("%s/%s on %s %.3f", h.Namespace, h.Pod, h.Device, h.Share))
		}
		return out
	}
	for device, want := range map[gpu.UUID][]string{
		"GPU-3":   {"team-c/sweep on GPU-3 0.500"},
		"GPU-2":   {"team-b/serve on MIG-2-1 0.464", "team-c/batch on MIG-2-7 0.067"},
		"MIG-2-7": {"team-c/batch on MIG-2-7 0.067"},
		"MIG-2-8": nil,
	} {
		if diff := cmp.Diff(want, names(device)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", device, diff)
		}
	}
	twice := sharing.Division{Shares: []sharing.Share{
		seats(card(0), holder("a", "p"), sharing.One(), 4, 0), seats(card(0), holder("a", "p"), sharing.One(), 4, 2),
	}}
	if got := holdersOf(&twice)["GPU-0"]; len(got) != 1 || got[0].Share != 0.5 {
		t.Errorf("one container with two seats is %+v", got)
	}
}

func TestHealthJSONIsReadOnlyAndOfATick(t *testing.T) {
	s := judgedNode()
	e := exporterOf(t, s, nil, Config{})
	h := e.Handler()
	if r := get(h, "POST", "/api/v1/health"); r.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: status %d", r.StatusCode)
	}
	whole := len(bodyOf(t, get(h, "GET", "/api/v1/health")))
	if r := get(h, "HEAD", "/api/v1/health"); r.StatusCode != 200 || r.Header.Get("Content-Length") != strconv.Itoa(whole) || bodyOf(t, r) != "" {
		t.Errorf("HEAD: status %d, headers %v", r.StatusCode, r.Header)
	}
	if e.current().healthJSON() != e.current().healthJSON() {
		t.Error("the same snapshot is encoded twice")
	}
	s.Seq = 0
	if r := get(exporterOf(t, s, nil, Config{}).Handler(), "GET", "/api/v1/health"); r.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("before the first tick: status %d", r.StatusCode)
	}
	plain := mixedNode()
	body := bodyOf(t, get(exporterOf(t, plain, nil, Config{}).Handler(), "GET", "/api/v1/health"))
	if !strings.Contains(body, `"devices":[]`) || strings.Contains(body, "saved") {
		t.Errorf("without verdicts: %s", body)
	}
}

// Links are read for the verdicts. A page that has no row of links is the same with and without
// them, and one that has shows them.
func TestLinksStandOnThePageWhereARowIsOfLinks(t *testing.T) {
	s := mixedNode()
	plain := pageOf(t, s, rowsOf(t, mixedCounters), mixedConfig())
	s.Reading.Fields = append(s.Reading.Fields, 1508)
	for i := range s.Reading.Samples {
		s.Reading.Samples[i].Values = append(s.Reading.Samples[i].Values, gpu.Absent(gpu.ReasonScope))
	}
	scope := make([]gpu.Value, len(s.Reading.Fields))
	for i := range scope {
		scope[i] = gpu.Absent(gpu.ReasonScope)
	}
	scope[len(scope)-1] = gpu.Int(1)
	s.Reading.Samples = append(s.Reading.Samples, sampled(gpu.Entity{Kind: gpu.KindLink, GPU: "GPU-0", ID: 3}, scope...))
	if diff := cmp.Diff(plain, pageOf(t, s, rowsOf(t, mixedCounters), mixedConfig())); diff != "" {
		t.Errorf("(-without links +with):\n%s", diff)
	}
	page := pageOf(t, s, rowsOf(t, mixedCounters+"DCGM_FI_DEV_NVLINK_GET_STATE, gauge, State.\n"), mixedConfig())
	if got := seriesOf(page, "DCGM_FI_DEV_NVLINK_GET_STATE"); len(got) != 1 || !strings.Contains(got[0], `nvlink="3"`) {
		t.Errorf("the links are %q", got)
	}
}
