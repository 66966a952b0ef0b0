// SPDX-License-Identifier: Apache-2.0

package app

import (
	"strings"
	"testing"
)

func TestTheNearestNameIsTheOneThatWasMeant(t *testing.T) {
	names := []string{"migStrategy", "failOnInitError", "mpsRoot", "gdsEnabled"}
	for word, want := range map[string]string{
		"migStrategie": "migStrategy", "MIG_STRATEGY": "migStrategy", "mig-strategy": "migStrategy", "failOnInitErr": "failOnInitError",
		"gds": "", "mpsroots": "mpsRoot", "": "", "somethingElseAltogether": "", strings.Repeat("m", 1000): "",
	} {
		if got, ok := nearest(word, names); got != want || ok != (want != "") {
			t.Errorf("nearest to %q is %q, %v; want %q", word, got, ok, want)
		}
	}
}

func TestEditsAreCounted(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"a", "", 1}, {"", "ab", 2}, {"kitten", "sitting", 3}, {"flaw", "lawn", 2}, {"same", "same", 0}} {
		if got := edits(c.a, c.b); got != c.want {
			t.Errorf("edits(%q, %q) = %d, want %d", c.a, c.b, got, c.want)
		}
	}
}
