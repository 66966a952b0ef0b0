// SPDX-License-Identifier: Apache-2.0

package fakekubelet

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// resource is what the kubelet knows of one.
type resource struct {
	// plugins are the connected ones, oldest first; primary is asked for allocations.
	plugins []*plugin
	primary *plugin
	// devices are the last list, nil before the first since the kubelet's start.
	devices map[string]Device
	// stopped is since when there is no plugin, zero while there is one.
	stopped time.Time
	lists   int
	// held has who holds each device, by its id.
	held map[string]string
}

// plugin is one connection.
type plugin struct {
	resource, socket string
	conn             *grpc.ClientConn
	api              pluginapi.DevicePluginClient
	options          *pluginapi.DevicePluginOptions
	once             sync.Once
}

func (p *plugin) close() { p.once.Do(func() { _ = p.conn.Close() }) }

// registration serves Register.
type registration struct {
	pluginapi.UnimplementedRegistrationServer
	kubelet *Kubelet
}

// Register connects to the plugin before it answers.
func (r *registration) Register(ctx context.Context, req *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	err := r.kubelet.register(ctx, req)
	r.kubelet.mu.Lock()
	defer r.kubelet.mu.Unlock()
	r.kubelet.history = append(r.kubelet.history, Registration{Resource: req.GetResourceName(), Endpoint: req.GetEndpoint(), Err: err})
	r.kubelet.ring()
	return &pluginapi.Empty{}, err
}

func (k *Kubelet) register(ctx context.Context, req *pluginapi.RegisterRequest) error {
	if err := k.admit(ctx); err != nil {
		return err
	}
	domain, name, _ := strings.Cut(req.GetResourceName(), "/")
	switch {
	case req.GetVersion() != pluginapi.Version:
		return fmt.Errorf("requested API version %q is not supported by kubelet, supported versions are %q", req.GetVersion(), pluginapi.SupportedVersions)
	case domain == "" || name == "" || strings.HasSuffix(domain, "kubernetes.io"):
		return fmt.Errorf("the ResourceName %q is invalid", req.GetResourceName())
	}
	p, err := k.dial(ctx, req.GetResourceName(), filepath.Join(k.config.Dir, req.GetEndpoint()))
	if err != nil {
		return err
	}
	if err := k.connect(p); err != nil {
		p.close()
		return err
	}
	return nil
}

// admit is what the verbs of a test do to a registration.
func (k *Kubelet) admit(ctx context.Context) error {
	k.mu.Lock()
	hung := k.hung
	var refusal error
	if len(k.refusals) > 0 {
		refusal, k.refusals = k.refusals[0], k.refusals[1:]
	}
	k.mu.Unlock()
	if hung != nil {
		select {
		case <-hung:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return refusal
}

// dial connects and waits until the plugin answers.
func (k *Kubelet) dial(ctx context.Context, resource, socket string) (*plugin, error) {
	ctx, cancel := context.WithTimeout(ctx, k.config.DialTimeout)
	defer cancel()
	conn, err := grpc.NewClient("passthrough:///"+filepath.Base(socket),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}),
		grpc.WithAuthority("localhost"), grpc.WithNoProxy(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("failed to dial device plugin: %w", err)
	}
	conn.Connect()
	for state := conn.GetState(); state != connectivity.Ready; state = conn.GetState() {
		if !conn.WaitForStateChange(ctx, state) {
			_ = conn.Close()
			return nil, fmt.Errorf("failed to dial device plugin: %w", ctx.Err())
		}
	}
	p := &plugin{resource: resource, socket: socket, conn: conn, api: pluginapi.NewDevicePluginClient(conn)}
	p.options, err = p.api.GetDevicePluginOptions(ctx, &pluginapi.Empty{})
	if err != nil {
		p.close()
		return nil, fmt.Errorf("failed to get device plugin options: %w", err)
	}
	return p, nil
}

// connect makes p the resource's plugin, and listens to it.
func (k *Kubelet) connect(p *plugin) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.server == nil {
		return fmt.Errorf("the kubelet has ended")
	}
	r := k.resources[p.resource]
	if r == nil {
		r = &resource{held: map[string]string{}}
		k.resources[p.resource] = r
	}
	known := slices.ContainsFunc(r.plugins, func(o *plugin) bool { return o.socket == p.socket })
	switch {
	case k.config.Legacy:
		// The old connection is forgotten, and not closed: its stream ends by itself.
		r.plugins = nil
	case known:
		return fmt.Errorf("device plugin already connected: %s", p.socket)
	}
	r.plugins = append(r.plugins, p)
	k.conns = append(k.conns, p)
	r.primary, r.stopped = p, time.Time{}
	if k.deaf > 0 {
		k.deaf--
		return nil
	}
	k.served.Go(func() { k.listen(p) })
	return nil
}

// listen takes lists until the stream ends, which is the end of the plugin.
func (k *Kubelet) listen(p *plugin) {
	// The kubelet's own calls have no end either; it closes the connection to end them.
	stream, err := p.api.ListAndWatch(context.Background(), &pluginapi.Empty{})
	for err == nil {
		var list *pluginapi.ListAndWatchResponse
		if list, err = stream.Recv(); err == nil {
			k.receive(p.resource, list)
		}
	}
	k.mu.Lock()
	gone := p
	if r := k.resources[p.resource]; k.config.Legacy && r != nil && len(r.plugins) > 0 {
		gone = r.plugins[0]
	}
	k.mu.Unlock()
	p.close()
	k.disconnect(gone)
}

func (k *Kubelet) receive(name string, list *pluginapi.ListAndWatchResponse) {
	k.mu.Lock()
	defer k.mu.Unlock()
	r := k.resources[name]
	r.lists++
	r.devices = make(map[string]Device, len(list.GetDevices()))
	for _, d := range list.GetDevices() {
		one := Device{ID: d.GetID(), Healthy: d.GetHealth() == pluginapi.Healthy, NUMANode: -1}
		if d.GetTopology() != nil {
			for _, node := range d.GetTopology().GetNodes() {
				one.NUMANode = int(node.GetID())
			}
			one.EmptyTopology = len(d.GetTopology().GetNodes()) == 0
		}
		r.devices[one.ID] = one
	}
	k.ring()
}

// disconnect forgets a plugin. With the last one of a resource all its devices are unhealthy.
func (k *Kubelet) disconnect(p *plugin) {
	p.close()
	k.mu.Lock()
	defer k.mu.Unlock()
	r := k.resources[p.resource]
	at := slices.Index(r.plugins, p)
	if at < 0 {
		return
	}
	r.plugins = slices.Delete(r.plugins, at, at+1)
	if len(r.plugins) > 0 {
		r.primary = r.plugins[0]
	} else {
		r.primary, r.stopped = nil, time.Now()
		for id, d := range r.devices {
			d.Healthy = false
			r.devices[id] = d
		}
	}
	k.ring()
}
