// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
	"context"
	"errors"
	goflag "flag"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/pkg/dcgm"
	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/nvml"
)

var update = goflag.Bool("update", false, "write the golden files anew")

// golden holds got against a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s (-want +got):\n%s", file, d)
	}
}

// eventuallySays waits until the log has a text.
func eventuallySays(t *testing.T, l *logs, text string) {
	t.Helper()
	for end := time.Now().Add(15 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if strings.Contains(l.String(), text) {
			return
		}
	}
	t.Fatalf("the log never said %q:\n%s", text, l)
}

// card is a machine with one GPU, whose driver can be let go of, fail and hang.
type card struct {
	name string

	mu     sync.Mutex
	story  []string
	held   bool
	broken error
	// hang is what a call waits for.
	hang chan struct{}
	// onClose is called first by Close.
	onClose func()
}

func newCard(name string) *card { return &card{name: name, held: true} }

func (c *card) did(what string) error {
	c.mu.Lock()
	hang := c.hang
	c.story = append(c.story, c.name+" "+what)
	err := c.broken
	c.mu.Unlock()
	if hang != nil {
		<-hang
	}
	return err
}

func (c *card) Read(_ context.Context, fields []gpu.FieldID) (gpu.Reading, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.held {
		return gpu.Reading{}, errors.New("released")
	}
	values := make([]gpu.Value, len(fields))
	for i := range values {
		values[i] = gpu.Int(1)
	}
	return gpu.Reading{
		Time: time.Now(), Source: c.name, Fields: slices.Clone(fields),
		Devices: []gpu.Device{{UUID: "GPU-0", InstanceEntity: gpu.NoInstance}},
		Samples: []gpu.Sample{{Entity: gpu.Entity{Kind: gpu.KindGPU, GPU: "GPU-0"}, Time: time.Now(), Values: values}},
	}, nil
}

func (c *card) Origin() gpu.Origin {
	return gpu.Origin{Library: "lib" + c.name + " 1.0", Driver: "570.86"}
}
func (c *card) Facts() []string { return []string{"lib" + c.name + " 1.0"} }

func (c *card) Close() error {
	if c.onClose != nil {
		c.onClose()
	}
	return c.did("closed")
}

func (c *card) Release(context.Context) error { return c.hold(false, "released") }
func (c *card) Resume(context.Context) error  { return c.hold(true, "resumed") }

func (c *card) hold(held bool, what string) error {
	if err := c.did(what); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held = held
	return nil
}

func (c *card) breaks(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.broken = err
}

func (c *card) told() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.story)
}

// machine is a Sources on which DCGM and NVML are what is given: a *card or an error.
func machine(cfg Config, viaDCGM, viaNVML any) *Sources {
	s := NewSources(cfg, slog.New(slog.DiscardHandler))
	opener := func(name string, what any) func() (Driver, error) {
		return s.once(name, func() (Driver, error) {
			if err, ok := what.(error); ok {
				return nil, err
			}
			return what.(Driver), nil
		})
	}
	s.nvml = opener(SourceNVML, viaNVML)
	inner := opener(SourceDCGM, viaDCGM)
	s.dcgm = func() (Driver, error) {
		_, _ = s.nvml()
		return inner()
	}
	return s
}

func with(change func(*Config)) Config {
	c := Defaults()
	if change != nil {
		change(&c)
	}
	return c
}

func TestWhichSourceIsTakenAndWhy(t *testing.T) {
	gone, stuck := dcgm.ErrNoLibrary, errors.New("the engine does not start: -38")
	remote := func(c *Config) { c.HostEngine = "unix:///run/engine" }
	source := func(name string) func(*Config) { return func(c *Config) { c.Source = name } }
	tests := []struct {
		name                string
		change              func(*Config)
		dcgm, nvml          any
		want, reason, fails string
	}{
		{"auto with both", nil, newCard("dcgm"), newCard("nvml"), "dcgm", "libdcgm is there", ""},
		{"auto with DCGM alone", nil, newCard("dcgm"), nvml.ErrNoLibrary, "dcgm", "libdcgm is there", ""},
		{"auto without libdcgm", nil, gone, newCard("nvml"), "nvml", "there is no libdcgm", ""},
		{"auto with an engine that does not start", nil, stuck, newCard("nvml"), "nvml", "the engine of libdcgm does not start", ""},
		{"auto with neither", nil, gone, nvml.ErrNoLibrary, "", "", "--source=auto found nothing"},
		{"auto with a host engine named", remote, newCard("dcgm"), newCard("nvml"), "dcgm", "a host engine was named", ""},
		// NVML would show other GPUs than those asked for.
		{"a host engine named and no libdcgm", remote, gone, newCard("nvml"), "", "", "--remote-hostengine-info unix:///run/engine"},
		{"dcgm", source("dcgm"), newCard("dcgm"), nvml.ErrNoLibrary, "dcgm", "asked for by --source", ""},
		{"dcgm does not fall back", source("dcgm"), gone, newCard("nvml"), "", "", "--source=dcgm"},
		{"nvml with both", source("nvml"), newCard("dcgm"), newCard("nvml"), "nvml", "asked for by --source", ""},
		{"nvml does not fall back", source("nvml"), newCard("dcgm"), nvml.ErrNoDriver, "", "", "--source=nvml"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := machine(with(tt.change), tt.dcgm, tt.nvml)
			defer s.Close()
			got, err := s.Choose()
			if tt.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tt.fails) {
					t.Fatalf("took %q, %v; want an error with %q", got.Name, err, tt.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got.Name != tt.want || got.Reason != tt.reason || got.Driver.Origin().Library != "lib"+tt.want+" 1.0" {
				t.Errorf("took %s, %q through %+v", got.Name, got.Reason, got.Driver.Origin())
			}
		})
	}
}

func TestAutoSaysWhatItLookedForGolden(t *testing.T) {
	cfg := with(func(c *Config) { c.DCGMLibrary, c.NVMLLibrary = "/nowhere/libdcgm.so.4", "/nowhere/libnvidia-ml.so.1" })
	s := NewSources(cfg, slog.New(slog.DiscardHandler))
	defer s.Close()
	_, err := s.Choose()
	if !errors.Is(err, dcgm.ErrNoLibrary) || !errors.Is(err, nvml.ErrNoLibrary) {
		t.Fatalf("error %v, want one of both libraries", err)
	}
	golden(t, "no-source.txt", err.Error()+"\n")
}

func TestPassingOverALibraryIsLogged(t *testing.T) {
	var out bytes.Buffer
	a := &App{log: slog.New(slog.NewTextHandler(&out, nil)), sources: machine(Defaults(), errors.New("the engine does not start: -38"), newCard("nvml"))}
	t.Cleanup(func() { _ = a.close() })
	if err := a.choose(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"level=WARN msg=\"GPUs cannot be read through dcgm\"", "-38", "source=nvml", "because=\"the engine of libdcgm does not start\"", "driver=570.86"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the log does not say %s:\n%s", want, out.String())
		}
	}
}

func TestALibraryIsOpenedOnceWhateverAsks(t *testing.T) {
	opened := 0
	s := NewSources(Defaults(), slog.New(slog.DiscardHandler))
	s.nvml = s.once(SourceNVML, func() (Driver, error) { opened++; return newCard("nvml"), nil })
	s.dcgm = s.once(SourceDCGM, func() (Driver, error) { return nil, dcgm.ErrNoLibrary })
	for range 3 {
		if _, err := s.Choose(); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Beside(); err != nil {
			t.Fatal(err)
		}
	}
	if opened != 1 {
		t.Errorf("opened %d times", opened)
	}
}

func TestADriverThatHangsOnOpeningIsPassedOverAndClosedWhenItComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late, came := newCard("dcgm"), make(chan struct{})
		s := NewSources(Defaults(), slog.New(slog.DiscardHandler))
		s.nvml = s.once(SourceNVML, func() (Driver, error) { return newCard("nvml"), nil })
		s.dcgm = s.once(SourceDCGM, func() (Driver, error) { <-came; return late, nil })
		got, err := s.Choose()
		if err != nil || got.Name != SourceNVML {
			t.Fatalf("took %q, %v", got.Name, err)
		}
		if text := got.Passed[0].Err.Error(); !strings.Contains(text, "30s") || !strings.Contains(text, "hang") {
			t.Errorf("passed over with %q", text)
		}
		close(came)
		synctest.Wait()
		if d := cmp.Diff([]string{"dcgm closed"}, late.told()); d != "" {
			t.Errorf("what came late (-want +got):\n%s", d)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestClosingEndsWhateverHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, n := newCard("dcgm"), newCard("nvml")
		d.hang = make(chan struct{})
		s := machine(Defaults(), d, n)
		if _, err := s.Choose(); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		err := s.Close()
		if took := time.Since(began); err == nil || !strings.Contains(err.Error(), "close dcgm") || took != closePatience {
			t.Errorf("error %v after %v", err, took)
		}
		// What DCGM has from NVML, it has until it is closed.
		if d := cmp.Diff([]string{"nvml closed"}, n.told()); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
		if err := s.Close(); err != nil {
			t.Errorf("closed twice: %v", err)
		}
		close(d.hang)
	})
}

// NVML answers DCGM's questions until DCGM has ended.
func TestWhatWasOpenedFirstIsClosedLast(t *testing.T) {
	d, n := newCard("dcgm"), newCard("nvml")
	s := machine(Defaults(), d, n)
	if _, err := s.Choose(); err != nil {
		t.Fatal(err)
	}
	n.onClose = func() {
		if len(d.told()) == 0 {
			t.Error("NVML is closed before DCGM")
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if len(n.told()) == 0 {
		t.Error("NVML is not closed")
	}
}

func TestReleaseLetsGoOfEverythingThatIsOpen(t *testing.T) {
	d, n := newCard("dcgm"), newCard("nvml")
	s := machine(Defaults(), d, n)
	defer s.Close()
	if _, err := s.Choose(); err != nil {
		t.Fatal(err)
	}
	if err := s.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.breaks(errors.New("no driver"))
	if err := s.Resume(t.Context()); err == nil || !strings.Contains(err.Error(), "nvml: no driver") {
		t.Errorf("error %v", err)
	}
	want := []string{"dcgm released", "dcgm resumed", "nvml released", "nvml resumed"}
	if d := cmp.Diff(want, slices.Concat(d.told(), n.told())); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestAPretendNodeHasNoDriverToLetGoOf(t *testing.T) {
	s := NewSources(simulated(), slog.New(slog.DiscardHandler))
	defer s.Close()
	if _, err := s.Choose(); err != nil {
		t.Fatal(err)
	}
	if err := s.Release(t.Context()); !errors.Is(err, errNothingToRelease) {
		t.Errorf("error %v", err)
	}
}

func TestTheHostLabelIsTheMachineThatHasTheGPUs(t *testing.T) {
	own, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		engine, want string
		change       func(*Config)
	}{
		{"", own, nil},
		{"gpu-7.example.com:5555", "gpu-7.example.com", nil},
		{"tcp://[2001:db8::7]:5555", "2001:db8::7", nil},
		{"localhost", own, nil},
		{"127.0.0.1:5555", own, nil},
		{"unix:///run/engine", own, nil},
		{"gpu-7:5555", own, func(c *Config) { c.Kubernetes = true }},
		{"gpu-7:5555", "n1", func(c *Config) { c.NodeName = "n1" }},
		{"gpu-7:5555", own, func(c *Config) { c.Source = SourceNVML }},
		{"gpu-7:5555", "", func(c *Config) { c.NoHostname = true }},
	} {
		c := with(tt.change)
		c.HostEngine = tt.engine
		if got, err := c.Hostname(""); err != nil || got != tt.want {
			t.Errorf("engine %q: %q, %v, want %q", tt.engine, got, err, tt.want)
		}
	}
}

func TestPretendNodesOfOneClusterHaveGPUsOfTheirOwn(t *testing.T) {
	first := func(node string, seed *uint64) string {
		c := aloof(simulated())
		c.NodeName = node
		if seed != nil {
			c.Seed, c.SeedSet = *seed, true
		}
		a := start(t, c)
		for s, stale := a.Meter().Watch(); ; s, stale = a.Meter().Watch() {
			if len(s.Reading.Devices) > 0 {
				return string(s.Reading.Devices[0].UUID)
			}
			<-stale
		}
	}
	a, b := first("a", nil), first("b", nil)
	if a == b || a != first("a", nil) {
		t.Errorf("GPU 0 of node a is %s, that of node b %s: each is to have its own, and keep it", a, b)
	}
	one := uint64(1)
	if first("a", &one) != first("b", &one) {
		t.Error("a seed that is given does not go before the node's name")
	}
}
