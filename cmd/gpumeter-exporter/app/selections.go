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

// Misselected holds the configuration's selections against a reading of driver. The warnings name
// what a selection asks for and the node does not have. The error says that a selection leaves
// nothing of what the node has. A node without GPUs, and one whose GPUs do not all say who they
// are, is not judged.
func (c Config) Misselected(r *gpu.Reading, driver Driver) (warnings []string, err error) {
	s, err := c.selections()
	if err != nil || len(r.Devices) == 0 || incomplete(r) {
		return nil, err
	}
	warnings, err = misselectedGPUs(s.gpus, r.Devices)
	if err != nil {
		return nil, err
	}
	for _, group := range []struct {
		flag  string
		of    gpu.Selection
		kinds [2]selectedKind
	}{
		{"switch-devices", s.switches, [2]selectedKind{
			{"g", "switch", gpu.ScopeSwitch, gpu.KindSwitch}, {"i", "link", gpu.ScopeLink, gpu.KindLink},
		}},
		{"cpu-devices", s.cpus, [2]selectedKind{
			{"g", "CPU", gpu.ScopeCPU, gpu.KindCPU}, {"i", "core", gpu.ScopeCPUCore, gpu.KindCPUCore},
		}},
	} {
		warned, err := misselected(group.flag, group.of, group.kinds, r, driver)
		if err != nil {
			return nil, err
		}
		warnings = append(warnings, warned...)
	}
	return warnings, nil
}

// incomplete reports whether something that is not listed may only be slow to answer.
func incomplete(r *gpu.Reading) bool {
	return slices.ContainsFunc(r.Troubles, func(t gpu.Trouble) bool { return t.GPU == "" && t.Reason == gpu.ReasonTimeout })
}

func misselectedGPUs(of gpu.Selection, devices []gpu.Device) (warnings []string, err error) {
	var cards, instances []int
	chosen := false
	for _, d := range devices {
		if !d.IsMIG() {
			cards = append(cards, d.Index)
			chosen = chosen || of.Major(d.Index)
			continue
		}
		// The compute instances of one GPU instance share its number.
		if d.InstanceEntity != gpu.NoInstance {
			instances = append(instances, d.InstanceEntity)
		}
		chosen = chosen || of.Minor(d.InstanceEntity)
	}
	cards, instances = ascending(cards), ascending(instances)
	if !chosen {
		return nil, fmt.Errorf("--devices %s selects nothing here: this node has %s and %s",
			of, numbered("GPU", cards), numbered("GPU instance", instances))
	}
	for _, kind := range []struct {
		letter, what string
		present      []int
	}{{"g", "GPU", cards}, {"i", "GPU instance", instances}} {
		if absent := ascending(of.Missing(kind.letter, kind.present)); len(absent) > 0 {
			warnings = append(warnings, fmt.Sprintf("--devices %s: %s", of, thereIsNo(kind.what, absent, kind.present)))
		}
	}
	return warnings, nil
}

// selectedKind is a kind of entity that a letter of a selection stands for.
type selectedKind struct {
	letter, what string
	scope        gpu.Scope
	kind         gpu.Kind
}

// lister is a driver that knows all entities of a kind, selected or not; false where it has not
// looked for them or cannot.
type lister interface {
	Entities(gpu.Kind) ([]int, bool)
}

// misselected holds a selection of switches and links, or of CPUs and cores, against a reading,
// which has those that are selected. Without a field of theirs nobody looked for them.
func misselected(flag string, of gpu.Selection, kinds [2]selectedKind, r *gpu.Reading, driver Driver) (warnings []string, err error) {
	chosen := false
	var there []string
	for i, k := range kinds {
		if !hasScope(r.Fields, k.scope) {
			continue
		}
		if other := kinds[1-i]; !of.Any(k.letter) && !hasScope(r.Fields, other.scope) {
			return []string{fmt.Sprintf("--%s %s has no %s, and the counter file no field of a %s: none is read", flag, of, plural(k.what), other.what)}, nil
		}
		present := numbers(r.Samples, k.kind)
		chosen = chosen || len(present) > 0
		all, known := []int(nil), false
		if l, ok := driver.(lister); ok {
			all, known = l.Entities(k.kind)
			all = ascending(all)
		}
		if len(all) > 0 {
			there = append(there, numbered(k.what, all))
		}
		absent := ascending(of.Missing(k.letter, present))
		switch {
		case len(absent) == 0:
		case known:
			warnings = append(warnings, fmt.Sprintf("--%s %s: %s", flag, of, thereIsNo(k.what, absent, all)))
		case len(present) > 0:
			warnings = append(warnings, fmt.Sprintf("--%s %s: there is no %s", flag, of, numberedOr(k.what, absent)))
		default:
			warnings = append(warnings, fmt.Sprintf("--%s %s: no %s was found", flag, of, numberedOr(k.what, absent)))
		}
	}
	if len(warnings) > 0 && !chosen && len(there) > 0 {
		return nil, fmt.Errorf("--%s %s selects nothing here: this node has %s", flag, of, strings.Join(there, " and "))
	}
	return warnings, nil
}

// thereIsNo says that some of a kind are not among those that are there.
func thereIsNo(what string, absent, there []int) string {
	if len(there) == 0 {
		return "this node has no " + plural(what)
	}
	return fmt.Sprintf("there is no %s; this node has %s", numberedOr(what, absent), numbered(what, there))
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
	return ascending(out)
}

// ascending is ids in order, each once; ids itself is used up.
func ascending(ids []int) []int {
	slices.Sort(ids)
	return slices.Compact(ids)
}

// numbered is "GPU 3", "GPUs 0-3, 5" or "no GPU".
func numbered(what string, ids []int) string {
	switch len(ids) {
	case 0:
		return "no " + what
	case 1:
		return fmt.Sprintf("%s %d", what, ids[0])
	}
	return plural(what) + " " + Ranges(ids)
}

// numberedOr is "GPU 3" or "GPU 0-3, 5", as it stands behind "no".
func numberedOr(what string, ids []int) string { return what + " " + Ranges(ids) }

func plural(what string) string {
	if strings.HasSuffix(what, "ch") {
		return what + "es"
	}
	return what + "s"
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

// watchSelections holds the selections against the first reading that has all devices. A selection of
// nothing ends the exporter: it would be up, healthy and silent.
func (a *App) watchSelections(ctx context.Context) error {
	for {
		s, stale := a.meter.Watch()
		if len(s.Reading.Devices) > 0 && !incomplete(&s.Reading) {
			// What the meter reads for itself selects nothing.
			reading := s.Reading
			reading.Fields = a.fields
			warnings, err := a.cfg.Misselected(&reading, a.source.Driver)
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
