// SPDX-License-Identifier: Apache-2.0

package app

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpumeter/gpumeter/pkg/ledger"
)

// clock is the node's clocks for the ledger, a simulated node's own where there is one. It is for one
// caller at a time.
func (a *App) clock() func() ledger.Instant {
	if node := a.sources.Node(); node != nil {
		return storyClock(node)
	}
	bootID := a.bootID()
	return func() ledger.Instant {
		now := ledger.Instant{Wall: time.Now().UnixMilli()}
		var since unix.Timespec
		// Without the boot's id or its clock there is no saying how long the meter was away.
		if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &since); err == nil {
			now.BootID, now.Boot = bootID(), time.Duration(since.Nano()).Milliseconds()
		}
		return now
	}
}

// story is a simulated node's time.
type story interface {
	Elapsed() time.Duration
	Now() time.Time
	BootID(elapsed time.Duration) string
}

// storyClock is a machine that was started when the story began, and again with each reboot of the story. A
// story that is told again is another boot, since its time begins anew.
func storyClock(s story) func() ledger.Instant {
	began := s.Now().Add(-s.Elapsed()).UnixNano()
	var boot string
	var booted, last time.Duration
	return func() ledger.Instant {
		at := s.Elapsed()
		if id := s.BootID(at); id != boot {
			// It was restarted at some time since the last look.
			boot, booted = id, last
		}
		last = at
		return ledger.Instant{
			BootID: fmt.Sprintf("%s-%x", boot, began), Boot: (at - booted).Milliseconds(),
			Wall: time.Unix(0, began).Add(at).UnixMilli(),
		}
	}
}
