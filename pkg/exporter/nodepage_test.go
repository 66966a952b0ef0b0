// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math/big"
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
	"pgregory.net/rapid"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/meter"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// nodePageOf is the node page of a snapshot.
func nodePageOf(t testing.TB, s *meter.Snapshot, cfg Config) string {
	t.Helper()
	w := get(exporterOf(t, s, nil, cfg).Handler(), "GET", "/")
	body, err := io.ReadAll(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	if w.StatusCode != http.StatusOK {
		t.Fatalf("status %d: %s", w.StatusCode, body)
	}
	return string(body)
}

func wantOnPage(t *testing.T, page string, wants ...string) {
	t.Helper()
	_, body, _ := strings.Cut(page, "</style>")
	for _, want := range wants {
		if !strings.Contains(body, want) {
			t.Errorf("the page lacks %q:\n%s", want, body)
		}
	}
}

// cutNode is a node of two cards with seven slices of four seats each, as the hardware places them, but for the last
// slice of the second card.
func cutNode() *meter.Snapshot {
	r, div := gpu.Reading{Fields: []gpu.FieldID{fieldTemp, columnFBUsed, columnEngine}}, sharing.Division{}
	weight := sharing.NewFraction(15, 112)
	for i := range 2 {
		d := card(i)
		d.MIGEnabled = true
		r.Devices = append(r.Devices, d)
		r.Samples = append(r.Samples, sampled(gpu.Entity{Kind: gpu.KindGPU, GPU: d.UUID}, gpu.Int(41), gpu.Absent(gpu.ReasonScope), gpu.Absent(gpu.ReasonScope)))
		for id := range 7 {
			m := slice(d, id+7, "1g.10gb", 1)
			m.Placement = gpu.Placement{Start: id, Size: 1}
			if i == 1 && id == 6 {
				div.Unallocated = append(div.Unallocated, sharing.Unallocated{Card: d.UUID, Cause: sharing.CauseFree, Part: weight})
				continue
			}
			r.Devices = append(r.Devices, m)
			r.Samples = append(r.Samples, sampled(gpu.Entity{Kind: gpu.KindGPUInstance, GPU: d.UUID, ID: m.GPUInstance}, gpu.Absent(gpu.ReasonScope), gpu.Int(int64(1024*id)), gpu.Float(float64(id)/10)))
			div.Shares = append(div.Shares, seats(m, holder("team-a", fmt.Sprintf("chat-%d-%d", i, id)), weight, 4, 0, 2), seats(m, holder("team-b", fmt.Sprintf("embed-%d-%d", i, id)), weight, 4, 1))
			div.Unallocated = append(div.Unallocated, sharing.Unallocated{Card: d.UUID, Device: m.UUID, Cause: sharing.CauseUnrequested, Part: weight.Scale(1, 4)})
		}
		div.Unallocated = append(div.Unallocated, sharing.Unallocated{Card: d.UUID, Cause: sharing.CauseStranded, Part: sharing.NewFraction(7, 112)})
	}
	return ticked(r, div)
}

// fullNode has something of all that the page can show.
func fullNode() *meter.Snapshot {
	s, metered, eventful := judgedNode(), meteredNode(), eventfulNode()
	s.Ledger, s.XIDs, s.Recent, s.RecentClocks = metered.Ledger, metered.XIDs, eventful.Recent, eventful.RecentClocks
	s.Reading.Origin = eventful.Reading.Origin
	s.Health.Ended = []health.Ending{{Subject: health.WholeCard("GPU-1"), Kind: health.KindStuck, Ended: noon.Add(-3 * time.Minute)}}
	s.Listing.Advertised = []sharing.Advertised{{Resource: "nvidia.com/gpu", DeviceID: "GPU-0"}}
	s.Listing.Allocations = []sharing.Allocation{{Holder: holder("team-a", "train-0"), Resource: "nvidia.com/gpu", DeviceID: "GPU-0"}, {Resource: "nvidia.com/gone", DeviceID: "x"}}
	return s
}

func fullConfig(t testing.TB) Config {
	t.Helper()
	cfg := eventfulConfig(t)
	cfg.Stream = func() Stream { return Stream{Epoch: "e-1", Version: 42, Clients: 2, Dropped: 1} }
	cfg.Links = []Link{{"/debug/pprof/", "profiles"}}
	return cfg
}

func TestGoldenNodePages(t *testing.T) {
	for name, s := range map[string]*meter.Snapshot{"mixed": mixedNode(), "full": fullNode(), "cut": cutNode(), "early": {}} {
		synctest.Test(t, func(t *testing.T) {
			cfg := mixedConfig()
			if name == "full" {
				cfg = fullConfig(t)
			}
			page := nodePageOf(t, s, cfg)
			head, rest, _ := strings.Cut(page, "<style>")
			_, rest, _ = strings.Cut(rest, "</style>")
			golden(t, "nodepage_"+name+".html", []byte(head+"<style></style>"+rest))
		})
	}
}

func TestTheNodePageSaysWhatIsWrong(t *testing.T) {
	page := nodePageOf(t, fullNode(), fullConfig(t))
	wantOnPage(t, page,
		"4 healthy, 3 unhealthy, 1 unknown", "fell off the bus", "restart the machine", "class node", "drain the GPU and reset it",
		"the card does not answer", "another boot, and the GPU is clean", `<bdi class="uuid">GPU-9</bdi> <span class="soft">not listed</span>`,
		"GPU 3, GPU-3</dt><dd>lost: gone", "allocations</dt><dd>timeout: no answer", "conflict of allocations, exclusive", "is tied to no device: malformed id",
		"Held by <bdi>team-c/sweep</bdi>.", "unhealthy: not charged",
	)
	s := ticked(temps([]gpu.Device{card(0)}, []gpu.Sample{onGPU(card(0), gpu.Int(40))}), sharing.Division{Unallocated: []sharing.Unallocated{{Card: "GPU-0", Cause: sharing.CauseFree, Part: sharing.One()}}})
	s.Time, s.Sources[0].Up, s.Sources[1].Up = time.Now(), true, true
	page = nodePageOf(t, s, Config{SourceReason: "no libdcgm.so.4"})
	wantOnPage(t, page, "Nothing is known to be wrong", "nobody judges them here", "sim (no libdcgm.so.4)", "Exporter: <strong><bdi>ready</bdi></strong>", "No ledger is kept", "lists no GPU resource", "No container holds a GPU")
	s.Sources[1].Up = false
	wantOnPage(t, nodePageOf(t, s, Config{}), `class="status warn"`)
	s.Time = noon
	wantOnPage(t, nodePageOf(t, s, Config{}), `class="status bad"`, "the loop does not turn")
}

func TestTheNodePageSaysWhatHappened(t *testing.T) {
	page := nodePageOf(t, fullNode(), fullConfig(t))
	_, events, _ := strings.Cut(page, `<h2 id="events">`)
	wantOnPage(t, "</style>"+events,
		"XID 31: ", "2 times", "XID 79: ", "in GPU instance 7", "began: xid_94, XID 94, 5 times within 1h", "verdict: unhealthy", "ended by evidence: gpu_stuck",
		"cleared by uid 1000: reseated", "Errors of the driver, counted so far", `<td class="n">99</td>`,
	)
	var last time.Time
	for _, m := range regexp.MustCompile(`<td class="when"><time datetime="([^"]+)"`).FindAllStringSubmatch(events, -1) {
		at, err := time.Parse(time.RFC3339, m[1])
		if err != nil || !last.IsZero() && at.After(last) {
			t.Errorf("an event at %v stands below one at %v (%v)", at, last, err)
		}
		last = at
	}
	if last.IsZero() {
		t.Error("no event has a time")
	}
}

func TestTheNodePageSaysHowTheBooksAreKept(t *testing.T) {
	s := fullNode()
	page := nodePageOf(t, s, fullConfig(t))
	wantOnPage(t, page, "3f9c0ffee", "on disk", "3 records wait", "1.0 MiB", "12s", "2 clients hear the health stream; list version 42; 1 dropped", "nvidia.com/gone", "its plugin is away", `href="debug/pprof/"`)
	s.Ledger.State.Degraded, s.Ledger.State.Err = true, "no space left"
	s.HealthStore.Err = "read-only file system"
	s.Health.Repartition = health.Repartition{State: health.MIGPending, Paused: true, Until: noon}
	e := exporterOf(t, s, nil, fullConfig(t))
	e.ReloadFailed(errors.New("read <counters.csv>: no"), noon)
	page = bodyOf(t, get(e.Handler(), "GET", "/"))
	wantOnPage(t, page, "a restart loses them: no space left", "not on disk: read-only file system", "refused: read &lt;counters.csv&gt;: no", "judging is paused until 2025-03-04 12:00:00 UTC")
	e.Reload(nil, []Problem{{Severity: SeverityWarning}}, noon)
	wantOnPage(t, bodyOf(t, get(e.Handler(), "GET", "/")), "1 problem, listed in the log")
	cfg := fullConfig(t)
	cfg.Stream = func() Stream { return Stream{} }
	wantOnPage(t, nodePageOf(t, s, cfg), "Nobody hears the health stream")
}

// stateNode is a node of one card that is all in one state.
func stateNode(cause sharing.Cause) *meter.Snapshot {
	d := card(0)
	return ticked(gpu.Reading{Devices: []gpu.Device{d}}, sharing.Division{Unallocated: []sharing.Unallocated{{Card: d.UUID, Cause: cause, Part: sharing.One()}}})
}

func TestEveryStateHasItsWords(t *testing.T) {
	for _, cause := range sharing.Causes() {
		page := nodePageOf(t, stateNode(cause), Config{})
		wantOnPage(t, page, fmt.Sprintf(`<li class="%s"><b>%[1]s</b><span>1 GPU</span></li>`, cause), "<td class=\"soft\">"+stateMeaning(string(cause))+"</td>", "<strong>0</strong> of 1 GPU held")
		if stateMeaning(string(cause)) == "" {
			t.Errorf("%s has no meaning", cause)
		}
	}
	d := card(0)
	s := ticked(gpu.Reading{Devices: []gpu.Device{d}}, sharing.Division{Shares: []sharing.Share{whole(d, holder("team-a", "train-0"), sharing.One())}})
	wantOnPage(t, nodePageOf(t, s, Config{}), `<li class="held t0"><b>train-0</b><span>team-a</span></li>`, "<strong>1</strong> of 1 GPU held", "whole GPU")
	s.Observed, s.Division = false, stateNode(sharing.CauseUnobserved).Division
	wantOnPage(t, nodePageOf(t, s, Config{}), "Nobody could see who holds what")
	for _, status := range health.Statuses() {
		s.Health = &health.Report{Verdicts: []health.Verdict{{Device: d.UUID, Card: d.UUID, Status: status, Since: noon}}}
		wantOnPage(t, nodePageOf(t, s, Config{}), "</span> "+status.String()+"</span>", status.String()+" since")
	}
	for _, class := range health.Classes() {
		if asks(class) == "" {
			t.Errorf("class %v asks for nothing that has words", class)
		}
	}
}

func TestACutCardIsAMapOfItsMemory(t *testing.T) {
	page := nodePageOf(t, cutNode(), Config{})
	wantOnPage(t, page,
		`<div class="map g8">`, `<div class="column s0 n1">`, `<h4 id="MIG-0-7">1g.10gb <span class="soft">#7</span></h4>`,
		`<li class="held t0"><b>chat-0-0</b><span>team-a #0</span></li>`+"\n"+`<li class="held t1"><b>embed-0-0</b><span>team-b #1</span></li>`+"\n"+
			`<li class="held t0"><b>chat-0-0</b><span>team-a #2</span></li>`+"\n"+`<li class="unrequested"><b>unrequested</b><span>seat #3</span></li>`,
		`<div class="column s6 n2"><p class="gap">no instance</p>`, "</i><data value=\"15/112\">0.134</data> free", "</i><data value=\"1/16\">0.063</data> stranded", "60\u00a0%", "6.0\u00a0GiB",
	)
	if n := strings.Count(page, "<li class=\"held"); n != 13*3 {
		t.Errorf("%d seats are held, want %d", n, 13*3)
	}
	// Places that contradict each other are not drawn.
	s := cutNode()
	s.Reading.Devices[2].Placement = gpu.Placement{Start: 0, Size: 3}
	if page := nodePageOf(t, s, Config{}); strings.Count(page, `<div class="map g8">`) != 1 || strings.Count(page, "<li class=\"held") != 13*3 {
		t.Error("a card with impossible places is laid out by them, or lacks seats")
	}
}

func TestAnAbsentValueSaysWhy(t *testing.T) {
	s := mixedNode()
	for i, reason := range []gpu.Reason{gpu.ReasonLost, gpu.ReasonNotSupported, gpu.ReasonTimeout, gpu.ReasonStale, gpu.ReasonBlank, gpu.ReasonNotPermitted, gpu.ReasonNotFound, gpu.ReasonError, gpu.ReasonImplausible} {
		s.Reading.Samples[0].Values[2] = gpu.Absent(reason)
		page := nodePageOf(t, s, Config{})
		wantOnPage(t, page, `<div class="absent"><dt>Temperature</dt><dd>absent: `+lacking(reason)+"</dd>")
		if strings.Contains(lacking(reason), "_") || i > 9 {
			t.Errorf("%v is told as %q", reason, lacking(reason))
		}
	}
	if page := nodePageOf(t, cutNode(), Config{}); strings.Contains(page, "<dt>Power</dt>") || strings.Contains(page, "absent:") {
		t.Error("what nobody asked for, or is no quantity of the device, is told as absent")
	}
}

var dataValue = regexp.MustCompile(`<data value="([^"]*)">([^<]*)</data>`)

// valuesOf are the exact and the shown numbers of a piece of the page.
func valuesOf(t interface{ Fatalf(string, ...any) }, piece string) (exact, shown *big.Rat, n int) {
	exact, shown = new(big.Rat), new(big.Rat)
	for _, m := range dataValue.FindAllStringSubmatch(piece, -1) {
		for i, sum := range []*big.Rat{exact, shown} {
			f, ok := new(big.Rat).SetString(m[i+1])
			if !ok {
				t.Fatalf("%q is no number", m[i+1])
			}
			sum.Add(sum, f)
		}
		n++
	}
	return exact, shown, n
}

// between is what stands between two texts.
func between(page, from, to string) string {
	_, rest, _ := strings.Cut(page, from)
	piece, _, _ := strings.Cut(rest, to)
	return piece
}

func TestTheNumbersOnThePageAddUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 9).Draw(t, "cards")
		r, div := gpu.Reading{}, sharing.Division{}
		for i := range n {
			d := card(i)
			r.Devices = append(r.Devices, d)
			of := rapid.IntRange(1, 12).Draw(t, "seats")
			for seat := range of {
				part := sharing.NewFraction(1, int64(of))
				if cause := rapid.IntRange(-1, 5).Draw(t, "state"); cause >= 0 {
					div.Unallocated = append(div.Unallocated, sharing.Unallocated{Card: d.UUID, Cause: sharing.Causes()[cause], Part: part})
					continue
				}
				div.Shares = append(div.Shares, seats(d, holder(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "namespace"), "pod"), sharing.One(), of, seat))
			}
		}
		e, err := New(latest{ticked(r, div)}, nil, Config{})
		if err != nil {
			t.Fatal(err)
		}
		page := string(e.current().nodeBody().html)
		whole := big.NewRat(int64(n), 1)
		sum := between(page, "<tbody>", "</tbody>")
		exact, shown, states := valuesOf(t, sum)
		if exact.Cmp(whole) != 0 || shown.Cmp(whole) != 0 || states != 7 {
			t.Fatalf("%d states add up to %v, shown as %v, of %d GPUs", states, exact, shown, n)
		}
		for i := range n {
			parts := between(between(page, fmt.Sprintf(`id="GPU-%d"`, i), "</article>"), `<p class="parts">`, "</p>")
			if exact, shown, _ := valuesOf(t, parts); exact.Cmp(big.NewRat(1, 1)) != 0 || shown.Cmp(big.NewRat(1, 1)) != 0 {
				t.Fatalf("the parts of GPU %d add up to %v, shown as %v", i, exact, shown)
			}
		}
		if len(div.Shares) == 0 {
			return
		}
		held, heldShown, _ := valuesOf(t, strings.SplitAfter(sum, "</tr>")[0])
		spaces, spacesShown, _ := valuesOf(t, between(page, "By namespace", "</table>"))
		rows, _, _ := valuesOf(t, between(page, "By container", "</table>"))
		if held.Cmp(spaces) != 0 || heldShown.Cmp(spacesShown) != 0 || held.Cmp(rows) != 0 {
			t.Fatalf("held is %v, shown as %v; by namespace %v, shown as %v; by container %v", held, heldShown, spaces, spacesShown, rows)
		}
	})
}

// A part that lacks is told, and not made up for.
func TestPartsThatDoNotAddUpAreTold(t *testing.T) {
	s := stateNode(sharing.CauseFree)
	s.Division.Unallocated[0].Part = sharing.NewFraction(2, 3)
	wantOnPage(t, nodePageOf(t, s, Config{}), "which is not all of the GPUs", "the parts add up to 0.667 GPUs and not to 1")
}

// hostileNames are names that no pod can have, and what a page shows of each.
func TestHostileNamesStayText(t *testing.T) {
	for name, want := range map[string]string{
		`<script>alert(1)</script>`:         "&lt;script&gt;alert(1)&lt;/script&gt;",
		`"><img src=x onerror=alert(1)>`:    "&#34;&gt;&lt;img src=x onerror=alert(1)&gt;",
		"</style></title><b>":               "&lt;/style&gt;&lt;/title&gt;&lt;b&gt;",
		"\u202egnp.exe\u2066":               "\ufffdgnp.exe\ufffd",
		"a\nb\x00\x1b[31m\xff":              "a b\ufffd\ufffd[31m\ufffd",
		strings.Repeat("x", 4096):           strings.Repeat("x", 252) + "…",
		strings.Repeat("\u05d0", 4096):      strings.Repeat("\u05d0", 252) + "…",
		"\u05e9\u05dc\u05d5\u05dd ordinary": "\u05e9\u05dc\u05d5\u05dd ordinary",
	} {
		s := fullNode()
		s.Division.Shares[0].Holder = sharing.Holder{Namespace: name, Pod: name, Container: name}
		s.Reading.Devices[0].Model, s.Reading.Devices[0].PCIBusID = name, name
		s.Reading.Devices[3].Profile.Name = name
		s.Faults[0].Text, s.Faults[1].Kind = name, name
		s.Health.Verdicts[0].Reason = name
		s.Health.Verdicts[0].Conditions[0].Evidence = name
		s.Health.Clearings[0].By = name
		s.Listing.Allocations[0].Resource = name
		s.Ledger.Totals.LedgerID = name
		cfg := fullConfig(t)
		cfg.Hostname, cfg.SourceReason = name, name
		page := nodePageOf(t, s, cfg)
		_, body, _ := strings.Cut(page, "</style>")
		if n := strings.Count(body, want); n < 8 {
			t.Errorf("%.40q is %d times on the page as %.40q", name, n, want)
		}
		if strings.ContainsAny(body, "\x00\x1b\u202e\u2066") || strings.Contains(body, "<script") || strings.Contains(body, "<img") || len(page) > 120_000 {
			t.Errorf("%.40q is on the page as it is, or has made it %d bytes", name, len(page))
		}
	}
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
