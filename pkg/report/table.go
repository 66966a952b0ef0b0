// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"github.com/gpumeter/gpumeter/pkg/bill"
)

// narrowest is the fewest cells that a column of names is folded to.
const narrowest = 12

// Table writes b for people at a terminal: what the bill is of, its rows with their total, whether it adds up, and
// all that is missing. Names that are too long for o.Width are folded, never cut; columns that are empty or
// zero throughout are left out.
func Table(w io.Writer, b *bill.Bill, o Options) error {
	out := bufio.NewWriter(w)
	fmt.Fprintf(out, "GPU bill for %s\n", periodName(b.From, b.To, b.Zone))
	fmt.Fprintf(out, "%s – %s %s%s\n\n", b.From.In(b.Zone).Format(minute), b.To.In(b.Zone).Format(minute), b.Zone, inCurrency(b))
	writeRows(out, b, o)
	writeFoot(out, b)
	if o.Generator != "" {
		fmt.Fprintf(out, "Made by     %s\n", visible(o.Generator))
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write the report as a table: %w", err)
	}
	return nil
}

func inCurrency(b *bill.Bill) string {
	if !priced(b) {
		return ", without prices"
	}
	return ", costs in " + b.Currency
}

// line is one row of the table before it is laid out.
type line struct {
	kind  bill.RowKind
	texts []string
}

func writeRows(out *bufio.Writer, b *bill.Bill, o Options) {
	columns, lines := tableLines(b, o)
	widths := make([]int, len(columns))
	for i, c := range columns {
		widths[i] = cells(c.title)
		for _, l := range lines {
			widths[i] = max(widths[i], cells(l.texts[i]))
		}
	}
	squeeze(columns, widths, o.Width)
	titles := make([]string, len(columns))
	for i, c := range columns {
		titles[i] = visible(c.title)
	}
	rule := strings.Repeat("─", sum(widths)+2*(len(widths)-1)) + "\n"
	writeLine(out, columns, widths, titles)
	before := bill.RowKind("")
	for _, l := range lines {
		if l.kind != before {
			fmt.Fprint(out, rule)
		}
		writeLine(out, columns, widths, l.texts)
		before = l.kind
	}
	fmt.Fprintln(out)
}

// tableLines are the columns worth showing, and the rows with their total.
func tableLines(b *bill.Bill, o Options) ([]column, []line) {
	all := append([]column{{title: "", of: what}}, namedColumns(b)...)
	keys := len(all)
	if o.View == Platform {
		all = append(all, platformColumns()...)
	} else {
		all = append(all, financeColumns(b)...)
	}
	rows := make([]*bill.Row, 0, len(b.Rows)+1)
	for i := range b.Rows {
		rows = append(rows, &b.Rows[i])
	}
	rows = append(rows, totalRow(b))
	lines := make([]line, len(rows))
	for i, r := range rows {
		lines[i].kind = r.Kind
	}
	var columns []column
	for i, c := range all {
		texts, something := make([]string, len(rows)), i < keys
		for j, r := range rows {
			v := c.of(b, r)
			something = something || strings.Trim(v.text, "-0.") != ""
			texts[j] = shown(c, v)
		}
		if !something {
			continue
		}
		columns = append(columns, c)
		for j := range lines {
			lines[j].texts = append(lines[j].texts, texts[j])
		}
	}
	return columns, lines
}

// what says of which kind a row is.
func what(_ *bill.Bill, r *bill.Row) value {
	switch r.Kind {
	case bill.KindUnallocated:
		return ours(causeName(r.Cause))
	case bill.KindAdjustment:
		return ours("adjustment")
	case kindTotal:
		return ours("TOTAL")
	case bill.KindHeld:
	}
	return ours("held")
}

func shown(c column, v value) string {
	switch {
	case v.text == "" && c.number:
		return none
	case c.number:
		return thousands(v.text)
	}
	return visible(v.text)
}

func financeColumns(b *bill.Bill) []column {
	columns := append([]column{hoursColumn(), alignedPriceColumn(b)}, costColumns()...)
	return append(columns, completeColumn())
}

func platformColumns() []column {
	hours := hoursColumn()
	hours.of = quantity("", "", 2, always, hoursOf).of
	return []column{hours, usedColumn(2), usedPercentColumn(), wastedColumn(2), wasteCostColumn(), memoryColumn(1), energyColumn(1), basisColumn()}
}

// squeeze narrows the columns of names, the widest first, until all fits.
func squeeze(columns []column, widths []int, width int) {
	for width > 0 && sum(widths)+2*(len(widths)-1) > width {
		widest := -1
		for i, c := range columns {
			if !c.number && widths[i] > narrowest && (widest < 0 || widths[i] > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			return
		}
		widths[widest]--
	}
}

func sum(widths []int) int {
	total := 0
	for _, w := range widths {
		total += w
	}
	return total
}

// writeLine writes one row, which takes several lines where a name is folded.
func writeLine(out *bufio.Writer, columns []column, widths []int, texts []string) {
	folded, height := make([][]string, len(texts)), 1
	for i, text := range texts {
		folded[i] = fold(text, widths[i])
		height = max(height, len(folded[i]))
	}
	for n := range height {
		var row strings.Builder
		for i := range texts {
			text := ""
			if n < len(folded[i]) {
				text = folded[i][n]
			}
			pad := strings.Repeat(" ", max(0, widths[i]-cells(text)))
			if columns[i].number {
				text = pad + text
			} else {
				text += pad
			}
			if i > 0 {
				row.WriteString("  ")
			}
			row.WriteString(text)
		}
		fmt.Fprintln(out, strings.TrimRight(row.String(), " "))
	}
}

func writeFoot(out *bufio.Writer, b *bill.Bill) {
	adds, ok := balance(b)
	if !ok {
		adds = "WRONG: " + adds
	}
	fmt.Fprintf(out, "Adds up     %s\n", adds)
	for _, where := range b.Unbalanced {
		fmt.Fprintf(out, "            %s\n", visible(where))
	}
	gpus := 0
	for i := range b.Nodes {
		gpus += b.Nodes[i].GPUs
	}
	fmt.Fprintf(out, "Source      %s: %s, %s\n", visible(b.Source), counted(len(b.Nodes), "node"), counted(gpus, "GPU"))
	if priced(b) {
		fmt.Fprintf(out, "Prices      %s; %s\n", visible(b.PriceVersion), idleMeaning(b.Idle))
	}
	if b.PolicyVersion != "" {
		fmt.Fprintf(out, "Policy      %s\n", visible(b.PolicyVersion))
	}
	fmt.Fprintf(out, "Bill        %s\n", visible(b.ID))
	writeAbsences(out, b)
	for _, note := range b.Notes {
		fmt.Fprintf(out, "Note        %s\n", visible(note))
	}
}

func writeAbsences(out *bufio.Writer, b *bill.Bill) {
	lacks := missing(b)
	if b.Complete && len(lacks) == 0 {
		fmt.Fprintln(out, "Complete    yes: nothing is missing of any node")
	} else {
		fmt.Fprintf(out, "INCOMPLETE  %s %% at the lowest; what was held in these times is not, or not surely, all in the numbers above:\n", completeness(b))
		for _, a := range lacks {
			fmt.Fprintf(out, "            %s  %s – %s (%s)  %s: %s\n", visible(a.node), a.from.Format(second), a.to.Format(second), a.lasted(), visible(a.reason), visible(a.text))
		}
	}
	unseen, more := someGaps(b)
	for _, a := range unseen {
		fmt.Fprintf(out, "Not seen    %s  %s – %s (%s)  %s: %s\n", visible(a.node), a.from.Format(second), a.to.Format(second), a.lasted(), visible(a.reason), visible(a.text))
	}
	if more != "" {
		fmt.Fprintf(out, "Not seen    %s\n", more)
	}
}
