// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/cmd/gpumeter-exporter/app"
	"github.com/gpumeter/gpumeter/pkg/dcgm"
	"github.com/gpumeter/gpumeter/pkg/exporter"
	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/nvml"
)

// checkCounters reads the counter file as the exporter would.
func (d *doctor) checkCounters(context.Context, exam) outcome {
	from, counters, problems, err := d.cfg.Counters()
	if err != nil {
		return found(failed(statusFail, err))
	}
	var out []finding
	for _, p := range problems {
		f := finding{Status: statusInfo, Text: fmt.Sprintf("%s:%d:%d: %s", p.File, p.Line, p.Column, p.Text), Remedy: p.Hint}
		if p.Severity == exporter.SeverityError {
			f.Status = statusWarn
		}
		out = append(out, f)
	}
	out = append(out, finding{Status: statusOK, Text: fmt.Sprintf("%d rows of %s", len(counters.Rows()), from)})
	return outcome{out, func(e *exam) { e.counters = counters }}
}

// checkCandidate opens one of the libraries.
func (d *doctor) checkCandidate(c app.Candidate) func(context.Context, exam) outcome {
	return func(ctx context.Context, _ exam) outcome {
		driver, err := c.Open()
		if err == nil && c.Name == app.SourceDCGM && d.remote() {
			return found(d.hello(ctx, driver)...)
		}
		if err == nil {
			return found(facts(driver)...)
		}
		f := failed(statusWarn, err)
		// Without a library there may be another; one that is there and does not work is a fault.
		if errors.Is(err, dcgm.ErrNoLibrary) || errors.Is(err, nvml.ErrNoLibrary) {
			f.Status = statusInfo
		}
		if f.Remedy == "" {
			f.Remedy = "see whether the driver is loaded and nvidia-smi works; --debug shows what the library says"
		}
		return found(f)
	}
}

// hello waits for a host engine, which is connected to in the background, before it says what
// is known of it.
func (d *doctor) hello(ctx context.Context, driver app.Driver) []finding {
	ctx, cancel := context.WithTimeout(ctx, quickPatience)
	defer cancel()
	for {
		_, err := driver.Read(ctx, nil)
		if err == nil {
			return facts(driver)
		}
		if !sleep(ctx, d.pause) {
			return []finding{failed(statusWarn, err)}
		}
	}
}

// checkBeside opens NVML beside DCGM.
func (d *doctor) checkBeside(context.Context, exam) outcome {
	driver, err := d.sources.Beside()
	if err != nil {
		f := failed(statusInfo, err)
		f.Text = "not there beside DCGM, so that placement and profiles of MIG devices are DCGM's: " + f.Text
		return found(f)
	}
	return found(facts(driver)...)
}

// failed is an error as a finding. What to do stands at its end, after the last semicolon.
func failed(s status, err error) finding {
	f := finding{Status: s, Text: err.Error()}
	if i := strings.LastIndex(f.Text, "; "); i > 0 {
		f.Text, f.Remedy = f.Text[:i], f.Text[i+2:]
	}
	return f
}

func facts(driver app.Driver) []finding {
	var out []finding
	for _, fact := range driver.Facts() {
		if modules, ok := strings.CutPrefix(fact, "modules: "); ok {
			if bad, known := badModules(modules); known {
				out = append(out, bad...)
				continue
			}
		}
		out = append(out, finding{Status: statusOK, Text: fact})
	}
	return out
}

// badModules are lines for those of DCGM's modules that cannot be used. One that is not loaded is
// loaded when it is needed. Text that is no list of modules is not known.
func badModules(list string) (bad []finding, known bool) {
	for module := range strings.SplitSeq(list, ", ") {
		name, state, _ := strings.Cut(module, " ")
		switch state {
		case "loaded", "not loaded", "unloaded", "paused", "reloadable":
		case "failed":
			bad = append(bad, finding{Status: statusInfo, Text: "DCGM's module " + name + " has failed"})
		case "denylisted":
			bad = append(bad, finding{Status: statusInfo, Text: "DCGM's module " + name + " is denylisted"})
		default:
			return nil, false
		}
	}
	return bad, true
}

// checkSource says what the exporter would read.
func (d *doctor) checkSource(context.Context, exam) outcome {
	chosen, err := d.sources.Choose()
	switch {
	case err != nil && len(d.sources.Candidates()) > 1:
		return found(finding{Status: statusFail, Text: "there is nothing to read GPUs through",
			Remedy: "see the lines above for each library; on a machine without a GPU, --source=sim and `gpumeter demo` need none"})
	case err != nil:
		return found(failed(statusFail, err))
	}
	text := fmt.Sprintf("%s, because %s", chosen.Name, chosen.Reason)
	if o := chosen.Driver.Origin(); o.Engine != "" {
		text += "; engine " + o.Engine
	}
	return outcome{[]finding{{Status: statusOK, Text: text}}, func(e *exam) { e.chosen = &chosen }}
}

// fields are those of the counter file, or none.
func (e exam) fields() []gpu.FieldID {
	if e.counters == nil {
		return nil
	}
	return e.counters.Fields()
}

// read asks the source once, within a part of what ctx leaves.
func (e exam) read(ctx context.Context) (gpu.Reading, error) {
	ctx, cancel := context.WithTimeout(ctx, readingPatience/3)
	defer cancel()
	r, err := e.chosen.Driver.Read(ctx, e.fields())
	if err != nil {
		return gpu.Reading{}, fmt.Errorf("read the GPUs: %w", err)
	}
	return r, nil
}

// firstReading waits for a host engine that is being connected to.
func (d *doctor) firstReading(ctx context.Context, e exam) (gpu.Reading, error) {
	for {
		r, err := e.read(ctx)
		if err == nil || !sleep(ctx, d.pause) {
			return r, err
		}
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < readingPatience/2 {
			return r, err
		}
	}
}

// sleep reports whether the time passed before ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// checkDevices lists the GPUs.
func (d *doctor) checkDevices(ctx context.Context, e exam) outcome {
	if e.chosen == nil {
		return found(finding{Status: statusInfo, Text: "not looked at, since there is no source"})
	}
	r, err := d.firstReading(ctx, e)
	if err != nil {
		return found(failed(statusFail, err))
	}
	out := d.inventory(&r)
	warnings, err := d.cfg.Misselected(&r, e.chosen.Driver)
	if err != nil {
		out = append(out, finding{Status: statusFail, Text: err.Error(), Remedy: "select what is there, or leave the flag out for everything"})
	}
	for _, w := range warnings {
		out = append(out, finding{Status: statusWarn, Text: w})
	}
	return outcome{out, func(e *exam) { e.reading = &r }}
}

// inventory is a line for each physical GPU, and for each trouble that is none of theirs.
func (d *doctor) inventory(r *gpu.Reading) []finding {
	out, reached := cardFindings(r)
	for _, t := range r.Troubles {
		if !slices.ContainsFunc(r.Devices, func(d gpu.Device) bool { return d.UUID == t.GPU }) {
			out = append(out, d.troubled(t))
		}
	}
	silent := slices.ContainsFunc(r.Troubles, silences)
	switch {
	case len(r.Devices) == 0 && !silent:
		out = append(out, finding{Status: statusFail, Text: "the source answers, and knows no GPU",
			Remedy: "see whether nvidia-smi lists GPUs; in a container, whether it was given them (NVIDIA_VISIBLE_DEVICES=all, runtimeClassName: nvidia)"})
	case !reached:
		out = append(out, finding{Status: statusFail, Text: "no GPU can be reached", Remedy: "see dmesg for NVRM and Xid lines; restart the machine"})
	}
	return out
}

// silences reports whether a trouble leaves nothing of its GPU.
func silences(t gpu.Trouble) bool {
	return t.Reason == gpu.ReasonTimeout || t.Reason == gpu.ReasonLost
}

// cardFindings are a line for each physical GPU, and whether any of them may give values.
func cardFindings(r *gpu.Reading) (out []finding, reached bool) {
	for i := range r.Devices {
		card := &r.Devices[i]
		if card.IsMIG() {
			continue
		}
		var troubles []string
		for _, t := range r.Troubles {
			if (t.GPU == card.UUID || slices.ContainsFunc(r.Devices, func(d gpu.Device) bool { return d.UUID == t.GPU && d.Parent == card.UUID })) &&
				!slices.Contains(troubles, t.Text) {
				troubles = append(troubles, t.Text)
			}
		}
		f := finding{Status: statusOK, Text: fmt.Sprintf("GPU %d  %s  %s  %s%s", card.Index, card.UUID, card.PCIBusID, card.Model, layout(r.Devices, card))}
		switch {
		case card.Lost:
			f.Status = statusWarn
			f.Text += ": lost, the driver can no longer reach it"
			f.Remedy = "see dmesg for its last Xid; drain the node and reset the GPU or restart the machine"
		case len(troubles) > 0:
			f.Status = statusWarn
			f.Text += ": " + strings.Join(troubles, "; ")
			f.Remedy = "see dmesg for NVRM and Xid lines of this GPU"
			reached = true
		default:
			reached = true
		}
		out = append(out, f)
	}
	return out, reached
}

// troubled is a trouble that is no listed GPU's.
func (d *doctor) troubled(t gpu.Trouble) finding {
	f := finding{Status: statusWarn, Text: t.Text}
	switch t.Reason {
	case gpu.ReasonTimeout, gpu.ReasonLost:
		f.Remedy = "see dmesg for NVRM and Xid lines; a GPU that stays silent takes a restart of the machine"
	case gpu.ReasonStale:
		f.Remedy = "see whether the host engine keeps up, and dmesg for NVRM and Xid lines"
	case gpu.ReasonNotSupported:
		f.Remedy = "update DCGM or the driver, or take the rows that need it out of the counter file"
	case gpu.ReasonNotPermitted:
		f.Remedy = d.permit()
	case gpu.ReasonNotFound:
		f.Remedy = "see whether the driver is loaded and nvidia-smi lists the GPUs"
	default:
		f.Remedy = "see dmesg for NVRM and Xid lines; --debug shows what the library says"
	}
	return f
}

// permit is what may help who is not permitted something.
func (d *doctor) permit() string {
	if root(d.proc) {
		return "run privileged; in a virtual machine the host may not allow it"
	}
	return "run as root"
}

// newTroubles are those of a later reading that the one before did not have.
func (d *doctor) newTroubles(before, r *gpu.Reading) []finding {
	var out []finding
	for _, t := range r.Troubles {
		told := func(other gpu.Trouble) bool { return other.GPU == t.GPU && other.Reason == t.Reason }
		if slices.ContainsFunc(before.Troubles, told) {
			continue
		}
		f := d.troubled(t)
		if i := slices.IndexFunc(r.Devices, func(d gpu.Device) bool { return d.UUID == t.GPU }); i >= 0 {
			f.Text = fmt.Sprintf("since then, GPU %d: %s", r.Devices[i].Index, t.Text)
		}
		out = append(out, f)
	}
	return out
}

// layout is what a card is divided into: "  MIG: 3g.40gb, 2 × 1g.10gb".
func layout(devices []gpu.Device, card *gpu.Device) string {
	if !card.MIGEnabled {
		return ""
	}
	var names []string
	counts := make(map[string]int)
	for _, d := range devices {
		if d.Parent != card.UUID {
			continue
		}
		if counts[d.Profile.Name] == 0 {
			names = append(names, d.Profile.Name)
		}
		counts[d.Profile.Name]++
	}
	if len(names) == 0 {
		return "  MIG: no devices"
	}
	for i, name := range names {
		if n := counts[name]; n > 1 {
			names[i] = fmt.Sprintf("%d × %s", n, name)
		}
	}
	return "  MIG: " + strings.Join(names, ", ")
}
