// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// runPrices is gpumeter prices with arguments.
func runPrices(args ...string) (stdout, stderr string, err error) {
	var out, errs bytes.Buffer
	err = pricesCommand(&out, &errs, time.Now).Run(context.Background(), append([]string{"prices"}, args...))
	return out.String(), errs.String(), err
}

// priceFile is a file with a price book.
func priceFile(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "prices.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestTheExamplePricesAreGoodOnes(t *testing.T) {
	text, _, err := runPrices("example")
	if err != nil {
		t.Fatal(err)
	}
	name := priceFile(t, text)
	out, warned, err := runPrices("check", "--strict", "--at", "2026-05-01", name)
	if err != nil || warned != "" {
		t.Fatalf("%v, %q", err, warned)
	}
	for _, want := range []string{"example-2026@", "EUR/GPU-HOUR", "h100/1g.10gb", "2026-01-01", "free: 100 GPU-hours per month, each namespace"} {
		if !strings.Contains(out, want) {
			t.Errorf("the prices\n%s\nlack %q", out, want)
		}
	}
	if strings.Contains(out, "h100-2025") {
		t.Errorf("a price of the year before is shown:\n%s", out)
	}
	out, _, err = runPrices("check", "--at", "2026-05-01", "--model", "NVIDIA H100 80GB HBM3", "--namespace", "research-1", name)
	if want := "2.85 EUR per GPU-hour by h100 of example-2026@"; err != nil || !strings.HasPrefix(out, want) || !strings.Contains(out, "less 30 % by research, committed-use: 1.995 EUR") {
		t.Errorf("%v:\n%s\nwant %q", err, out, want)
	}
}

func TestPricesThatCannotBeUsedEndInAnError(t *testing.T) {
	wrong := priceFile(t, "name: x\ncurrency: EUR\nprices:\n- {name: a, model: \"*\", price: 1}\n- {name: b, model: \"*\", price: 2}\n- {name: c, price: 2}\n")
	useless := priceFile(t, "name: x\ncurrency: EUR\nprices: [{name: a, model: \"*\", price: 1, mode: shared, profile: 1g.10gb, valid_from: 2030-01-01}]\n")
	for _, c := range []struct {
		name string
		args []string
		want []string
	}{
		{"two problems", []string{"check", wrong}, []string{":5: a (line 4) and b (line 5)", ":6: c: model is missing"}},
		{"warnings, strictly", []string{"check", "--strict", useless}, []string{"--strict"}},
		{"no price", []string{"check", "--model", "L4", useless}, []string{"no price for it"}},
		{"no file", []string{"check"}, []string{"give one FILE"}},
		{"a file that is not there", []string{"check", wrong + "x"}, []string{"read the price book"}},
		{"a bad time", []string{"check", "--at", "tomorrow", useless}, []string{"--at \"tomorrow\""}},
	} {
		_, _, err := runPrices(c.args...)
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", c.name, err, want)
			}
		}
	}
	_, warned, err := runPrices("check", "--at", "2026-01-01", useless)
	if err != nil || strings.Count(warned, "warning: ") != 2 {
		t.Errorf("warnings are %q, %v", warned, err)
	}
}

func TestGoldenPriceRules(t *testing.T) {
	book := filepath.Join("testdata", "price-rules-book.yaml")
	out, left, err := runPrices("rules", "--prices", book, "--currency", "USD", "--at", "2026-05-01")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "price-rules.yaml", out)
	// What is left out is told where it is noticed, and where it stays.
	lines := strings.Split(strings.TrimSpace(left), "\n")
	if len(lines) != 3 {
		t.Errorf("%d things were left out, want the shared L4, the spot A100 and the L4 for them:\n%s", len(lines), left)
	}
	for _, line := range lines {
		if text, ok := strings.CutPrefix(line, "left out: "); !ok || !strings.Contains(out, "# Left out: "+text+".\n") {
			t.Errorf("the rules do not say %q:\n%s", line, out)
		}
	}
}

func TestRulesOfPricesEndWhereOtherPricesBegin(t *testing.T) {
	book := filepath.Join("testdata", "price-rules-book.yaml")
	for at, want := range map[string][]string{
		"2026-05-01": {"They hold until 2027-01-01T00:00:00Z", "and on () (vector(time()) < 1798761600)", "2.85 *"},
		"2027-05-01": {"2.5 *"},
	} {
		out, _, err := runPrices("rules", "--prices", book, "--at", at)
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range want {
			if !strings.Contains(out, w) {
				t.Errorf("the rules of %s lack %q:\n%s", at, w, out)
			}
		}
		if last := at == "2027-05-01"; last && (strings.Contains(out, "time()") || strings.Contains(out, "2.85")) {
			t.Errorf("the rules of %s end, or are of the year before:\n%s", at, out)
		}
	}
}

func TestPriceRulesThatCannotBeWrittenEndInAnError(t *testing.T) {
	book := filepath.Join("testdata", "price-rules-book.yaml")
	modes := priceFile(t, "name: x\ncurrency: EUR\nprices: [{name: a, model: \"*\", mode: shared, price: 1}, {name: b, model: \"*\", price: 2}]\n")
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"no file", nil, "give a price book"},
		{"a file that is not there", []string{"--prices", book + "x"}, "read the price book"},
		{"a bad book", []string{"--prices", priceFile(t, "name: x\n")}, "cannot be used"},
		{"another currency", []string{"--prices", book, "--currency", "EUR"}, "is in USD and not in EUR"},
		{"a bad time", []string{"--prices", book, "--at", "soon"}, "--at \"soon\""},
		{"nothing that is one number", []string{"--prices", modes}, "no rule to write"},
	} {
		out, _, err := runPrices(append([]string{"rules"}, c.args...)...)
		if err == nil || !strings.Contains(err.Error(), c.want) || out != "" {
			t.Errorf("%s: %v and %q, want %q and nothing", c.name, err, out, c.want)
		}
	}
}

func TestNamesInAPriceBookAddNoLinesToItsRules(t *testing.T) {
	book := priceFile(t, `{name: "x\u2028y", currency: EUR, prices: [
		{name: "a\ngroups: 1", model: "L4\u2028\"*", price: 1}, {name: "b\u2029evil: 1", model: "L40", mode: shared, price: 2}]}`)
	out, _, err := runPrices("rules", "--prices", book)
	if err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(out, "\u2028\u2029") || strings.Contains(out, "\ngroups: 1") || !strings.Contains(out, `model=~"L4\u2028\".*"`) {
		t.Errorf("a name broke out of its line:\n%s", out)
	}
}
