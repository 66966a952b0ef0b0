// SPDX-License-Identifier: Apache-2.0

// Package soak runs the exporter and the device plugin for as long as one likes, as processes on a pretend node: GPUs behind a pretend libdcgm, a
// pretend kubelet with pods that come and go, ten clients that read every page with Prometheus' own parser and hold it against the laws, and
// everything that goes wrong on a node, kill -9 of each process included. It is a module of its own because the parser and the plot are too heavy for
// ours.
package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/tests/dcgmsim"
)

// What `make soak` says.
const (
	lengthVariable   = "GPUMETER_SOAK"
	programsVariable = "GPUMETER_PROGRAMS"
	seedVariable     = "GPUMETER_SOAK_SEED"
	outVariable      = "GPUMETER_SOAK_OUT"
)

// node is the pretend node with our programs on it.
type node struct {
	t        *testing.T
	seed     uint64
	programs string
	// dir is short, for the sake of sockets; out keeps what is looked at afterwards.
	dir, out string
	// exporterAt and pluginAt are addresses that nobody else uses.
	exporterAt, pluginAt      string
	machine                   *machine
	book                      *book
	exporter, plugin, kubelet *program
}

// TestSoak is `make soak`.
func TestSoak(t *testing.T) {
	length, programs := os.Getenv(lengthVariable), os.Getenv(programsVariable)
	if length == "" || programs == "" {
		t.Skipf("%s says for how long and %s where the programs are; make soak builds them", lengthVariable, programsVariable)
	}
	span, err := time.ParseDuration(length)
	if err != nil || span < time.Minute {
		t.Fatalf("%s=%s: want a minute or more, such as 1h", lengthVariable, length)
	}
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv(seedVariable); text != "" {
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s: %v", seedVariable, err)
		}
	}
	n := newNode(t, programs, seed)
	t.Logf("seed %d (repeat with %s=%d), %v, logs in %s", seed, seedVariable, seed, span, n.out)
	n.run(span)
	report := n.report(span)
	t.Log("\n" + report)
	if err := os.WriteFile(filepath.Join(n.out, "report.txt"), []byte(report), 0o644); err != nil {
		t.Error(err)
	}
	if err := n.book.draw(filepath.Join(n.out, "soak.svg")); err != nil {
		t.Error(err)
	}
	if len(n.book.violations) > 0 {
		t.Errorf("%d violations", len(n.book.violations)+n.book.more)
	}
}

func newNode(t *testing.T, programs string, seed uint64) *node {
	t.Helper()
	out := os.Getenv(outVariable)
	if out == "" {
		out = filepath.Join(programs, "soak")
	}
	dir, err := os.MkdirTemp("/tmp", "soak")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	n := &node{t: t, seed: seed, programs: programs, dir: dir, out: out, book: newBook(t.Log), exporterAt: freeAddress(t), pluginAt: freeAddress(t)}
	if err := errors.Join(os.RemoveAll(out), os.MkdirAll(out, 0o755), os.MkdirAll(n.path("kubelet/device-plugins"), 0o755)); err != nil {
		t.Fatal(err)
	}
	n.machine, err = newMachine(dir)
	if errors.Is(err, dcgmsim.ErrNoCompiler) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	n.exporter = &program{name: "exporter", command: n.exporterCommand, prepare: n.prepareExporter, logs: out, book: n.book}
	n.plugin = &program{name: "device-plugin", command: n.pluginCommand, prepare: n.goodConfig, logs: out, book: n.book}
	n.kubelet = &program{name: "kubelet", command: n.kubeletCommand, logs: out, book: n.book}
	return n
}

// prepareExporter makes the node fit for an exporter to start: a driver that is loaded anew, and a counter file that is good. While it runs it keeps
// its last good one; it does not begin with a bad one, and neither does the device plugin.
func (n *node) prepareExporter() error {
	return errors.Join(n.machine.forget(), replaceFile(n.path("counters.csv"), goodCounters()[0]))
}

func (n *node) goodConfig() error { return replaceFile(n.path("plugin.yaml"), goodConfig(4)) }

// freeAddress is one on which nobody listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func (n *node) path(name string) string { return filepath.Join(n.dir, name) }

func (n *node) exporterCommand() *exec.Cmd {
	return exec.Command(filepath.Join(n.programs, "gpumeter-exporter"),
		"--source=dcgm", "--dcgm-library="+n.machine.sim.Path, "--kubernetes", "--kubernetes-enable-pod-uid", "--kubernetes-pod-watch=off",
		"--pod-resources-kubelet-socket="+n.path("kubelet/pod-resources/kubelet.sock"),
		"--kubelet-checkpoint="+n.path("kubelet/device-plugins/kubelet_internal_checkpoint"),
		"--pod-name="+ownPod, "--pod-namespace="+ownNamespace, "--node-name=soak", "--collectors="+n.path("counters.csv"),
		"--address="+n.exporterAt, "--collect-interval=1s", "--ledger-dir="+n.path("ledger"), "--ledger-commit=2s",
		"--health-socket="+n.path("health.sock"), "--health-hold-down=2s", "--health-flap-limit=-1", "--enable-pprof")
}

func (n *node) pluginCommand() *exec.Cmd {
	return exec.Command(filepath.Join(n.programs, "gpumeter-device-plugin"),
		"--source=stream", "--health-socket="+n.path("health.sock"), "--config-file="+n.path("plugin.yaml"), "--kubelet-dir="+n.path("kubelet"),
		"--state-dir="+n.path("plugin"), "--cdi-dir="+n.path("cdi"), "--address="+n.pluginAt, "--node-name=soak", "--mps-daemon=off")
}

func (n *node) kubeletCommand() *exec.Cmd {
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	c := exec.Command(self, "-test.run=^$")
	c.Env = append(os.Environ(), kubeletFolder+"="+n.path("kubelet"), fmt.Sprintf("%s_SEED=%d", kubeletFolder, n.seed))
	return c
}

// run is the soak.
func (n *node) run(span time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), span)
	defer cancel()
	var all sync.WaitGroup
	for _, p := range []*program{n.exporter, n.plugin, n.kubelet} {
		n.must(p.start())
	}
	defer func() {
		for _, p := range []*program{n.plugin, n.kubelet} {
			p.end(syscall.SIGTERM)
		}
	}()
	for i, k := range kinds() {
		c := &client{
			kind: k, book: n.book, tally: n.book.client(k.name), random: rand.New(rand.NewPCG(n.seed, uint64(i))), of: n.exporter, url: "http://" + n.exporterAt,
			http: &http.Client{Transport: &http.Transport{DisableCompression: true}},
		}
		if k.name == pluginClient {
			c.of, c.url = n.plugin, "http://"+n.pluginAt
		}
		all.Go(func() { c.run(ctx) })
	}
	all.Go(func() { n.watch(ctx) })
	all.Go(func() { n.tell(ctx, span) })
	for _, h := range plan(n.seed, span) {
		select {
		case <-ctx.Done():
		case <-time.After(h.at - n.book.now()):
			began := n.book.now()
			n.book.happen(began, h.verb, n.do(h))
			n.must(n.exporter.revive(), n.plugin.revive(), n.kubelet.revive())
		}
	}
	<-ctx.Done()
	all.Wait()
	n.exporter.end(syscall.SIGTERM)
}

func (n *node) must(errs ...error) {
	if err := errors.Join(errs...); err != nil {
		n.t.Error(err)
		n.book.violation("the soak itself: %v", err)
	}
}

// tell says each ten seconds how it stands.
func (n *node) tell(ctx context.Context, span time.Duration) {
	tick := time.NewTicker(10 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		n.t.Log(n.book.line(span))
	}
}

// line is how it stands, on one line.
func (b *book) line(span time.Duration) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	valid, refused, failed := 0, 0, 0
	for _, c := range b.clients {
		valid, refused, failed = valid+c.valid, refused+c.refused, failed+c.failed
	}
	var last sample
	if len(b.samples) > 0 {
		last = b.samples[len(b.samples)-1]
	}
	what := ""
	if len(b.happened) > 0 {
		what = b.happened[len(b.happened)-1].text
	}
	return fmt.Sprintf("%v of %v: %d pages valid, %d refused, %d unanswered, %d violations; exporter %.0f MiB %d fds, plugin %.0f MiB %d fds; last: %s",
		b.now().Round(time.Second), span, valid, refused, failed, len(b.violations)+b.more,
		last.exporter.rss, last.exporter.descriptors, last.plugin.rss, last.plugin.descriptors, what)
}
