// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// pace has how long things are waited for.
type pace struct {
	// look is how often the sockets are looked at where the kernel does not tell of them.
	look time.Duration
	// gather is how long a change waits for others to go with it.
	gather time.Duration
	// answer is what the kubelet gets for a registration; it takes 10 s to dial back at most.
	answer time.Duration
	// firstStream is how long after a registration the kubelet may take to ask for the list,
	// lostStream how long it may go without a stream that it had. It has no way to open a
	// stream again, so only a kubelet that is about to end leaves one closed.
	firstStream, lostStream time.Duration
	// settle is for a kubelet to forget the old socket before it hears of the new one: some
	// drop the new connection with the old one.
	settle time.Duration
	// drain is for streams and calls to end by themselves.
	drain time.Duration
	// serve is between attempts to listen, retryLeast to retryMost between registrations.
	serve, retryLeast, retryMost time.Duration
	// prepareLeast to prepareMost are between attempts to prepare.
	prepareLeast, prepareMost time.Duration
	// firstList is how long a resource that is not handed out yet waits for the first attempt to
	// prepare all its devices. It is more than MPS daemons take to start, and less than the five
	// minutes for which a kubelet counts the devices of a plugin that went away.
	firstList time.Duration
}

func usualPace() pace {
	return pace{
		look: 500 * time.Millisecond, gather: 100 * time.Millisecond,
		answer: 10 * time.Second, firstStream: 10 * time.Second, lostStream: 2 * time.Second,
		settle: 100 * time.Millisecond, drain: 3 * time.Second,
		serve: time.Second, retryLeast: 100 * time.Millisecond, retryMost: 30 * time.Second,
		prepareLeast: time.Second, prepareMost: time.Minute, firstList: 30 * time.Second,
	}
}

// endpoint is one resource as the kubelet knows it: a socket with a life of its own, and what is
// said on it. The list and the desk can be changed at any time, from any goroutine.
type endpoint struct {
	resource string
	host     *host
	tally    *tally
	log      *slog.Logger

	list    atomic.Pointer[list]
	answers atomic.Pointer[allocator]
	// changed rings for the streams, wake for the loop.
	changed, wake bell
	// retired is closed when the resource is not handed out any more.
	retired chan struct{}
	// done is closed when the loop has ended and the socket is gone.
	done chan struct{}
}

// host is what all endpoints of a Manager share.
type host struct {
	folder, kubelet, prefix string
	pace                    pace
	watch                   *folderWatch
	verdicts                *atomic.Pointer[book]
	// missed says that it is logged that there is no kubelet.
	missed atomic.Bool
}

func newEndpoint(resource string, h *host, t *tally, log *slog.Logger, l *list, a allocator) *endpoint {
	e := &endpoint{
		resource: resource, host: h, tally: t, log: log,
		retired: make(chan struct{}), done: make(chan struct{}),
	}
	e.list.Store(l)
	e.answers.Store(&a)
	t.update(func(s *ResourceStats) { s.Healthy, s.Unhealthy, s.Served = l.healthy, l.unhealthy, true })
	return e
}

// publish changes what is said; it is sent if it differs from what was.
func (e *endpoint) publish(l *list, a allocator) {
	e.answers.Store(&a)
	if l.equal(e.list.Load()) {
		return
	}
	e.list.Store(l)
	e.tally.update(func(s *ResourceStats) { s.Healthy, s.Unhealthy = l.healthy, l.unhealthy })
	e.changed.ring()
}

// retire tells the kubelet that there are no devices, and ends the endpoint after that.
func (e *endpoint) retire() {
	e.list.Store(emptyList())
	e.tally.update(func(s *ResourceStats) { s.Healthy, s.Unhealthy, s.Served = 0, 0, false })
	e.changed.ring()
	close(e.retired)
}

// desk is what answers calls now.
func (e *endpoint) desk() desk {
	return desk{allocator: *e.answers.Load(), verdicts: e.host.verdicts.Load()}
}

// run serves and registers, again and again, until the endpoint is retired or ctx ends. It
// gives up on nothing: whatever the kubelet does, it may come back.
func (e *endpoint) run(ctx context.Context) {
	defer close(e.done)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-e.retired:
			cancel()
		case <-ctx.Done():
		}
	}()
	l := &life{endpoint: e, retry: backoff{least: e.host.pace.retryLeast, most: e.host.pace.retryMost}}
	defer l.end(ctx)
	for ctx.Err() == nil {
		seen, woken := e.host.watch.heard(), e.wake.heard()
		wait := l.step(ctx)
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-seen:
		case <-woken:
		case <-l.died():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// life is where an endpoint stands with the kubelet. Its loop alone has it.
type life struct {
	*endpoint
	server *server
	// kubelet is the one that was last seen, by its socket.
	kubelet    fileID
	registered bool
	since      time.Time
	retry      backoff
	nextTry    time.Time
}

// step does what is due, and says for how long nothing else will be.
func (l *life) step(ctx context.Context) time.Duration {
	p := l.host.pace
	if l.server != nil && !l.server.alive() {
		l.log.Info("the socket is gone; serving on another one", "resource", l.resource, "socket", l.server.socket)
		l.end(ctx)
		l.nextTry = time.Time{}
	}
	if l.server == nil {
		if err := l.serve(ctx); err != nil {
			l.complain(ctx, "the device plugin cannot serve; trying again", err)
			return p.serve
		}
	}
	if l.host.kubelet == "" {
		l.well()
		return p.look
	}
	l.meet()
	if l.kubelet == (fileID{}) {
		l.miss()
		return p.look
	}
	l.host.missed.Store(false)
	if l.registered {
		left, trouble := l.watchStream()
		if trouble == nil {
			return left
		}
		l.complain(ctx, "the kubelet does not listen; registering again", trouble)
		l.unregister()
	}
	if wait := time.Until(l.nextTry); wait > 0 {
		return wait
	}
	return l.introduce(ctx)
}

// meet looks which kubelet there is. Another one knows nothing of this endpoint.
func (l *life) meet() {
	now := identify(l.host.kubelet)
	if now == l.kubelet {
		return
	}
	l.kubelet = now
	l.retry.reset()
	l.nextTry = time.Time{}
	l.unregister()
}

// miss notes that there is no kubelet. It is logged once for all resources.
func (l *life) miss() {
	err := fmt.Errorf("there is no %s: no kubelet runs here, or its folder is another one", l.host.kubelet)
	l.tally.failed(time.Now(), err)
	if l.host.missed.CompareAndSwap(false, true) {
		l.log.Warn("waiting for the kubelet", "err", err)
	}
}

// introduce registers, on a socket that this kubelet has not heard of.
func (l *life) introduce(ctx context.Context) time.Duration {
	p := l.host.pace
	if l.server.offered {
		l.end(ctx)
		if err := l.serve(ctx); err != nil {
			l.complain(ctx, "the device plugin cannot serve; trying again", err)
			return p.serve
		}
	}
	l.server.offered = true
	err := l.register(ctx)
	if ctx.Err() != nil {
		return 0
	}
	if open, _, _ := l.server.state(); err != nil && open == 0 {
		l.tally.update(func(s *ResourceStats) { s.RegistrationFailures++ })
		l.complain(ctx, "the kubelet did not take the registration; trying again", err)
		wait := l.retry.after()
		l.nextTry = time.Now().Add(wait)
		return wait
	}
	l.retry.reset()
	l.registered, l.since = true, time.Now()
	l.tally.update(func(s *ResourceStats) { s.Registrations++; s.Registered = true })
	l.log.Info("registered with the kubelet", "resource", l.resource, "socket", l.server.socket)
	return 0
}

// register gives up early if the kubelet is replaced, or empties its folder, while it is asked.
func (l *life) register(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, l.host.pace.answer)
	defer cancel()
	result := make(chan error, 1)
	go func() { result <- register(ctx, l.host.kubelet, l.resource, l.server.socket) }()
	for {
		seen := l.host.watch.heard()
		if identify(l.host.kubelet) != l.kubelet || !l.server.alive() {
			cancel()
		}
		select {
		case err := <-result:
			return err
		case <-seen:
		}
	}
}

// watchStream says for how long the kubelet may go on without a stream, or what is wrong.
func (l *life) watchStream() (time.Duration, error) {
	p := l.host.pace
	open, opened, ended := l.server.state()
	switch {
	case open > 0:
		l.well()
		return p.look, nil
	case opened == 0:
		if left := time.Until(l.since.Add(p.firstStream)); left > 0 {
			return left, nil
		}
		return 0, fmt.Errorf("the kubelet took the registration of %s and did not ask for its devices within %s", l.resource, p.firstStream)
	default:
		if left := time.Until(latest(ended, l.since).Add(p.lostStream)); left > 0 {
			return left, nil
		}
		return 0, fmt.Errorf("the kubelet closed the stream of %s and opened no other one within %s", l.resource, p.lostStream)
	}
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// well forgets the last trouble once the list is with the kubelet.
func (l *life) well() {
	l.tally.update(func(s *ResourceStats) { s.LastError, s.LastErrorAt = "", time.Time{} })
}

// complain logs a trouble when it is another one than before.
func (l *life) complain(ctx context.Context, what string, err error) {
	if ctx.Err() == nil && l.tally.failed(time.Now(), err) {
		l.log.Warn(what, "resource", l.resource, "err", err)
	}
}

func (l *life) serve(ctx context.Context) error {
	s, err := serve(ctx, l.host.folder, l.resource, l.host.prefix, l.tally, func(s *server, g *grpc.Server) {
		pluginapi.RegisterDevicePluginServer(g, &service{endpoint: l.endpoint, server: s})
	})
	if err != nil {
		return err
	}
	l.server = s
	l.tally.update(func(stats *ResourceStats) { stats.Socket = s.socket })
	return nil
}

// end stops the server. A kubelet that had a stream on it gets the time to see it end.
func (l *life) end(ctx context.Context) {
	if l.server == nil {
		return
	}
	had := l.server.stop(l.host.pace.drain)
	l.server = nil
	l.unregister()
	l.tally.update(func(s *ResourceStats) { s.Socket = "" })
	if had {
		sleep(ctx, l.host.pace.settle)
	}
}

func (l *life) unregister() {
	l.registered = false
	l.tally.update(func(s *ResourceStats) { s.Registered = false })
}

func (l *life) died() <-chan struct{} {
	if l.server == nil {
		return nil
	}
	return l.server.died
}

// sleep ends early with ctx.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
