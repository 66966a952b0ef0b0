// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func newTestLane(t *testing.T, idle func()) (*lane, *strings.Builder) {
	t.Helper()
	var log strings.Builder
	quit := make(chan struct{})
	t.Cleanup(func() { close(quit) })
	return newLane("a lane", slog.New(slog.NewTextHandler(&log, nil)), quit, idle), &log
}

func TestALaneBeginsNothingWhileSomethingIsOutstanding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := newTestLane(t, nil)
		free := make(chan struct{})
		first, ok := begin(l, func() int { l.doing.Store(new("nvmlSomething")); <-free; return 1 })
		if !ok {
			t.Fatal("a new lane does not begin")
		}
		expired := make(chan struct{})
		close(expired)
		synctest.Wait()
		if _, answered := first.wait(expired); answered {
			t.Error("an answer before there is one")
		}
		time.Sleep(time.Minute)
		if _, ok := begin(l, func() int { return 2 }); ok {
			t.Error("a second call was begun")
		}
		if l.at() != "nvmlSomething" || l.outstanding() != time.Minute {
			t.Errorf("%s is outstanding for %v", l.at(), l.outstanding())
		}
		close(free)
		synctest.Wait()
		third, ok := begin(l, func() int { return 3 })
		if v, answered := third.wait(nil); !ok || !answered || v != 3 {
			t.Errorf("after it came back: %d, %v, %v", v, ok, answered)
		}
		if l.outstanding() != 0 || l.at() != "" {
			t.Errorf("%s is outstanding for %v", l.at(), l.outstanding())
		}
	})
}

func TestWorkThatNobodyWaitsForIsNotBegun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		free := make(chan struct{})
		l, _ := newTestLane(t, func() { <-free })
		time.Sleep(idleInterval)
		synctest.Wait()
		done := false
		c, ok := begin(l, func() int { done = true; return 1 })
		expired := make(chan struct{})
		close(expired)
		if _, answered := c.wait(expired); !ok || answered {
			t.Fatalf("%v, %v", ok, answered)
		}
		close(free)
		synctest.Wait()
		if done {
			t.Error("it was done for nobody")
		}
		if c, ok := begin(l, func() int { return 2 }); ok {
			if v, _ := c.wait(nil); v != 2 {
				t.Errorf("the next is %d", v)
			}
		} else {
			t.Error("the lane is stuck")
		}
	})
}

func TestAPanicCostsItsWorkOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		idles := 0
		l, log := newTestLane(t, func() {
			if idles++; idles == 1 {
				panic("idle")
			}
		})
		c, _ := begin(l, func() int { panic("worked") })
		if _, answered := c.wait(nil); answered {
			t.Error("a panic is an answer")
		}
		time.Sleep(3*idleInterval + idleInterval/2)
		c, ok := begin(l, func() int { return 7 })
		if v, answered := c.wait(nil); !ok || !answered || v != 7 || idles != 3 {
			t.Errorf("after it: %d, %v, %v; %d times idle", v, ok, answered, idles)
		}
		if !strings.Contains(log.String(), "worked") || !strings.Contains(log.String(), "idle") {
			t.Errorf("the log is %s", log)
		}
	})
}
