// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"fmt"
	"strings"
	"testing"
)

// sound is a page that breaks no law.
func sound() string {
	var b strings.Builder
	for card := range cards {
		fmt.Fprintf(&b, "gpumeter_allocation_share{UUID=\"GPU-%d\",pod=\"a\"} 0.25\ngpumeter_unallocated_share{UUID=\"GPU-%d\",reason=\"free\"} 0.75\n", card, card)
	}
	b.WriteString(`gpumeter_capacity_gpu_seconds_total{UUID="GPU-0",ledger_id="l"} 100
gpumeter_allocated_gpu_seconds_total{UUID="GPU-0",ledger_id="l"} 60
gpumeter_unallocated_gpu_seconds_total{UUID="GPU-0",ledger_id="l",reason="free"} 40
gpumeter_conservation_error_gpu_seconds{UUID="GPU-0"} 0
gpumeter_ledger_degraded 0
gpumeter_ledger_restored{state="restored"} 1
gpumeter_ledger_info{ledger_id="l"} 1
gpumeter_ticks_total 7
`)
	return b.String()
}

func read(t *testing.T, text string) page {
	t.Helper()
	p, err := parse([]byte(text), "text/plain; version=0.0.4")
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestALawThatIsBrokenIsSeen(t *testing.T) {
	if err := read(t, sound()).laws(); err != nil {
		t.Fatalf("a sound page: %v", err)
	}
	for name, change := range map[string][2]string{
		"shares that are too much":    {`{UUID="GPU-3",reason="free"} 0.75`, `{UUID="GPU-3",reason="free"} 0.76`},
		"a card that is not there":    {"gpumeter_allocation_share{UUID=\"GPU-7\",pod=\"a\"} 0.25\ngpumeter_unallocated_share{UUID=\"GPU-7\",reason=\"free\"} 0.75\n", ""},
		"totals that lack something":  {`reason="free"} 40`, `reason="free"} 39.9`},
		"a conservation error":        {`gpumeter_conservation_error_gpu_seconds{UUID="GPU-0"} 0`, `gpumeter_conservation_error_gpu_seconds{UUID="GPU-0"} 1e-6`},
		"a degraded ledger":           {"gpumeter_ledger_degraded 0", "gpumeter_ledger_degraded 1"},
		"a ledger that was not found": {`state="restored"`, `state="corrupt"`},
	} {
		if broken := strings.Replace(sound(), change[0], change[1], 1); broken == sound() || read(t, broken).laws() == nil {
			t.Errorf("%s: not seen", name)
		}
	}
	if _, err := parse([]byte("a 1\na 2\n"), "text/plain; version=0.0.4"); err == nil {
		t.Error("a series that stands twice: not seen")
	}
}

func TestACounterThatFallsIsSeen(t *testing.T) {
	less := func(text, from, to string) string { return strings.Replace(text, from, to, 1) }
	for _, test := range []struct {
		name   string
		second string
		life   int
		wrong  bool
	}{
		{"the same page", sound(), 1, false},
		{"the ledger's falls", less(sound(), "} 60", "} 59"), 1, true},
		{"the ledger's falls in another life", less(sound(), "} 60", "} 59"), 2, true},
		{"the process' falls", less(sound(), "ticks_total 7", "ticks_total 6"), 1, true},
		{"the process' falls in another life", less(sound(), "ticks_total 7", "ticks_total 6"), 2, false},
		{"another ledger", strings.ReplaceAll(sound(), `ledger_id="l"`, `ledger_id="m"`), 1, true},
	} {
		var m memory
		if err := m.falls(read(t, sound()), 1); err != nil {
			t.Fatal(err)
		}
		if err := m.falls(read(t, test.second), test.life); (err != nil) != test.wrong {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}
