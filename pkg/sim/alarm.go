// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"sort"
	"time"
)

// alarmPause is the least time between two looks for events, however fast the story is.
const alarmPause = 100 * time.Millisecond

// Alarms gets something when the driver has an event to tell of that no reading has had. The channel
// is the same at each call. Close ends it.
func (n *Node) Alarms() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.alarm == nil {
		n.alarm = make(chan struct{}, 1)
		n.bell = time.AfterFunc(0, n.ring)
	}
	return n.alarm
}

// Close ends the alarms. The node can still be read.
func (n *Node) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
	if n.bell != nil {
		n.bell.Stop()
	}
	return nil
}

// ring raises the alarm where an event waits, and looks again when the next one happens.
func (n *Node) ring() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return
	}
	elapsed := n.Elapsed()
	if n.told < n.line.events(elapsed) {
		select {
		case n.alarm <- struct{}{}:
		default:
		}
	}
	if next, ok := n.line.nextEvent(elapsed); ok {
		n.bell.Reset(max(n.wall(next-elapsed), alarmPause))
	}
}

// hush takes back an alarm for what a reading has had since.
func (n *Node) hush() {
	select {
	case <-n.alarm:
	default:
	}
}

// nextEvent is when the first event after a time happens; false where there is none.
func (l *timeline) nextEvent(elapsed time.Duration) (time.Duration, bool) {
	if len(l.happenings) == 0 {
		return 0, false
	}
	begun, t := time.Duration(0), elapsed
	if l.loop > 0 {
		begun, t = elapsed.Truncate(l.loop), elapsed%l.loop
	}
	i := sort.Search(len(l.happenings), func(i int) bool { return l.happenings[i].at > t })
	switch {
	case i < len(l.happenings):
		return begun + l.happenings[i].at, true
	case l.loop > 0:
		return begun + l.loop + l.happenings[0].at, true
	}
	return 0, false
}
