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
