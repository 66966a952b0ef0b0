// SPDX-License-Identifier: Apache-2.0

package healthstream

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/healthstream/healthv1"
)

// overTheWire is the list after it was sent.
func overTheWire(t interface{ Fatal(...any) }, list *List) *List {
	data, err := proto.Marshal(encode(list))
	if err != nil {
		t.Fatal(err)
	}
	var came healthv1.NodeHealth
	if err := proto.Unmarshal(data, &came); err != nil {
		t.Fatal(err)
	}
	return decode(&came)
}

func TestAListSurvivesTheWire(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := drawList(t)
		if d := cmp.Diff(list, overTheWire(t, list)); d != "" {
			t.Fatalf("(-sent +came):\n%s", d)
		}
	})
}

// TestEveryFieldGoesOverTheWire finds the field that somebody adds to the words and forgets here.
func TestEveryFieldGoesOverTheWire(t *testing.T) {
	list := new(List)
	next := int64(0)
	fill(reflect.ValueOf(list).Elem(), &next)
	for i := range list.Devices {
		list.Devices[i].Capacity, list.Devices[i].MIGProfiles = gpu.Slices{}, nil
	}
	if next < 60 {
		t.Fatalf("only %d fields were filled", next)
	}
	if d := cmp.Diff(list, overTheWire(t, list)); d != "" {
		t.Errorf("(-sent +came):\n%s", d)
	}
}

// fill gives every field another value than zero.
func fill(v reflect.Value, next *int64) {
	*next++
	switch v.Interface().(type) {
	case time.Time:
		v.Set(reflect.ValueOf(time.Unix(1_700_000_000+*next, *next).UTC()))
		return
	case health.Status:
		v.Set(reflect.ValueOf(health.Unhealthy))
		return
	case health.Class:
		v.Set(reflect.ValueOf(health.ClassReset))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for _, field := range v.Fields() {
			fill(field, next)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0), next)
		fill(v.Index(1), next)
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, next)
		fill(value, next)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString(fmt.Sprintf("text %d", *next))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Uint64:
		v.SetUint(uint64(*next))
	default:
		v.SetInt(*next)
	}
}

// FuzzDecode takes any bytes for a list: whatever comes can be decoded, and is sent on unaltered.
func FuzzDecode(f *testing.F) {
	for _, seed := range []*List{listAt("a", 1, health.Unhealthy), {}} {
		data, err := proto.Marshal(encode(seed))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	strange, err := proto.Marshal(&healthv1.NodeHealth{
		Time:     &timestamppb.Timestamp{Seconds: 1 << 62, Nanos: -1},
		Devices:  []*healthv1.Device{{}, {Uuid: "a", Minor: proto.Int32(-7)}, {Uuid: "a"}},
		Verdicts: []*healthv1.Verdict{{Device: "a", Status: 77, Conditions: []*healthv1.Condition{{Class: -1}}}},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(strange)
	f.Fuzz(func(t *testing.T, data []byte) {
		var came healthv1.NodeHealth
		if proto.Unmarshal(data, &came) != nil {
			return
		}
		list := decode(&came)
		if d := cmp.Diff(list, overTheWire(t, list)); d != "" {
			t.Errorf("(-came +again):\n%s", d)
		}
		for _, d := range list.Devices {
			if d.UUID == "" || d.Minor < -1 || d.GPUInstance < gpu.NoInstance {
				t.Errorf("a device that cannot be: %+v", d)
			}
		}
	})
}

func TestForeignTextDoesNotCostTheMessage(t *testing.T) {
	list := listAt("a", 1, health.Healthy)
	list.Devices[0].Model = "NVIDIA \xff\xfeH100"
	list.Report.Verdicts[0].Reason = "bad \xc3"
	list.Report.Records = []health.Record{{Device: sick, Transitions: map[string]uint64{"\xff": 1}}}
	came := overTheWire(t, list)
	if m := came.Devices[0].Model; !utf8.ValidString(m) || !strings.HasSuffix(m, "H100") {
		t.Errorf("the model is %q", m)
	}
	if len(came.Devices) != 2 || len(came.Report.Verdicts) != 2 {
		t.Errorf("came: %+v", came)
	}
}

func TestAbsentIsNotZero(t *testing.T) {
	whole := Device{Device: gpu.Device{
		UUID: sick, Minor: -1, GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance, InstanceEntity: gpu.NoInstance,
	}}
	wire := encodeDevice(whole)
	if wire.Minor != nil || wire.GpuInstanceId != nil || wire.ComputeInstanceId != nil || wire.InstanceEntity != nil ||
		wire.Profile != nil || wire.Placement != nil || wire.MemoryBytes != nil {
		t.Errorf("what is not known is on the wire: %v", wire)
	}
	part := whole
	part.Minor, part.GPUInstance, part.ComputeInstance, part.InstanceEntity = 0, 0, 0, 0
	wire = encodeDevice(part)
	if wire.Minor == nil || wire.GpuInstanceId == nil || wire.ComputeInstanceId == nil || wire.InstanceEntity == nil {
		t.Errorf("a zero is not on the wire: %v", wire)
	}
	if v := encodeVerdict(health.Verdict{Device: sick}); v.Since != nil {
		t.Errorf("no time is on the wire as %v", v.Since)
	}
}

func TestATimeThatDoesNotExistIsNone(t *testing.T) {
	for _, bad := range []*timestamppb.Timestamp{{Seconds: 1 << 60}, {Seconds: -1 << 60}, {Nanos: -1}} {
		if got := timeOf(bad); !got.IsZero() {
			t.Errorf("%d.%d is %v", bad.Seconds, bad.Nanos, got)
		}
	}
	if got := timeOf(&timestamppb.Timestamp{}); got.IsZero() || got.Unix() != 0 {
		t.Errorf("1970 is %v", got)
	}
}

func TestWhatCannotBeToldApartCostsItselfOnly(t *testing.T) {
	list := decode(&healthv1.NodeHealth{
		Devices:  []*healthv1.Device{{Model: "nameless"}, {Uuid: "GPU-1", Model: "first"}, {Uuid: "GPU-1", Model: "second"}, {Uuid: "GPU-2"}},
		Verdicts: []*healthv1.Verdict{{}, {Device: "GPU-1", Status: healthv1.Status_STATUS_HEALTHY}},
	})
	if len(list.Devices) != 2 || list.Devices[0].Model != "first" || list.Devices[1].UUID != "GPU-2" {
		t.Errorf("devices: %+v", list.Devices)
	}
	if len(list.Report.Verdicts) != 1 || list.Report.Verdicts[0].Status != health.Healthy {
		t.Errorf("verdicts: %+v", list.Report.Verdicts)
	}
}

func TestANewerServersWordsDoNotWithdrawAnything(t *testing.T) {
	data, err := proto.Marshal(&healthv1.NodeHealth{
		Verdicts: []*healthv1.Verdict{{Device: "GPU-1", Status: 9, Conditions: []*healthv1.Condition{{Kind: "new", Class: 99}}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	data = protowire.AppendTag(data, 500, protowire.BytesType)
	data = protowire.AppendString(data, "a field of tomorrow")
	var came healthv1.NodeHealth
	if err := proto.Unmarshal(data, &came); err != nil {
		t.Fatal(err)
	}
	v := decode(&came).Report.Verdicts[0]
	if v.Status != health.Unknown || v.Conditions[0].Class != 0 || v.Conditions[0].Kind != "new" {
		t.Errorf("verdict %+v", v)
	}
}

func TestEveryStatusAndClassHasItsWordOnTheWire(t *testing.T) {
	for _, s := range health.Statuses() {
		if got := encodeStatus(s); decodeStatus(got) != s || got.String() != "STATUS_"+strings.ToUpper(s.String()) {
			t.Errorf("%v is %v on the wire", s, got)
		}
	}
	for _, c := range append(health.Classes(), 0) {
		want := "CLASS_" + strings.ToUpper(c.String())
		if c == 0 {
			want = "CLASS_UNSPECIFIED"
		}
		if got := encodeClass(c); decodeClass(got) != c || got.String() != want {
			t.Errorf("%v is %v on the wire", c, got)
		}
	}
	if got := encodeClass(200); got != healthv1.Class_CLASS_UNSPECIFIED {
		t.Errorf("a class that is none is %v on the wire", got)
	}
}

func TestNumbersThatDoNotFitAreTheNearestThatDo(t *testing.T) {
	wire := encodeDevice(Device{Device: gpu.Device{UUID: sick, Index: 1 << 40, Minor: 1 << 40}})
	if wire.Index != 1<<31-1 || wire.GetMinor() != 1<<31-1 {
		t.Errorf("index %d, minor %d", wire.Index, wire.GetMinor())
	}
}

// drawList is any list that keeps the laws of the words.
func drawList(t *rapid.T) *List {
	list := &List{
		Epoch: word.Draw(t, "epoch"), Node: word.Draw(t, "node"), Source: word.Draw(t, "source"),
		Report: health.Report{Time: moment(t), BootID: word.Draw(t, "boot"), Version: rapid.Uint64().Draw(t, "version")},
	}
	for _, uuid := range rapid.SliceOfNDistinct(uuids, 0, 6, rapid.ID[gpu.UUID]).Draw(t, "uuids") {
		list.Devices = append(list.Devices, drawDevice(t, uuid))
		list.Report.Verdicts = append(list.Report.Verdicts, health.Verdict{
			Device: uuid, Card: uuids.Draw(t, "card"), Status: rapid.SampledFrom(health.Statuses()).Draw(t, "status"),
			Since: moment(t), Avoid: rapid.Bool().Draw(t, "avoid"), Reason: word.Draw(t, "reason"), Conditions: drawConditions(t),
		})
		list.Report.Records = append(list.Report.Records, health.Record{
			Device: uuid, Transitions: drawMap(t, "transitions", rapid.SampledFrom([]string{"healthy", "unhealthy"}), rapid.Uint64()),
			Unhealthy: time.Duration(rapid.Int64Min(0).Draw(t, "unhealthy")), Clearings: rapid.Uint64().Draw(t, "clearings"),
		})
	}
	if rapid.Bool().Draw(t, "cleared") {
		list.Report.Clearings = []health.Clearing{{
			Device: uuids.Draw(t, "cleared"), Reason: word.Draw(t, "why"), By: word.Draw(t, "by"), Time: moment(t), Ended: drawConditions(t),
		}}
	}
	return list
}

var (
	word  = rapid.SampledFrom([]string{"", "a", "ä ✓", "two words", "\n"})
	uuids = rapid.Custom(func(t *rapid.T) gpu.UUID {
		return gpu.UUID(rapid.StringMatching("(GPU|MIG)-[0-9a-f]{4}").Draw(t, "uuid"))
	})
	number = rapid.IntRange(gpu.NoInstance, 1<<31-1)
	count  = rapid.IntRange(0, 1<<31-1)
)

func moment(t *rapid.T) time.Time {
	if rapid.Bool().Draw(t, "never") {
		return time.Time{}
	}
	return time.Unix(rapid.Int64Range(-1e9, 4e9).Draw(t, "seconds"), rapid.Int64Range(0, 999_999_999).Draw(t, "nanos")).UTC()
}

func drawDevice(t *rapid.T, uuid gpu.UUID) Device {
	d := Device{
		Device: gpu.Device{
			UUID: uuid, Index: count.Draw(t, "index"), Minor: number.Draw(t, "minor"), PCIBusID: word.Draw(t, "pci"), Model: word.Draw(t, "model"),
			MIGEnabled: rapid.Bool().Draw(t, "mig"), Lost: rapid.Bool().Draw(t, "lost"),
			GPUInstance: number.Draw(t, "gi"), ComputeInstance: number.Draw(t, "ci"), InstanceEntity: number.Draw(t, "entity"),
		},
		MemoryBytes: rapid.Uint64().Draw(t, "memory"), ComputeCapability: word.Draw(t, "capability"),
		Peers: drawMap(t, "peers", uuids, rapid.IntRange(1, 18)),
	}
	if rapid.Bool().Draw(t, "part") {
		d.Parent = uuids.Draw(t, "parent")
		d.Profile = gpu.Profile{
			Name: word.Draw(t, "profile"), Slices: gpu.Slices{Compute: count.Draw(t, "g"), Memory: count.Draw(t, "m"), SMs: count.Draw(t, "sm")},
			ComputeInstanceSlices: count.Draw(t, "c"), ComputeInstanceSMs: count.Draw(t, "csm"),
		}
		d.Placement = gpu.Placement{Start: count.Draw(t, "start"), Size: count.Draw(t, "size")}
	}
	return d
}

func drawConditions(t *rapid.T) []health.Condition {
	var all []health.Condition
	for range rapid.IntRange(0, 3).Draw(t, "conditions") {
		all = append(all, health.Condition{
			Subject: health.Subject{
				GPU: uuids.Draw(t, "gpu"), GPUInstance: number.Draw(t, "gi"), ComputeInstance: number.Draw(t, "ci"),
				Placement: gpu.Placement{Start: count.Draw(t, "start"), Size: count.Draw(t, "size")},
			},
			Kind: health.Kind(word.Draw(t, "kind")), Class: rapid.SampledFrom(health.Classes()).Draw(t, "class"),
			Since: moment(t), Last: moment(t), Count: rapid.Uint64().Draw(t, "count"), BootID: word.Draw(t, "boot"),
			XID: count.Draw(t, "xid"), Evidence: word.Draw(t, "evidence"), Recovery: word.Draw(t, "recovery"), RecoveringSince: moment(t),
		})
	}
	return all
}

func drawMap[K comparable, V any](t *rapid.T, label string, keys *rapid.Generator[K], values *rapid.Generator[V]) map[K]V {
	m := rapid.MapOfN(keys, values, 0, 2).Draw(t, label)
	if len(m) == 0 {
		return nil
	}
	return m
}
