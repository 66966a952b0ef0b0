// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/meter"
)

// defaultInterval stands in where a snapshot does not know its interval yet.
const defaultInterval = 30 * time.Second

func interval(s *meter.Snapshot) time.Duration {
	if s.Interval <= 0 {
		return defaultInterval
	}
	return s.Interval
}

// alive reports whether the loop turns, with a sentence.
func (e *Exporter) alive(s *meter.Snapshot) (bool, string) {
	limit := interval(s)*5/2 + 5*time.Second
	since, what := s.Time, "the last tick"
	if s.Seq == 0 {
		since, what = e.started, "the start without a tick"
	}
	age := max(time.Since(since), 0).Round(time.Millisecond)
	if age > limit {
		return false, fmt.Sprintf("the loop does not turn: %v since %s, more than %v", age, what, limit)
	}
	return true, fmt.Sprintf("the loop turns: %v since %s", age, what)
}

// ready reports whether /metrics has something to say of the GPUs, with a sentence. Values
// that are too old are not shown, so a source that is away for longer costs readiness; an
// engine that restarts does not.
func (e *Exporter) ready(s *meter.Snapshot) (bool, string) {
	if s.Seq == 0 {
		return false, "not ready: awaiting the first tick"
	}
	i := slices.IndexFunc(s.Sources, func(source meter.SourceState) bool {
		return source.Name == meter.SourceTelemetry && !source.LastSuccess.IsZero()
	})
	if i < 0 {
		return false, "not ready: awaiting the first answer of the telemetry source" + complaint(s)
	}
	telemetry, limit := s.Sources[i], cmp.Or(e.cfg.ReadingMaxAge, interval(s)*5/2)
	if telemetry.Age > limit {
		return false, fmt.Sprintf("not ready: no answer of the telemetry source for %v, more than %v%s", telemetry.Age.Round(time.Millisecond), limit, complaint(s))
	}
	if alive, sentence := e.alive(s); !alive {
		return false, "not ready: " + sentence
	}
	if silent, why := allSilent(s, telemetry.Up); silent {
		return false, "not ready: no GPU answers" + why
	}
	if !telemetry.Up {
		return true, "ready with earlier values, since the telemetry source does not answer" + complaint(s)
	}
	return true, "ready"
}

// allSilent reports whether no physical GPU gives a value because all of them are lost or hang,
// with the first reason after a colon. Where the source answers and lists none, a fault that
// concerns no GPU says that it could not look; that there is none is an answer.
func allSilent(s *meter.Snapshot, answers bool) (bool, string) {
	silent, why, unseen := make(map[gpu.UUID]bool), "", false
	for _, f := range s.Faults {
		if f.Source != meter.SourceTelemetry {
			continue
		}
		hangs := f.Kind == gpu.ReasonTimeout.String() || f.Kind == gpu.ReasonLost.String()
		unlisted := answers && f.Subject == "" && f.Kind != gpu.ReasonNotFound.String()
		silent[f.Subject] = silent[f.Subject] || hangs
		unseen = unseen || unlisted
		if why == "" && (hangs || unlisted) {
			why = ": " + oneLine(f.Text)
		}
	}
	for i := range s.Reading.Devices {
		if d := &s.Reading.Devices[i]; !d.IsMIG() && !d.Lost && !silent[d.UUID] {
			return false, ""
		}
	}
	if slices.ContainsFunc(s.Reading.Samples, func(sample gpu.Sample) bool {
		return sample.Entity.GPU != "" && slices.ContainsFunc(sample.Values, gpu.Value.Present)
	}) {
		return false, ""
	}
	return unseen || len(s.Reading.Devices) > 0, why
}

// complaint is why the telemetry source does not answer, as far as it is known.
func complaint(s *meter.Snapshot) string {
	for _, f := range s.Faults {
		if f.Source == meter.SourceTelemetry && f.Subject == "" {
			return ": " + oneLine(f.Text)
		}
	}
	return ""
}

// deviceFault is what is wrong with one GPU or MIG device now, for people. Device is the source's
// name where it could not tell which.
type deviceFault struct{ Device, Text string }

// maxDeviceFaults bounds what is told about a node on which everything fails.
const maxDeviceFaults = 32

// deviceFaults are the faults of single devices, and those of a telemetry source that answers all
// the same; where there are too many, the last entry counts the others. Why a source does not
// answer is complaint's.
func deviceFaults(s *meter.Snapshot) []deviceFault {
	answers := slices.ContainsFunc(s.Sources, func(source meter.SourceState) bool {
		return source.Name == meter.SourceTelemetry && source.Up
	})
	var told []deviceFault
	more := 0
	for _, f := range s.Faults {
		switch {
		case f.Subject == "" && (f.Source != meter.SourceTelemetry || !answers):
		case len(told) == maxDeviceFaults:
			more++
		case f.Subject == "":
			told = append(told, deviceFault{f.Source, oneLine(f.Kind + ": " + f.Text)})
		default:
			name := string(f.Subject)
			if i := slices.IndexFunc(s.Reading.Devices, func(d gpu.Device) bool { return d.UUID == f.Subject }); i >= 0 {
				name = fmt.Sprintf("GPU %d, %s", s.Reading.Devices[i].Index, name)
			}
			told = append(told, deviceFault{oneLine(name), oneLine(f.Kind + ": " + f.Text)})
		}
	}
	if more > 0 {
		told = append(told, deviceFault{"other devices", fmt.Sprintf("%d more faults, counted in /metrics", more)})
	}
	return told
}

// oneLine keeps foreign text from adding lines to a body that is read by line.
func oneLine(s string) string {
	return strings.Join(strings.Fields(clean(s)), " ")
}

func (e *Exporter) serveLive(w http.ResponseWriter, _ *http.Request) {
	s := e.latest()
	ok, sentence := e.alive(s)
	answer(w, ok, sentence, s)
}

func (e *Exporter) serveReady(w http.ResponseWriter, _ *http.Request) {
	s := e.latest()
	ok, sentence := e.ready(s)
	answer(w, ok, sentence, s)
}

// serveHealth answers 200 whatever happens, as dcgm-exporter does: its charts probe
// this path, and a restart heals neither a GPU nor a driver.
func (e *Exporter) serveHealth(w http.ResponseWriter, _ *http.Request) {
	s := e.latest()
	sentence := "OK"
	if ok, why := e.ready(s); !ok {
		sentence = "OK, " + why
	}
	answer(w, true, sentence, s)
}

// answer writes a probe's sentence, the sources with their ages and the devices with a
// fault, one a line.
func answer(w http.ResponseWriter, ok bool, sentence string, s *meter.Snapshot) {
	var b strings.Builder
	b.WriteString(sentence + "\n")
	for _, source := range s.Sources {
		fmt.Fprintf(&b, "%s: %s\n", source.Name, sourceAge(source, s.Time))
	}
	for _, f := range deviceFaults(s) {
		fmt.Fprintf(&b, "%s: %s\n", f.Device, f.Text)
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	if !ok {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_, _ = w.Write([]byte(b.String()))
}

// sourceAge is a source's state in words. Its age grows on after the snapshot at
// taken.
func sourceAge(s meter.SourceState, taken time.Time) string {
	state := "down"
	if s.Up {
		state = "up"
	}
	if s.LastSuccess.IsZero() {
		state += ", no answer yet"
	} else {
		age := s.Age + max(time.Since(taken), 0)
		state += fmt.Sprintf(", last answer %v ago", age.Round(time.Millisecond))
	}
	if s.Outstanding > 0 {
		state += fmt.Sprintf(", waiting for %v", s.Outstanding.Round(time.Millisecond))
	}
	return state
}
