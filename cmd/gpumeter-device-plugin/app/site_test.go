// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/healthstream"
	"github.com/gpumeter/gpumeter/tests/fakekubelet"
)

// patience is for what must come about, however slow the machine.
const patience = time.Minute

// shortDir is a folder whose path leaves room for a socket's.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "dp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// site is a machine: a kubelet, and folders that outlive the plugin.
type site struct {
	t       *testing.T
	dir     string
	kubelet *fakekubelet.Kubelet
	env     map[string]string
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{t: t, dir: shortDir(t), env: map[string]string{}}
	s.kubelet = fakekubelet.New(fakekubelet.Config{Dir: filepath.Join(s.dir, "device-plugins")})
	if err := s.kubelet.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.kubelet.Stop)
	return s
}

func (s *site) path(name string) string { return filepath.Join(s.dir, name) }

func (s *site) write(name, data string) string {
	s.t.Helper()
	write(s.t, s.path(name), data)
	return s.path(name)
}

// plugin is a running one.
type plugin struct {
	*app
	site *site
	stop func()
	log  *syncBuffer
}

// syncBuffer is a log that a test reads while it is written.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// parse is the config of a command line.
func parse(t *testing.T, env map[string]string, args ...string) (config, error) {
	t.Helper()
	var got config
	take := func(_ context.Context, c config) error { got = c; return nil }
	err := command(environ(env), io.Discard, io.Discard, take).Run(t.Context(), append([]string{"gpumeter-device-plugin"}, args...))
	return got, err
}

// start starts a plugin on the site; it ends with stop or with the test.
func (s *site) start(args ...string) *plugin {
	s.t.Helper()
	c, err := parse(s.t, s.env, append([]string{
		"--kubelet-dir", s.dir, "--state-dir", s.path("state"), "--cdi-dir", s.path("cdi"), "--health-socket", s.path("health.sock"),
		"--address", "127.0.0.1:0", "--interval", "100ms",
	}, args...)...)
	if err != nil {
		s.t.Fatal(err)
	}
	log := &syncBuffer{}
	ctx, cancel := context.WithCancel(s.t.Context())
	a, err := newApp(ctx, c, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		cancel()
		s.t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- a.run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			s.t.Errorf("the plugin ended: %v", err)
		}
	})
	s.t.Cleanup(func() {
		stop()
		if s.t.Failed() {
			s.t.Log(log)
		}
	})
	return &plugin{app: a, site: s, stop: stop, log: log}
}

// await waits until the kubelet has what it should.
func (s *site) await(what string, good func(*fakekubelet.Kubelet) bool) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	if err := s.kubelet.WaitFor(ctx, good); err != nil {
		s.t.Fatalf("%s: %v", what, err)
	}
}

// has says that a resource has so many devices, and so many good ones.
func has(resource string, capacity, allocatable int) func(*fakekubelet.Kubelet) bool {
	return func(k *fakekubelet.Kubelet) bool {
		return k.Capacity(resource) == capacity && k.Allocatable(resource) == allocatable
	}
}

// metrics waits for a line on the page.
func (p *plugin) metrics(line string) {
	p.site.t.Helper()
	limit := time.Now().Add(patience)
	for {
		page := p.page("/metrics")
		if strings.Contains(page, line+"\n") {
			return
		}
		if time.Now().After(limit) {
			p.site.t.Fatalf("no %s in\n%s", line, page)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (p *plugin) page(path string) string {
	p.site.t.Helper()
	request, err := http.NewRequestWithContext(p.site.t.Context(), http.MethodGet, "http://"+p.web.listener.Addr().String()+path, http.NoBody)
	if err != nil {
		p.site.t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		p.site.t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		p.site.t.Fatal(err)
	}
	return string(body)
}

// otherEnd is the exporter at the other end of the health stream.
type otherEnd struct {
	mu      sync.Mutex
	list    *healthstream.List
	changed chan struct{}
	version uint64
}

func (e *otherEnd) Watch() (*healthstream.List, <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.list, e.changed
}

func (e *otherEnd) say(l *healthstream.List) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.version++
	l.Report.Version = e.version
	e.list = l
	close(e.changed)
	e.changed = make(chan struct{})
}

// export serves a health stream until stop is called or the test ends.
func (s *site) export(l *healthstream.List) (e *otherEnd, stop func()) {
	s.t.Helper()
	return s.exportTo(l, nil)
}

// exportTo is export of an exporter that takes conditions over.
func (s *site) exportTo(l *healthstream.List, w healthstream.Witnesses) (e *otherEnd, stop func()) {
	s.t.Helper()
	e = &otherEnd{changed: make(chan struct{})}
	e.say(l)
	ctx, cancel := context.WithCancel(s.t.Context())
	done := make(chan error, 1)
	server := healthstream.NewServer(healthstream.ServerConfig{Source: e, Witnesses: w, Heartbeat: 100 * time.Millisecond})
	go func() { done <- server.Run(ctx, s.path("health.sock")) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			s.t.Errorf("the exporter ended: %v", err)
		}
	})
	s.t.Cleanup(stop)
	return e, stop
}
