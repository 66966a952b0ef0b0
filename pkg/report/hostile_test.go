// SPDX-License-Identifier: Apache-2.0

package report

import (
	"strings"
	"testing"

	"github.com/gpumeter/gpumeter/pkg/bill"
)

// hostile is march with names that mean harm.
func hostile(t testing.TB) *bill.Bill {
	b := march(t)
	names := []string{
		`<script>alert(1)</script>`, `=HYPERLINK("http://evil.example","x")`, strings.Repeat("very-long-name-", 30), "\u202eredrum\u2066",
		"🦄 עברית \u200fשלום", "a\x1b[31mred\x00\x07", `"><img src=x onerror=alert(1)>`, "line\r\nbreak\ttab", "</style><svg onload=alert(1)>", "\xff\xfe",
	}
	for i := range b.Rows {
		r := &b.Rows[i]
		if r.Keys[0] != "" {
			r.Keys[0] = names[i%len(names)]
			r.Keys[1] = names[(i+3)%len(names)]
			for j := range r.Items {
				r.Items[j].Namespace, r.Items[j].Pod, r.Items[j].Container = names[i%len(names)], names[j%len(names)], names[(j+1)%len(names)]
				r.Items[j].Labels = map[string]string{names[j%len(names)]: names[i%len(names)]}
			}
		}
	}
	for i := range b.Nodes {
		b.Nodes[i].Node, b.Nodes[i].Cluster = names[i], names[i+2]
		for j := range b.Nodes[i].Missing {
			b.Nodes[i].Missing[j].Text = names[0]
		}
	}
	for i := range b.Hours {
		b.Hours[i].Model = names[6]
	}
	b.Source, b.PriceVersion, b.PolicyVersion = names[0], names[1], names[6]
	b.Notes = names
	b.Unbalanced = names[:2]
	return b
}
