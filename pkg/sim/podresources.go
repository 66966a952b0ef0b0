// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/pkg/sharing"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// podResources are the pods that run, in an order of their own as the kubelet's is,
// but the same at every call.
func (n *Node) podResources(m moment) []*podresources.PodResources {
	type entry struct {
		order uint64
		pod   *podresources.PodResources
	}
	background := backgroundPods(n.scenario.background, n.seed)
	entries := make([]entry, 0, len(m.state.active)+len(background))
	add := func(namespace, name string, containers ...*podresources.ContainerResources) {
		entries = append(entries, entry{
			mix(n.seed, hashText(namespace+"/"+name)),
			&podresources.PodResources{Namespace: namespace, Name: name, Containers: containers},
		})
	}
	for _, p := range m.state.active {
		main := &podresources.ContainerResources{Name: p.spec.container}
		for _, st := range p.seats {
			main.Devices = append(main.Devices, n.containerDevices(st)...)
		}
		containers := []*podresources.ContainerResources{main}
		for _, name := range p.spec.sidecars {
			containers = append(containers, &podresources.ContainerResources{Name: name})
		}
		add(p.spec.namespace, p.name(n.seed, m.round), containers...)
	}
	for _, b := range background {
		var containers []*podresources.ContainerResources
		for _, name := range b.containers {
			containers = append(containers, &podresources.ContainerResources{Name: name})
		}
		add(b.namespace, b.name, containers...)
	}
	slices.SortFunc(entries, func(a, b entry) int { return cmp.Compare(a.order, b.order) })
	pods := make([]*podresources.PodResources, len(entries))
	for i := range entries {
		pods[i] = entries[i].pod
	}
	return pods
}

// containerDevices is one id as the kubelet lists it: an entry for each NUMA node of
// the device.
func (n *Node) containerDevices(st seat) []*podresources.ContainerDevices {
	id := n.scenario.seatID(st.unit, st.replica)
	var out []*podresources.ContainerDevices
	for _, node := range n.scenario.cards[st.unit.card].numa {
		out = append(out, &podresources.ContainerDevices{
			ResourceName: st.unit.resource,
			DeviceIds:    []string{id},
			Topology:     &podresources.TopologyInfo{Nodes: []*podresources.NUMANode{{ID: int64(node)}}},
		})
	}
	return out
}

// List is the node's allocations now, as a client of its kubelet would read them but
// without a socket: no pod UIDs, an error while the kubelet restarts, late while it
// is slow.
func (n *Node) List(ctx context.Context) (sharing.Listing, error) {
	l := &lister{node: n}
	m, err := l.now(ctx)
	if err != nil {
		return sharing.Listing{}, fmt.Errorf("list pod resources of %s: %w", n.scenario.Node, context.Cause(ctx))
	}
	if m.state.kubeletDown {
		return sharing.Listing{}, fmt.Errorf("list pod resources of %s: the kubelet is restarting", n.scenario.Node)
	}
	out := sharing.Listing{Time: time.Now()}
	for _, p := range n.podResources(m) {
		out.Pods++
		out.Containers += len(p.Containers)
		for _, c := range p.Containers {
			holder := sharing.Holder{Namespace: p.Namespace, Pod: p.Name, Container: c.Name}
			seen := ""
			for _, d := range c.Devices {
				// An id's entries for its NUMA nodes follow each other.
				if id := d.DeviceIds[0]; id != seen {
					out.Allocations = append(out.Allocations, sharing.Allocation{Holder: holder, Resource: d.ResourceName, DeviceID: id})
					seen = id
				}
			}
		}
	}
	out.Advertised = n.advertised(m.state)
	return out, nil
}
