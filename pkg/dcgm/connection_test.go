// SPDX-License-Identifier: Apache-2.0

package dcgm

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/tests/dcgmsim"
)

const socket = "unix:///run/pretend/engine"

// remote opens a source on a host engine.
func remote(t *testing.T, scenario ...string) *station {
	t.Helper()
	return openOn(t, pretend(t, append([]string{"strict on", "engine remote"}, scenario...)...), func(c *Config) {
		c.Endpoint, _ = ParseEndpoint(socket)
	})
}

func TestOpenSaysThatThereIsNoLibrary(t *testing.T) {
	_, err := Open(Config{Library: "/nowhere/libdcgm.so.4", Interval: time.Second})
	if !errors.Is(err, ErrNoLibrary) || !strings.Contains(err.Error(), "/nowhere/libdcgm.so.4") {
		t.Errorf("open: %v", err)
	}
}

func TestWhatCannotBeOpenedIsAnError(t *testing.T) {
	sim := pretend(t, "engine remote")
	for want, cfg := range map[string]Config{
		"interval":            {Library: sim.Path},
		"no log level":        {Library: sim.Path, Interval: time.Second, LogLevel: "LOUD"},
		"starting the engine": {Library: sim.Path, Interval: time.Second, LogLevel: "debug"},
	} {
		if s, err := Open(cfg); err == nil || errors.Is(err, ErrNoLibrary) || !strings.Contains(err.Error(), want) {
			t.Errorf("open %+v: %v, %v; want an error with %q", cfg, s, err, want)
		}
	}
}

func TestAnEngineThatIsAbsentIsAwaited(t *testing.T) {
	m := remote(t, "gpus 2 h100", "down")
	_, err := m.tryRead(155)
	if kindOf(err) != kindConnection || !strings.Contains(err.Error(), socket) ||
		!strings.Contains(err.Error(), "is tried") || !strings.Contains(err.Error(), "nv-hostengine") {
		t.Errorf("read: %v", err)
	}
	if facts := m.Facts(); len(facts) != 2 || !strings.Contains(facts[1], "has not answered since") {
		t.Errorf("facts: %q", facts)
	}
	if o := m.Origin(); o.Engine != socket || o.Driver != "" {
		t.Errorf("origin: %+v", o)
	}
	m.do("up")
	r := m.until("the engine", []gpu.FieldID{155}, func(r gpu.Reading) string {
		if len(r.Devices) != 2 || cell(r, 1, 155)[0] == '(' {
			return fmt.Sprintf("%+v", r.Devices)
		}
		return ""
	})
	if r.Origin.Engine != socket+" 4.6.0" || r.Origin.Driver == "" {
		t.Errorf("origin: %+v", r.Origin)
	}
	facts := strings.Join(m.Facts(), "\n")
	for _, want := range []string{"library " + m.sim.Path, "DCGM 4.6.0", "engine " + socket, "driver ", "modules: core ", "groups: 4 of 64"} {
		if !strings.Contains(facts, want) {
			t.Errorf("facts have no %q:\n%s", want, facts)
		}
	}
}

func TestADroppedConnectionIsMadeAnewWithAllThatWasWatched(t *testing.T) {
	m := remote(t, "gpus 2 h100", "mig 1 on", "gi 1 profile 1g.10gb nvml 7 ci")
	fields := []gpu.FieldID{155, 252, 1001, gpu.FieldHealthStatus}
	whole := func(r gpu.Reading) string {
		s, ok := sampleOf(r, gpu.KindGPUInstance, 1, 7)
		if got := shown(r, s, ok, 1001) + cell(r, 0, 155); strings.Contains(got, "(") || r.Health.Time.IsZero() {
			return got
		}
		return ""
	}
	m.until("everything", fields, whole)
	state, _ := m.sim.State()
	for range 3 {
		m.do("xid 0 31")
		m.hear(1)
		m.until("everything", fields, whole)
		m.do("drop")
		for range 2 {
			if r, err := m.tryRead(fields...); err != nil && kindOf(err) != kindConnection || err == nil && len(r.Events) > 0 {
				t.Errorf("events %+v, %v", r.Events, err)
			}
		}
		r := m.until("everything again", fields, whole)
		if len(r.Events) > 0 {
			t.Errorf("told again: %+v", r.Events)
		}
	}
	m.state("as many groups and watches as before", func(s dcgmsim.State) bool {
		m.read(fields...)
		return s.Groups == state.Groups && s.FieldGroups == state.FieldGroups && s.Watches == state.Watches && s.Connections == 1
	})
}

func TestAnEmbeddedEngineThatEndsIsStartedAgain(t *testing.T) {
	m := node(t, "gpus 1 h100")
	m.read(155)
	m.do("fail dcgmGetAllDevices -10 1")
	if _, err := m.tryRead(155); kindOf(err) != kindConnection {
		t.Errorf("read: %v", err)
	}
	m.until("it answers", []gpu.FieldID{155}, func(r gpu.Reading) string {
		if cell(r, 0, 155)[0] == '(' {
			return cell(r, 0, 155)
		}
		return ""
	})
}

// The exporter is often there before the driver.
func TestAnEngineThatSeesNoGPUIsStartedAgain(t *testing.T) {
	m := node(t, "driver 580.1.2")
	m.settings.pauses.relook = 5 * interval
	r := m.read(155)
	if len(r.Devices) > 0 || len(r.Troubles) != 1 || r.Troubles[0].Reason != gpu.ReasonNotFound {
		t.Errorf("devices %+v, troubles %+v", r.Devices, r.Troubles)
	}
	m.until("it is started again", nil, func(gpu.Reading) string {
		if calls, _ := m.sim.Calls(); calls["dcgmStartEmbedded_v2"] < 2 {
			return "not yet"
		}
		return ""
	})
	m.do("gpus 1 h100")
	m.until("the GPU", []gpu.FieldID{155}, func(r gpu.Reading) string {
		if cell(r, 0, 155)[0] == '(' || len(r.Troubles) > 0 {
			return fmt.Sprintf("%s, %+v", cell(r, 0, 155), r.Troubles)
		}
		return ""
	})
}

// What hangs in the connection that was lost does not keep the new one from the other GPUs.
func TestAHangInALostConnectionCostsItsGPUOnly(t *testing.T) {
	m := remote(t, "gpus 2 h100")
	m.read(155)
	m.do("hang call dcgmGetLatestValues_v2")
	ctx, done := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer done()
	if _, err := m.Read(ctx, []gpu.FieldID{155}); err != nil {
		t.Fatal(err)
	}
	m.do("unhang all", "hang 1", "drop")
	r := m.until("GPU 0", []gpu.FieldID{155}, func(r gpu.Reading) string {
		if len(r.Devices) < 2 || cell(r, 0, 155)[0] == '(' {
			return cell(r, 0, 155)
		}
		return ""
	})
	if cell(r, 1, 155) != "(timeout)" {
		t.Errorf("power of GPU 1 is %s", cell(r, 1, 155))
	}
	m.do("unhang 1")
	m.until("GPU 1", []gpu.FieldID{155}, func(r gpu.Reading) string {
		if cell(r, 1, 155)[0] == '(' {
			return cell(r, 1, 155)
		}
		return ""
	})
}

func TestReleaseLetsGoUntilResume(t *testing.T) {
	for name, m := range map[string]*station{
		"embedded": node(t, "gpus 2 h100", "mig 1 on", "gi 1 profile 1g.10gb nvml 7 ci"),
		"remote":   remote(t, "gpus 2 h100", "mig 1 on", "gi 1 profile 1g.10gb nvml 7 ci"),
	} {
		m.T = t
		before := m.read(155)
		for range 2 {
			if err := m.Release(t.Context()); err != nil {
				t.Fatalf("%s: release: %v", name, err)
			}
			if err := m.Release(t.Context()); err != nil {
				t.Errorf("%s: a second release: %v", name, err)
			}
			m.state("nobody holds the engine", func(s dcgmsim.State) bool { return !s.Embedded && s.Connections == 0 })
			if _, err := m.tryRead(155); kindOf(err) != kindReleased || !strings.Contains(err.Error(), "Resume (SIGUSR1") {
				t.Errorf("%s: read: %v", name, err)
			}
			m.do("xid 0 31")
			if err := m.Resume(t.Context()); err != nil {
				t.Fatalf("%s: resume: %v", name, err)
			}
			if err := m.Resume(t.Context()); err != nil {
				t.Errorf("%s: a second resume: %v", name, err)
			}
			r := m.read(155)
			if fmt.Sprint(r.Devices) != fmt.Sprint(before.Devices) || cell(r, 0, 155)[0] == '(' || len(r.Troubles) > 0 {
				t.Errorf("%s: devices %+v, power %s, troubles %+v", name, r.Devices, cell(r, 0, 155), r.Troubles)
			}
		}
		calls, err := m.sim.Calls()
		if n := calls["dcgmDetachDriver"]; err != nil || (n > 0) != (name == "embedded") {
			t.Errorf("%s: the driver was detached %d times (%v); a host engine has other clients", name, n, err)
		}
	}
}

func TestResumeThatFailsIsTriedAgain(t *testing.T) {
	m := remote(t, "gpus 1 h100")
	m.read(155)
	if err := m.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.do("down")
	if err := m.Resume(t.Context()); kindOf(err) != kindConnection {
		t.Errorf("resume: %v", err)
	}
	if _, err := m.tryRead(155); kindOf(err) != kindConnection {
		t.Errorf("read: %v", err)
	}
	m.do("up")
	m.until("it answers", nil, func(gpu.Reading) string { return "" })
}

func TestReleaseSaysWhatStillHoldsTheDriver(t *testing.T) {
	m := node(t, "gpus 2 h100")
	m.read(155)
	m.do("hang 1")
	ctx, done := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer done()
	if _, err := m.Read(ctx, nil); err != nil {
		t.Fatal(err)
	}
	soon, done := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer done()
	if err := m.Release(soon); err == nil {
		t.Error("released while a call hangs")
	}
	if _, err := m.tryRead(); kindOf(err) != kindReleased {
		t.Errorf("read: %v", err)
	}
	m.do("unhang 1")
	m.state("the engine is let go of", func(s dcgmsim.State) bool { return !s.Embedded })
	if err := m.Resume(t.Context()); err != nil {
		t.Errorf("resume: %v", err)
	}
	m.until("it answers", []gpu.FieldID{155}, func(r gpu.Reading) string {
		if cell(r, 1, 155)[0] == '(' {
			return cell(r, 1, 155)
		}
		return ""
	})
}

// Nothing needs to come back for a reading to say that the driver was let go of.
func TestAReadingAfterReleaseErrsAtOnceThoughEverythingHangs(t *testing.T) {
	m := node(t, "gpus 2 h100")
	m.read(155)
	m.do("hang all")
	ctx, done := context.WithCancel(t.Context())
	under := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := m.Read(ctx, nil)
			under <- err
		}()
	}
	m.state("a call hangs", func(s dcgmsim.State) bool { return s.Blocked > 0 })
	released := make(chan error)
	go func() { released <- m.Release(ctx) }()
	// The second of the readings waits for its turn no longer.
	if err := <-under; kindOf(err) != kindReleased {
		t.Errorf("a reading that waits: %v", err)
	}
	for range 3 {
		if _, err := m.tryRead(); kindOf(err) != kindReleased {
			t.Errorf("read: %v", err)
		}
	}
	done()
	if err := <-released; err == nil {
		t.Error("released while everything hangs")
	}
	<-under
	if _, err := m.Read(t.Context(), nil); kindOf(err) != kindReleased {
		t.Errorf("read: %v", err)
	}
	m.do("unhang all")
	m.state("the engine is let go of", func(s dcgmsim.State) bool { return !s.Embedded })
	if err := m.Resume(t.Context()); err != nil {
		t.Errorf("resume: %v", err)
	}
	m.until("it answers", nil, func(gpu.Reading) string { return "" })
}

func TestTriesAreFurtherAndFurtherApart(t *testing.T) {
	sim := pretend(t, "engine embedded")
	l, err := load(sim.Path)
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Log: node(t, "gpus 1 h100").settings.log}
	cfg.Endpoint, _ = ParseEndpoint(socket)
	c := newConnection(l, "4.6.0", &cfg, 0)
	pauses := []time.Duration{1, 2, 4, 8, 16, 30, 30}
	for i, p := range pauses {
		p *= time.Second
		before := time.Now()
		c.try()
		if wait := c.next.Sub(before); c.err == nil || wait < p/2 || wait > p+time.Second {
			t.Errorf("after try %d (%v) the next is in %s, want %s to %s", i, c.err, wait, p/2, p)
		}
	}
}

func TestVersionsAreComparedByNumber(t *testing.T) {
	for _, tc := range []struct {
		version string
		older   bool
	}{
		{"4.3.0", true}, {"4.3.1", false}, {"4.10.0", false}, {"4.2.9", true}, {"3.9.9", true}, {"5.0.0", false}, {"", false}, {"4.3", false}, {"x.y.z", false},
	} {
		if got := older(tc.version, "4.3.1"); got != tc.older {
			t.Errorf("%q is older than 4.3.1: %v", tc.version, got)
		}
	}
}

// Packets that vanish without a word are seen by a question that needs no GPU and has no answer.
func TestAHostEngineThatNoLongerAnswersIsConnectedToAnew(t *testing.T) {
	sim := pretend(t, "strict on", "gpus 1 h100", "engine remote")
	m := openOn(t, sim, func(c *Config) { c.Endpoint = Endpoint{address: "127.0.0.1:5555"} })
	m.until("the first answer", []gpu.FieldID{155}, func(r gpu.Reading) string { return "" })
	before, _ := m.sim.Calls()
	m.do("fail dcgmGetAllDevices -11 1")
	if _, err := m.tryRead(155); err == nil {
		t.Error("no error")
	}
	m.until("the next answer", []gpu.FieldID{155}, func(r gpu.Reading) string { return "" })
	if after, _ := m.sim.Calls(); after["dcgmConnect_v2"] != before["dcgmConnect_v2"]+1 {
		t.Errorf("connected %d times, then %d", before["dcgmConnect_v2"], after["dcgmConnect_v2"])
	}
}
