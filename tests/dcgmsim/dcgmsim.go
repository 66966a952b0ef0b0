// SPDX-License-Identifier: Apache-2.0

// Package dcgmsim is a pretend libdcgm.so.4: a small C library with DCGM's binary
// interface, over a machine that a scenario describes and that a test changes while
// it runs. It states the interface on its own, so that it does not share a mistake
// with the binding it is there to test. README.md has the scenario's words.
//
//	sim, err := dcgmsim.New(t.TempDir(), "gpus 2 h100")
//	// load sim.Path as libdcgm, start an engine, then
//	err = sim.Do("xid 1 79", "hang 0")
package dcgmsim

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Sim is one copy of the library with its own machine. Its methods may be called
// from several goroutines at once, and while other processes use the library.
type Sim struct {
	// Path is the library, to be given to dlopen. It is named libdcgm.so.4 and alone
	// in its folder, so the folder also does as LD_LIBRARY_PATH.
	Path string
}

// New builds the library in the version that the scenario names (the newest when it
// names none), into a new folder below dir, and puts the scenario beside it. An error
// in the scenario shows when the library first reads it: dcgmInit returns -7, and
// Err says why.
func New(dir, scenario string) (*Sim, error) {
	version, err := versionOf(scenario)
	if err != nil {
		return nil, err
	}
	path, err := BuildVersion(dir, version)
	if err != nil {
		return nil, err
	}
	s := &Sim{Path: path}
	if err := os.WriteFile(s.scenario(), []byte(scenario+"\n"), 0o600); err != nil {
		return nil, fmt.Errorf("write the scenario of the pretend libdcgm: %w", err)
	}
	return s, nil
}

// Do appends lines to the scenario. The library obeys them at the start of the next
// call into it, and within 20 ms in a call that hangs.
func (s *Sim) Do(commands ...string) error {
	file, err := os.OpenFile(s.scenario(), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("change the pretend machine: %w", err)
	}
	// One write, so that the library sees all of the lines or none.
	_, err = file.WriteString(strings.Join(commands, "\n") + "\n")
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("change the pretend machine: %w", err)
	}
	return s.Err()
}

// Calls is how often each function of the library was called, by its C name; those
// never called are left out. Before the library is loaded it is empty.
func (s *Sim) Calls() (map[string]int, error) {
	t, err := s.readTrace()
	if err != nil {
		return nil, err
	}
	calls := make(map[string]int)
	for _, c := range t.calls {
		if c.Count > 0 {
			calls[cString(c.Name[:])] = int(c.Count)
		}
	}
	return calls, nil
}

// Err is what is wrong with the scenario, with file and line, as far as the library
// has read it; or nil.
func (s *Sim) Err() error {
	t, err := s.readTrace()
	if err != nil {
		return err
	}
	if text := cString(t.head.Error[:]); text != "" {
		return fmt.Errorf("%w: %s", ErrScenario, text)
	}
	return nil
}

// ErrScenario is an error in a scenario.
var ErrScenario = errors.New("bad scenario of the pretend libdcgm")

// State is what the library holds at the moment.
type State struct {
	// Groups and FieldGroups are those that callers made and did not destroy.
	Groups, FieldGroups int
	// Watches are the pairs of an entity and a field that are watched.
	Watches int
	// Connections are the open ones to the remote engine.
	Connections int
	// Embedded is whether an embedded engine runs.
	Embedded bool
	// Blocked are the calls that hang right now or are made slow.
	Blocked int
	// Pending is whether there are lines that the library has not read yet.
	Pending bool
}

// State looks at the library from outside, without calling it. Before the library is
// loaded it has nothing but Pending.
func (s *Sim) State() (State, error) {
	t, err := s.readTrace()
	if err != nil {
		return State{}, err
	}
	info, err := os.Stat(s.scenario())
	if err != nil {
		return State{}, fmt.Errorf("look at the scenario of the pretend libdcgm: %w", err)
	}
	h := t.head
	return State{
		Groups: int(h.Groups), FieldGroups: int(h.FieldGroups), Watches: int(h.Watches), Connections: int(h.Connections),
		Embedded: h.Embedded != 0, Blocked: int(h.Blocked), Pending: h.Consumed < uint64(info.Size()),
	}, nil
}

// Wait waits until the state satisfies the condition, and gives up with an error that
// has the last state when that takes longer than the timeout.
func (s *Sim) Wait(timeout time.Duration, until func(State) bool) error {
	const pause = 2 * time.Millisecond
	for deadline := time.Now().Add(timeout); ; time.Sleep(pause) {
		state, err := s.State()
		switch {
		case err != nil:
			return err
		case until(state):
			return nil
		case time.Now().After(deadline):
			return fmt.Errorf("the pretend libdcgm was not in the wanted state after %v: %+v", timeout, state)
		}
	}
}

func (s *Sim) scenario() string { return s.Path + ".scenario" }

// The trace is what trace.c writes: a head, then a counter for each function.
type trace struct {
	head  traceHead
	calls []traceCall
}

type traceHead struct {
	Magic                                  [8]byte
	Consumed, Blocked, Groups, FieldGroups uint64
	Watches, Connections, Embedded, _      uint64
	Error                                  [1024]byte
}

type traceCall struct {
	Name  [56]byte
	Count uint64
}

func (s *Sim) readTrace() (trace, error) {
	var t trace
	raw, err := os.ReadFile(s.Path + ".trace")
	if errors.Is(err, fs.ErrNotExist) || len(raw) == 0 && err == nil {
		return t, nil
	}
	if err != nil {
		return t, fmt.Errorf("look into the pretend libdcgm: %w", err)
	}
	reader := bytes.NewReader(raw)
	if err := binary.Read(reader, binary.LittleEndian, &t.head); err != nil {
		return t, fmt.Errorf("look into the pretend libdcgm: %s.trace: %w", s.Path, err)
	}
	t.calls = make([]traceCall, reader.Len()/binary.Size(traceCall{}))
	if err := binary.Read(reader, binary.LittleEndian, t.calls); err != nil {
		return t, fmt.Errorf("look into the pretend libdcgm: %s.trace: %w", s.Path, err)
	}
	return t, nil
}

func cString(raw []byte) string {
	text, _, _ := bytes.Cut(raw, []byte{0})
	return string(text)
}

// versionOf is the version that a scenario asks for.
func versionOf(scenario string) (string, error) {
	for line := range strings.Lines(scenario) {
		words := strings.Fields(line)
		if len(words) >= 2 && words[0] == "version" {
			if _, err := versionNumber(words[1]); err != nil {
				return "", err
			}
			return words[1], nil
		}
	}
	return newest, nil
}

// fresh is a new folder for one copy of the library.
func fresh(dir string) (string, error) {
	folder, err := os.MkdirTemp(dir, "dcgmsim-")
	if err != nil {
		return "", fmt.Errorf("make a folder for the pretend libdcgm: %w", err)
	}
	return filepath.Join(folder, soname), nil
}
