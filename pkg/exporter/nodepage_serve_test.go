// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/meter"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// However many GPUs, seats, holders, faults and events a node has, its page has a bound and says what it leaves out.
func TestTheNodePageHasABound(t *testing.T) {
	for _, tt := range []struct{ cards, slices, replicas, most int }{{8, 7, 4, 300_000}, {16, 7, 4, 400_000}, {16, 7, 100, 900_000}} {
		s, _ := busyNode(t, tt.cards, tt.slices, tt.replicas)
		page := nodePageOf(t, s, Config{})
		t.Logf("%d GPUs of %d slices of %d seats: %d bytes", tt.cards, tt.slices, tt.replicas, len(page))
		held := tt.cards * tt.slices * tt.replicas
		if len(page) > tt.most {
			t.Errorf("%d bytes for %d seats, more than %d", len(page), held, tt.most)
		}
		if boxes := strings.Count(page, `<li class="held`); boxes != min(held, maxBoxes) {
			t.Errorf("%d of %d seats are boxes", boxes, held)
		}
		if held > maxHolderRows {
			wantOnPage(t, page, fmt.Sprintf("%d more rows", held-maxHolderRows), "<b>and 36 more</b>", "<b>and 100 more</b>")
		}
	}
	s := fullNode()
	for i := range 100 {
		s.Health.Verdicts = append(s.Health.Verdicts, health.Verdict{Device: "GPU-x", Card: "GPU-x", Status: health.Unhealthy, Since: noon})
		s.Faults = append(s.Faults, meter.Fault{Source: "telemetry", Kind: "k" + strconv.Itoa(i)})
	}
	page := nodePageOf(t, s, fullConfig(t))
	wantOnPage(t, page, "74 more devices, shown in", "more, counted in", "earlier ones are left out")
}

func TestTheNodePageIsMadeOnceForASnapshot(t *testing.T) {
	e := exporterOf(t, mixedNode(), nil, Config{})
	bodies := make([]*nodeBody, 16)
	var all sync.WaitGroup
	for i := range bodies {
		all.Go(func() { get(e.Handler(), "GET", "/"); bodies[i] = e.current().nodeBody() })
	}
	all.Wait()
	if bodies = slices.Compact(bodies); len(bodies) != 1 {
		t.Errorf("%d bodies were made", len(bodies))
	}
	e.Reload(nil, []Problem{{Severity: SeverityError}}, noon)
	if e.current().nodeBody() == bodies[0] {
		t.Error("another configuration has the page of the one before")
	}
}

// What changes between two ticks is not what was made at the tick.
func TestTheAgeOnTheNodePageGrows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mixedNode()
		s.Time, s.Sources[0].Up = time.Now(), true
		s.Reading.Devices, s.Faults = s.Reading.Devices[:1], nil
		e := exporterOf(t, s, nil, Config{})
		wantOnPage(t, bodyOf(t, get(e.Handler(), "GET", "/")), "UTC</time>, 0s ago", "up, last answer 1s ago")
		time.Sleep(7 * time.Second)
		wantOnPage(t, bodyOf(t, get(e.Handler(), "GET", "/")), "UTC</time>, 7s ago", "up, last answer 8s ago")
		time.Sleep(time.Minute)
		wantOnPage(t, bodyOf(t, get(e.Handler(), "GET", "/")), "not ready: the loop does not turn")
	})
}

func TestHowTheNodePageIsServed(t *testing.T) {
	cfg := mixedConfig()
	e := exporterOf(t, mixedNode(), nil, cfg)
	h := e.Handler()
	r := get(h, "GET", "/")
	page := bodyOf(t, r)
	if got := r.Header.Get("Content-Length"); got != strconv.Itoa(len(page)) {
		t.Errorf("Content-Length %s of %d bytes", got, len(page))
	}
	style := between(page, "<style>", "</style>")
	sum := sha256.Sum256([]byte(style))
	if policy := r.Header.Get("Content-Security-Policy"); !strings.Contains(policy, "style-src 'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+"'") || !strings.HasPrefix(policy, "default-src 'none';") || strings.Contains(policy, "unsafe") || len(style) < 5000 {
		t.Errorf("the policy does not let in the page's style, or others: %s", policy)
	}
	for name, want := range map[string]string{
		"Content-Type": "text/html; charset=utf-8", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
	} {
		if got := r.Header.Get(name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	if head := get(h, "HEAD", "/"); head.StatusCode != http.StatusOK || bodyOf(t, head) != "" || head.Header.Get("Content-Length") == "" || head.Header.Get("Content-Security-Policy") == "" {
		t.Errorf("HEAD: %d %v", head.StatusCode, head.Header)
	}
	if post := get(h, "POST", "/"); post.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", post.StatusCode)
	}
	if !strings.Contains(page, `<meta http-equiv="refresh" content="15">`) || !strings.Contains(page, "renewed every 15 s") {
		t.Error("the page does not renew itself with the ticks")
	}
	if paused := bodyOf(t, get(h, "GET", "/?refresh=off")); strings.Contains(paused, "http-equiv") || !strings.Contains(paused, `<a href="./">go on</a>`) {
		t.Error("a page that is paused renews itself, or does not say how to go on")
	}
	for _, unwanted := range []string{"<script", " style=", " src=", `href="/`, "@import", "url("} {
		if strings.Contains(page, unwanted) {
			t.Errorf("the page has %q", unwanted)
		}
	}
	for _, link := range regexp.MustCompile(`https?://[^"']*`).FindAllString(page, -1) {
		if !strings.HasPrefix(link, "https://github.com/gpumeter/gpumeter/") && link != "http://www.w3.org/2000/svg" {
			t.Errorf("the page names %s", link)
		}
	}
}

func TestTheNodePageRenewsItselfNoFasterThanPeopleRead(t *testing.T) {
	for interval, want := range map[time.Duration]string{0: "30", 250 * time.Millisecond: "5", 5 * time.Second: "5", 7500 * time.Millisecond: "8", time.Minute: "60"} {
		s := mixedNode()
		s.Interval = interval
		if page := nodePageOf(t, s, Config{}); !strings.Contains(page, `content="`+want+`"`) {
			t.Errorf("with ticks every %v the page is not renewed every %s s", interval, want)
		}
	}
}

func TestTheNodePageBeforeTheFirstTick(t *testing.T) {
	e, err := New(latest{}, nil, Config{})
	if err != nil {
		t.Fatal(err)
	}
	page := bodyOf(t, get(e.Handler(), "GET", "/"))
	wantOnPage(t, page, "The first tick is not over", "awaiting the first tick", "No tick yet", "renewed every 5 s", `class="status bad"`)
	if strings.Contains(page, "0 of 0") || strings.Contains(page, `id="holders"`) {
		t.Error("a page without a tick speaks of GPUs")
	}
}

// A device that is gone or that nobody knows is named by its UUID and costs nothing else.
func TestWhatIsNotListedIsNamed(t *testing.T) {
	s := mixedNode()
	gone := card(8)
	s.Gone = []gpu.Device{gone}
	s.Division.Shares = append(s.Division.Shares, whole(gone, holder("team-d", "left"), sharing.One()), whole(card(9), holder("team-d", "stray"), sharing.One()))
	wantOnPage(t, nodePageOf(t, s, Config{}), "not listed any more", "<b>left</b>", ">GPU 8</a>", ">GPU-9</a>", "stray")
}

func TestAmountsAsPeopleReadThem(t *testing.T) {
	for f, want := range map[sharing.Fraction]amount{
		{}: {"0", "0"}, sharing.One(): {"1", "1"}, sharing.NewFraction(21, 4): {"5.25", "5.25"}, sharing.NewFraction(1, 8): {"0.125", "0.125"},
		sharing.NewFraction(15, 448): {"15/448", "0.033"}, sharing.NewFraction(2, 3): {"2/3", "0.667"}, sharing.NewFraction(1, 7000): {"1/7000", "1/7000"},
		sharing.NewFraction(1999, 2000): {"1999/2000", "1"},
	} {
		if got := amountOf(f); got != want {
			t.Errorf("%v is %+v, want %+v", f, got, want)
		}
	}
	for d, want := range map[time.Duration]string{
		-time.Hour: "now", 900 * time.Millisecond: "now", 59 * time.Second: "59 s ago", 61 * time.Second: "1 min ago", 90 * time.Minute: "1 h ago", 47 * time.Hour: "47 h ago", 72 * time.Hour: "3 days ago",
	} {
		if got := distance(d); got != want {
			t.Errorf("%v is told as %q, want %q", d, got, want)
		}
	}
	if diff := cmp.Diff([]int64{334, 333, 333}, apportion([]sharing.Fraction{sharing.NewFraction(1, 3), sharing.NewFraction(1, 3), sharing.NewFraction(1, 3)}, 1000)); diff != "" {
		t.Errorf("thirds (-want +got):\n%s", diff)
	}
}

func BenchmarkNodePage(b *testing.B) {
	s, _ := busyNode(b, 8, 7, 4)
	e := exporterOf(b, s, nil, Config{})
	st := e.settings.Load()
	b.Run("body", func(b *testing.B) {
		for b.Loop() {
			if body := e.index.body(&e.cfg, st, s); body.err != nil {
				b.Fatal(body.err)
			}
		}
	})
	h := e.Handler()
	b.Run("request", func(b *testing.B) {
		for b.Loop() {
			get(h, "GET", "/")
		}
	})
}

func FuzzNodePageNames(f *testing.F) {
	plain := fuzzedNodePage(f, "team", "pod", "GPU-x", "model")
	f.Add("<b>", `"onload=`, "GPU-`", "-->")
	f.Add("</script>", "'", "#%zz", "{{.}}")
	f.Add(hostile, hostile, hostile, hostile)
	f.Fuzz(func(t *testing.T, namespace, pod, uuid, model string) {
		page := fuzzedNodePage(t, namespace, pod, "GPU-"+uuid, "m"+model)
		if strings.Count(page, "<") != strings.Count(plain, "<") || strings.Count(page, ">") != strings.Count(plain, ">") || strings.Count(page, `"`) != strings.Count(plain, `"`) {
			t.Errorf("%q, %q, %q or %q changes what is markup:\n%s", namespace, pod, uuid, model, page)
		}
	})
}

func fuzzedNodePage(t testing.TB, namespace, pod, uuid, model string) string {
	d := card(0)
	d.UUID, d.Model = gpu.UUID(uuid), model
	s := ticked(gpu.Reading{Devices: []gpu.Device{d}}, sharing.Division{Shares: []sharing.Share{whole(d, sharing.Holder{Namespace: "n" + namespace, Pod: "p" + pod, Container: "c"}, sharing.One())}})
	e, err := New(latest{s}, nil, Config{})
	if err != nil {
		t.Fatal(err)
	}
	body := e.current().nodeBody()
	if body.err != nil {
		t.Fatal(body.err)
	}
	return string(body.html)
}
