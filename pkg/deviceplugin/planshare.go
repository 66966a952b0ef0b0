// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// share gives the devices that the settings select their replicas and the name of those.
func (p *planner) share(units []unit) []unit {
	if p.settings.Sharing != SharingTimeSlicing && p.settings.Sharing != SharingMPS {
		return units
	}
	taken := make(map[gpu.UUID]bool)
	for _, entry := range p.settings.SharedResources {
		base, err := FullName(entry.Name)
		if err != nil {
			p.unshares(ProblemName, entry.Name, "", "sharing: %v: nothing is shared by it", err)
			continue
		}
		if entry.Replicas < 1 {
			p.unshares(ProblemReplicas, base, "", "sharing of %s: %d replicas are none: its devices are not handed out; set 1 or more", base, entry.Replicas)
			hold(p.selected(base, entry, units, taken), taken)
			continue
		}
		chosen := p.selected(base, entry, units, taken)
		for _, u := range chosen {
			taken[u.UUID] = true
		}
		if entry.Replicas == 1 {
			continue
		}
		name, err := p.sharedName(base, entry)
		if err != nil {
			p.unshares(ProblemName, base, "", "sharing of %s: %v: its devices are not handed out", base, err)
			hold(chosen, taken)
			continue
		}
		p.apply(chosen, base, name, entry.Replicas)
	}
	return units
}

// hold keeps back what cannot be shared as it should be.
func hold(chosen []*unit, taken map[gpu.UUID]bool) {
	for _, u := range chosen {
		u.held, taken[u.UUID] = true, true
	}
}

func (p *planner) sharedName(base string, entry SharedResource) (string, error) {
	switch {
	case entry.Rename != "":
		return FullName(entry.Rename)
	case p.settings.RenameByDefault:
		return FullName(base + sharedSuffix)
	default:
		return base, nil
	}
}

// selected are the units of a resource that the entry shares.
func (p *planner) selected(base string, entry SharedResource, units []unit, taken map[gpu.UUID]bool) []*unit {
	var free []*unit
	for i := range units {
		if u := &units[i]; u.base == base && !taken[u.UUID] {
			free = append(free, u)
		}
	}
	switch {
	case entry.All:
		if len(free) == 0 && !p.usual(base, units) {
			p.tell(ProblemSelection, base, "", "sharing of %s: the node has no such device that is not shared yet; GPUs are %s, MIG devices %s and so on, unless a rule under resources names them otherwise",
				base, defaultGPUName, DefaultName("1g.10gb"))
		}
		return free
	case len(entry.Devices) > 0:
		return p.selectedByName(base, entry.Devices, free)
	case entry.Count <= 0:
		p.tell(ProblemSelection, base, "", "sharing of %s selects no device: want devices: all, a count above 0, or a list", base)
		return nil
	case entry.Count > len(free):
		p.tell(ProblemSelection, base, "", "sharing of %s wants %d devices and there are %d: these are shared", base, entry.Count, len(free))
		return free
	default:
		return free[:entry.Count]
	}
}

// usual says that a resource which no device has needs no word: one config is for nodes of all
// kinds, and not each of them has each profile.
func (p *planner) usual(base string, units []unit) bool {
	if strings.HasSuffix(base, sharedSuffix) || slices.ContainsFunc(units, func(u unit) bool { return u.base == base }) {
		return false // it is the name that replicas have, or an entry before has taken them
	}
	named := func(r NameRule) bool {
		name, err := FullName(r.Name)
		return err == nil && name == base
	}
	return base == defaultGPUName || migName.MatchString(base) || slices.ContainsFunc(p.settings.GPUNames, named) || slices.ContainsFunc(p.settings.MIGNames, named)
}

// migName is the default name of a MIG profile, such as 1g.10gb, 1c.3g.20gb or 1g.12gb+me.all.
var migName = regexp.MustCompile(`^nvidia\.com/mig-(\d+c\.)?\d+g\.\d+gb([.-][a-z.-]+)?$`)

func (p *planner) selectedByName(base string, names []string, free []*unit) []*unit {
	var chosen []*unit
	done := make(map[gpu.UUID]bool)
	for _, name := range names {
		found := false
		for _, u := range free {
			if name != string(u.UUID) && name != p.index[u.UUID] {
				continue
			}
			found = true
			if !done[u.UUID] {
				done[u.UUID] = true
				chosen = append(chosen, u)
			}
		}
		if !found {
			p.tell(ProblemSelection, base, "", "sharing of %s: the node has no device %q of it that is not shared yet; want an index as 0 or 0:1, or a UUID as nvidia-smi -L prints it", base, name)
		}
	}
	return chosen
}

func (p *planner) apply(chosen []*unit, base, name string, replicas int) {
	for _, u := range chosen {
		if p.settings.Sharing == SharingMPS {
			if why := mpsRefuses(u.Device, replicas); why != "" {
				p.unshares(ProblemMPS, base, u.UUID, "%s is not handed out: %s", u.UUID, why)
				u.held = true
				continue
			}
		}
		u.name, u.replicas = name, replicas
	}
}

// The clients that one MPS server takes on a GPU, from Volta on and before.
const (
	mpsClients    = 48
	mpsClientsOld = 16
)

func mpsRefuses(d *Device, replicas int) string {
	if d.IsMIG() {
		return "a MIG device cannot be shared by MPS; use time-slicing for it"
	}
	limit := mpsClients
	major, _, _ := strings.Cut(d.ComputeCapability, ".")
	if n, err := strconv.Atoi(major); err == nil && n < 7 {
		limit = mpsClientsOld
	}
	if replicas > limit {
		return fmt.Sprintf("MPS takes %d clients of its compute capability %s and not %d; set fewer replicas", limit, orUnknown(d.ComputeCapability), replicas)
	}
	return ""
}

func orUnknown(text string) string {
	if text == "" {
		return "(unknown)"
	}
	return text
}

// DeviceNames are what stands for each device in what a container and CDI are told.
func DeviceNames(inv Inventory, strategy IDStrategy) map[gpu.UUID]string {
	names := indexes(inv)
	if strategy != IDIndex {
		for uuid := range names {
			names[uuid] = string(uuid)
		}
	}
	return names
}

// indexes are the driver's indices of devices: "0" for a GPU, "0:1" for its second MIG device.
func indexes(inv Inventory) map[gpu.UUID]string {
	index := make(map[gpu.UUID]string, len(inv.Devices))
	parts := make(map[gpu.UUID]int)
	for i := range inv.Devices {
		d := &inv.Devices[i]
		text := strconv.Itoa(d.Index)
		if d.IsMIG() {
			text += ":" + strconv.Itoa(parts[d.Parent])
			parts[d.Parent]++
		}
		if _, twice := index[d.UUID]; !twice {
			index[d.UUID] = text
		}
	}
	return index
}
