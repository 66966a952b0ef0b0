// SPDX-License-Identifier: Apache-2.0

package catalogue

import (
	"github.com/grafana/grafana-foundation-sdk/go/common"
	sdk "github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/table"
)

// column is a column of a table: a label, or the values of a query.
type column struct {
	// label is the label whose values stand here; "" for the values of expr.
	label string
	// expr is the query whose values stand here; empty says when it has none.
	expr, empty string
	// title is what stands above, and what links go by.
	title      string
	properties []property
}

func label(name, title string) column { return column{label: name, title: title} }

func value(title, unit string, decimals float64, expr string) column {
	c := column{title: title, expr: expr}
	if unit != "" {
		c.properties = append(c.properties, property{"unit", unit})
	}
	if decimals != automatic {
		c.properties = append(c.properties, property{"decimals", decimals})
	}
	return c
}

// automatic decimals are for what is shown with a prefix, such as kW.
const automatic = -1.0

func (c column) but(empty string) column {
	c.empty = empty
	return c
}

func (c column) width(pixels int) column {
	c.properties = append(c.properties, property{"custom.width", pixels})
	return c
}

// meter shows the value as a bar from 0 on, in a colour.
func (c column) meter(high float64, colour string) column {
	c.properties = append(c.properties,
		property{"custom.cellOptions", map[string]any{"type": "gauge", "mode": "basic", "valueDisplayMode": "text"}},
		property{"min", 0})
	if high > 0 {
		c.properties = append(c.properties, property{"max", high})
	}
	return c.thresholds(colour)
}

// lit colours the cell by the threshold that its value reaches.
func (c column) lit(steps ...step) column {
	c.properties = append(c.properties, property{"custom.cellOptions", map[string]any{"type": "color-background", "mode": "basic"}})
	return c.thresholds("transparent", steps...)
}

func (c column) thresholds(base string, steps ...step) column {
	all := []map[string]any{{"color": base, "value": nil}}
	for _, s := range steps {
		all = append(all, map[string]any{"color": s.colour, "value": s.from})
	}
	c.properties = append(c.properties, property{"thresholds", map[string]any{"mode": "absolute", "steps": all}},
		property{"color", map[string]any{"mode": "thresholds"}})
	return c
}

// means gives values words and colours.
func (c column) means(words []word) column {
	c.properties = append(c.properties, property{"mappings", []sdk.ValueMapping{mapping(words)}},
		property{"custom.cellOptions", map[string]any{"type": "color-background", "mode": "basic"}})
	return c
}

// paint gives texts their colour.
func (c column) paint(all []named) column {
	var words []word
	for _, n := range all {
		words = append(words, word{value: n.name, text: n.name, colour: n.colour})
	}
	return c.means(words)
}

func (c column) to(links ...sdk.DashboardLink) column {
	c.properties = append(c.properties, property{"links", links})
	return c
}

// list is a table: a row for each set of labels that its queries have in common.
func list(title, description string, columns ...column) Panel {
	p := Panel{Type: "table", Title: title, Description: description, Width: 24, Height: 9}
	for _, c := range columns {
		if c.expr != "" {
			p.Targets = append(p.Targets, Target{Expr: c.expr, Instant: true, MayBeEmpty: c.empty})
		}
	}
	p = p.lettered()
	index, names := map[string]int{}, map[string]string{}
	n := 0
	for i, c := range columns {
		field := c.label
		if c.expr != "" {
			field = "Value"
			if len(p.Targets) > 1 {
				field = "Value #" + p.Targets[n].RefID
			}
			n++
		}
		index[field], names[field] = i, c.title
		if len(c.properties) > 0 {
			p.look.overrides = append(p.look.overrides, override(c.title, c.properties...))
		}
	}
	p.look.options = table.Options{
		ShowHeader: true, CellHeight: new(common.TableCellHeightSm),
		Footer: &common.TableFooterOptions{Reducer: []string{"sum"}, CountRows: new(false)},
	}
	p.look.custom = common.TableFieldOptions{Align: common.FieldTextAlignmentAuto, Filterable: new(true)}
	if len(p.Targets) > 1 {
		p.look.transformations = append(p.look.transformations, sdk.DataTransformerConfig{Id: "merge", Options: map[string]any{}})
	}
	p.look.transformations = append(p.look.transformations, sdk.DataTransformerConfig{Id: "organize", Options: map[string]any{
		"excludeByName": map[string]bool{"Time": true}, "indexByName": index, "renameByName": names,
	}})
	return p
}

// hiding leaves labels out that the queries need and nobody reads.
func (p Panel) hiding(labels ...string) Panel {
	for _, t := range p.look.transformations {
		if options, ok := t.Options.(map[string]any); ok && t.Id == "organize" {
			if excluded, ok := options["excludeByName"].(map[string]bool); ok {
				for _, l := range labels {
					excluded[l] = true
				}
			}
		}
	}
	return p
}

// sorted puts the greatest first, by the column of this title.
func (p Panel) sorted(title string) Panel { return p.order(title, true) }

// ordered puts the least first.
func (p Panel) ordered(title string) Panel { return p.order(title, false) }

func (p Panel) order(title string, desc bool) Panel {
	if o, ok := p.look.options.(table.Options); ok {
		o.SortBy = append(o.SortBy, common.TableSortByFieldState{DisplayName: title, Desc: new(desc)})
		p.look.options = o
	}
	return p
}
