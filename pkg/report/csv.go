// SPDX-License-Identifier: Apache-2.0

package report

import (
	"encoding/csv"
	"fmt"
	"io"
	"strings"

	"github.com/gpumeter/gpumeter/pkg/bill"
)

// CSV writes the rows of b after RFC 4180, in UTF-8, below one row of headings: all columns of both views. Numbers
// have a point and no separators, moments are RFC 3339 in the bill's zone, and what is not known is empty. Text that
// a spreadsheet would take for a formula begins with an apostrophe.
func CSV(w io.Writer, b *bill.Bill, o Options) error {
	columns := csvColumns(b)
	out := csv.NewWriter(w)
	out.UseCRLF = true
	record := make([]string, len(columns))
	for i, c := range columns {
		record[i] = c.name
	}
	write := func(r *bill.Row) {
		for i, c := range columns {
			record[i] = field(c.of(b, r))
		}
		_ = out.Write(record) // Flush tells
	}
	_ = out.Write(record)
	for i := range b.Rows {
		write(&b.Rows[i])
	}
	if o.Totals {
		write(totalRow(b))
	}
	out.Flush()
	if err := out.Error(); err != nil {
		return fmt.Errorf("write the report as CSV: %w", err)
	}
	return nil
}

func csvColumns(b *bill.Bill) []column {
	fixed := func(name string, of func(*bill.Bill, *bill.Row) value) column { return column{name: name, of: of} }
	columns := []column{
		fixed("period_start", func(b *bill.Bill, _ *bill.Row) value { return stamp(b.From, b.Zone) }),
		fixed("period_end", func(b *bill.Bill, _ *bill.Row) value { return stamp(b.To, b.Zone) }),
		fixed("timezone", func(b *bill.Bill, _ *bill.Row) value { return ours(b.Zone.String()) }),
		fixed("kind", func(_ *bill.Bill, r *bill.Row) value { return ours(string(r.Kind)) }),
	}
	columns = append(columns, keyColumns(b)...)
	columns = append(columns,
		fixed("unallocated_reason", func(_ *bill.Bill, r *bill.Row) value { return ours(string(r.Cause)) }),
		hoursColumn(), priceColumn(),
		fixed("currency", func(b *bill.Bill, _ *bill.Row) value { return ours(b.Currency) }),
		discountColumn(),
		fixed("discount_source", func(_ *bill.Bill, r *bill.Row) value { return foreign(strings.Join(r.Discounts, "; ")) }))
	columns = append(columns, costColumns()...)
	return append(columns,
		usedColumn(6), wastedColumn(6), wasteCostColumn(), basisColumn(), memoryColumn(6), energyColumn(6),
		fixed("price_version", func(b *bill.Bill, _ *bill.Row) value { return foreign(b.PriceVersion) }),
		fixed("policy_version", func(b *bill.Bill, _ *bill.Row) value { return foreign(b.PolicyVersion) }),
		completeColumn(),
		fixed("row_id", func(_ *bill.Bill, r *bill.Row) value { return ours(r.ID) }),
		fixed("report_id", func(b *bill.Bill, _ *bill.Row) value { return ours(b.ID) }))
}

// field is a value as a CSV has it.
func field(v value) string {
	if v.foreign {
		return inert(v.text)
	}
	return v.text
}

// inert is foreign text that no spreadsheet computes. Spaces before a formula, and the full-width forms of its first
// character, count: there are programs that pass over the one and understand the other.
func inert(text string) string {
	text = strings.ToValidUTF8(text, "\ufffd")
	rest := strings.TrimLeft(text, " \u00a0\ufeff")
	if rest != "" && strings.ContainsRune("=+-@\t\r\n|%＝＋－＠", []rune(rest)[0]) {
		return "'" + text
	}
	return text
}
