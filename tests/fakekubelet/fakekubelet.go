// SPDX-License-Identifier: Apache-2.0

// Package fakekubelet is a pretend kubelet for tests: its device manager, on real sockets, with
// the behaviour that device plugins have to live with. It empties the plugin folder when it
// starts, connects back to a plugin inside Register, never opens a stream again that was
// closed, and takes the end of a stream for the death of all devices. Beside that it has verbs
// with which a test makes the kubelet die, hang, refuse or forget.
package fakekubelet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// SocketName is the kubelet's socket in its folder.
const SocketName = "kubelet.sock"

// Config is what a Kubelet needs.
type Config struct {
	// Dir is the folder of the plugins' sockets and of the kubelet's. It is made if missing.
	Dir string
	// Legacy is a kubelet before 1.36: it knows plugins by resource only, so that the end of an
	// old stream takes a new connection of the same resource with it.
	Legacy bool
	// DialTimeout is for connecting back to a plugin, 0 for 10 s.
	DialTimeout time.Duration
	// Grace is how long a resource without a plugin is kept, 0 for 5 min.
	Grace time.Duration
}

// Kubelet is the pretend one. All methods are safe for concurrent use.
type Kubelet struct {
	config Config

	mu        sync.Mutex
	changed   chan struct{}
	server    *grpc.Server
	served    *sync.WaitGroup
	resources map[string]*resource
	conns     []*plugin
	history   []Registration
	refusals  []error
	deaf      int
	hung      chan struct{}
}

// Registration is one Register call as it came in.
type Registration struct {
	Resource, Endpoint string
	// Err is what it was answered, nil for success.
	Err error
}

// New makes a kubelet that does not run yet.
func New(config Config) *Kubelet {
	if config.DialTimeout == 0 {
		config.DialTimeout = 10 * time.Second
	}
	if config.Grace == 0 {
		config.Grace = 5 * time.Minute
	}
	return &Kubelet{config: config, changed: make(chan struct{}), resources: map[string]*resource{}}
}

// Socket is where it takes registrations.
func (k *Kubelet) Socket() string { return filepath.Join(k.config.Dir, SocketName) }

// Start empties the folder of sockets, as every start of a kubelet does, and listens. Of
// resources known before, allocations are remembered and devices are not.
func (k *Kubelet) Start() error {
	if err := os.MkdirAll(k.config.Dir, 0o750); err != nil {
		return fmt.Errorf("fake kubelet: %w", err)
	}
	if err := k.clean(); err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", k.Socket())
	if err != nil {
		return fmt.Errorf("fake kubelet: %w", err)
	}
	if unix, ok := listener.(*net.UnixListener); ok {
		unix.SetUnlinkOnClose(false)
	}
	server := grpc.NewServer()
	pluginapi.RegisterRegistrationServer(server, &registration{kubelet: k})

	k.mu.Lock()
	defer k.mu.Unlock()
	if k.server != nil {
		_ = listener.Close()
		return errors.New("fake kubelet: it runs already")
	}
	k.server, k.served = server, &sync.WaitGroup{}
	k.served.Go(func() { _ = server.Serve(listener) })
	k.ring()
	return nil
}

// clean removes sockets; the kubelet's checkpoint and whatever else is no socket stays.
func (k *Kubelet) clean() error {
	entries, err := os.ReadDir(k.config.Dir)
	if err != nil {
		return fmt.Errorf("fake kubelet: %w", err)
	}
	for _, entry := range entries {
		if entry.Type()&os.ModeSocket == 0 {
			continue
		}
		if err := os.Remove(filepath.Join(k.config.Dir, entry.Name())); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("fake kubelet: %w", err)
		}
	}
	return nil
}

// Kill ends it as a crash does: connections break, and its socket stays where nobody listens.
func (k *Kubelet) Kill() {
	k.mu.Lock()
	server, served := k.server, k.served
	k.server, k.served = nil, nil
	conns := k.conns
	k.conns = nil
	for _, r := range k.resources {
		r.plugins, r.primary, r.devices = nil, nil, nil
		r.stopped = time.Time{}
	}
	if k.hung != nil {
		close(k.hung)
		k.hung = nil
	}
	k.ring()
	k.mu.Unlock()
	for _, p := range conns {
		p.close()
	}
	if server != nil {
		server.Stop()
		served.Wait()
	}
}

// Stop ends it in good order: like Kill, and its socket is removed.
func (k *Kubelet) Stop() {
	k.Kill()
	_ = os.Remove(k.Socket())
}

// Restart is a crash and a start.
func (k *Kubelet) Restart() error {
	k.Kill()
	return k.Start()
}

// RefuseRegister answers the next n registrations with an error, and does not connect.
func (k *Kubelet) RefuseRegister(n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refusals = nil
	for range n {
		k.refusals = append(k.refusals, status.Error(codes.Unavailable, "fake kubelet: not yet"))
	}
}

// Forget takes the next n registrations and then never asks those plugins for their devices.
func (k *Kubelet) Forget(n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.deaf = n
}

// Hang makes registrations wait without an answer; with on false they go on.
func (k *Kubelet) Hang(on bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case on && k.hung == nil:
		k.hung = make(chan struct{})
	case !on && k.hung != nil:
		close(k.hung)
		k.hung = nil
	}
}

// DropStream closes the connection to a resource's plugin, as the kubelet does on any error.
func (k *Kubelet) DropStream(name string) {
	k.mu.Lock()
	var plugins []*plugin
	if r := k.resources[name]; r != nil {
		plugins = slices.Clone(r.plugins)
	}
	k.mu.Unlock()
	for _, p := range plugins {
		k.disconnect(p)
	}
}

// Registrations are all Register calls so far, oldest first.
func (k *Kubelet) Registrations() []Registration {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.history)
}

// WaitFor blocks until done says so; it is asked again after every change. The error is the
// context's, with what the kubelet has.
func (k *Kubelet) WaitFor(ctx context.Context, done func(*Kubelet) bool) error {
	for {
		k.mu.Lock()
		changed := k.changed
		k.mu.Unlock()
		if done(k) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("fake kubelet: waited in vain (%w): %s", ctx.Err(), k)
		}
	}
}

// ring tells who waits; the caller has the lock.
func (k *Kubelet) ring() {
	close(k.changed)
	k.changed = make(chan struct{})
}
