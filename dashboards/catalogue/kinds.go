// SPDX-License-Identifier: Apache-2.0

package catalogue

import (
	"github.com/grafana/grafana-foundation-sdk/go/bargauge"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/piechart"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/statetimeline"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

func reduced() common.ReduceDataOptions {
	return common.ReduceDataOptions{Values: new(false), Calcs: []string{"lastNotNull"}, Fields: new("")}
}

// number is one figure: what the expression is now.
func number(title, unit, expr, description string) Panel {
	return Panel{
		Type: "stat", Title: title, Unit: unit, Description: description, Width: 3, Height: 4,
		Targets: []Target{{RefID: "A", Expr: expr, Instant: true, Legend: title}},
		look: look{
			options: stat.Options{
				GraphMode: common.BigValueGraphModeNone, ColorMode: common.BigValueColorModeValue, JustifyMode: common.BigValueJustifyModeAuto,
				TextMode: common.BigValueTextModeAuto, WideLayout: true, ReduceOptions: reduced(),
				PercentChangeColorMode: common.PercentChangeColorModeStandard, Orientation: common.VizOrientationAuto,
			},
		},
	}.at(text)
}

// named shows what the series of a figure are called, where there can be several.
func (p Panel) withNames() Panel {
	o, ok := p.look.options.(stat.Options)
	if ok {
		o.TextMode = common.BigValueTextModeValueAndName
		p.look.options = o
	}
	return p
}

func legend(calcs ...string) common.VizLegendOptions {
	if len(calcs) == 0 {
		return common.VizLegendOptions{DisplayMode: common.LegendDisplayModeList, Placement: common.LegendPlacementBottom, ShowLegend: true, Calcs: []string{}}
	}
	return common.VizLegendOptions{
		DisplayMode: common.LegendDisplayModeTable, Placement: common.LegendPlacementRight, ShowLegend: true, Calcs: calcs,
		SortBy: new("Last *"), SortDesc: new(true),
	}
}

func tooltip() common.VizTooltipOptions {
	return common.VizTooltipOptions{Mode: common.TooltipDisplayModeMulti, Sort: common.SortOrderDescending}
}

// graph is lines over time.
func graph(title, unit, description string, targets ...Target) Panel {
	return Panel{
		Type: "timeseries", Title: title, Unit: unit, Description: description, Width: 12, Height: 8, Targets: targets,
		look: look{
			colour:  byPalette,
			options: timeseries.Options{Legend: legend(), Tooltip: tooltip()},
			custom:  lines(common.GraphDrawStyleLine, common.StackingModeNone, 8),
		},
	}.lettered().from(0)
}

func lines(style common.GraphDrawStyle, stacking common.StackingMode, fill float64) common.GraphFieldConfig {
	return common.GraphFieldConfig{
		DrawStyle: new(style), LineWidth: new(1.0), FillOpacity: new(fill), ShowPoints: new(common.VisibilityModeNever),
		LineInterpolation: new(common.LineInterpolationLinear),
		SpanNulls:         &common.BoolOrFloat64{Bool: new(false)},
		Stacking:          &common.StackingConfig{Mode: new(stacking), Group: new("A")},
	}
}

// stacked puts the series on one another.
func (p Panel) stacked() Panel {
	p.look.custom = lines(common.GraphDrawStyleLine, common.StackingModeNormal, 75)
	return p
}

// inBars draws a bar for each moment, on one another.
func (p Panel) inBars() Panel {
	p.look.custom = lines(common.GraphDrawStyleBars, common.StackingModeNormal, 90)
	return p
}

// whole is for numbers of events: the axis reaches to 4 at least, so that its marks are whole numbers too.
func (p Panel) whole() Panel {
	if custom, ok := p.look.custom.(common.GraphFieldConfig); ok {
		custom.AxisSoftMax = new(4.0)
		p.look.custom = custom
	}
	return p.round(0)
}

// listed puts the legend beside the graph, with the last value and the greatest.
func (p Panel) listed() Panel {
	p.look.options = timeseries.Options{Legend: legend("lastNotNull", "max"), Tooltip: tooltip()}
	return p
}

func series(expr, legend string) Target { return Target{Expr: expr, Legend: legend} }

func now(expr, legend string) Target { return Target{Expr: expr, Legend: legend, Instant: true} }

// gauges are bars side by side, one for each series, as they are now.
func gauges(title, unit, description string, targets ...Target) Panel {
	return Panel{
		Type: "bargauge", Title: title, Unit: unit, Description: description, Width: 8, Height: 8, Targets: targets,
		look: look{
			colour: byPalette,
			options: bargauge.Options{
				DisplayMode: common.BarGaugeDisplayModeBasic, ValueMode: common.BarGaugeValueModeText, NamePlacement: common.BarGaugeNamePlacementLeft,
				ShowUnfilled: true, Sizing: common.BarGaugeSizingAuto, MinVizWidth: 8, MinVizHeight: 16, MaxVizHeight: 300,
				Legend: common.VizLegendOptions{
					DisplayMode: common.LegendDisplayModeList, Placement: common.LegendPlacementBottom, Calcs: []string{},
				},
				ReduceOptions: reduced(), Orientation: common.VizOrientationHorizontal,
			},
		},
	}.lettered().from(0)
}

// pie is parts of a whole.
func pie(title, unit, description string, targets ...Target) Panel {
	return Panel{
		Type: "piechart", Title: title, Unit: unit, Description: description, Width: 6, Height: 8, Targets: targets,
		look: look{
			colour: byPalette,
			options: piechart.Options{
				PieType: piechart.PieChartTypeDonut, DisplayLabels: []piechart.PieChartLabels{piechart.PieChartLabelsPercent},
				Tooltip: common.VizTooltipOptions{Mode: common.TooltipDisplayModeSingle, Sort: common.SortOrderNone}, ReduceOptions: reduced(),
				Legend: piechart.PieChartLegendOptions{
					Values: []piechart.PieChartLegendValues{piechart.PieChartLegendValuesValue}, DisplayMode: common.LegendDisplayModeTable,
					Placement: common.LegendPlacementRight, ShowLegend: true, Calcs: []string{},
				},
			},
		},
	}.lettered()
}

// timeline is a line of coloured states for each series.
func timeline(title, description string, words []word, targets ...Target) Panel {
	return Panel{
		Type: "state-timeline", Title: title, Description: description, Width: 24, Height: 9, Targets: targets,
		look: look{
			colour: byThreshold,
			options: statetimeline.Options{
				ShowValue: common.VisibilityModeNever, RowHeight: 0.8, MergeValues: new(true), AlignValue: new(common.TimelineValueAlignmentLeft),
				Legend: legend(), Tooltip: common.VizTooltipOptions{Mode: common.TooltipDisplayModeSingle, Sort: common.SortOrderNone},
				PerPage: new(20.0),
			},
			custom: statetimeline.FieldConfig{LineWidth: new(uint32(0)), FillOpacity: new(uint32(85))},
		},
	}.lettered().meaning(words)
}

// heading begins a part of the page.
func heading(title string) Panel { return Panel{Type: "row", Title: title, Width: 24, Height: 1} }
