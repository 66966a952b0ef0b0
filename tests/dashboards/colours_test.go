// SPDX-License-Identifier: Apache-2.0

package dashboards

import (
	"encoding/json"
	"image/color"
	"maps"
	"math"
	"testing"

	"github.com/gpumeter/gpumeter/tests/dashboards/grafana"
	"github.com/gpumeter/gpumeter/tests/dashboards/picture"
)

// reserved are the states, and the modes that must not look like one.
var (
	reserved = []string{"held", "free", "unrequested", "stranded", "unhealthy", "unobserved", "unattributed"}
	modes    = []string{"exclusive", "shared", "mig", "mig-shared"}
)

// coloursOf are the fixed colours of fields by name, and the colours of whose shades others are.
func coloursOf(t *testing.T, d *grafana.Dashboard) (named map[string]string, shades map[string]bool) {
	t.Helper()
	named, shades = map[string]string{}, map[string]bool{}
	for _, p := range d.All() {
		if c := p.FieldConfig.Defaults.Color; c.Mode == "shades" {
			shades[c.FixedColor] = true
		}
		for _, o := range p.FieldConfig.Overrides {
			for _, property := range o.Properties {
				var c grafana.Color
				if property.ID != "color" || json.Unmarshal(property.Value, &c) != nil {
					continue
				}
				name, _ := o.Matcher.Options.(string)
				switch c.Mode {
				case "fixed":
					named[name] = c.FixedColor
				case "shades":
					shades[c.FixedColor] = true
				}
			}
		}
	}
	return named, shades
}

// TestNoNamespaceLooksLikeAState holds all that Grafana makes of the colours of namespaces, models and modes against those of the states.
func TestNoNamespaceLooksLikeAState(t *testing.T) {
	named, shades := map[string]string{}, map[string]bool{}
	for _, d := range load(t) {
		n, s := coloursOf(t, d)
		maps.Copy(named, n)
		maps.Copy(shades, s)
	}
	if len(shades) < 2 {
		t.Fatalf("namespaces are shades of %v", shades)
	}
	// Nearer than this, people take one for the other.
	const least = 36
	for _, state := range reserved {
		c := picture.Shades(named[state])[0]
		if named[state] == "" {
			t.Errorf("%s has no colour", state)
		}
		for base := range shades {
			for i, shade := range picture.Shades(base) {
				if d := apart(c, shade); d < least {
					t.Errorf("shade %d of %s, %v, looks like %s, %v (%.0f apart)", i, base, shade, state, c, d)
				}
			}
		}
		for _, mode := range modes {
			if d := apart(c, picture.Shades(named[mode])[0]); d < least {
				t.Errorf("%s looks like %s (%.0f apart)", mode, state, d)
			}
		}
	}
}

// TestPanelsOfNamespacesTakeNoColourOfAPalette draws nothing by name in Grafana's palettes, which have the states' colours.
func TestPanelsOfNamespacesTakeNoColourOfAPalette(t *testing.T) {
	found := 0
	for _, d := range load(t) {
		for _, p := range d.All() {
			byName := p.Type == "barchart"
			for _, target := range p.Targets {
				byName = byName || target.LegendFormat == "{{namespace}}" || target.LegendFormat == "{{model}}"
			}
			if !byName {
				continue
			}
			found++
			if mode := p.FieldConfig.Defaults.Color.Mode; mode != "shades" && mode != "thresholds" {
				t.Errorf("%s, %q: colours of %s", d.Title, p.Title, mode)
			}
		}
	}
	if found < 5 {
		t.Errorf("%d panels are by namespace or model", found)
	}
}

// TestAStateKeepsItsColourBesideNamespaces asks the map of shared GPUs for the colour of each of its fields.
func TestAStateKeepsItsColourBesideNamespaces(t *testing.T) {
	for _, p := range dashboard(t, "sharing").All() {
		if p.Type != "barchart" {
			continue
		}
		for name, mode := range map[string]string{"unhealthy": "fixed", "free": "fixed", "stranded": "fixed", "ml-research": "shades", "Team-A": "shades", "vision": "shades"} {
			f, err := p.Field(grafana.Column{Name: name}, "A")
			if err != nil {
				t.Fatal(err)
			}
			if f.Color.Mode != mode {
				t.Errorf("%s has the colour %+v", name, f.Color)
			}
		}
		a, _ := p.Field(grafana.Column{Name: "team-a"}, "A")
		b, _ := p.Field(grafana.Column{Name: "team-b"}, "A")
		c, _ := p.Field(grafana.Column{Name: "TEAM-A"}, "A")
		if a.Color == b.Color || a.Color != c.Color {
			t.Errorf("team-a is of %v, team-b of %v, TEAM-A of %v", a.Color, b.Color, c.Color)
		}
	}
}

func apart(a, b color.RGBA) float64 {
	d := func(x, y uint8) float64 { return float64(x) - float64(y) }
	return math.Sqrt(d(a.R, b.R)*d(a.R, b.R) + d(a.G, b.G)*d(a.G, b.G) + d(a.B, b.B)*d(a.B, b.B))
}
