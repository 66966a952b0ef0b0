// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/gpumeter/gpumeter/etc"
	"github.com/gpumeter/gpumeter/pkg/exporter"
	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/meter"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// The pages under testdata/dcgm-exporter-4.8.2 were served by a real dcgm-exporter on a
// real DCGM 4.6 with eight H100. These tests put our exporter on the same node, as far as
// the page tells what the node was, and hold the two pages side by side: each series of
// theirs is in ours, with the same labels and value, but for the differences listed
// here, which docs/migration.md explains to users.

// captured is a node as a page of dcgm-exporter describes it.
type captured struct {
	devices []gpu.Device
	values  map[gpu.Entity]map[gpu.FieldID]gpu.Value
	holders []sharing.Allocation
	seats   []sharing.Advertised
}

func (c captured) Read(_ context.Context, fields []gpu.FieldID) (gpu.Reading, error) {
	r := gpu.Reading{Time: time.Now(), Source: "capture", Fields: fields, Devices: c.devices}
	for _, e := range slices.SortedFunc(maps.Keys(c.values), func(a, b gpu.Entity) int {
		return strings.Compare(fmt.Sprint(a.GPU, a.ID), fmt.Sprint(b.GPU, b.ID))
	}) {
		s := gpu.Sample{Entity: e, Time: r.Time, Values: make([]gpu.Value, len(fields))}
		for i, f := range fields {
			v, ok := c.values[e][f]
			if !ok {
				v = gpu.Absent(gpu.ReasonBlank)
			}
			s.Values[i] = v
		}
		r.Samples = append(r.Samples, s)
	}
	return r, nil
}

func (c captured) List(context.Context) (sharing.Listing, error) {
	return sharing.Listing{Time: time.Now(), Allocations: c.holders, Advertised: c.seats, Pods: len(c.holders)}, nil
}

// slicesOf is the geometry of the H100's profiles that occur in the captures.
func slicesOf(t *testing.T, profile string) gpu.Profile {
	t.Helper()
	p := map[string]gpu.Profile{
		"1g.10gb": {Slices: gpu.Slices{Compute: 1, Memory: 1, SMs: 16}, ComputeInstanceSlices: 1, ComputeInstanceSMs: 16},
		"3g.40gb": {Slices: gpu.Slices{Compute: 3, Memory: 4, SMs: 60}, ComputeInstanceSlices: 3, ComputeInstanceSMs: 60},
	}
	got, ok := p[profile]
	if !ok {
		t.Fatalf("profile %q is not in the captures' geometry", profile)
	}
	got.Name = profile
	return got
}

// nodeOf reads the node out of a page.
func nodeOf(t *testing.T, page map[string]*dto.MetricFamily) captured {
	t.Helper()
	c := captured{values: map[gpu.Entity]map[gpu.FieldID]gpu.Value{}}
	cards, migs := map[gpu.UUID]gpu.Device{}, map[gpu.UUID]gpu.Device{}
	held := map[string]sharing.Allocation{}
	put := func(e gpu.Entity, f gpu.FieldID, v gpu.Value) {
		if c.values[e] == nil {
			c.values[e] = map[gpu.FieldID]gpu.Value{}
		}
		if _, first := c.values[e][f]; !first {
			c.values[e][f] = v
		}
	}
	for _, name := range slices.Sorted(maps.Keys(page)) {
		field, ok := gpu.FieldByName(name)
		if !ok {
			t.Fatalf("the field %s of the real page is not in our catalogue", name)
		}
		for _, m := range page[name].GetMetric() {
			l := labelsOf(m)
			card := gpu.UUID(l["UUID"])
			index, _ := strconv.Atoi(l["gpu"])
			d := gpu.Device{
				UUID: card, Index: index, Minor: index, PCIBusID: l["pci_bus_id"], Model: l["modelName"],
				Capacity: gpu.Slices{Compute: 7, Memory: 8, SMs: 132}, GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance,
			}
			e := gpu.Entity{Kind: gpu.KindGPU, GPU: card}
			if gi, ok := l["GPU_I_ID"]; ok {
				d.MIGEnabled = true
				id, _ := strconv.Atoi(gi)
				mig := d
				mig.UUID, mig.Parent = gpu.UUID(fmt.Sprintf("MIG-%s-%d", strings.TrimPrefix(string(card), "GPU-"), id)), card
				mig.GPUInstance, mig.ComputeInstance, mig.Profile = id, 0, slicesOf(t, l["GPU_I_PROFILE"])
				mig.Capacity, mig.MIGEnabled = gpu.Slices{}, false
				migs[mig.UUID] = mig
				if field.Scope == gpu.ScopeGPUInstance {
					e = gpu.Entity{Kind: gpu.KindGPUInstance, GPU: card, ID: id}
				}
			}
			cards[card] = d
			value := gpu.Float(valueOf(m))
			if _, byPod := l["pod_uid"]; !byPod {
				put(e, field.ID, value)
			}
			driver, _ := gpu.FieldByName("DCGM_FI_DRIVER_VERSION")
			put(gpu.Entity{Kind: gpu.KindGPU, GPU: card}, driver.ID, gpu.Text(l["DCGM_FI_DRIVER_VERSION"]))
			if pod := l["pod"]; pod != "" {
				id := string(card)
				if seat, ok := l["vgpu"]; ok {
					id += "::" + seat
				}
				held[id] = sharing.Allocation{Holder: sharing.Holder{Namespace: l["namespace"], Pod: pod, Container: l["container"]}, Resource: "nvidia.com/gpu", DeviceID: id}
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(held)) {
		c.holders = append(c.holders, held[id])
		c.seats = append(c.seats, sharing.Advertised{Resource: "nvidia.com/gpu", DeviceID: id})
	}
	for _, u := range slices.Sorted(maps.Keys(cards)) {
		c.devices = append(c.devices, cards[u])
		for _, m := range slices.Sorted(maps.Keys(migs)) {
			if migs[m].Parent == u {
				c.devices = append(c.devices, migs[m])
			}
		}
	}
	return c
}

func labelsOf(m *dto.Metric) map[string]string {
	out := map[string]string{}
	for _, l := range m.GetLabel() {
		out[l.GetName()] = l.GetValue()
	}
	return out
}

func valueOf(m *dto.Metric) float64 {
	switch {
	case m.Counter != nil:
		return m.GetCounter().GetValue()
	case m.Gauge != nil:
		return m.GetGauge().GetValue()
	default:
		return m.GetUntyped().GetValue()
	}
}

func parsePage(t *testing.T, page []byte) map[string]*dto.MetricFamily {
	t.Helper()
	p := expfmt.NewTextParser(model.LegacyValidation)
	families, err := p.TextToMetricFamilies(bytes.NewReader(page))
	if err != nil {
		t.Fatalf("the page is not valid: %v", err)
	}
	return families
}

func readCapture(t *testing.T, name string) map[string]*dto.MetricFamily {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "dcgm-exporter-4.8.2", name))
	if err != nil {
		t.Fatal(err)
	}
	return parsePage(t, data)
}

// ourPage is what our exporter serves for the node.
func ourPage(t *testing.T, node captured, cfg exporter.Config) map[string]*dto.MetricFamily {
	t.Helper()
	var page []byte
	synctest.Test(t, func(t *testing.T) {
		data, err := etc.ReadFile("default-counters.csv")
		if err != nil {
			t.Fatal(err)
		}
		counters, problems := exporter.ParseCounters("default-counters.csv", data)
		if len(problems) != 0 {
			t.Fatalf("the shipped counters have problems: %v", problems)
		}
		policy, err := sharing.ParsePolicy("blend")
		if err != nil {
			t.Fatal(err)
		}
		m, err := meter.New(meter.Config{Telemetry: node, Allocations: node, Fields: counters.Fields(), Policy: policy, Interval: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		e, err := exporter.New(m, counters, cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- m.Run(ctx) }()
		synctest.Wait()
		w := httptest.NewRecorder()
		e.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		page = w.Body.Bytes()
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	})
	return parsePage(t, page)
}

// seriesOf is a page as "name{sorted labels}" to value, without the labels in drop.
func seriesOf(page map[string]*dto.MetricFamily, drop ...string) map[string]float64 {
	out := map[string]float64{}
	for name, f := range page {
		for _, m := range f.GetMetric() {
			out[name+key(labelsOf(m), drop...)] = valueOf(m)
		}
	}
	return out
}

func key(labels map[string]string, drop ...string) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		if v := labels[k]; v != "" && !slices.Contains(drop, k) {
			parts = append(parts, fmt.Sprintf("%s=%q", k, v))
		}
	}
	return "{" + strings.Join(parts, ",") + "}"
}

// compare requires every series of theirs in ours with its value.
func compare(t *testing.T, theirs, ours map[string]float64) {
	t.Helper()
	missing := 0
	for _, k := range slices.Sorted(maps.Keys(theirs)) {
		if got, ok := ours[k]; !ok || got != theirs[k] {
			if missing++; missing <= 5 {
				t.Errorf("theirs has %s %v, ours %v (there: %v)", k, theirs[k], got, ok)
			}
		}
	}
	if missing > 5 {
		t.Errorf("and %d more", missing-5)
	}
	if len(theirs) == 0 {
		t.Error("nothing was compared")
	}
}

func TestReplayExclusivePageOfDcgmExporter(t *testing.T) {
	theirs := readCapture(t, "h100x8_exclusive.txt")
	ours := ourPage(t, nodeOf(t, theirs), exporter.Config{Hostname: "vm"})
	compare(t, seriesOf(theirs), seriesOf(ours))
	for name, f := range theirs {
		got := ours[name].GetType()
		if name == "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL" {
			if got != dto.MetricType_GAUGE {
				t.Errorf("%s is a rate and must be a gauge, is %v", name, got)
			}
			continue
		}
		if got != f.GetType() {
			t.Errorf("%s is a %v in theirs, a %v in ours", name, f.GetType(), got)
		}
	}
}

func TestReplayTimeslicedPageShowsNoRandomPod(t *testing.T) {
	theirs := readCapture(t, "h100x8_timeslice4.txt")
	node := nodeOf(t, readCapture(t, "h100x8_timeslice4_virtual-gpus.txt"))
	if len(node.holders) != 32 {
		t.Fatalf("%d holders in the capture, want 32", len(node.holders))
	}
	ours := ourPage(t, node, exporter.Config{Hostname: "vm"})
	compare(t, seriesOf(theirs, "container", "namespace", "pod"), seriesOf(ours))
	var sum float64
	for _, m := range ours["gpumeter_allocation_share"].GetMetric() {
		if valueOf(m) != 0.25 || labelsOf(m)["pod"] == "" {
			t.Errorf("share %v, want a quarter with its pod", m)
		}
		sum += valueOf(m)
	}
	if sum != 8 {
		t.Errorf("the 32 holders have %v GPUs together, want 8", sum)
	}
}

func TestReplayVirtualGPUsPage(t *testing.T) {
	theirs := readCapture(t, "h100x8_timeslice4_virtual-gpus.txt")
	node := nodeOf(t, theirs)
	// Their per-process figures are zeros, made up where a process cannot be mapped to a pod,
	// beside the card's own value; ours copies the card's value as for every other field.
	for _, name := range []string{"DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED"} {
		delete(theirs, name)
	}
	ours := ourPage(t, node, exporter.Config{Hostname: "vm", VirtualGPUs: true})
	compare(t, seriesOf(theirs), seriesOf(ours))
}

func TestReplayMIGPageCountsPhysicalQuantitiesOnce(t *testing.T) {
	theirs := readCapture(t, "h100x8-mig_exclusive.txt")
	ours := ourPage(t, nodeOf(t, theirs), exporter.Config{Hostname: "vm"})
	bySlice, byCard := map[string]float64{}, map[string]float64{}
	for name, f := range theirs {
		field, _ := gpu.FieldByName(name)
		for _, m := range f.GetMetric() {
			l := labelsOf(m)
			if _, mig := l["GPU_I_ID"]; mig && field.Scope == gpu.ScopeGPU {
				byCard[name+key(l, "GPU_I_ID", "GPU_I_PROFILE")] = valueOf(m)
			} else {
				bySlice[name+key(l)] = valueOf(m)
			}
		}
	}
	got := seriesOf(ours)
	compare(t, bySlice, got)
	compare(t, byCard, got)
	if n := len(ours["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"].GetMetric()); n != 8 {
		t.Errorf("energy of 8 cards in %d series", n)
	}
	if n := len(theirs["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"].GetMetric()); n != 14 {
		t.Errorf("the capture should show the flaw in 14 series, has %d", n)
	}
}

func TestReplayKeepsEveryFamilyAndLabel(t *testing.T) {
	for _, name := range []string{"h100x8_exclusive.txt", "h100x8_timeslice4.txt", "h100x8_timeslice4_virtual-gpus.txt", "h100x8-mig_exclusive.txt"} {
		theirs := readCapture(t, name)
		node := nodeOf(t, theirs)
		ours := ourPage(t, node, exporter.Config{Hostname: "vm", VirtualGPUs: strings.Contains(name, "virtual")})
		labels := map[string]bool{}
		for _, f := range ours {
			for _, m := range f.GetMetric() {
				for k := range labelsOf(m) {
					labels[k] = true
				}
			}
		}
		for family, f := range theirs {
			if len(ours[family].GetMetric()) == 0 {
				t.Errorf("%s: family %s is not on our page", name, family)
			}
			for _, m := range f.GetMetric() {
				for k, v := range labelsOf(m) {
					// pod_uid="" is the same to Prometheus as no label.
					if v != "" && !labels[k] {
						t.Errorf("%s: label %s of %s is nowhere on our page", name, k, family)
						labels[k] = true
					}
				}
			}
		}
	}
}
