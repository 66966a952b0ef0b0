// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
)

// Names are what CDI calls the devices: "k8s.device-plugin.nvidia.com/gpu=GPU-…". The zero
// value has NVIDIA's words.
type Names struct {
	// Vendor is the vendor of each kind, empty for "k8s.device-plugin.nvidia.com".
	Vendor string
}

// Qualified is the full CDI name of a device of a class.
func (n Names) Qualified(class, device string) string {
	vendor := n.Vendor
	if vendor == "" {
		vendor = "k8s.device-plugin.nvidia.com"
	}
	return vendor + "/" + class + "=" + device
}

// Response is what a container gets.
type Response struct {
	Env         map[string]string
	Mounts      []Mount
	Nodes       []Node
	Annotations map[string]string
	// CDIDevices are qualified names.
	CDIDevices []string
}

// Mount is a bind mount.
type Mount struct {
	Host, Container string
	ReadOnly        bool
}

// Node is a device node.
type Node struct {
	Host, Container string
	// Permissions are those of a cgroup's device rule, "rw".
	Permissions string
}

// The reasons for which Allocate refuses, each a short word for a label.
const (
	ReasonUnknownID       = "unknown_id"
	ReasonDuplicateID     = "duplicate_id"
	ReasonNothing         = "nothing_requested"
	ReasonUnhealthy       = "unhealthy"
	ReasonTooManyReplicas = "too_many_replicas"
	ReasonIMEX            = "imex_channel_missing"
	ReasonNodes           = "device_nodes_missing"
)

// AllocateError is why a request was refused.
type AllocateError struct {
	// Reason is one of the Reason… words.
	Reason string
	// Text is for the pod's user: the kubelet shows it in the pod's status.
	Text string
}

// Error is the text.
func (e *AllocateError) Error() string { return e.Text }

// Allocator answers for one resource, from memory. It is immutable and safe for concurrent use.
type Allocator struct {
	settings Settings
	resource Resource
	cdi      Names
	devices  map[gpu.UUID]*allotted
	// seats are places in the resource's seats, by id.
	seats    map[string]int
	control  []string
	imex     []int
	closed   []int
	topology *topology
	// bare are devices without a device node, which containers need.
	bare []gpu.UUID
}

// allotted is a device that the resource hands out.
type allotted struct {
	*Device
	// order is its place in the inventory, index what the driver calls it.
	order int
	index string
	// seats are how many the resource has of it.
	seats int
}

// NewAllocator prepares the answers for a resource of the plan that was made from the same
// inventory and settings.
func NewAllocator(inv Inventory, s Settings, r Resource, cdi Names) *Allocator {
	a := &Allocator{
		settings: s, resource: r, cdi: cdi,
		devices: make(map[gpu.UUID]*allotted), seats: make(map[string]int, len(r.Seats)),
		control: inv.ControlNodes,
	}
	for _, channel := range s.IMEXChannels {
		if slices.Contains(inv.IMEXChannels, channel) {
			a.imex = append(a.imex, channel)
		} else {
			a.closed = append(a.closed, channel)
		}
	}
	count := make(map[gpu.UUID]int)
	for i, seat := range r.Seats {
		a.seats[seat.ID] = i
		count[seat.Device]++
	}
	index := indexes(inv)
	for i := range inv.Devices {
		d := &inv.Devices[i]
		if n := count[d.UUID]; n > 0 && a.devices[d.UUID] == nil {
			a.devices[d.UUID] = &allotted{Device: d, order: i, index: index[d.UUID], seats: n}
		}
	}
	if inv.Physical {
		a.bare = inv.WithoutNodes(s)
	}
	a.topology = newTopology(a.devices, inv.Links)
	return a
}

// Resource is what the allocator answers for.
func (a *Allocator) Resource() Resource { return a.resource }

// Allocate is what a container gets that was given these ids. The error is an *AllocateError.
// status may be nil: then no device is known to be Unhealthy.
func (a *Allocator) Allocate(ids []string, status func(gpu.UUID) health.Status) (Response, error) {
	shares, err := a.shares(ids, status)
	if err != nil {
		return Response{}, err
	}
	if a.settings.IMEXRequired && len(a.closed) > 0 {
		return Response{}, &AllocateError{Reason: ReasonIMEX, Text: fmt.Sprintf(
			"%s: the node has no IMEX channel %d and is set to need it (imex.required)", a.resource.Name, a.closed[0])}
	}
	return a.answer(shares), nil
}

// share is what a container has of one device.
type share struct {
	*allotted
	taken int
}

// shares checks a request and counts its seats by device, in the order of the inventory.
func (a *Allocator) shares(ids []string, status func(gpu.UUID) health.Status) ([]share, error) {
	if len(ids) == 0 {
		return nil, a.refuse(ReasonNothing, "a request without a device")
	}
	seen := make(map[string]bool, len(ids))
	taken := make(map[gpu.UUID]int)
	replicas := 0
	for _, id := range ids {
		seat, device := a.seat(id)
		switch {
		case device == nil:
			return nil, a.refuse(ReasonUnknownID, fmt.Sprintf("%s is not, or not any more, a device of this resource on this node", clip(id)))
		case slices.Contains(a.bare, seat.Device):
			return nil, a.refuse(ReasonNodes, fmt.Sprintf("%s has no device node that the device plugin can see, so a container could not use it; see the plugin's log", id))
		case seen[id]:
			return nil, a.refuse(ReasonDuplicateID, id+" was asked for twice")
		case status != nil && status(seat.Device) == health.Unhealthy:
			return nil, a.refuse(ReasonUnhealthy, id+" is Unhealthy; see gpumeter_device_condition of the node, or gpumeter health")
		}
		seen[id] = true
		taken[seat.Device]++
		if device.seats > 1 {
			replicas++
		}
	}
	if replicas > 1 && a.settings.FailRequestsGreaterThanOne {
		return nil, a.refuse(ReasonTooManyReplicas, a.tooMany(len(ids)))
	}
	shares := make([]share, 0, len(taken))
	for uuid, n := range taken {
		shares = append(shares, share{allotted: a.devices[uuid], taken: n})
	}
	slices.SortFunc(shares, func(x, y share) int { return x.order - y.order })
	return shares, nil
}

// seat is the one with an id and its device, nil where the resource has none.
func (a *Allocator) seat(id string) (Seat, *allotted) {
	i, ok := a.seats[id]
	if !ok {
		return Seat{}, nil
	}
	seat := a.resource.Seats[i]
	return seat, a.devices[seat.Device]
}

func (a *Allocator) tooMany(asked int) string {
	what, key := "a turn on a GPU that others use too, and more of them give a container neither more compute nor more memory", "sharing.timeSlicing"
	if a.resource.Sharing == SharingMPS {
		what, key = "a share of a GPU that others use too, and this node hands out one to a container", "sharing.mps"
	}
	return fmt.Sprintf("the container asks for %d and may have 1: each is %s; ask for 1, or let the node's administrator set %s.failRequestsGreaterThanOne: false",
		asked, what, key)
}

func (a *Allocator) refuse(reason, text string) *AllocateError {
	return &AllocateError{Reason: reason, Text: a.resource.Name + ": " + text}
}

// clip keeps foreign text short.
func clip(text string) string {
	const most = 128
	if len(text) > most {
		text = text[:most] + "…"
	}
	return fmt.Sprintf("%q", strings.ToValidUTF8(text, "?"))
}
