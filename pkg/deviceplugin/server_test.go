// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestWhatAKilledPluginLeftIsRemovedAndWhatAnotherServesIsNot(t *testing.T) {
	n := bareNode(t)
	if err := n.kubelet.Start(); err != nil {
		t.Fatal(err)
	}
	first, second := filepath.Join(n.dir, "nvidia-gpu.sock"), filepath.Join(n.dir, "nvidia-gpu~2.sock")
	listenAt(t, first)
	dead := listenAt(t, second)
	dead.SetUnlinkOnClose(false)
	dead.Close()
	id := identify(first)

	inv := gpus(1)
	n.manager.Set(NodeState{Inventory: inv, Settings: plain()})
	n.has(wholeGPU, 1, 1)
	if identify(first) != id {
		t.Error("the socket of another plugin was taken away")
	}
	if got := n.state(wholeGPU).Socket; got != second {
		t.Errorf("it serves on %s, want %s", got, second)
	}
}

func TestOnlyTheKubeletCanConnect(t *testing.T) {
	inv := gpus(1)
	n := newNode(t, NodeState{Inventory: inv, Settings: plain()})
	n.has(wholeGPU, 1, 1)
	info, err := os.Stat(n.state(wholeGPU).Socket)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket is %v, %v", info.Mode(), err)
	}
}

// File systems give the inode of a removed file to the next one.
func TestAFileIsToldFromTheNextOneOfItsName(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubelet.sock")
	seen := map[fileID]bool{{}: true}
	for range 20 {
		listener := listenAt(t, path)
		id := identify(path)
		if seen[id] || id != identify(path) {
			t.Fatalf("%+v is not a new identity", id)
		}
		seen[id] = true
		listener.Close()
		time.Sleep(10 * time.Millisecond) // the kernel's clock has steps of some milliseconds
	}
}

func TestAPathThatIsTooLongForASocketIsSaid(t *testing.T) {
	h := lonelyHost(t)
	h.folder = filepath.Join(h.folder, strings.Repeat("long/", 20))
	_, err := serve(t.Context(), h.folder, wholeGPU, "nvidia", newTally(wholeGPU), nil)
	if err == nil || !strings.Contains(err.Error(), "shorter") {
		t.Errorf("the error is %v", err)
	}
}

func TestSocketNames(t *testing.T) {
	for _, c := range []struct {
		resource string
		n        int
		want     string
	}{
		{"nvidia.com/gpu", 1, "nvidia-gpu.sock"},
		{"nvidia.com/gpu", 2, "nvidia-gpu~2.sock"},
		{"nvidia.com/gpu-2", 1, "nvidia-gpu-2.sock"},
		{"nvidia.com/mig-1g.10gb.me", 1, "nvidia-mig-1g.10gb.me.sock"},
		{"example.org/gpu", 1, "nvidia-example.org_gpu.sock"},
	} {
		if got := socketName(c.resource, "nvidia", c.n); got != c.want {
			t.Errorf("socket %d of %s is %s, want %s", c.n, c.resource, got, c.want)
		}
	}
}

func TestSocketNamesAreShortAndNeverShared(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`(nvidia\.com|[a-z]{1,20}\.org)/[a-zA-Z0-9][a-zA-Z0-9._-]{0,40}[a-zA-Z0-9]`)
		a, b := name.Draw(t, "a"), name.Draw(t, "b")
		i, j := rapid.IntRange(1, 1000).Draw(t, "i"), rapid.IntRange(1, 1000).Draw(t, "j")
		one, other := socketName(a, "nvidia", i), socketName(b, "nvidia", j)
		if len(one) > 64 || filepath.Base(one) != one {
			t.Fatalf("%s is no name for a socket", one)
		}
		if (one == other) != (a == b && i == j) {
			t.Fatalf("%s (%d) is %s and %s (%d) is %s", a, i, one, b, j, other)
		}
	})
}

func TestBackOffGrowsWithinItsLimitsAndStartsAgain(t *testing.T) {
	b := backoff{least: 100 * time.Millisecond, most: time.Second}
	var got []time.Duration
	for range 6 {
		got = append(got, b.after())
	}
	b.reset()
	got = append(got, b.after())
	const ms = time.Millisecond
	if want := []time.Duration{100 * ms, 200 * ms, 400 * ms, 800 * ms, time.Second, time.Second, 100 * ms}; !slices.Equal(got, want) {
		t.Errorf("it waits %v, want %v", got, want)
	}
}

func TestWithoutTheKernelsHelpTheFolderIsLookedAt(t *testing.T) {
	w := newFolderWatch(discard(), time.Millisecond, "/nowhere")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.run(ctx) }()
	for range 3 {
		<-w.heard()
	}
	if w.watched.Load() {
		t.Error("a folder that is not there is watched")
	}
	cancel()
	<-done
	tick := make(chan time.Time, 1)
	ctx, cancel = context.WithCancel(t.Context())
	heard := w.heard()
	done = make(chan struct{})
	go func() { defer close(done); w.look(ctx, tick) }()
	tick <- time.Now()
	<-heard
	cancel()
	<-done
}

func TestAFolderThatIsGoneIsNotTakenForWatched(t *testing.T) {
	h := lonelyHost(t)
	w := newFolderWatch(discard(), time.Millisecond, h.folder)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.run(ctx) }()
	becomes := func(watched bool) {
		t.Helper()
		for end := time.Now().Add(patience); w.watched.Load() != watched; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("it is not watched=%t within %s", watched, patience)
			}
		}
	}
	for range 3 {
		becomes(true)
		if err := os.RemoveAll(h.folder); err != nil {
			t.Fatal(err)
		}
		becomes(false)
		if err := os.Mkdir(h.folder, 0o750); err != nil {
			t.Fatal(err)
		}
	}
	becomes(true)
	cancel()
	<-done
}

func TestTheKernelTellsOfASocketBeforeTheNextLook(t *testing.T) {
	h := lonelyHost(t)
	w := newFolderWatch(discard(), time.Hour, h.folder, h.folder)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.run(ctx) }()
	for !w.watched.Load() {
		time.Sleep(time.Millisecond)
	}
	heard := w.heard()
	listenAt(t, filepath.Join(h.folder, "kubelet.sock"))
	<-heard
	cancel()
	<-done
}

func TestASlowAnswerIsCountedInItsBucket(t *testing.T) {
	tally := newTally(wholeGPU)
	bounds := allocateBounds()
	tally.allocated(bounds[2], "")
	tally.allocated(bounds[2]+1, "")
	tally.allocated(time.Hour, ReasonUnhealthy)
	h := tally.stats().Allocations
	if h.Counts[2] != 1 || h.Counts[3] != 1 || h.Counts[len(bounds)] != 1 || h.Count() != 3 || h.Sum != time.Hour+2*bounds[2]+1 {
		t.Errorf("the histogram is %+v", h)
	}
}

// listenAt serves a socket until the test ends.
func listenAt(t *testing.T, path string) *net.UnixListener {
	t.Helper()
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(fmt.Errorf("%s: %w", path, err))
	}
	t.Cleanup(func() { listener.Close() })
	return listener
}
