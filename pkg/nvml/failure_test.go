// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

func kindOf(err error) string {
	var k interface{ Kind() string }
	if errors.As(err, &k) {
		return k.Kind()
	}
	return ""
}

// uuids are those of the physical GPUs of a reading.
func uuids(r gpu.Reading) []string {
	var out []string
	for _, d := range r.Devices {
		if !d.IsMIG() {
			out = append(out, string(d.UUID))
		}
	}
	return out
}

func TestAGPUThatHangsIsAskedNothingMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(modelH100())
		mixed(m, 3)
		s := m.source(t, Config{})
		read(t, s, defaultCounters()...)
		m.hang(3)
		calls := func() (n int) {
			m.change(3, func(b *board) {
				for _, c := range b.calls {
					n += c
				}
			})
			return n
		}
		began := time.Now()
		r := read(t, s, defaultCounters()...)
		if took := time.Since(began); took != 900*time.Millisecond {
			t.Errorf("the reading took %v of its second", took)
		}
		stuck := calls()
		for i := range 20 {
			began := time.Now()
			r = read(t, s, defaultCounters()...)
			if took := time.Since(began); took > 0 {
				t.Errorf("reading %d waited %v for a GPU that is known to hang", i, took)
			}
			time.Sleep(time.Second)
		}
		if now := calls(); now != stuck {
			t.Errorf("a GPU that hangs was asked %d times more", now-stuck)
		}
		if len(r.Devices) != 12 || len(r.Samples) != 11 || len(r.Troubles) != 1 {
			t.Fatalf("%d devices, %d samples, troubles %+v", len(r.Devices), len(r.Samples), r.Troubles)
		}
		want := "has not come back for 19.9s; see dmesg"
		if got := r.Troubles[0]; got.GPU != r.Devices[3].UUID || got.Reason != gpu.ReasonTimeout || !strings.Contains(got.Text, want) {
			t.Errorf("the trouble is %+v, want %q", got, want)
		}
		for sample, fields := range map[int][]gpu.FieldID{3: {155, 230}, 4: {252}, 6: {252}} {
			for _, id := range fields {
				if v := valueOf(t, r, sample, id); v.Reason() != gpu.ReasonTimeout {
					t.Errorf("field %d of sample %d is %s", id, sample, show(v))
				}
			}
		}
		if v := valueOf(t, r, 3, gpu.FieldDriverVersion); !v.Present() {
			t.Errorf("the driver's version is %s", show(v))
		}
		m.unhang(3)
		time.Sleep(time.Second)
		if r := read(t, s, 155); len(r.Troubles) != 0 || !valueOf(t, r, 3, 155).Present() {
			t.Errorf("it is back: %+v", r.Troubles)
		}
	})
}

func TestADriverThatHangsAsAWholeCostsWhatItSaysOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(modelH100())
		s := m.source(t, Config{})
		m.mu.Lock()
		m.hung = make(chan struct{})
		m.mu.Unlock()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := s.Read(ctx, defaultCounters()); kindOf(err) != kindTimeout || !strings.Contains(err.Error(), "nvmlDeviceGetCount_v2") {
			t.Errorf("no GPU is known: %v", err)
		}
		free := func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			if m.hung != nil {
				close(m.hung)
			}
			m.hung = nil
		}
		free()
		time.Sleep(time.Second)
		read(t, s, 155)
		m.mu.Lock()
		m.hung = make(chan struct{})
		m.mu.Unlock()
		defer free()
		r := read(t, s, 155)
		if len(r.Devices) != 8 || len(r.Troubles) != 1 || r.Troubles[0].GPU != "" || r.Troubles[0].Reason != gpu.ReasonTimeout {
			t.Fatalf("%d devices, troubles %+v", len(r.Devices), r.Troubles)
		}
		if v := valueOf(t, r, 7, 155); !v.Present() {
			t.Errorf("power is %s, though only the count hangs", show(v))
		}
	})
}

func TestAGPUThatIsLostBeforeAnythingIsKnownIsTold(t *testing.T) {
	m := newMachine(modelH100())
	m.change(4, func(b *board) { b.lost = true })
	s := m.source(t, Config{})
	r := read(t, s, 155)
	if len(r.Devices) != 7 || len(r.Troubles) != 1 || r.Troubles[0].Reason != gpu.ReasonLost || !strings.Contains(r.Troubles[0].Text, "GPU 4") {
		t.Errorf("%d devices, troubles %+v", len(r.Devices), r.Troubles)
	}
	m.change(4, func(b *board) { b.lost = false })
	if r := read(t, s, 155); len(r.Devices) != 8 || len(r.Troubles) != 0 {
		t.Errorf("%d devices, troubles %+v", len(r.Devices), r.Troubles)
	}
}

func TestALostGPUKeepsItsMIGDevices(t *testing.T) {
	m := newMachine(modelH100())
	mixed(m, 0)
	s := m.source(t, Config{})
	read(t, s, 252)
	m.change(0, func(b *board) { b.lost = true })
	r := read(t, s, 252)
	for _, d := range r.Devices[:5] {
		if !d.Lost {
			t.Errorf("%+v", d)
		}
	}
	if len(r.Devices) != 12 || len(r.Samples) != 11 || valueOf(t, r, 2, 252).Reason() != gpu.ReasonLost {
		t.Errorf("%d devices, %d samples, memory %s", len(r.Devices), len(r.Samples), show(valueOf(t, r, 2, 252)))
	}
}

// A driver that was loaded anew does not know that it lost a GPU: it just cannot reach it.
func TestALostGPUIsLostUntilItIsReached(t *testing.T) {
	m := newMachine(modelH100())
	s := m.source(t, Config{})
	read(t, s, 155)
	m.change(3, func(b *board) { b.lost = true })
	read(t, s, 155)
	m.change(3, func(b *board) { b.lost, b.refused["nvmlDeviceGetHandleByIndex"] = false, nvml.ERROR_UNKNOWN })
	r := read(t, s, 155)
	if !r.Devices[3].Lost || valueOf(t, r, 3, 155).Reason() != gpu.ReasonLost || len(r.Troubles) != 1 || r.Troubles[0].Reason != gpu.ReasonLost {
		t.Errorf("%+v has %s; %+v", r.Devices[3], show(valueOf(t, r, 3, 155)), r.Troubles)
	}
	m.change(3, func(b *board) { clear(b.refused) })
	if r := read(t, s, 155); r.Devices[3].Lost || !valueOf(t, r, 3, 155).Present() || len(r.Troubles) != 0 {
		t.Errorf("it is back: %+v; %+v", r.Devices[3], r.Troubles)
	}
}

// A driver that was loaded anew lists what it has under new indices.
func TestACardThatIsTakenAwayLeavesAndALostOneStays(t *testing.T) {
	m := newMachine(modelH100())
	s := m.source(t, Config{})
	all := uuids(read(t, s, 155))
	m.change(2, func(b *board) { b.lost = true })
	read(t, s, 155)
	m.mu.Lock()
	lost := m.boards[2]
	// The lost one and the last are off the driver's list; what was behind the lost one moves up.
	m.boards = slices.Delete(slices.Clone(m.boards[:7]), 2, 3)
	m.mu.Unlock()
	for range 3 {
		r := read(t, s, 155)
		if !slices.IsSortedFunc(r.Devices, func(a, b gpu.Device) int { return a.Index - b.Index }) {
			t.Error("the cards are out of order")
		}
		got := uuids(r)
		slices.Sort(got)
		want := slices.Clone(all[:7])
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Fatalf("the cards are %v, want %v", got, want)
		}
		for i, d := range r.Devices {
			if d.Lost != (d.UUID == gpu.UUID(lost.uuid)) || d.Lost && valueOf(t, r, i, 155).Reason() != gpu.ReasonLost ||
				!d.Lost && !valueOf(t, r, i, 155).Present() {
				t.Errorf("%+v has %s", d, show(valueOf(t, r, i, 155)))
			}
		}
		if len(r.Troubles) != 1 || r.Troubles[0].Reason != gpu.ReasonLost || r.Troubles[0].GPU != gpu.UUID(lost.uuid) {
			t.Errorf("troubles %+v", r.Troubles)
		}
	}
	if sets, _ := m.leaks(); sets != 6 {
		t.Errorf("%d event sets for 6 GPUs", sets)
	}
	m.mu.Lock()
	lost.lost = false
	m.boards = slices.Insert(m.boards, 2, lost)
	m.mu.Unlock()
	if r := read(t, s, 155); !slices.Equal(uuids(r), all[:7]) || len(r.Troubles) != 0 {
		t.Errorf("it is back: %v, %+v", uuids(r), r.Troubles)
	}
}

func TestAGPUThatIsNotPermittedCostsItself(t *testing.T) {
	m := newMachine(modelH100())
	s := m.source(t, Config{})
	read(t, s, 155)
	m.change(1, func(b *board) { b.refused["nvmlDeviceGetHandleByIndex"] = nvml.ERROR_NO_PERMISSION })
	r := read(t, s, 155)
	if len(r.Devices) != 8 || r.Devices[1].Lost || valueOf(t, r, 1, 155).Reason() != gpu.ReasonNotPermitted {
		t.Errorf("%+v, %s", r.Devices[1], show(valueOf(t, r, 1, 155)))
	}
	if len(r.Troubles) != 1 || r.Troubles[0].Reason != gpu.ReasonNotPermitted || !strings.Contains(r.Troubles[0].Text, "no permission") {
		t.Errorf("%+v", r.Troubles)
	}
}

func TestAGPUThatIsLostMidwayIsAskedNothingMore(t *testing.T) {
	m := newMachine(modelH100())
	s := m.source(t, Config{})
	read(t, s, 53, 100, 155)
	before := 0
	m.change(0, func(b *board) {
		b.refused["nvmlDeviceGetClockInfo"] = nvml.ERROR_GPU_IS_LOST
		before = b.calls["nvmlDeviceGetPowerUsage"]
	})
	r := read(t, s, 53, 100, 155)
	for _, id := range []gpu.FieldID{53, 100, 155} {
		if v := valueOf(t, r, 0, id); v.Reason() != gpu.ReasonLost {
			t.Errorf("field %d is %s", id, show(v))
		}
	}
	m.change(0, func(b *board) {
		if now := b.calls["nvmlDeviceGetPowerUsage"]; now != before || !r.Devices[0].Lost {
			t.Errorf("a lost GPU was asked %d times more; it is %+v", now-before, r.Devices[0])
		}
		clear(b.refused)
	})
	r = read(t, s, 53, 100, 155)
	m.change(0, func(b *board) {
		if n := b.calls["nvmlDeviceGetSerial"]; n != 2 || !valueOf(t, r, 0, 53).Present() || r.Devices[0].Lost {
			t.Errorf("what it is was asked %d times, and not when it came back", n)
		}
	})
}

// After the driver was loaded anew a lost GPU can be where another one was.
func TestAGPUThatMovedIsWhereItIsNow(t *testing.T) {
	m := newMachine(modelH100())
	s := m.source(t, Config{})
	m.mu.Lock()
	all := m.boards
	m.boards = slices.Clone(all[:2])
	m.mu.Unlock()
	read(t, s, 155)
	m.mu.Lock()
	all[2].lost = true
	m.boards = []*board{all[0], all[2], all[1]}
	m.mu.Unlock()
	r := read(t, s, 155)
	if got := uuids(r); !slices.Equal(got, []string{all[0].uuid, all[1].uuid}) || r.Devices[1].Lost || r.Devices[1].Index != 2 || len(r.Troubles) != 1 {
		t.Errorf("the cards are %v, the second %+v; %+v", got, r.Devices[1], r.Troubles)
	}
	if v := valueOf(t, r, 1, 155); show(v) != "201.5" {
		t.Errorf("its power is %s", show(v))
	}
}

func TestTheWayToALostGPUIsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(modelH100())
		m.boards = m.boards[:3]
		s := m.source(t, Config{})
		read(t, s, gpu.FieldP2PStatus)
		synctest.Wait()
		statuses := func() (n map[gpu.PeerStatus]int) {
			n = make(map[gpu.PeerStatus]int)
			for _, p := range read(t, s, gpu.FieldP2PStatus).Peers {
				n[p.Status]++
			}
			return n
		}
		if got := statuses(); got[gpu.PeerOK] != 6 || len(got) != 1 {
			t.Errorf("the ways are %v", got)
		}
		m.change(1, func(b *board) { b.lost = true })
		if got := statuses(); got[gpu.PeerOK] != 2 || got[gpu.PeerUnknown] != 4 {
			t.Errorf("the ways are %v", got)
		}
		m.change(1, func(b *board) { b.lost = false })
		m.hang(2)
		time.Sleep(peersInterval)
		statuses()
		if got := statuses(); got[gpu.PeerOK] != 6 {
			t.Errorf("while a round hangs the last stands: %v", got)
		}
		m.unhang(2)
	})
}
