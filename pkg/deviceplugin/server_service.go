// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// service answers the kubelet on one server of an endpoint, from memory only.
type service struct {
	pluginapi.UnimplementedDevicePluginServer
	endpoint *endpoint
	server   *server
}

// GetDevicePluginOptions says what a registration said.
func (*service) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return options(), nil
}

// PreStartContainer is not asked for by the options, and does nothing.
func (*service) PreStartContainer(context.Context, *pluginapi.PreStartContainerRequest) (*pluginapi.PreStartContainerResponse, error) {
	return &pluginapi.PreStartContainerResponse{}, nil
}

// ListAndWatch sends the list at once and each other one after it. It sends what is true now and
// not what happened: a stream that is slow, or comes late, has missed nothing.
func (s *service) ListAndWatch(_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	if !s.server.enter() {
		return status.Error(codes.Unavailable, "this socket is being closed; another one is registered")
	}
	s.endpoint.tally.update(func(s *ResourceStats) { s.Streams++ })
	s.endpoint.wake.ring()
	defer func() {
		s.server.leave()
		s.endpoint.tally.update(func(s *ResourceStats) { s.Streams-- })
		s.endpoint.wake.ring()
	}()

	var sent *list
	for {
		changed := s.endpoint.changed.heard()
		ending := isClosed(s.server.quit)
		if newest := s.endpoint.list.Load(); !newest.equal(sent) {
			if err := stream.Send(newest.message); err != nil {
				return err
			}
			sent = newest
			s.endpoint.tally.update(func(s *ResourceStats) { s.Lists++ })
		}
		if ending {
			return nil
		}
		select {
		case <-changed:
		case <-s.server.quit:
		case <-stream.Context().Done():
			return nil
		}
	}
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// GetPreferredAllocation never fails: its answer is a wish, and an error would fail the pod.
func (s *service) GetPreferredAllocation(_ context.Context, req *pluginapi.PreferredAllocationRequest) (*pluginapi.PreferredAllocationResponse, error) {
	answer := &pluginapi.PreferredAllocationResponse{}
	desk := s.endpoint.desk()
	for _, container := range req.GetContainerRequests() {
		answer.ContainerResponses = append(answer.ContainerResponses, &pluginapi.ContainerPreferredAllocationResponse{
			DeviceIDs: desk.prefer(container.GetAvailableDeviceIDs(), container.GetMustIncludeDeviceIDs(), int(container.GetAllocationSize())),
		})
	}
	s.endpoint.tally.update(func(s *ResourceStats) { s.Preferences++ })
	return answer, nil
}

// Allocate has one answer for each container, or an error for all of them.
func (s *service) Allocate(_ context.Context, req *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	start := time.Now()
	answer, err := s.allocate(req)
	s.endpoint.tally.allocated(time.Since(start), reasonOf(err))
	if err != nil {
		s.endpoint.log.Warn("the kubelet was refused an allocation; the pod fails with UnexpectedAdmissionError",
			"resource", s.endpoint.resource, "err", err)
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	return answer, nil
}

func (s *service) allocate(req *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	answer := &pluginapi.AllocateResponse{}
	desk := s.endpoint.desk()
	for _, container := range req.GetContainerRequests() {
		response, err := desk.allocate(container.GetDevicesIds())
		if err != nil {
			return nil, err
		}
		answer.ContainerResponses = append(answer.ContainerResponses, toKubelet(response))
	}
	return answer, nil
}

// reasonOf is the `reason` of an Allocate error, empty for none.
func reasonOf(err error) string {
	if err == nil {
		return ""
	}
	if refused, ok := errors.AsType[*AllocateError](err); ok {
		return refused.Reason
	}
	return "other"
}

// toKubelet says a Response in the kubelet's words.
func toKubelet(r Response) *pluginapi.ContainerAllocateResponse {
	answer := &pluginapi.ContainerAllocateResponse{Envs: r.Env, Annotations: r.Annotations}
	for _, m := range r.Mounts {
		answer.Mounts = append(answer.Mounts, &pluginapi.Mount{HostPath: m.Host, ContainerPath: m.Container, ReadOnly: m.ReadOnly})
	}
	for _, n := range r.Nodes {
		answer.Devices = append(answer.Devices, &pluginapi.DeviceSpec{HostPath: n.Host, ContainerPath: n.Container, Permissions: n.Permissions})
	}
	for _, name := range r.CDIDevices {
		answer.CdiDevices = append(answer.CdiDevices, &pluginapi.CDIDevice{Name: name})
	}
	return answer
}
