// SPDX-License-Identifier: Apache-2.0

package grafana

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
)

var noon = time.Date(2026, 6, 18, 12, 0, 0, 0, time.UTC)

// TestVariablesAreWrittenAsGrafanaWritesThem holds what a query becomes against what Grafana 11 makes of it.
func TestVariablesAreWrittenAsGrafanaWritesThem(t *testing.T) {
	s := Scope{
		From: noon.Add(-6 * time.Hour), To: noon, Interval: time.Minute, Scrape: 30 * time.Second,
		Chosen: map[string]Choice{
			"all": {List: true, All: ".*"}, "one": {List: true, Values: []string{"a.b"}}, "two": {List: true, Values: []string{"a.b", "c(d)"}},
			"typed": {Values: []string{`say "2\5"`}}, "price": {Values: []string{"2.5"}},
		},
	}
	for text, want := range map[string]string{
		`x{l=~"$all"}`:              `x{l=~".*"}`,
		`x{l=~"$one"}`:              `x{l=~"a\\.b"}`,
		`x{l=~"${two}"}`:            `x{l=~"(a\\.b|c\\(d\\))"}`,
		`x{l=~"[[two:pipe]]"}`:      `x{l=~"a.b|c(d)"}`,
		`${two:raw}`:                `a.b,c(d)`,
		`x{l="$typed"}`:             `x{l="say \"2\\5\""}`,
		`x * $price`:                `x * 2.5`,
		`rate(x[$__rate_interval])`: `rate(x[120s])`,
		`x[$__range] $__interval`:   `x[21600s] 60s`,
		`$__range_s $__interval_ms`: `21600 60000`,
		`label_replace(x, "a", "$1-$2", "b", "(.*)(.*)")`: `label_replace(x, "a", "$1-$2", "b", "(.*)(.*)")`,
	} {
		got, err := s.Interpolate(text)
		if err != nil || got != want {
			t.Errorf("%s becomes %s (%v), want %s", text, got, err, want)
		}
	}
	for _, text := range []string{`$nobody`, `${one:nonsense}`} {
		if _, err := s.Interpolate(text); err == nil {
			t.Errorf("%s is taken", text)
		}
	}
}

func TestTimesOfARangeAreWhatTheySay(t *testing.T) {
	for text, want := range map[string]string{
		"now": "2026-06-18 12:00", "now-6h": "2026-06-18 06:00", "now/d": "2026-06-18 00:00", "now/w": "2026-06-15 00:00", "now/M": "2026-06-01 00:00",
		"now-1M/M": "2026-05-01 00:00", "now-30m/h": "2026-06-18 11:00",
	} {
		got, err := Moment(text, noon)
		if err != nil || got.Format("2006-01-02 15:04") != want {
			t.Errorf("%s is %v (%v), want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "yesterday", "now-6", "now/y"} {
		if _, err := Moment(text, noon); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}

func TestAGraphHasAStepThatPeopleRead(t *testing.T) {
	for _, c := range []struct {
		span   time.Duration
		points int
		least  time.Duration
		want   time.Duration
	}{
		{time.Hour, 1600, 30 * time.Second, 30 * time.Second}, {6 * time.Hour, 720, 15 * time.Second, 30 * time.Second},
		{17 * 24 * time.Hour, 800, 30 * time.Second, 30 * time.Minute}, {24 * time.Hour, 150, 30 * time.Second, 10 * time.Minute}, {365 * 24 * time.Hour, 100, time.Minute, 24 * time.Hour},
	} {
		if got := Step(c.span, c.points, c.least); got != c.want {
			t.Errorf("%v in %d points: %v, want %v", c.span, c.points, got, c.want)
		}
	}
}

func TestValuesAreWrittenInTheirUnit(t *testing.T) {
	two, none := 2, 0
	for _, c := range []struct {
		unit     string
		decimals *int
		value    float64
		want     string
	}{
		{"percentunit", &none, 0.815, "82%"}, {"bytes", nil, 1.5 * (1 << 30), "1.5 GiB"}, {"mbytes", nil, 69632, "68 GiB"}, {"watt", &two, 24123.4, "24.12 kW"},
		{"kwatth", nil, 0.5, "500 Wh"}, {"celsius", nil, 66, "66 °C"}, {"s", nil, 90, "1.5 mins"}, {"s", nil, 0.0042, "4.2 ms"}, {"none", &two, 3, "3.00"},
		{"currencyUSD", &two, 1234.5, "$1.23K"}, {"dateTimeFromNow", nil, float64(noon.Add(-3 * time.Minute).UnixMilli()), "3 minutes ago"}, {"short", nil, 1200000, "1.2 Mil"},
		{"hertz", nil, 1.98e9, "1.98 GHz"}, {"suffix: GPUs", nil, 4, "4 GPUs"}, {"bool_yes_no", nil, 1, "Yes"},
	} {
		if got := Format(c.unit, c.decimals, c.value, noon); got != c.want || !Known(c.unit) {
			t.Errorf("%v in %q is %q (known: %v), want %q", c.value, c.unit, got, Known(c.unit), c.want)
		}
	}
	if Known("kilowatts") {
		t.Error("a unit that Grafana does not have is known")
	}
}

func vector(series ...any) promql.Vector {
	var v promql.Vector
	for i := 0; i < len(series); i += 2 {
		v = append(v, promql.Sample{Metric: labels.FromStrings(series[i].([]string)...), F: series[i+1].(float64), T: noon.UnixMilli()})
	}
	return v
}

// text is a frame in lines.
func text(frames []Frame) string {
	out := ""
	for _, f := range frames {
		for i := -1; i < f.Rows(); i++ {
			for _, c := range f.Fields {
				if i < 0 {
					out += c.Title() + "|"
				} else {
					out += fmt.Sprint(c.Values[i]) + "|"
				}
			}
			out += "\n"
		}
	}
	return out
}

func steps(t *testing.T, s string) []Transformation {
	t.Helper()
	var out []Transformation
	if err := json.Unmarshal([]byte(s), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestTheQueriesOfATableBecomeItsRows merges two answers that share labels, as the tables of the dashboards do.
func TestTheQueriesOfATableBecomeItsRows(t *testing.T) {
	a := Frames(Target{RefID: "A", Format: "table"}, vector([]string{"node", "n1"}, 8.0, []string{"node", "n2"}, 4.0), false)
	b := Frames(Target{RefID: "B", Format: "table"}, vector([]string{"node", "n2"}, 1.0), false)
	got, err := Transform(append(a, b...), steps(t, `[{"id":"merge"},{"id":"organize","options":{"excludeByName":{"Time":true},"indexByName":{"Value #B":0,"node":1,"Value #A":2},
		"renameByName":{"Value #A":"GPUs","Value #B":"Broken","node":"Node"}}},{"id":"sortBy","options":{"sort":[{"field":"GPUs"}]}}]`))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff("Broken|Node|GPUs|\n1|n2|4|\n<nil>|n1|8|\n", text(got)); diff != "" {
		t.Error(diff)
	}
}

func TestAMatrixHasARowForEachGPU(t *testing.T) {
	f := Frames(Target{RefID: "A", Format: "table"}, vector([]string{"card", "0", "part", "a"}, 0.25, []string{"card", "0", "part", "free"}, 0.75, []string{"card", "1", "part", "free"}, 1.0), true)
	got, err := Transform(f, steps(t, `[{"id":"groupingToMatrix","options":{"columnField":"part","rowField":"card","valueField":"Value","emptyValue":"zero"}}]`))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff("card\\part|a|free|\n0|0.25|0.75|\n1|0|1|\n", text(got)); diff != "" {
		t.Error(diff)
	}
	for _, wrong := range []string{`[{"id":"dance"}]`, `[{"id":"sortBy","options":{"sort":[{"field":"nothing"}]}}]`, `[{"id":"groupingToMatrix","options":{"columnField":"x"}}]`} {
		if _, err := Transform(f, steps(t, wrong)); err == nil {
			t.Errorf("%s is taken", wrong)
		}
	}
}

func TestALegendShowsLabels(t *testing.T) {
	l := labels.FromStrings("node", "n1", "gpu", "3")
	for format, want := range map[string]string{"{{node}} GPU {{ gpu }}": "n1 GPU 3", "held": "held", "": `{gpu="3", node="n1"}`, "{{nothing}}": ""} {
		if got := Legend(format, l); got != want {
			t.Errorf("%q is %q, want %q", format, got, want)
		}
	}
	if got := Legend("__auto", labels.FromStrings("namespace", "a")); got != "a" {
		t.Errorf("a series with one label is %q", got)
	}
}

// TestOverridesChangeOneColumn gives one column a unit, words and a colour of its own.
func TestARegularExpressionIsWrittenAsInJavaScript(t *testing.T) {
	for text, want := range map[string]bool{"/[ab]$/i": true, "/[ab]$/": false, "^TEAM": true, "/^team/": false, "/": false} {
		o := Override{}
		o.Matcher.ID, o.Matcher.Options = "byRegexp", text
		if got, err := o.matches(Column{Name: "TEAM-A"}, "A"); got != want || err != nil {
			t.Errorf("%s matches: %v, %v", text, got, err)
		}
	}
}

func TestOverridesChangeOneColumn(t *testing.T) {
	var p Panel
	if err := json.Unmarshal([]byte(`{"fieldConfig":{"defaults":{"unit":"none","thresholds":{"steps":[{"color":"green","value":null},{"color":"red","value":1}]}},"overrides":[
		{"matcher":{"id":"byName","options":"Up"},"properties":[{"id":"mappings","value":[{"type":"value","options":{"1":{"text":"yes","color":"blue"}}}]},{"id":"custom.hidden","value":true}]}]}}`), &p); err != nil {
		t.Fatal(err)
	}
	up, err := p.Field(Column{Name: "Up"}, "A")
	if err != nil {
		t.Fatal(err)
	}
	if words, color := up.Shown(1.0, noon); words != "yes" || color != "blue" || !up.Hidden {
		t.Errorf("it is shown as %q in %q, hidden: %v", words, color, up.Hidden)
	}
	other, err := p.Field(Column{Name: "Other"}, "A")
	if err != nil {
		t.Fatal(err)
	}
	if words, color := other.Shown(2.0, noon); words != "2" || color != "red" || other.Hidden {
		t.Errorf("the other is shown as %q in %q, hidden: %v", words, color, other.Hidden)
	}
	p.FieldConfig.Overrides[0].Matcher.ID = "byMagic"
	if _, err := p.Field(Column{Name: "Up"}, "A"); err == nil {
		t.Error("a matcher that is not known is taken")
	}
}
