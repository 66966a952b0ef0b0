// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"testing"
	"testing/synctest"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// GetSramEccErrorStatus and GetUnrepairableMemoryFlag_v1 tell flags; that of board 2 is set, and
// the driver has more than one bit for it.
func (b *board) GetSramEccErrorStatus() (nvml.EccSramErrorStatus, nvml.Return) {
	s := nvml.EccSramErrorStatus{AggregateUncParity: 7}
	if b.minor == 2 {
		s.BThresholdExceeded = 2
	}
	return told(b, "nvmlDeviceGetSramEccErrorStatus", s)
}

func (b *board) GetUnrepairableMemoryFlag_v1() (nvml.UnrepairableMemoryStatus_v1, nvml.Return) {
	var s nvml.UnrepairableMemoryStatus_v1
	if b.minor == 2 {
		s.BUnrepairableMemory = 1
	}
	return told(b, "nvmlDeviceGetUnrepairableMemoryFlag_v1", s)
}

// What a verdict on health goes by is a level of 0 or 1 or a count; what the driver does not say is
// absent, with its reason, and never 0.
func TestLevelsOfHealthAreFlagsOrAbsent(t *testing.T) {
	fields := []gpu.FieldID{311, 312, 346, 390, 391, 392, 395, 396, 1507, 1523, 112, 250, 63}
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(modelH100())
		m.change(0, func(b *board) {
			for _, id := range []uint32{
				nvml.FI_DEV_REMAPPED_COR, nvml.FI_DEV_REMAPPED_UNC, nvml.FI_DEV_REMAPPED_PENDING, nvml.FI_DEV_REMAPPED_FAILURE,
				nvml.FI_DEV_RETIRED_DBE, nvml.FI_DEV_RETIRED_PENDING, nvml.FI_DEV_GET_GPU_RECOVERY_ACTION,
			} {
				delete(b.fields, id)
			}
			for _, function := range []string{"nvmlDeviceGetRetiredPages", "nvmlDeviceGetSramEccErrorStatus", "nvmlDeviceGetUnrepairableMemoryFlag_v1"} {
				b.refused[function] = nvml.ERROR_NOT_SUPPORTED
			}
		})
		m.change(1, func(b *board) {
			b.fields[nvml.FI_DEV_RETIRED_PENDING], b.fields[nvml.FI_DEV_REMAPPED_PENDING], b.action = counter(1), counter(1), 2
		})
		m.boards[3].partition(seat{rank: nvml.GPU_INSTANCE_PROFILE_3_SLICE})
		m.change(3, func(b *board) {
			delete(b.fields, nvml.FI_DEV_REMAPPED_PENDING)
			delete(b.fields, nvml.FI_DEV_REMAPPED_FAILURE)
		})
		r := read(t, m.source(t, Config{}), fields...)
		const no = "not_supported"
		for _, tc := range []struct {
			about string
			card  int
			want  []string
		}{
			{"an older driver", 0, []string{"32", "33", no, no, no, no, no, no, no, no, "4", "81559", "589824"}},
			{"one in need of a reboot", 1, []string{"32", "33", "0", "21", "22", "1", "1", "1", "0", "2", "4", "81559", "589824"}},
			{"one with broken memory", 2, []string{"32", "33", "1", "21", "22", "0", "1", "0", "1", "0", "4", "81559", "589824"}},
			{"one in MIG mode", 3, []string{"32", "33", "0", "21", "22", "0", no, no, "0", "0", "4", "scope", "589824"}},
		} {
			for i, id := range fields {
				if got := show(valueOf(t, r, tc.card, id)); got != tc.want[i] {
					t.Errorf("%s: field %d is %s, want %s", tc.about, id, got, tc.want[i])
				}
			}
		}
	})
}

// Links are counted where they lead straight from GPU to GPU, are up, and the driver tells.
func TestDirectNVLinksAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(modelH100())
		m.boards = m.boards[:4]
		m.boards[2].bus, m.boards[3].bus = 0x1b, 0x1c
		m.change(3, func(b *board) { b.refused["nvmlDeviceGetNvLinkRemotePciInfo"] = nvml.ERROR_NO_PERMISSION })
		s := m.source(t, Config{})
		read(t, s, gpu.FieldP2PStatus)
		synctest.Wait()
		r := read(t, s, gpu.FieldP2PStatus)
		at := map[gpu.UUID]int{}
		for i, d := range r.Devices {
			at[d.UUID] = i
		}
		want := map[[2]int]int{{0, 1}: 2, {1, 0}: 2, {2, 3}: 2}
		if len(r.Peers) != 12 {
			t.Fatalf("%d ways, want 12", len(r.Peers))
		}
		for _, p := range r.Peers {
			pair := [2]int{at[p.From], at[p.To]}
			if p.NVLinks != want[pair] || p.Status != gpu.PeerOK {
				t.Errorf("from GPU %d to GPU %d there are %d links, want %d (%+v)", pair[0], pair[1], p.NVLinks, want[pair], p)
			}
		}
	})
}

// A library that cannot tell links still tells the ways.
func TestWaysAreToldWithoutLinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(modelH100())
		m.missing["nvmlDeviceGetNvLinkState"] = true
		s := m.source(t, Config{})
		read(t, s, gpu.FieldP2PStatus)
		synctest.Wait()
		for _, p := range read(t, s, gpu.FieldP2PStatus).Peers {
			if p.Status != gpu.PeerOK || p.NVLinks != 0 {
				t.Fatalf("a way is %+v", p)
			}
		}
		if n := m.boards[0].calls["nvmlDeviceGetNvLinkState"]; n != 0 {
			t.Errorf("a function that is missing was called %d times", n)
		}
	})
}
