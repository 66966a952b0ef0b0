// SPDX-License-Identifier: Apache-2.0

package dcgmsim_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gpumeter/gpumeter/tests/dcgmsim"
)

func TestNothingWorksBeforeInit(t *testing.T) {
	m := newMachine(t, buildProbe(t), "gpus 1 h100")
	m.returns("start", -10)
	m.returns("devices", -10)
	m.returns("meta 150", -1)
	m.must("init")
	m.must("init")
	m.returns("devices", -1)
	m.finds("meta 150", "150 i gpu_temp scope 1 level 1")
}

func TestTheEmbeddedEngineStopsForGood(t *testing.T) {
	m := newMachine(t, buildProbe(t), "gpus 1 h100")
	m.must("init")
	m.finds("start 1", "7fffffff")
	m.finds("start 2", "7fffffff")
	m.watched("1:0", "150")
	m.must("stop")
	m.must("stop")
	m.returns("latest", -10)
	if got := m.state(); got != (dcgmsim.State{}) {
		t.Errorf("after the stop the engine holds %+v", got)
	}
}

func TestAVersionKnowsOnlyItsOwnLayouts(t *testing.T) {
	probe := buildProbe(t)
	old := newMachine(t, probe, "version 4.2.3\ngpus 1 h100")
	old.must("init")
	old.returns("start 3", -12)
	old.must("start 2")
	old.returns("links 5", -12)
	if got := old.must("version")[0]; !strings.HasPrefix(got, "version:4.2.3;") {
		t.Errorf("version %q, want 4.2.3", got)
	}
	m := newEngine(t, probe, "gpus 1 h100")
	m.must("start 3")
	for _, line := range m.must("wrong") {
		if !strings.HasSuffix(line, " -12") {
			t.Errorf("a version word of nothing: %s, want -12", line)
		}
	}
}

func TestARemoteEngineAnswersOnlyWhereItListens(t *testing.T) {
	m := newMachine(t, buildProbe(t), "engine remote node:5555\ngpus 1 h100")
	m.must("init")
	m.returns("start", -7)
	if got := m.returns("connect elsewhere:5555", -21); !slices.Equal(got, []string{"wrote a handle"}) {
		t.Errorf("a failed connect %v, want garbage in the handle", got)
	}
	m.returns("devices", -21)
	m.returns("connect3 http://node:5555", -1)
	m.must("connect3 tcp://node:5555")
	m.must("connect node:5555")
	m.finds("devices", "0 ")
}

func TestWatchesEndWithTheirConnection(t *testing.T) {
	m := newMachine(t, buildProbe(t), "gpus 1 h100")
	m.must("init")
	m.must("connect node")
	m.watched("1:0", "150")
	m.must("disconnect")
	m.returns("disconnect", -21)
	if got := m.state(); got != (dcgmsim.State{}) {
		t.Errorf("after the disconnect the engine holds %+v", got)
	}
	m.must("connect node persist")
	m.watched("1:0", "150")
	m.must("disconnect")
	if got, want := m.state(), (dcgmsim.State{Groups: 1, FieldGroups: 1, Watches: 1}); got != want {
		t.Errorf("after the end of a connection that persists the engine holds %+v, want %+v", got, want)
	}
}

func TestADeadEngineAnswersNothing(t *testing.T) {
	m := newMachine(t, buildProbe(t), "gpus 1 h100")
	m.must("init")
	m.must("connect node persist")
	m.watched("1:0", "150")
	m.change("down")
	m.returns("latest", -21)
	m.returns("connect node", -21)
	if got := m.state(); got.Groups != 0 || got.Watches != 0 {
		t.Errorf("a dead engine holds %+v", got)
	}
	m.change("up")
	m.returns("latest", -21)
	m.must("connect node")
	m.finds("devices", "0 ")
	m.change("drop")
	m.returns("devices", -21)
	m.must("connect node")
}

func TestAHungGPUBlocksOnlyWhatTouchesIt(t *testing.T) {
	m := newEngine(t, buildProbe(t), "gpus 2 h100")
	m.watched("1:1", "150")
	m.change("hang 0")
	m.must("devices")
	m.must("latest")
	m.must("& attributes 0")
	if err := m.Wait(patience, func(s dcgmsim.State) bool { return s.Blocked == 1 }); err != nil {
		t.Fatal(err)
	}
	m.must("latest")
	m.change("unhang 0")
	m.must("join")
}

func TestACallCanHangByName(t *testing.T) {
	m := newEngine(t, buildProbe(t), "gpus 1 h100")
	m.change("hang call dcgmGetAllDevices")
	m.must("& devices")
	if err := m.Wait(patience, func(s dcgmsim.State) bool { return s.Blocked == 1 }); err != nil {
		t.Fatal(err)
	}
	m.must("supported")
	m.change("unhang all")
	m.finds("join", "0 ")
	m.change("hang all")
	m.must("& supported")
	if err := m.Wait(patience, func(s dcgmsim.State) bool { return s.Blocked == 1 }); err != nil {
		t.Fatal(err)
	}
	m.change("unhang all")
	m.finds("join", "0 ")
}

func TestADeadEngineEndsAHungCall(t *testing.T) {
	m := newMachine(t, buildProbe(t), "gpus 1 h100\nhang 0")
	m.must("init")
	m.must("connect node")
	m.must("& attributes 0")
	if err := m.Wait(patience, func(s dcgmsim.State) bool { return s.Blocked == 1 }); err != nil {
		t.Fatal(err)
	}
	m.change("down")
	m.returns("join", -21)
}

func TestACallFailsAsOftenAsTold(t *testing.T) {
	m := newEngine(t, buildProbe(t), "gpus 1 h100\nfail dcgmGetAllDevices -3 2")
	m.returns("devices", -3)
	m.returns("devices", -3)
	m.must("devices")
	m.change("fail dcgmGetAllDevices -8")
	m.returns("devices", -8)
	m.change("fail dcgmGetAllDevices 0")
	m.must("devices")
}

func TestGroupsHaveLimits(t *testing.T) {
	m := newEngine(t, buildProbe(t), "gpus 1 h100")
	for id := 2; id < 64; id++ {
		m.finds("group 1:0", fmt.Sprint(id))
	}
	m.returns("group 1:0", -24)
	m.must("destroy")
	m.returns("destroy", -5)
	m.must("group 1:0")
	for i := range 61 {
		m.must(fmt.Sprintf("fields 150 name%d", i))
	}
	m.returns("fields 150 more", -24)
	m.must("destroyfields")
	m.returns("destroyfields", -14)
	m.returns("fields 150 name1", -26)
	m.returns("fields 1999 unknown", -1)
	m.returns("fields 150"+strings.Repeat(",150", 127)+" many", -1)
	m.must("fields 150" + strings.Repeat(",150", 126) + " most")
	m.change("maxgroups 3")
	m.returns("group 1:0", -24)
}

func TestAGroupTakesAnEntityOnce(t *testing.T) {
	m := newEngine(t, buildProbe(t), "gpus 1 h100")
	m.returns("group 1:0,1:0", -1)
	m.returns("group 1:1", -1)
	m.returns("group 4:0", -1)
	m.must(fmt.Sprintf("group 6:%d", 1|3<<8))
	m.returns(fmt.Sprintf("group 6:%d", 1|18<<8), -1)
}

func TestAGPUThatIsLostStaysListed(t *testing.T) {
	m := newEngine(t, buildProbe(t), "gpus 2 h100")
	m.watched("1:0", "150,54")
	m.change("lost 0")
	m.finds("devices", "0 1 ")
	m.finds("supported", "1 ")
	m.finds("number dcgmGetGpuStatus 0", "4")
	m.finds("latest", "1:0 150 i -18 0 "+blankInt, "1:0 54 s -18 0 <<<NULL>>>")
	m.change("lost 0 blank")
	m.finds("latest", "1:0 150 i 0 0 "+blankInt, "1:0 54 s 0 0 <<<NULL>>>")
	m.change("back 0")
	m.finds("number dcgmGetGpuStatus 0", "1")
	if v := m.values("latest")[0]; v.status != 0 || v.ts == 0 {
		t.Errorf("a GPU that came back has %+v, want a value", v)
	}
}

func TestAGPUThatIsDetachedTakesItsWatchesAlong(t *testing.T) {
	m := newEngine(t, buildProbe(t), "gpus 2 h100")
	m.watched("1:0,1:1", "150,6")
	m.change("detach 0")
	m.finds("devices", "0 1 ")
	m.finds("supported", "1 ")
	m.finds("number dcgmGetGpuStatus 0", "7")
	values := m.values("latest")
	if values[0].status != -16 || values[2].status != 0 || values[1].text != "2" {
		t.Errorf("values %+v, want only GPU 1 watched, and the event 2", values)
	}
	m.returns("watch 1000000 0 0", -67)
	m.change("attach 0")
	m.must("watch 1000000 0 0")
	m.must("detach")
	m.finds("supported", "")
	m.must("attach")
	m.finds("supported", "0 1 ")
}

func TestAGPUThatIsNotThereHasBlankAttributes(t *testing.T) {
	m := newEngine(t, buildProbe(t), "gpu 0 h100 uuid GPU-a pci 00000000:01:00.0 model \"A B\" fb 1000\nmig 0 on")
	m.finds("attributes 0", "GPU-a A B 00000000:01:00.0 580.95.05 mig 1 fb 1000")
	m.finds("attributes 9", "<<<NULL>>> <<<NULL>>> <<<NULL>>> <<<NULL>>> mig 2147483632 fb 2147483632")
}

func TestTheHierarchyIsOrderedByProfile(t *testing.T) {
	m := newEngine(t, buildProbe(t), "gpus 2 h100\nmig 1 on\n"+
		"gi 1 profile 3g.40gb nvml 1 ci\ngi 1 profile 1g.10gb nvml 8\nci 1 gi 8 slices 1\ngi 1 profile 1g.10gb nvml 7 ci")
	m.finds("hierarchy",
		"4:7 in 1:1 gpu 1 gi 7 ci -1 profile 19 slices 1", "5:7 in 4:7 gpu 1 gi 7 ci 0 profile 0 slices 1",
		"4:8 in 1:1 gpu 1 gi 8 ci -1 profile 19 slices 1", "5:8 in 4:8 gpu 1 gi 8 ci 0 profile 0 slices 1",
		"4:9 in 1:1 gpu 1 gi 1 ci -1 profile 9 slices 3", "5:9 in 4:9 gpu 1 gi 1 ci 0 profile 2 slices 3")
	m.finds("list 4 8", "3: 7 8 9")
	m.change("gi 1 remove 8")
	m.finds("list 5 8", "2: 7 8")
}

func TestAListTooShortSaysHowLong(t *testing.T) {
	m := newEngine(t, buildProbe(t), "gpus 3 h100\nswitch 0 ports 4")
	if got := m.returns("list 1 2", -31); !slices.Equal(got, []string{"3:"}) {
		t.Errorf("too short a list %v, want the count 3", got)
	}
	m.finds("list 3 12", "1: 0")
	m.returns("list 2 12", -6)
	m.returns("list 6 12", -6)
	m.returns("list 7 12", -33)
}

func TestLinksAndPeersAndCPUs(t *testing.T) {
	m := newEngine(t, buildProbe(t), "gpu 0 a100\ngpu 1 a100\ngpu 2 t4\nswitch 0 ports 2\ncpu 0 cores 72\ncpu 1 cores 8")
	m.change("link 0 3 down", "link switch:0 1 disabled", "peer 0 1 2 links 4")
	m.finds("links 4",
		"gpu 0 3 3 3 2 3 3 3 3 3 3 3 3 0 0 0 0 0 0", "gpu 1 3 3 3 3 3 3 3 3 3 3 3 3 0 0 0 0 0 0",
		"gpu 2 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0", "switch 0 3 1 0")
	if got := len(m.must("links 5")); got != 4 {
		t.Errorf("%d lines of links, want 4", got)
	}
	m.finds("peers", "0: 0 2 5", "1: 2 0 5", "2: 5 5 0")
	m.finds("topology 0 1", "1: 800 f", "2: 20 0")
	m.finds("topology 1 2", "0: 800 f", "2: 20 0")
	m.returns("topology 3 1", -1)
	m.finds("cpus", "0 ffffffffffffffff ff", "1 0 ff00")
	m.finds("number dcgmGetGpuChipArchitecture 2", "6")
}

func TestHealthTellsOnlyWhatIsWatched(t *testing.T) {
	m := newEngine(t, buildProbe(t), "gpus 2 h100")
	m.must("group 1:0")
	m.change("health 0 memory fail 81 \"uncontained error\"", "health 0 pcie warn 3 \"replays\"", "health 1 memory fail 81 \"other\"")
	m.finds("check", "overall 0")
	m.must("health 0x10")
	m.finds("check", "overall 20", "1:0 system 10 health 20 code 81 uncontained error")
	m.must("health 0xffffffff")
	if got := len(m.must("check")); got != 3 {
		t.Errorf("%d lines, want 3", got)
	}
	m.change("health 0 clear")
	m.finds("check", "overall 0")
}
