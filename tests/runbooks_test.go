// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const (
	prometheusDir = "../etc/prometheus"
	runbookDir    = "../docs/runbooks"
	runbookURL    = "https://github.com/gpumeter/gpumeter/blob/main/docs/runbooks/"
)

// rule is an alert or a recording rule, as Prometheus reads it.
type rule struct {
	Alert       string            `yaml:"alert"`
	Record      string            `yaml:"record"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
	// group is the name of the group that it is in.
	group string
}

// rulesOf are the rules of a shipped file.
func rulesOf(t *testing.T, name string) []rule {
	t.Helper()
	var file struct {
		Groups []struct {
			Name  string `yaml:"name"`
			Rules []rule `yaml:"rules"`
		} `yaml:"groups"`
	}
	if err := yaml.Unmarshal([]byte(textOf(t, prometheusDir, name)), &file); err != nil {
		t.Fatal(err)
	}
	var rules []rule
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			r.group = g.Name
			rules = append(rules, r)
		}
	}
	return rules
}

// alerts are the shipped alerts.
func alerts(t *testing.T) []rule {
	t.Helper()
	found := slices.DeleteFunc(rulesOf(t, "alerts.yaml"), func(r rule) bool { return r.Alert == "" })
	if len(found) < 30 {
		t.Fatalf("%d alerts were found", len(found))
	}
	return found
}

func textOf(t *testing.T, path ...string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestEachAlertSaysWhatWhereAndWhatToDo(t *testing.T) {
	severities := []string{"critical", "warning", "info"}
	for _, a := range alerts(t) {
		summary, description := a.Annotations["summary"], a.Annotations["description"]
		if !slices.Contains(severities, a.Labels["severity"]) {
			t.Errorf("%s: severity %q is none of %v", a.Alert, a.Labels["severity"], severities)
		}
		if want := runbookURL + a.Alert + ".md"; a.Annotations["runbook_url"] != want {
			t.Errorf("%s: its runbook is %q, want %q", a.Alert, a.Annotations["runbook_url"], want)
		}
		if description == "" {
			t.Errorf("%s has no description", a.Alert)
		}
		// Where no exporter is left there is no node to name.
		if a.Alert != "GpumeterExportersAbsent" && !strings.Contains(summary, "$labels.node") {
			t.Errorf("%s: the summary names no node: %s", a.Alert, summary)
		}
		if a.group != "gpumeter-gpus" {
			continue
		}
		for _, want := range []string{"$labels.gpu ", "$labels.UUID", "gpumeter_(allocation|uncharged)_share"} {
			if !strings.Contains(summary, want) {
				t.Errorf("%s: the summary names no GPU by index and UUID, or none of its holders: it lacks %q", a.Alert, want)
			}
		}
	}
}

func TestEachAlertHasARunbookAndEachRunbookAnAlert(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join(runbookDir, "Gpumeter*.md"))
	if err != nil {
		t.Fatal(err)
	}
	left := map[string]bool{}
	for _, page := range pages {
		left[strings.TrimSuffix(filepath.Base(page), ".md")] = true
	}
	index := textOf(t, runbookDir, "README.md")
	table := textOf(t, "../docs/prometheus-rules.md")
	for _, a := range alerts(t) {
		if !left[a.Alert] {
			t.Errorf("%s has no runbook, or is there twice", a.Alert)
			continue
		}
		delete(left, a.Alert)
		page := textOf(t, runbookDir, a.Alert+".md")
		for _, want := range []string{
			"# " + a.Alert + "\n", "Severity `" + a.Labels["severity"] + "`, " + waitWords(t, a.For) + ";",
			"**Who is hurt:**", "## First\n\n```sh\n", "## Mend\n", "## It ends\n", "## Not a fault\n", "alertname=" + a.Alert + " ",
		} {
			if !strings.Contains(page, want) {
				t.Errorf("%s: its runbook lacks %q", a.Alert, want)
			}
		}
		if !strings.Contains(sectionOf(index, a.Labels["severity"]), "("+a.Alert+".md)") {
			t.Errorf("%s is not among the %s ones of the runbooks' index", a.Alert, a.Labels["severity"])
		}
		if row := fmt.Sprintf("| [`%s`](runbooks/%s.md) | %s |", a.Alert, a.Alert, a.Labels["severity"]); !strings.Contains(table, row) {
			t.Errorf("docs/prometheus-rules.md lacks %q", row)
		}
	}
	for name := range left {
		t.Errorf("the runbook %s.md is of no alert", name)
	}
}

// waitWords is how a runbook says for how long what is wrong has been so.
func waitWords(t *testing.T, wait string) string {
	t.Helper()
	if wait == "" {
		return "at once"
	}
	unit := map[string]string{"m": "minute", "h": "hour"}[wait[len(wait)-1:]]
	if unit == "" {
		t.Fatalf("for: %s", wait)
	}
	if n := wait[:len(wait)-1]; n != "1" {
		return "after " + n + " " + unit + "s"
	}
	return "after 1 " + unit
}

// sectionOf is the section of the index for a severity.
func sectionOf(index, severity string) string {
	_, section, _ := strings.Cut(index, "## "+strings.ToUpper(severity[:1])+severity[1:]+"\n")
	section, _, _ = strings.Cut(section, "\n## ")
	return section
}

func TestRulesReadWhatIsServed(t *testing.T) {
	served := textOf(t, "../docs/metrics.md")
	plugin := textOf(t, "../docs/device-plugin.md")
	rules := append(rulesOf(t, "rules.yaml"), rulesOf(t, "alerts.yaml")...)
	recorded := map[string]bool{}
	for _, r := range rules {
		recorded[r.Record] = true
	}
	families := regexp.MustCompile(`\bgpumeter_[a-z0-9_]*[a-z0-9]`)
	records := regexp.MustCompile(`\bgpumeter:[a-z_:]+`)
	for _, r := range rules {
		name := r.Alert + r.Record
		text := r.Expr
		for _, key := range slices.Sorted(maps.Keys(r.Annotations)) {
			text += "\n" + r.Annotations[key]
		}
		for _, family := range families.FindAllString(text, -1) {
			rest, ofPlugin := strings.CutPrefix(family, "gpumeter_device_plugin_")
			known := strings.Contains(served, "| `"+family+"` |")
			if ofPlugin {
				known = strings.Contains(plugin, "`"+family) || strings.Contains(plugin, "`_"+rest)
			}
			if !known {
				t.Errorf("%s reads %s, which is not in docs/metrics.md or docs/device-plugin.md", name, family)
			}
		}
		for _, record := range records.FindAllString(text, -1) {
			if !recorded[record] {
				t.Errorf("%s reads %s, which no rule writes", name, record)
			}
		}
	}
}

// TestAlertsKnowTheConditionsByName: one whose kind is renamed would be silent for ever.
func TestAlertsKnowTheConditionsByName(t *testing.T) {
	evidence := textOf(t, "../docs/health.md")
	xids := textOf(t, "../etc/xid.yaml")
	matchers := regexp.MustCompile(`\bkind(?:=|!=|=~|!~)"([^"]+)"`)
	codes := regexp.MustCompile(`xid_\(([^)]*)\)`)
	for _, a := range alerts(t) {
		for _, m := range matchers.FindAllStringSubmatch(a.Expr, -1) {
			// xid_(48|94) is xid_48|xid_94.
			words := codes.ReplaceAllStringFunc(m[1], func(group string) string {
				return "xid_" + strings.ReplaceAll(codes.FindStringSubmatch(group)[1], "|", "|xid_")
			})
			for kind := range strings.SplitSeq(words, "|") {
				code, isXID := strings.CutPrefix(kind, "xid_")
				known := isXID && strings.Contains(xids, fmt.Sprintf("{code: %3s, ", code)) || strings.Contains(evidence, "`"+kind+"`")
				if !known {
					t.Errorf("%s goes by the condition %s, which is neither in docs/health.md nor in etc/xid.yaml", a.Alert, kind)
				}
			}
		}
	}
}

// TestEachAlertFiresInOneTestAndIsSilentInAnother holds promtool's tests against the alerts.
func TestEachAlertFiresInOneTestAndIsSilentInAnother(t *testing.T) {
	fires, silent := map[string]bool{}, map[string]bool{}
	files, err := filepath.Glob(filepath.Join(prometheusDir, "alerts_*_test.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		var tests struct {
			Tests []struct {
				Name   string `yaml:"name"`
				Alerts []struct {
					Alert    string `yaml:"alertname"`
					Expected []struct {
						Annotations map[string]string `yaml:"exp_annotations"`
					} `yaml:"exp_alerts"`
				} `yaml:"alert_rule_test"`
			} `yaml:"tests"`
		}
		if err := yaml.Unmarshal([]byte(textOf(t, file)), &tests); err != nil {
			t.Fatal(err)
		}
		for _, story := range tests.Tests {
			for _, a := range story.Alerts {
				if len(a.Expected) == 0 {
					silent[a.Alert] = true
				}
				for _, e := range a.Expected {
					fires[a.Alert] = fires[a.Alert] || e.Annotations["summary"] != "" && e.Annotations["description"] != ""
				}
			}
		}
	}
	for _, a := range alerts(t) {
		if !fires[a.Alert] {
			t.Errorf("%s fires in no test with its texts", a.Alert)
		}
		if !silent[a.Alert] {
			t.Errorf("%s is silent in no test", a.Alert)
		}
	}
}
