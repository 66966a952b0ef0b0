// SPDX-License-Identifier: Apache-2.0

package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"strings"

	"github.com/shopspring/decimal"

	"github.com/gpumeter/gpumeter/pkg/bill"
)

//go:embed page.html
var pageText string

//go:embed page.css
var pageStyle string

// HTML writes b as one page that needs nothing else: no script, no font, no picture from elsewhere, and a policy in
// its head that would forbid them. It shows well in a light and in a dark room and on paper.
func HTML(w io.Writer, b *bill.Bill, o Options) error {
	shape, err := template.New("page").Parse(pageText)
	if err != nil {
		return fmt.Errorf("read the page's template: %w", err)
	}
	if err := shape.Execute(w, newPage(b, o)); err != nil {
		return fmt.Errorf("write the report as HTML: %w", err)
	}
	return nil
}

// page is what page.html is filled with: text and numbers, nothing yet to be computed.
type page struct {
	// Style is page.css, which is ours.
	Style             template.CSS
	Title, Period     string
	Currency          string
	Zone, Scope       string
	Status            status
	Tiles             []tile
	Where             bar
	Legend            []segment
	Tenants           []bar
	TenantsBy, Others string
	Causes            []cause
	Heat              *heat
	Wasters           []waster
	WasteNote         string
	Table             sheet
	Missing, Gaps     []absenceText
	MoreGaps          string
	Notes, Unbalanced []string
	How               []fact
	Generator         string
}

// status is the banner.
type status struct{ Class, Title, Text string }

type tile struct{ Label, Value, Small, Note, Class string }

// bar is a stacked bar: its segments' widths are percentages.
type bar struct {
	Name, Value, Note string
	Segments          []segment
}

type segment struct {
	Class, Label, Value, Share string
	// Width is a percentage; Hours what it stands for, in GPU-hours.
	Width, Hours string
}

type cause struct{ Class, Name, Hours, Share, Cost, Meaning string }

type waster struct{ Name, Hours, Share, Cost, Width string }

type absenceText struct{ Node, When, Lasted, Reason, Text string }

type fact struct{ Name, Text string }

// sheet is the table of rows.
type sheet struct {
	Columns []heading
	Rows    []sheetRow
	Total   sheetRow
}

type heading struct {
	Title  string
	Number bool
}

type sheetRow struct {
	Class string
	Cells []cell
}

// cell has the end of a long number apart, which is shown more faintly.
type cell struct {
	Text, Faint string
	Number      bool
}

func newPage(b *bill.Bill, o Options) page {
	p := page{
		Style: template.CSS(pageStyle), Period: periodName(b.From, b.To, b.Zone),
		Zone:     fmt.Sprintf("%s – %s, %s", b.From.In(b.Zone).Format(minute), b.To.In(b.Zone).Format(minute), b.Zone),
		Currency: b.Currency, Scope: scope(b), Status: statusOf(b), Tiles: tiles(b), Where: whereBar(b), Causes: causesOf(b), Heat: newHeat(b),
		Table: sheetOf(b), Missing: absenceTexts(missing(b)), How: how(b), Generator: visible(o.Generator),
	}
	unseen, more := someGaps(b)
	p.Gaps, p.MoreGaps = absenceTexts(unseen), more
	p.Title = "GPU bill, " + p.Period
	p.Legend = p.Where.Segments
	p.Tenants, p.TenantsBy, p.Others = tenantBars(b)
	p.Wasters, p.WasteNote = wasters(b)
	for _, note := range b.Notes {
		p.Notes = append(p.Notes, visible(note))
	}
	for _, where := range b.Unbalanced {
		p.Unbalanced = append(p.Unbalanced, visible(where))
	}
	return p
}

func scope(b *bill.Bill) string {
	gpus, clusters := 0, make(map[string]bool)
	var names []string
	for i := range b.Nodes {
		gpus += b.Nodes[i].GPUs
		if c := b.Nodes[i].Cluster; c != "" && !clusters[c] {
			clusters[c] = true
			names = append(names, visible(c))
		}
	}
	text := counted(gpus, "GPU") + " on " + counted(len(b.Nodes), "node")
	switch {
	case len(names) > 3:
		return text + ", " + counted(len(names), "cluster")
	case len(names) > 0:
		return text + " of " + strings.Join(names, ", ")
	}
	return text
}

func statusOf(b *bill.Bill) status {
	adds, ok := balance(b)
	switch {
	case !ok:
		return status{"wrong", "This bill does not add up", adds + "."}
	case !b.Complete:
		return status{"lacking", "Incomplete", fmt.Sprintf("Of the worst node %s %% of the data are there. "+
			"What was held in the times that are missing is not, or not surely, all in the numbers.", completeness(b))}
	}
	return status{"whole", "Complete, and it adds up", adds + "."}
}

func tiles(b *bill.Bill) []tile {
	held, rest, _ := split(b)
	total := totalRow(b)
	var all []tile
	if priced(b) {
		all = append(all, tile{"Total cost", thousands(b.Total.TotalCost.StringFixed(b.Decimals)), b.Currency, costNote(b), "cost"})
	}
	whole := held.Add(rest)
	heldShare, _ := percent(held, whole)
	all = append(all, tile{"Held", thousands(held.StringFixed(1)), "GPU-h", heldShare + " of " + thousands(whole.StringFixed(1)), ""})
	if measured(total) {
		used, _ := percent(total.UsedHours, total.UsedHours.Add(total.WastedHours))
		note := thousands(total.WastedHours.StringFixed(1)) + " GPU-hours held and not used"
		if priced(b) {
			note += ", worth " + thousands(total.WastedCost.StringFixed(b.Decimals)) + " " + b.Currency
		}
		all = append(all, tile{"Used of what was held", strings.TrimSuffix(used, " %"), "%", note, ""})
	} else {
		all = append(all, tile{"Used of what was held", none, "", "not measured", ""})
	}
	share, _ := percent(rest, whole)
	all = append(all, tile{"Held by nobody", thousands(rest.StringFixed(1)), "GPU-h", share + " of all", ""})
	if !total.Energy.IsZero() {
		all = append(all, tile{"Energy", thousands(total.Energy.StringFixed(0)), "kWh", "of the GPUs alone", ""})
	}
	return all
}

func costNote(b *bill.Bill) string {
	var idle decimal.Decimal
	for i := range b.Rows {
		if b.Rows[i].Kind == bill.KindUnallocated {
			idle = idle.Add(b.Rows[i].TotalCost)
		}
	}
	note := thousands(b.Total.TotalCost.Sub(idle).StringFixed(b.Decimals)) + " to holders"
	if !idle.IsZero() {
		note += ", " + thousands(idle.StringFixed(b.Decimals)) + " for what nobody held"
	}
	if !b.Total.Adjustment.IsZero() {
		note += ", of it " + thousands(b.Total.Adjustment.StringFixed(b.Decimals)) + " for earlier periods"
	}
	return note
}

func absenceTexts(all []absence) []absenceText {
	var texts []absenceText
	for _, a := range all {
		texts = append(texts, absenceText{visible(a.node), a.from.Format(second) + " – " + a.to.Format(second), a.lasted(), visible(a.reason), visible(a.text)})
	}
	return texts
}

func how(b *bill.Bill) []fact {
	adds, _ := balance(b)
	facts := []fact{{"Adds up", adds}, {"Source", visible(b.Source) + ", read as an electricity meter is: what its registers showed at the end, less what they showed at the start"}}
	if priced(b) {
		facts = append(facts, fact{"Prices", visible(b.PriceVersion) + ", in " + b.Currency + "; every row is rounded once, half to even, and the rows add up to the total"},
			fact{"Idle", idleMeaning(b.Idle)})
	}
	if b.PolicyVersion != "" {
		facts = append(facts, fact{"Policy", visible(b.PolicyVersion) + ": how much of a GPU a MIG device or a seat is"})
	}
	bases := totalRow(b).Bases
	for _, basis := range bases {
		facts = append(facts, fact{"Used (" + string(basis) + ")", basisMeaning(basis)})
	}
	if len(bases) > 0 {
		facts = append(facts, fact{"Charged", "what was held, whether or not it was used"})
	}
	return append(facts, fact{"Bill", visible(b.ID) + ": the same consumption, prices and options give the same"})
}

func sheetOf(b *bill.Bill) sheet {
	var all []column
	all = append(all, column{title: "kind", of: what})
	all = append(all, namedColumns(b)...)
	keys := len(all)
	all = append(all, hoursColumn(), alignedPriceColumn(b))
	all = append(all, costColumns()...)
	all = append(all, usedColumn(2), wastedColumn(2), energyColumn(1), memoryColumn(1), completeColumn())
	rows := make([]*bill.Row, 0, len(b.Rows)+1)
	for i := range b.Rows {
		rows = append(rows, &b.Rows[i])
	}
	rows = append(rows, totalRow(b))
	s := sheet{Rows: make([]sheetRow, len(rows))}
	for j, r := range rows {
		s.Rows[j].Class = string(r.Kind)
	}
	for i, c := range all {
		if i >= keys && empty(b, c, rows) {
			continue
		}
		s.Columns = append(s.Columns, heading{visible(c.title), c.number})
		for j, r := range rows {
			s.Rows[j].Cells = append(s.Rows[j].Cells, cellOf(c, c.of(b, r)))
		}
	}
	s.Total = s.Rows[len(rows)-1]
	s.Rows = s.Rows[:len(rows)-1]
	return s
}

// empty says that a column has nothing but zeros.
func empty(b *bill.Bill, c column, rows []*bill.Row) bool {
	for _, r := range rows {
		if strings.Trim(c.of(b, r).text, "-0.") != "" {
			return false
		}
	}
	return true
}

func cellOf(c column, v value) cell {
	text := shown(c, v)
	if whole, end, ok := strings.Cut(text, "."); ok && c.number && len(end) == 6 {
		return cell{whole + "." + end[:2], end[2:], true}
	}
	return cell{text, "", c.number}
}
