// SPDX-License-Identifier: Apache-2.0

package fakekubelet

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// Device is one of a list.
type Device struct {
	ID      string
	Healthy bool
	// NUMANode is -1 for no topology.
	NUMANode int
	// EmptyTopology is a topology without nodes, which the kubelet's PodResources drops.
	EmptyTopology bool
}

// State is what the kubelet has of one resource.
type State struct {
	// Capacity counts all devices, Allocatable the healthy ones: the node's status.
	Capacity, Allocatable int
	Devices               map[string]Device
	// Connected says that a plugin is there, Socket which one.
	Connected bool
	Socket    string
	// Lists counts the lists taken since the kubelet was made.
	Lists int
}

// Resource is what the kubelet has of one; false for one that the node's status does not have:
// no plugin came with it since the start, or none for longer than the grace.
func (k *Kubelet) Resource(name string) (State, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	r := k.resources[name]
	if r == nil || r.devices == nil || !r.stopped.IsZero() && time.Since(r.stopped) > k.config.Grace {
		return State{}, false
	}
	s := State{Capacity: len(r.devices), Devices: maps.Clone(r.devices), Lists: r.lists, Connected: r.primary != nil}
	if r.primary != nil {
		s.Socket = r.primary.socket
	}
	for _, d := range r.devices {
		if d.Healthy {
			s.Allocatable++
		}
	}
	return s, true
}

// Capacity is that of a resource, 0 for an unknown one.
func (k *Kubelet) Capacity(name string) int {
	s, _ := k.Resource(name)
	return s.Capacity
}

// Allocatable is that of a resource, 0 for an unknown one.
func (k *Kubelet) Allocatable(name string) int {
	s, _ := k.Resource(name)
	return s.Allocatable
}

// Resources are those of the node's status, ordered.
func (k *Kubelet) Resources() []string {
	k.mu.Lock()
	names := slices.Sorted(maps.Keys(k.resources))
	k.mu.Unlock()
	return slices.DeleteFunc(names, func(name string) bool {
		_, ok := k.Resource(name)
		return !ok
	})
}

// String is the node's status in words.
func (k *Kubelet) String() string {
	var words []string
	for _, name := range k.Resources() {
		s, _ := k.Resource(name)
		words = append(words, fmt.Sprintf("%s %d/%d connected=%t lists=%d", name, s.Allocatable, s.Capacity, s.Connected, s.Lists))
	}
	return fmt.Sprintf("[%s], %d registrations", strings.Join(words, "; "), len(k.Registrations()))
}

// Allocated is what a container got.
type Allocated struct {
	IDs      []string
	Response *pluginapi.ContainerAllocateResponse
}

// Allocate admits a container that asks for n of a resource: it asks the plugin which it
// prefers, and then for what the container gets. The errors are the kubelet's.
func (k *Kubelet) Allocate(ctx context.Context, holder, name string, n int) (Allocated, error) {
	ids, p, err := k.choose(ctx, name, n)
	if err != nil {
		return Allocated{}, err
	}
	answer, err := p.api.Allocate(ctx, &pluginapi.AllocateRequest{
		ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: ids}},
	})
	if err != nil {
		return Allocated{}, fmt.Errorf("allocate failed due to %w, which is unexpected", err)
	}
	if len(answer.GetContainerResponses()) == 0 {
		return Allocated{}, fmt.Errorf("no containers return in allocation response %v", answer)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, id := range ids {
		k.resources[name].held[id] = holder
	}
	k.ring()
	return Allocated{IDs: ids, Response: answer.GetContainerResponses()[0]}, nil
}

// choose is which devices a container gets, and from whom.
func (k *Kubelet) choose(ctx context.Context, name string, n int) ([]string, *plugin, error) {
	k.mu.Lock()
	r := k.resources[name]
	if r == nil || r.devices == nil {
		k.mu.Unlock()
		return nil, nil, fmt.Errorf("cannot allocate unregistered device %s", name)
	}
	var healthy, available []string
	for _, id := range slices.Sorted(maps.Keys(r.devices)) {
		if !r.devices[id].Healthy {
			continue
		}
		healthy = append(healthy, id)
		if _, held := r.held[id]; !held {
			available = append(available, id)
		}
	}
	p := r.primary
	k.mu.Unlock()

	switch {
	case len(healthy) == 0 || p == nil:
		return nil, nil, fmt.Errorf("no healthy devices present; cannot allocate unhealthy devices %s", name)
	case len(available) < n:
		return nil, nil, fmt.Errorf("requested number of devices unavailable for %s. Requested: %d, Available: %d", name, n, len(available))
	case !p.options.GetGetPreferredAllocationAvailable():
		return available[:n], p, nil
	}
	answer, err := p.api.GetPreferredAllocation(ctx, &pluginapi.PreferredAllocationRequest{
		ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{{AvailableDeviceIDs: available, AllocationSize: int32(n)}},
	})
	if err != nil {
		return nil, nil, err
	}
	var ids []string
	for _, response := range answer.GetContainerResponses() {
		ids = append(ids, response.GetDeviceIDs()...)
	}
	// A wish that cannot be met is passed over, and what is missing is taken as it comes.
	ids = slices.DeleteFunc(ids, func(id string) bool { return !slices.Contains(available, id) })
	for _, id := range available {
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids[:n], p, nil
}

// Free gives back what a holder has.
func (k *Kubelet) Free(holder string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, r := range k.resources {
		maps.DeleteFunc(r.held, func(_, h string) bool { return h == holder })
	}
	k.ring()
}
