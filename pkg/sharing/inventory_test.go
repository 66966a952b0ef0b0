// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"pgregory.net/rapid"
)

// restarted is what a meter knows after a restart of what one knew before.
func restarted(t interface {
	Helper()
	Fatal(args ...any)
}, before Inventory) Inventory {
	t.Helper()
	data, err := json.Marshal(before)
	if err != nil {
		t.Fatal(err)
	}
	var after Inventory
	if err := json.Unmarshal(data, &after); err != nil {
		t.Fatal(fmt.Errorf("%s: %w", data, err))
	}
	if !after.Equal(before) {
		t.Fatal(fmt.Errorf("not the same after a restart: %s", data))
	}
	return after
}

func (w *watch) restart() { w.seats = restarted(w.t, Inventory{Seats: w.seats}).Seats }

// The names in the file are what earlier versions wrote: they are only added to.
func TestTheFormatOfAnInventoryIsKept(t *testing.T) {
	devices := cut(a100x80("GPU-a", 0), place{profile: "1g.10gb", start: 0})
	ix := NewIndex(devices)
	seats := Seats{}.Observe(noon, ix, replicas("x", devices[1].UUID, 4)).Observe(noon, ix, replicas("x", devices[1].UUID, 2))
	got, err := json.Marshal(Inventory{Devices: devices, Seats: seats})
	if err != nil {
		t.Fatal(err)
	}
	slices := `{"Compute":%d,"Memory":%d,"SMs":%d}`
	for _, want := range []string{
		`{"format":1,"devices":[{"UUID":"GPU-a","Parent":"","Index":0,"Minor":`, `"MIGEnabled":true,"Lost":false,"Capacity":` + fmt.Sprintf(slices, 7, 8, devices[0].Capacity.SMs),
		`"MIGProfiles":null,"GPUInstance":-1,"ComputeInstance":-1,"InstanceEntity":`, `"PCIBusID":"`, `"Model":"`, `"Parent":"GPU-a"`,
		`"Profile":{"Name":"1g.10gb","Compute":1,"Memory":1,"SMs":`, `"ComputeInstanceSlices":1,"ComputeInstanceSMs":`, `"Placement":{"Start":0,"Size":1}`,
		`"seats":[{"device":"` + string(devices[1].UUID) + `","card":"GPU-a","replicas":[0,1,2,3],"smaller":2,"since":"2026-05-04T12:00:00Z"}]}`,
	} {
		if !strings.Contains(string(got), want) {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
	back := restarted(t, Inventory{Devices: devices, Seats: seats})
	devices[0].MIGProfiles = nil
	if !reflect.DeepEqual(back.Devices, devices) {
		t.Errorf("devices %+v, want %+v", back.Devices, devices)
	}
}

func TestWhatIsNoInventoryChangesNothing(t *testing.T) {
	v := Inventory{Devices: []gpu.Device{plain("GPU-a", 0)}}
	for text, says := range map[string]string{
		`{"format":99}`:               "newer version",
		`{}`:                          "without a format",
		`[]`:                          "inventory",
		`{"format":1,"devices":[{}]}`: "no name",
		`{"format":1,"devices":[{"UUID":"GPU-a"},{"UUID":"GPU-a"}]}`:                                 "another's",
		`{"format":1,"devices":[{"UUID":"MIG-a","Parent":"GPU-b"}]}`:                                 "no card",
		`{"format":1,"seats":[{"device":"","replicas":[0]}]}`:                                        "no name",
		`{"format":1,"seats":[{"device":"GPU-a","replicas":[]}]}`:                                    "numbers",
		`{"format":1,"seats":[{"device":"GPU-a","replicas":[-1]}]}`:                                  "numbers",
		`{"format":1,"seats":[{"device":"GPU-a","replicas":[2,1]}]}`:                                 "ascend",
		`{"format":1,"seats":[{"device":"GPU-a","replicas":[0,1],"smaller":3}]}`:                     "smaller set of 3",
		`{"format":1,"seats":[{"device":"GPU-a","replicas":[0]},{"device":"GPU-a","replicas":[0]}]}`: "twice",
	} {
		err := json.Unmarshal([]byte(text), &v)
		if err == nil || !strings.Contains(err.Error(), says) || errors.Is(err, ErrNewerFormat) != strings.Contains(says, "newer") {
			t.Errorf("%s: %v, want %q", text, err, says)
		}
		if len(v.Devices) != 1 {
			t.Fatalf("%s was taken", text)
		}
	}
}

func FuzzInventory(f *testing.F) {
	f.Add(`{"format":1,"devices":[{"UUID":"GPU-a"}],"seats":[{"device":"GPU-a","card":"GPU-a","replicas":[0,3],"smaller":1,"since":"2026-05-04T12:00:00Z","away":true}]}`)
	f.Add(`{"format":2}`)
	f.Fuzz(func(t *testing.T, text string) {
		var v Inventory
		if json.Unmarshal([]byte(text), &v) != nil {
			return
		}
		restarted(t, v)
		ix := NewIndex(v.Devices)
		seats := v.Seats.Observe(noon, ix, nil).Recall(ix, nil, replicas("x", "GPU-a", 2))
		if d := Attribute(Situation{Devices: v.Devices, Observed: true, Seats: seats}); d.Check(v.Devices) != nil {
			t.Error(d.Check(v.Devices))
		}
	})
}

// While a card is withdrawn the kubelet lists none of its ids and has none on record.
func TestARestartForgetsNoReplicas(t *testing.T) {
	w := newWatch(t, plain("GPU-a", 0), plain("GPU-b", 1))
	w.after(0, replicas("nvidia.com/gpu.shared", "GPU-a", 4), "GPU-a", 4)
	w.after(time.Second, nil, "GPU-a", 4)
	w.restart()
	w.after(time.Hour, nil, "GPU-a", 4)
	w.restart()
	w.after(time.Hour, replicas("nvidia.com/gpu.shared", "GPU-a", 4), "GPU-a", 4)
	// The time that a smaller set has stood goes on.
	w.after(0, replicas("nvidia.com/gpu.shared", "GPU-a", 2), "GPU-a", 4)
	w.after(SeatsHold-time.Second, replicas("nvidia.com/gpu.shared", "GPU-a", 2), "GPU-a", 4)
	w.restart()
	w.after(time.Second, replicas("nvidia.com/gpu.shared", "GPU-a", 2), "GPU-a", 2)
}

func TestAPluginConfiguredAnewWhileTheMeterWasDownIsFollowed(t *testing.T) {
	const shared = "nvidia.com/gpu.shared"
	tests := []struct {
		name          string
		before, after int
		atOnce, later int
	}{
		{"from four to eight", 4, 8, 8, 8},
		{"from eight to four", 8, 4, 8, 4},
		{"from four to whole", 4, 0, 4, 0},
		{"from four to three, with nobody to say that it was away", 4, 3, 4, 4},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWatch(t, plain("GPU-a", 0))
			w.after(0, replicas(shared, "GPU-a", tt.before), "GPU-a", tt.before)
			w.restart()
			now := replicas(shared, "GPU-a", tt.after)
			if tt.after == 0 {
				now = []Advertised{{Resource: shared, DeviceID: "GPU-a"}}
			}
			w.after(time.Minute, now, "GPU-a", tt.atOnce)
			w.after(SeatsHold, now, "GPU-a", tt.later)
		})
	}
}

// The plugin got eight and went away, all while the meter was down: the kubelet's record has them.
func TestARecordAddsToWhatIsKnownFromAFileOnly(t *testing.T) {
	w := newWatch(t, plain("GPU-a", 0))
	four, eight := replicas("x", "GPU-a", 4), replicas("x", "GPU-a", 8)
	w.after(0, four, "GPU-a", 4)
	if n := w.seats.Recall(w.ix, nil, eight).Of("GPU-a"); n != 4 {
		t.Errorf("%d replicas of what was seen by itself", n)
	}
	w.restart()
	for record, want := range map[int]int{0: 4, 2: 4, 4: 4, 8: 8} {
		if n := w.seats.Recall(w.ix, nil, eight[:record]).Of("GPU-a"); n != want {
			t.Errorf("%d on record: %d replicas, want %d", record, n, want)
		}
	}
	w.after(0, four, "GPU-a", 4)
	if n := w.seats.Recall(w.ix, nil, eight).Of("GPU-a"); n != 4 {
		t.Errorf("%d replicas after the plugin was heard", n)
	}
}

func TestACardThatIsAwayKeepsItsReplicasForADay(t *testing.T) {
	w := newWatch(t, plain("GPU-a", 0), plain("GPU-b", 1))
	both := w.ix
	w.after(0, replicas("x", "GPU-a", 4), "GPU-a", 4)
	w.ix = NewIndex([]gpu.Device{plain("GPU-b", 1)})
	w.after(time.Minute, nil, "GPU-a", 4)
	w.restart()
	w.after(SeatsKeep-1, nil, "GPU-a", 4)
	w.ix = both
	w.after(0, nil, "GPU-a", 4)
	w.ix = NewIndex([]gpu.Device{plain("GPU-b", 1)})
	w.after(time.Minute, nil, "GPU-a", 4)
	w.after(SeatsKeep, nil, "GPU-a", 0)
}

func TestAMIGDeviceWhoseCardIsAwayKeepsItsReplicas(t *testing.T) {
	devices := cut(a100x80("GPU-a", 0), place{profile: "1g.10gb", start: 0})
	w := newWatch(t, append(devices, plain("GPU-b", 1))...)
	mig := devices[1].UUID
	w.after(0, replicas("x", mig, 3), mig, 3)
	w.ix = NewIndex([]gpu.Device{plain("GPU-b", 1)})
	w.after(time.Hour, nil, mig, 3)
	w.ix = NewIndex(devices)
	w.after(time.Hour, nil, mig, 3)
}

func TestAClockThatIsSetBackKeepsNothingForEver(t *testing.T) {
	w := newWatch(t, plain("GPU-a", 0), plain("GPU-b", 1))
	w.after(0, replicas("x", "GPU-a", 4), "GPU-a", 4)
	w.ix = NewIndex([]gpu.Device{plain("GPU-b", 1)})
	w.after(0, nil, "GPU-a", 4)
	w.after(-365*24*time.Hour, nil, "GPU-a", 4)
	w.after(SeatsKeep, nil, "GPU-a", 0)
}

// Whatever of a device is written down is looked at when it is asked whether that is to be done again.
func TestEveryFieldOfADeviceIsCompared(t *testing.T) {
	whole := reflect.TypeFor[gpu.Device]()
	for i := range whole.NumField() {
		var d gpu.Device
		name, field := whole.Field(i).Name, reflect.ValueOf(&d).Elem().Field(i)
		if field.Kind() == reflect.Struct {
			field = field.Field(0)
		}
		if field.Kind() == reflect.Struct {
			field = field.Field(0)
		}
		switch field.Kind() {
		case reflect.String:
			field.SetString("x")
		case reflect.Int:
			field.SetInt(7)
		case reflect.Bool:
			field.SetBool(true)
		default:
			d.MIGProfiles = []gpu.MIGProfile{{}}
		}
		same := Inventory{Devices: []gpu.Device{d}}.Equal(Inventory{Devices: []gpu.Device{{}}})
		if same != (name == "MIGProfiles") {
			t.Errorf("another %s: the same: %v", name, same)
		}
	}
}

// TestARestartAtAnyPointChangesNoDivision: two meters see the same lists, and one of them restarts in between.
func TestARestartAtAnyPointChangesNoDivision(t *testing.T) {
	devices := []gpu.Device{plain("GPU-a", 0), plain("GPU-b", 1), plain("GPU-c", 2)}
	rapid.Check(t, func(t *rapid.T) {
		now, steady, other := noon, Inventory{}, Inventory{}
		var held []Allocation
		for i := range rapid.IntRange(0, 6).Draw(t, "held") {
			a := rapid.SampledFrom(replicas("x", rapid.SampledFrom([]gpu.UUID{"GPU-a", "GPU-b", "GPU-c"}).Draw(t, "of"), 6)).Draw(t, "seat")
			held = append(held, Allocation{Holder: Holder{Namespace: "n", Pod: fmt.Sprint("p", i), Container: "c"}, Resource: "x", DeviceID: a.DeviceID})
		}
		for range rapid.IntRange(1, 25).Draw(t, "ticks") {
			now = now.Add(time.Duration(rapid.IntRange(-10, 400).Draw(t, "seconds")) * time.Second)
			inventory := rapid.SampledFrom([][]gpu.Device{devices, devices, devices, devices[1:], nil}).Draw(t, "inventory")
			var list []Advertised
			for _, device := range devices {
				list = append(list, replicas("x", device.UUID, rapid.SampledFrom([]int{0, 1, 3, 4, 6}).Draw(t, "replicas"))...)
			}
			if rapid.Bool().Draw(t, "restart") {
				other = restarted(t, other)
			}
			ix := NewIndex(inventory)
			steady.Seats, other.Seats = steady.Seats.Observe(now, ix, list), other.Seats.Observe(now, ix, list)
			if !steady.Seats.Equal(other.Seats) {
				t.Fatal("what is remembered is not the same")
			}
			situation := Situation{Devices: devices, Observed: true, Allocations: held, Seats: steady.Seats}
			want := Attribute(situation)
			situation.Seats = other.Seats
			if got := Attribute(situation); !reflect.DeepEqual(got, want) {
				t.Fatalf("with a restart %+v, without %+v", got, want)
			}
		}
	})
}
