// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// Name is the source's name in its readings.
const Name = "nvml"

// Config is what a Source is made of.
type Config struct {
	// Library is the path or soname of the management library; "" is libnvidia-ml.so.1, from
	// the loader's places and those of known distributions.
	Library string
	// GPUs chooses the GPUs (majors, NVML's index) and GPU instances (minors, InstanceEntity)
	// that have samples. The inventory is always whole.
	GPUs gpu.Selection
	// Switches chooses the links that have samples, by their number on the GPU (minors).
	Switches gpu.Selection
	// Log is for what happens beside the readings; nil for none.
	Log *slog.Logger
}

// Source reads the GPUs of a node through NVML. Its methods are safe for concurrent use; those
// that speak to the driver take turns.
type Source struct {
	cfg     Config
	log     *slog.Logger
	lib     *library
	queries []*query
	queue   *eventQueue

	// life ends when Close begins, and ended closes when the lanes are to end.
	life    context.Context
	close   func()
	ended   chan struct{}
	closing sync.Once
	// turn is held by who speaks to the driver.
	turn chan struct{}

	// The following belong to who has the turn.
	node  *lane
	cards []*card
	// before are the cards as the reading before had them.
	before []remembered
	// heard is when each entity of the reading before last gave values.
	heard map[gpu.Entity]time.Time
	// inventory are the devices when they last changed, nil before the first reading.
	inventory []gpu.Device
	// gone are lost cards that the driver no longer lists.
	gone  []remembered
	plan  *plan
	peers peerBook
	// released says that Release let go of the driver; down why it is away otherwise, and
	// retry when to try again, after a pause that grows.
	released bool
	down     error
	retry    time.Time
	pause    time.Duration
	// driven are the GPUs that the kernel module drove when the library was connected.
	driven    []string
	connected time.Time
	// kernelGPUs is where the kernel module lists them, empty for nowhere.
	kernelGPUs string

	// mu guards what is told to people at any time.
	mu    sync.Mutex
	facts nodeFacts
	state []cardState
}

// cardState is what people ask about a card.
type cardState struct {
	device gpu.Device
	parts  int
	deaf   bool
	// gpm is why there is no profiling, where that is known.
	gpm      gpu.Reason
	gpmKnown bool
}

func (c cardState) String() string {
	line := fmt.Sprintf("GPU %d %s %s at %s", c.device.Index, c.device.UUID, c.device.Model, c.device.PCIBusID)
	if c.device.MIGEnabled {
		line += fmt.Sprintf(", MIG with %d devices", c.parts)
	}
	if c.device.Lost {
		line += ", lost"
	}
	if c.deaf {
		line += ", without events: its XIDs are not heard"
	}
	switch {
	case !c.gpmKnown:
	case c.gpm == gpu.ReasonNone:
		line += ", with profiling"
	default:
		line += ", without profiling (" + c.gpm.String() + ")"
	}
	return line
}

// remember keeps for people what the cards said.
func (s *Source) remember(answers []surveyed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.state) != len(answers) {
		s.state = make([]cardState, len(answers))
	}
	for i := range answers {
		if a := &answers[i]; a.answered {
			s.state[i] = cardState{a.device, len(a.parts), a.deaf, a.gpm, a.gpmKnown}
		}
	}
}

// remembered is a card as a reading had it.
type remembered struct {
	device gpu.Device
	parts  []gpu.Device
}

// openPatience is how long the driver may take to be initialised.
const openPatience = 30 * time.Second

// Open loads the library and connects it with the driver. The error says what was looked for,
// what the loader or the driver said, and what to do; errors.Is tells ErrNoLibrary from
// ErrNoDriver. A node without GPUs is no error.
func Open(cfg Config) (*Source, error) {
	lib, err := load(cfg.Library)
	if err != nil {
		return nil, err
	}
	return open(cfg, lib, kernelGPUs)
}

// open is Open with the library loaded.
func open(cfg Config, lib *library, kernelGPUs string) (*Source, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Source{
		cfg: cfg, log: cfg.Log, lib: lib, queries: allQueries(), queue: newEventQueue(),
		turn: make(chan struct{}, 1), ended: make(chan struct{}), kernelGPUs: kernelGPUs,
	}
	s.life, s.close = context.WithCancel(context.Background())
	s.node = newLane("node", s.log, s.ended, nil)
	s.peers = peerBook{lane: newLane("peers", s.log, s.ended, nil), lib: lib}
	ctx, cancel := context.WithTimeout(context.Background(), openPatience)
	defer cancel()
	if err := s.connect(ctx); err != nil {
		s.close()
		close(s.ended)
		return nil, err
	}
	return s, nil
}

// allQueries are all the ways to answer fields. Of two for one field the first is taken whose
// functions the library has.
func allQueries() []*query {
	return slices.Concat(
		identityQueries(), clockQueries(), heatQueries(), utilizationQueries(), pcieQueries(), memoryQueries(),
		faultQueries(), nvlinkQueries(), []*query{fieldValueQuery(), gpmQuery(), xidQuery()},
	)
}

// connect initialises the library and reads what is the same for all GPUs.
func (s *Source) connect(ctx context.Context) error {
	// Whatever comes while it is being initialised is looked at again.
	s.driven, s.connected = driven(s.kernelGPUs), time.Now()
	type outcome struct {
		facts nodeFacts
		err   error
	}
	c, idle := begin(s.node, func() outcome {
		s.node.doing.Store(new("nvmlInit_v2"))
		if err := s.lib.initialise(); err != nil {
			return outcome{err: err}
		}
		return outcome{facts: s.nodeFacts()}
	})
	if idle {
		if o, answered := c.wait(ctx.Done()); answered {
			if o.err == nil {
				s.mu.Lock()
				s.facts = o.facts
				s.mu.Unlock()
			}
			return o.err
		}
	}
	return fmt.Errorf("%w: %s: %s has not come back for %v; the driver hangs, see dmesg for lines with NVRM",
		ErrNoDriver, s.lib.path, s.node.at(), s.node.outstanding().Round(time.Millisecond))
}

// nodeFacts asks for what is the same for all GPUs, on the node's lane.
func (s *Source) nodeFacts() nodeFacts {
	var f nodeFacts
	if s.lib.has("nvmlSystemGetDriverVersion") {
		f.driver, _ = s.lib.SystemGetDriverVersion()
	}
	if s.lib.has("nvmlSystemGetNVMLVersion") {
		f.nvml, _ = s.lib.SystemGetNVMLVersion()
	}
	if s.lib.has("nvmlSystemGetCudaDriverVersion_v2|nvmlSystemGetCudaDriverVersion") {
		version, ret := s.lib.SystemGetCudaDriverVersion()
		if ret == nvml.SUCCESS {
			f.cuda = version
		}
	}
	return f
}

// Kinds are the words that errors of Read are counted by.
func (s *Source) Kinds() []string { return []string{kindDriver, kindReleased} }

// Alarms gets something within about a second after an XID, a double-bit error, a new recovery action or
// the loss of a GPU, so that a Read need not be waited for. A GPU that hangs is not heard meanwhile.
func (s *Source) Alarms() <-chan struct{} { return s.queue.alarm }

// Origin is the library and the driver that readings come from.
func (s *Source) Origin() gpu.Origin {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := gpu.Origin{Library: "libnvidia-ml", Driver: s.facts.driver}
	if s.facts.nvml != "" {
		o.Library += " " + s.facts.nvml
	}
	return o
}

// Supports reports whether NVML has the field on some GPU with some driver. Of the computed
// metrics it has all but the health checks.
func (s *Source) Supports(id gpu.FieldID) bool {
	if id.Computed() {
		return id != gpu.FieldHealthStatus
	}
	switch id {
	case fieldDriverVersion, fieldNVMLVersion, fieldGPUCount, fieldCUDAVersion:
		return true
	}
	return slices.ContainsFunc(s.queries, func(q *query) bool { return slices.Contains(q.fields, id) })
}

// Facts are lines about the library, the driver and the GPUs, for people.
func (s *Source) Facts() []string {
	s.mu.Lock()
	facts, state := s.facts, slices.Clone(s.state)
	s.mu.Unlock()
	lines := []string{
		fmt.Sprintf("library %s, NVML %s", s.lib.path, orUnknown(facts.nvml)),
		fmt.Sprintf("driver %s, CUDA %d.%d, %d GPUs", orUnknown(facts.driver), facts.cuda/1000, facts.cuda%1000/10, facts.gpus),
	}
	for _, c := range state {
		if c.device.UUID != "" {
			lines = append(lines, c.String())
		}
	}
	if lacks := s.lib.lacks(); len(lacks) > 0 {
		slices.Sort(lacks)
		lines = append(lines, fmt.Sprintf("functions that this driver's library does not have: %v", lacks))
	}
	return lines
}

func orUnknown(version string) string {
	if version == "" {
		return "of unknown version"
	}
	return version
}
