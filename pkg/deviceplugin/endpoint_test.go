// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpumeter/gpumeter/tests/fakekubelet"
)

// kubelets are those that a plugin meets: today's, and one before 1.36.
func kubelets() map[string][]option {
	return map[string][]option{"today's kubelet": nil, "a kubelet before 1.36": {legacy}}
}

// withEach runs a story with each kind of kubelet, on a node of two GPUs.
func withEach(t *testing.T, story func(*testing.T, *node), options ...option) {
	t.Helper()
	for name, kind := range kubelets() {
		t.Run(name, func(t *testing.T) {
			inv := gpus(2)
			n := newNode(t, NodeState{Inventory: inv, Settings: plain(), Report: verdicts(inv, gpuID(1))}, slices.Concat(kind, options)...)
			n.has(wholeGPU, 1, 2)
			story(t, n)
		})
	}
}

func TestAKubeletThatComesLaterIsFound(t *testing.T) {
	n := bareNode(t)
	inv := gpus(1)
	n.manager.Set(NodeState{Inventory: inv, Settings: plain(), Report: verdicts(inv)})
	n.until("a socket to be there", func() bool { return n.stats(wholeGPU).Socket != "" })
	if err := n.kubelet.Start(); err != nil {
		t.Fatal(err)
	}
	n.has(wholeGPU, 1, 1)
	n.until("it to be registered and well", func() bool {
		s := n.stats(wholeGPU)
		return s.Registered && s.Registrations > 0 && s.LastError == "" && s.Streams == 1 && s.Lists > 0 && s.Healthy == 1
	})
	n.kubelet.Kill()
	n.until("it to be alone again", func() bool { return n.stats(wholeGPU).Streams == 0 })
}

func TestTenRestartsOfTheKubeletChangeNothing(t *testing.T) {
	withEach(t, func(t *testing.T, n *node) {
		for range 10 {
			n.restartKubelet()
			n.has(wholeGPU, 1, 2)
		}
		if n.state(wholeGPU).Devices[string(gpuID(1))].Healthy {
			t.Error("a restart of the kubelet has healed a GPU")
		}
	})
}

func TestRestartsInOneSecondAreSurvived(t *testing.T) {
	withEach(t, func(t *testing.T, n *node) {
		for i := range 5 {
			n.restartKubelet()
			// Now before, now while and now after the plugin has taken notice.
			time.Sleep(time.Duration(i) * 7 * time.Millisecond)
		}
		n.has(wholeGPU, 1, 2)
	})
}

func TestAKubeletThatIsAwayForLongIsWaitedFor(t *testing.T) {
	withEach(t, func(t *testing.T, n *node) {
		n.kubelet.Kill()
		n.until("attempts to fail", func() bool { return n.stats(wholeGPU).RegistrationFailures >= 3 })
		if s := n.stats(wholeGPU); s.Registered || s.LastError == "" {
			t.Errorf("with no kubelet the stats have %+v", s)
		}
		if err := n.kubelet.Start(); err != nil {
			t.Fatal(err)
		}
		n.has(wholeGPU, 1, 2)
		n.until("the trouble to be forgotten", func() bool { return n.stats(wholeGPU).LastError == "" })
	})
}

func TestANewKubeletDoesNotWaitForWhatTheOldOneRefused(t *testing.T) {
	h := lonelyHost(t)
	h.kubelet = filepath.Join(h.folder, "kubelet.sock")
	l := &life{endpoint: &endpoint{host: h, tally: newTally(wholeGPU)}, retry: backoff{least: 1, most: time.Hour, next: time.Hour}}
	l.registered, l.nextTry = true, time.Now().Add(time.Hour)
	listenAt(t, h.kubelet)
	l.meet()
	if wait := l.retry.after(); wait != 1 || !l.nextTry.IsZero() || l.registered {
		t.Errorf("a kubelet that is new is asked at %v and then after %v (registered: %t)", l.nextTry, wait, l.registered)
	}
	again := *l
	l.meet()
	if *l != again {
		t.Error("the same kubelet is taken for another one")
	}
}

func TestAStreamThatTheKubeletDroppedIsNoticed(t *testing.T) {
	withEach(t, func(t *testing.T, n *node) {
		for range 3 {
			before := len(n.kubelet.Registrations())
			n.kubelet.DropStream(wholeGPU)
			n.eventually("another registration", func(k *fakekubelet.Kubelet) bool { return len(k.Registrations()) > before })
			n.has(wholeGPU, 1, 2)
		}
	})
}

func TestAKubeletThatNeverAsksForTheListIsToldAgain(t *testing.T) {
	withEach(t, func(t *testing.T, n *node) {
		n.kubelet.Kill()
		n.kubelet.Forget(2)
		if err := n.kubelet.Start(); err != nil {
			t.Fatal(err)
		}
		n.has(wholeGPU, 1, 2)
		if n.log.count("did not ask for its devices") == 0 {
			t.Error("nobody was told of a kubelet that did not listen")
		}
	})
}

func TestARegistrationThatIsRefusedIsTriedAgain(t *testing.T) {
	withEach(t, func(t *testing.T, n *node) {
		failed := n.stats(wholeGPU).RegistrationFailures
		n.kubelet.Kill()
		n.kubelet.RefuseRegister(3)
		if err := n.kubelet.Start(); err != nil {
			t.Fatal(err)
		}
		n.has(wholeGPU, 1, 2)
		refused := 0
		for _, r := range n.kubelet.Registrations() {
			if r.Err != nil {
				refused++
			}
		}
		if refused < 3 || n.stats(wholeGPU).RegistrationFailures < failed+3 {
			t.Errorf("%d were refused and %d counted", refused, n.stats(wholeGPU).RegistrationFailures-failed)
		}
		if told := n.log.count("not yet"); told != 1 {
			t.Errorf("one reason was logged %d times", told)
		}
	})
}

func TestAKubeletThatDoesNotAnswerIsNotWaitedForForEver(t *testing.T) {
	withEach(t, func(t *testing.T, n *node) {
		n.kubelet.Kill()
		n.kubelet.Hang(true)
		if err := n.kubelet.Start(); err != nil {
			t.Fatal(err)
		}
		n.until("registrations to fail", func() bool { return n.log.count("DeadlineExceeded") > 0 })
		n.kubelet.Hang(false)
		n.has(wholeGPU, 1, 2)
	}, paced(func(p *pace) { p.answer = 50 * time.Millisecond }))
}

func TestAnotherKubeletEndsTheWaitForTheFirst(t *testing.T) {
	withEach(t, func(t *testing.T, n *node) {
		n.kubelet.Kill()
		n.kubelet.Hang(true)
		if err := n.kubelet.Start(); err != nil {
			t.Fatal(err)
		}
		n.until("the plugin to wait for an answer", func() bool { return !n.stats(wholeGPU).Registered && n.stats(wholeGPU).Socket != "" })
		// The hanging one is not killed: a second takes the socket's name.
		second := fakekubelet.New(fakekubelet.Config{Dir: n.dir})
		if err := second.Start(); err != nil {
			t.Fatal(err)
		}
		defer second.Stop()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if err := second.WaitFor(ctx, func(k *fakekubelet.Kubelet) bool { return k.Allocatable(wholeGPU) == 1 }); err != nil {
			t.Error(err)
		}
	}, paced(func(p *pace) { p.answer = time.Hour }))
}

func TestAFolderThatIsMadeAnewIsWatchedAgain(t *testing.T) {
	withEach(t, func(t *testing.T, n *node) {
		n.kubelet.Kill()
		// The plugin may make a socket in between.
		n.until("the folder to be gone", func() bool { return os.RemoveAll(n.dir) == nil })
		n.until("the plugin to miss the folder", func() bool { return strings.Contains(n.stats(wholeGPU).LastError, "no such file") })
		for range 2 {
			n.restartKubelet() // makes the folder
			n.has(wholeGPU, 1, 2)
		}
		n.until("the folder to be watched", func() bool { return n.manager.Stats().Watched })
	})
}

func TestASocketThatSomebodyRemovedIsMadeAnew(t *testing.T) {
	withEach(t, func(t *testing.T, n *node) {
		old := n.state(wholeGPU).Socket
		if err := os.Remove(old); err != nil {
			t.Fatal(err)
		}
		n.eventually("another socket", func(k *fakekubelet.Kubelet) bool {
			s, _ := k.Resource(wholeGPU)
			return s.Connected && s.Socket != old
		})
		n.has(wholeGPU, 1, 2)
	})
}

func TestAFileInTheSocketsPlaceIsNotTakenForIt(t *testing.T) {
	withEach(t, func(t *testing.T, n *node) {
		old := n.state(wholeGPU).Socket
		if err := errors.Join(os.Remove(old), os.WriteFile(old, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		n.eventually("another socket", func(k *fakekubelet.Kubelet) bool {
			s, _ := k.Resource(wholeGPU)
			return s.Connected && s.Socket != old
		})
		if _, err := os.Stat(old); err != nil {
			t.Errorf("somebody else's file is gone: %v", err)
		}
	})
}

func TestAListenerThatDiesIsBack(t *testing.T) {
	inv := gpus(1)
	h := lonelyHost(t)
	e := newEndpoint(wholeGPU, h, newTally(wholeGPU), discard(), newList(seatsOf(gpuID(0), 1), nil, nil), NewAllocator(inv, plain(), Resource{}, Names{}))
	l := &life{endpoint: e}
	defer l.end(t.Context())
	for range 3 {
		l.step(t.Context())
		socket := l.server.socket
		l.server.grpc.Stop()
		<-l.died()
		l.step(t.Context())
		if l.server == nil || l.server.socket == socket || !l.server.alive() {
			t.Fatal("a server that died is not replaced")
		}
	}
}

func TestWithoutAKubeletSocketItServesAndDoesNotRegister(t *testing.T) {
	inv := gpus(1)
	n := newNode(t, NodeState{Inventory: inv, Settings: plain()}, func(_ *fakekubelet.Config, m *ManagerConfig, _ *pace) { m.KubeletSocket = "" })
	n.until("a socket to be there", func() bool { return n.stats(wholeGPU).Socket != "" })
	stream, err := n.plugin(wholeGPU).ListAndWatch(t.Context(), &pluginapi.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	if list, err := stream.Recv(); err != nil || len(list.GetDevices()) != 1 {
		t.Errorf("whoever asks gets %v, %v", list, err)
	}
	if len(n.kubelet.Registrations()) != 0 {
		t.Error("it registered where it was told not to")
	}
}

func TestEveryStreamHasTheNewestList(t *testing.T) {
	inv := gpus(2)
	state := NodeState{Inventory: inv, Settings: plain(), Report: verdicts(inv)}
	n := newNode(t, state)
	n.has(wholeGPU, 2, 2)
	plugin := n.plugin(wholeGPU)
	var streams []pluginapi.DevicePlugin_ListAndWatchClient
	for range 3 {
		stream, err := plugin.ListAndWatch(t.Context(), &pluginapi.Empty{})
		if err != nil {
			t.Fatal(err)
		}
		if list, err := stream.Recv(); err != nil || len(list.GetDevices()) != 2 {
			t.Fatalf("the first list is %v, %v", list, err)
		}
		streams = append(streams, stream)
	}
	state.Report = verdicts(inv, gpuID(0))
	n.manager.Set(state)
	for i, stream := range streams {
		if list, err := stream.Recv(); err != nil || list.GetDevices()[0].GetHealth() != pluginapi.Unhealthy {
			t.Errorf("stream %d has %v, %v", i, list, err)
		}
	}
	n.stop()
	for i, stream := range streams {
		if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
			t.Errorf("stream %d ended with %v, want the good end of a stream", i, err)
		}
	}
}

func TestManyContainersGetAnAnswerEach(t *testing.T) {
	inv := gpus(3)
	s := plain()
	s.PassDeviceSpecs = true
	s.ListStrategies = []ListStrategy{ListVolumeMounts}
	n := newNode(t, NodeState{Inventory: inv, Settings: s})
	n.has(wholeGPU, 3, 3)
	plugin := n.plugin(wholeGPU)
	answer, err := plugin.Allocate(t.Context(), &pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{
		{DevicesIds: []string{string(gpuID(2))}}, {DevicesIds: []string{string(gpuID(0)), string(gpuID(1))}},
	}})
	if err != nil || len(answer.GetContainerResponses()) != 2 {
		t.Fatalf("two containers got %v, %v", answer, err)
	}
	for i, count := range []int{1, 2} {
		c := answer.GetContainerResponses()[i]
		if len(c.GetDevices()) != count || len(c.GetMounts()) != count || c.GetDevices()[0].GetPermissions() == "" {
			t.Errorf("container %d with %d GPUs got %v", i, count, c)
		}
	}
	if _, err := plugin.Allocate(t.Context(), &pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{
		{DevicesIds: []string{string(gpuID(2))}}, {DevicesIds: []string{"GPU-of-another-node"}},
	}}); err == nil || !strings.Contains(err.Error(), "GPU-of-another-node") {
		t.Errorf("a device that nobody knows: %v", err)
	}
	if got := n.stats(wholeGPU).AllocateErrors[ReasonUnknownID]; got != 1 {
		t.Errorf("it is counted %d times", got)
	}
	wish, err := plugin.GetPreferredAllocation(t.Context(), &pluginapi.PreferredAllocationRequest{ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{
		{AvailableDeviceIDs: []string{string(gpuID(1)), string(gpuID(0))}, AllocationSize: 1}, {},
	}})
	if err != nil || len(wish.GetContainerResponses()) != 2 || len(wish.GetContainerResponses()[0].GetDeviceIDs()) != 1 {
		t.Errorf("two wishes were answered with %v, %v", wish, err)
	}
	if _, err := plugin.PreStartContainer(t.Context(), &pluginapi.PreStartContainerRequest{}); err != nil {
		t.Errorf("nothing is to be done before a start: %v", err)
	}
}
