// SPDX-License-Identifier: Apache-2.0

package report

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/shopspring/decimal"

	"github.com/gpumeter/gpumeter/pkg/bill"
	"github.com/gpumeter/gpumeter/pkg/gpu"
)

func pageOf(t *testing.T, b *bill.Bill) string {
	t.Helper()
	return written(t, func(w io.Writer) error { return HTML(w, b, Options{Generator: "gpumeter test"}) })
}

// elements are the names of a page's elements with their attributes, as a tolerant parser sees them.
func elements(t *testing.T, page string) []xml.StartElement {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(strings.TrimPrefix(page, "<!DOCTYPE html>")))
	d.Strict, d.AutoClose, d.Entity = false, xml.HTMLAutoClose, xml.HTMLEntity
	var all []xml.StartElement
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if start, ok := token.(xml.StartElement); ok {
			all = append(all, start.Copy())
		}
	}
}

func TestAPageAsksForNothingAndRunsNothing(t *testing.T) {
	for name, b := range map[string]*bill.Bill{"march": brief(march(t)), "hostile": brief(hostile(t))} {
		page := pageOf(t, b)
		if !strings.Contains(page, `content="default-src 'none'; style-src 'unsafe-inline'`) {
			t.Errorf("%s: the page's policy is not the strict one", name)
		}
		for _, e := range elements(t, page) {
			switch e.Name.Local {
			case "script", "img", "iframe", "object", "embed", "link", "form", "base", "use", "image", "foreignObject":
				t.Errorf("%s: there is an element %s", name, e.Name.Local)
			}
			for _, a := range e.Attr {
				switch {
				case strings.HasPrefix(a.Name.Local, "on"), a.Name.Local == "src", a.Name.Local == "srcset":
					t.Errorf("%s: %s has %s=%q", name, e.Name.Local, a.Name.Local, a.Value)
				case a.Name.Local == "href" && !strings.HasPrefix(a.Value, "#"):
					t.Errorf("%s: a link leads to %q", name, a.Value)
				case a.Name.Local == "style" && strings.Contains(a.Value, "url"):
					t.Errorf("%s: a style asks for %q", name, a.Value)
				}
			}
		}
		if strings.Contains(page, "@import") || strings.Contains(page, "url(http") {
			t.Errorf("%s: the style asks for something", name)
		}
	}
}

func TestAPageOfAHostileBillHasTheSameElements(t *testing.T) {
	count := func(page string) map[string]int {
		n := make(map[string]int)
		for _, e := range elements(t, page) {
			n[e.Name.Local]++
		}
		return n
	}
	kind, hurt := brief(march(t)), brief(hostile(t))
	hurt.Unbalanced, hurt.Notes = nil, hurt.Notes[:1]
	for i := range kind.Rows { // one holder each, as in the other bill
		if kind.Rows[i].Keys[0] != "" {
			kind.Rows[i].Keys[0], kind.Rows[i].Keys[1] = fmt.Sprint("ns", i), fmt.Sprint("m", i)
		}
	}
	plain, other := count(pageOf(t, kind)), count(pageOf(t, hurt))
	for name, n := range plain {
		if other[name] != n {
			t.Errorf("%d elements %s, with hostile names %d", n, name, other[name])
		}
		delete(other, name)
	}
	for name := range other {
		t.Errorf("hostile names made an element %s", name)
	}
}

func TestWidthsOfTheWholeBarAddUp(t *testing.T) {
	p := newPage(march(t), Options{})
	sum, hours := decimal.Zero, decimal.Zero
	for _, s := range p.Where.Segments {
		sum, hours = sum.Add(decimal.RequireFromString(s.Width)), hours.Add(decimal.RequireFromString(s.Hours))
	}
	if sum.Sub(decimal.NewFromInt(100)).Abs().GreaterThan(decimal.RequireFromString("0.001")) || !hours.Equal(decimal.NewFromInt(5944)) {
		t.Errorf("segments take %s %% and stand for %s hours, want 100 and 5944", sum, hours)
	}
}

func TestWhatWasNotMeasuredIsNeitherUsedNorWasted(t *testing.T) {
	b := march(t)
	for i := range b.Rows {
		b.Rows[i].Bases = nil
	}
	p := newPage(b, Options{})
	if first := p.Where.Segments[0]; first.Class != "unmeasured" {
		t.Errorf("the first segment is %q, want what was not measured", first.Class)
	}
	if len(p.Wasters) != 0 {
		t.Errorf("%d wasters are named", len(p.Wasters))
	}
}

func TestUsedBeyondWhatWasHeldEndsAtTheBar(t *testing.T) {
	b := march(t)
	b.Rows[0].UsedHours, b.Rows[0].WastedHours = b.Rows[0].GPUHours.Mul(decimal.NewFromInt(2)), decimal.Zero
	bars, _, _ := tenantBars(b)
	sum := decimal.Zero
	for _, s := range bars[0].Segments {
		sum = sum.Add(decimal.RequireFromString(s.Width))
	}
	if sum.GreaterThan(decimal.NewFromInt(100)) {
		t.Errorf("the longest bar takes %s %%", sum)
	}
}

func TestManyHoldersAreCountedBeneathTheBars(t *testing.T) {
	b := march(t)
	for i := range 100 {
		r := b.Rows[0]
		r.Keys = []string{fmt.Sprintf("tenant-%03d", i), "exclusive"}
		b.Rows = append(b.Rows, r)
	}
	bars, by, others := tenantBars(b)
	if len(bars) != mostBars || by != "namespace" || !strings.Contains(others, "81 others held") {
		t.Errorf("%d bars by %s, and %q", len(bars), by, others)
	}
	list, note := wasters(b)
	if len(list) != mostWasters || !strings.Contains(note, "others wasted less") {
		t.Errorf("%d wasters, and %q", len(list), note)
	}
}

func TestHoldersOfManyDaysAreOneBar(t *testing.T) {
	b := march(t)
	b.GroupBy = []bill.Dimension{bill.ByDay, bill.ByTeam}
	for i := range b.Rows {
		b.Rows[i].Keys = []string{fmt.Sprintf("2026-03-%02d", i+1), "vision"}
	}
	bars, by, _ := tenantBars(b)
	if len(bars) != 1 || by != "team" {
		t.Errorf("%d bars by %s, want one by team", len(bars), by)
	}
	if list, _ := wasters(b); len(list) != 1 || list[0].Name != "vision" {
		t.Errorf("wasters are %v, want the team once", list)
	}
}

func TestEveryHourHasACell(t *testing.T) {
	b := march(t)
	h := newHeat(b)
	if h.Of != "GPU" || len(h.Maps) != 8 {
		t.Fatalf("%d maps, one per %s", len(h.Maps), h.Of)
	}
	for _, m := range h.Maps {
		if len(m.Cells) != 743 {
			t.Errorf("%s has %d cells, want the 743 hours of March in Berlin", m.Name, len(m.Cells))
		}
		taken := make(map[[2]int]bool)
		for _, c := range m.Cells {
			if at := [2]int{c.X, c.Y}; taken[at] {
				t.Fatalf("%s: two hours are drawn at %v", m.Name, at)
			} else {
				taken[at] = true
			}
			if c.X < 0 || c.X+side > h.Width || c.Y < 0 || c.Y+side > h.Height {
				t.Errorf("%s: a cell at %d, %d is outside", m.Name, c.X, c.Y)
			}
		}
	}
}

func TestTheHourThatAutumnHasTwiceIsDrawnTwice(t *testing.T) {
	b := march(t)
	b.From, b.To = time.Date(2026, time.October, 1, 0, 0, 0, 0, b.Zone), time.Date(2026, time.November, 1, 0, 0, 0, 0, b.Zone)
	b.Hours = nil
	for start := b.From; start.Before(b.To); start = start.Add(time.Hour) {
		b.Hours = append(b.Hours, bill.CardHour{Card: uuid(0), Start: start, Capacity: hour, Known: true})
	}
	taken := make(map[[2]int]bool)
	for _, c := range newHeat(b).Maps[0].Cells {
		taken[[2]int{c.X, c.Y}] = true
	}
	if len(taken) != 745 {
		t.Errorf("%d cells are seen, want 745", len(taken))
	}
}

func TestTooManyGPUsAreDrawnTogether(t *testing.T) {
	b := march(t)
	fleet := func(nodes, cards int) *heat {
		b.Nodes, b.Hours = nil, nil
		for n := range nodes {
			b.Nodes = append(b.Nodes, node(b, fmt.Sprint("n", n), cards))
			for c := range cards {
				for hours := range 2 {
					held := hour * int64(c%2)
					b.Hours = append(b.Hours, bill.CardHour{
						Node: n, Card: gpu.UUID(fmt.Sprint("GPU-", n, "-", c)), Index: c, Start: b.From.Add(time.Duration(hours) * time.Hour), Capacity: hour, Held: held, Known: true,
					})
				}
			}
		}
		return newHeat(b)
	}
	if h := fleet(20, 8); h.Of != "node" || len(h.Maps) != 20 || h.Maps[0].Desc != "50.0 % held" {
		t.Errorf("%d maps, one per %s: %s", len(h.Maps), h.Of, h.Maps[0].Desc)
	}
	if h := fleet(200, 2); h.Of != "fleet" || len(h.Maps) != 1 || len(h.Maps[0].Cells) != 2 {
		t.Errorf("%d maps, one per %s", len(h.Maps), h.Of)
	}
}

func TestACellSaysWhatTheHourWas(t *testing.T) {
	b := march(t)
	classes := make(map[string]int)
	h := newHeat(b)
	for _, m := range h.Maps {
		for _, c := range m.Cells {
			classes[c.Class]++
		}
	}
	// 6 hours of 4 GPUs lack; 71 are out of service and 9 were not seen.
	if classes["q"] != 24 || classes["o"] != 80 || !h.HasUnknown || !h.HasOut {
		t.Errorf("%d hours are missing and %d out, want 24 and 80", classes["q"], classes["o"])
	}
	for held, want := range map[int64]int64{0: 0, 1: 1, hour / 2: 3, hour - 1: 4, hour: levels} {
		if got := shade(held, hour); got != want {
			t.Errorf("%d of %d held has shade %d, want %d", held, hour, got, want)
		}
	}
}

func TestTheBannerIsTheWorstThatCanBeSaid(t *testing.T) {
	b := march(t)
	if s := statusOf(b); s.Class != "lacking" || !strings.Contains(s.Text, "99.19 %") {
		t.Errorf("the banner is %+v", s)
	}
	b.Difference = 1
	if s := statusOf(b); s.Class != "wrong" {
		t.Errorf("the banner is %+v", s)
	}
	b.Difference, b.Complete = 0, true
	if s := statusOf(b); s.Class != "whole" {
		t.Errorf("the banner is %+v", s)
	}
}

// TestColoursCanBeRead computes the contrast of text on what it stands on, in both schemes, as WCAG 2 does: 4.5 is
// asked of text.
func TestColoursCanBeRead(t *testing.T) {
	light, rest, _ := strings.Cut(pageStyle, "@media (prefers-color-scheme: dark)")
	dark, _, _ := strings.Cut(rest, "* {")
	define := regexp.MustCompile(`--([a-z0-9-]+): #([0-9a-f]{6})`)
	for scheme, style := range map[string]string{"light": light, "dark": dark} {
		colours := make(map[string]float64)
		for _, m := range define.FindAllStringSubmatch(style, -1) {
			colours[m[1]] = luminance(m[2])
		}
		for _, pair := range [][2]string{
			{"ink", "paper"}, {"ink", "sheet"}, {"soft", "paper"}, {"soft", "sheet"}, {"soft", "hover"},
			{"good", "good-paper"}, {"warn", "warn-paper"}, {"bad", "bad-paper"},
		} {
			over, under := colours[pair[0]], colours[pair[1]]
			if contrast := (max(over, under) + .05) / (min(over, under) + .05); contrast < 4.5 {
				t.Errorf("%s: %s on %s has a contrast of %.2f", scheme, pair[0], pair[1], contrast)
			}
		}
	}
}

func luminance(colour string) float64 {
	var rgb [3]int
	_, _ = fmt.Sscanf(colour, "%02x%02x%02x", &rgb[0], &rgb[1], &rgb[2])
	sum := 0.0
	for i, weight := range []float64{.2126, .7152, .0722} {
		part := float64(rgb[i]) / 255
		linear := part / 12.92
		if part > .04045 {
			linear = math.Pow((part+.055)/1.055, 2.4)
		}
		sum += weight * linear
	}
	return sum
}
