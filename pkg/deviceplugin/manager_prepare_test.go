// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

func TestADeviceWaitsForWhatContainersNeedOfIt(t *testing.T) {
	var broken atomic.Bool
	var calls atomic.Int64
	known := make(chan int, 100)
	n := newNode(t, NodeState{Inventory: gpus(2), Settings: plain()}, preparedBy(func(inv Inventory, _ Plan) error {
		calls.Add(1)
		if broken.Load() {
			return errors.New("read-only file system")
		}
		known <- len(inv.Devices)
		return nil
	}))
	n.has(wholeGPU, 2, 2)

	broken.Store(true)
	tried := calls.Load()
	bigger := gpus(3)
	n.manager.Set(NodeState{Inventory: bigger, Settings: plain(), Report: verdicts(bigger, gpuID(0))})
	n.until("to be tried again", func() bool { return calls.Load() >= tried+3 })
	n.has(wholeGPU, 1, 2)
	if s := n.manager.Stats(); s.PrepareError == "" || s.PrepareFailures < 2 {
		t.Errorf("a Prepare that fails is told as %q, %d times", s.PrepareError, s.PrepareFailures)
	}

	broken.Store(false)
	n.has(wholeGPU, 2, 3)
	if s := n.manager.Stats(); s.PrepareError != "" || s.Prepares != 2 {
		t.Errorf("a Prepare that succeeded again is told as %q, %d times", s.PrepareError, s.Prepares)
	}
	if first, second := <-known, <-known; first != 2 || second != 3 {
		t.Errorf("Prepare was for %d and %d devices, want 2 and 3", first, second)
	}
}

// partly is an error of a Prepare that names devices.
type partly struct{ devices []gpu.UUID }

func (partly) Error() string         { return "the driver does not know some" }
func (p partly) Missing() []gpu.UUID { return p.devices }

func TestAPrepareThatFailsForSomeHoldsBackThoseOnly(t *testing.T) {
	var missing atomic.Pointer[partly]
	missing.Store(&partly{[]gpu.UUID{gpuID(2)}})
	inv := gpus(4)
	n := newNode(t, NodeState{Inventory: inv, Settings: plain()}, preparedBy(func(Inventory, Plan) error {
		if p := missing.Load(); p != nil {
			return errors.Join(fmt.Errorf("specs: %w", *p), nil)
		}
		return nil
	}))
	n.has(wholeGPU, 3, 3)
	if s := n.manager.Stats(); s.PrepareError == "" {
		t.Error("nobody is told")
	}
	// A broken one goes to no container, and is counted whether it is ready or not.
	n.manager.Set(NodeState{Inventory: inv, Settings: plain(), Report: verdicts(inv, gpuID(2))})
	n.has(wholeGPU, 3, 4)
	missing.Store(nil)
	n.until("another attempt", func() bool { return n.manager.Stats().PrepareError == "" })
	n.manager.Set(NodeState{Inventory: inv, Settings: plain(), Report: verdicts(inv)})
	n.has(wholeGPU, 4, 4)
}

func TestAnErrorThatNamesNoDeviceConcernsAll(t *testing.T) {
	some := partly{[]gpu.UUID{gpuID(1)}}
	for _, c := range []struct {
		err   error
		whole bool
	}{
		{some, false},
		{fmt.Errorf("specs: %w", some), false},
		{errors.Join(some, fmt.Errorf("again: %w", some)), false},
		{errors.New("disk full"), true},
		{errors.Join(some, errors.New("disk full")), true},
		{fmt.Errorf("%w and %w", some, errors.New("disk full")), true},
		{fmt.Errorf("said: %w", errors.New("disk full")), true},
	} {
		missing, whole := missingOf(c.err)
		if whole != c.whole || !whole && !slices.Contains(missing, gpuID(1)) {
			t.Errorf("%q: %v, whole %v, want %v", c.err, missing, whole, c.whole)
		}
	}
}

func TestAPrepareThatHangsHoldsUpNoVerdict(t *testing.T) {
	hang := make(chan struct{})
	inv := gpus(2)
	var second atomic.Bool
	n := newNode(t, NodeState{Inventory: inv, Settings: plain()}, preparedBy(func(Inventory, Plan) error {
		if second.Swap(true) {
			<-hang
		}
		return nil
	}))
	defer close(hang)
	n.has(wholeGPU, 2, 2)
	bigger := gpus(3)
	n.manager.Set(NodeState{Inventory: bigger, Settings: plain(), Report: verdicts(bigger)})
	n.manager.Set(NodeState{Inventory: bigger, Settings: plain(), Report: verdicts(bigger, gpuID(1))})
	n.has(wholeGPU, 1, 2)
	n.stop() // does not wait for it either
}

func TestOtherNamesAreUsedOnceTheyArePrepared(t *testing.T) {
	byUUID, byIndex := plain(), plain()
	byUUID.ListStrategies, byIndex.ListStrategies = []ListStrategy{ListCDICRI}, []ListStrategy{ListCDICRI}
	byIndex.IDStrategy = IDIndex
	let := make(chan struct{}, 1)
	let <- struct{}{}
	n := newNode(t, NodeState{Inventory: gpus(2), Settings: byUUID}, preparedBy(func(Inventory, Plan) error {
		<-let
		return nil
	}))
	n.has(wholeGPU, 2, 2)
	name := func() string {
		got, err := n.kubelet.Allocate(t.Context(), "pod", wholeGPU, 1)
		n.kubelet.Free("pod")
		if err != nil || len(got.Response.GetCdiDevices()) != 1 {
			t.Fatalf("allocate: %v, %v", got.Response, err)
		}
		return got.Response.GetCdiDevices()[0].GetName()
	}
	const uuid, index = "k8s.device-plugin.nvidia.com/gpu=GPU-00000000-1111-2222-3333-444444444444", "k8s.device-plugin.nvidia.com/gpu=0"

	// The other GPU is gone with the change, the first is broken, and neither waits.
	n.manager.Set(NodeState{Inventory: gpus(1), Settings: byIndex, Report: verdicts(gpus(1), gpuID(0))})
	n.has(wholeGPU, 0, 1)
	n.manager.Set(NodeState{Inventory: gpus(1), Settings: byIndex, Report: verdicts(gpus(1))})
	n.has(wholeGPU, 1, 1)
	if got := name(); got != uuid {
		t.Errorf("before the spec has other names a container gets %s, want %s", got, uuid)
	}
	let <- struct{}{}
	n.until("the new names to be used", func() bool { return name() == index })
}

func TestTheRevisionIsTheOneInForce(t *testing.T) {
	let := make(chan struct{}, 1)
	let <- struct{}{}
	cdi, index := plain(), plain()
	cdi.ListStrategies, index.ListStrategies = []ListStrategy{ListCDICRI}, []ListStrategy{ListCDICRI}
	index.IDStrategy = IDIndex
	n := newNode(t, NodeState{Inventory: gpus(2), Settings: cdi, Revision: "a"}, preparedBy(func(Inventory, Plan) error {
		<-let
		return nil
	}))
	n.has(wholeGPU, 2, 2)
	revision := func(want string) func() bool {
		return func() bool { return n.manager.Stats().Revision == want }
	}
	n.until("the first revision", revision("a"))

	// The same settings by another name are prepared too: hooks and paths of a spec are not among them.
	n.manager.Set(NodeState{Inventory: gpus(2), Settings: cdi, Revision: "b"})
	let <- struct{}{}
	n.until("the same settings by another name", revision("b"))

	n.manager.Set(NodeState{Inventory: gpus(2), Settings: index, Revision: "c"})
	n.manager.Set(NodeState{Inventory: gpus(2), Settings: index, Revision: "c", Report: verdicts(gpus(2), gpuID(0))})
	n.has(wholeGPU, 1, 2) // the state is followed, but for the settings
	if !revision("b")() {
		t.Errorf("the revision is %q before containers are told otherwise", n.manager.Stats().Revision)
	}
	let <- struct{}{}
	n.until("the new settings", revision("c"))
}

func TestAPlanWithProblemsKeepsWhatWasThere(t *testing.T) {
	inv := withSlices(gpus(1), 2)
	n := newNode(t, NodeState{Inventory: inv, Settings: plain(), Report: verdicts(inv)})
	n.has(sliceGPU, 2, 2)

	// A name that the kubelet would refuse: the MIG devices have no resource of their own now.
	bad := plain()
	bad.MIGNames = []NameRule{{Pattern: "*", Name: "kubernetes.io/not a name"}}
	n.manager.Set(NodeState{Inventory: inv, Settings: bad, Report: verdicts(inv)})
	n.until("the problem to be told", func() bool { return len(n.manager.Stats().Problems) > 0 })
	less := withSlices(gpus(1), 1)
	n.manager.Set(NodeState{Inventory: less, Settings: bad, Report: verdicts(less)})
	n.has(sliceGPU, 1, 1)

	// What is handed out otherwise is not kept, not even as a part of a whole.
	none := plain()
	none.MIGStrategy = MIGNone
	n.manager.Set(NodeState{Inventory: inv, Settings: none, Report: verdicts(inv)})
	n.has(sliceGPU, 0, 0)
}

// Between the switch of the MIG mode and the first instance there is nothing that CUDA can use.
func TestAGPUThatIsPutIntoMIGModeIsNotHandedOutWhole(t *testing.T) {
	inv := gpus(1)
	n := newNode(t, NodeState{Inventory: inv, Settings: plain(), Report: verdicts(inv)})
	n.has(wholeGPU, 1, 1)
	empty := gpus(1)
	empty.Devices[0].MIGEnabled = true
	n.manager.Set(NodeState{Inventory: empty, Settings: plain(), Report: verdicts(empty)})
	n.has(wholeGPU, 0, 0)
	cut := withSlices(gpus(1), 2)
	n.manager.Set(NodeState{Inventory: cut, Settings: plain(), Report: verdicts(cut)})
	n.has(sliceGPU, 2, 2)
	n.manager.Set(NodeState{Inventory: inv, Settings: plain(), Report: verdicts(inv)})
	n.has(wholeGPU, 1, 1)
	n.has(sliceGPU, 0, 0)
}
