// SPDX-License-Identifier: Apache-2.0

package catalogue

import (
	"strings"

	sdk "github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

// Target is one query of a panel.
type Target struct {
	// RefID names the query within its panel: A, B and so on.
	RefID string
	// Expr is the PromQL, with Grafana's variables in it.
	Expr string
	// Legend is how a series is called, with labels in double braces.
	Legend string
	// Instant is asked for at the end of the time shown, else over all of it.
	Instant bool
	// MayBeEmpty says when there is no data though all is well; "" where there always is.
	MayBeEmpty string
}

// Panel is one panel of a dashboard, or a row's heading.
type Panel struct {
	// ID is the panel's number within its dashboard.
	ID int
	// Type is Grafana's name of the kind of panel.
	Type string
	// Title is a few words, Description what is shown, of which metrics, and why it may be empty.
	Title, Description string
	// Unit is Grafana's name of the unit; "" where the columns of a table have their own, or nothing has one.
	Unit string
	// X, Y, Width and Height are the place in a grid of 24 columns.
	X, Y, Width, Height int
	// Targets are the queries.
	Targets []Target

	look look
}

// look is how a panel shows what it has.
type look struct {
	options, custom any
	decimals        *float64
	min, max        *float64
	colour, base    string
	steps           []sdk.Threshold
	mappings        []sdk.ValueMapping
	overrides       []sdk.DashboardFieldConfigSourceOverrides
	transformations []sdk.DataTransformerConfig
	links           []sdk.DashboardLink
	noValue         string
	points          float64
	interval        string
}

// The ways in which a field gets its colour.
const (
	byThreshold = "thresholds"
	byPalette   = "palette-classic"
	byShade     = "shades"
)

func (p Panel) wide(columns int) Panel {
	p.Width = columns
	return p
}

func (p Panel) high(rows int) Panel {
	p.Height = rows
	return p
}

// empty says when a target has no data, or all of them.
func (p Panel) empty(why string, refIDs ...string) Panel {
	p.Targets = append([]Target{}, p.Targets...)
	for i, t := range p.Targets {
		if len(refIDs) == 0 || strings.Contains(strings.Join(refIDs, " "), t.RefID) {
			p.Targets[i].MayBeEmpty = why
		}
	}
	return p
}

// none is what stands in a panel without data. In a table it would stand in every cell that has none too, so there the description
// says it.
func (p Panel) none(words string) Panel {
	if p.Type == "table" {
		p.Description += " " + emptyMeans + words + "."
		return p
	}
	p.look.noValue = words
	return p
}

const emptyMeans = "Empty means: "

func (p Panel) round(decimals float64) Panel {
	p.look.decimals = new(decimals)
	return p
}

// partly says that the values are parts of a whole.
func (p Panel) partly() Panel {
	p.look.min, p.look.max = new(0.0), new(1.0)
	return p
}

func (p Panel) from(low float64) Panel {
	p.look.min = new(low)
	return p
}

// at gives values from a threshold on a colour; the first one is that of all below.
func (p Panel) at(base string, steps ...step) Panel {
	p.look.colour = byThreshold
	p.look.steps = []sdk.Threshold{{Color: base}}
	for _, s := range steps {
		p.look.steps = append(p.look.steps, sdk.Threshold{Value: new(s.from), Color: s.colour})
	}
	return p
}

type step struct {
	from   float64
	colour string
}

// inColours gives each of the series of these names its colour.
func (p Panel) inColours(all []named) Panel {
	for _, n := range all {
		p.look.overrides = append(p.look.overrides, override(n.name, property{"color", map[string]any{"mode": "fixed", "fixedColor": n.colour}}))
	}
	return p
}

// shaded gives names that are not known beforehand shades of colours that mean nothing else. Known names get theirs after it.
func (p Panel) shaded() Panel {
	for _, h := range hues() {
		if h.matching == "" {
			p.look.colour, p.look.base = byShade, h.colour
			continue
		}
		o := override(h.matching, property{"color", map[string]any{"mode": byShade, "fixedColor": h.colour}})
		o.Matcher.Id = "byRegexp"
		p.look.overrides = append(p.look.overrides, o)
	}
	return p
}

// meaning gives values words and colours.
func (p Panel) meaning(all []word) Panel {
	p.look.mappings = append(p.look.mappings, mapping(all))
	return p
}

// few limits how many moments are asked for, where each costs a look at every GPU of a fleet.
func (p Panel) few() Panel {
	return p.moments(150)
}

func (p Panel) moments(most float64) Panel {
	p.look.points = most
	return p
}

func (p Panel) every(interval string) Panel {
	p.look.interval = interval
	return p
}

func (p Panel) lettered() Panel {
	for i := range p.Targets {
		p.Targets[i].RefID = string(rune('A' + i))
	}
	return p
}

func (p Panel) linked(links ...sdk.DashboardLink) Panel {
	p.look.links = append(p.look.links, links...)
	return p
}

type property struct {
	id    string
	value any
}

func override(name string, properties ...property) sdk.DashboardFieldConfigSourceOverrides {
	o := sdk.DashboardFieldConfigSourceOverrides{Matcher: sdk.MatcherConfig{Id: "byName", Options: name}}
	for _, p := range properties {
		o.Properties = append(o.Properties, sdk.DynamicConfigValue{Id: p.id, Value: p.value})
	}
	return o
}

func mapping(all []word) sdk.ValueMapping {
	options := map[string]sdk.ValueMappingResult{}
	for i, w := range all {
		options[w.value] = sdk.ValueMappingResult{Text: new(w.text), Color: new(w.colour), Index: new(int32(i))} //nolint:gosec // A handful.
	}
	return sdk.ValueMapping{ValueMap: &sdk.ValueMap{Type: sdk.MappingTypeValueToText, Options: options}}
}
