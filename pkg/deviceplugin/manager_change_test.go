// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"sync"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
)

// Whatever the operator changes, a resource that keeps its name keeps its socket and its stream, has
// something to hand out at every moment, and the next container is told by the new settings.
func TestNoSettingButANameNeedsAnotherEndpoint(t *testing.T) {
	inv := withSlices(gpus(3), 2)
	inv.ControlNodes, inv.IMEXChannels = []string{"/dev/nvidiactl"}, []int{0}
	n := newNode(t, NodeState{Inventory: inv, Settings: plain(), Report: verdicts(inv)})
	n.has(wholeGPU, 3, 3)
	n.has(sliceGPU, 2, 2)
	first := n.manager.Stats().Resources
	for _, c := range []struct {
		name   string
		change func(*Settings)
		// told says that a container is told by the new settings.
		told func(Response) bool
	}{
		{"list strategy", func(s *Settings) { s.ListStrategies = []ListStrategy{ListVolumeMounts} }, func(r Response) bool { return len(r.Mounts) == 1 }},
		{"CDI", func(s *Settings) { s.ListStrategies = []ListStrategy{ListCDICRI} }, func(r Response) bool { return len(r.CDIDevices) == 1 }},
		{"CDI annotations", func(s *Settings) {
			s.ListStrategies, s.CDIAnnotationPrefix = []ListStrategy{ListCDIAnnotations}, "x/"
		}, func(r Response) bool { return len(r.Annotations) == 1 }},
		{"ids", func(s *Settings) { s.IDStrategy = IDIndex }, func(r Response) bool { return len(r.Env["NVIDIA_VISIBLE_DEVICES"]) == 1 }},
		{"device nodes", func(s *Settings) { s.PassDeviceSpecs = true }, func(r Response) bool { return len(r.Nodes) == 2 }},
		{"dev root", func(s *Settings) { s.PassDeviceSpecs, s.DevRoot = true, "/run" }, func(r Response) bool { return len(r.Nodes) == 2 && r.Nodes[0].Host == "/run/dev/nvidiactl" }},
		{"GDS", func(s *Settings) { s.GDS = true }, func(r Response) bool { return r.Env["NVIDIA_GDS"] != "" }},
		{"GDRCopy", func(s *Settings) { s.GDRCopy = true }, func(r Response) bool { return r.Env["NVIDIA_GDRCOPY"] != "" }},
		{"MOFED", func(s *Settings) { s.MOFED = true }, func(r Response) bool { return r.Env["NVIDIA_MOFED"] != "" }},
		{"IMEX", func(s *Settings) { s.IMEXChannels = []int{0} }, func(r Response) bool { return r.Env["NVIDIA_IMEX_CHANNELS"] == "0" }},
		{"sharing by MPS", func(s *Settings) {
			s.Sharing, s.MPSRoot, s.SharedResources = SharingMPS, "/mps", []SharedResource{{Name: wholeGPU, All: true, Replicas: 2}}
		}, func(r Response) bool { return r.Env["CUDA_MPS_PIPE_DIRECTORY"] != "" }},
	} {
		s := plain()
		c.change(&s)
		n.manager.Set(NodeState{Inventory: inv, Settings: s, Revision: c.name, Report: verdicts(inv)})
		n.until(c.name+" to be in force", func() bool { return n.manager.Stats().Revision == c.name })
		plan, _ := NewPlan(inv, s)
		r, _ := plan.Resource(wholeGPU)
		n.has(wholeGPU, len(r.Seats), len(r.Seats))
		answered, err := n.kubelet.Allocate(t.Context(), "pod", wholeGPU, 1)
		n.kubelet.Free("pod")
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		want, err := NewAllocator(inv, s, r, Names{}).Allocate(answered.IDs, func(gpu.UUID) health.Status { return health.Healthy })
		if err != nil || !c.told(want) || len(answered.Response.GetEnvs()) != len(want.Env) || len(answered.Response.GetMounts()) != len(want.Mounts) ||
			len(answered.Response.GetDevices()) != len(want.Nodes) || len(answered.Response.GetCdiDevices()) != len(want.CDIDevices) || len(answered.Response.GetAnnotations()) != len(want.Annotations) {
			t.Errorf("%s: a container is told %v, want %+v (%v)", c.name, answered.Response, want, err)
		}
	}
	for i, r := range n.manager.Stats().Resources {
		if r.Registrations != 1 || r.Socket != first[i].Socket || r.Streams != 1 {
			t.Errorf("%s registered %d times, on %s and before on %s, has %d streams", r.Name, r.Registrations, r.Socket, first[i].Socket, r.Streams)
		}
	}
}

// One card is cut anew again and again while containers come and go on the others.
func TestCuttingACardAnewDisturbsNoOther(t *testing.T) {
	cuts := []Inventory{withSlices(gpus(3), 1), withSlices(gpus(3), 3), withSlices(gpus(3), 2)}
	bare := withSlices(gpus(3), 0)
	cuts = append(cuts, bare)
	n := newNode(t, NodeState{Inventory: cuts[0], Settings: plain(), Report: verdicts(cuts[0])})
	n.has(wholeGPU, 3, 3)
	stop := make(chan struct{})
	var pods sync.WaitGroup
	for _, pod := range []string{"a", "b", "c"} {
		pods.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := n.kubelet.Allocate(t.Context(), pod, wholeGPU, 1); err != nil {
					t.Errorf("pod %s: %v", pod, err)
					return
				}
				n.kubelet.Free(pod)
			}
		})
	}
	for i := range 40 {
		inv := cuts[i%len(cuts)]
		n.manager.Set(NodeState{Inventory: inv, Settings: plain(), Report: verdicts(inv)})
		if i%7 == 0 {
			time.Sleep(10 * time.Millisecond)
		}
	}
	last := cuts[1]
	n.manager.Set(NodeState{Inventory: last, Settings: plain(), Report: verdicts(last)})
	n.has(sliceGPU, 3, 3)
	close(stop)
	pods.Wait()
	for _, r := range n.manager.Stats().Resources {
		if r.Name == wholeGPU && (r.Lists != 1 || r.Registrations != 1) {
			t.Errorf("whole GPUs were told of %d times and registered %d times", r.Lists, r.Registrations)
		}
	}
}

// What is handed out follows from the settings alone: what they leave out goes, whatever was before.
func TestWhatAStrategyLeavesOutIsNotHandedOut(t *testing.T) {
	inv := withSlices(gpus(1), 3)
	inv.Devices[len(inv.Devices)-1].Profile.Name = "2g.20gb"
	n := newNode(t, NodeState{Inventory: inv, Settings: plain(), Report: verdicts(inv)})
	n.has(wholeGPU, 1, 1)
	n.has(sliceGPU, 2, 2)
	n.has("nvidia.com/mig-2g.20gb", 1, 1)
	single := plain()
	single.MIGStrategy = MIGSingle
	n.manager.Set(NodeState{Inventory: inv, Settings: single, Report: verdicts(inv)})
	n.has(wholeGPU, 2, 2)
	n.has(sliceGPU, 0, 0)
	n.has("nvidia.com/mig-2g.20gb", 0, 0)
}
