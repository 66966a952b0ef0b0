// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// beginning is a reconciler that has just begun, with one of four GPUs Unhealthy, and a Prepare that ends
// when it is told how.
type beginning struct {
	*reconciler
	how chan error
}

func newBeginning(t *testing.T) beginning {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(func() { cancel(); running.Wait() })
	b := beginning{how: make(chan error, 1)}
	m := newManager(ManagerConfig{
		KubeletDir: lonelyHost(t).folder,
		Prepare:    func(Inventory, Plan) error { return <-b.how },
	}, quickPace())
	t.Cleanup(func() { close(b.how) })
	b.reconciler = newReconciler(ctx, m, &running)
	inv := gpus(4)
	m.Set(NodeState{Inventory: inv, Settings: plain(), Report: verdicts(inv, gpuID(3))})
	return b
}

func (b beginning) prepares(err error, now time.Time) {
	b.how <- err
	b.prepareEnded(<-b.preparing)
	b.step(now)
}

// listed is how many seats the endpoint was begun or went on with, none without an endpoint.
func (b beginning) listed() (healthy, unhealthy int) {
	e := b.served[wholeGPU]
	if e == nil {
		return 0, 0
	}
	l := e.list.Load()
	return l.healthy, l.unhealthy
}

func TestTheFirstListIsWhole(t *testing.T) {
	for name, c := range map[string]struct {
		err                error
		healthy, unhealthy int
	}{
		"prepared":                {nil, 3, 1},
		"prepared but for one":    {partly{[]gpu.UUID{gpuID(0)}}, 2, 1},
		"the first attempt fails": {errors.New("read-only file system"), 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			b, now := newBeginning(t), time.Now()
			b.step(now)
			b.step(now.Add(time.Second))
			if b.served[wholeGPU] != nil {
				healthy, unhealthy := b.listed()
				t.Fatalf("while Prepare runs the first list has %d healthy and %d unhealthy seats", healthy, unhealthy)
			}
			b.prepares(c.err, now.Add(2*time.Second))
			if healthy, unhealthy := b.listed(); healthy != c.healthy || unhealthy != c.unhealthy {
				t.Errorf("the first list has %d healthy and %d unhealthy seats, want %d and %d", healthy, unhealthy, c.healthy, c.unhealthy)
			}
		})
	}
}

func TestAPrepareThatHangsDoesNotHideABrokenGPUForEver(t *testing.T) {
	b, now := newBeginning(t), time.Now()
	bound := b.manager.host.pace.firstList
	b.step(now)
	if wait := b.step(now.Add(bound / 2)); wait != bound-bound/2 {
		t.Errorf("the next look is in %s, want it when the wait ends, in %s", wait, bound-bound/2)
	}
	if b.step(now.Add(bound - 1)); b.served[wholeGPU] != nil {
		t.Error("the endpoint began before the wait was over")
	}
	b.step(now.Add(bound))
	if healthy, unhealthy := b.listed(); healthy != 0 || unhealthy != 1 {
		t.Errorf("after the wait %d healthy and %d unhealthy seats are told, want the broken one", healthy, unhealthy)
	}
	b.prepares(nil, now.Add(2*bound))
	if healthy, unhealthy := b.listed(); healthy != 3 || unhealthy != 1 {
		t.Errorf("once prepared %d healthy and %d unhealthy seats are told, want all", healthy, unhealthy)
	}
}

// The kubelet of a node whose plugin begins anew hears once of all seats, and never of some.
func TestTheKubeletHearsOfAllSeatsAtOnce(t *testing.T) {
	began, let := make(chan struct{}), make(chan struct{})
	inv := gpus(8)
	n := newNode(t, NodeState{Inventory: inv, Settings: timeSliced(2), Report: verdicts(inv, gpuID(2))}, preparedBy(func(Inventory, Plan) error {
		close(began)
		<-let
		return nil
	}))
	<-began
	time.Sleep(100 * time.Millisecond) // long enough for an endpoint that does not wait to be heard
	if all := n.kubelet.Registrations(); len(all) != 0 {
		t.Errorf("registered %d times while Prepare runs", len(all))
	}
	close(let)
	n.has(wholeGPU, 14, 16)
	if s := n.stats(wholeGPU); s.Lists != 1 {
		t.Errorf("it took %d lists", s.Lists)
	}
}

func TestAMissingFolderIsSaidOnceAndUsesUpNoName(t *testing.T) {
	n := bareNode(t)
	folder := n.dir
	if err := os.Remove(folder); err != nil {
		t.Fatal(err)
	}
	inv := gpus(1)
	n.manager.Set(NodeState{Inventory: inv, Settings: plain()})
	var tries int
	var last time.Time
	n.until("ten attempts to serve", func() bool {
		if at := n.stats(wholeGPU).LastErrorAt; !at.Equal(last) {
			tries, last = tries+1, at
		}
		return tries >= 10
	})
	if said := n.log.count("cannot serve"); said != 1 {
		t.Errorf("the same trouble is said %d times", said)
	}
	if err := os.WriteFile(folder, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n.until("another trouble to be said", func() bool { return n.log.count("cannot serve") == 2 })
	if err := os.Remove(folder); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	n.until("a socket to be there", func() bool { return n.stats(wholeGPU).Socket != "" })
	if s := n.stats(wholeGPU).Socket; !strings.HasSuffix(s, "/nvidia-gpu.sock") {
		t.Errorf("the first socket is %s", s)
	}
}
