// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxb200"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh200"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	"github.com/google/uuid"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// machine is a pretend node: one of the binding's mock machines, with sensors that live, MIG,
// errors, and ways to break. What it does not override is the mock's.
type machine struct {
	nvml.Interface

	mu sync.Mutex
	// boards are those that the driver lists, in its order.
	boards []*board
	// away is what every call returns while the driver is gone, the others what single calls do.
	away, initFails, shutdownFails nvml.Return
	// atInit looks for the boards anew, nil where they are what they are.
	atInit func(*machine)
	// missing are functions that the library does not have.
	missing map[string]bool
	// hung blocks the calls about the node.
	hung chan struct{}
	// life counts initialisations: what was made in an earlier one is stale.
	life, inits, shutdowns int
	samples, requests      int
	refusesMetrics         bool
	sets                   int
}

// model is a kind of mock machine with what its MIG instances are really like.
type model struct {
	name   string
	server func() *server.Server
	// bytes is the card's memory in MiB.
	mib      uint64
	product  string
	geometry []geometry
	gpm      bool
}

// geometry is a GPU instance profile: what the hardware says, where the mock rounds.
type geometry struct {
	rank   int
	sms    uint32
	mib    uint64
	count  uint32
	size   uint32
	starts []uint32
	// slices are the compute slices of a profile that the mock does not have.
	slices uint32
}

func sevenths(one, oneDouble, two, three, four, seven [2]uint64) []geometry {
	g := func(rank int, of [2]uint64, count, size uint32, starts ...uint32) geometry {
		return geometry{rank: rank, sms: uint32(of[0]), mib: of[1], count: count, size: size, starts: starts}
	}
	return []geometry{
		g(nvml.GPU_INSTANCE_PROFILE_1_SLICE, one, 7, 1, 0, 1, 2, 3, 4, 5, 6),
		g(nvml.GPU_INSTANCE_PROFILE_1_SLICE_REV1, one, 1, 1, 0, 1, 2, 3, 4, 5, 6),
		g(nvml.GPU_INSTANCE_PROFILE_1_SLICE_REV2, oneDouble, 4, 2, 0, 2, 4, 6),
		g(nvml.GPU_INSTANCE_PROFILE_2_SLICE, two, 3, 2, 0, 2, 4),
		g(nvml.GPU_INSTANCE_PROFILE_3_SLICE, three, 2, 4, 0, 4),
		g(nvml.GPU_INSTANCE_PROFILE_4_SLICE, four, 1, 4, 0),
		g(nvml.GPU_INSTANCE_PROFILE_7_SLICE, seven, 1, 8, 0),
	}
}

type pair = [2]uint64

func modelA100() model {
	return model{"A100", dgxa100.New, 40960, "NVIDIA A100-SXM4-40GB", sevenths(
		pair{14, 4864}, pair{14, 9856}, pair{28, 9856}, pair{42, 19968}, pair{56, 19968}, pair{98, 40192}), false}
}

func modelH100() model {
	return model{"H100", dgxh100.New, 81559, "NVIDIA H100 80GB HBM3", sevenths(
		pair{16, 9984}, pair{26, 20096}, pair{32, 20096}, pair{60, 40448}, pair{64, 40448}, pair{132, 81008}), true}
}

func modelH200() model {
	return model{"H200", dgxh200.New, 143771, "NVIDIA H200", sevenths(
		pair{16, 16384}, pair{26, 33024}, pair{32, 33024}, pair{60, 71168}, pair{64, 71168}, pair{132, 143152}), true}
}

func modelB200() model {
	return model{"B200", dgxb200.New, 183359, "NVIDIA B200", sevenths(
		pair{18, 20992}, pair{30, 45312}, pair{36, 45312}, pair{70, 91136}, pair{74, 91136}, pair{148, 182642}), true}
}

func models() []model { return []model{modelA100(), modelH100(), modelH200(), modelB200()} }

// newMachine is a node with eight GPUs, none in MIG mode.
func newMachine(of model) *machine {
	s := of.server()
	m := &machine{Interface: s, missing: make(map[string]bool)}
	for i, d := range s.Devices {
		b := &board{
			Device: d, m: m, of: of, minor: i, began: time.Now(), bus: i + 1,
			uuid:    "GPU-" + uuid.NewSHA1(uuid.Nil, fmt.Append(nil, of.name, i)).String(),
			refused: make(map[string]nvml.Return), fields: make(map[uint32]fieldOf), gpm: make(map[nvml.GpmMetricId]float64),
			usedMiB: uint64(1000 * (i + 1)), events: nvml.EventTypeXidCriticalError | nvml.EventTypeSingleBitEccError |
				nvml.EventTypeDoubleBitEccError | nvml.EventTypeClock,
		}
		b.wire()
		m.boards = append(m.boards, b)
	}
	return m
}

// source opens the machine.
func (m *machine) source(t testing.TB, cfg Config) *Source {
	t.Helper()
	s, err := open(cfg, m.library(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func (m *machine) library() *library {
	return &library{Interface: m, path: "/pretend/libnvidia-ml.so.1", lookup: func(name string) error {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.missing[name] {
			return fmt.Errorf("undefined symbol: %s", name)
		}
		return nil
	}}
}

// call is how a call about the node begins.
func (m *machine) call() nvml.Return {
	m.mu.Lock()
	hung := m.hung
	m.mu.Unlock()
	if hung != nil {
		<-hung
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.away
}

func (m *machine) Init() nvml.Return {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inits++
	if m.initFails == nvml.SUCCESS {
		m.life++
		if m.atInit != nil {
			m.atInit(m)
		}
	}
	return m.initFails
}

func (m *machine) Shutdown() nvml.Return {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.shutdowns++
	if m.shutdownFails != nvml.SUCCESS {
		return m.shutdownFails
	}
	return m.away
}

func (m *machine) DeviceGetCount() (int, nvml.Return) {
	if ret := m.call(); ret != nvml.SUCCESS {
		return 0, ret
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.boards), nvml.SUCCESS
}

func (m *machine) DeviceGetHandleByIndex(i int) (nvml.Device, nvml.Return) {
	m.mu.Lock()
	if i >= len(m.boards) {
		m.mu.Unlock()
		return nil, nvml.ERROR_INVALID_ARGUMENT
	}
	b := m.boards[i]
	slow := b.slow
	m.mu.Unlock()
	if slow > 0 {
		time.Sleep(slow)
	}
	if ret := b.call("nvmlDeviceGetHandleByIndex"); ret != nvml.SUCCESS {
		return nil, ret
	}
	return b, nvml.SUCCESS
}

func (m *machine) DeviceGetP2PStatus(a, b nvml.Device, _ nvml.GpuP2PCapsIndex) (nvml.GpuP2PStatus, nvml.Return) {
	for _, d := range []nvml.Device{a, b} {
		if ret := d.(*board).call("nvmlDeviceGetP2PStatus"); ret != nvml.SUCCESS {
			return 0, ret
		}
	}
	return nvml.P2P_STATUS_OK, nvml.SUCCESS
}

func (m *machine) EventSetCreate() (nvml.EventSet, nvml.Return) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.away != nvml.SUCCESS {
		return nil, m.away
	}
	m.sets++
	return &eventSet{m: m, life: m.life}, nvml.SUCCESS
}

func (m *machine) GpmSampleAlloc() (nvml.GpmSample, nvml.Return) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.samples++
	return &gpmSample{m: m}, nvml.SUCCESS
}

func (m *machine) GpmMetricsGet(request *nvml.GpmMetricsGetType) nvml.Return {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.requests++
	if m.refusesMetrics {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	before, after := request.Sample1.(*gpmSample), request.Sample2.(*gpmSample)
	if before.freed || after.freed || before.of == nil || before.of != after.of || before.instance != after.instance || !before.at.Before(after.at) {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	for i := range request.Metrics[:request.NumMetrics] {
		metric := &request.Metrics[i]
		if before.of.strictGPM && metric.MetricId > uint32(nvml.GPM_METRIC_NVOFA_0_UTIL) {
			return nvml.ERROR_INVALID_ARGUMENT
		}
	}
	for i := range request.Metrics[:request.NumMetrics] {
		metric := &request.Metrics[i]
		v, known := before.of.gpm[nvml.GpmMetricId(metric.MetricId)]
		metric.NvmlReturn = uint32(nvml.SUCCESS)
		if !known {
			metric.NvmlReturn = uint32(nvml.ERROR_NOT_SUPPORTED)
		}
		metric.Value = v / float64(1+before.instance)
	}
	return nvml.SUCCESS
}

// change does something to a board under the machine's lock.
func (m *machine) change(i int, act func(*board)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	act(m.boards[i])
}

// xid makes the driver report an error to who listens.
func (m *machine) xid(i, instance, code int) {
	e := nvml.EventData{EventType: nvml.EventTypeXidCriticalError, EventData: uint64(code), GpuInstanceId: noInstance, ComputeInstanceId: noInstance}
	if instance != gpu.NoInstance {
		e.GpuInstanceId, e.ComputeInstanceId = uint32(instance), 0
	}
	m.happen(i, e)
}

func (m *machine) happen(i int, e nvml.EventData) {
	m.change(i, func(b *board) {
		e.Device = b
		for _, s := range b.sets {
			if s.types&e.EventType != 0 && s.life == m.life {
				s.waiting = append(s.waiting, e)
			}
		}
	})
}

// leaks is what was made and not freed.
func (m *machine) leaks() (sets, samples int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sets, m.samples
}

func (m *machine) hang(i int) { m.change(i, func(b *board) { b.hung = make(chan struct{}) }) }

func (m *machine) unhang(i int) {
	m.change(i, func(b *board) {
		if b.hung != nil {
			close(b.hung)
		}
		b.hung = nil
	})
}

// cut takes the driver away; mend brings it back.
func (m *machine) cut() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.away, m.initFails = nvml.ERROR_UNINITIALIZED, nvml.ERROR_DRIVER_NOT_LOADED
}

func (m *machine) mend() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.away, m.initFails = nvml.SUCCESS, nvml.SUCCESS
}

// eventSet is one of the driver's, with what has not been taken out of it.
type eventSet struct {
	nvml.EventSet
	m       *machine
	life    int
	of      *board
	types   uint64
	waiting []nvml.EventData
	freed   bool
}

func (s *eventSet) Wait(uint32) (nvml.EventData, nvml.Return) {
	if s.of != nil {
		if ret := s.of.call("nvmlEventSetWait"); ret != nvml.SUCCESS && ret != nvml.ERROR_GPU_IS_LOST {
			return nvml.EventData{}, ret
		}
	}
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	switch {
	case s.freed || s.life != s.m.life:
		return nvml.EventData{}, nvml.ERROR_INVALID_ARGUMENT
	case len(s.waiting) > 0:
		e := s.waiting[0]
		s.waiting = s.waiting[1:]
		return e, nvml.SUCCESS
	case s.of != nil && (s.of.lost || s.of.lostInEvents):
		return nvml.EventData{}, nvml.ERROR_GPU_IS_LOST
	}
	return nvml.EventData{}, nvml.ERROR_TIMEOUT
}

func (s *eventSet) Free() nvml.Return {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	if s.freed {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	s.freed = true
	s.m.sets--
	if s.of != nil {
		s.of.sets = slices.DeleteFunc(s.of.sets, func(o *eventSet) bool { return o == s })
	}
	return nvml.SUCCESS
}
