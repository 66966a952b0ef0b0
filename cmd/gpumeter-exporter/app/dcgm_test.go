// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/pkg/nvml"
	"github.com/gpumeter/gpumeter/tests/dcgmsim"
)

// pretendDCGM is a machine behind a libdcgm of its own.
func pretendDCGM(t *testing.T, scenario string) *dcgmsim.Sim {
	t.Helper()
	s, err := dcgmsim.New(t.TempDir(), scenario)
	if errors.Is(err, dcgmsim.ErrNoCompiler) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// onDCGM is an exporter's configuration on that machine, which has no NVML.
func onDCGM(s *dcgmsim.Sim) Config {
	c := Defaults()
	c.DCGMLibrary, c.NVMLLibrary = s.Path, "/nowhere/libnvidia-ml.so.1"
	c.Address, c.Interval = "127.0.0.1:0", "100ms"
	return aloof(c)
}

func (r running) does(t *testing.T, s *dcgmsim.Sim, commands ...string) {
	t.Helper()
	if err := s.Do(commands...); err != nil {
		t.Fatal(err)
	}
}

func TestAutoTakesTheEngineOfLibdcgm(t *testing.T) {
	s := pretendDCGM(t, "gpus 2 h100")
	r := start(t, onDCGM(s))
	page := eventually(t, r.url+"/metrics", "DCGM_FI_DEV_GPU_TEMP{")
	for _, want := range []string{`gpu="1"`, `modelName="NVIDIA H100 80GB HBM3"`, `gpumeter_source_info{`, `source="dcgm"`, `reason="libdcgm is there"`, `library="libdcgm 4.6.0"`} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	for _, want := range []string{"source=dcgm", `because="libdcgm is there"`, "NVML is not there beside DCGM"} {
		if !strings.Contains(r.logs.String(), want) {
			t.Errorf("the log does not say %s:\n%s", want, r.logs)
		}
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	if state, err := s.State(); err != nil || state.Embedded || state.Groups > 0 {
		t.Errorf("left behind: %+v, %v", state, err)
	}
}

func TestAutoGoesOnToNVMLWhenTheEngineDoesNotStart(t *testing.T) {
	var out bytes.Buffer
	cfg := onDCGM(pretendDCGM(t, "gpus 2 h100\nfail dcgmStartEmbedded_v2 -7 100"))
	log := slog.New(slog.NewTextHandler(&out, nil))
	a := &App{cfg: cfg, log: log, sources: NewSources(cfg, log)}
	t.Cleanup(func() { _ = a.close() })
	a.sources.nvml = a.sources.once(SourceNVML, func() (Driver, error) { return newCard("nvml"), nil })
	if err := a.choose(); err != nil {
		t.Fatal(err)
	}
	if a.source.Name != SourceNVML || !strings.Contains(out.String(), "level=WARN msg=\"GPUs cannot be read through dcgm\"") {
		t.Errorf("took %s:\n%s", a.source.Name, out.String())
	}
}

func TestDCGMAskedForDoesNotFallBack(t *testing.T) {
	cfg := onDCGM(pretendDCGM(t, "gpus 2 h100\nfail dcgmStartEmbedded_v2 -7 100"))
	cfg.Source = SourceDCGM
	if _, err := New(cfg, io.Discard); err == nil || !strings.Contains(err.Error(), "--source=dcgm") || errors.Is(err, nvml.ErrNoLibrary) {
		t.Errorf("error %v", err)
	}
}

func TestAHostEngineThatIsAwayIsWaitedFor(t *testing.T) {
	s := pretendDCGM(t, "gpus 2 h100\nengine remote\ndown")
	cfg := onDCGM(s)
	cfg.HostEngine = "127.0.0.1:5555"
	r := start(t, cfg)
	eventually(t, r.url+"/readyz", "not ready")
	if code, body := get(t, http.DefaultClient, r.url+"/livez"); code != http.StatusOK {
		t.Errorf("/livez: %d %s", code, body)
	}
	eventually(t, r.url+"/readyz", "tcp://127.0.0.1:5555")
	if told := r.logs.String(); !strings.Contains(told, `msg="GPUs will be read from tcp://127.0.0.1:5555"`) || strings.Contains(told, "GPUs are read") || strings.Contains(told, "driver=") {
		t.Errorf("before its first answer:\n%s", told)
	}
	r.does(t, s, "up")
	eventually(t, r.url+"/readyz", "ready\ntelemetry: up")
	eventually(t, r.url+"/metrics", `reason="a host engine was named"`)
	eventuallySays(t, r.logs, `msg="GPUs are read" source=dcgm because="a host engine was named" library="libdcgm 4.6.0" engine="tcp://127.0.0.1:5555`)
}

func TestSelectedGPUsOfDCGM(t *testing.T) {
	cfg := onDCGM(pretendDCGM(t, "gpus 3 h100"))
	cfg.Devices = "g:1"
	r := start(t, cfg)
	page := eventually(t, r.url+"/metrics", `DCGM_FI_DEV_GPU_TEMP{gpu="1"`)
	if strings.Contains(page, `DCGM_FI_DEV_GPU_TEMP{gpu="0"`) {
		t.Error("GPU 0 is on the page")
	}
	cfg.Devices = "g:3"
	a, err := New(cfg, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	if err := a.Run(ctx); err == nil || !strings.Contains(err.Error(), "this node has GPUs 0-2") {
		t.Errorf("a selection of nothing: %v", err)
	}
}

func TestSIGUSR1StopsTheEngineInsideThisProcess(t *testing.T) {
	s := pretendDCGM(t, "gpus 2 h100")
	cfg := onDCGM(s)
	cfg.DCGMRelease = true
	r := start(t, cfg)
	eventually(t, r.url+"/metrics", "DCGM_FI_DEV_GPU_TEMP{")
	signalUntil(t, r.logs, "is let go of")
	if err := s.Wait(10*time.Second, func(s dcgmsim.State) bool { return !s.Embedded }); err != nil {
		t.Error(err)
	}
	eventually(t, r.url+"/metrics", `gpumeter_fault{source="telemetry",kind="released"} 1`)
	signalUntil(t, r.logs, "is taken up again")
	eventually(t, r.url+"/metrics", `gpumeter_source_up{source="telemetry"} 1`)
}

func TestAnEngineThatHangsDoesNotKeepTheProcess(t *testing.T) {
	s := pretendDCGM(t, "gpus 2 h100")
	cfg := onDCGM(s)
	a, err := New(cfg, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	addr, err := a.Addr(ctx)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "http://"+addr.String()+"/metrics", "DCGM_FI_DEV_GPU_TEMP{")
	if err := s.Do("hang all"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Do("unhang all") })
	if err := s.Wait(10*time.Second, func(s dcgmsim.State) bool { return s.Blocked > 0 }); err != nil {
		t.Fatal(err)
	}
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(2 * (grace + closePatience)):
		t.Fatal("it does not end")
	}
}

func TestAnEngineThatHangsWhenItIsStartedDoesNotKeepTheProcess(t *testing.T) {
	s := pretendDCGM(t, "gpus 2 h100\nhang call dcgmStartEmbedded_v2")
	t.Cleanup(func() { _ = s.Do("unhang all") })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, onDCGM(s), io.Discard) }()
	if err := s.Wait(10*time.Second, func(s dcgmsim.State) bool { return s.Blocked > 0 }); err != nil {
		t.Fatal(err)
	}
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(openPatience / 2):
		t.Fatal("it does not end")
	}
}

func TestXIDsReachThePageWithTheirWindowAndClass(t *testing.T) {
	file := filepath.Join(t.TempDir(), "counters.csv")
	rows := "DCGM_FI_DEV_GPU_TEMP, gauge, x\nDCGM_EXP_XID_ERRORS_COUNT, gauge, x\nDCGM_EXP_CLOCK_EVENTS_COUNT, gauge, x\n"
	if err := os.WriteFile(file, []byte(rows), 0o600); err != nil {
		t.Fatal(err)
	}
	s := pretendDCGM(t, "gpus 2 h100")
	cfg := onDCGM(s)
	cfg.Collectors, cfg.CollectorsSet, cfg.XIDWindow, cfg.ClockWindow = file, true, "2s", "90000"
	r := start(t, cfg)
	page := eventually(t, r.url+"/metrics", `,xid="79",class="`)
	if !strings.Contains(page, `} 0`) {
		t.Error("no counter begins at 0")
	}
	eventually(t, r.url+"/metrics", `window_size_in_ms="90000"`)
	r.does(t, s, "xid 1 79", "xid 1 79")
	page = eventually(t, r.url+"/metrics", `window_size_in_ms="2000",xid="79"`)
	const none = `window_size_in_ms="2000"} 0`
	had := strings.Count(page, none)
	for end := time.Now().Add(15 * time.Second); strings.Count(page, none) == had && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		_, page = get(t, http.DefaultClient, r.url+"/metrics")
	}
	if n := strings.Count(page, none); n != had+1 {
		t.Errorf("%d GPUs without an XID in the window, then %d", had, n)
	}
	for line := range strings.SplitSeq(page, "\n") {
		if strings.HasPrefix(line, "gpumeter_xid_errors_total{") && strings.Contains(line, `xid="79"`) && strings.HasSuffix(line, " 2") {
			return
		}
	}
	t.Errorf("gpumeter_xid_errors_total has not counted both:\n%s", page)
}

func TestHowDCGMIsOpened(t *testing.T) {
	c := with(func(c *Config) {
		c.DCGMLibrary, c.HostEngine, c.Interval = "/opt/libdcgm.so.4", "/run/engine", "15s"
		c.Devices, c.SwitchDevices, c.CPUDevices = "g:1", "g:2", "g:3"
		c.DCGMLogLevel = "debug"
	})
	got, err := c.dcgmConfig()
	if err != nil {
		t.Fatal(err)
	}
	told := []string{got.Library, got.Endpoint.String(), got.Interval.String(), got.GPUs.String(), got.Switches.String(), got.CPUs.String(), got.LogFile, got.LogLevel}
	if d := cmp.Diff([]string{"/opt/libdcgm.so.4", "unix:///run/engine", "15s", "g:1", "g:2", "g:3", "", ""}, told); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	c.DCGMLog = true
	if got, err = c.dcgmConfig(); err != nil || got.LogFile != "-" || got.LogLevel != "DEBUG" {
		t.Errorf("log to %q from %q on, %v", got.LogFile, got.LogLevel, err)
	}
}
