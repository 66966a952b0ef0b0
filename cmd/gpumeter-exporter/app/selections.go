// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// selections are which entities are read.
type selections struct{ gpus, switches, cpus gpu.Selection }

// selections parses the three flags.
func (c Config) selections() (selections, error) {
	var s selections
	for _, f := range []struct {
		name, text string
		into       *gpu.Selection
	}{{"devices", c.Devices, &s.gpus}, {"switch-devices", c.SwitchDevices, &s.switches}, {"cpu-devices", c.CPUDevices, &s.cpus}} {
		selection, err := gpu.ParseSelection(f.text)
		if err != nil {
			return selections{}, fmt.Errorf("--%s %w", f.name, err)
		}
		*f.into = selection
	}
	return s, nil
}

// Misselected holds the configuration's selections against a reading. The warnings name what a
// selection asks for and the node does not have. The error says that no GPU and no GPU instance of
// the node is selected; it is nil for a node without GPUs.
func (c Config) Misselected(r *gpu.Reading) (warnings []string, err error) {
	s, err := c.selections()
	if err != nil {
		return nil, err
	}
	var cards, instances []int
	chosen := false
	for _, d := range r.Devices {
		if !d.IsMIG() {
			cards = append(cards, d.Index)
			chosen = chosen || s.gpus.Major(d.Index)
			continue
		}
		// The compute instances of one GPU instance share its number.
		if d.InstanceEntity != gpu.NoInstance && !slices.Contains(instances, d.InstanceEntity) {
			instances = append(instances, d.InstanceEntity)
		}
		chosen = chosen || s.gpus.Minor(d.InstanceEntity)
	}
	if len(r.Devices) > 0 && !chosen {
		return nil, fmt.Errorf("--devices %s selects nothing here: this node has %s and %s",
			s.gpus, numbered("GPU", cards), numbered("GPU instance", instances))
	}
	missing := func(flag string, of gpu.Selection, letter, what string, present []int) {
		if absent := of.Missing(letter, present); len(absent) > 0 {
			warnings = append(warnings, fmt.Sprintf("--%s %s names what this node does not have: %s (it has %s)",
				flag, of, numbered(what, absent), numbered(what, present)))
		}
	}
	if len(r.Devices) > 0 {
		missing("devices", s.gpus, "g", "GPU", cards)
		missing("devices", s.gpus, "i", "GPU instance", instances)
	}
	for _, kind := range []struct {
		flag         string
		of           gpu.Selection
		letter, what string
		scope        gpu.Scope
		kind         gpu.Kind
	}{
		{"switch-devices", s.switches, "g", "switch", gpu.ScopeSwitch, gpu.KindSwitch},
		{"switch-devices", s.switches, "i", "link", gpu.ScopeLink, gpu.KindLink},
		{"cpu-devices", s.cpus, "g", "CPU", gpu.ScopeCPU, gpu.KindCPU},
		{"cpu-devices", s.cpus, "i", "core", gpu.ScopeCPUCore, gpu.KindCPUCore},
	} {
		// Without a field of theirs nobody looked for them.
		if hasScope(r.Fields, kind.scope) {
			missing(kind.flag, kind.of, kind.letter, kind.what, numbers(r.Samples, kind.kind))
		}
	}
	return warnings, nil
}

func hasScope(fields []gpu.FieldID, scope gpu.Scope) bool {
	return slices.ContainsFunc(fields, func(id gpu.FieldID) bool {
		f, ok := gpu.FieldByID(id)
		return ok && f.Scope == scope
	})
}

// numbers are the ids of a kind of entity, ascending, each once.
func numbers(samples []gpu.Sample, kind gpu.Kind) []int {
	var out []int
	for i := range samples {
		if e := samples[i].Entity; e.Kind == kind {
			out = append(out, e.ID)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// numbered is "GPU 3", "GPUs 0-3 and 5" or "no GPU".
func numbered(what string, ids []int) string {
	switch len(ids) {
	case 0:
		return "no " + what
	case 1:
		return fmt.Sprintf("%s %d", what, ids[0])
	}
	plural := what + "s"
	if strings.HasSuffix(what, "ch") {
		plural = what + "es"
	}
	return plural + " " + Ranges(ids)
}

// Ranges is ascending numbers as people write them, "0-3, 5".
func Ranges(ids []int) string {
	var parts []string
	for i := 0; i < len(ids); {
		j := i
		for j+1 < len(ids) && ids[j+1] == ids[j]+1 {
			j++
		}
		part := strconv.Itoa(ids[i])
		if j > i {
			part += "-" + strconv.Itoa(ids[j])
		}
		parts = append(parts, part)
		i = j + 1
	}
	return strings.Join(parts, ", ")
}

// watchSelections holds the selections against the first reading that has devices. A selection of
// nothing ends the exporter: it would be up, healthy and silent.
func (a *App) watchSelections(ctx context.Context) error {
	for {
		s, stale := a.meter.Watch()
		if len(s.Reading.Devices) > 0 {
			warnings, err := a.cfg.Misselected(&s.Reading)
			if err != nil {
				return err
			}
			for _, w := range warnings {
				a.log.Warn(w)
			}
			<-ctx.Done()
			return nil
		}
		select {
		case <-stale:
		case <-ctx.Done():
			return nil
		}
	}
}
