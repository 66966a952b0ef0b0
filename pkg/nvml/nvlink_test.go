// SPDX-License-Identifier: Apache-2.0

package nvml

import (
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
