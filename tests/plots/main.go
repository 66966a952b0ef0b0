// SPDX-License-Identifier: Apache-2.0

// Command plots draws docs/performance.svg from the output of `make bench` on its standard
// input: what a tick, a page and a scrape cost, and how that grows with the GPUs of a node.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"image/color"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: plots OUT.svg < bench.txt")
		os.Exit(2)
	}
	if err := run(os.Stdin, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "plots:", err)
		os.Exit(1)
	}
}

// curve is one line: which benchmark, by the number of GPUs in its name.
type curve struct {
	label string
	match *regexp.Regexp
	color color.Color
}

func curves() []curve {
	return []curve{
		{"a tick: read, list over gRPC, attribute, publish", regexp.MustCompile(`^BenchmarkTick/gpus=(\d+)/replicas=4-\d+$`), color.RGBA{0x1b, 0x6c, 0xa8, 0xff}},
		{"making a page, gzip included, once per tick", regexp.MustCompile(`^BenchmarkPageGzip/gpus=(\d+),replicas=4,copies-\d+$`), color.RGBA{0xd9, 0x5f, 0x02, 0xff}},
		{"making a page, plain text", regexp.MustCompile(`^BenchmarkPage/gpus=(\d+),replicas=4,copies-\d+$`), color.RGBA{0xf2, 0xb1, 0x34, 0xff}},
		{"a scrape in the exporter (page made)", regexp.MustCompile(`^BenchmarkScrape/gpus=(\d+),replicas=4,copies-\d+$`), color.RGBA{0x2c, 0x8c, 0x3c, 0xff}},
	}
}

func run(in io.Reader, file string) error {
	lines := curves()
	points := make([]map[int][]float64, len(lines))
	for i := range points {
		points[i] = map[int][]float64{}
	}
	result := regexp.MustCompile(`^(\S+)\s+\d+\s+([\d.]+) ns/op`)
	scanner := bufio.NewScanner(in)
	for scanner.Scan() {
		m := result.FindStringSubmatch(scanner.Text())
		if m == nil {
			continue
		}
		for i, c := range lines {
			if n := c.match.FindStringSubmatch(m[1]); n != nil {
				gpus, _ := strconv.Atoi(n[1])
				ns, _ := strconv.ParseFloat(m[2], 64)
				points[i][gpus] = append(points[i][gpus], ns/1e6)
			}
		}
	}
	if err := scanner.Err(); err != nil {
		return err
	}
	return draws(lines, points, file)
}

func draws(lines []curve, points []map[int][]float64, file string) error {
	p := plot.New()
	p.Title.Text = "Cost on a node of n GPUs x 4 replicas, all held, 60 other pods"
	p.X.Label.Text, p.Y.Label.Text = "GPUs", "milliseconds"
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.X.Tick.Marker = plot.ConstantTicks{{Value: 1, Label: "1"}, {Value: 2, Label: "2"}, {Value: 4, Label: "4"}, {Value: 8, Label: "8"}, {Value: 16, Label: "16"}}
	p.Legend.Top, p.Legend.Left, p.Legend.XOffs, p.Legend.YOffs = true, true, vg.Points(30), vg.Points(-110)
	p.Legend.Padding = vg.Points(3)
	p.Add(plotter.NewGrid())
	drawn := 0
	for i, c := range lines {
		var xys plotter.XYs
		for gpus, ms := range points[i] {
			// The least of several runs is the one that others disturbed least.
			xys = append(xys, plotter.XY{X: float64(gpus), Y: slices.Min(ms)})
		}
		if len(xys) == 0 {
			continue
		}
		slices.SortFunc(xys, func(a, b plotter.XY) int { return int(a.X - b.X) })
		line, dots, err := plotter.NewLinePoints(xys)
		if err != nil {
			return err
		}
		line.Color, line.Width = c.color, vg.Points(1.5)
		dots.Color, dots.Shape = c.color, draw.CircleGlyph{}
		p.Add(line, dots)
		p.Legend.Add(c.label, line, dots)
		drawn++
	}
	if drawn == 0 {
		return errors.New("no benchmark of the curves is in the input; pipe the output of `make bench` in")
	}
	p.X.Max, p.Y.Max = p.X.Max*1.03, p.Y.Max*2
	return p.Save(18*vg.Centimeter, 11*vg.Centimeter, file)
}
