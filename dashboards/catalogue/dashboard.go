// SPDX-License-Identifier: Apache-2.0

// Package catalogue has the dashboards of gpumeter, as values that can be read and as the JSON that Grafana imports.
package catalogue

import (
	"encoding/json"
	"fmt"

	"github.com/grafana/grafana-foundation-sdk/go/cog/variants"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	sdk "github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
)

// Dashboard is one page.
type Dashboard struct {
	// Name is the name of its file without .json, and the end of its UID.
	Name string
	// Title and Description are Grafana's.
	Title, Description string
	// From is where the time begins that it shows at first, such as now-6h; it ends now.
	From string
	// Refresh is how often it asks anew at first, such as 1m.
	Refresh string
	// Variables are the names of its variables.
	Variables []string
	// Panels are in the order in which they stand.
	Panels []Panel

	variables []sdk.VariableModel
}

// UID is Grafana's identity of the dashboard, by which links find it.
func (d Dashboard) UID() string { return "gpumeter-" + d.Name }

// All are the dashboards, in the order in which people need them.
func All() []Dashboard {
	return []Dashboard{fleet(), node(), sharing(), chargeback(), health(), itself()}
}

// laid gives panels their numbers and places: from left to right, and in a new line where one does not fit.
func (d Dashboard) laid(lines ...[]Panel) Dashboard {
	y := 0
	for _, line := range lines {
		x, high := 0, 0
		for _, p := range line {
			p.ID, p.X, p.Y = len(d.Panels)+1, x, y
			x, high = x+p.Width, max(high, p.Height)
			d.Panels = append(d.Panels, p)
		}
		y += high
	}
	for _, v := range d.variables {
		d.Variables = append(d.Variables, v.Name)
	}
	return d
}

func line(panels ...Panel) []Panel { return panels }

// schema is the version of the classic schema that Grafana 11 and 12 read without a migration.
const schema = 39

// JSON is the dashboard as Grafana imports it.
func (d Dashboard) JSON() ([]byte, error) {
	board := sdk.Dashboard{ //nolint:staticcheck // The newer schema is one that Grafana 11 does not read.
		Uid: new(d.UID()), Title: new(d.Title), Description: new(d.Description), Tags: []string{"gpumeter", "gpu"},
		Timezone: new("browser"), Editable: new(true), GraphTooltip: new(sdk.DashboardCursorSyncCrosshair),
		Time: &sdk.DashboardDashboardTime{From: d.From, To: "now"}, Refresh: new(d.Refresh), SchemaVersion: schema,
		Templating: sdk.DashboardDashboardTemplating{List: d.variables},
		Links:      d.links(), Annotations: sdk.AnnotationContainer{List: []sdk.AnnotationQuery{}},
	}
	for _, p := range d.Panels {
		if p.Type == "row" {
			board.Panels = append(board.Panels, sdk.PanelOrRowPanel{RowPanel: &sdk.RowPanel{
				Type: "row", Title: new(p.Title), Id: uint32(p.ID), GridPos: p.place(), Panels: []sdk.Panel{}, //nolint:gosec // Small.
			}})
			continue
		}
		panel := p.built()
		board.Panels = append(board.Panels, sdk.PanelOrRowPanel{Panel: &panel})
	}
	raw, err := json.MarshalIndent(board, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write dashboard %s as JSON: %w", d.Name, err)
	}
	return append(raw, '\n'), nil
}

func (p Panel) place() *sdk.GridPos {
	return &sdk.GridPos{X: uint32(p.X), Y: uint32(p.Y), W: uint32(p.Width), H: uint32(p.Height)} //nolint:gosec // Columns and lines of a page.
}

func source() *common.DataSourceRef {
	return &common.DataSourceRef{Type: new("prometheus"), Uid: new("${datasource}")}
}

func (p Panel) built() sdk.Panel {
	l := p.look
	panel := sdk.Panel{
		Type: p.Type, Id: new(uint32(p.ID)), Title: new(p.Title), Description: new(p.Description), //nolint:gosec // Small.
		Datasource: source(), GridPos: p.place(), Options: l.options, Transformations: l.transformations,
		FieldConfig: &sdk.FieldConfigSource{
			Defaults: sdk.FieldConfig{
				Decimals: l.decimals, Min: l.min, Max: l.max, Mappings: l.mappings, Links: l.links, Custom: l.custom,
			},
			Overrides: l.overrides,
		},
	}
	defaults := &panel.FieldConfig.Defaults
	if p.Unit != "" {
		defaults.Unit = new(p.Unit)
	}
	if l.colour != "" {
		defaults.Color = &sdk.FieldColor{Mode: sdk.FieldColorModeId(l.colour)}
		if l.base != "" {
			defaults.Color.FixedColor = new(l.base)
		}
	}
	if l.steps != nil {
		defaults.Thresholds = &sdk.ThresholdsConfig{Mode: sdk.ThresholdsModeAbsolute, Steps: l.steps}
	}
	if l.noValue != "" {
		defaults.NoValue = new(l.noValue)
	}
	if l.points > 0 {
		panel.MaxDataPoints = new(l.points)
	}
	if l.interval != "" {
		panel.Interval = new(l.interval)
	}
	if panel.FieldConfig.Overrides == nil {
		panel.FieldConfig.Overrides = []sdk.DashboardFieldConfigSourceOverrides{}
	}
	for _, t := range p.Targets {
		panel.Targets = append(panel.Targets, t.built(p.Type))
	}
	return panel
}

func (t Target) built(panelType string) variants.Dataquery {
	format := prometheus.PromQueryFormatTimeSeries
	if panelType == "table" || panelType == "barchart" {
		format = prometheus.PromQueryFormatTable
	}
	return prometheus.Dataquery{
		Datasource: source(), EditorMode: new(prometheus.QueryEditorModeCode), Expr: t.Expr, RefId: new(t.RefID), Format: &format,
		Instant: new(t.Instant), Range: new(!t.Instant), LegendFormat: new(t.Legend), Exemplar: new(false),
	}
}
