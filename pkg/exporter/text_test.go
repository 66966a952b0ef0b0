// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestNumbersReadBackAsThemselves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.Float64().Draw(t, "v")
		var got float64
		if _, err := fmt.Sscan(string(appendNumber(nil, decimal(0, v))), &got); err != nil || got != v {
			t.Fatalf("%g reads back as %g, %v", v, got, err)
		}
	})
	for v, want := range map[float64]string{
		0: "0", 1: "1", -0.5: "-0.5", 1741089599.75: "1741089599.75", 1e-6: "0.000001", 1e-7: "1e-07", 1e15: "1e+15", 123456789012345: "123456789012345",
	} {
		if got := string(appendNumber(nil, decimal(0, v))); got != want {
			t.Errorf("%g is %q, want %q", v, got, want)
		}
	}
}

func TestForeignTextIsCleaned(t *testing.T) {
	for in, want := range map[string]string{
		"plain": "plain", "ü": "ü", "\xff": "\uFFFD", "a\x00b": "a\uFFFDb", "\xe2\x82": "\uFFFD", "\x00\xff": "\uFFFD\uFFFD",
	} {
		if diff := cmp.Diff(want, clean(in)); diff != "" {
			t.Errorf("%q: %s", in, diff)
		}
	}
}
