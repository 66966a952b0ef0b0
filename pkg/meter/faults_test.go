// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"
)

func TestLogHasALinePerChangeAndNonePerTick(t *testing.T) {
	m := newMachine()
	var buf bytes.Buffer
	log := slog.New(slog.NewTextHandler(&buf, nil))
	turning(t, m, func(c *Config) { c.Log = log }, func(t *testing.T, mt *Meter) {
		after(time.Minute)
		m.set(func(m *machine) { m.listErr = errors.New("gone") })
		after(time.Minute)
		m.set(func(m *machine) { m.listErr = nil })
		after(time.Minute)
	})
	if n := strings.Count(buf.String(), "\n"); n != 2 || !strings.Contains(buf.String(), "lasted=1m0s") {
		t.Errorf("%d lines, want one when it broke and one when it healed:\n%s", n, buf.String())
	}
}

func TestFaultThatComesAndGoesIsLoggedAFewTimesAndThenOnceAMinute(t *testing.T) {
	m := newMachine()
	var buf bytes.Buffer
	log := slog.New(slog.NewTextHandler(&buf, nil))
	turning(t, m, func(c *Config) { c.Log, c.Interval = log, time.Second }, func(t *testing.T, mt *Meter) {
		for i := range 180 {
			m.set(func(m *machine) {
				if m.listErr = nil; i%2 == 0 {
					m.listErr = errors.New("flapping")
				}
			})
			after(time.Second)
		}
	})
	if n := strings.Count(buf.String(), "msg=fault "); n != 5 {
		t.Errorf("%d lines in three minutes, want 3 and one for each further minute:\n%s", n, buf.String())
	}
}

func TestFaultThatLastsIsSaidAgainWithWhatItCosts(t *testing.T) {
	m := newMachine()
	var buf bytes.Buffer
	log := slog.New(slog.NewTextHandler(&buf, nil))
	turning(t, m, func(c *Config) { c.Log = log }, func(t *testing.T, mt *Meter) {
		m.set(func(m *machine) { m.listErr = kindly{errors.New("no such socket")} })
		after(25 * time.Minute)
	})
	lines := strings.Split(strings.TrimSpace(buf.String()), "\n")
	if len(lines) != 3 {
		t.Fatalf("%d lines in 25 minutes, want 3:\n%s", len(lines), buf.String())
	}
	for i, want := range []string{"stands in until it is 5m0s old", "older than 5m0s", "lasted=20m0s"} {
		if !strings.Contains(lines[i], want) || !strings.Contains(lines[i], "no such socket") {
			t.Errorf("line %d does not say %q: %s", i+1, want, lines[i])
		}
	}
}

func TestFaultThatComesBackAndStaysIsTold(t *testing.T) {
	m := newMachine()
	var buf bytes.Buffer
	log := slog.New(slog.NewTextHandler(&buf, nil))
	turning(t, m, func(c *Config) { c.Log = log }, func(t *testing.T, mt *Meter) {
		broken := func(err error) { m.set(func(m *machine) { m.listErr = err }) }
		broken(errors.New("gone"))
		after(10 * time.Second)
		broken(nil)
		after(10 * time.Second)
		broken(errors.New("gone for good"))
		after(10 * time.Minute)
	})
	if lines := strings.Split(strings.TrimSpace(buf.String()), "\n"); len(lines) != 3 || !strings.Contains(lines[2], "gone for good") {
		t.Errorf("the last word of the log must be that it is broken:\n%s", buf.String())
	}
}

func TestASecondOutageSoonAfterTheFirstIsToldAtOnce(t *testing.T) {
	m := newMachine()
	var buf bytes.Buffer
	log := slog.New(slog.NewTextHandler(&buf, nil))
	turning(t, m, func(c *Config) { c.Log, c.Interval = log, time.Second }, func(t *testing.T, mt *Meter) {
		for range 2 {
			m.set(func(m *machine) { m.listErr = errors.New("gone") })
			after(5 * time.Second)
			m.set(func(m *machine) { m.listErr = nil })
			after(5 * time.Second)
		}
	})
	if began, ended := strings.Count(buf.String(), "msg=fault "), strings.Count(buf.String(), "fault is over"); began != 2 || ended != 2 {
		t.Errorf("%d beginnings and %d ends are told, want 2 each:\n%s", began, ended, buf.String())
	}
}
