// SPDX-License-Identifier: Apache-2.0

package dashboards

import (
	"bytes"
	"flag"
	"fmt"
	"image/color"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/tests/dashboards/grafana"
	"github.com/gpumeter/gpumeter/tests/dashboards/picture"
)

var write = flag.Bool("write", false, "write docs/dashboards/*.png anew")

// largestPicture is what a picture in the documentation may weigh.
const largestPicture = 300_000

// pictured says how a dashboard is opened for its picture.
func pictured(name string) opening {
	switch name {
	case "node":
		return opening{span: time.Hour, picked: picked{"node": {"gpu-node-1"}}}
	case "chargeback":
		return opening{picked: picked{"node": {"gpu-month-1"}, "price": {"2.5"}}}
	default:
		return opening{span: time.Hour}
	}
}

// TestRenderings draws every dashboard from the answers to its queries. With -args -write it keeps the pictures.
func TestRenderings(t *testing.T) {
	r := theRig(t)
	for _, d := range load(t) {
		name := strings.TrimPrefix(d.UID, "gpumeter-")
		t.Run(name, func(t *testing.T) {
			v, err := r.open(t.Context(), d, pictured(name).span, pictured(name).picked)
			if err != nil {
				t.Fatal(err)
			}
			page := picture.Page{
				Dashboard: d, Frames: map[int][]grafana.Frame{}, Steps: map[int]time.Duration{}, From: v.scope.From, Now: v.scope.To, Subtitle: v.subtitle(),
				Note: "rendered from the dashboard's queries over simulated nodes; not a screenshot",
			}
			for _, p := range d.All() {
				frames, step, err := v.shown(t, p)
				if err != nil {
					t.Errorf("panel %q: %v", p.Title, err)
				}
				page.Frames[p.ID], page.Steps[p.ID] = frames, step
			}
			var b bytes.Buffer
			if err := picture.Draw(&b, page); err != nil {
				t.Fatal(err)
			}
			if b.Len() > largestPicture {
				t.Errorf("the picture is %d bytes, more than %d", b.Len(), largestPicture)
			}
			file := filepath.Join("../../docs/dashboards", name+".png")
			if !*write {
				resembles(t, file, b.Bytes())
				return
			}
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// resembles requires that a picture in the documentation is about what would be drawn now. Numbers may have moved a little.
func resembles(t *testing.T, file string, drawn []byte) {
	t.Helper()
	const again = "run make renderings, and look at it"
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v; %s", err, again)
	}
	was, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		t.Fatalf("%s: %v; %s", file, err, again)
	}
	is, err := png.Decode(bytes.NewReader(drawn))
	if err != nil {
		t.Fatal(err)
	}
	if was.Bounds() != is.Bounds() {
		t.Fatalf("%s is of the size %v, the dashboard of %v; %s", file, was.Bounds().Size(), is.Bounds().Size(), again)
	}
	size, differ := is.Bounds().Size(), 0
	for y := range size.Y {
		for x := range size.X {
			if color.RGBAModel.Convert(was.At(x, y)) != color.RGBAModel.Convert(is.At(x, y)) {
				differ++
			}
		}
	}
	const most = 0.02
	if part := float64(differ) / float64(size.X*size.Y); part > most {
		t.Errorf("%s differs from the dashboard in %.1f %% of its pixels; %s", file, part*100, again)
	}
}

// shown is what a panel has after its transformations, and the time between its moments.
func (v *view) shown(t *testing.T, p grafana.Panel) (frames []grafana.Frame, step time.Duration, err error) {
	t.Helper()
	for _, target := range p.Targets {
		if target.Hide {
			continue
		}
		a, err := v.ask(t.Context(), p, target)
		if err != nil {
			return nil, 0, fmt.Errorf("query %s: %w", target.RefID, err)
		}
		step = a.step
		frames = append(frames, a.frames(len(p.Targets) == 1)...)
	}
	frames, err = grafana.Transform(frames, p.Transformations)
	return frames, step, err
}

// subtitle says what is chosen, and of which time.
func (v *view) subtitle() string {
	var chosen []string
	for _, one := range v.dashboard.Templating.List {
		c := v.scope.Chosen[one.Name]
		if one.Type == "datasource" || one.Hide != 0 {
			continue
		}
		value := strings.Join(c.Values, ", ")
		if c.All != "" {
			value = "All"
		}
		chosen = append(chosen, one.Name+": "+value)
	}
	const form = "2 Jan 15:04"
	return strings.Join(chosen, "   ") + "      " + v.scope.From.Format(form) + " to " + v.scope.To.Format(form+" 2006")
}
