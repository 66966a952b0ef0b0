// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// polled is a kubelet whose changes are watched for, and its client.
type polled struct {
	*memoryKubelet
	client *Client
	// begun counts List calls as they come in, refused while broken is set.
	begun  atomic.Int64
	broken atomic.Bool
	// hang makes calls wait until their end while it is set.
	hang atomic.Bool
}

func newPolled(t *testing.T, edit func(*Config)) *polled {
	k := &polled{memoryKubelet: newMemoryKubelet(t, "list_before-restart.json", "")}
	k.hook = func(ctx context.Context, method string) error {
		if method != "List" {
			return nil
		}
		k.begun.Add(1)
		if k.hang.Load() {
			<-ctx.Done()
			return ctx.Err()
		}
		if k.broken.Load() {
			return errors.New("no")
		}
		return nil
	}
	k.client = newClient(t, "/kubelet.sock", func(cfg *Config) {
		cfg.Poll = time.Second
		if edit != nil {
			edit(cfg)
		}
	})
	k.client.dial = k.dial
	return k
}

// run runs the client's watch until the test ends.
func (k *polled) run(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- k.client.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		must(t, <-done)
	})
}

func (k *polled) lists(t *testing.T) {
	t.Helper()
	if _, err := k.client.List(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// shows makes these the kubelet's pods.
func (k *polled) shows(pods ...*pod) {
	k.shown.Store(&podresources.ListPodResourcesResponse{PodResources: pods})
}

// alarmed reports whether there is an alarm, and takes it.
func (k *polled) alarmed() bool {
	synctest.Wait()
	select {
	case <-k.client.Alarms():
		return true
	default:
		return false
	}
}

// bubble runs a test in virtual time, with its clean-up inside.
func bubble(t *testing.T, f func(t *testing.T)) {
	synctest.Test(t, func(t *testing.T) { f(t) })
}

func TestAPodThatComesOrGoesRaisesAnAlarmWithinAPoll(t *testing.T) {
	bubble(t, func(t *testing.T) {
		k := newPolled(t, nil)
		all := k.list.PodResources
		k.lists(t)
		k.run(t)
		time.Sleep(time.Minute)
		if k.alarmed() {
			t.Error("an alarm while nothing changes")
		}
		for what, pods := range map[string][]*podresources.PodResources{
			"a pod ended": all[1:], "a pod came": slices.Concat(all, []*pod{one("n", "new", "main", gpus("GPU-new"))}),
		} {
			k.shows(all...)
			k.lists(t)
			k.shows(pods...)
			time.Sleep(1100 * time.Millisecond)
			if !k.alarmed() {
				t.Errorf("%s, and there is no alarm", what)
			}
			k.lists(t)
			time.Sleep(10 * time.Second)
			if k.alarmed() {
				t.Errorf("%s: another alarm for what a List has had", what)
			}
		}
	})
}

// A whole life of a short pod lies between two lists 30 s apart.
func TestAPodOfTwentySecondsIsSeen(t *testing.T) {
	bubble(t, func(t *testing.T) {
		k := newPolled(t, nil)
		k.shows()
		k.lists(t)
		k.run(t)
		var charged time.Duration
		var since time.Time
		for range 60 {
			switch {
			case time.Since(since) == 20*time.Second:
				k.shows()
			case since.IsZero():
				time.Sleep(300 * time.Millisecond)
				since = time.Now()
				k.shows(one("n", "short", "main", gpus("GPU-a")))
			}
			if k.alarmed() {
				got, err := k.client.List(t.Context())
				must(t, err)
				if len(got.Allocations) == 1 {
					charged -= time.Since(since)
				} else {
					charged += time.Since(since)
				}
			}
			time.Sleep(500 * time.Millisecond)
		}
		if charged < 19*time.Second || charged > 21*time.Second {
			t.Errorf("a pod of 20 s was seen for %v", charged)
		}
	})
}

func TestTheKubeletsOrderIsNoChange(t *testing.T) {
	bubble(t, func(t *testing.T) {
		k := newPolled(t, nil)
		pods := []*pod{one("n", "a", "main", gpus("GPU-a"), gpus("GPU-b")), one("n", "b", "main", gpus("GPU-c"))}
		k.shows(pods...)
		k.lists(t)
		k.run(t)
		k.shows(one("n", "b", "main", gpus("GPU-c")), one("n", "a", "main", gpus("GPU-b"), gpus("GPU-a")))
		time.Sleep(3 * time.Second)
		if k.alarmed() {
			t.Error("the same in another order raises an alarm")
		}
		k.shows(slices.Concat(pods, []*pod{one("n", "web", "main", &devices{ResourceName: "example.com/nic", DeviceIds: []string{"n0"}})})...)
		time.Sleep(3 * time.Second)
		if k.alarmed() {
			t.Error("a pod without a GPU raises an alarm")
		}
	})
}

// Only the checkpoint tells a pod from the next one of its name on the same device.
func TestAPodMadeAnewOnItsDeviceRaisesAnAlarm(t *testing.T) {
	bubble(t, func(t *testing.T) {
		path := filepath.Join(shortDir(t), "checkpoint")
		replace(t, path, checkpointOf(entry("u1", "main", "GPU-a")))
		k := newPolled(t, func(cfg *Config) { cfg.Checkpoint = path })
		k.shows(one("n", "p-0", "main", gpus("GPU-a")))
		k.lists(t)
		k.run(t)
		time.Sleep(5 * time.Second)
		if k.alarmed() {
			t.Error("an alarm while nothing changes")
		}
		replace(t, path, checkpointOf(entry("u2", "main", "GPU-a")))
		time.Sleep(2 * time.Second)
		if !k.alarmed() {
			t.Error("no alarm")
		}
	})
}

// A kubelet in trouble is asked more and more seldom, nothing is told of it, and it is asked as often
// as before once it answers.
func TestAKubeletInTroubleIsLeftAlone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var book logBook
		k := newPolled(t, func(cfg *Config) { cfg.Log = book.logger() })
		k.lists(t)
		k.run(t)
		k.broken.Store(true)
		from := k.begun.Load()
		time.Sleep(5 * time.Minute)
		if asked := k.begun.Load() - from; asked < 9 || asked > 16 {
			t.Errorf("asked %d times in five minutes of trouble", asked)
		}
		if k.alarmed() {
			t.Error("a failure raises an alarm")
		}
		k.broken.Store(false)
		time.Sleep(longestPoll)
		from = k.begun.Load()
		time.Sleep(time.Minute)
		if asked := k.begun.Load() - from; asked < 55 {
			t.Errorf("asked %d times in a minute after the trouble", asked)
		}
		if got := book.lines(); len(got) != 1 || got[0] != "" {
			t.Errorf("log: %q", got)
		}
	})
}

// A List under way sees for itself: nobody asks beside it, and an answer from before it says nothing.
func TestNobodyAsksBesideAList(t *testing.T) {
	bubble(t, func(t *testing.T) {
		k := newPolled(t, func(cfg *Config) { cfg.Timeout = 20 * time.Second })
		k.lists(t)
		k.run(t)
		k.hang.Store(true)
		listed := make(chan error)
		go func() {
			_, err := k.client.List(t.Context())
			listed <- err
		}()
		synctest.Wait()
		from := k.begun.Load()
		time.Sleep(10 * time.Second)
		if asked := k.begun.Load() - from; asked != 0 {
			t.Errorf("asked %d times beside a List", asked)
		}
		k.hang.Store(false)
		if err := <-listed; err == nil {
			t.Error("a call that hung came to something")
		}
	})
}

func TestAnAnswerFromBeforeAListSaysNothing(t *testing.T) {
	c := newChange()
	c.answered(nil)
	since, _ := c.look()
	c.begin()()
	c.compare(since, []sharing.Allocation{held("n/p/main", "", "nvidia.com/gpu", "GPU-a")})
	if len(c.alarm) != 0 {
		t.Error("an alarm for an answer that is older than a List")
	}
	since, _ = c.look()
	c.compare(since, []sharing.Allocation{held("n/p/main", "", "nvidia.com/gpu", "GPU-a")})
	if len(c.alarm) != 1 {
		t.Error("no alarm for a new answer")
	}
}

// The List that an alarm asked for may fail.
func TestAnAlarmIsRaisedUntilAListHasHadTheNews(t *testing.T) {
	bubble(t, func(t *testing.T) {
		k := newPolled(t, nil)
		k.lists(t)
		k.run(t)
		k.shows()
		for range 3 {
			time.Sleep(1100 * time.Millisecond)
			if !k.alarmed() {
				t.Fatal("no alarm")
			}
		}
		k.lists(t)
		time.Sleep(5 * time.Second)
		if k.alarmed() {
			t.Error("an alarm for what a List has had")
		}
	})
}

func TestWithoutAPollNobodyAsks(t *testing.T) {
	bubble(t, func(t *testing.T) {
		k := newPolled(t, func(cfg *Config) { cfg.Poll = 0 })
		k.run(t)
		time.Sleep(time.Hour)
		if got := k.begun.Load(); got != 0 {
			t.Errorf("asked %d times", got)
		}
	})
}
