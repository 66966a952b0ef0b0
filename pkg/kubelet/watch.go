// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"hash/maphash"
	"sync"
	"time"

	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// longestPoll is how seldom a kubelet is asked that does not answer, unless it is asked more seldom anyway.
const longestPoll = 30 * time.Second

// Alarms gets something when the kubelet has other allocations than those of the last List; a List that
// begins afterwards has them. It is silent without Run and where Config.Poll is 0. The channel has room for one,
// is the same at each call, and is never closed.
func (c *Client) Alarms() <-chan struct{} { return c.change.alarm }

// Run asks the kubelet every Config.Poll whether its allocations have changed, until ctx ends, and then
// returns nil. What goes wrong meanwhile is left to List to tell, and makes it ask more seldom.
func (c *Client) Run(ctx context.Context) error {
	if c.cfg.Poll <= 0 {
		<-ctx.Done()
		return nil
	}
	for pause := c.cfg.Poll; sleep(ctx, pause); {
		if c.poll(ctx) {
			pause = c.cfg.Poll
		} else {
			pause = max(c.cfg.Poll, min(2*pause, longestPoll))
		}
	}
	return nil
}

// poll looks once, and reports whether the kubelet answered. While a List is under way it does not look.
func (c *Client) poll(parent context.Context) bool {
	since, idle := c.change.look()
	if !idle {
		return true
	}
	ctx, cancel := context.WithTimeout(parent, c.cfg.Timeout)
	defer cancel()
	answer, err := c.api.List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return false
	}
	// The checkpoint tells a pod from the next one of its name on the same device.
	record, _ := c.checkpoint.load()
	m := merger{cfg: &c.cfg, record: record, seen: make(map[sharing.Allocation]struct{})}
	for _, pod := range answer.GetPodResources() {
		m.pod(pod)
	}
	c.change.compare(since, m.out.Allocations)
	return true
}

// change notices that the kubelet's answers differ.
type change struct {
	alarm chan struct{}
	seed  maphash.Seed

	mu sync.Mutex
	// lists counts those that have begun, running those that have not ended.
	lists   uint64
	running int
	// known says that a List was answered, and print is of the last such answer.
	known bool
	print uint64
}

func newChange() *change {
	return &change{alarm: make(chan struct{}, 1), seed: maphash.MakeSeed()}
}

// begin notes that a List begins; whoever calls it calls the function that it returns at the end.
func (c *change) begin() (end func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lists++
	c.running++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.running--
	}
}

// look reports whether no List is under way, and since which one.
func (c *change) look() (since uint64, idle bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lists, c.running == 0
}

// answered takes in what a List was answered.
func (c *change) answered(allocations []sharing.Allocation) {
	latest := c.fingerprint(allocations)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known, c.print = true, latest
}

// compare raises the alarm if an answer is another than the last List's, again and again until a List has had
// it. It is too old to say so when a List has begun since it was asked for.
func (c *change) compare(since uint64, allocations []sharing.Allocation) {
	latest := c.fingerprint(allocations)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lists != since || c.known && c.print == latest {
		return
	}
	select {
	case c.alarm <- struct{}{}:
	default:
	}
}

// fingerprint does not depend on the order: the kubelet walks maps, and answers differently each time.
func (c *change) fingerprint(allocations []sharing.Allocation) uint64 {
	var sum uint64
	for _, a := range allocations {
		sum += maphash.Comparable(c.seed, a)
	}
	return sum
}
