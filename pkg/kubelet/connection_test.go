// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestRestartedKubeletIsFoundAtOnce(t *testing.T) {
	k := newKubelet(t, "list.json", "allocatable.json")
	client := newClient(t, k.socket, nil)
	list := func(when string) {
		t.Helper()
		got, err := client.List(withDeadline(t))
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		if len(got.Allocations) != 6 || len(got.Advertised) != 9 {
			t.Errorf("%s: %d allocations, %d advertised", when, len(got.Allocations), len(got.Advertised))
		}
	}
	list("at first")

	k.stop()
	k.start()
	list("restart between two lists")

	k.stop()
	for range 10 {
		_, err := client.List(withDeadline(t))
		wantKind(t, err, KindSocketMissing, "see that the kubelet runs")
	}
	k.start()
	list("restart while lists fail")
}

// However long the kubelet was away, and however slowly gRPC would try again by
// then, the list that begins when it is back does not wait.
func TestLongAbsenceDoesNotDelayTheReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newMemoryKubelet(t, "list.json", "allocatable.json")
		client := newClient(t, "/kubelet.sock", nil)
		client.dial = k.dial
		k.away.Store(true)
		for range 120 {
			if _, err := client.List(t.Context()); err == nil {
				t.Fatal("a list without a kubelet succeeded")
			}
			time.Sleep(time.Second)
		}
		k.away.Store(false)
		begun := time.Now()
		if _, err := client.List(t.Context()); err != nil {
			t.Error(err)
		}
		if took := time.Since(begun); took != 0 {
			t.Errorf("the list waited %v", took)
		}
	})
}

func TestKubeletThatComesLater(t *testing.T) {
	k := newKubelet(t, "list.json", "")
	k.stop()
	client := newClient(t, k.socket, nil)
	if _, err := client.List(withDeadline(t)); err == nil {
		t.Error("a list without a kubelet succeeded")
	}
	k.start()
	if _, err := client.List(withDeadline(t)); err != nil {
		t.Error(err)
	}
}

// A connection can be lost more than once while a kubelet starts.
func TestUnavailableIsTriedAgain(t *testing.T) {
	for name, c := range map[string]struct{ losses, calls int64 }{
		"twice":  {2, 3},
		"always": {100, 4},
	} {
		t.Run(name, func(t *testing.T) {
			k := newKubelet(t, "list.json", "")
			k.hook = func(_ context.Context, method string) error {
				if method == "List" && k.calls.Load() <= c.losses {
					return status.Error(codes.Unavailable, "transport is closing")
				}
				return nil
			}
			_, err := newClient(t, k.socket, nil).List(withDeadline(t))
			if c.losses < c.calls {
				must(t, err)
			} else {
				wantKind(t, err, KindUnavailable, "may be restarting")
			}
			if n := k.calls.Load(); n != c.calls {
				t.Errorf("%d requests, want %d", n, c.calls)
			}
		})
	}
}

func TestOneConnectionForAllLists(t *testing.T) {
	k := newKubelet(t, "list.json", "allocatable.json")
	client := newClient(t, k.socket, nil)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 25 {
				if _, err := client.List(withDeadline(t)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := k.accepts.Load(); n != 1 {
		t.Errorf("100 lists made %d connections, want 1", n)
	}
}

func TestReconnectsLeakNothing(t *testing.T) {
	k := newKubelet(t, "list.json", "allocatable.json")
	client := newClient(t, k.socket, nil)
	list := func() {
		if _, err := client.List(withDeadline(t)); err != nil {
			t.Fatal(err)
		}
	}
	list()
	files, goroutines := openFiles(t), runtime.NumGoroutine()
	for range 200 {
		k.stop()
		if _, err := client.List(withDeadline(t)); err == nil {
			t.Fatal("a list without a kubelet succeeded")
		}
		k.start()
		list()
	}
	if n := k.accepts.Load(); n < 200 {
		t.Errorf("%d connections, want one for each of 200 restarts", n)
	}
	wantSettled(t, files, goroutines)
}

// wantSettled waits for the files and goroutines to be as few as before: both ends of
// a connection close behind the caller's back.
func wantSettled(t *testing.T, files, goroutines int) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; {
		f, g := openFiles(t), runtime.NumGoroutine()
		if f <= files && g <= goroutines {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d open files and %d goroutines, had %d and %d", f, g, files, goroutines)
		}
		runtime.Gosched()
	}
}

// A kubelet that is stopped in its tracks listens but accepts nobody.
func TestFrozenKubeletTimesOutAndIsFoundAgain(t *testing.T) {
	k := newKubelet(t, "list.json", "allocatable.json")
	k.stop()
	frozen, err := net.Listen("unix", k.socket)
	must(t, err)
	files, goroutines := openFiles(t), runtime.NumGoroutine()
	client := newClient(t, k.socket, func(cfg *Config) { cfg.Timeout = 20 * time.Millisecond })
	for range 20 {
		_, err := client.List(context.Background())
		wantKind(t, err, KindTimeout, "overloaded")
	}
	k.serve(frozen)
	client.cfg.Timeout = 10 * time.Second
	got, err := client.List(context.Background())
	must(t, err)
	if len(got.Allocations) != 6 || len(got.Advertised) != 9 {
		t.Errorf("%d allocations, %d advertised", len(got.Allocations), len(got.Advertised))
	}
	k.stop()
	must(t, client.Close())
	wantSettled(t, files-1, goroutines)
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("no /proc/self/fd to count")
	}
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestRateLimit(t *testing.T) {
	refusal := status.Error(codes.ResourceExhausted, "rejected by rate limit")

	t.Run("a burst of others is outlasted", func(t *testing.T) {
		k := newKubelet(t, "list.json", "")
		refusals := 3
		k.hook = func(_ context.Context, method string) error {
			if method == "List" && refusals > 0 {
				refusals--
				return refusal
			}
			return nil
		}
		if _, err := newClient(t, k.socket, nil).List(withDeadline(t)); err != nil {
			t.Error(err)
		}
		if n := k.calls.Load(); n != 4 {
			t.Errorf("%d requests, want 4", n)
		}
	})

	for name, c := range map[string]struct {
		limit time.Duration
		tries int
		took  time.Duration
	}{
		"others never stop":          {time.Minute, 5, 300 * time.Millisecond},
		"the caller's time runs out": {50 * time.Millisecond, 2, 50 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), c.limit)
				defer cancel()
				tries, begun := 0, time.Now()
				_, err := call(ctx, &Client{}, "list pod resources", func(context.Context) (int, error) {
					tries++
					return 0, refusal
				})
				wantKind(t, err, KindRateLimited, "less often")
				if took := time.Since(begun); tries != c.tries || took != c.took {
					t.Errorf("%d tries in %v, want %d in %v", tries, took, c.tries, c.took)
				}
			})
		})
	}
}
