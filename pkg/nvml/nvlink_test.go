// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

func TestLinksAreEntitiesWhereTheirFieldsAreAsked(t *testing.T) {
	selection, err := gpu.ParseSelection("g+i:1,3")
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		s := newMachine(modelH100()).source(t, Config{Switches: selection})
		if r := read(t, s, 155, 780); len(r.Samples) != 8 {
			t.Errorf("%d samples where no field of a link can be told", len(r.Samples))
		}
		read(t, s, 155, 1508, 1525, 1529)
		time.Sleep(time.Second)
		r := read(t, s, 155, 1508, 1525, 1529, 1530, 780)
		if len(r.Samples) != 8+8*2 {
			t.Fatalf("%d samples, want 8 GPUs and two links of each", len(r.Samples))
		}
		for i, want := range [][]string{{"scope", "1", "12", "8000", "2000", "not_supported"}, {"scope", "1", "32", "16000", "4000", "not_supported"}} {
			sample := r.Samples[8+i]
			var got []string
			for _, v := range sample.Values {
				got = append(got, show(v))
			}
			if !slices.Equal(got, want) || sample.Entity != (gpu.Entity{Kind: gpu.KindLink, GPU: r.Devices[0].UUID, ID: 1 + 2*i}) {
				t.Errorf("link %+v is %v, want %v", sample.Entity, got, want)
			}
		}
	})
}

// The states of all links cost one call a GPU, and not one a link.
func TestTheStatesOfAllLinksAreOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(modelH100())
		s := m.source(t, Config{})
		cost := func(fields ...gpu.FieldID) int {
			read(t, s, fields...)
			m.change(0, func(b *board) { clear(b.calls) })
			read(t, s, fields...)
			n := 0
			m.change(0, func(b *board) { n = b.calls["nvmlDeviceGetFieldValues"] })
			return n
		}
		m.change(0, func(b *board) {
			b.fields[nvml.FI_DEV_NVLINK_GET_STATE] = func(_ *board, link uint32) (nvml.ValueType, uint64, nvml.Return) {
				if link == 2 {
					return 0, 0, nvml.ERROR_GPU_NOT_FOUND
				}
				return nvml.VALUE_TYPE_UNSIGNED_INT, uint64(link % 2), nvml.SUCCESS
			}
		})
		var got []string
		for _, sample := range read(t, s, 1508).Samples[8:12] {
			got = append(got, show(sample.Values[0]))
		}
		if want := []string{"0", "1", "error", "1"}; !slices.Equal(got, want) {
			t.Errorf("the links are %v, want %v", got, want)
		}
		if without, with := cost(155), cost(155, 1508); with != without+1 {
			t.Errorf("%d calls for field values, and %d with the states of four links", without, with)
		}
	})
}

func TestACounterThatFellHasNoRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(modelH100())
		s := m.source(t, Config{})
		set := func(kib uint64) {
			m.change(0, func(b *board) { b.fields[nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX] = counter(kib) })
		}
		var got []string
		for _, kib := range []uint64{5000, 7000, 7000, 100, 1100} {
			set(kib)
			rate := show(valueOf(t, read(t, s, 843), 0, 843))
			if again := show(valueOf(t, read(t, s, 843), 0, 843)); again != rate {
				t.Errorf("in the same instant the rate is %s, then %s", rate, again)
			}
			got = append(got, rate)
			time.Sleep(time.Second)
		}
		if want := []string{"blank", "2", "0", "blank", "1"}; !slices.Equal(got, want) {
			t.Errorf("the rates are %v, want %v", got, want)
		}
	})
}

// GetNvLinkState and GetNvLinkRemotePciInfo are of four links: 0 and 1 go to the board beside, so that
// boards 0 and 1, 2 and 3 are pairs, 2 goes to a switch, and 3, which goes beside too, is down. The
// driver is not consistent about upper case.
func (b *board) GetNvLinkState(link int) (nvml.EnableState, nvml.Return) {
	switch ret := b.call("nvmlDeviceGetNvLinkState"); {
	case ret != nvml.SUCCESS:
		return 0, ret
	case link >= 4:
		return 0, nvml.ERROR_INVALID_ARGUMENT
	case link == 3:
		return nvml.FEATURE_DISABLED, nvml.SUCCESS
	default:
		return nvml.FEATURE_ENABLED, nvml.SUCCESS
	}
}

func (b *board) GetNvLinkRemotePciInfo(link int) (nvml.PciInfo, nvml.Return) {
	ret := b.call("nvmlDeviceGetNvLinkRemotePciInfo")
	bus := (b.bus - 1 ^ 1) + 1
	if link == 2 {
		bus = 200
	}
	var info nvml.PciInfo
	for i, c := range fmt.Sprintf("00000000:%02x:00.0", bus) {
		info.BusId[i] = int8(c)
	}
	return info, ret
}
