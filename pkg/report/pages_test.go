// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpumeter/gpumeter/pkg/bill"
)

var pages = flag.String("pages", "", "a folder to write pages to, for a browser to open")

// TestPagesForABrowser writes what tests/browser opens.
func TestPagesForABrowser(t *testing.T) {
	if *pages == "" {
		t.Skip("no -pages; tests/browser gives it")
	}
	day := *march(t)
	day.To = day.From.AddDate(0, 0, 1)
	day.Hours = day.Hours[:24*8]
	whole := *march(t)
	whole.Complete, whole.Nodes[1].Missing, whole.GroupBy, whole.Currency = true, nil, whole.GroupBy[:1], ""
	for i := range whole.Rows {
		whole.Rows[i].Keys = whole.Rows[i].Keys[:1]
	}
	for name, b := range map[string]*bill.Bill{"march": march(t), "hostile": hostile(t), "day": &day, "plain": &whole} {
		var page bytes.Buffer
		if err := HTML(&page, b, Options{Generator: "gpumeter test"}); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(*pages, name+".html"), page.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
