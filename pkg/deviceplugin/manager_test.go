// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/tests/fakekubelet"
)

func TestGPUsAreHandedOut(t *testing.T) {
	inv := gpus(4)
	n := newNode(t, NodeState{Inventory: inv, Settings: plain(), Report: verdicts(inv)})
	n.has(wholeGPU, 4, 4)

	got, err := n.kubelet.Allocate(t.Context(), "pod", wholeGPU, 2)
	if err != nil {
		t.Fatal(err)
	}
	if want := got.IDs[0] + "," + got.IDs[1]; len(got.IDs) != 2 || got.Response.GetEnvs()["NVIDIA_VISIBLE_DEVICES"] == "" {
		t.Errorf("a container that asked for two got %v and %v, want %s to be visible", got.IDs, got.Response, want)
	}
	if s := n.stats(wholeGPU); s.Allocations.Count() != 1 || s.Preferences != 1 || len(s.AllocateErrors) != 0 {
		t.Errorf("after one allocation the stats have %+v", s)
	}
}

func TestTheFirstListHasTheTrueVerdicts(t *testing.T) {
	inv := gpus(2)
	n := newNode(t, NodeState{Inventory: inv, Settings: timeSliced(4), Report: verdicts(inv, gpuID(1))})
	n.has(wholeGPU, 4, 8)
	s := n.state(wholeGPU)
	if s.Lists != 1 {
		t.Errorf("it took %d lists to say so, want the first to be true", s.Lists)
	}
	for replica := range 4 {
		if id := fmt.Sprintf("%s::%d", gpuID(1), replica); s.Devices[id].Healthy || s.Devices[id].ID == "" {
			t.Errorf("replica %s of the broken GPU is %+v, want it listed and not healthy", id, s.Devices[id])
		}
	}
}

func TestABrokenGPULeavesWithAllItsReplicasInOneListAndComesBack(t *testing.T) {
	inv := gpus(2)
	state := NodeState{Inventory: inv, Settings: timeSliced(4), Report: verdicts(inv)}
	// Nothing that may wait would go out in the time of the test.
	n := newNode(t, state, paced(func(p *pace) { p.gather = time.Hour }))
	n.has(wholeGPU, 8, 8)

	state.Report = verdicts(inv, gpuID(0))
	n.manager.Set(state)
	n.has(wholeGPU, 4, 8)
	if lists := n.state(wholeGPU).Lists; lists != 2 {
		t.Errorf("one cause took %d lists, want one beside the first", lists)
	}

	// A recovery can wait for the next fault, and goes out with it.
	state.Report = verdicts(inv)
	n.manager.Set(state)
	state.Report = verdicts(inv, gpuID(1))
	n.manager.Set(state)
	n.eventually("the other GPU's replicas are to leave, and the first's to be back", func(k *fakekubelet.Kubelet) bool {
		s, _ := k.Resource(wholeGPU)
		return s.Devices[string(gpuID(0))+"::0"].Healthy && !s.Devices[string(gpuID(1))+"::3"].Healthy
	})
	if lists := n.state(wholeGPU).Lists; lists != 3 {
		t.Errorf("a recovery and a fault together took %d lists, want 3 with the first two", lists)
	}
}

func TestChangesThatComeTogetherGoTogether(t *testing.T) {
	inv := gpus(1)
	m := newManager(ManagerConfig{}, usualPace())
	r := newReconciler(t.Context(), m, &sync.WaitGroup{})
	gather := m.host.pace.gather
	set := func(replicas int, unhealthy ...gpu.UUID) {
		m.Set(NodeState{Inventory: inv, Settings: timeSliced(replicas), Report: verdicts(inv, unhealthy...)})
	}
	start := time.Now()
	for _, c := range []struct {
		what      string
		replicas  int
		unhealthy []gpu.UUID
		at        time.Duration
		// wait and followed are what is left to wait, and how many replicas there are then.
		wait     time.Duration
		followed int
	}{
		{"the first is not to wait", 2, nil, 0, idle, 2},
		{"a change waits for others", 3, nil, time.Second, gather, 2},
		{"another one does not make it longer", 4, nil, time.Second + gather/2, gather / 2, 2},
		{"and they go together", 5, nil, time.Second + gather, idle, 5},
		{"the next waits again", 6, nil, 2 * time.Second, gather, 5},
		{"a fault waits for nothing, and takes along what waits", 7, []gpu.UUID{gpuID(0)}, 2*time.Second + 1, idle, 7},
		{"the same fault again is none", 8, []gpu.UUID{gpuID(0)}, 2*time.Second + 2, gather, 7},
		{"a recovery is none", 9, nil, 2*time.Second + 2 + gather/2, gather / 2, 7},
	} {
		set(c.replicas, c.unhealthy...)
		wait := r.follow(start.Add(c.at))
		if got := len(r.present.offers[wholeGPU].Seats); wait != c.wait || got != c.followed {
			t.Errorf("%s: it waits %s with %d replicas, want %s and %d", c.what, wait, got, c.wait, c.followed)
		}
	}
}

func TestWhatChangesNothingIsNotSent(t *testing.T) {
	inv := gpus(2)
	state := NodeState{Inventory: inv, Settings: plain(), Report: verdicts(inv)}
	n := newNode(t, state)
	n.has(wholeGPU, 2, 2)
	for range 10 {
		// The same again, with other words and times.
		state.Report = verdicts(inv)
		state.Report.Time = time.Now()
		state.Report.Verdicts[0].Avoid = true
		state.Inventory = gpus(2)
		n.manager.Set(state)
	}
	state.Report = verdicts(inv, gpuID(1))
	n.manager.Set(state)
	n.has(wholeGPU, 1, 2)
	if s := n.state(wholeGPU); s.Lists != 2 {
		t.Errorf("the kubelet got %d lists, want 2", s.Lists)
	}
}

func TestNotToKnowWithdrawsNothing(t *testing.T) {
	inv := withSlices(gpus(1), 2)
	for name, report := range map[string]*health.Report{
		"no report":      nil,
		"no verdicts":    {},
		"unknown status": {Verdicts: []health.Verdict{{Device: gpuID(0), Card: gpuID(0), Status: health.Unknown}}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, NodeState{Inventory: inv, Settings: plain(), Report: report})
			n.has(wholeGPU, 1, 1)
			n.has(sliceGPU, 2, 2)
		})
	}
}

func TestAMIGDeviceThatTheReportDoesNotKnowFollowsItsCard(t *testing.T) {
	inv := withSlices(gpus(1), 2)
	report := &health.Report{Verdicts: []health.Verdict{
		{Device: gpuID(99), Card: gpuID(99), Status: health.Unhealthy},
		{Device: sliceID(0), Card: gpuID(99), Status: health.Healthy},
	}}
	n := newNode(t, NodeState{Inventory: inv, Settings: plain(), Report: report})
	n.has(sliceGPU, 1, 2)
	if d := n.state(sliceGPU).Devices[string(sliceID(1))]; d.Healthy {
		t.Error("a new MIG device of a broken card is healthy")
	}
}

func TestMoreReplicasDisturbNoOtherResource(t *testing.T) {
	inv := withSlices(gpus(2), 3)
	state := NodeState{Inventory: inv, Settings: timeSliced(4), Report: verdicts(inv)}
	n := newNode(t, state)
	n.has(wholeGPU, 8, 8)
	n.has(sliceGPU, 3, 3)
	before, shared := n.state(sliceGPU), n.state(wholeGPU)
	inode := identify(before.Socket)

	state.Settings = timeSliced(8)
	n.manager.Set(state)
	n.has(wholeGPU, 16, 16)

	after := n.state(sliceGPU)
	if after.Lists != before.Lists || after.Socket != before.Socket || identify(after.Socket) != inode || inode == (fileID{}) {
		t.Errorf("the resource that did not change went from %+v to %+v", before, after)
	}
	if now := n.state(wholeGPU); now.Socket != shared.Socket || now.Lists != 2 {
		t.Errorf("the resource that changed went from %+v to socket %s with %d lists, want one more list on the same socket", shared, now.Socket, now.Lists)
	}
	if all := n.kubelet.Registrations(); len(all) != 2 {
		t.Errorf("there were %d registrations, want one for each resource", len(all))
	}
}

func TestARenamedResourceIsEmptiedBeforeItEnds(t *testing.T) {
	for name, options := range kubelets() {
		t.Run(name, func(t *testing.T) {
			inv := gpus(2)
			state := NodeState{Inventory: inv, Settings: timeSliced(2), Report: verdicts(inv)}
			renamed := timeSliced(2)
			renamed.RenameByDefault = true
			n := newNode(t, state, options...)
			n.has(wholeGPU, 4, 4)
			for range 3 {
				n.manager.Set(NodeState{Inventory: inv, Settings: renamed, Report: state.Report})
				n.has(sharedGPU, 4, 4)
				n.has(wholeGPU, 0, 0)
				if s := n.stats(wholeGPU); s.Served || s.Healthy+s.Unhealthy != 0 {
					t.Errorf("the old resource still has %+v", s)
				}
				n.manager.Set(state)
				n.has(wholeGPU, 4, 4)
				n.has(sharedGPU, 0, 0)
			}
		})
	}
}

func TestAResourceThatIsBackWaitsForItsOldEndpointToEnd(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	h := lonelyHost(t)
	r := newReconciler(ctx, newManager(ManagerConfig{KubeletDir: h.folder}, quickPace()), &running)
	r.manager.Set(NodeState{Inventory: gpus(1), Settings: plain()})
	r.step(time.Now())
	first := r.served[wholeGPU]
	r.end(wholeGPU, first)
	r.reconcile(time.Now())
	if r.served[wholeGPU] != nil {
		t.Error("two endpoints of one resource are there")
	}
	delete(r.ending, <-r.ended)
	if !isClosed(first.done) {
		t.Error("the old endpoint has not ended")
	}
	r.reconcile(time.Now())
	if second := r.served[wholeGPU]; second == nil || second == first {
		t.Error("the resource is not back")
	}
	cancel()
	running.Wait()
}

func TestAListThatIsTooLongIsNotSent(t *testing.T) {
	inv := gpus(16)
	n := newNode(t, NodeState{Inventory: inv, Settings: timeSliced(4), Report: verdicts(inv)})
	n.has(wholeGPU, 64, 64)
	n.manager.Set(NodeState{Inventory: inv, Settings: timeSliced(8192), Revision: "too many", Report: verdicts(inv, gpuID(0))})
	n.until("the settings to be looked at", func() bool { return n.manager.Stats().Revision == "too many" })
	n.has(wholeGPU, 60, 64)
	var told *Problem
	for _, problem := range n.manager.Stats().Problems {
		errors.As(problem, &told)
	}
	if told == nil || told.Kind != ProblemListSize {
		t.Errorf("131072 seats are handed out and the problems are %v", n.manager.Stats().Problems)
	}
}

func TestAllocateGoesByTheVerdictOfThisMoment(t *testing.T) {
	inv := gpus(1)
	good := NodeState{Inventory: inv, Settings: plain(), Report: verdicts(inv)}
	bad := NodeState{Inventory: inv, Settings: plain(), Report: verdicts(inv, gpuID(0))}
	n := newNode(t, good)
	n.has(wholeGPU, 1, 1)
	plugin := n.plugin(wholeGPU)
	ask := func() error {
		_, err := plugin.Allocate(t.Context(), &pluginapi.AllocateRequest{
			ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: []string{string(gpuID(0))}}},
		})
		return err
	}
	for range 50 {
		n.manager.Set(bad)
		if err := ask(); status.Code(err) != codes.FailedPrecondition {
			t.Fatalf("a GPU that is Unhealthy by now was given away: %v", err)
		}
		n.manager.Set(good)
		if err := ask(); err != nil {
			t.Fatalf("a GPU that is Healthy by now was not given away: %v", err)
		}
	}
	if s := n.stats(wholeGPU); s.AllocateErrors[ReasonUnhealthy] != 50 || s.Allocations.Count() != 100 {
		t.Errorf("50 refused of 100 are counted as %v of %d", s.AllocateErrors, s.Allocations.Count())
	}
}

func TestPodsAreAdmittedWhileVerdictsChange(t *testing.T) {
	inv := gpus(4)
	n := newNode(t, NodeState{Inventory: inv, Settings: timeSliced(4), Report: verdicts(inv)})
	n.has(wholeGPU, 16, 16)
	var flips sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	flips.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			n.manager.Set(NodeState{Inventory: inv, Settings: timeSliced(4), Report: verdicts(inv, gpuID(i%2))})
		}
	})
	var admitted int
	for i := range 200 {
		pod := fmt.Sprint("pod", i)
		got, err := n.kubelet.Allocate(ctx, pod, wholeGPU, 1)
		if err == nil {
			admitted++
			if len(got.Response.GetEnvs()) == 0 {
				t.Errorf("%s got nothing", pod)
			}
		} else if status.Code(errors.Unwrap(err)) != codes.FailedPrecondition {
			t.Errorf("%s: %v", pod, err)
		}
		n.kubelet.Free(pod)
	}
	cancel()
	flips.Wait()
	if admitted == 0 {
		t.Error("no pod at all was admitted, and two GPUs were healthy all the time")
	}
}

func TestTheEndLeavesNoSocketAndNoStream(t *testing.T) {
	inv := withSlices(gpus(1), 1)
	n := newNode(t, NodeState{Inventory: inv, Settings: plain(), Report: verdicts(inv)})
	n.has(wholeGPU, 1, 1)
	n.has(sliceGPU, 1, 1)
	others := filepath.Join(n.dir, "other.sock")
	if err := os.WriteFile(others, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n.stop()
	n.eventually("the kubelet is to see the streams end", func(k *fakekubelet.Kubelet) bool {
		gpu, _ := k.Resource(wholeGPU)
		slice, _ := k.Resource(sliceGPU)
		return !gpu.Connected && !slice.Connected && gpu.Capacity == 1 && gpu.Allocatable == 0
	})
	left, err := filepath.Glob(filepath.Join(n.dir, "*.sock"))
	if err != nil || !slices.Equal(left, []string{n.kubelet.Socket(), others}) {
		t.Errorf("the folder has %v (%v), want the kubelet's socket and the file of somebody else", left, err)
	}
}

func TestAManagerNeedsAFolder(t *testing.T) {
	if err := NewManager(ManagerConfig{}).Run(t.Context()); err == nil {
		t.Error("a manager without a folder runs")
	}
}

func TestNodeZeroIsToldAndNoNodeIsNot(t *testing.T) {
	inv := withSlices(gpus(2), 1)
	state := NodeState{Inventory: inv, Settings: plain(), Report: verdicts(inv)}
	n := newNode(t, state)
	n.has(wholeGPU, 2, 2)
	n.has(sliceGPU, 1, 1)
	node := func(resource string, id gpu.UUID) int {
		d := n.state(resource).Devices[string(id)]
		if d.EmptyTopology {
			t.Errorf("%s has a topology without nodes", id)
		}
		return d.NUMANode
	}
	if a, b, c := node(wholeGPU, gpuID(0)), node(wholeGPU, gpuID(1)), node(sliceGPU, sliceID(0)); a != 0 || b != 1 || c != -1 {
		t.Errorf("the NUMA nodes are %d, %d and %d, want 0, 1 and none", a, b, c)
	}
	state.Settings.NoTopology = true
	n.manager.Set(state)
	n.eventually("hints are to be dropped", func(k *fakekubelet.Kubelet) bool {
		s, _ := k.Resource(wholeGPU)
		return s.Devices[string(gpuID(1))].NUMANode == -1
	})
}

func TestAListHasNoTopologyWhereThereIsNone(t *testing.T) {
	for node, want := range map[int]int{-1: 0, 0: 1, 1: 1} {
		l := newList(seatsOf(gpuID(0), 1), map[gpu.UUID]int{gpuID(0): node}, nil)
		d := l.message.GetDevices()[0]
		if got := len(d.GetTopology().GetNodes()); got != want || (d.GetTopology() == nil) != (want == 0) {
			t.Errorf("on node %d the topology is %v", node, d.GetTopology())
		}
		moved := newList(seatsOf(gpuID(0), 1), map[gpu.UUID]int{gpuID(0): node + 1}, nil)
		if l.equal(moved) || !l.equal(newList(seatsOf(gpuID(0), 1), map[gpu.UUID]int{gpuID(0): node}, nil)) {
			t.Errorf("a list is the same if and only if the node %d is", node)
		}
	}
}
