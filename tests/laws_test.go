// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/gpumeter/gpumeter/pkg/exporter"
	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/sharing"
	"github.com/gpumeter/gpumeter/pkg/sim"
)

// The laws of docs/architecture.md that hold so far, each under its name.

// TestLawConservation plays each scenario for half an hour: on every page the parts of each GPU add up
// to one, and the pages are valid.
func TestLawConservation(t *testing.T) {
	for _, name := range sim.Shipped() {
		t.Run(name, func(t *testing.T) {
			playing(t, name, 20*time.Second, exporter.Config{}, func(t *testing.T, s station) {
				for i := range 90 {
					page := s.page()
					if i%10 != 0 {
						page = shareLines(page)
					}
					if err := addsUp(parsePage(t, page), 8); err != nil {
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
		if bytes.HasPrefix(line, []byte("gpumeter_allocation_share{")) || bytes.HasPrefix(line, []byte("gpumeter_unallocated_share{")) {
			out = append(out, line...)
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
			kept[fmt.Sprintf("%+v", *snap)] = func() string { return fmt.Sprintf("%+v", *snap) }
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
