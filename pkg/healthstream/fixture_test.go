// SPDX-License-Identifier: Apache-2.0

package healthstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
)

// patience is how long a test waits for what must come.
const patience = 20 * time.Second

// journal is a log that can be read while it is written to.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

// board is a source: what was pinned last is what there is.
type board struct {
	mu      sync.Mutex
	list    *List
	changed chan struct{}
}

func newBoard(list *List) *board { return &board{list: list, changed: make(chan struct{})} }

func (b *board) Watch() (*List, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.list, b.changed
}

func (b *board) pin(list *List) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.list = list
	close(b.changed)
	b.changed = make(chan struct{})
}

// desk takes the words of operators and the facts of reporters.
type desk struct {
	mu      sync.Mutex
	refuse  error
	words   []health.Clearing
	reports map[string][]health.Fact
}

func (d *desk) Clear(_ context.Context, c health.Clearing) (health.Clearing, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refuse != nil {
		return health.Clearing{}, d.refuse
	}
	d.words = append(d.words, c)
	c.Ended = []health.Condition{{Subject: health.WholeCard(c.Device), Kind: health.XIDKind(79), Class: health.ClassNode}}
	return c, nil
}

func (d *desk) Report(reporter string, facts []health.Fact) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.reports == nil {
		d.reports = make(map[string][]health.Fact)
	}
	d.reports[reporter] = facts
}

func (d *desk) reported(by string) []health.Fact {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.reports[by]
}

const sick = gpu.UUID("GPU-00000000-0000-0000-0000-000000000001")

// listAt is a node of two GPUs, the second of which is as said.
func listAt(epoch string, version uint64, status health.Status) *List {
	const well = gpu.UUID("GPU-00000000-0000-0000-0000-000000000000")
	at := time.Unix(1_700_000_000, 0).UTC()
	list := &List{Epoch: epoch, Node: "node-1", Source: "sim", Report: health.Report{Time: at, BootID: "boot", Version: version}}
	for i, uuid := range []gpu.UUID{well, sick} {
		list.Devices = append(list.Devices, Device{Device: gpu.Device{
			UUID: uuid, Index: i, Minor: i, GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance, InstanceEntity: gpu.NoInstance,
		}})
		v := health.Verdict{Device: uuid, Card: uuid, Status: health.Healthy, Since: at}
		if uuid == sick {
			v.Status = status
		}
		list.Report.Verdicts = append(list.Report.Verdicts, v)
	}
	return list
}

// socketIn is a short path in a folder of its own.
func socketIn(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "run", "health.sock")
}

// running is something that runs until it is stopped.
type running struct {
	cancel context.CancelFunc
	done   chan error
}

func run(f func(context.Context) error) *running {
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{cancel: cancel, done: make(chan error, 1)}
	go func() { r.done <- f(ctx) }()
	return r
}

// stop ends it and is its error.
func (r *running) stop(t testing.TB) {
	t.Helper()
	r.cancel()
	select {
	case err := <-r.done:
		r.done <- err
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Error("it does not end with its context")
	}
}

// serve runs a server until the test ends, or the result is stopped.
func serve(t testing.TB, s *Server, socket string) *running {
	t.Helper()
	r := run(func(ctx context.Context) error { return s.Run(ctx, socket) })
	t.Cleanup(func() { r.stop(t) })
	wait(t, "the socket", func() error {
		select {
		case err := <-r.done:
			t.Fatalf("the server ended: %v", err)
		default:
		}
		// The file is there a moment before it can be connected to.
		conn, err := net.Dial("unix", socket)
		if err == nil {
			conn.Close()
		}
		return err
	})
	return r
}

// follow runs a client until the test ends.
func follow(t testing.TB, cfg ClientConfig) *Client {
	t.Helper()
	if cfg.MinBackoff == 0 {
		cfg.MinBackoff, cfg.MaxBackoff = 5*time.Millisecond, 50*time.Millisecond
	}
	c := NewClient(cfg)
	r := run(c.Run)
	t.Cleanup(func() { r.stop(t) })
	return c
}

// wait polls until there is no complaint any more.
func wait(t testing.TB, what string, complaint func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if err = complaint(); err == nil {
			return
		}
	}
	t.Fatalf("waiting for %s: %v", what, err)
}

// waitState waits until the client's state is as wanted, and is that state.
func waitState(t testing.TB, c *Client, what string, good func(ClientState) bool) ClientState {
	t.Helper()
	timeout := time.After(patience)
	for {
		state, changed := c.Watch()
		if good(state) {
			return state
		}
		select {
		case <-changed:
		case <-timeout:
			t.Fatalf("waiting for %s: it has %s", what, described(state))
		}
	}
}

func described(s ClientState) string {
	list := "no list"
	if s.List != nil {
		list = fmt.Sprintf("epoch %q version %d", s.List.Epoch, s.List.Report.Version)
	}
	return fmt.Sprintf("%s, up %v, error %v, %d reconnects", list, s.Up, s.Err, s.Reconnects)
}

// upAt is the wish for a list.
func upAt(epoch string, version uint64) func(ClientState) bool {
	return func(s ClientState) bool {
		return s.Up && s.List != nil && s.List.Epoch == epoch && s.List.Report.Version == version
	}
}

func statusOf(l *List, device gpu.UUID) health.Status {
	v, _ := l.Report.Verdict(device)
	return v.Status
}

var errRefused = errors.New("no such device here")
