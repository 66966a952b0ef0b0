// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// Plan is what a node hands out. It is never modified once made.
type Plan struct {
	// Resources are ordered by name; each has seats.
	Resources []Resource
}

// Resource is the one of a name; false where there is none.
func (p Plan) Resource(name string) (Resource, bool) {
	i, ok := slices.BinarySearchFunc(p.Resources, name, func(r Resource, name string) int { return cmp.Compare(r.Name, name) })
	if !ok {
		return Resource{}, false
	}
	return p.Resources[i], true
}

// ProblemKind is a short word for why something is not handed out as it could be.
type ProblemKind string

// The kinds of problem.
const (
	ProblemSettings  ProblemKind = "settings"
	ProblemInventory ProblemKind = "inventory"
	ProblemName      ProblemKind = "resource_name"
	ProblemMIG       ProblemKind = "mig"
	ProblemSelection ProblemKind = "device_selection"
	ProblemReplicas  ProblemKind = "replicas"
	ProblemMPS       ProblemKind = "mps"
	ProblemListSize  ProblemKind = "list_size"
	ProblemIMEX      ProblemKind = "imex"
	ProblemNodes     ProblemKind = "device_nodes"
	// ProblemCDIPlain is none of a plan: CDI specs that lack the driver's files.
	ProblemCDIPlain ProblemKind = "cdi_plain"
)

// Problem is something that a plan could not do as it was asked to, the error type of NewPlan.
type Problem struct { //nolint:errname // the plan stands beside it, so it is a problem and no failure
	Kind ProblemKind
	// Resource is what it concerns, by the name before sharing; empty for none.
	Resource string
	// Device is what it concerns, empty for more than one.
	Device gpu.UUID
	// Unshares says that what the settings share cannot be shared so. Its devices are not handed out: whole ones
	// would go to one container each beside those that have replicas of them.
	Unshares bool
	// Usual says that it is worth a word and nothing that was asked for is missing.
	Usual bool
	// Text says what is wrong, what follows and what to do.
	Text string
}

// Error is the text.
func (p *Problem) Error() string { return p.Text }

// NewPlan is what follows from the inventory and the settings. It always has all that can be
// handed out. Each error is a *Problem and costs what it names: a device that is not handed out.
func NewPlan(inv Inventory, s Settings) (Plan, []error) {
	p := &planner{settings: s, index: indexes(inv)}
	p.checkSettings(inv)
	p.checkNodes(inv)
	units := p.name(p.choose(p.known(inv)))
	units = p.share(units)
	resources := p.fit(units)
	return Plan{Resources: resources}, p.problems
}

// planner makes one plan.
type planner struct {
	settings Settings
	// index has what the config file may call a device beside its UUID.
	index    map[gpu.UUID]string
	problems []error
}

// unit is one device on its way into the plan.
type unit struct {
	*Device
	// base is the resource before sharing, name the one it is handed out as.
	base, name string
	replicas   int
	// held says that it is not handed out, since it cannot be shared as it should be.
	held bool
}

func (p *planner) tell(kind ProblemKind, resource string, device gpu.UUID, format string, args ...any) {
	p.problems = append(p.problems, &Problem{Kind: kind, Resource: resource, Device: device, Text: fmt.Sprintf(format, args...)})
}

// unshares tells why something is not shared.
func (p *planner) unshares(kind ProblemKind, resource string, device gpu.UUID, format string, args ...any) {
	p.problems = append(p.problems, &Problem{Kind: kind, Resource: resource, Device: device, Unshares: true, Text: fmt.Sprintf(format, args...)})
}

func (p *planner) checkSettings(inv Inventory) {
	s := p.settings
	switch s.MIGStrategy {
	case MIGNone, MIGSingle, MIGMixed, "":
	default:
		p.tell(ProblemSettings, "", "", "MIG strategy %q is unknown and taken as none (want none, single or mixed)", s.MIGStrategy)
	}
	switch s.Sharing {
	case SharingNone, SharingTimeSlicing, SharingMPS, "":
	default:
		p.unshares(ProblemSettings, "", "", "sharing %q is unknown: nothing is shared (want time-slicing or mps)", s.Sharing)
	}
	for _, channel := range s.IMEXChannels {
		if s.IMEXRequired && !slices.Contains(inv.IMEXChannels, channel) {
			p.tell(ProblemIMEX, "", "", "IMEX channel %d is required and the host has no %s: no container can start; create the channel, or set imex.required: false",
				channel, imexNode(channel))
		}
	}
}

// checkNodes tells of devices that no container could use.
func (p *planner) checkNodes(inv Inventory) {
	if !inv.Physical {
		return
	}
	for _, device := range inv.WithoutNodes(p.settings) {
		p.tell(ProblemNodes, "", device, "%s has no device node that the plugin can see, and containers get theirs from it: a request for it is refused; give the plugin the host's /dev, load the driver's nodes (nvidia-modprobe -u -c=0), or let the NVIDIA runtime bring them (device list strategy envvar without passDeviceSpecs)", device)
	}
}

// known are the devices that can be told apart.
func (p *planner) known(inv Inventory) []*Device {
	seen := make(map[gpu.UUID]bool, len(inv.Devices))
	var devices []*Device
	for i := range inv.Devices {
		d := &inv.Devices[i]
		switch {
		case d.UUID == "":
			p.tell(ProblemInventory, "", "", "GPU %d has no UUID and is not handed out", d.Index)
		case seen[d.UUID]:
			p.tell(ProblemInventory, "", d.UUID, "%s is in the inventory twice: the second is left out", d.UUID)
		default:
			seen[d.UUID] = true
			devices = append(devices, d)
		}
	}
	return devices
}

// name gives each device its resource before sharing; what nobody can name is left out.
func (p *planner) name(devices []*Device) []unit {
	units := make([]unit, 0, len(devices))
	for _, d := range devices {
		name, err := p.nameOf(d)
		if err != nil {
			p.tell(ProblemName, "", d.UUID, "%s is not handed out: %v; change the rule under resources", d.UUID, err)
			continue
		}
		units = append(units, unit{Device: d, base: name, name: name, replicas: 1})
	}
	return units
}

func (p *planner) nameOf(d *Device) (string, error) {
	switch {
	case !d.IsMIG():
		return nameBy(p.settings.GPUNames, d.Model, defaultGPUName)
	case p.settings.MIGStrategy == MIGSingle:
		return nameBy(p.settings.MIGNames, d.Profile.Name, defaultGPUName)
	case d.Profile.Name == "":
		return "", fmt.Errorf("the driver gives no profile name for it")
	default:
		return nameBy(p.settings.MIGNames, d.Profile.Name, DefaultName(d.Profile.Name))
	}
}

// fit makes the resources. One whose list would be too long for the kubelet is not handed out; that is
// known before a list is made.
func (p *planner) fit(units []unit) []Resource {
	type load struct{ seats, bytes, replicas int }
	loads := make(map[string]*load)
	for _, u := range units {
		l := loads[u.name]
		if l == nil {
			l = &load{}
			loads[u.name] = l
		}
		if !u.held {
			replicas := min(u.replicas, MostReplicas+1)
			l.seats, l.bytes, l.replicas = l.seats+replicas, l.bytes+unitBytes(u.UUID, replicas), max(l.replicas, u.replicas)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(loads)) {
		l := loads[name]
		if l.replicas <= 1 || l.bytes <= maxListBytes && l.replicas <= MostReplicas {
			continue
		}
		p.unshares(ProblemListSize, name, "", "the list of %s would have %d seats and %d bytes or more, the kubelet takes %d: its devices are not handed out; set fewer replicas than %d",
			name, l.seats, l.bytes, maxListBytes, l.replicas)
		for i := range units {
			units[i].held = units[i].held || units[i].name == name
		}
	}
	return p.resources(units)
}

func (p *planner) resources(units []unit) []Resource {
	byName := make(map[string]*Resource)
	for _, u := range units {
		if u.held {
			continue
		}
		r := byName[u.name]
		if r == nil {
			r = &Resource{Name: u.name, Sharing: SharingNone}
			byName[u.name] = r
		}
		if u.replicas > 1 {
			r.Sharing = p.settings.Sharing
		}
		r.Replicas = max(r.Replicas, u.replicas)
		r.Seats = append(r.Seats, seatsOf(u.UUID, u.replicas)...)
	}
	var resources []Resource
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		resources = append(resources, *byName[name])
	}
	return resources
}

// maxListBytes is how long a list may be: gRPC takes 4 MiB at the kubelet, and the rest is
// for what a longer health word or a NUMA node adds.
const maxListBytes = 3584 << 10

// MostReplicas is more than any list for the kubelet can hold of one device.
const MostReplicas = 1 << 16

// ListBytes is how many bytes the kubelet's list of the resource has at most, each seat with
// its health and a NUMA node.
func ListBytes(r Resource) int {
	total := 0
	for _, seat := range r.Seats {
		total += seatBytes(len(seat.ID))
	}
	return total
}

func seatBytes(id int) int {
	const (
		health   = 2 + len("Unhealthy")
		topology = 2 + 2 + 1 + 5 // a NUMA node's number has five bytes at most
	)
	device := 1 + varintBytes(id) + id + health + topology
	return 1 + varintBytes(device) + device
}

// unitBytes are the bytes of one device's seats in a list, without a list.
func unitBytes(device gpu.UUID, replicas int) int {
	if replicas <= 1 {
		return seatBytes(len(device))
	}
	total, id := 0, len(device)+len(replicaMark)
	for digits, from, to := 1, 0, 10; from < replicas; digits, from, to = digits+1, to, 10*to {
		total += (min(to, replicas) - from) * seatBytes(id+digits)
	}
	return total
}

func varintBytes(n int) int {
	bytes := 1
	for ; n >= 1<<7; n >>= 7 {
		bytes++
	}
	return bytes
}
