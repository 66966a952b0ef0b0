// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/kubelet"
	"github.com/gpumeter/gpumeter/pkg/sim"
)

// kubeletDir is where a simulated kubelet serves its socket and keeps its checkpoint. A unix
// socket's path has room for 107 bytes, so it lives in the short place.
type kubeletDir struct{ path string }

func newKubeletDir() *kubeletDir {
	return &kubeletDir{filepath.Join(os.TempDir(), "gpumeter-sim-"+rand.Text()[:10])}
}

func (d *kubeletDir) socket() string     { return filepath.Join(d.path, "kubelet.sock") }
func (d *kubeletDir) checkpoint() string { return filepath.Join(d.path, "kubelet_internal_checkpoint") }
func (d *kubeletDir) remove() error      { return os.RemoveAll(d.path) }

// pretendDriver is a simulated node as a Driver.
type pretendDriver struct{ *sim.Node }

// Origin is what can be said without a reading.
func (pretendDriver) Origin() gpu.Origin { return gpu.Origin{Library: "sim"} }

// Facts are the lines in which the scenario sums itself up.
func (d pretendDriver) Facts() []string { return d.Scenario().Summary() }

func (s *Sources) openSim() (Driver, error) {
	scenario, err := sim.Open(s.cfg.Scenario)
	if err != nil {
		return nil, fmt.Errorf("--scenario: %w", err)
	}
	selected, err := s.cfg.selections()
	if err != nil {
		return nil, err
	}
	o := sim.Options{Start: time.Now(), Speed: s.cfg.Speed, GPUs: selected.gpus, Log: s.log}
	if s.kubelet != nil {
		o.Checkpoint = s.kubelet.checkpoint()
	}
	switch {
	case s.cfg.SeedSet:
		o.Seed = &s.cfg.Seed
	case s.cfg.NodeName != "":
		seed := sim.SeedOf(s.cfg.NodeName)
		o.Seed = &seed
	}
	node, err := sim.NewNode(scenario, o)
	if err != nil {
		return nil, fmt.Errorf("--scenario %s: %w", s.cfg.Scenario, err)
	}
	s.mu.Lock()
	s.node = node
	s.mu.Unlock()
	return pretendDriver{node}, nil
}

// Node is the simulated node, or nil while none is open.
func (s *Sources) Node() *sim.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.node
}

// Pretends reports whether the kubelet is a simulated node's own, which ServeKubelet serves.
func (s *Sources) Pretends() bool { return s.kubelet != nil }

// ServeKubelet serves the simulated node's kubelet until ctx ends; where there is none, it waits.
func (s *Sources) ServeKubelet(ctx context.Context) error {
	if s.kubelet == nil {
		<-ctx.Done()
		return nil
	}
	if err := os.Mkdir(s.kubelet.path, 0o700); err != nil {
		return fmt.Errorf("directory for the simulated kubelet's socket: %w", err)
	}
	return s.Node().ServeKubelet(ctx, s.kubelet.socket())
}

// AwaitKubelet gives a simulated kubelet the moment it needs to listen: the story is
// not to begin with a fault that no real node has.
func (s *Sources) AwaitKubelet(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	for s.kubelet != nil && ctx.Err() == nil {
		if c, err := new(net.Dialer).DialContext(ctx, "unix", s.kubelet.socket()); err == nil {
			_ = c.Close()
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// DialKubelet makes the client of the kubelet: a simulated node's own, unless the operator
// named a socket. It touches no socket yet.
func (s *Sources) DialKubelet() (*kubelet.Client, error) {
	resources, err := s.cfg.resources()
	if err != nil {
		return nil, err
	}
	kc := kubelet.Config{
		Socket: s.cfg.KubeletSocket, Resources: resources, Checkpoint: s.cfg.Checkpoint, Log: s.log,
		PodName: s.cfg.PodName, PodNamespace: s.cfg.PodNamespace, StartingLimit: s.cfg.KubeletMaxAge,
		Poll: s.cfg.KubeletPoll,
	}
	if kc.PodName == "" {
		// In a pod without the host's network this is the pod's name; elsewhere no pod has it.
		kc.PodName, _ = os.Hostname()
	}
	if s.kubelet != nil {
		kc.Socket, kc.Checkpoint = s.kubelet.socket(), s.kubelet.checkpoint()
	}
	return kubelet.New(kc)
}
