// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"context"
	"sync/atomic"
	"time"
)

// Alarms is what a Telemetry may have beside Read, and Allocations beside List: a channel with room for one that
// gets something when there is news that should not wait for the next tick, such as an XID or a pod that
// ended. A call that begins afterwards has the news. The channel is the same at each call, and is never closed.
type Alarms interface {
	Alarms() <-chan struct{}
}

const (
	// alarmPause is the least time between two ticks that alarms ask for.
	alarmPause = time.Second
	// missingPause is the time between the ticks in which a card is looked for that a reading lacks, and
	// missingFor how long that goes on: pkg/health takes it for lost within that time.
	missingPause = 5 * time.Second
	missingFor   = 15 * time.Second
	// alarmPatience is the longest that such a tick waits for its sources: a GPU that hangs must
	// not keep the others' news.
	alarmPatience = time.Second
)

// urgency is whether news wait for a reading. It belongs to the Meter's loop, but for raised.
type urgency struct {
	// alarms is nil for a source that raises none.
	alarms   <-chan struct{}
	patience time.Duration
	// changes are the allocations' alarms, nil where they raise none.
	changes <-chan struct{}
	// raised says that there was an alarm since the last reading began.
	raised atomic.Bool
	// told says that somebody beside the driver had news since the last tick: the allocations, or who reports facts.
	told bool
	// again is when a card that the readings lack is to be looked for once more, zero for never;
	// missing is from when they lack it.
	again, missing time.Time
	// last is when an alarm was last acted upon, ticks how many it has had.
	last  time.Time
	ticks uint64
}

func newUrgency(cfg Config) *urgency {
	u := &urgency{patience: min(cfg.Deadline, alarmPatience)}
	if a, ok := cfg.Telemetry.(Alarms); ok {
		u.alarms = a.Alarms()
	}
	if a, ok := cfg.Allocations.(Alarms); ok {
		u.changes = a.Alarms()
	}
	return u
}

// list is for a listing that begins: it has what changed.
func (u *urgency) list() {
	select {
	case <-u.changes:
	default:
	}
}

// settle is for a reading that begins: it has what alarms were raised for.
func (u *urgency) settle() {
	u.raised.Store(false)
	select {
	case <-u.alarms:
	default:
	}
}

// lacks takes in whether a tick's reading lacks a card of which nobody knows yet whether it is lost.
// Without a word about it that is seen only by looking again, for which the grid may be too slow.
func (u *urgency) lacks(card bool, now time.Time) {
	if !card {
		u.again, u.missing = time.Time{}, time.Time{}
		return
	}
	if u.missing.IsZero() {
		u.missing = now
	}
	if u.again = now.Add(missingPause); u.again.Sub(u.missing) > missingFor {
		u.again = time.Time{}
	}
}

// due gets something when a tick is due beside the grid: nil where there is no reason for one, or where
// the tick of the grid at moment comes soon enough.
func (u *urgency) due(moment time.Time) <-chan time.Time {
	wait := max(time.Until(u.last.Add(alarmPause)), 0)
	switch {
	case u.raised.Load(), u.told:
	case !u.again.IsZero():
		wait = max(wait, time.Until(u.again))
	default:
		return nil
	}
	if time.Until(moment) <= wait+alarmPause {
		return nil
	}
	return time.After(wait)
}

// await waits for the moment of the next tick on the grid, with others before it where they are asked
// for and there is time. It is false when ctx has ended.
func (m *Meter) await(ctx context.Context, moment time.Time) bool {
	for ctx.Err() == nil {
		wait := time.Until(moment)
		select {
		case <-ctx.Done():
		case <-time.After(wait):
			return true
		case <-m.vigil.hasten:
			if wait < 2*MinInterval {
				continue
			}
			select {
			case <-ctx.Done():
			case <-time.After(MinInterval):
				m.tick(ctx, time.Now(), m.cfg.Deadline)
			}
		case <-m.urgency.alarms:
			m.urgency.raised.Store(true)
		case <-m.vigil.news:
			m.urgency.told = true
		case <-m.urgency.changes:
			m.urgency.told = true
		case <-m.bookkeeper.due(moment):
			m.bookkeeper.commit(m.tally.xids)
		case <-m.urgency.due(moment):
			m.alarmed(ctx)
		}
	}
	return false
}

// alarmed does the tick that an alarm asks for. While a reading is still under way there can be no
// other, and the alarm waits for another second; what others than the driver say does not.
func (m *Meter) alarmed(ctx context.Context) {
	m.urgency.last = time.Now()
	if m.telemetry.outstanding() && !m.urgency.told {
		return
	}
	m.urgency.ticks++
	m.tick(ctx, time.Now(), m.urgency.patience)
}
