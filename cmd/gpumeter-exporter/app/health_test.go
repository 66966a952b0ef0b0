// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/healthstream"
	"github.com/gpumeter/gpumeter/pkg/meter"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// falling is a configuration of a node of two GPUs, of which the first has the XID after half a second.
func falling(t *testing.T, xid string) Config {
	t.Helper()
	file := filepath.Join(t.TempDir(), "story.yaml")
	story := `description: a GPU breaks
node: n1
gpus:
  - {model: H100-80, count: 2}
pods:
  - {name: train, namespace: ml, copies: 2, load: train}
events:
  - {at: 500ms, do: xid, gpu: 0, code: ` + xid + `}
`
	if err := os.WriteFile(file, []byte(story), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := simulated()
	cfg.Scenario, cfg.Speed = file, 1
	return cfg
}

// until waits for a snapshot of which ok is true; the time is a bound, not a measure.
func (r running) until(t *testing.T, what string, ok func(*meter.Snapshot) bool) *meter.Snapshot {
	t.Helper()
	enough := time.After(40 * time.Second)
	for {
		s, stale := r.meter.Watch()
		if ok(s) {
			return s
		}
		select {
		case <-stale:
		case <-enough:
			t.Fatalf("never: %s; the last snapshot has %+v\n%s", what, s.Health, r.logs)
		}
	}
}

// firstGPU is the verdict about the first GPU, and what its share is booked to.
func firstGPU(s *meter.Snapshot) (health.Verdict, sharing.Cause) {
	if len(s.Reading.Devices) == 0 {
		return health.Verdict{}, ""
	}
	card := s.Reading.Devices[0].UUID
	v, _ := s.Health.Verdict(card)
	for _, u := range s.Division.Unallocated {
		if u.Card == card {
			return v, u.Cause
		}
	}
	return v, ""
}

func isUnhealthy(s *meter.Snapshot) bool {
	v, _ := firstGPU(s)
	return v.Status == health.Unhealthy
}

func TestABrokenGPUStaysBrokenOverARestartOfTheExporter(t *testing.T) {
	cfg := falling(t, "79")
	cfg.Health.LedgerDir, cfg.Health.LedgerDirSet = filepath.Join(t.TempDir(), "ledger"), true
	r := start(t, cfg)
	s := r.until(t, "XID 79 breaks GPU 0", isUnhealthy)
	if v, cause := firstGPU(s); cause != sharing.CauseUnhealthy || !strings.Contains(v.Reason, "79") {
		t.Errorf("%+v, booked to %q", v, cause)
	}
	r.until(t, "it is saved", func(s *meter.Snapshot) bool { return s.HealthStore.Saved && isUnhealthy(s) })
	eventuallySays(t, r.logs, `msg="a device is unhealthy"`)
	if !strings.Contains(r.logs.String(), "pods=[ml/train-") {
		t.Errorf("the log does not say whose it is:\n%s", r.logs)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}

	quiet := falling(t, "31")
	quiet.Health = cfg.Health
	r = start(t, quiet)
	s = r.until(t, "the first tick", func(s *meter.Snapshot) bool { return s.Seq > 0 })
	if v, _ := firstGPU(s); v.Status != health.Unhealthy {
		t.Errorf("seq %d after the restart: %+v", s.Seq, v)
	}
	s = r.until(t, "the first listing", func(s *meter.Snapshot) bool { return s.Observed })
	if v, cause := firstGPU(s); v.Status != health.Unhealthy || cause != sharing.CauseUnhealthy {
		t.Errorf("seq %d after the restart: %+v, booked to %q", s.Seq, v, cause)
	}
	eventually(t, r.url+"/metrics", `gpumeter_health_conditions_restored{result="restored"} 1`)
	eventually(t, r.url+"/metrics", "gpumeter_health_conditions_saved 1")
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}

	// The disk loses the last save: what was saved before it still says that the GPU is broken.
	if err := os.WriteFile(filepath.Join(cfg.Health.LedgerDir, conditionsFile), []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	r = start(t, quiet)
	s = r.until(t, "the first tick", func(s *meter.Snapshot) bool { return s.Seq > 0 })
	if v, _ := firstGPU(s); v.Status != health.Unhealthy || !strings.Contains(r.logs.String(), conditionsFile+".previous is used") {
		t.Errorf("after a damaged file: %+v\n%s", v, r.logs)
	}
	eventually(t, r.url+"/metrics", `gpumeter_health_conditions_restored{result="previous"} 1`)
}

func TestAnXIDOfAProgramChangesNothing(t *testing.T) {
	r := start(t, falling(t, "31"))
	s := r.until(t, "XID 31 is heard", func(s *meter.Snapshot) bool { return len(s.Totals.XIDs) > 0 })
	if v, cause := firstGPU(s); v.Status != health.Healthy || cause != "" {
		t.Errorf("%+v, booked to %q", v, cause)
	}
}

func TestTheOperatorsXIDFileReplacesRowByRow(t *testing.T) {
	file := filepath.Join(t.TempDir(), "xid.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg := falling(t, "31")
	cfg.Health.XIDFile = file
	write("xids:\n  - {code: 31, class: reset, name: ours}\n")
	r := start(t, cfg)
	r.until(t, "XID 31 breaks GPU 0", isUnhealthy)
	for code, want := range map[int]string{31: "ours", 79: "GPU fell off the bus"} {
		if got := r.xids.Lookup(code).Name; got != want {
			t.Errorf("XID %d is %q, want %q", code, got, want)
		}
	}
	write("xids:\n  - {code: 31, class: reset, name: ours}\n  - {code: 79, class: fatal, name: x}\n")
	if _, err := New(cfg, io.Discard); err == nil || !strings.Contains(err.Error(), "--xid-file") || !strings.Contains(err.Error(), file+":3") {
		t.Errorf("error %v, want one with the line", err)
	}
}

func TestAFolderThatCannotKeepConditionsIsAWarningAndAFault(t *testing.T) {
	cfg := falling(t, "79")
	cfg.Health.LedgerDir, cfg.Health.LedgerDirSet = "/proc/gpumeter", true
	r := start(t, cfg)
	s := r.until(t, "XID 79 breaks GPU 0", isUnhealthy)
	if s.HealthStore.Saved || s.HealthStore.Err == "" || s.Totals.Faults[meter.FaultKey{Source: meter.SourceConditions, Kind: "error"}] == 0 {
		t.Errorf("%+v, faults %v", s.HealthStore, s.Totals.Faults)
	}
	if !strings.Contains(r.logs.String(), "conditions cannot be saved in /proc/gpumeter") {
		t.Errorf("log:\n%s", r.logs)
	}
}

// A smaller set of replicas has to stand for five minutes, whoever starts in between.
func TestReplicasAreKnownAfterARestartOfTheExporter(t *testing.T) {
	file := filepath.Join(t.TempDir(), "story.yaml")
	play := func(replicas string) Config {
		t.Helper()
		story := `description: a shared GPU
node: n1
gpus: [{model: H100-80}]
sharing: [{resource: nvidia.com/gpu, replicas: ` + replicas + `, rename: true}]
pods:
  - {name: slice, namespace: ml, resource: nvidia.com/gpu.shared, copies: 2}
`
		if err := os.WriteFile(file, []byte(story), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg := simulated()
		cfg.Scenario, cfg.Speed = file, 1
		return cfg
	}
	quarters := func(s *meter.Snapshot) bool {
		return len(s.Division.Shares) == 2 && s.Division.Shares[0].Part == sharing.NewFraction(1, 4)
	}
	cfg := play("4")
	cfg.Health.LedgerDir, cfg.Health.LedgerDirSet = filepath.Join(t.TempDir(), "ledger"), true
	r := start(t, cfg)
	r.until(t, "two pods of four hold", quarters)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	fewer := play("2")
	fewer.Health = cfg.Health
	r = start(t, fewer)
	if s := r.until(t, "the first listing", func(s *meter.Snapshot) bool { return s.Observed }); !quarters(s) || len(s.Listing.Advertised) != 2 {
		t.Errorf("%d ids advertised, %+v", len(s.Listing.Advertised), s.Division)
	}
}

func TestTheStreamTellsVerdictsAndTakesAnOperatorsWord(t *testing.T) {
	cfg := falling(t, "79")
	cfg.Health.Socket, cfg.Health.SocketSet = filepath.Join(t.TempDir(), "health.sock"), true
	r := start(t, cfg)
	r.until(t, "XID 79 breaks GPU 0", isUnhealthy)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	client := healthstream.NewClient(healthstream.ClientConfig{Socket: cfg.Health.Socket})
	list, err := client.List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if list.Node != "n1" || list.Source != SourceSim || len(list.Devices) != 2 || len(list.Report.Verdicts) != 2 {
		t.Fatalf("%+v", list)
	}
	first := list.Devices[0]
	if v, _ := list.Report.Verdict(first.UUID); v.Status != health.Unhealthy {
		t.Errorf("told: %+v", v)
	}
	if first.MemoryBytes < 80e9 || first.MemoryBytes > 90e9 || len(first.MIGProfiles) > 0 || first.PCIBusID == "" {
		t.Errorf("the device is told as %+v", first)
	}
	// A page is made once a tick: the next one has the stream as it is now.
	page := eventually(t, r.url+"/metrics", fmt.Sprintf("gpumeter_health_stream_version %d\n", list.Report.Version))
	if !strings.Contains(page, "gpumeter_health_stream_dropped_clients_total 0\n") || strings.Contains(page, "gpumeter_health_conditions_restored") {
		t.Errorf("the page of a stream without a ledger:\n%s", page)
	}
	eventually(t, r.url+"/metrics", "gpumeter_health_stream_lists_total 1\n")
	if body := eventually(t, r.url+"/api/v1/health", `"stream":`); !strings.Contains(body, `"stream":{"epoch":"`+list.Epoch) {
		t.Errorf("%.300s", body)
	}
	done, err := client.Clear(ctx, first.UUID, "card was replaced", "tester")
	if err != nil || len(done.Ended) != 1 {
		t.Fatalf("%+v, %v", done, err)
	}
	if v, cause := firstGPU(r.meter.Latest()); v.Status != health.Healthy || cause != "" {
		t.Errorf("cleared: %+v, booked to %q", v, cause)
	}
	if list, err = client.List(ctx); err != nil {
		t.Fatal(err)
	}
	if v, _ := list.Report.Verdict(first.UUID); v.Status != health.Healthy {
		t.Errorf("told after the word: %+v", v)
	}
	facts := []health.Fact{{GPU: first.UUID, Kind: health.KindMPSDown, Class: health.ClassReset, Text: "the daemon ended"}}
	if err := client.ReportFacts(ctx, "tester", facts); err != nil {
		t.Fatal(err)
	}
	r.until(t, "a fact breaks GPU 0", isUnhealthy)
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(cfg.Health.Socket); !os.IsNotExist(err) {
		t.Errorf("the socket is left behind: %v", err)
	}
}

func TestASocketThatNobodyAskedForMayFail(t *testing.T) {
	dir := t.TempDir()
	taken := filepath.Join(dir, "health.sock")
	other, err := net.Listen("unix", taken)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	l := &logs{}
	m, err := meter.New(meter.Config{Telemetry: newCard("dcgm"), Interval: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	cfg := Defaults()
	cfg.Health.Socket = taken
	a := &App{cfg: cfg, log: slog.New(slog.NewTextHandler(l, nil)), meter: m}
	a.stream = a.newStream()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.serveHealth(ctx) }()
	eventuallySays(t, l, "the health stream is not served")
	cancel()
	if err := <-done; err != nil {
		t.Errorf("error %v", err)
	}
	a.cfg.Health.SocketSet = true
	if err := a.serveHealth(t.Context()); err == nil || !strings.Contains(err.Error(), "--health-socket") || !strings.Contains(err.Error(), taken) {
		t.Errorf("a socket that was asked for: error %v", err)
	}
}

func TestASimulatedNodeKeepsAndServesNothingUnlessAsked(t *testing.T) {
	cfg := Defaults()
	if cfg.ledgerDir() != DefaultLedgerDir || cfg.healthSocket() != healthstream.DefaultSocket {
		t.Errorf("a real node: %q, %q", cfg.ledgerDir(), cfg.healthSocket())
	}
	cfg.Source = SourceSim
	if cfg.ledgerDir() != "" || cfg.healthSocket() != "" {
		t.Errorf("a simulated one: %q, %q", cfg.ledgerDir(), cfg.healthSocket())
	}
	cfg.Health.LedgerDirSet, cfg.Health.SocketSet = true, true
	if cfg.ledgerDir() == "" || cfg.healthSocket() == "" {
		t.Error("what is asked for is not done")
	}
}

func TestTheBootIDIsTheKernels(t *testing.T) {
	file := filepath.Join(t.TempDir(), "boot_id")
	if _, err := readBootID(file); err == nil {
		t.Error("no file, and no error")
	}
	for content, want := range map[string]string{"3f2a\n": "3f2a", " \n": ""} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := readBootID(file); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", content, got, err)
		}
	}
}

// snapshots is a meter that shows what it is given.
type snapshots struct{ s *meter.Snapshot }

func (s *snapshots) Watch() (*meter.Snapshot, <-chan struct{}) { return s.s, nil }

func TestTheListHasANewVersionOnlyWhenItSaysSomethingElse(t *testing.T) {
	m := &snapshots{&meter.Snapshot{Health: &health.Report{}}}
	source := newStreamSource(m, "n1")
	if list, _ := source.Watch(); list != nil {
		t.Errorf("before the first tick: %+v", list)
	}
	reading := gpu.Reading{
		Source: "nvml", Fields: []gpu.FieldID{fieldFBTotal, fieldComputeCapability},
		Devices: []gpu.Device{
			{UUID: "GPU-a", GPUInstance: gpu.NoInstance, MIGProfiles: []gpu.MIGProfile{{Name: "1g.10gb"}}, Capacity: gpu.Slices{Compute: 7}},
			{UUID: "MIG-1", Parent: "GPU-a", GPUInstance: 3},
		},
		Samples: []gpu.Sample{
			{Entity: gpu.Entity{Kind: gpu.KindGPU, GPU: "GPU-a"}, Values: []gpu.Value{gpu.Absent(gpu.ReasonScope), gpu.Int(9 << 16)}},
			{Entity: gpu.Entity{Kind: gpu.KindGPUInstance, GPU: "GPU-a", ID: 3}, Values: []gpu.Value{gpu.Int(9856), gpu.Absent(gpu.ReasonScope)}},
		},
	}
	seq := uint64(0)
	look := func(version uint64, r gpu.Reading) *healthstream.List {
		seq++
		m.s = &meter.Snapshot{Seq: seq, Reading: r, Health: &health.Report{Version: version, Verdicts: []health.Verdict{{Device: "GPU-a", Card: "GPU-a"}}}}
		list, _ := source.Watch()
		return list
	}
	first := look(7, reading)
	if d := first.Devices; first.Epoch == "" || first.Node != "n1" || first.Source != "nvml" || first.Report.Version != 7 ||
		d[0].MIGProfiles != nil || d[0].Capacity != (gpu.Slices{}) || d[1].MemoryBytes != 9856<<20 || d[0].ComputeCapability != "9.0" || d[1].ComputeCapability != "9.0" {
		t.Errorf("the first list: %+v", first)
	}
	silent := reading
	silent.Samples, silent.Fields = nil, nil
	if again := look(7, silent); again.Report.Version != first.Report.Version || again.Devices[1].MemoryBytes != 9856<<20 {
		t.Errorf("nothing is new: %+v", again)
	}
	linked := silent
	linked.Peers = []gpu.Peer{{From: "GPU-a", To: "GPU-b", NVLinks: 4}}
	second := look(7, linked)
	if second == first || second.Report.Version != 8 || second.Devices[0].Peers["GPU-b"] != 4 {
		t.Errorf("links are known: %+v", second)
	}
	if third := look(8, linked); third == second || third.Report.Version != 9 {
		t.Errorf("a verdict changed: %+v", third)
	}
	if fourth := look(20, linked); fourth.Report.Version != 20 {
		t.Errorf("a later verdict: %+v", fourth)
	}
	if len(reading.Devices[0].MIGProfiles) == 0 {
		t.Error("the reading was written to")
	}
}

func TestWhatVerdictsNeedIsNotHeldAgainstTheSelections(t *testing.T) {
	cfg := simulated()
	cfg.SwitchDevices = "g:0"
	r := start(t, cfg)
	r.until(t, "links are read", func(s *meter.Snapshot) bool {
		return s.Seq > 3 && hasScope(s.Reading.Fields, gpu.ScopeLink)
	})
	if strings.Contains(r.logs.String(), "--switch-devices") {
		t.Errorf("no counter is one of links or switches, and yet:\n%s", r.logs)
	}
}
