// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// ServeKubelet serves the kubelet's PodResources v1 API on a unix socket until ctx
// ends, and returns nil then. While the story has the kubelet restart, the server is
// stopped and the socket gone; after it a new one listens at the same path. A socket
// left over at the path is replaced; any other file, or a socket that somebody
// serves, is an error. The folder must exist.
func (n *Node) ServeKubelet(ctx context.Context, socket string) error {
	for {
		state := n.line.at(n.Elapsed()).state
		if state.kubeletDown {
			n.log.Info("kubelet is restarting", "socket", socket)
			if !n.sleepUntilKubelet(ctx, true) {
				return nil
			}
			continue
		}
		if err := n.serveOnce(ctx, socket); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
	}
}

// serveOnce serves until the kubelet goes down or ctx ends.
func (n *Node) serveOnce(ctx context.Context, socket string) error {
	listener, err := listen(ctx, socket)
	if err != nil {
		return err
	}
	limiter := &rateLimit{perSecond: 100, burst: 10}
	server := grpc.NewServer(grpc.UnaryInterceptor(limiter.intercept))
	podresources.RegisterPodResourcesListerServer(server, &lister{node: n, checkpoint: &checkpoint{path: n.checkpoint}})
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	n.log.Info("kubelet is serving", "socket", socket)

	watch, cancel := context.WithCancel(ctx)
	defer cancel()
	down := make(chan struct{})
	go func() {
		defer close(down)
		n.sleepUntilKubelet(watch, false)
	}()
	// A kubelet that goes down does not wait for its clients.
	defer server.Stop()
	select {
	case err := <-done:
		cancel()
		<-down
		return fmt.Errorf("serve pod resources on %s: %w", socket, err)
	case <-down:
		// The listener takes its socket file along, after Stop if Serve had hardly begun.
		server.Stop()
		if err := <-done; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			return fmt.Errorf("serve pod resources on %s: %w", socket, err)
		}
		return nil
	}
}

// sleepUntilKubelet waits while the kubelet's state is as given; false when ctx ended first.
func (n *Node) sleepUntilKubelet(ctx context.Context, down bool) bool {
	for {
		elapsed := n.Elapsed()
		if n.line.at(elapsed).state.kubeletDown != down {
			return true
		}
		next, changes := n.line.nextChange(elapsed)
		if !changes {
			<-ctx.Done()
			return false
		}
		timer := time.NewTimer(max(n.wall(next-elapsed), time.Millisecond))
		select {
		case <-ctx.Done():
			timer.Stop()
			return false
		case <-timer.C:
		}
	}
}

// listen makes the socket, in the place of one that nobody serves any more.
func listen(ctx context.Context, socket string) (net.Listener, error) {
	info, err := os.Lstat(socket)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("serve pod resources: look at %s: %w", socket, err)
	case info.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("serve pod resources: %s exists and is not a socket; it is left alone, choose another path", socket)
	default:
		conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "unix", socket)
		if err == nil {
			_ = conn.Close()
			return nil, fmt.Errorf("serve pod resources: another process serves %s; stop it, or choose another path", socket)
		}
		if !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("serve pod resources: %s is a socket that may be in use: %w", socket, err)
		}
		if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("serve pod resources: remove the old socket %s: %w", socket, err)
		}
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("serve pod resources on %s (the folder must exist, and the path be below 108 bytes): %w", socket, err)
	}
	return listener, nil
}

// rateLimit is a token bucket over all methods, as the kubelet has it.
type rateLimit struct {
	perSecond, burst float64

	mu     sync.Mutex
	used   float64
	filled time.Time
}

func (l *rateLimit) allow() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if !l.filled.IsZero() {
		l.used = max(0, l.used-now.Sub(l.filled).Seconds()*l.perSecond)
	}
	l.filled = now
	if l.used+1 > l.burst {
		return false
	}
	l.used++
	return true
}

func (l *rateLimit) intercept(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if !l.allow() {
		return nil, status.Error(codes.ResourceExhausted, "rejected by rate limit")
	}
	return handler(ctx, req)
}

// lister answers from the node's state at the instant of the call.
type lister struct {
	podresources.UnimplementedPodResourcesListerServer
	node       *Node
	checkpoint *checkpoint
}

// now is the present moment, after the delay of a slow kubelet.
func (l *lister) now(ctx context.Context) (moment, error) {
	n := l.node
	if delay := n.line.at(n.Elapsed()).state.kubeletDelay; delay > 0 {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return moment{}, status.FromContextError(ctx.Err()).Err()
		case <-timer.C:
		}
	}
	return n.line.at(n.Elapsed()), nil
}

// List answers all pods that run.
func (l *lister) List(ctx context.Context, _ *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	m, err := l.now(ctx)
	if err != nil {
		return nil, err
	}
	if err := l.checkpoint.keep(l.node, m); err != nil {
		l.node.log.Warn("the pretend kubelet has no device checkpoint", "error", err)
	}
	return &podresources.ListPodResourcesResponse{PodResources: l.node.podResources(m)}, nil
}

// GetAllocatableResources answers the healthy ids.
func (l *lister) GetAllocatableResources(ctx context.Context, _ *podresources.AllocatableResourcesRequest) (*podresources.AllocatableResourcesResponse, error) {
	m, err := l.now(ctx)
	if err != nil {
		return nil, err
	}
	out := &podresources.AllocatableResourcesResponse{}
	m.state.eachOffered(func(st seat) {
		out.Devices = append(out.Devices, l.node.containerDevices(st)...)
	})
	return out, nil
}

// Get answers one pod. An unknown one is the kubelet's plain error, which is not NotFound.
func (l *lister) Get(ctx context.Context, req *podresources.GetPodResourcesRequest) (*podresources.GetPodResourcesResponse, error) {
	m, err := l.now(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range l.node.podResources(m) {
		if p.Name == req.PodName && p.Namespace == req.PodNamespace {
			return &podresources.GetPodResourcesResponse{PodResources: p}, nil
		}
	}
	return nil, status.Errorf(codes.Unknown, "pod %s in namespace %s not found", req.PodName, req.PodNamespace)
}
