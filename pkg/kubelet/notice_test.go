// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestNotice(t *testing.T) {
	// A step is a call each second for some seconds.
	type step struct {
		seconds int
		kind    string
		level   slog.Level
	}
	const back = "back"
	for name, c := range map[string]struct {
		steps []step
		want  []string
	}{
		"nothing was ever lost": {[]step{{200, back, 0}}, []string{""}},
		"a loss that lasts is said once a minute": {[]step{{130, KindTimeout, slog.LevelWarn}, {1, back, 0}, {9, back, 0}}, []string{
			`level=WARN msg="kubelet lost" kind=timeout`,
			`level=WARN msg="kubelet still lost" kind=timeout lasted=1m0s`,
			`level=WARN msg="kubelet still lost" kind=timeout lasted=2m0s`,
			`level=INFO msg="kubelet back" kind=timeout lasted=2m10s`,
		}},
		"what is normal is said once": {[]step{{200, KindTimeout, slog.LevelInfo}, {1, back, 0}}, []string{
			`level=INFO msg="kubelet lost" kind=timeout`,
			`level=INFO msg="kubelet back" kind=timeout lasted=3m20s`,
		}},
		"a change of kind waits for its minute": {[]step{{10, KindTimeout, slog.LevelWarn}, {10, KindUnavailable, slog.LevelWarn}, {50, KindError, slog.LevelWarn}, {1, back, 0}}, []string{
			`level=WARN msg="kubelet lost" kind=timeout`,
			`level=WARN msg="kubelet still lost" kind=error lasted=1m0s`,
			`level=INFO msg="kubelet back" kind=error lasted=1m10s`,
		}},
		"a change of what is normal is said, too": {[]step{{10, KindTimeout, slog.LevelInfo}, {200, KindUnavailable, slog.LevelInfo}}, []string{
			`level=INFO msg="kubelet lost" kind=timeout`,
			`level=INFO msg="kubelet still lost" kind=unavailable lasted=1m0s`,
		}},
		"what was normal becomes a warning": {[]step{{100, KindTimeout, slog.LevelInfo}, {1, KindTimeout, slog.LevelWarn}}, []string{
			`level=INFO msg="kubelet lost" kind=timeout`,
			`level=WARN msg="kubelet still lost" kind=timeout lasted=1m40s`,
		}},
		"a second loss is said when the minute is over": {[]step{{5, KindTimeout, slog.LevelWarn}, {10, back, 0}, {60, KindUnavailable, slog.LevelWarn}, {1, back, 0}}, []string{
			`level=WARN msg="kubelet lost" kind=timeout`,
			`level=INFO msg="kubelet back" kind=timeout lasted=5s`,
			`level=WARN msg="kubelet lost" kind=unavailable lasted=50s`,
			`level=INFO msg="kubelet back" kind=unavailable lasted=1m0s`,
		}},
		"a short second loss is not said": {[]step{{5, KindTimeout, slog.LevelWarn}, {10, back, 0}, {49, KindTimeout, slog.LevelWarn}, {100, back, 0}, {1, KindTimeout, slog.LevelWarn}}, []string{
			`level=WARN msg="kubelet lost" kind=timeout`,
			`level=INFO msg="kubelet back" kind=timeout lasted=5s`,
			`level=WARN msg="kubelet lost" kind=timeout`,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var book logBook
				n := lossOf(book.logger(), "kubelet")
				for _, s := range c.steps {
					for range s.seconds {
						if s.kind == back {
							n.back()
						} else {
							n.lost(s.level, s.kind)
						}
						time.Sleep(time.Second)
					}
				}
				if diff := cmp.Diff(c.want, book.lines()); diff != "" {
					t.Errorf("log (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// A loss that comes and goes with every request may not flood the log.
func TestNoticeOfAFlappingLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var book logBook
		n := lossOf(book.logger("lasted"), "kubelet")
		for range 600 {
			n.lost(slog.LevelWarn, KindTimeout)
			time.Sleep(700*time.Millisecond + 300*time.Microsecond)
			n.back()
			time.Sleep(300 * time.Millisecond)
		}
		if got := len(book.lines()); got < 18 || got > 20 {
			t.Errorf("%d lines in ten minutes, want a pair a minute", got)
		}
	})
}

func TestNoticeRoundsDurations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var book logBook
		n := lossOf(book.logger(), "kubelet")
		n.lost(slog.LevelWarn, KindTimeout, "err", "slow")
		time.Sleep(8*time.Second + 900*time.Millisecond + 400*time.Microsecond)
		n.back("held", 3)
		want := []string{
			`level=WARN msg="kubelet lost" kind=timeout err=slow`,
			`level=INFO msg="kubelet back" kind=timeout lasted=8.9s held=3`,
		}
		if diff := cmp.Diff(want, book.lines()); diff != "" {
			t.Errorf("log (-want +got):\n%s", diff)
		}
	})
}
