// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"slices"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"pgregory.net/rapid"
)

var noon = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

// watch is a node whose plugin advertises one list after the other.
type watch struct {
	t     *testing.T
	ix    *Index
	now   time.Time
	seats Seats
}

func newWatch(t *testing.T, devices ...gpu.Device) *watch {
	return &watch{t: t, ix: NewIndex(devices), now: noon}
}

func (w *watch) after(d time.Duration, advertised []Advertised, device gpu.UUID, want int) {
	w.t.Helper()
	w.now = w.now.Add(d)
	w.seats = w.seats.Observe(w.now, w.ix, advertised)
	if got := w.seats.Of(device); got != want {
		w.t.Errorf("at +%s: %d replicas of %s remembered, want %d", w.now.Sub(noon), got, device, want)
	}
}

func TestAStoppedPluginIsNotForgotten(t *testing.T) {
	w := newWatch(t, plain("GPU-a", 0))
	four := replicas("nvidia.com/gpu", "GPU-a", 4)
	w.after(0, nil, "GPU-a", 0)
	w.after(0, four, "GPU-a", 4)
	w.after(24*time.Hour, nil, "GPU-a", 4)
	w.after(24*time.Hour, four, "GPU-a", 4)
}

func TestAnUnhealthyReplicaRaisesNobodysShare(t *testing.T) {
	w := newWatch(t, plain("GPU-a", 0))
	four := replicas("nvidia.com/gpu", "GPU-a", 4)
	w.after(0, four, "GPU-a", 4)
	// One in the middle: the rest is no complete set, ever.
	w.after(time.Second, slices.Delete(slices.Clone(four), 1, 2), "GPU-a", 4)
	w.after(time.Hour, slices.Delete(slices.Clone(four), 1, 2), "GPU-a", 4)
	w.after(time.Hour, four[1:], "GPU-a", 4)
	w.after(time.Hour, four[1:], "GPU-a", 4)
	// The last one, for less than the hold, twice.
	for range 2 {
		w.after(time.Second, four[:3], "GPU-a", 4)
		w.after(SeatsHold-time.Second, four[:3], "GPU-a", 4)
		w.after(time.Second, four, "GPU-a", 4)
	}
}

// A meter that begins while a replica is unhealthy has never seen it: its number is missing between those that are there.
func TestAGapSeenFirstIsASeat(t *testing.T) {
	four := replicas("nvidia.com/gpu", "GPU-a", 4)
	w := newWatch(t, plain("GPU-a", 0))
	w.after(0, []Advertised{four[0], four[1], four[3]}, "GPU-a", 4)
	w.after(time.Hour, []Advertised{four[3]}, "GPU-a", 4)
	w.after(time.Second, four, "GPU-a", 4)
	// Numbers that are no count of anything are not taken for one.
	odd := newWatch(t, plain("GPU-a", 0))
	odd.after(0, []Advertised{{DeviceID: "GPU-a::7001"}, {DeviceID: "GPU-a::9"}}, "GPU-a", 2)
}

func TestReplicasOnRecordCountWhileThePluginIsAway(t *testing.T) {
	ix := NewIndex([]gpu.Device{plain("GPU-a", 0), plain("GPU-b", 1), plain("GPU-c", 2)})
	record := slices.Concat(replicas("nvidia.com/gpu", "GPU-a", 4), replicas("nvidia.com/gpu", "GPU-b", 4), replicas("nvidia.com/gpu", "GPU-c", 4),
		[]Advertised{{DeviceID: "GPU-gone::0"}, {DeviceID: "?"}})
	whole := []Advertised{{Resource: "nvidia.com/gpu", DeviceID: "GPU-c"}}
	known := Seats{}.Observe(noon, ix, slices.Concat(replicas("nvidia.com/gpu", "GPU-b", 2), whole))
	got := known.Recall(ix, whole, record)
	for device, want := range map[gpu.UUID]int{"GPU-a": 4, "GPU-b": 2, "GPU-c": 0, "GPU-gone": 0} {
		if n := got.Of(device); n != want {
			t.Errorf("%s: %d replicas, want %d", device, n, want)
		}
	}
	if known.Of("GPU-a") != 0 {
		t.Error("the Seats it was made from were modified")
	}
	// The plugin comes back with a new configuration, which is another complete set.
	back := slices.Concat(replicas("nvidia.com/gpu", "GPU-a", 3), whole)
	got = got.Observe(noon, ix, back).Observe(noon.Add(SeatsHold), ix, back)
	if n := got.Of("GPU-a"); n != 3 {
		t.Errorf("%d replicas after the plugin came back with three", n)
	}
}

// NVIDIA's plugin marks the last replica of a GPU that had a critical XID, and never takes it back.
func TestALastReplicaThatStaysUnhealthyRaisesNobodysShare(t *testing.T) {
	w := newWatch(t, plain("GPU-a", 0), plain("GPU-b", 1))
	four := replicas("nvidia.com/gpu", "GPU-a", 4)
	other := replicas("nvidia.com/gpu", "GPU-b", 4)
	w.after(0, slices.Concat(four, other), "GPU-a", 4)
	for range 5 {
		w.after(SeatsHold, slices.Concat(four[:3], other), "GPU-a", 4)
	}
	alone := newWatch(t, plain("GPU-a", 0))
	alone.after(0, four, "GPU-a", 4)
	for range 5 {
		alone.after(SeatsHold, four[:3], "GPU-a", 4)
	}
}

func TestOneReplicaLessCountsWhereItIsANewConfiguration(t *testing.T) {
	four := replicas("nvidia.com/gpu", "GPU-a", 4)
	restarted := newWatch(t, plain("GPU-a", 0))
	restarted.after(0, four, "GPU-a", 4)
	restarted.after(time.Second, nil, "GPU-a", 4)
	restarted.after(time.Second, four[:3], "GPU-a", 4)
	restarted.after(SeatsHold, four[:3], "GPU-a", 3)

	// A restart between two observations is not seen, but every GPU has one less.
	unseen := newWatch(t, plain("GPU-a", 0), plain("GPU-b", 1), plain("GPU-c", 2))
	other := replicas("nvidia.com/gpu", "GPU-b", 4)
	third := replicas("nvidia.com/gpu", "GPU-c", 2)
	unseen.after(0, slices.Concat(four, other, third), "GPU-a", 4)
	unseen.after(time.Second, slices.Concat(four[:3], other[:3], third), "GPU-a", 4)
	unseen.after(SeatsHold, slices.Concat(four[:3], other[:3], third), "GPU-a", 3)
	unseen.after(0, nil, "GPU-b", 3)

	// A plugin that came back whole proves nothing about what is missing later.
	back := newWatch(t, plain("GPU-a", 0))
	back.after(0, four, "GPU-a", 4)
	back.after(time.Second, nil, "GPU-a", 4)
	back.after(time.Second, four, "GPU-a", 4)
	back.after(time.Second, four[:3], "GPU-a", 4)
	back.after(SeatsHold, four[:3], "GPU-a", 4)
}

func TestMoreReplicasCountAtOnce(t *testing.T) {
	w := newWatch(t, plain("GPU-a", 0))
	w.after(0, replicas("nvidia.com/gpu", "GPU-a", 2), "GPU-a", 2)
	w.after(time.Second, replicas("nvidia.com/gpu", "GPU-a", 50), "GPU-a", 50)
}

func TestFewerReplicasCountAfterTheHold(t *testing.T) {
	w := newWatch(t, plain("GPU-a", 0))
	eight := replicas("nvidia.com/gpu", "GPU-a", 8)
	w.after(0, eight, "GPU-a", 8)
	w.after(time.Second, eight[:4], "GPU-a", 8)
	w.after(SeatsHold-1, eight[:4], "GPU-a", 8)
	w.after(1, eight[:4], "GPU-a", 4)
	// Another smaller size begins its own time.
	w.after(time.Second, eight[:1], "GPU-a", 4)
	w.after(SeatsHold-1, eight[:2], "GPU-a", 4)
	w.after(SeatsHold-1, eight[:2], "GPU-a", 4)
	// A plugin that goes away proves nothing, and the time begins anew.
	w.after(0, nil, "GPU-a", 4)
	w.after(1, eight[:2], "GPU-a", 4)
	w.after(SeatsHold, eight[:2], "GPU-a", 2)
}

func TestSharingTurnedOffCountsAfterTheHold(t *testing.T) {
	w := newWatch(t, plain("GPU-a", 0))
	whole := []Advertised{{Resource: "nvidia.com/gpu", DeviceID: "GPU-a"}}
	w.after(0, whole, "GPU-a", 0)
	w.after(0, replicas("nvidia.com/gpu.shared", "GPU-a", 4), "GPU-a", 4)
	w.after(time.Second, whole, "GPU-a", 4)
	w.after(SeatsHold, whole, "GPU-a", 0)
	w.after(time.Second, replicas("nvidia.com/gpu", "GPU-a", 1), "GPU-a", 1)
}

func TestAClockThatIsSetBackBeginsTheHoldAnew(t *testing.T) {
	w := newWatch(t, plain("GPU-a", 0))
	w.after(0, replicas("nvidia.com/gpu", "GPU-a", 4), "GPU-a", 4)
	w.after(0, replicas("nvidia.com/gpu", "GPU-a", 2), "GPU-a", 4)
	w.after(-time.Hour, replicas("nvidia.com/gpu", "GPU-a", 2), "GPU-a", 4)
	w.after(SeatsHold, replicas("nvidia.com/gpu", "GPU-a", 2), "GPU-a", 2)
}

func TestTwoNamesOfOneDeviceAreUnited(t *testing.T) {
	w := newWatch(t, plain("GPU-a", 0))
	renamed := append(replicas("nvidia.com/gpu", "GPU-a", 3), replicas("nvidia.com/gpu.shared", "GPU-a", 4)...)
	w.after(0, append(renamed, Advertised{DeviceID: "nvidia0/vgpu4"}, Advertised{DeviceID: "GPU-a"}), "GPU-a", 5)
	// Each id once per NUMA node.
	w.after(0, append(slices.Clone(renamed), renamed...), "GPU-a", 5)
}

func TestDevicesThatLeftAreForgotten(t *testing.T) {
	devices := cut(a100x80("GPU-a", 0), place{profile: "1g.10gb", start: 0})
	w := newWatch(t, devices...)
	mig := devices[1].UUID
	w.after(0, replicas("nvidia.com/mig-1g.10gb", mig, 3), mig, 3)
	// No devices at all is a reading that failed.
	w.ix = NewIndex(nil)
	w.after(0, nil, mig, 3)
	w.ix = NewIndex(devices[:1])
	w.after(0, nil, mig, 0)
	w.ix = NewIndex(devices)
	w.after(0, nil, mig, 0)
}

func TestForeignIDsAreNoSeats(t *testing.T) {
	w := newWatch(t, plain("GPU-a", 0))
	w.after(0, []Advertised{{DeviceID: "GPU-a::x"}, {DeviceID: "GPU-z::0"}, {DeviceID: ""}, {DeviceID: "GPU-a::0"}}, "GPU-a", 1)
	w.after(0, nil, "GPU-z", 0)
}

func TestSeatsAreNeverModified(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ix := NewIndex([]gpu.Device{plain("GPU-a", 0), plain("GPU-b", 1)})
		var history []Seats
		var sizes [][2]int
		seats, now := Seats{}, noon
		for range rapid.IntRange(1, 20).Draw(t, "observations") {
			var list []Advertised
			for _, device := range []gpu.UUID{"GPU-a", "GPU-b"} {
				all := replicas("nvidia.com/gpu", device, 6)
				list = append(list, rapid.SliceOf(rapid.SampledFrom(all)).Draw(t, "advertised")...)
			}
			now = now.Add(time.Duration(rapid.IntRange(0, 400).Draw(t, "seconds")) * time.Second)
			next := seats.Observe(now, ix, list)
			again := seats.Observe(now, ix, rapid.Permutation(list).Draw(t, "order"))
			for _, device := range []gpu.UUID{"GPU-a", "GPU-b"} {
				if next.Of(device) != again.Of(device) {
					t.Fatalf("the order of %v changes the seats", list)
				}
				distinct := make(map[string]bool)
				for _, a := range list {
					if id, _ := ParseID(a.DeviceID); id.Device().String() == string(device) {
						distinct[a.DeviceID] = true
					}
				}
				if next.Of(device) < len(distinct) {
					t.Fatalf("%d ids of %s advertised, %d remembered", len(distinct), device, next.Of(device))
				}
			}
			history, sizes = append(history, next), append(sizes, [2]int{next.Of("GPU-a"), next.Of("GPU-b")})
			seats = next
		}
		for i, s := range history {
			if got := [2]int{s.Of("GPU-a"), s.Of("GPU-b")}; got != sizes[i] {
				t.Fatalf("an earlier Seats changed from %v to %v", sizes[i], got)
			}
		}
	})
}
