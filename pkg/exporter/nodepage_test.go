// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

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
	wantOnPage(t, page, "Nothing is known to be wrong", "nobody judges them here", "sim (no libdcgm.so.4)", "Exporter: <strong><bdi>ready</bdi></strong>", "No ledger is kept", "No GPU resource is listed", "No container holds a GPU")
	s.Sources[1].Up = false
	wantOnPage(t, nodePageOf(t, s, Config{}), `class="status warn"`)
	s.Time = noon
	wantOnPage(t, nodePageOf(t, s, Config{}), `class="status bad"`, "the loop does not turn")
}

// A GPU of which nobody could see who holds it is not a GPU that nobody holds.
func TestWhoHoldsABrokenGPUMayNotBeKnown(t *testing.T) {
	d, whole := card(0), sharing.One()
	broken := func(div sharing.Division, observed bool) *meter.Snapshot {
		s := ticked(gpu.Reading{Devices: []gpu.Device{d}}, div)
		s.Observed = observed
		s.Health = &health.Report{Time: noon, Verdicts: []health.Verdict{{Device: d.UUID, Card: d.UUID, Status: health.Unhealthy, Since: noon}}}
		return s
	}
	for name, c := range map[string]struct {
		s    *meter.Snapshot
		want string
	}{
		"nobody looked":                      {broken(sharing.Division{Unallocated: []sharing.Unallocated{{Card: d.UUID, Cause: sharing.CauseUnobserved, Part: whole}}}, false), "It is not known who holds it."},
		"it was not to be seen who":          {broken(sharing.Division{Unallocated: []sharing.Unallocated{{Card: d.UUID, Cause: sharing.CauseUnattributed, Part: whole}}}, true), "It is not known who holds it."},
		"nobody":                             {broken(sharing.Division{Unallocated: []sharing.Unallocated{{Card: d.UUID, Cause: sharing.CauseUnhealthy, Part: whole}}}, true), "Held by nobody."},
		"somebody, who is not to be charged": {broken(sharing.Division{Unallocated: []sharing.Unallocated{{Card: d.UUID, Cause: sharing.CauseUnhealthy, Part: whole, Holder: holder("a", "b")}}}, true), "Held by <bdi>a/b</bdi>."},
	} {
		t.Run(name, func(t *testing.T) {
			page := nodePageOf(t, c.s, mixedConfig())
			wantOnPage(t, page, c.want)
			if c.want != "Held by nobody." && strings.Contains(page, "Held by nobody.") {
				t.Error("the page says that nobody holds it")
			}
		})
	}
}

// Slurm's GPUs have no device plugin that could be away.
func TestTheGPUsOfJobsAreAdvertisedByNobody(t *testing.T) {
	s := mixedNode()
	s.Listing = sharing.Listing{Allocations: []sharing.Allocation{
		{Holder: holder("physics", "4711"), Resource: "gres/gpu", DeviceID: "index0"}, {Holder: holder("a", "b"), Resource: "nvidia.com/gpu", DeviceID: "GPU-0"},
	}}
	page := nodePageOf(t, s, mixedConfig())
	wantOnPage(t, page, `<th scope="row">gres/gpu</th><td class="n">1</td><td class="n">0</td>`, `<th scope="row">nvidia.com/gpu</th><td class="n">1</td><td class="n">0 <span class="verdict warn">`)
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
