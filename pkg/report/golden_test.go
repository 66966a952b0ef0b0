// SPDX-License-Identifier: Apache-2.0

package report

import (
	"io"
	"testing"
)

func TestGoldenOutputs(t *testing.T) {
	b := march(t)
	short := *b
	brief(&short)
	o := Options{Generator: "gpumeter test"}
	for name, write := range map[string]func(io.Writer) error{
		"finance.txt":   func(w io.Writer) error { return Table(w, b, o) },
		"platform.txt":  func(w io.Writer) error { return Table(w, b, Options{View: Platform, Width: 100}) },
		"report.csv":    func(w io.Writer) error { return CSV(w, b, Options{Totals: true}) },
		"report.json":   func(w io.Writer) error { return JSON(w, &short, Options{Items: true}) },
		"report.html":   func(w io.Writer) error { return HTML(w, &short, o) },
		"focus-1.2.csv": func(w io.Writer) error { return FOCUS(w, b, "1.2", FOCUSOptions{}) },
		"focus-1.3.csv": func(w io.Writer) error {
			return FOCUS(w, b, "1.3", FOCUSOptions{BillingAccountID: "cc-4711", BillingAccountName: "Platform", Issuer: "Example AG"})
		},
	} {
		t.Run(name, func(t *testing.T) { golden(t, name, []byte(written(t, write))) })
	}
}
