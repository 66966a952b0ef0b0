// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpumeter/gpumeter/tests/fakekubelet"
)

// lister serves the kubelet's PodResources.
type lister struct {
	podresources.UnimplementedPodResourcesListerServer

	kubelet *fakekubelet.Kubelet
	server  *grpc.Server
	// speaks is from when pods are listed.
	speaks time.Time
	pods   atomic.Pointer[[]heldPod]
}

// show makes pods those that are listed.
func (l *lister) show(pods []heldPod) { l.pods.Store(&pods) }

// List is every pod with what it holds, and the exporter's own.
func (l *lister) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	out := &podresources.ListPodResourcesResponse{}
	if time.Now().Before(l.speaks) {
		return out, nil
	}
	for _, p := range *l.pods.Load() {
		out.PodResources = append(out.PodResources, &podresources.PodResources{
			Namespace: p.Namespace, Name: p.Name,
			Containers: []*podresources.ContainerResources{{
				Name: p.Container, Devices: []*podresources.ContainerDevices{{ResourceName: p.Resource, DeviceIds: p.IDs}},
			}},
		})
	}
	out.PodResources = append(out.PodResources, &podresources.PodResources{
		Namespace: ownNamespace, Name: ownPod, Containers: []*podresources.ContainerResources{{Name: "exporter"}},
	})
	return out, nil
}

// GetAllocatableResources are the healthy devices.
func (l *lister) GetAllocatableResources(context.Context, *podresources.AllocatableResourcesRequest) (*podresources.AllocatableResourcesResponse, error) {
	out := &podresources.AllocatableResourcesResponse{}
	for _, name := range l.kubelet.Resources() {
		state, _ := l.kubelet.Resource(name)
		devices := &podresources.ContainerDevices{ResourceName: name}
		for id, d := range state.Devices {
			if d.Healthy {
				devices.DeviceIds = append(devices.DeviceIds, id)
			}
		}
		out.Devices = append(out.Devices, devices)
	}
	return out, nil
}
