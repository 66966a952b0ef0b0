// SPDX-License-Identifier: Apache-2.0

package dcgmsim_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/gpumeter/gpumeter/tests/dcgmsim"
)

// A machine is a pretend libdcgm and the client of it, a process of its own.
type machine struct {
	*dcgmsim.Sim
	client
}

// A client is testdata's program, which makes one call for each line.
type client struct {
	t      *testing.T
	in     io.Writer
	out    *bufio.Reader
	errors *bytes.Buffer
	wait   func() error
}

// buildProbe compiles the client.
func buildProbe(t *testing.T) string {
	t.Helper()
	for _, compiler := range []string{"gcc", "cc", "clang"} {
		if _, err := exec.LookPath(compiler); err != nil {
			continue
		}
		probe := filepath.Join(t.TempDir(), "probe")
		args := []string{"-std=gnu11", "-O0", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", probe}
		sources, err := filepath.Glob("testdata/*.c")
		if err != nil {
			t.Fatal(err)
		}
		if said, err := exec.CommandContext(t.Context(), compiler, append(append(args, sources...), "-ldl")...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", compiler, err, said)
		}
		return probe
	}
	t.Skip(dcgmsim.ErrNoCompiler)
	return ""
}

func startClient(t *testing.T, probe string, env []string, libraries ...string) client {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), probe, libraries...)
	cmd.Env = append(os.Environ(), env...)
	c := client{t: t, errors: new(bytes.Buffer)}
	cmd.Stderr = c.errors
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c.in, c.out = in, bufio.NewReader(out)
	c.wait = func() error {
		return errors.Join(in.Close(), cmd.Wait())
	}
	return c
}

// newMachine makes a machine of the scenario, with dcgmInit done.
func newMachine(t *testing.T, probe, scenario string) *machine {
	t.Helper()
	sim, err := dcgmsim.New(t.TempDir(), scenario)
	if errors.Is(err, dcgmsim.ErrNoCompiler) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{Sim: sim, client: startClient(t, probe, nil, sim.Path)}
	t.Cleanup(func() { _ = m.wait() })
	return m
}

// newEngine is newMachine with an embedded engine running.
func newEngine(t *testing.T, probe, scenario string) *machine {
	t.Helper()
	m := newMachine(t, probe, scenario)
	m.must("init")
	m.must("start")
	return m
}

// do makes a call; it returns what it found and its return code.
func (c *client) do(command string) ([]string, int) {
	c.t.Helper()
	if _, err := fmt.Fprintln(c.in, command); err != nil {
		c.t.Fatalf("%s: %v\n%s", command, err, c.errors)
	}
	var lines []string
	for {
		line, err := c.out.ReadString('\n')
		if err != nil {
			c.t.Fatalf("%s: the client is gone: %v\n%s", command, err, c.errors)
		}
		line = strings.TrimSuffix(line, "\n")
		if code, ok := strings.CutPrefix(line, ". "); ok {
			rc, err := strconv.Atoi(code)
			if err != nil {
				c.t.Fatal(err)
			}
			return lines, rc
		}
		lines = append(lines, line)
	}
}

// must is do for a call that has to succeed.
func (c *client) must(command string) []string {
	c.t.Helper()
	lines, rc := c.do(command)
	if rc != 0 {
		c.t.Fatalf("%s returned %d, want 0", command, rc)
	}
	return lines
}

// returns says that the call returns the code.
func (c *client) returns(command string, want int) []string {
	c.t.Helper()
	lines, rc := c.do(command)
	if rc != want {
		c.t.Errorf("%s returned %d, want %d", command, rc, want)
	}
	return lines
}

// finds says that the call succeeds and finds exactly these lines.
func (c *client) finds(command string, want ...string) {
	c.t.Helper()
	got := c.must(command)
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		c.t.Errorf("%s found\n\t%s\nwant\n\t%s", command, strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

// change gives the machine commands.
func (m *machine) change(commands ...string) {
	m.t.Helper()
	if err := m.Do(commands...); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) state() dcgmsim.State {
	m.t.Helper()
	state, err := m.State()
	if err != nil {
		m.t.Fatal(err)
	}
	return state
}

// A value is one line of a read.
type value struct {
	entity, field, kind string
	status              int
	ts                  int64
	text                string
}

func parseValue(t *testing.T, line string) value {
	t.Helper()
	words := strings.SplitN(line, " ", 6)
	if len(words) != 6 {
		t.Fatalf("%q is no value", line)
	}
	status, err := strconv.Atoi(words[3])
	if err != nil {
		t.Fatal(err)
	}
	ts, err := strconv.ParseInt(words[4], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return value{entity: words[0], field: words[1], kind: words[2], status: status, ts: ts, text: words[5]}
}

// values reads; a record that has more written than its value is an error.
func (c *client) values(command string) []value {
	c.t.Helper()
	var values []value
	for _, line := range c.must(command) {
		if strings.HasPrefix(line, "next ") {
			continue
		}
		if strings.HasSuffix(line, "DIRTY") {
			c.t.Errorf("%s wrote more of a record than its value: %s", command, line)
		}
		values = append(values, parseValue(c.t, line))
	}
	return values
}

// watched makes a group, a field group and a watch of one second.
func (c *client) watched(entities, fields string) {
	c.t.Helper()
	c.must("group " + entities)
	c.must("fields " + fields + " fields")
	c.must("watch 1000000 0 0")
}

// watchedAs is watched for a second field group.
func (c *client) watchedAs(name, entities, fields string) {
	c.t.Helper()
	c.must("group " + entities)
	c.must("fields " + fields + " " + name)
	c.must("watch 1000000 0 0")
}
