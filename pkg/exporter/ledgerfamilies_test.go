// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"pgregory.net/rapid"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/meter"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// of is n/den of GPU time, memory and energy each.
func of(n, den int64) ledger.Amount {
	return ledger.Amount{
		GPU: sharing.NewFraction(n, den), Memory: sharing.NewFraction(81920*n, den), Energy: sharing.NewFraction(300*n, den),
	}
}

func cardTotal(d gpu.Device, capacity, allocated ledger.Amount, unallocated map[sharing.Cause]ledger.Amount) ledger.CardTotal {
	return ledger.CardTotal{
		Card: ledger.Card{UUID: d.UUID, Index: d.Index, Model: d.Model, Memory: 81920}, Present: true,
		Capacity: capacity, Allocated: allocated, Unallocated: unallocated,
		AllocatedEnergy: map[ledger.Basis]sharing.Fraction{ledger.BasisShare: allocated.Energy},
	}
}

// meteredNode is the mixed node after an hour, with a pod that has come since the last commit, one that has
// ended, and one whose name is hostile.
func meteredNode() *meter.Snapshot {
	s := mixedNode()
	hour := int64(3_600_000)
	d := s.Reading.Devices
	one, two, three := cardTotal(d[0], of(hour, 1), of(hour, 1), nil), cardTotal(d[1], of(hour, 1), of(2*hour, 3), map[sharing.Cause]ledger.Amount{
		sharing.CauseUnrequested: of(hour, 3), sharing.CauseUnobserved: of(hour, 3),
	}), cardTotal(d[2], of(hour, 1), of(hour, 7), map[sharing.Cause]ledger.Amount{sharing.CauseFree: of(6*hour, 7)})
	two.Corrected = map[sharing.Cause]ledger.Amount{sharing.CauseUnobserved: of(hour, 3)}
	exclusive := ledger.Series{Namespace: "team-a", Resource: "nvidia.com/gpu", Mode: sharing.ModeExclusive, Model: d[0].Model}
	shared := ledger.Series{Namespace: "team-b", Resource: "nvidia.com/gpu.shared", Mode: sharing.ModeShared, Model: d[1].Model}
	cut := ledger.Series{Namespace: "team-b", Resource: "nvidia.com/mig-3g.40gb", Mode: sharing.ModeMIG, Model: d[2].Model, Profile: "3g.40gb"}
	fresh := ledger.Series{Namespace: "team-c", Resource: "nvidia.com/gpu.shared", Mode: sharing.ModeShared, Model: d[1].Model}
	used := func(b ledger.Basis, n, den int64) map[ledger.Basis]sharing.Fraction {
		return map[ledger.Basis]sharing.Fraction{b: sharing.NewFraction(n, den)}
	}
	pod := func(series ledger.Series, name, uid string, card gpu.UUID, instance int, a ledger.Amount) ledger.PodTotal {
		return ledger.PodTotal{PodSeries: ledger.PodSeries{Series: series, Pod: name, PodUID: uid, Container: "main", Card: card, GPUInstance: instance}, Amount: a}
	}
	train := pod(exclusive, "train-0", "uid-1", d[0].UUID, gpu.NoInstance, of(hour, 2))
	train.Used = used(ledger.BasisEngine, hour, 4)
	train.Pod = ledger.Pod{Namespace: "team-a", Name: "train-0", UID: "uid-1", WorkloadKind: "StatefulSet", Workload: "train"}
	sidecar := train
	sidecar.Container, sidecar.Ended = "sidecar", noon.Add(-time.Minute).UnixMilli()
	s.Ledger = &ledger.View{
		Totals: &ledger.Totals{
			LedgerID: "3f9c0ffee", Node: "node-7", Cluster: "prod", Created: noon.Add(-time.Hour), Sequence: 1234,
			At:    ledger.Instant{BootID: "boot-1", Boot: hour, Wall: noon.UnixMilli() + 250},
			Cards: []ledger.CardTotal{one, two, three},
			Series: []ledger.SeriesTotal{
				{Series: exclusive, Amount: of(hour, 1), Used: used(ledger.BasisEngine, hour, 2)},
				{Series: shared, Amount: of(2*hour, 3), Used: used(ledger.BasisEqual, 1, 3)},
				{Series: cut, Amount: of(hour, 7), Used: used(ledger.BasisUtil, hour, 8)},
			},
			Pods: []ledger.PodTotal{
				train, sidecar,
				pod(shared, hostile, "", d[1].UUID, gpu.NoInstance, of(2*hour, 3)), pod(cut, "serve", "uid-2", d[2].UUID, 1, of(hour, 7)),
			},
			Gaps:       map[string]int64{ledger.GapRestart: 12345, ledger.GapStall: 0},
			NodeLabels: map[string]string{"node.kubernetes.io/instance-type": "p5.48xlarge", "pool": hostile},
		},
		NewCards:  []ledger.Card{{UUID: d[6].UUID, Index: d[6].Index, Model: d[6].Model}},
		NewSeries: []ledger.Series{fresh},
		NewPods:   []ledger.PodTotal{pod(fresh, "batch", "uid-3", d[1].UUID, gpu.NoInstance, ledger.Amount{})},
		State: ledger.BookState{
			Durable: true, Committed: noon, Pending: 3, Size: 1 << 20, Oldest: noon.Add(-time.Hour),
			Errors: map[string]uint64{"commit": 2}, Restored: ledger.RestoredLast,
		},
		Unbalanced: map[gpu.UUID]sharing.Fraction{d[0].UUID: {}, d[1].UUID: {}, d[2].UUID: {}, d[6].UUID: {}},
	}
	s.XIDs = map[meter.XIDKey]uint64{{GPU: d[0].UUID, GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance, XID: 31}: 99}
	return s
}

func meteredConfig(t testing.TB) Config {
	cfg := eventfulConfig(t)
	cfg.Policy = "blend"
	return cfg
}

// familiesOf is a page, parsed.
func familiesOf(t *testing.T, page string) map[string]*dto.MetricFamily {
	t.Helper()
	families, err := parsedText(page)
	if err != nil {
		t.Fatal(err)
	}
	return families
}

func TestGoldenPageOfALedger(t *testing.T) {
	golden(t, "ledger.prom", []byte(ownPart(pageOf(t, meteredNode(), nil, meteredConfig(t)))))
}

func TestPagesOfALedgerAreValidInEachFormat(t *testing.T) {
	e := exporterOf(t, meteredNode(), rowsOf(t, mixedCounters), meteredConfig(t))
	if err := checkOpenMetrics([]byte(writtenPage(t, e, FormatOpenMetrics))); err != nil {
		t.Error(err)
	}
	text, err := parsedText(writtenPage(t, e, FormatText))
	if err != nil {
		t.Fatal(err)
	}
	protobuf, err := parsedProtobuf(writtenPage(t, e, FormatProtobuf))
	if err != nil || len(protobuf) != len(text) {
		t.Errorf("%d families in protobuf, %d in text: %v", len(protobuf), len(text), err)
	}
}

func TestTheTotalsOfEachCardAddUpOnThePage(t *testing.T) {
	families := familiesOf(t, pageOf(t, meteredNode(), nil, meteredConfig(t)))
	for _, what := range []string{"gpu_seconds", "memory_byte_seconds", "energy_joules"} {
		whole := "capacity"
		if what == "energy_joules" {
			whole = "card"
		}
		left, scale := map[string]float64{}, map[string]float64{}
		for family, sign := range map[string]float64{whole: 1, "corrected": 1, "allocated": -1, "unallocated": -1} {
			if family == "corrected" && what == "energy_joules" {
				continue
			}
			metrics := families["gpumeter_"+family+"_"+what+"_total"].GetMetric()
			if len(metrics) == 0 {
				t.Errorf("no family %s of %s", family, what)
			}
			for _, m := range metrics {
				left[labelValue(m, "UUID")] += sign * m.GetCounter().GetValue()
				scale[labelValue(m, "UUID")] += m.GetCounter().GetValue()
			}
		}
		if what == "energy_joules" {
			// The page is made up: nobody corrects energy.
			delete(left, "GPU-1")
		}
		grain := 1e-5
		if what == "energy_joules" {
			grain = 1e-2
		}
		for card, rest := range left {
			if math.Abs(rest) > grain+scale[card]*1e-15 {
				t.Errorf("%s of %s: %v are missing", what, card, rest)
			}
		}
	}
}

func labelValue(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

func TestABookThatDoesNotBalanceIsOnThePage(t *testing.T) {
	s := meteredNode()
	s.Ledger.Totals.Cards[2].Allocated.GPU = s.Ledger.Totals.Cards[2].Allocated.GPU.Sub(sharing.NewFraction(1500, 1))
	s.Ledger.Unbalanced["GPU-1"] = sharing.NewFraction(-1, 4)
	got := map[string]float64{}
	for _, m := range familiesOf(t, pageOf(t, s, nil, meteredConfig(t)))["gpumeter_conservation_error_gpu_seconds"].GetMetric() {
		got[labelValue(m, "UUID")] = m.GetGauge().GetValue()
	}
	if fmt.Sprint(got) != "map[GPU-0:0 GPU-1:0.25 GPU-2:1.5 GPU-3:0]" {
		t.Errorf("%v", got)
	}
}

func TestBeforeTheFirstCommitNoTotalIsOnThePage(t *testing.T) {
	for name, totals := range map[string]*ledger.Totals{"nothing": nil, "an empty account": {}} {
		s := meteredNode()
		s.Ledger.Totals, s.XIDs = totals, nil
		s.Ledger.State.Degraded = true
		page := pageOf(t, s, nil, meteredConfig(t))
		for _, never := range []string{"_gpu_seconds_total", "_joules_total", "byte_seconds_total", "gpumeter_xid_errors_total", "ledger_info", "gpumeter_pod_info"} {
			if strings.Contains(page, never) {
				t.Errorf("%s: the page has %s", name, never)
			}
		}
		for _, always := range []string{"gpumeter_ledger_degraded 1\n", `gpumeter_ledger_errors_total{operation="open"} 0`, "gpumeter_conservation_error_gpu_seconds{"} {
			if !strings.Contains(page, always) {
				t.Errorf("%s: the page lacks %s", name, always)
			}
		}
	}
}

func TestWithoutABookThePageSaysNothingOfOne(t *testing.T) {
	page := pageOf(t, eventfulNode(), nil, meteredConfig(t))
	if strings.Contains(page, "gpumeter_ledger_") || !strings.Contains(page, `gpumeter_xid_errors_total{UUID="GPU-0",xid="31",class="app"} 12`) {
		t.Errorf("page:\n%s", ownPart(page))
	}
}

func TestABookOfMemoryHasNoLogAndIsNotDegraded(t *testing.T) {
	s := meteredNode()
	s.Ledger.State = ledger.BookState{}
	page := pageOf(t, s, nil, meteredConfig(t))
	if strings.Contains(page, "gpumeter_ledger_size_bytes") || strings.Contains(page, "gpumeter_ledger_oldest") || !strings.Contains(page, "gpumeter_ledger_degraded 0\n") {
		t.Errorf("page:\n%s", ownPart(page))
	}
}

func TestPodsCanBeLeftOutOfThePage(t *testing.T) {
	cfg := meteredConfig(t)
	cfg.NoPodCharges = true
	page := pageOf(t, meteredNode(), nil, cfg)
	if strings.Contains(page, "gpumeter_pod_") || !strings.Contains(page, "gpumeter_namespace_gpu_seconds_total{") {
		t.Errorf("page:\n%s", ownPart(page))
	}
}

func TestASeriesIsBornAtZero(t *testing.T) {
	page := pageOf(t, meteredNode(), nil, meteredConfig(t))
	for _, want := range []string{
		`gpumeter_namespace_gpu_seconds_total{namespace="team-c",resource="nvidia.com/gpu.shared",mode="shared",`,
		`gpumeter_pod_gpu_seconds_total{namespace="team-c",pod="batch",pod_uid="uid-3",container="main",UUID="GPU-1",`,
		`gpumeter_capacity_gpu_seconds_total{UUID="GPU-3",`,
		`gpumeter_unallocated_energy_joules_total{UUID="GPU-3",`,
		`gpumeter_observation_gap_seconds_total{ledger_id="3f9c0ffee",reason="reboot"`,
	} {
		line := ""
		for l := range strings.Lines(page) {
			if strings.HasPrefix(l, want) {
				line = l
				break
			}
		}
		if !strings.HasSuffix(line, " 0\n") {
			t.Errorf("%s...: %q, want 0", want, line)
		}
	}
}

// TestWhatIsShownReadsBackAsWholeMillionths is what makes the difference of two pages exact.
func TestWhatIsShownReadsBackAsWholeMillionths(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// Up to a hundred GPUs for ten years, in milliseconds.
		register := sharing.NewFraction(rapid.Int64Range(0, 100*10*366*24*3_600_000).Draw(t, "ms"), rapid.Int64Range(1, 1000).Draw(t, "parts"))
		text := string(appendNumber(nil, decimal(0, micro(register))))
		var back float64
		if _, err := fmt.Sscan(text, &back); err != nil {
			t.Fatal(err)
		}
		if whole := int64(math.Round(back * 1e6)); whole != ledger.Micro(register) {
			t.Fatalf("%s reads as %d millionths, want %d", text, whole, ledger.Micro(register))
		}
	})
}
