// SPDX-License-Identifier: Apache-2.0

package picture

import (
	"bytes"
	"encoding/json"
	"image"
	"image/color"
	"image/png"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/tests/dashboards/grafana"
)

const oneOfEach = `{"title":"gpumeter / All","panels":[
{"id":1,"type":"stat","title":"GPUs","gridPos":{"x":0,"y":0,"w":6,"h":4}},
{"id":2,"type":"timeseries","title":"Power","gridPos":{"x":6,"y":0,"w":18,"h":8},"options":{"legend":{"showLegend":true,"calcs":["max"],"displayMode":"table","placement":"right"}}},
{"id":3,"type":"table","title":"Nodes","gridPos":{"x":0,"y":8,"w":12,"h":6}},
{"id":4,"type":"bargauge","title":"Held","gridPos":{"x":12,"y":8,"w":6,"h":6}},
{"id":5,"type":"piechart","title":"Modes","gridPos":{"x":18,"y":8,"w":6,"h":6}},
{"id":6,"type":"state-timeline","title":"Verdicts","gridPos":{"x":0,"y":14,"w":12,"h":6},"fieldConfig":{"defaults":{"mappings":[{"type":"value","options":{"1":{"text":"sick","color":"#E02F44"}}}]}}},
{"id":7,"type":"barchart","title":"Map","gridPos":{"x":12,"y":14,"w":12,"h":6}},
{"id":8,"type":"row","title":"More","gridPos":{"x":0,"y":20,"w":24,"h":1}}]}`

func page(t *testing.T, text string) Page {
	t.Helper()
	var d grafana.Dashboard
	if err := json.Unmarshal([]byte(text), &d); err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 6, 18, 12, 0, 0, 0, time.UTC)
	p := Page{Dashboard: &d, Frames: map[int][]grafana.Frame{}, Steps: map[int]time.Duration{}, From: now.Add(-time.Hour), Now: now, Note: "not a screenshot"}
	times, values := grafana.Column{Name: grafana.TimeColumn}, grafana.Column{Name: grafana.ValueColumn, Display: "one"}
	for i := range 60 {
		times.Values = append(times.Values, p.From.Add(time.Duration(i)*time.Minute))
		values.Values = append(values.Values, float64(i/20))
	}
	series := []grafana.Frame{{RefID: "A", Fields: []grafana.Column{times, values}}}
	rows := []grafana.Frame{{RefID: "A", Fields: []grafana.Column{{Name: "Node", Values: []any{"n1", "n2", nil}}, {Name: "GPUs", Values: []any{8.0, nil, 4.0}}}}}
	for _, one := range d.All() {
		p.Steps[one.ID] = time.Minute
		p.Frames[one.ID] = series
		if one.Type == "table" || one.Type == "barchart" {
			p.Frames[one.ID] = rows
		}
	}
	return p
}

func drawn(t *testing.T, p Page) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := Draw(&b, p); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// ink is how much of a part of the picture has a colour.
func ink(img image.Image, area image.Rectangle, c color.RGBA) int {
	n := 0
	for y := area.Min.Y; y < area.Max.Y; y++ {
		for x := area.Min.X; x < area.Max.X; x++ {
			got := color.RGBAModel.Convert(img.At(x, y)).(color.RGBA)
			near := func(a, b uint8) bool { return int(a)-int(b) < 8 && int(b)-int(a) < 8 }
			if near(got.R, c.R) && near(got.G, c.G) && near(got.B, c.B) {
				n++
			}
		}
	}
	return n
}

func TestTheSamePageIsTheSamePicture(t *testing.T) {
	if !bytes.Equal(drawn(t, page(t, oneOfEach)), drawn(t, page(t, oneOfEach))) {
		t.Error("two pictures of one page differ")
	}
}

func TestEveryKindOfPanelLeavesItsMark(t *testing.T) {
	img, err := png.Decode(bytes.NewReader(drawn(t, page(t, oneOfEach))))
	if err != nil {
		t.Fatal(err)
	}
	if img.Bounds().Dx() != Width {
		t.Errorf("the picture is %d pixels wide", img.Bounds().Dx())
	}
	const column = Width / 24
	for name, mark := range map[string]struct {
		x, y, w, h int
		color      color.RGBA
		least      int
	}{
		"stat":           {0, 0, 6, 4, textColor, 50},
		"timeseries":     {6, 0, 18, 8, paint(palette()[0]), 30},
		"table":          {0, 8, 12, 6, textColor, 50},
		"piechart":       {18, 8, 6, 6, paint(palette()[0]), 2000},
		"state-timeline": {0, 14, 12, 6, paint("#E02F44"), 2000},
		"barchart":       {12, 14, 12, 6, paint(palette()[0]), 2000},
		"row":            {0, 20, 24, 1, textColor, 20},
	} {
		area := image.Rect(mark.x*column, int(head)+mark.y*int(unit), (mark.x+mark.w)*column, int(head)+(mark.y+mark.h)*int(unit))
		if got := ink(img, area, mark.color); got < mark.least {
			t.Errorf("%s has %d pixels of its colour, want at least %d", name, got, mark.least)
		}
	}
}

// TestShadesAreThoseOfGrafana has what tinycolor, of which Grafana makes them, says of one colour.
func TestShadesAreThoseOfGrafana(t *testing.T) {
	all := Shades("#808080")
	want := []color.RGBA{{128, 128, 128, 255}, {143, 143, 143, 255}, {113, 113, 113, 255}, {158, 158, 158, 255}, {98, 98, 98, 255}}
	if len(all) != 11 || !slices.Equal(all[:len(want)], want) {
		t.Errorf("shades of grey are %v", all)
	}
	for _, name := range []string{"#2E9CC4", "#C9A227", "#FF0000", "#00FF00", "#0000FF"} {
		h, s, l := hsl(paint(name))
		if got := rgb(h, s, l); got != paint(name) {
			t.Errorf("%s comes back as %v", name, got)
		}
	}
}

func TestAKindThatIsNotKnownIsNotLeftOut(t *testing.T) {
	err := Draw(new(bytes.Buffer), page(t, strings.Replace(oneOfEach, `"stat"`, `"hologram"`, 1)))
	if err == nil || !strings.Contains(err.Error(), "hologram") || !strings.Contains(err.Error(), "GPUs") {
		t.Errorf("the error is %v", err)
	}
}

// TestAPanelWithoutDataSaysSo draws a page to which nothing answered.
func TestAPanelWithoutDataSaysSo(t *testing.T) {
	p := page(t, oneOfEach)
	p.Frames = nil
	if with, without := drawn(t, page(t, oneOfEach)), drawn(t, p); bytes.Equal(with, without) {
		t.Error("a page without data looks like one with")
	}
}

func TestATextIsCutWhereItDoesNotFit(t *testing.T) {
	c := newCanvas(200, 50, pageColor)
	l := letters{size: 12}
	long := "a name that is longer than its column"
	cut := c.fit(l, long, 100)
	if !strings.HasSuffix(cut, "…") || c.width(l, cut) > 100 || c.fit(l, "short", 100) != "short" {
		t.Errorf("it becomes %q, %v wide", cut, c.width(l, cut))
	}
}
