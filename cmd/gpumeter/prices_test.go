// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"maps"
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
	// What is not in the rules is told where it is noticed, and where it stays.
	told := map[string]int{}
	for line := range strings.Lines(left) {
		what, text, _ := strings.Cut(strings.TrimSpace(line), ": ")
		told[what]++
		if comment := "# " + strings.ToUpper(what[:1]) + what[1:] + ": " + text + ".\n"; !strings.Contains(out, comment) {
			t.Errorf("the rules do not say %q:\n%s", comment, out)
		}
	}
	if want := map[string]int{"not in the rules": 3, "left out": 1}; !maps.Equal(told, want) {
		t.Errorf("told were %v, want %v: slices of the H100, the spot A100 and the shared L4, and the Other:\n%s", told, want, left)
	}
}

func TestTheExamplePricesHaveARuleForEachModel(t *testing.T) {
	out, told, err := runPrices("rules", "--prices", filepath.Join("..", "..", "etc", "prices.example.yaml"), "--at", "2026-05-01")
	if err != nil || strings.Contains(out+told, "eft out:") {
		t.Fatalf("%v, and a model is left out:\n%s", err, told)
	}
	for _, want := range []string{"vector(3.6)", "vector(0.7)", "1.9 * group by (model)", "2.85 * group by (model)"} {
		if !strings.Contains(out, want) {
			t.Errorf("the rules lack %q:\n%s", want, out)
		}
	}
}

func TestAModelIsLeftOutOnlyWhereNoPriceHoldsWithoutConditions(t *testing.T) {
	for _, c := range []struct {
		name, general, special string
		left                   bool
	}{
		{"the same pattern", "L4*", "L4*", false},
		{"a name within a pattern", "L*", "L4", false},
		{"a pattern within a pattern", "L*", "L4?*", false},
		{"any", "*", "L4*", false},
		{"another model", "L40", "L4", true},
		{"a pattern of more models", "L4", "L4*", true},
		{"one character and any number of them", "L?", "L*", true},
		{"patterns that cross", "L*0", "L4*", true},
	} {
		book := priceFile(t, fmt.Sprintf("name: x\ncurrency: EUR\nprices:\n- {name: a, model: %q, price: 1}\n- {name: b, model: %q, mode: shared, price: 2}\n", c.general, c.special))
		out, told, err := runPrices("rules", "--prices", book)
		want := "not in the rules: 2 EUR by b (line 5), for model=" + c.special + ", mode=shared\n"
		if c.left {
			want = "left out: model " + c.special + ", as far as it has no price without conditions: 2 EUR by b (line 5), for model=" + c.special + ", mode=shared\n"
		}
		if err != nil || told != want || !strings.Contains(out, "# a, line 4\n") {
			t.Errorf("%s: %v, told is %q, want %q, and the rules are\n%s", c.name, err, told, want, out)
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
	modes := priceFile(t, "name: x\ncurrency: EUR\nprices: [{name: a, model: \"*\", mode: shared, price: 1}, {name: b, model: \"*\", profile: 1g.10gb, price: 2}]\n")
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
		{"no price without conditions", []string{"--prices", modes}, "no rule to write"},
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
