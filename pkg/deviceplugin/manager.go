// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpumeter/gpumeter/pkg/health"
)

// NodeState is what a node has, what its operator wants, and what is known of its health. It is
// not modified once given to a Manager.
type NodeState struct {
	Inventory Inventory
	Settings  Settings
	// Revision is the caller's name for the settings and what Prepare has beside them: with
	// another one there is another Prepare. Stats have the one in force.
	Revision string
	// Report has the verdicts; nil for none. What it does not know is handed out.
	Report *health.Report
}

// ManagerConfig is what a Manager needs.
type ManagerConfig struct {
	// KubeletDir is the kubelet's folder for device plugins, where the sockets are made.
	KubeletDir string
	// KubeletSocket is where the kubelet takes registrations; empty to serve and not register.
	KubeletSocket string
	// PluginPrefix begins the names of the sockets, empty for "nvidia".
	PluginPrefix string
	// CDI has the names of the devices in what containers get.
	CDI Names
	// Prepare makes ready what containers will need of a plan, the CDI spec: a device is not
	// handed out before a Prepare that knew it has succeeded. It may take long; one runs at a
	// time, beside all else, and one that failed is tried again. An error with a method
	// Missing() []gpu.UUID holds back those devices only. Nil for nothing to make ready.
	Prepare func(Inventory, Plan) error
	// Log is nil for none.
	Log *slog.Logger
}

// Manager hands a node's devices to the kubelet, one endpoint per resource, and follows what it
// is told of the node. All methods are safe for concurrent use; Run is called once.
type Manager struct {
	config ManagerConfig
	log    *slog.Logger
	host   *host

	// set rings for a new state.
	set   bell
	mu    sync.Mutex
	state *NodeState
	// version counts the states, to tell them apart.
	version uint64
	stats   Stats
	tallies map[string]*tally

	verdicts atomic.Pointer[book]
}

// NewManager makes a Manager; nothing is served before Run and the first Set.
func NewManager(config ManagerConfig) *Manager {
	return newManager(config, usualPace())
}

func newManager(config ManagerConfig, p pace) *Manager {
	log := config.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if config.PluginPrefix == "" {
		config.PluginPrefix = "nvidia"
	}
	folders := []string{config.KubeletDir}
	if config.KubeletSocket != "" {
		folders = append(folders, filepath.Dir(config.KubeletSocket))
	}
	m := &Manager{config: config, log: log, tallies: map[string]*tally{}}
	m.host = &host{
		folder: config.KubeletDir, kubelet: config.KubeletSocket, prefix: config.PluginPrefix,
		pace: p, watch: newFolderWatch(log, p.look, folders...), verdicts: &m.verdicts,
	}
	return m
}

// Set says how the node is now; only the newest state counts. It costs no more than looking
// through the report, and Allocate goes by its verdicts from then on.
func (m *Manager) Set(s NodeState) {
	verdicts := newBook(s.Inventory, s.Report)
	m.mu.Lock()
	m.state = &s
	m.version++
	m.verdicts.Store(verdicts)
	m.mu.Unlock()
	m.set.ring()
}

// latest is the newest state, nil before the first.
func (m *Manager) latest() (*NodeState, *book, uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state, m.verdicts.Load(), m.version
}

// Run serves until ctx ends, and then ends the streams and removes the sockets that it made. The
// only error is a configuration that cannot work.
func (m *Manager) Run(ctx context.Context) error {
	if m.config.KubeletDir == "" {
		return fmt.Errorf("device plugin: no folder of the kubelet to serve in (want one such as /var/lib/kubelet/device-plugins)")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { m.host.watch.run(ctx) })

	r := newReconciler(ctx, m, &running)
	for {
		set := m.set.heard()
		wait := r.step(time.Now())
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-set:
		case result := <-r.preparing:
			r.prepareEnded(result)
		case name := <-r.ended:
			delete(r.ending, name)
		case <-timer.C:
		}
		timer.Stop()
	}
}

// tally is the one of a resource, for as long as the Manager is there.
func (m *Manager) tally(resource string) *tally {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.tallies[resource]
	if t == nil {
		t = newTally(resource)
		m.tallies[resource] = t
	}
	return t
}

func (m *Manager) note(change func(*Stats)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(&m.stats)
}

// Stats is what was done so far.
func (m *Manager) Stats() Stats {
	m.mu.Lock()
	s := m.stats
	tallies := maps.Clone(m.tallies)
	m.mu.Unlock()

	s.Problems = slices.Clone(s.Problems)
	s.Watched = m.host.watch.watched.Load()
	for _, name := range slices.Sorted(maps.Keys(tallies)) {
		s.Resources = append(s.Resources, tallies[name].stats())
	}
	return s
}
