// SPDX-License-Identifier: Apache-2.0

package app

import (
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gpumeter/gpumeter/pkg/cluster"
	"github.com/gpumeter/gpumeter/pkg/ledger"
)

func TestTheLedgersFlags(t *testing.T) {
	got, err := parse(t, map[string]string{"GPUMETER_CLUSTER_NAME": "prod"}, "--ledger-commit=30s", "--ledger-retention=36h", "--ledger-max-size=512MiB",
		"--pod-gpu-seconds=false", "--node-labels=pool", "--node-labels=example.com/*", "--kubelet-poll=0", "--kubernetes-pod-watch=off", "--kubeconfig=/k")
	if err != nil {
		t.Fatal(err)
	}
	want := LedgerConfig{Commit: 30 * time.Second, Retention: "36h", MaxSize: "512MiB", Cluster: "prod", NodeLabels: []string{"pool", "example.com/*"}}
	if d := cmp.Diff(want, got.Ledger); d != "" || got.KubeletPoll != 0 || got.PodWatch != PodWatchOff || got.Kubeconfig != "/k" {
		t.Errorf("%s; poll %v, watch %q, kubeconfig %q", d, got.KubeletPoll, got.PodWatch, got.Kubeconfig)
	}
	if err := got.Validate(); err != nil {
		t.Error(err)
	}
}

func TestALedgerThatCannotBeIsRefusedByItsFlag(t *testing.T) {
	tests := map[string]struct {
		change func(*Config)
		flag   string
	}{
		"commits all the time": {func(c *Config) { c.Ledger.Commit = time.Millisecond }, "--ledger-commit"},
		"commits never":        {func(c *Config) { c.Ledger.Commit = time.Hour }, "--ledger-commit"},
		"kept for no time":     {func(c *Config) { c.Ledger.Retention = "0d" }, "--ledger-retention"},
		"kept for ever":        {func(c *Config) { c.Ledger.Retention = "99999999999999999999d" }, "--ledger-retention"},
		"kept for too long":    {func(c *Config) { c.Ledger.Retention = "4000000d" }, "--ledger-retention"},
		"kept for what":        {func(c *Config) { c.Ledger.Retention = "a year" }, "--ledger-retention"},
		"tiny":                 {func(c *Config) { c.Ledger.MaxSize = "1MiB" }, "--ledger-max-size"},
		"of no size":           {func(c *Config) { c.Ledger.MaxSize = "NaN GiB" }, "--ledger-max-size"},
		"of what size":         {func(c *Config) { c.Ledger.MaxSize = "large" }, "--ledger-max-size"},
		"labels of what":       {func(c *Config) { c.Ledger.NodeLabels = []string{"["} }, "--node-labels"},
		"watch of what":        {func(c *Config) { c.PodWatch = "perhaps" }, "--kubernetes-pod-watch"},
		"a kubelet overrun":    {func(c *Config) { c.KubeletPoll = time.Microsecond }, "--kubelet-poll"},
		"a kubelet forgotten":  {func(c *Config) { c.KubeletPoll = time.Hour }, "--kubelet-poll"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			cfg := Defaults()
			test.change(&cfg)
			if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), test.flag) {
				t.Errorf("error %v, want one that names %s", err, test.flag)
			}
		})
	}
}

func TestTimesAndSizesAreReadAsTheyAreWritten(t *testing.T) {
	for text, want := range map[string]time.Duration{"400d": 9600 * time.Hour, "1d": 24 * time.Hour, " 48h ": 48 * time.Hour, "3650d": 3650 * 24 * time.Hour} {
		if got, err := (LedgerConfig{Retention: text}).retention(); got != want || err != nil {
			t.Errorf("%q is %v, %v", text, got, err)
		}
	}
	for text, want := range map[string]int64{"1GiB": 1 << 30, "1.5 GiB": 3 << 29, "67108864": 64 << 20, "2TiB": 2 << 40, "65536KiB": 64 << 20} {
		if got, err := (LedgerConfig{MaxSize: text}).maxSize(); got != want || err != nil {
			t.Errorf("%q is %v, %v", text, got, err)
		}
	}
}

func TestAFastStoryHasNoGapWhereItsMachineIsHeldUp(t *testing.T) {
	for _, tt := range []struct {
		interval time.Duration
		speed    float64
		want     time.Duration
	}{
		{time.Second, 1, 10 * time.Second},
		{time.Minute, 1, 3 * time.Minute},
		{time.Second, 0.5, 10 * time.Second},
		{time.Second, 2, 5 * time.Minute},
		{250 * time.Millisecond, 60, 10 * time.Minute},
		{30 * time.Second, 60, 90 * time.Minute},
	} {
		if got := ledger.LongestPause(lookEvery(tt.interval, tt.speed)); got != tt.want {
			t.Errorf("every %v at speed %g: a gap from %v on, want %v", tt.interval, tt.speed, got, tt.want)
		}
	}
}

// tale is a simulated node's time that a test sets.
type tale struct {
	start   time.Time
	elapsed time.Duration
	boots   []time.Duration
}

func (s *tale) Elapsed() time.Duration { return s.elapsed }
func (s *tale) Now() time.Time         { return s.start.Add(s.elapsed) }
func (s *tale) BootID(at time.Duration) string {
	n := 0
	for _, b := range s.boots {
		if b <= at {
			n++
		}
	}
	return "boot-" + strconv.Itoa(n)
}

func TestAStorysClockCountsFromEachBoot(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &tale{start: time.Unix(1_700_000_000, 0)}
		for range rapid.IntRange(0, 3).Draw(t, "boots") {
			s.boots = append(s.boots, time.Duration(rapid.Int64Range(1, 1e13).Draw(t, "boot")))
		}
		clock := storyClock(s)
		last := clock()
		for range 30 {
			step := time.Duration(rapid.Int64Range(0, 1e12).Draw(t, "step"))
			s.elapsed += step
			now := clock()
			if now.Wall != s.Now().UnixMilli() {
				t.Fatalf("the wall clock shows %d, want %d", now.Wall, s.Now().UnixMilli())
			}
			since := now.Boot
			if now.BootID == last.BootID {
				since -= last.Boot
				if ms := step.Milliseconds(); since < ms || since > ms+1 {
					t.Fatalf("%d ms of %v within a boot", since, step)
				}
			} else if since < 0 || since > step.Milliseconds() {
				t.Fatalf("%d ms since a boot within the last %v", since, step)
			}
			last = now
		}
	})
}

func TestAStoryToldAgainIsAnotherBoot(t *testing.T) {
	one, two := storyClock(&tale{start: time.Unix(1, 0)})(), storyClock(&tale{start: time.Unix(2, 0)})()
	if one.BootID == two.BootID {
		t.Errorf("both are %q", one.BootID)
	}
}

func TestTheNodesClockIsTheKernels(t *testing.T) {
	a := &App{cfg: aloof(Defaults()), sources: NewSources(aloof(Defaults()), Defaults().logger(&logs{})), log: Defaults().logger(&logs{})}
	clock := a.clock()
	first := clock()
	id, err := readBootID(bootIDFile)
	if err != nil || first.BootID != id || first.Boot <= 0 || time.Since(time.UnixMilli(first.Wall)).Abs() > time.Minute {
		t.Errorf("%+v, the boot is %q: %v", first, id, err)
	}
	if second := clock(); second.Boot < first.Boot {
		t.Errorf("%d after %d", second.Boot, first.Boot)
	}
}

func TestOnlyTheLabelsThatAreAskedForAreKept(t *testing.T) {
	state, changes := cluster.NodeState{}, make(chan struct{})
	labels := newNodeLabels([]string{"pool", " example.com/* ", "*"}, func() (cluster.NodeState, <-chan struct{}) { return state, changes })
	if got := labels.now(); got != nil {
		t.Errorf("%v before anything is known", got)
	}
	state, changes = cluster.NodeState{Synced: true, Labels: map[string]string{"pool": "a", "example.com/spot": "yes", "other.com/spot": "no", "zone": "z"}}, make(chan struct{})
	want := map[string]string{"pool": "a", "example.com/spot": "yes", "zone": "z"}
	for range 2 {
		if d := cmp.Diff(want, labels.now()); d != "" {
			t.Error(d)
		}
	}
	state, changes = cluster.NodeState{Synced: true}, make(chan struct{})
	if got := labels.now(); got == nil || len(got) != 0 {
		t.Errorf("%v of a node without labels", got)
	}
}

// secondsOf is the sum of a family on a page.
func secondsOf(t *testing.T, page, family string) float64 {
	t.Helper()
	sum := 0.0
	for _, m := range regexp.MustCompile(`(?m)^`+family+`\{.*\} (\S+)$`).FindAllStringSubmatch(page, -1) {
		v, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		sum += v
	}
	return sum
}

func TestChargesOutliveTheExporter(t *testing.T) {
	cfg := simulated()
	dir := t.TempDir()
	cfg.Health.LedgerDir, cfg.Health.LedgerDirSet = dir, true
	id, capacity, held := "", 0.0, 0.0
	for life := range 3 {
		r := start(t, cfg)
		page := eventually(t, r.url+"/metrics", "gpumeter_namespace_gpu_seconds_total{")
		now := regexp.MustCompile(`gpumeter_ledger_info\{ledger_id="([^"]+)"`).FindStringSubmatch(page)
		if now == nil || life > 0 && now[1] != id {
			t.Fatalf("life %d: the ledger is %v, was %q\n%s", life, now, id, page)
		}
		id = now[1]
		for wait := time.Now(); time.Since(wait) < 10*time.Second; time.Sleep(50 * time.Millisecond) {
			_, page = get(t, http.DefaultClient, r.url+"/metrics")
			c, h := secondsOf(t, page, "gpumeter_capacity_gpu_seconds_total"), secondsOf(t, page, "gpumeter_namespace_gpu_seconds_total")
			if c < capacity || h < held {
				t.Fatalf("life %d: counters fell from %v and %v to %v and %v", life, capacity, held, c, h)
			}
			if grown := c > capacity && h > held; grown {
				capacity, held = c, h
				break
			}
		}
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
	}
	if capacity == 0 || held == 0 || held > capacity {
		t.Errorf("%v of %v are held", held, capacity)
	}
	if kept, err := filepath.Glob(filepath.Join(dir, "book", "*")); err != nil || len(kept) == 0 {
		t.Errorf("nothing is kept: %v, %v", kept, err)
	}
}

func TestWithoutAFolderTheBookIsInMemory(t *testing.T) {
	r := start(t, simulated())
	page := eventually(t, r.url+"/metrics", "gpumeter_namespace_gpu_seconds_total{")
	if strings.Contains(page, "gpumeter_ledger_size_bytes") || !strings.Contains(page, "gpumeter_ledger_degraded 0") {
		t.Errorf("page:\n%s", page)
	}
	if _, err := os.Stat(DefaultLedgerDir); err == nil {
		t.Logf("%s is there already", DefaultLedgerDir)
	}
}

func FuzzTimesAndSizes(f *testing.F) {
	for _, text := range []string{"400d", "1GiB", "36h", "-1d", "1e400TiB", "NaN", "9223372036854775807d", "d", "GiB", " ", "0x10MiB"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if kept, err := (LedgerConfig{Retention: text}).retention(); err == nil && (kept < minRetention || kept > maxRetention) {
			t.Errorf("%q is kept for %v", text, kept)
		}
		if size, err := (LedgerConfig{MaxSize: text}).maxSize(); err == nil && size < minLedgerSize {
			t.Errorf("%q is %d bytes", text, size)
		}
	})
}
