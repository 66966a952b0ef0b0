// SPDX-License-Identifier: Apache-2.0

package app

import (
	"slices"
	"strings"
	"testing"
)

func TestPodLabelsAreThoseThatTheListAllows(t *testing.T) {
	keys := []string{"app", "app.kubernetes.io/name", "team", "pod-template-hash", "aaab"}
	for _, tt := range []struct {
		name, list string
		want       []string
	}{
		{"no list is no limit", "", keys},
		{"one", "^team$", []string{"team"}},
		{"several", "^app$, ^team$", []string{"app", "team"}},
		{"a comma of a repetition", "^a{3,4}b$,^team$", []string{"team", "aaab"}},
		{"a comma of a class", `^[a,t]pp$`, []string{"app"}},
		{"an escaped brace does not open", `^te\{?am$,^app$`, []string{"app", "team"}},
		{"a part of the key is enough", "kubernetes", []string{"app.kubernetes.io/name"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			allowed, err := Config{PodLabels: true, PodLabelAllowlist: tt.list}.podLabels()
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, k := range keys {
				if allowed(k) {
					got = append(got, k)
				}
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("%q allows %q, want %q", tt.list, got, tt.want)
			}
		})
	}
}

func TestABadAllowlistIsAnErrorAndNotNoLimit(t *testing.T) {
	c := Defaults()
	c.PodLabels, c.PodLabelAllowlist = true, "^app$,(team"
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "(team") {
		t.Errorf("the error is %v, and does not name the expression that is wrong", err)
	}
}

func TestPodLabelsAreLeftOutUnlessAskedFor(t *testing.T) {
	if allowed, err := (Config{PodLabelAllowlist: ".*"}).podLabels(); err != nil || allowed != nil {
		t.Errorf("an allow-list alone shows labels (error %v)", err)
	}
}
