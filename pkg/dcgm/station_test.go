// SPDX-License-Identifier: Apache-2.0

package dcgm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/tests/dcgmsim"
)

// patience is how long a test waits for what must come.
const patience = 20 * time.Second

// interval is how often the tests' engines sample.
const interval = 20 * time.Millisecond

// station is a source opened on a pretend node.
type station struct {
	*testing.T
	*Source
	sim *dcgmsim.Sim
}

// pretend makes a node out of a scenario.
func pretend(t testing.TB, scenario ...string) *dcgmsim.Sim {
	t.Helper()
	sim, err := dcgmsim.New(t.TempDir(), strings.Join(scenario, "\n"))
	if errors.Is(err, dcgmsim.ErrNoCompiler) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return sim
}

// openOn opens a source on a node; with changes the configuration.
func openOn(t *testing.T, sim *dcgmsim.Sim, with func(*Config)) *station {
	t.Helper()
	cfg := Config{Library: sim.Path, Interval: interval}
	if with != nil {
		with(&cfg)
	}
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(errors.Join(err, sim.Err()))
	}
	t.Cleanup(func() {
		if err := errors.Join(s.Close(), sim.Err()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return &station{t, s, sim}
}

// node opens a source on a node of its own.
func node(t *testing.T, scenario ...string) *station {
	t.Helper()
	return openOn(t, pretend(t, append([]string{"strict on"}, scenario...)...), nil)
}

// do changes the node.
func (m *station) do(commands ...string) {
	m.Helper()
	if err := m.sim.Do(commands...); err != nil {
		m.Fatal(err)
	}
}

// tryRead reads within a second.
func (m *station) tryRead(fields ...gpu.FieldID) (gpu.Reading, error) {
	m.Helper()
	ctx, done := context.WithTimeout(m.Context(), time.Second)
	defer done()
	return m.Read(ctx, fields)
}

// read is a reading that must succeed.
func (m *station) read(fields ...gpu.FieldID) gpu.Reading {
	m.Helper()
	r, err := m.tryRead(fields...)
	if err != nil {
		m.Fatalf("read: %v", err)
	}
	return r
}

// until reads until why has nothing left to say.
func (m *station) until(what string, fields []gpu.FieldID, why func(gpu.Reading) string) gpu.Reading {
	m.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(interval) {
		r, err := m.tryRead(fields...)
		wrong := ""
		if err != nil {
			wrong = err.Error()
		} else {
			wrong = why(r)
		}
		if wrong == "" {
			return r
		}
		if time.Now().After(end) {
			m.Fatalf("%s: not within %s: %s", what, patience, wrong)
		}
	}
}

// state waits until the library is in a state.
func (m *station) state(what string, until func(dcgmsim.State) bool) {
	m.Helper()
	if err := m.sim.Wait(patience, until); err != nil {
		m.Fatalf("%s: %v", what, err)
	}
}

// sampleOf is the sample of an entity by its kind, its GPU's index and its number.
func sampleOf(r gpu.Reading, kind gpu.Kind, index, id int) (gpu.Sample, bool) {
	for _, s := range r.Samples {
		at := -1
		for _, d := range r.Devices {
			if d.UUID == s.Entity.GPU {
				at = d.Index
			}
		}
		if s.Entity.Kind == kind && at == index && s.Entity.ID == id {
			return s, true
		}
	}
	return gpu.Sample{}, false
}

// cell is a card's value of a field, as text: the value, or the reason in parentheses.
func cell(r gpu.Reading, index int, id gpu.FieldID) string {
	s, ok := sampleOf(r, gpu.KindGPU, index, 0)
	return shown(r, s, ok, id)
}

func shown(r gpu.Reading, s gpu.Sample, ok bool, id gpu.FieldID) string {
	col := slices.Index(r.Fields, id)
	if !ok || col < 0 {
		return "(none)"
	}
	v := s.Values[col]
	if n, ok := v.AsInt(); ok {
		return fmt.Sprint(n)
	}
	if f, ok := v.AsFloat(); ok {
		return fmt.Sprint(f)
	}
	if text, ok := v.AsText(); ok {
		return text
	}
	return "(" + v.Reason().String() + ")"
}

// divided cuts each of n GPUs into seven.
func divided(n int) []string {
	var commands []string
	for i := range n {
		commands = append(commands, fmt.Sprintf("mig %d on", i))
		for gi := range 7 {
			commands = append(commands, fmt.Sprintf("gi %d profile 1g.10gb nvml %d placement %d ci", i, 7+gi, gi))
		}
	}
	return commands
}
