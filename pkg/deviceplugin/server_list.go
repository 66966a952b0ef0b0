// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"slices"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
)

// list is all that the kubelet is told of one resource. It is never modified once made.
type list struct {
	message            *pluginapi.ListAndWatchResponse
	healthy, unhealthy int
}

func emptyList() *list { return &list{message: &pluginapi.ListAndWatchResponse{}} }

// newList has a device for each seat. A seat is Healthy unless evidence says otherwise: the
// kubelet knows no third word, and not to know withdraws nothing. nodes are the NUMA nodes, -1 for none.
func newList(seats []Seat, nodes map[gpu.UUID]int, verdicts *book) *list {
	l := &list{message: &pluginapi.ListAndWatchResponse{Devices: make([]*pluginapi.Device, len(seats))}}
	for i, seat := range seats {
		d := &pluginapi.Device{ID: seat.ID, Health: pluginapi.Healthy}
		if verdicts.status(seat.Device) == health.Unhealthy {
			d.Health = pluginapi.Unhealthy
			l.unhealthy++
		} else {
			l.healthy++
		}
		// Node 0 is a node, and to be anywhere is nil: devices with a topology of no nodes
		// are missing in the kubelet's GetAllocatableResources.
		if node, ok := nodes[seat.Device]; ok && node >= 0 {
			d.Topology = &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: int64(node)}}}
		}
		l.message.Devices[i] = d
	}
	return l
}

// equal says that the kubelet would learn nothing from l after other, which may be nil for
// not having been told anything.
func (l *list) equal(other *list) bool {
	if l == other {
		return true
	}
	if other == nil || l.healthy != other.healthy {
		return false
	}
	return slices.EqualFunc(l.message.GetDevices(), other.message.GetDevices(), func(a, b *pluginapi.Device) bool {
		return a.GetID() == b.GetID() && a.GetHealth() == b.GetHealth() && onNode(a) == onNode(b)
	})
}

// onNode is the NUMA node of a device as newList made it, -1 for none.
func onNode(d *pluginapi.Device) int64 {
	nodes := d.GetTopology().GetNodes()
	if len(nodes) == 0 {
		return -1
	}
	return nodes[0].GetID()
}

// book has what is known of each device's health. It is never modified once made; a nil book
// knows nothing.
type book struct {
	verdicts map[gpu.UUID]health.Verdict
}

// newBook is what a report says of an inventory. Of a MIG device that the report does not know
// yet, what it says of its card counts: a card's fault is its parts' too.
func newBook(inv Inventory, report *health.Report) *book {
	b := &book{verdicts: map[gpu.UUID]health.Verdict{}}
	if report == nil {
		return b
	}
	for _, v := range report.Verdicts {
		b.verdicts[v.Device] = v
	}
	for _, d := range inv.Devices {
		if _, ok := b.verdicts[d.UUID]; ok {
			continue
		}
		if v, ok := b.verdicts[d.Card()]; ok {
			b.verdicts[d.UUID] = v
		}
	}
	return b
}

func (b *book) status(device gpu.UUID) health.Status {
	if b == nil {
		return health.Unknown
	}
	return b.verdicts[device].Status
}

func (b *book) avoid(device gpu.UUID) bool {
	return b != nil && b.verdicts[device].Avoid
}

// worseThan says that a device is Unhealthy here and was not there.
func (b *book) worseThan(old *book) bool {
	for device, v := range b.verdicts {
		if v.Status == health.Unhealthy && old.status(device) != health.Unhealthy {
			return true
		}
	}
	return false
}

// allocator answers for one resource from memory; an Allocator is one.
type allocator interface {
	Allocate(ids []string, status func(gpu.UUID) health.Status) (Response, error)
	Prefer(available, must []string, size int, avoid func(gpu.UUID) bool, status func(gpu.UUID) health.Status) []string
}

// desk answers the kubelet's questions about one resource with what is known at one instant.
type desk struct {
	allocator
	verdicts *book
}

func (d desk) allocate(ids []string) (Response, error) {
	return d.Allocate(ids, d.verdicts.status)
}

func (d desk) prefer(available, must []string, size int) []string {
	return d.Prefer(available, must, size, d.verdicts.avoid, d.verdicts.status)
}
