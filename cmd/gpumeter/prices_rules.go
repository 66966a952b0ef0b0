// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/gpumeter/gpumeter/cmd/gpumeter-exporter/app"
	"github.com/gpumeter/gpumeter/pkg/prices"
)

// priceRecord is the series that dashboards multiply GPU-hours by.
const priceRecord = "gpumeter:price_per_gpu_hour"

// priceRules writes the list prices of a book as recording rules for Prometheus.
type priceRules struct {
	// check reads the file and knows the time.
	check *priceCheck
	file  string
	// currency is that which the book must have; empty for any.
	currency string
}

func (c *priceCheck) rulesCommand() *cli.Command {
	r := &priceRules{check: c}
	return &cli.Command{
		Name:  "rules",
		Usage: "write the list prices that hold now as recording rules for Prometheus, for dashboards",
		Description: "The rules make one series for each model, " + priceRecord + "{model,currency}: the price of a whole GPU-hour that holds " +
			"without any condition. Prices for one mode, profile, resource, node, cluster or namespace are not in them, and a model that has no " +
			"other price is left out; both are told on the standard error and in the file. What namespaces, discounts and quotas change is in no list price: gpumeter report applies it. The series end by " +
			"themselves when the book's next price begins: write the rules anew then.",
		OnUsageError: app.UsageError,
		Flags: []cli.Flag{
			&cli.StringFlag{
				Name: "prices", Aliases: []string{"p"}, Usage: "`FILE` with the price book, or - for standard input (gpumeter prices example shows one)",
				Sources: cli.EnvVars("GPUMETER_PRICES"), Destination: &r.file,
			},
			&cli.StringFlag{Name: "currency", Usage: "refuse a book that is not in this `CURRENCY`, such as EUR", Destination: &r.currency},
			&cli.StringFlag{Name: "at", Usage: "`TIME` of the prices: a date in the book's zone, or an instant; now if it is left out", Destination: &c.at},
		},
		Action: plain(func(context.Context) error { return r.run() }),
	}
}

func (r *priceRules) run() error {
	if r.file == "" {
		return errors.New("give a price book: --prices FILE; gpumeter prices example writes one")
	}
	data, err := r.check.read(r.file)
	if err != nil {
		return fmt.Errorf("read the price book: %w", err)
	}
	book, err := prices.Parse(r.file, data)
	if err != nil {
		return fmt.Errorf("the price book cannot be used:\n%w", err)
	}
	if r.currency != "" && r.currency != book.Currency() {
		return fmt.Errorf("the price book %s is in %s and not in %s: there is no exchange of currencies, so give the book that is",
			book.Version(), book.Currency(), r.currency)
	}
	at, err := r.check.moment(book.Zone())
	if err != nil {
		return err
	}
	sheet := newPriceSheet(book, at)
	for _, text := range sheet.special {
		fmt.Fprintln(r.check.stderr, "not in the rules:", oneLine(text))
	}
	for _, text := range sheet.left {
		fmt.Fprintln(r.check.stderr, "left out:", oneLine(text))
	}
	if len(sheet.rows) == 0 {
		return fmt.Errorf("the price book %s has at %s no price of a model that holds without other conditions, so there is no rule to write",
			book.Version(), at.Format(time.RFC3339))
	}
	return sheet.write(r.check.stdout)
}

// priceSheet is what a book says at a moment, as far as it is one number for each model.
type priceSheet struct {
	book *prices.Book
	at   time.Time
	// until is when the list changes the next time; zero for never.
	until time.Time
	// rows are of models alone, the most specific first.
	rows []priceRow
	// special says which prices are more special than the rows of their models.
	special []string
	// left says which models are in no row, and why.
	left []string
}

// priceRow is a price of all GPUs of a model, or of a pattern of models.
type priceRow struct {
	listed prices.Listed
	model  string
	// but are patterns of models that others price.
	but []string
}

func newPriceSheet(book *prices.Book, at time.Time) *priceSheet {
	s := &priceSheet{book: book, at: at, until: nextPrices(book, at)}
	listed := book.ListedAt(at)
	var taken []string
	for _, l := range listed {
		if model, alone := modelOf(l.Selector); alone {
			s.rows = append(s.rows, priceRow{listed: l, model: model, but: overlapping(model, taken)})
			taken = append(taken, model)
		}
	}
	for _, l := range listed {
		model, alone := modelOf(l.Selector)
		if alone {
			continue
		}
		price := fmt.Sprintf("%s %s by %s (line %d), for %s", l.Hour, book.Currency(), l.Name, l.Line, l.Selector)
		if slices.ContainsFunc(taken, func(p string) bool { return covers(p, model) }) {
			s.special = append(s.special, price)
		} else {
			s.left = append(s.left, fmt.Sprintf("model %s, as far as it has no price without conditions: %s", model, price))
		}
	}
	return s
}

// nextPrices is when the list of prices is another one; zero for never.
func nextPrices(book *prices.Book, at time.Time) time.Time {
	same := func(a, b prices.Listed) bool {
		return a.Name == b.Name && a.Hour.Equal(b.Hour) && a.Selector == b.Selector
	}
	now := book.ListedAt(at)
	for _, t := range book.Changes(at, at.AddDate(100, 0, 0)) {
		if !slices.EqualFunc(now, book.ListedAt(t), same) {
			return t
		}
	}
	return time.Time{}
}

// modelOf is the model that a selector, as the book writes it, is for, and whether that alone decides.
func modelOf(selector string) (model string, alone bool) {
	parts := strings.Split(selector, ", ")
	for _, part := range parts {
		if name, ok := strings.CutPrefix(part, "model="); ok {
			return name, len(parts) == 1
		}
	}
	return "*", false
}

// covers reports whether a pattern has each model that another one, or a name, has. What a ? stands for is one
// character, so it has no room for a *.
func covers(pattern, other string) bool {
	text := strings.NewReplacer(`\*`, ".*", `\?`, "[^*]").Replace(regexp.QuoteMeta(pattern))
	return regexp.MustCompile("^(?s:" + text + ")$").MatchString(other)
}

// overlapping are the patterns that could have a model in common with this one; one too many does no harm.
func overlapping(model string, patterns []string) []string {
	var met []string
	for _, p := range patterns {
		if isGlob(model) && mayMeet(model, p) && !slices.Contains(met, p) {
			met = append(met, p)
		}
	}
	return met
}

// mayMeet reports whether a pattern could have a model in common with another one, or with a name.
func mayMeet(pattern, other string) bool {
	if !isGlob(other) {
		return globExpression(pattern).MatchString(other)
	}
	a, b := pattern[:strings.IndexAny(pattern, "*?")], other[:strings.IndexAny(other, "*?")]
	return strings.HasPrefix(a, b) || strings.HasPrefix(b, a)
}

func isGlob(model string) bool { return strings.ContainsAny(model, "*?") }

// globExpression is a pattern of models as an expression for whole names.
func globExpression(pattern string) *regexp.Regexp {
	return regexp.MustCompile("^(?s:" + globText(pattern) + ")$")
}

// globText is that expression as Prometheus takes it, which anchors it itself.
func globText(pattern string) string {
	return strings.NewReplacer(`\*`, ".*", `\?`, ".").Replace(regexp.QuoteMeta(pattern))
}

// write writes a file of rules.
func (s *priceSheet) write(w io.Writer) error {
	var text strings.Builder
	fmt.Fprintf(&text, "# Written by gpumeter prices rules from %s, for %s.\n", commentText(s.book.Version()), s.at.Format(time.RFC3339))
	if !s.until.IsZero() {
		fmt.Fprintf(&text, "# They hold until %s, when other prices begin, and then end by themselves: write them anew.\n", s.until.Format(time.RFC3339))
	}
	text.WriteString("# These are list prices: what namespaces, discounts and quotas change is not in them. gpumeter report applies it.\n")
	if len(s.special) > 0 {
		text.WriteString("# The price of a model is that of a whole GPU-hour without other conditions. Dashboards do not know the more special ones.\n")
	}
	for _, special := range s.special {
		fmt.Fprintf(&text, "# Not in the rules: %s.\n", commentText(special))
	}
	for _, left := range s.left {
		fmt.Fprintf(&text, "# Left out: %s.\n", commentText(left))
	}
	text.WriteString("groups:\n  - name: gpumeter-prices\n    rules:\n")
	s.writeNames(&text)
	s.writePatterns(&text)
	_, err := io.WriteString(w, text.String())
	return err
}

// writeNames writes a rule for each price of one model, which is there whether a GPU of it is or not.
func (s *priceSheet) writeNames(text *strings.Builder) {
	for i := range s.rows {
		if row := &s.rows[i]; !isGlob(row.model) {
			fmt.Fprintf(text, "      # %s\n      - record: %s\n        expr: vector(%s)%s\n        labels:\n          currency: %s\n          model: %s\n",
				row.origin(), priceRecord, row.listed.Hour, s.end(), s.book.Currency(), strconv.Quote(row.model))
		}
	}
}

// writePatterns writes one rule for all patterns, since rules of the same labels are taken for a mistake.
func (s *priceSheet) writePatterns(text *strings.Builder) {
	var each []string
	for i := range s.rows {
		if row := &s.rows[i]; isGlob(row.model) {
			each = append(each, row.expression())
		}
	}
	if len(each) > 0 {
		fmt.Fprintf(text, "      - record: %s\n        expr: |\n          (\n%s          )%s\n        labels:\n          currency: %s\n",
			priceRecord, strings.Join(each, "            or\n"), s.end(), s.book.Currency())
	}
}

// end is what ends an expression when other prices begin.
func (s *priceSheet) end() string {
	if s.until.IsZero() {
		return ""
	}
	return fmt.Sprintf(" and on () (vector(time()) < %d)", s.until.Unix())
}

// origin is where a price is from.
func (row *priceRow) origin() string {
	return fmt.Sprintf("%s, line %d", commentText(row.listed.Name), row.listed.Line)
}

// expression is the price of each model of a pattern that there is, or was within a month: its costs of that month are
// still looked at.
func (row *priceRow) expression() string {
	models := "model=~" + strconv.Quote(globText(row.model))
	if len(row.but) > 0 {
		but := make([]string, len(row.but))
		for i, p := range row.but {
			but[i] = globText(p)
		}
		models += ", model!~" + strconv.Quote(strings.Join(but, "|"))
	}
	return fmt.Sprintf(`            # %s
            %s * group by (model) (
              gpumeter_device_info{mig_uuid="", %s}
              or last_over_time(%s{%s}[32d:1h])
            )
`, row.origin(), row.listed.Hour, models, priceRecord, models)
}

// commentText is a text of a book in a comment, which ends with its line: YAML ends lines at two characters more than terminals do.
func commentText(text string) string {
	return oneLine(strings.NewReplacer("\u2028", " ", "\u2029", " ").Replace(text))
}
