// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/pkg/exporter"
	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/healthstream"
	"github.com/gpumeter/gpumeter/pkg/meter"
)

// socketPause is how long the health stream waits after its socket could not be served.
const socketPause = 10 * time.Second

const (
	fieldComputeCapability = gpu.FieldID(63)
	fieldFBTotal           = gpu.FieldID(250)
)

// streamFields are what the health stream tells of devices and the counters may not have.
func streamFields() []gpu.FieldID {
	return []gpu.FieldID{fieldComputeCapability, fieldFBTotal, gpu.FieldP2PStatus}
}

// stream is the health stream with what it tells.
type stream struct {
	source *streamSource
	server *healthstream.Server
}

func (a *App) newStream() *stream {
	source := newStreamSource(a.meter, a.host)
	return &stream{source, healthstream.NewServer(healthstream.ServerConfig{
		Source: source, Operator: a.meter, Facts: a.meter, Witnesses: a.meter, Group: a.cfg.Health.SocketGroup, Log: a.log,
	})}
}

// state is how the stream fares, for the exporter; nil where there is no stream.
func (s *stream) state() func() exporter.Stream {
	if s == nil {
		return nil
	}
	return func() exporter.Stream {
		stats := s.server.Stats()
		out := exporter.Stream{Clients: stats.Clients, Lists: stats.Lists, Dropped: stats.Dropped}
		if list, _ := s.source.Watch(); list != nil {
			out.Epoch, out.Version = list.Epoch, list.Report.Version
		}
		return out
	}
}

// serveHealth serves the health stream until ctx ends. A socket that was asked for and cannot be
// served from the start is an error; any other trouble costs the stream alone, and is tried again.
func (a *App) serveHealth(ctx context.Context) error {
	socket := a.cfg.healthSocket()
	began, told := time.Now(), ""
	for {
		err := a.stream.server.Run(ctx, socket)
		if err == nil {
			return nil
		}
		if a.cfg.Health.SocketSet && time.Since(began) < socketPause {
			return fmt.Errorf("--health-socket: %w", err)
		}
		if text := err.Error(); text != told {
			a.log.Warn("the health stream is not served, so a device plugin hears no verdicts; it is tried again", "error", err)
			told = text
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(socketPause):
		}
	}
}

// watcher is the meter, as far as the stream watches it.
type watcher interface {
	Watch() (*meter.Snapshot, <-chan struct{})
}

// streamSource makes the stream's list of the meter's snapshots. It is safe for concurrent use.
type streamSource struct {
	meter watcher
	node  string
	epoch string

	mu sync.Mutex
	// seq is the snapshot that was looked at last, list what was made of it, version that of the
	// report from which the list has its own.
	seq     uint64
	list    *healthstream.List
	version uint64
	// known is what a device has told of itself, kept while it is silent.
	known map[gpu.UUID]statics
}

// statics are what does not change while a device is there.
type statics struct {
	memory     uint64
	capability string
	peers      map[gpu.UUID]int
}

func newStreamSource(m watcher, node string) *streamSource {
	return &streamSource{meter: m, node: node, epoch: rand.Text(), known: map[gpu.UUID]statics{}}
}

// Watch is the present list, nil before the first tick, and a channel that closes with the next one.
func (s *streamSource) Watch() (*healthstream.List, <-chan struct{}) {
	snapshot, stale := s.meter.Watch()
	s.mu.Lock()
	defer s.mu.Unlock()
	if snapshot.Seq > s.seq {
		s.seq = snapshot.Seq
		s.look(snapshot)
	}
	return s.list, stale
}

// look makes the list of a snapshot. Its version is the last one's where devices and verdicts are the same: then only times
// and counts are new, which go with the next heartbeat and are there for whoever asks.
func (s *streamSource) look(snapshot *meter.Snapshot) {
	s.learn(&snapshot.Reading)
	devices := s.devices(snapshot.Reading.Devices)
	report := snapshot.Health
	next := &healthstream.List{Epoch: s.epoch, Node: s.node, Source: snapshot.Reading.Source, Devices: devices, Report: *report}
	switch {
	case s.list == nil:
	case s.version == report.Version && s.list.Source == next.Source && reflect.DeepEqual(s.list.Devices, devices):
		next.Devices, next.Report.Version = s.list.Devices, s.list.Report.Version
	case next.Report.Version <= s.list.Report.Version:
		// The report knows nothing of the devices' sizes and links.
		next.Report.Version = s.list.Report.Version + 1
	}
	s.list, s.version = next, report.Version
}

func (s *streamSource) devices(in []gpu.Device) []healthstream.Device {
	out := make([]healthstream.Device, len(in))
	here := make(map[gpu.UUID]bool, len(in))
	for i, d := range in {
		here[d.UUID] = true
		d.Capacity, d.MIGProfiles = gpu.Slices{}, nil
		known := s.known[d.UUID]
		out[i] = healthstream.Device{Device: d, MemoryBytes: known.memory, ComputeCapability: known.capability, Peers: known.peers}
		if d.IsMIG() {
			out[i].ComputeCapability = s.known[d.Parent].capability
		}
	}
	maps.DeleteFunc(s.known, func(uuid gpu.UUID, _ statics) bool { return !here[uuid] })
	return out
}

// learn takes from a reading what it has of the devices.
func (s *streamSource) learn(r *gpu.Reading) {
	memory, capability := slices.Index(r.Fields, fieldFBTotal), slices.Index(r.Fields, fieldComputeCapability)
	instances := make(map[gpu.Entity][]gpu.UUID)
	for i := range r.Devices {
		if d := &r.Devices[i]; d.IsMIG() {
			e := gpu.Entity{Kind: gpu.KindGPUInstance, GPU: d.Parent, ID: d.GPUInstance}
			instances[e] = append(instances[e], d.UUID)
		}
	}
	for i := range r.Samples {
		sample := &r.Samples[i]
		var of []gpu.UUID
		switch sample.Entity.Kind {
		case gpu.KindGPU:
			of = []gpu.UUID{sample.Entity.GPU}
		case gpu.KindGPUInstance:
			of = instances[sample.Entity]
		default:
			continue
		}
		for _, uuid := range of {
			known := s.known[uuid]
			if mib, ok := whole(sample, memory); ok && mib > 0 {
				known.memory = uint64(mib) << 20
			}
			if v, ok := whole(sample, capability); ok && v > 0 {
				known.capability = fmt.Sprintf("%d.%d", v>>16, v&0xffff)
			}
			s.known[uuid] = known
		}
	}
	s.learnPeers(r.Peers)
}

func (s *streamSource) learnPeers(peers []gpu.Peer) {
	links := make(map[gpu.UUID]map[gpu.UUID]int)
	for _, p := range peers {
		if p.NVLinks <= 0 {
			continue
		}
		if links[p.From] == nil {
			links[p.From] = map[gpu.UUID]int{}
		}
		links[p.From][p.To] = p.NVLinks
	}
	for uuid, to := range links {
		known := s.known[uuid]
		known.peers = to
		s.known[uuid] = known
	}
}

// whole is a sample's value in a column, where it is a whole number.
func whole(sample *gpu.Sample, column int) (int64, bool) {
	if column < 0 || column >= len(sample.Values) {
		return 0, false
	}
	return sample.Values[column].AsInt()
}
