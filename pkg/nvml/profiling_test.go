// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"pgregory.net/rapid"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

func TestProfilingIsPerGPUInstance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(modelH200())
		mixed(m, 0)
		s := m.source(t, Config{})
		r := read(t, s, 1001, 1009)
		for sample := range 5 {
			want := gpu.ReasonBlank
			if sample == 0 {
				want = gpu.ReasonScope
			}
			if v := valueOf(t, r, sample, 1001); v.Reason() != want {
				t.Errorf("at first sample %d is %s", sample, show(v))
			}
		}
		time.Sleep(time.Second)
		r = read(t, s, 1001, 1009)
		// The pretend instances differ by their ids: 2, 4 and 7.
		for sample, want := range []string{"scope", "0.3", "0.18", "0.1125", "0.9"} {
			if got := show(valueOf(t, r, sample, 1001)); got != want {
				t.Errorf("engine activity of sample %d is %s, want %s", sample, got, want)
			}
		}
		for sample, want := range []string{"1572864", "scope", "scope", "scope", "1572864"} {
			if got := show(valueOf(t, r, sample, 1009)); got != want {
				t.Errorf("PCIe of sample %d is %s, want %s", sample, got, want)
			}
		}
		mixed(m, 0)
		m.change(0, func(b *board) { b.partition(seat{rank: nvml.GPU_INSTANCE_PROFILE_3_SLICE, start: 0}) })
		if v := valueOf(t, read(t, s, 1001), 1, 1001); v.Reason() != gpu.ReasonBlank {
			t.Errorf("a new instance has %s", show(v))
		}
	})
}

func TestReadingsTooCloseRepeatTheirProfile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(modelH100())
		s := m.source(t, Config{})
		read(t, s, 1002)
		time.Sleep(time.Second)
		read(t, s, 1002)
		m.change(0, func(b *board) { b.gpm[nvml.GPM_METRIC_SM_UTIL] = 10 })
		time.Sleep(gpmClosest / 2)
		if v := valueOf(t, read(t, s, 1002), 0, 1002); show(v) != "0.8" {
			t.Errorf("50 ms later it is %s", show(v))
		}
		time.Sleep(gpmClosest)
		if v := valueOf(t, read(t, s, 1002), 0, 1002); show(v) != "0.1" {
			t.Errorf("150 ms later it is %s", show(v))
		}
	})
}

// An average since somebody last asked, hours ago, would be nobody's.
func TestAProfileIsNotOfATimeInWhichNobodyAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newMachine(modelH100()).source(t, Config{})
		read(t, s, 1002)
		time.Sleep(time.Second)
		read(t, s, 155)
		time.Sleep(time.Hour)
		if v := valueOf(t, read(t, s, 1002), 0, 1002); v.Reason() != gpu.ReasonBlank {
			t.Errorf("after an hour it is %s", show(v))
		}
	})
}

func TestWithoutTheMonitorThereIsAReason(t *testing.T) {
	for name, c := range map[string]struct {
		act  func(*board)
		want gpu.Reason
	}{
		"the GPU has none":               {func(b *board) { b.of.gpm = false }, gpu.ReasonNotSupported},
		"asking is not permitted":        {func(b *board) { b.refused["nvmlGpmQueryDeviceSupport"] = nvml.ERROR_NO_PERMISSION }, gpu.ReasonNotPermitted},
		"sampling is not permitted":      {func(b *board) { b.refused["nvmlGpmSampleGet"] = nvml.ERROR_NO_PERMISSION }, gpu.ReasonNotPermitted},
		"sampling fails for a while":     {func(b *board) { b.refused["nvmlGpmSampleGet"] = nvml.ERROR_UNKNOWN }, gpu.ReasonError},
		"the monitor is not ready so on": {func(b *board) { b.refused["nvmlGpmSampleGet"] = nvml.ERROR_NOT_READY }, gpu.ReasonBlank},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := newMachine(modelH100())
			s := m.source(t, Config{})
			m.change(0, c.act)
			for range 2 {
				r := read(t, s, 1004, 155)
				if v := valueOf(t, r, 0, 1004); v.Reason() != c.want || !valueOf(t, r, 0, 155).Present() {
					t.Errorf("%s: %s", name, show(v))
				}
				time.Sleep(time.Second)
			}
			m.change(0, func(b *board) { clear(b.refused) })
			read(t, s, 1004)
			time.Sleep(time.Second)
			if v := valueOf(t, read(t, s, 1004), 0, 1004); v.Present() != (c.want != gpu.ReasonNotSupported) {
				t.Errorf("%s, and is not any more: %s", name, show(v))
			}
		})
	}
}

func TestAProfileIsNotOfATimeInWhichNothingWasHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(modelH100())
		s := m.source(t, Config{})
		var got []string
		for _, ret := range []nvml.Return{0, 0, nvml.ERROR_UNKNOWN, 0, 0} {
			m.change(0, func(b *board) { b.refused["nvmlGpmSampleGet"] = ret })
			got = append(got, show(valueOf(t, read(t, s, 1002), 0, 1002)))
			time.Sleep(time.Second)
		}
		if want := []string{"blank", "0.8", "error", "blank", "0.8"}; !slices.Equal(got, want) {
			t.Errorf("it is %v, want %v", got, want)
		}
	})
}

func TestAMetricThatTheDriverDoesNotKnowCostsItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(modelH100())
		for i := range m.boards {
			m.change(i, func(b *board) { b.strictGPM = true })
		}
		s := m.source(t, Config{})
		for range 3 {
			read(t, s, 1001, 1002, 1084, 1011)
			time.Sleep(time.Second)
		}
		m.requests = 0
		r := read(t, s, 1001, 1002, 1084, 1011)
		if m.requests != 8 {
			t.Errorf("%d requests for 8 GPUs: what was refused is asked for again", m.requests)
		}
		for id, want := range map[gpu.FieldID]string{1001: "0.9", 1002: "0.8", 1084: "not_supported", 1011: "not_supported"} {
			if got := show(valueOf(t, r, 0, id)); got != want {
				t.Errorf("field %d is %s, want %s", id, got, want)
			}
		}
	})
}

// Samples that the driver does not take, as of an instance that was made anew, are no reason to
// give a metric up.
func TestARefusalOfAllMetricsIsNotForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(modelH100())
		s := m.source(t, Config{})
		var got []string
		for _, refuses := range []bool{false, true, true, false} {
			m.refusesMetrics = refuses
			got = append(got, show(valueOf(t, read(t, s, 1001, 1002), 0, 1002)))
			time.Sleep(time.Second)
		}
		if want := []string{"blank", "not_supported", "not_supported", "0.8"}; !slices.Equal(got, want) {
			t.Errorf("it is %v, want %v", got, want)
		}
	})
}

func TestARatioIsAShareOrNothing(t *testing.T) {
	if v := ratio(math.NaN()); v.Reason() != gpu.ReasonBlank {
		t.Errorf("a ratio of NaN is %s", show(v))
	}
	rapid.Check(t, func(t *rapid.T) {
		percent := rapid.Float64().Draw(t, "percent")
		v := ratio(percent)
		share, ok := v.AsFloat()
		if ok != (percent >= 0 && percent <= 102) {
			t.Fatalf("%v %% is %s", percent, show(v))
		}
		if ok && (share < 0 || share > 1 || percent <= 100 && share != percent/100) {
			t.Fatalf("%v %% is a share of %v", percent, share)
		}
	})
}

// The driver uses the ids of GPU instances again. What the counters of another one say does not
// belong to this one.
func TestTheNextInstanceUnderAnIDHasAProfileOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(modelH100())
		m.change(0, func(b *board) {
			b.sameUUIDs = true
			b.partition(seat{rank: nvml.GPU_INSTANCE_PROFILE_1_SLICE_REV2, start: 2})
		})
		s := m.source(t, Config{})
		read(t, s, 1002)
		time.Sleep(time.Second)
		if v := valueOf(t, read(t, s, 1002), 1, 1002); !v.Present() {
			t.Errorf("it is %s", show(v))
		}
		m.change(0, func(b *board) { b.partition(seat{rank: nvml.GPU_INSTANCE_PROFILE_2_SLICE, start: 2}) })
		time.Sleep(time.Second)
		if v := valueOf(t, read(t, s, 1002), 1, 1002); v.Reason() != gpu.ReasonBlank {
			t.Errorf("across two instances it is %s", show(v))
		}
		time.Sleep(time.Second)
		if v := valueOf(t, read(t, s, 1002), 1, 1002); !v.Present() {
			t.Errorf("the next is %s", show(v))
		}
		if _, samples := m.leaks(); samples != 2*8 {
			t.Errorf("%d samples", samples)
		}
	})
}

func TestAProfileIsNotOfAPauseBetweenReadings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newMachine(modelH100()).source(t, Config{})
		var got []string
		for _, pause := range []time.Duration{0, gpmFarthest, gpmFarthest + time.Second, time.Second} {
			time.Sleep(pause)
			got = append(got, show(valueOf(t, read(t, s, 1002), 0, 1002)))
		}
		if want := []string{"blank", "0.8", "blank", "0.8"}; !slices.Equal(got, want) {
			t.Errorf("it is %v, want %v", got, want)
		}
	})
}
