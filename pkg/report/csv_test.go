// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"encoding/csv"
	"io"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/shopspring/decimal"

	"github.com/gpumeter/gpumeter/pkg/bill"
)

// sheetOfCSV is a CSV as a program reads it: rows by name of column.
func sheetOfCSV(t *testing.T, text string) (header []string, rows []map[string]string) {
	t.Helper()
	records, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	for _, record := range records[1:] {
		row := make(map[string]string)
		for i, name := range records[0] {
			row[name] = record[i]
		}
		rows = append(rows, row)
	}
	return records[0], rows
}

func TestRowsOfACSVAddUpToItsTotal(t *testing.T) {
	b := march(t)
	_, rows := sheetOfCSV(t, written(t, func(w io.Writer) error { return CSV(w, b, Options{Totals: true}) }))
	if len(rows) != len(b.Rows)+1 {
		t.Fatalf("%d rows, want those of the bill and a total", len(rows))
	}
	for _, name := range []string{"billed_gpu_hours", "list_cost", "discount_cost", "net_cost", "adjustment_cost", "total_cost", "memory_gib_hours"} {
		sum := decimal.Zero
		for _, row := range rows[:len(rows)-1] {
			sum = sum.Add(decimal.RequireFromString(row[name]))
		}
		if total := decimal.RequireFromString(rows[len(rows)-1][name]); !total.Equal(sum) {
			t.Errorf("%s: rows add up to %s, the total says %s", name, sum, total)
		}
	}
	if without := written(t, func(w io.Writer) error { return CSV(w, b, Options{}) }); strings.Contains(without, ",total,") {
		t.Error("there is a totals row that nobody asked for")
	}
}

func TestACSVHasNothingWhereNothingIsKnown(t *testing.T) {
	b := march(t)
	b.Currency = ""
	_, rows := sheetOfCSV(t, written(t, func(w io.Writer) error { return CSV(w, b, Options{}) }))
	for i, row := range rows {
		if row["total_cost"] != "" || row["currency"] != "" {
			t.Fatalf("row %d has a cost without prices: %v", i, row)
		}
		if used := row["used_gpu_hours"]; (used == "") != (len(b.Rows[i].Bases) == 0) {
			t.Errorf("row %d, measured by %v, has used %q", i, b.Rows[i].Bases, used)
		}
	}
}

func TestNoForeignTextIsAFormula(t *testing.T) {
	for _, text := range []string{
		"=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", " =1", "\u00a0=1", "＝1", "＋1", "|calc", "%0", "\ufeff=1",
	} {
		if got := inert(text); got != "'"+text {
			t.Errorf("%q is written as %q, want an apostrophe before it", text, got)
		}
	}
	for _, text := range []string{"", "llm-training", "a=b", "1e5", "日本", "'quoted", "  spaced"} {
		if got := inert(text); got != text {
			t.Errorf("%q is written as %q, want it as it is", text, got)
		}
	}
}

func TestNegativeAmountsStayNumbers(t *testing.T) {
	_, rows := sheetOfCSV(t, written(t, func(w io.Writer) error { return CSV(w, march(t), Options{}) }))
	if got := rows[len(rows)-1]["adjustment_cost"]; got != "-3.76" {
		t.Errorf("what is given back is %q, want -3.76", got)
	}
}

func TestColumnsOfLikeLabelsHaveDifferentNames(t *testing.T) {
	b := &bill.Bill{GroupBy: []bill.Dimension{"label:a.b", "label:a/b", "label:a_b"}, Zone: march(t).Zone}
	header, _ := sheetOfCSV(t, written(t, func(w io.Writer) error { return CSV(w, b, Options{}) }))
	if got := strings.Join(header[4:7], " "); got != "label_a_b label_a_b_2 label_a_b_3" {
		t.Errorf("columns are %s", got)
	}
}

func TestAHostileBillIsTextInACSV(t *testing.T) {
	b := hostile(t)
	_, rows := sheetOfCSV(t, written(t, func(w io.Writer) error { return CSV(w, b, Options{Totals: true}) }))
	if len(rows) != len(b.Rows)+1 {
		t.Fatalf("%d rows, want %d: a name broke the rows", len(rows), len(b.Rows)+1)
	}
	for _, row := range rows {
		for name, text := range row {
			if strings.HasPrefix(text, "=") {
				t.Errorf("%s is a formula: %q", name, text)
			}
		}
	}
}

func FuzzCSVCell(f *testing.F) {
	for _, seed := range []string{"", "=1", `a"b`, "a,b", "x\ny", "\xff", "'=", "\t", "\ufeff=1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		cell := field(foreign(text))
		if !utf8.ValidString(cell) {
			t.Fatalf("%q is no UTF-8", cell)
		}
		if bare := strings.TrimLeft(cell, " "); bare != "" && strings.ContainsAny(bare[:1], "=+-@\t\r\n") {
			t.Fatalf("%q begins like a formula", cell)
		}
		if valid := strings.ToValidUTF8(text, "\ufffd"); cell != valid && cell != "'"+valid {
			t.Fatalf("%q became %q", text, cell)
		}
		var out bytes.Buffer
		w := csv.NewWriter(&out)
		w.UseCRLF = true
		if err := w.Write([]string{cell, "next"}); err != nil {
			t.Fatal(err)
		}
		w.Flush()
		records, err := csv.NewReader(&out).ReadAll()
		if err != nil || len(records) != 1 || len(records[0]) != 2 {
			t.Fatalf("%q does not come back: %v, %v", cell, records, err)
		}
		newlines := strings.NewReplacer("\r\n", "\n", "\r", "")
		if newlines.Replace(records[0][0]) != newlines.Replace(cell) {
			t.Fatalf("%q came back as %q", cell, records[0][0])
		}
	})
}
