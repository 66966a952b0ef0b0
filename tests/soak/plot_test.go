// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"errors"
	"image/color"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// picture is memory, descriptors and pages over the minutes, with a mark for whatever ended a program.
type picture struct {
	memory, files, pages *plot.Plot
}

func blue() color.Color   { return color.RGBA{0x1b, 0x6c, 0xa8, 0xff} }
func orange() color.Color { return color.RGBA{0xd9, 0x5f, 0x02, 0xff} }
func gray() color.Color   { return color.RGBA{0x70, 0x70, 0x70, 0xff} }

// draw writes the picture as SVG.
func (b *book) draw(file string) error {
	b.mu.Lock()
	samples, marks := slices.Clone(b.samples), slices.Clone(b.happened)
	b.mu.Unlock()
	p := picture{plot.New(), plot.New(), plot.New()}
	p.memory.Title.Text = "What the exporter and the device plugin hold and serve in a soak"
	p.memory.Y.Label.Text, p.files.Y.Label.Text, p.pages.Y.Label.Text, p.pages.X.Label.Text = "MiB resident", "descriptors", "valid pages a second", "minutes"
	err := errors.Join(
		lines(p.memory, samples, func(h held) float64 { return h.rss }),
		lines(p.files, samples, func(h held) float64 { return float64(h.descriptors) }),
		served(p.pages, samples),
	)
	for _, one := range p.all() {
		one.X.Min, one.X.Max = 0, max(1, last(samples).at.Minutes())
		// Without a point it would be infinite.
		one.Y.Min, one.Y.Max = 0, max(1, min(one.Y.Max, 1e9)*1.5)
		one.X.Tick.Marker = wholeMinutes(one.X.Max)
		one.Legend.Top, one.Legend.Left = true, true
		one.Legend.Padding, one.Legend.XOffs = vg.Points(2), vg.Points(6)
		err = errors.Join(err, mark(one, marks))
	}
	if err != nil {
		return err
	}
	return p.save(file)
}

func (p picture) all() []*plot.Plot { return []*plot.Plot{p.memory, p.files, p.pages} }

// wholeMinutes are about six marks.
func wholeMinutes(most float64) plot.ConstantTicks {
	var ticks plot.ConstantTicks
	step := max(1, int(most/6))
	for at := 0; at <= int(most); at += step {
		ticks = append(ticks, plot.Tick{Value: float64(at), Label: strconv.Itoa(at)})
	}
	return ticks
}

func last(samples []sample) sample {
	if len(samples) == 0 {
		return sample{}
	}
	return samples[len(samples)-1]
}

// lines are one line for each life of each program, since nothing is held in between.
func lines(p *plot.Plot, samples []sample, what func(held) float64) error {
	for _, program := range []struct {
		name  string
		color color.Color
		of    func(sample) held
	}{
		{"exporter", blue(), func(s sample) held { return s.exporter }},
		{"device plugin", orange(), func(s sample) held { return s.plugin }},
	} {
		byLife := map[int]plotter.XYs{}
		for _, s := range samples {
			if h := program.of(s); h.life > 0 {
				byLife[h.life] = append(byLife[h.life], plotter.XY{X: s.at.Minutes(), Y: what(h)})
			}
		}
		var line *plotter.Line
		for _, points := range byLife {
			var err error
			if line, err = plotter.NewLine(points); err != nil {
				return err
			}
			line.Color, line.Width = program.color, vg.Points(1.2)
			p.Add(line)
		}
		if line != nil {
			p.Legend.Add(program.name, line)
		}
	}
	return nil
}

// served is how many pages a second were valid, over ten seconds.
func served(p *plot.Plot, samples []sample) error {
	const over = 10
	var points plotter.XYs
	for i := over; i < len(samples); i += over {
		since := samples[i].at - samples[i-over].at
		points = append(points, plotter.XY{X: samples[i].at.Minutes(), Y: float64(samples[i].pages-samples[i-over].pages) / since.Seconds()})
	}
	if len(points) == 0 {
		return nil
	}
	line, err := plotter.NewLine(points)
	if err != nil {
		return err
	}
	line.Color, line.Width = color.Black, vg.Points(1.2)
	p.Add(line)
	return nil
}

// mark draws a line where a program was ended.
func mark(p *plot.Plot, marks []happened) error {
	for _, m := range []struct {
		label string
		color color.Color
		verbs []string
	}{
		{"exporter ended", blue(), []string{verbKillExport, verbStopExport}},
		{"device plugin ended", orange(), []string{verbKillPlugin, verbStopPlugin}},
		{"kubelet ended", gray(), []string{verbKubelet, verbKillKubelet}},
	} {
		var line *plotter.Line
		for _, h := range marks {
			if !slices.Contains(m.verbs, h.verb) {
				continue
			}
			var err error
			if line, err = plotter.NewLine(plotter.XYs{{X: h.at.Minutes(), Y: 0}, {X: h.at.Minutes(), Y: p.Y.Max}}); err != nil {
				return err
			}
			line.Color, line.Width, line.Dashes = m.color, vg.Points(0.5), []vg.Length{vg.Points(2), vg.Points(2)}
			p.Add(line)
		}
		if line != nil && p.X.Label.Text != "" {
			sign := *line
			sign.Width, sign.Dashes = vg.Points(1.5), nil
			p.Legend.Add(m.label, &sign)
		}
	}
	return nil
}

// save puts the plots below each other.
func (p picture) save(file string) error {
	const width, height = 20 * vg.Centimeter, 6 * vg.Centimeter
	all := p.all()
	canvas := vgsvg.New(width, height*vg.Length(len(all)))
	tiles := draw.Tiles{
		Rows: len(all), Cols: 1, PadY: vg.Points(8),
		PadTop: vg.Points(4), PadBottom: vg.Points(4), PadLeft: vg.Points(4), PadRight: vg.Points(14),
	}
	grid := make([][]*plot.Plot, len(all))
	for i, one := range all {
		grid[i] = []*plot.Plot{one}
	}
	for i, row := range plot.Align(grid, tiles, draw.New(canvas)) {
		all[i].Draw(row[0])
	}
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = canvas.WriteTo(out)
	return errors.Join(err, out.Close())
}

func TestAPictureIsDrawnOfAnySoak(t *testing.T) {
	for name, count := range map[string]int{"one that ended at once": 0, "a short one": 3, "a long one": 300} {
		b := newBook(t.Log)
		for i := range count {
			b.samples = append(b.samples, sample{at: time.Duration(i) * time.Second, pages: i, exporter: held{life: i / 100, rss: 40, descriptors: 20}})
		}
		b.happened = []happened{{at: time.Second, verb: verbKillExport}, {at: time.Second, verb: verbXID}}
		file := filepath.Join(t.TempDir(), "soak.svg")
		if err := b.draw(file); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if data, err := os.ReadFile(file); err != nil || !strings.Contains(string(data), "</svg>") {
			t.Errorf("%s: no picture: %v", name, err)
		}
	}
}
