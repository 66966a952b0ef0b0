// SPDX-License-Identifier: Apache-2.0

package catalogue

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	sdk "github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

// eachPanel runs a test for every panel but headings.
func eachPanel(t *testing.T, check func(t *testing.T, d Dashboard, p Panel)) {
	t.Helper()
	for _, d := range All() {
		for _, p := range d.Panels {
			if p.Type != "row" {
				t.Run(d.Name+"/"+p.Title, func(t *testing.T) { check(t, d, p) })
			}
		}
	}
}

func TestEveryPanelSaysWhatItShows(t *testing.T) {
	titles := map[string]bool{}
	eachPanel(t, func(t *testing.T, d Dashboard, p Panel) {
		if p.Title == "" || titles[d.Name+p.Title] {
			t.Error("no title, or one that is there twice")
		}
		titles[d.Name+p.Title] = true
		if len(p.Description) < 40 || !strings.HasSuffix(strings.TrimSpace(p.Description), ".") {
			t.Errorf("description %q", p.Description)
		}
		used := metricsIn(exprs(p))
		for _, m := range metricsIn(p.Description) {
			if !slices.Contains(used, m) {
				t.Errorf("the description names %s, which no query asks for", m)
			}
		}
		if len(metricsIn(p.Description)) == 0 && !strings.Contains(p.Description, rules) {
			t.Error("the description names no metric")
		}
	})
}

func TestEveryPanelHasAUnit(t *testing.T) {
	eachPanel(t, func(t *testing.T, _ Dashboard, p Panel) {
		switch p.Type {
		case "table":
			for _, o := range p.look.overrides {
				for _, property := range o.Properties {
					if (property.Id == "decimals" || property.Id == "thresholds") && !slices.ContainsFunc(o.Properties, func(v sdk.DynamicConfigValue) bool { return v.Id == "unit" }) {
						t.Errorf("column %v has no unit", o.Matcher.Options)
					}
				}
			}
		case "state-timeline":
			if len(p.look.mappings) == 0 {
				t.Error("states have no words")
			}
		default:
			if p.Unit == "" {
				t.Error("no unit")
			}
		}
	})
}

func TestAnEmptyPanelSaysWhy(t *testing.T) {
	eachPanel(t, func(t *testing.T, _ Dashboard, p Panel) {
		always := slices.ContainsFunc(p.Targets, func(target Target) bool { return target.MayBeEmpty == "" })
		if !always && p.look.noValue == "" && !strings.Contains(p.Description, emptyMeans) {
			t.Error("all of its queries may be empty, and nothing says why")
		}
	})
}

func TestPanelsFillTheirLinesAndDoNotOverlap(t *testing.T) {
	for _, d := range All() {
		taken, ids := map[[2]int]string{}, map[int]bool{}
		area, bottom := 0, 0
		for _, p := range d.Panels {
			if ids[p.ID] || p.ID == 0 {
				t.Errorf("%s: %s has the number %d", d.Name, p.Title, p.ID)
			}
			ids[p.ID] = true
			if p.X+p.Width > 24 {
				t.Errorf("%s: %s goes beyond the page", d.Name, p.Title)
			}
			area, bottom = area+p.Width*p.Height, max(bottom, p.Y+p.Height)
			for x := p.X; x < p.X+p.Width; x++ {
				for y := p.Y; y < p.Y+p.Height; y++ {
					if other := taken[[2]int{x, y}]; other != "" {
						t.Fatalf("%s: %s lies on %s", d.Name, p.Title, other)
					}
					taken[[2]int{x, y}] = p.Title
				}
			}
		}
		if area != 24*bottom {
			t.Errorf("%s: there are holes: %d of %d places are filled", d.Name, area, 24*bottom)
		}
	}
}

func TestOnlyPanelsOfGrafanasCore(t *testing.T) {
	core := []string{"stat", "gauge", "bargauge", "table", "timeseries", "state-timeline", "status-history", "heatmap", "barchart", "piechart", "text", "row"}
	eachPanel(t, func(t *testing.T, _ Dashboard, p Panel) {
		if !slices.Contains(core, p.Type) {
			t.Errorf("type %s", p.Type)
		}
	})
}

var (
	family   = regexp.MustCompile(`\b(?:gpumeter[_:][a-z0-9_:]*[a-z0-9]|DCGM_[A-Z0-9_]+)\b`)
	variable = regexp.MustCompile(`\$\{?([a-z_]+)`)
)

func metricsIn(text string) []string {
	all := family.FindAllString(text, -1)
	slices.Sort(all)
	return slices.Compact(all)
}

func exprs(p Panel) string {
	var all strings.Builder
	for _, t := range p.Targets {
		all.WriteString(t.Expr + "\n")
	}
	return all.String()
}

// known are the names of what is exported, by whom it may be: the reference, the counter files, the rules, the device plugin's page.
func known(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, file := range []string{
		"docs/metrics.md", "docs/device-plugin.md", "docs/prometheus-rules.md", "etc/default-counters.csv", "etc/dcp-metrics-included.csv", "etc/prometheus/rules.yaml",
	} {
		raw, err := os.ReadFile("../../" + file)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(raw)
	}
	return all.String()
}

func TestEveryMetricIsExported(t *testing.T) {
	names := metricsIn(known(t))
	documented := known(t)
	eachPanel(t, func(t *testing.T, _ Dashboard, p Panel) {
		for _, m := range metricsIn(exprs(p)) {
			short, isPlugin := strings.CutPrefix(m, "gpumeter_device_plugin")
			if !slices.Contains(names, m) && (!isPlugin || !strings.Contains(documented, "`"+short)) {
				t.Errorf("%s is not documented", m)
			}
		}
	})
}

func TestEveryVariableIsThere(t *testing.T) {
	builtIn := []string{"__range", "__range_s", "__interval", "__interval_ms", "__rate_interval", "__url_time_range", "__data", "__all"}
	for _, d := range All() {
		for _, want := range []string{"datasource", "cluster", "node", "namespace", "pod", "model"} {
			if !slices.Contains(d.Variables, want) {
				t.Errorf("%s has no variable %s", d.Name, want)
			}
		}
		raw, err := d.JSON()
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range variable.FindAllStringSubmatch(string(raw), -1) {
			if !slices.Contains(d.Variables, found[1]) && !slices.Contains(builtIn, found[1]) {
				t.Errorf("%s uses $%s, which it has not", d.Name, found[1])
			}
		}
		for _, want := range d.Variables {
			if !strings.Contains(string(raw), "$"+want) && !strings.Contains(string(raw), "${"+want) {
				t.Errorf("%s has the variable %s for nothing", d.Name, want)
			}
		}
	}
}

// TestEveryChoiceNarrowsEveryPageDown holds each page to the six variables: each stands in a query of the page.
func TestEveryChoiceNarrowsEveryPageDown(t *testing.T) {
	for _, d := range All() {
		var all strings.Builder
		for _, p := range d.Panels {
			all.WriteString(exprs(p))
		}
		for _, v := range []string{"$cluster", "$node", "$namespace", "$pod", "$model"} {
			if !strings.Contains(all.String(), v) {
				t.Errorf("%s has no query with %s", d.Name, v)
			}
		}
	}
}

func TestLinksLeadToWhatIsThere(t *testing.T) {
	uids := map[string]Dashboard{}
	for _, d := range All() {
		uids[d.UID()] = d
	}
	link := regexp.MustCompile(`"/d/([a-z-]+)\??([^"]*)"`)
	document := regexp.MustCompile(`"` + docs + `([^"#]+)`)
	for _, d := range All() {
		raw, err := d.JSON()
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range link.FindAllStringSubmatch(string(raw), -1) {
			to, ok := uids[found[1]]
			if !ok {
				t.Errorf("%s links to %s, which is not there", d.Name, found[1])
			}
			for _, v := range regexp.MustCompile(`var-([a-z]+)=`).FindAllStringSubmatch(found[2], -1) {
				if !slices.Contains(to.Variables, v[1]) {
					t.Errorf("%s gives %s the variable %s, which it has not", d.Name, found[1], v[1])
				}
			}
		}
		for _, found := range document.FindAllStringSubmatch(string(raw), -1) {
			if _, err := os.Stat("../../docs/" + found[1]); err != nil {
				t.Errorf("%s links to docs/%s: %v", d.Name, found[1], err)
			}
		}
	}
}

// TestTheSameThingHasTheSameColourEverywhere looks at the fixed colours by name.
func TestTheSameThingHasTheSameColourEverywhere(t *testing.T) {
	colours := map[string]any{}
	eachPanel(t, func(t *testing.T, _ Dashboard, p Panel) {
		for _, o := range p.look.overrides {
			for _, property := range o.Properties {
				set, ok := property.Value.(map[string]any)
				if property.Id != "color" || !ok || set["fixedColor"] == nil {
					continue
				}
				name := fmt.Sprint(o.Matcher.Options)
				if before, ok := colours[name]; ok && before != set["fixedColor"] {
					t.Errorf("%s is %v here and %v elsewhere", name, set["fixedColor"], before)
				}
				colours[name] = set["fixedColor"]
			}
		}
	})
}

// TestNothingIsZeroForWantOfData forbids the zero that hides what is absent.
func TestNothingIsZeroForWantOfData(t *testing.T) {
	eachPanel(t, func(t *testing.T, _ Dashboard, p Panel) {
		if strings.Contains(exprs(p), "or vector(") {
			t.Error("a zero is made up")
		}
	})
}

// TestTheNodePageReadsNoOtherNode holds each selector of readings to the address of the node.
func TestTheNodePageReadsNoOtherNode(t *testing.T) {
	selector := regexp.MustCompile(`\b(?:gpumeter_device|gpumeter_allocation|gpumeter_capacity|gpumeter_unallocated|gpumeter_xid|DCGM)[A-Za-z0-9_]*(\{[^}]*\})?`)
	for _, p := range node().Panels {
		for _, found := range selector.FindAllString(exprs(p), -1) {
			if !strings.Contains(found, `instance=~"$instance"`) {
				t.Errorf("%s reads all nodes: %s", p.Title, found)
			}
		}
	}
}

// TestFleetsAreNotDrawnGPUByGPU keeps pages of whole fleets from asking for a line of each GPU.
func TestFleetsAreNotDrawnGPUByGPU(t *testing.T) {
	eachPanel(t, func(t *testing.T, d Dashboard, p Panel) {
		if d.Name == "node" || p.Type != "timeseries" {
			return
		}
		for _, target := range p.Targets {
			if strings.Contains(target.Legend, "{{gpu}}") || strings.Contains(target.Legend, "{{node}}") && !strings.Contains(target.Expr, "topk(") {
				t.Errorf("a line of each: %s", target.Legend)
			}
		}
	})
}

func TestTheJSONIsOfTheClassicSchema(t *testing.T) {
	for _, d := range All() {
		raw, err := d.JSON()
		if err != nil {
			t.Fatal(err)
		}
		var board struct {
			UID           string `json:"uid"`
			Title         string `json:"title"`
			SchemaVersion int    `json:"schemaVersion"`
			Panels        []struct {
				Type       string            `json:"type"`
				Datasource map[string]string `json:"datasource"`
				Targets    []struct {
					RefID      string            `json:"refId"`
					Datasource map[string]string `json:"datasource"`
				} `json:"targets"`
			} `json:"panels"`
		}
		if err := json.Unmarshal(raw, &board); err != nil {
			t.Fatal(err)
		}
		if board.UID != "gpumeter-"+d.Name || board.SchemaVersion != schema || len(board.Panels) != len(d.Panels) || !strings.HasPrefix(board.Title, "gpumeter / ") {
			t.Errorf("%s: uid %s, schema %d, %d panels", d.Name, board.UID, board.SchemaVersion, len(board.Panels))
		}
		for i, p := range board.Panels {
			refs := map[string]bool{}
			for _, target := range p.Targets {
				if target.Datasource["uid"] != "${datasource}" || refs[target.RefID] {
					t.Errorf("%s, panel %d: query %q of %v", d.Name, i, target.RefID, target.Datasource)
				}
				refs[target.RefID] = true
			}
			if p.Type != "row" && p.Datasource["uid"] != "${datasource}" {
				t.Errorf("%s, panel %d asks %v", d.Name, i, p.Datasource)
			}
		}
	}
}

// TestTheDashboardsFitIntoOneConfigMap leaves an eighth of the MiB that a ConfigMap can have for names and labels.
func TestTheDashboardsFitIntoOneConfigMap(t *testing.T) {
	size := 0
	for _, d := range All() {
		raw, err := d.JSON()
		if err != nil {
			t.Fatal(err)
		}
		size += len(raw)
	}
	if size > 7<<17 {
		t.Errorf("they have %d bytes", size)
	}
}
