// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/gpumeter/gpumeter/pkg/exporter"
	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/meter"
	"github.com/gpumeter/gpumeter/pkg/sharing"
	"github.com/gpumeter/gpumeter/pkg/sim"
)

// The laws of docs/architecture.md that hold so far, each under its name.

// TestLawConservation plays each scenario for half an hour: on every page the parts of each GPU add up
// to one, the ledger's totals to all of it, and the pages are valid.
func TestLawConservation(t *testing.T) {
	for _, name := range sim.Shipped() {
		t.Run(name, func(t *testing.T) {
			playing(t, name, 20*time.Second, exporter.Config{}, func(t *testing.T, s station) {
				for i := range 90 {
					page := s.page()
					if i%10 != 0 {
						page = shareLines(page)
					}
					cards := 0
					for _, d := range s.meter.Latest().Divided() {
						if !d.IsMIG() {
							cards++
						}
					}
					families := parsePage(t, page)
					if err := errors.Join(addsUp(families, cards), balances(families)); err != nil {
						t.Fatalf("%v into the story: %v", s.asked.Elapsed(), err)
					}
					pass(20 * time.Second)
				}
			})
		})
	}
}

// shareLines is a page without what a look at the shares alone need not parse.
func shareLines(page []byte) []byte {
	var out []byte
	for line := range bytes.Lines(page) {
		for _, family := range []string{"gpumeter_allocation_share{", "gpumeter_unallocated_share{", "gpumeter_conservation_error_gpu_seconds{"} {
			if bytes.HasPrefix(line, []byte(family)) {
				out = append(out, line...)
			}
		}
	}
	return out
}

// addsUp checks that the shares and the rest of each card on a page are one.
func addsUp(page map[string]*dto.MetricFamily, cards int) error {
	sum := map[string]float64{}
	for _, family := range []string{"gpumeter_allocation_share", "gpumeter_unallocated_share"} {
		for _, m := range page[family].GetMetric() {
			sum[labelsOf(m)["UUID"]] += valueOf(m)
		}
	}
	if len(sum) != cards {
		return fmt.Errorf("shares of %d cards, want %d", len(sum), cards)
	}
	for card, v := range sum {
		if math.Abs(v-1) > 1e-12 {
			return fmt.Errorf("the parts of %s add up to %v", card, v)
		}
	}
	return nil
}

// balances checks that the ledger is at peace with itself, and so are the totals of each card where they are on the page.
func balances(page map[string]*dto.MetricFamily) error {
	checks := page["gpumeter_conservation_error_gpu_seconds"].GetMetric()
	if len(checks) == 0 {
		return errors.New("nobody checks the ledger")
	}
	for _, m := range checks {
		if v := valueOf(m); v != 0 {
			return fmt.Errorf("the ledger of %s is wrong by %v", labelsOf(m)["UUID"], v)
		}
	}
	for what, whole := range map[string]string{"gpu_seconds": "capacity", "memory_byte_seconds": "capacity", "energy_joules": "card"} {
		rest, scale := map[string]float64{}, map[string]float64{}
		for family, sign := range map[string]float64{whole: 1, "corrected": 1, "allocated": -1, "unallocated": -1} {
			for _, m := range page["gpumeter_"+family+"_"+what+"_total"].GetMetric() {
				rest[labelsOf(m)["UUID"]] += sign * valueOf(m)
				scale[labelsOf(m)["UUID"]] += valueOf(m)
			}
		}
		for card, v := range rest {
			// Each of nine totals is shown in whole millionths of a second, in whole millijoules, of bytes as a float.
			grain := 1e-6
			if what == "energy_joules" {
				grain = 1e-3
			}
			if math.Abs(v) > 9*grain+scale[card]*1e-14 {
				return fmt.Errorf("%s of %s: %v of %v are missing", what, card, v, scale[card])
			}
		}
	}
	return nil
}

// counting is a node that counts what it is asked.
type counting struct {
	*sim.Node

	calls atomic.Int64
}

func (c *counting) Read(ctx context.Context, fields []gpu.FieldID) (gpu.Reading, error) {
	c.calls.Add(1)
	return c.Node.Read(ctx, fields)
}

func (c *counting) List(ctx context.Context) (sharing.Listing, error) {
	c.calls.Add(1)
	return c.Node.List(ctx)
}

// TestLawAScrapeOnlyReads scrapes a thousand times between two ticks: the sources are not asked once more,
// and each scrape is the same page.
func TestLawAScrapeOnlyReads(t *testing.T) {
	playing(t, "h100x8-timeslice4", time.Minute, exporter.Config{}, func(t *testing.T, s station) {
		before, page := s.asked.calls.Load(), string(s.page())
		for range 1000 {
			if again := string(s.page()); again != page {
				t.Fatal("two scrapes of one snapshot differ")
			}
		}
		if n := s.asked.calls.Load() - before; n != 0 || before != 2 {
			t.Errorf("a thousand scrapes asked the sources %d times, one tick %d times", n, before)
		}
	})
}

// TestLawOneWriter keeps every snapshot of a bad day and looks at them again at its end, with scrapes in between.
func TestLawOneWriter(t *testing.T) {
	playing(t, "bad-day", 15*time.Second, exporter.Config{}, func(t *testing.T, s station) {
		kept := map[string]func() string{}
		for range 80 {
			snap := s.meter.Latest()
			whole := func() string { return fmt.Sprintf("%+v %+v %+v", *snap, *snap.Ledger, *snap.Ledger.Totals) }
			kept[whole()] = whole
			s.page()
			pass(15 * time.Second)
		}
		for was, is := range kept {
			if now := is(); now != was {
				t.Fatalf("a published snapshot changed\nwas %.2000s\nis  %.2000s", was, now)
			}
		}
		if len(kept) < 60 {
			t.Errorf("%d different snapshots in 20 minutes", len(kept))
		}
	})
}

// TestLawAbsentIsNotZero asks for fields that some devices do not have: they have no sample, and the reason is counted.
func TestLawAbsentIsNotZero(t *testing.T) {
	playing(t, "bad-day", 15*time.Second, exporter.Config{}, func(t *testing.T, s station) {
		pass(7*time.Minute + 30*time.Second)
		snap, page := s.meter.Latest(), parsePage(t, s.page())
		absent := map[string]float64{}
		for _, m := range page["gpumeter_absent_values"].GetMetric() {
			absent[labelsOf(m)["field"]] += valueOf(m)
		}
		reasons := 0
		for column, id := range snap.Reading.Fields {
			field, _ := gpu.FieldByID(id)
			if field.Type == gpu.FieldText {
				continue
			}
			var present, missing float64
			for _, sample := range snap.Reading.Samples {
				switch v := sample.Values[column]; {
				case v.Present():
					present++
				case v.Reason() != gpu.ReasonScope:
					missing++
				}
			}
			names := append([]string{field.Name}, field.Aliases...)
			for _, name := range names {
				if f := page[name]; f != nil {
					if got := float64(len(f.GetMetric())); got != present {
						t.Errorf("%s: %v samples of %v present values", name, got, present)
					}
					if absent[name] != missing {
						t.Errorf("%s: %v counted absent, %v are", name, absent[name], missing)
					}
					reasons += int(missing)
				}
			}
		}
		if reasons == 0 {
			t.Error("nothing was absent: the test saw nothing")
		}
	})
}

// TestLawOneBadThingCostsOneThing follows a bad day: whatever breaks, the temperatures of the GPUs that did not break are on
// every page.
func TestLawOneBadThingCostsOneThing(t *testing.T) {
	playing(t, "bad-day", 10*time.Second, exporter.Config{}, func(t *testing.T, s station) {
		broke := map[string]bool{}
		for range 120 {
			snap := s.meter.Latest()
			blamed := map[gpu.UUID]bool{}
			for _, f := range snap.Faults {
				broke[f.Source+" "+f.Kind] = true
				blamed[f.Subject] = true
			}
			seen := map[gpu.UUID]bool{}
			for _, m := range parsePage(t, s.page())["DCGM_FI_DEV_GPU_TEMP"].GetMetric() {
				seen[gpu.UUID(labelsOf(m)["UUID"])] = true
			}
			for _, d := range snap.Reading.Devices {
				if !d.IsMIG() && !blamed[d.UUID] && !seen[d.UUID] {
					t.Fatalf("%v into the story GPU %d is off the page; faults: %v", s.asked.Elapsed(), d.Index, snap.Faults)
				}
			}
			pass(10 * time.Second)
		}
		if all := slices.Sorted(maps.Keys(broke)); !strings.Contains(fmt.Sprint(all), "telemetry lost") || len(all) < 3 {
			t.Errorf("the day was not bad enough: %v", all)
		}
	})
}

// fading is a node whose driver can be silent.
type fading struct {
	*sim.Node

	silent atomic.Bool
}

func (f *fading) Read(ctx context.Context, fields []gpu.FieldID) (gpu.Reading, error) {
	if f.silent.Load() {
		return gpu.Reading{}, errors.New("the driver says nothing")
	}
	return f.Node.Read(ctx, fields)
}

// kept is a disk: it has the last state of health in the form in which it outlives a process.
type kept struct {
	t    *testing.T
	last atomic.Pointer[[]byte]
}

func (k *kept) Save(s health.State) error {
	data, err := json.Marshal(s)
	k.last.Store(&data)
	return err
}

// state is what a new process reads.
func (k *kept) state() health.State {
	k.t.Helper()
	var s health.State
	if data := k.last.Load(); data != nil {
		if err := json.Unmarshal(*data, &s); err != nil {
			k.t.Fatal(err)
		}
	}
	return s
}

// TestLawUnknownIsNotUnhealthyAndARestartDoesNotHeal plays a day of broken GPUs with an exporter that is restarted every two
// minutes, and a driver that falls silent in between: no restart changes a verdict that withdraws, no silence makes one, and what is
// booked as unhealthy are the GPUs with such a verdict and no others.
func TestLawUnknownIsNotUnhealthyAndARestartDoesNotHeal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sc, err := sim.Open("bad-health")
		if err != nil {
			t.Fatal(err)
		}
		node, err := sim.NewNode(sc, sim.Options{Start: time.Now()})
		if err != nil {
			t.Fatal(err)
		}
		source, disk := &fading{Node: node}, &kept{t: t}
		var withdrawn map[gpu.UUID]health.Verdict
		seen := map[health.Status]int{}
		for life := range 14 {
			living(t, source, disk, func(m *meter.Meter) {
				still := unhealthyOf(m.Latest().Health)
				for device := range withdrawn {
					if _, is := still[device]; is {
						continue
					}
					t.Errorf("%v into the story a restart healed %s", node.Elapsed(), device)
				}
				for step := range 12 {
					before := unhealthyOf(m.Latest().Health)
					source.silent.Store(life%3 == 2 && step > 4)
					pass(10 * time.Second)
					s := m.Latest()
					bookedAsJudged(t, s)
					for _, v := range s.Health.Verdicts {
						seen[v.Status]++
						if _, was := before[v.Device]; v.Status == health.Unhealthy && !was && source.silent.Load() {
							t.Errorf("%v into the story silence broke %s: %s", node.Elapsed(), v.Device, v.Reason)
						}
						if v.Status == health.Healthy && source.silent.Load() && step > 8 {
							t.Errorf("%v into the story nobody answers, and %s is healthy", node.Elapsed(), v.Device)
						}
					}
				}
				source.silent.Store(false)
				withdrawn = unhealthyOf(m.Latest().Health)
				maps.DeleteFunc(withdrawn, func(_ gpu.UUID, v health.Verdict) bool {
					return slices.ContainsFunc(v.Conditions, func(c health.Condition) bool { return c.Recovery != "" })
				})
			})
		}
		for _, status := range health.Statuses() {
			if seen[status] == 0 {
				t.Errorf("nothing was ever %v: the test saw too little", status)
			}
		}
	})
}

// living is one life of an exporter's meter.
func living(t *testing.T, source *fading, disk *kept, story func(*meter.Meter)) {
	t.Helper()
	rules, err := health.NewRules(health.Config{XIDs: fewXIDs(t)})
	if err != nil {
		t.Fatal(err)
	}
	m, err := meter.New(meter.Config{
		Telemetry: source, Allocations: source, Interval: 10 * time.Second,
		Health: rules, HealthState: disk.state(), Conditions: disk,
		BootID: func() string { return source.BootID(source.Elapsed()) },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	synctest.Wait()
	story(m)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func unhealthyOf(r *health.Report) map[gpu.UUID]health.Verdict {
	out := map[gpu.UUID]health.Verdict{}
	for _, v := range r.Verdicts {
		if v.Status == health.Unhealthy {
			out[v.Device] = v
		}
	}
	return out
}

// bookedAsJudged checks that all of each card with an Unhealthy verdict is booked as unhealthy, and of
// a card without such a device nothing is.
func bookedAsJudged(t *testing.T, s *meter.Snapshot) {
	t.Helper()
	broken := unhealthyOf(s.Health)
	touched := map[gpu.UUID]bool{}
	for _, v := range broken {
		touched[v.Card] = true
	}
	for _, u := range s.Division.Unallocated {
		if u.Cause == sharing.CauseUnhealthy && !touched[u.Card] {
			t.Errorf("a part of %s is booked as unhealthy, and no verdict says so", u.Card)
		}
	}
	for _, share := range s.Division.Shares {
		if _, whole := broken[share.Card]; whole {
			t.Errorf("%s is charged for %s, which is unhealthy", share.Holder.Pod, share.Card)
		}
		if _, part := broken[share.Device]; part {
			t.Errorf("%s is charged for %s, which is unhealthy", share.Holder.Pod, share.Device)
		}
	}
}
