// SPDX-License-Identifier: Apache-2.0

package promql

import (
	"regexp"
	"strings"
	"testing"
)

// selectors are those of an expression, each with what stands behind it.
func selectors(expr string) []string {
	return regexp.MustCompile(`\b(?:gpumeter|DCGM)[A-Za-z0-9_:]+(?:\{[^}]*\})?(?: offset [$]__range)?`).FindAllString(expr, -1)
}

func TestWhatWasBeforeIsAllReadThen(t *testing.T) {
	s := Scope{Matchers: []string{`instance=~"$instance"`}}.Before(Range())
	for _, expr := range []string{s.Indexed(s.Series("gpumeter_xid_errors_total")), s.Share("mode"), s.Busy(), s.MIGDevices(), s.Nodes()} {
		for _, found := range selectors(expr) {
			if !strings.HasSuffix(found, " offset $__range") {
				t.Errorf("%s is read now", found)
			}
		}
	}
}

func TestAScopeIsInEverySelector(t *testing.T) {
	s := Scope{Matchers: []string{`instance=~"$instance"`}}
	for _, expr := range []string{s.GPUs("model"), s.Share(), s.IndexedShare("pod"), s.Rest(), s.Busy(), s.MIGDevices(), s.Nodes()} {
		for _, found := range selectors(expr) {
			if !strings.Contains(found, `instance=~"$instance"`) {
				t.Errorf("%s is not narrowed down", found)
			}
		}
	}
}

func TestHoldersAreFoundWhateverTheScrapeCalledThem(t *testing.T) {
	held := Scope{}.Held("gpumeter_allocation_share")
	for _, want := range []string{
		`exported_namespace="",namespace=~"$namespace",pod=~"$pod"`, `exported_namespace!="",exported_namespace=~"$namespace",exported_pod=~"$pod"`,
		`"container", "$1", "exported_container", "(.+)"`,
	} {
		if !strings.Contains(held, want) {
			t.Errorf("%s has no %s", held, want)
		}
	}
}

func TestALabelIsNotTakenTwice(t *testing.T) {
	first := with([]string{"a"}, "b")
	second := with(first, "c")
	third := with(first, "d")
	if got := strings.Join(append(second, third...), " "); got != "a b c a b d" {
		t.Errorf("labels %s", got)
	}
}
