// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/shopspring/decimal"

	"github.com/gpumeter/gpumeter/pkg/bill"
	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

const (
	// mostMaps and mostCells bound what is drawn one by one: more GPUs are drawn by node, more nodes as one.
	mostMaps  = 48
	mostCells = 40_000
	// levels are the shades of a cell.
	levels = 5
	// pitch is the distance of two cells in the drawing's units, side their edge; above and beside are for the axes.
	pitch, side   = 10, 9
	above, beside = 14, 18
	// fewDays are drawn as one line of hours.
	fewDays = 3
)

// heat is the picture of the hours: one small map per GPU, days to the right and hours of the day downwards.
type heat struct {
	// Of is "GPU", "node" or "fleet"; Strip says that hours go from left to right, since there are few days.
	Of    string
	Strip bool
	Maps  []heatMap
	// Note is what all maps have in common.
	Note string
	// Left, Width and Height are those of a map with its axes, Narrow and Wide how wide
	// it is at least and at most, in pixels.
	Left, Width, Height, Narrow, Wide int
	Side                              int
	Days, Hours                       []tick
	// HasUnknown and HasOut say what the legend needs.
	HasUnknown, HasOut bool
}

type tick struct {
	At   int
	Text string
}

type heatMap struct {
	ID               int
	Name, Note, Desc string
	Cells            []heatCell
}

type heatCell struct {
	X, Y         int
	Class, Title string
}

// spot is one hour of what one map is of.
type spot struct {
	start          time.Time
	capacity, held int64
	out            int64
	known          bool
}

// newHeat draws b.Hours; nil where there are none.
func newHeat(b *bill.Bill) *heat {
	if len(b.Hours) == 0 {
		return nil
	}
	h := &heat{Side: side}
	name := h.choose(b)
	spots, order, notes := gather(b, name)
	first := day(b.From.In(b.Zone))
	days := dayNumber(b.To.In(b.Zone).Add(-1), first) + 1
	h.Strip = days <= fewDays
	rows := 24
	for n, key := range order {
		m := heatMap{ID: n, Name: visible(key), Note: notes[key]}
		var held, capacity int64
		for _, s := range spots[key] {
			local := s.start.In(b.Zone)
			column := dayNumber(local, first)
			// Counted from midnight, so that the hour that a day has twice in autumn has a place of its own.
			row := int(local.Sub(midnightOf(local)).Hours())
			rows = max(rows, row+1)
			if h.Strip {
				column, row = int(local.Sub(midnightOf(b.From.In(b.Zone))).Hours()), 0
			}
			m.Cells = append(m.Cells, h.cell(&s, column, row, local))
			held, capacity = held+s.held, capacity+s.capacity
		}
		m.Desc = sharePercent(held, capacity) + " held"
		h.Maps = append(h.Maps, m)
	}
	h.Note = h.Maps[0].Note
	if slices.ContainsFunc(h.Maps, func(m heatMap) bool { return m.Note != h.Note }) {
		h.Note = ""
	}
	h.axes(first, days, rows)
	return h
}

// choose says what a map is of, as finely as can be drawn.
func (h *heat) choose(b *bill.Bill) func(*bill.CardHour) string {
	type place struct {
		node int
		card gpu.UUID
	}
	cards, nodes, hours := make(map[place]bool), make(map[int]bool), make(map[time.Time]bool)
	byCard := func(c *bill.CardHour) string { return hourNode(b, c) + " GPU " + strconv.Itoa(c.Index) }
	for i := range b.Hours {
		cards[place{b.Hours[i].Node, b.Hours[i].Card}] = true
		nodes[b.Hours[i].Node] = true
		hours[b.Hours[i].Start] = true
	}
	fits := func(n int) bool { return n <= mostMaps && n*len(hours) <= mostCells }
	switch {
	case fits(len(cards)):
		h.Of = "GPU"
		return byCard
	case fits(len(nodes)):
		h.Of = "node"
		return func(c *bill.CardHour) string { return hourNode(b, c) }
	}
	h.Of = "fleet"
	return func(*bill.CardHour) string { return "All GPUs" }
}

func hourNode(b *bill.Bill, c *bill.CardHour) string {
	if c.Node < 0 || c.Node >= len(b.Nodes) {
		return "?"
	}
	return nodeName(&b.Nodes[c.Node])
}

// gather sums the hours up by what a map is of, in the order of their first appearance.
func gather(b *bill.Bill, name func(*bill.CardHour) string) (spots map[string][]spot, order []string, notes map[string]string) {
	spots, notes = make(map[string][]spot), make(map[string]string)
	index := make(map[string]map[time.Time]int)
	for i := range b.Hours {
		c := &b.Hours[i]
		key := name(c)
		if index[key] == nil {
			index[key] = make(map[time.Time]int)
			order = append(order, key)
			notes[key] = visible(c.Model)
		}
		n, seen := index[key][c.Start]
		if !seen {
			n = len(spots[key])
			index[key][c.Start] = n
			spots[key] = append(spots[key], spot{start: c.Start, known: true})
		}
		s := &spots[key][n]
		s.capacity += c.Capacity
		s.held += c.Held
		s.out += c.Rest[sharing.CauseUnhealthy] + c.Rest[sharing.CauseUnobserved] + c.Rest[sharing.CauseUnattributed]
		s.known = s.known && c.Known
		if notes[key] != visible(c.Model) {
			notes[key] = "several models"
		}
	}
	return spots, order, notes
}

func (h *heat) cell(s *spot, column, row int, local time.Time) heatCell {
	c := heatCell{X: column * pitch, Y: h.above() + row*pitch, Title: local.Format("Mon 2 Jan 15:04") + ": "}
	switch {
	case !s.known:
		h.HasUnknown = true
		c.Class = "q"
		c.Title += "not all is known"
		if s.capacity > 0 {
			c.Title += ", " + sharePercent(s.held, s.capacity) + " held of what is"
		}
	case s.capacity <= 0:
		c.Class = "z"
		c.Title += "not there"
	case s.out*2 > s.capacity:
		h.HasOut = true
		c.Class = "o"
		c.Title += sharePercent(s.out, s.capacity) + " out of service or not seen"
	default:
		c.Class = "h" + strconv.FormatInt(shade(s.held, s.capacity), 10)
		c.Title += sharePercent(s.held, s.capacity) + " held"
	}
	return c
}

// shade is 0 where nothing was held, and levels only where all was.
func shade(held, capacity int64) int64 {
	if held <= 0 {
		return 0
	}
	return min(levels, 1+held*(levels-1)/capacity)
}

func sharePercent(part, whole int64) string {
	text, _ := percent(decimal.NewFromInt(part), decimal.NewFromInt(whole))
	return text
}

// axes lays out what stands around the cells of each map.
func (h *heat) axes(first time.Time, days, rows int) {
	h.Left, h.Width, h.Height = -beside, beside+days*pitch, above+rows*pitch
	step := 1
	for _, step = range []int{1, 2, 7, 14, 28, 91} {
		if days/step <= 8 {
			break
		}
	}
	switch {
	case h.Strip:
		h.Left, h.Width, h.Height = 0, days*rows*pitch, h.above()+pitch
		for hour := 0; hour < days*24; hour += 3 * days {
			h.Days = append(h.Days, tick{hour * pitch, fmt.Sprintf("%02d", hour%24)})
		}
	default:
		for d := 0; d < days; d += step {
			h.Days = append(h.Days, tick{d * pitch, strconv.Itoa(first.AddDate(0, 0, d).Day())})
		}
		for hour := 0; hour < 24; hour += 6 {
			h.Hours = append(h.Hours, tick{above + hour*pitch + side, fmt.Sprintf("%02d", hour)})
		}
	}
	h.Narrow, h.Wide = min(250, h.Width*3/2), h.Width*3/2
	if h.Strip {
		h.Wide = 1000
	}
	for i := range h.Maps {
		slices.SortFunc(h.Maps[i].Cells, func(a, b heatCell) int { return cmp.Or(cmp.Compare(a.X, b.X), cmp.Compare(a.Y, b.Y)) })
	}
}

// Baseline is where the days are written.
func (h *heat) Baseline() int { return h.above() - pitch/3 }

// above is how much room the axis has.
func (h *heat) above() int {
	if h.Strip {
		return above / 2
	}
	return above
}

func dayNumber(t, first time.Time) int { return int(day(t).Sub(first) / (24 * time.Hour)) }

// day is the date of t as a moment of UTC, so that days are all of one length.
func day(t time.Time) time.Time { return time.Date(t.Year(), t.Month(), t.Day(), 0, 0, 0, 0, time.UTC) }

func midnightOf(t time.Time) time.Time {
	return time.Date(t.Year(), t.Month(), t.Day(), 0, 0, 0, 0, t.Location())
}
