// SPDX-License-Identifier: Apache-2.0

package prometheus

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"

	"github.com/gpumeter/gpumeter/pkg/bill"
	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/promusage"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

const (
	fleetDays       = 30
	fleetCards      = 8
	fleetNamespaces = 10
	// fleetURL has another process of this test read from there.
	fleetURL    = "GPUMETER_FLEET_URL"
	fleetDetail = "GPUMETER_FLEET_HOURS"
)

// fleet writes what the hourly rules leave of so many nodes of eight GPUs over 30 days, as a block of Prometheus' storage.
func fleet(b *testing.B, nodes int) *tsdb.DB {
	b.Helper()
	dir := b.TempDir()
	w, err := tsdb.NewBlockWriter(slog.New(slog.DiscardHandler), dir, 3*fleetDays*24*time.Hour.Milliseconds())
	if err != nil {
		b.Fatal(err)
	}
	from := epoch.Add(-2 * time.Hour)
	for n := range nodes {
		app := w.Appender(context.Background())
		put := func(name string, rate float64, pairs ...string) {
			pairs = append(pairs, "__name__", "gpumeter:"+name+":hourly", "ledger_id", fmt.Sprintf("00000000-0000-4000-8000-%012d", n), "cluster", "a")
			l := labels.FromStrings(pairs...)
			var ref uint64
			for h := range fleetDays*24 + 3 {
				at := from.Add(time.Duration(h)*time.Hour - 30*time.Second)
				v := rate * float64(at.Unix()-from.Unix()+7200)
				got, err := app.Append(storage.SeriesRef(ref), l, at.UnixMilli(), v)
				if err != nil {
					b.Fatal(err)
				}
				ref = uint64(got)
			}
		}
		fleetNode(put, n)
		if err := app.Commit(); err != nil {
			b.Fatal(err)
		}
	}
	if _, err := w.Flush(context.Background()); err != nil {
		b.Fatal(err)
	}
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
	options := tsdb.DefaultOptions()
	options.RetentionDuration = 400 * 24 * time.Hour.Milliseconds()
	db, err := tsdb.Open(dir, nil, nil, options, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = db.Close() })
	return db
}

func fleetNode(put func(name string, rate float64, pairs ...string), n int) {
	put("ledger_info", 0, "node", fmt.Sprintf("gpu-%04d", n), "policy", "blend")
	put("ledger_created_timestamp", 0)
	put("ledger_commit_timestamp", 1)
	put("ledger_sequence", 1)
	put("observation_gap", 0, "reason", "restart")
	put("node_label", 0, "label", "pool", "value", "a")
	model := []string{"H100", "H200", "B200"}[n%3]
	for c := range fleetCards {
		card := []string{"UUID", fmt.Sprintf("GPU-%08d-%04d-4000-8000-000000000000", n, c), "model", model}
		put("device_info", 0, card[0], card[1], "gpu", strconv.Itoa(c))
		for what, rate := range map[string]float64{"capacity_gpu_seconds": 1, "capacity_memory_byte_seconds": 80 << 30, "card_energy_joules": 400} {
			put(what, rate, card...)
			if what == "card_energy_joules" {
				what = "capacity_energy_joules"
			}
			what = strings.TrimPrefix(what, "capacity_")
			put("allocated_"+what, rate*0.75, card...)
			put("corrected_"+what, 0, append([]string{"reason", "unobserved"}, card...)...)
			for i, cause := range sharing.Causes() {
				r := 0.0
				if i < 2 {
					r = rate * 0.125
				}
				put("unallocated_"+what, r, append([]string{"reason", string(cause)}, card...)...)
			}
		}
	}
	for i := range fleetNamespaces {
		series := []string{"namespace", fmt.Sprintf("team-%02d", (n+i*7)%100), "resource", "nvidia.com/gpu", "mode", "exclusive", "model", model}
		rate := 0.75 * fleetCards / fleetNamespaces
		put("namespace_gpu_seconds", rate, series...)
		put("namespace_memory_byte_seconds", rate*(80<<30), series...)
		put("namespace_energy_joules", rate*400, append([]string{"basis", "device"}, series...)...)
		put("namespace_used_gpu_seconds", rate/2, append([]string{"basis", "gr_engine"}, series...)...)
	}
}

// BenchmarkReportThousandNodes bills a month of a thousand nodes from the hourly rules, in a process of its own, and tells
// that one's time and memory. GPUMETER_FLEET_NODES has another number of them.
func BenchmarkReportThousandNodes(b *testing.B) {
	nodes := 1000
	if text := os.Getenv("GPUMETER_FLEET_NODES"); text != "" {
		nodes, _ = strconv.Atoi(text)
	}
	s := serve(b, &web{storage: fleet(b, nodes)})
	for name, days := range map[string]string{"month": "", "by-day": "1"} {
		if days != "" && nodes > 200 {
			continue // Each day of each card of each node is a row, and a thousand nodes' take gigabytes.
		}
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				c := exec.CommandContext(b.Context(), os.Args[0], "-test.run", "^TestFleetReader$", "-test.v")
				c.Env = append(os.Environ(), fleetURL+"="+s.URL, fleetDetail+"="+days)
				out, err := c.CombinedOutput()
				if err != nil {
					b.Fatalf("%v\n%s", err, out)
				}
				// The server is this process, and Prometheus' own answers faster.
				b.ReportMetric((c.ProcessState.UserTime() + c.ProcessState.SystemTime()).Seconds(), "reader-cpu-s")
				for line := range strings.Lines(string(out)) {
					var what string
					var value float64
					if n, _ := fmt.Sscanf(strings.TrimSpace(line), "figure %s %g", &what, &value); n == 2 {
						b.ReportMetric(value, what)
					}
				}
			}
		})
	}
}

// TestFleetReader is the reading process of BenchmarkReportThousandNodes.
func TestFleetReader(t *testing.T) {
	url := os.Getenv(fleetURL)
	if url == "" {
		t.Skip("it is a part of BenchmarkReportThousandNodes")
	}
	s, err := promusage.New(promusage.Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	step := fleetDays
	if os.Getenv(fleetDetail) != "" {
		step = 1
	}
	q := ledger.Query{}
	for d := 0; d <= fleetDays; d += step {
		q.Boundaries = append(q.Boundaries, epoch.Add(time.Duration(d)*24*time.Hour))
	}
	begin := time.Now()
	u, err := s.Usage(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	read := time.Since(begin)
	for _, n := range u.Nodes {
		if len(n.Missing) > 0 {
			t.Fatalf("%s lacks %v", n.Node, n.Missing)
		}
	}
	bl, err := bill.Make(u, bill.Options{From: q.Boundaries[0], To: q.Boundaries[len(q.Boundaries)-1], Zone: time.UTC, GroupBy: []bill.Dimension{bill.ByNamespace, bill.ByModel}})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("\nfigure read-s %g\n", read.Seconds())
	fmt.Printf("figure read+bill-s %g\n", time.Since(begin).Seconds())
	fmt.Printf("figure rows %d\n", len(bl.Rows))
	fmt.Printf("figure peak-MB %g\n", peakMB(t))
}

// peakMB is the most memory that this process had.
func peakMB(t *testing.T) float64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		var kb float64
		if n, _ := fmt.Sscanf(line, "VmHWM: %g kB", &kb); n == 1 {
			return kb / 1024
		}
	}
	return 0
}
