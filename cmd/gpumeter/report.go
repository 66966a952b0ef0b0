// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/gpumeter/gpumeter/cmd/gpumeter-exporter/app"
	"github.com/gpumeter/gpumeter/pkg/bill"
	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/report"
)

// The formats of a report.
const (
	formatTable = "table"
	formatCSV   = "csv"
	formatJSON  = "json"
	formatHTML  = "html"
	formatFOCUS = "focus"
)

func formats() []string {
	return []string{formatTable, formatCSV, formatJSON, formatHTML, formatFOCUS}
}

// reporter is gpumeter report.
type reporter struct {
	bill    billFlags
	format  string
	outputs []string
	view    string
	totals  bool
	items   bool
	verify  bool

	focusVersion string
	focus        report.FOCUSOptions

	stdin          io.Reader
	stdout, stderr io.Writer
	now            func() time.Time
}

func reportCommand(stdout, stderr io.Writer, now func() time.Time) *cli.Command {
	r := &reporter{stdin: os.Stdin, stdout: stdout, stderr: stderr, now: now}
	return r.command()
}

func (r *reporter) command() *cli.Command {
	return &cli.Command{
		Name:  "report",
		Usage: "say who consumed how much of which GPUs, and what it costs",
		Description: "It reads ledgers (--ledger) or a Prometheus (--prometheus) that scrapes the exporters, and makes a bill whose rows add up to its total.\n\n" +
			"It ends with 0 where the report is complete, 2 where something is missing, which it names, 3 where the numbers contradict each other, and 1 where there is no report.",
		OnUsageError: app.UsageError,
		Flags: slices.Concat(r.bill.flags(), []cli.Flag{
			&cli.StringFlag{Name: "format", Aliases: []string{"f"}, Value: formatTable, Destination: &r.format, Usage: "what is written to the standard output: " + strings.Join(formats(), ", ") + " or none"},
			&cli.StringSliceFlag{Name: "output", Aliases: []string{"o"}, Destination: &r.outputs,
				Usage: "`FILE` to write as well, in the format of its ending: .html, .csv, .json, .txt, .focus.csv; can be repeated"},
			&cli.StringFlag{Name: "view", Value: "finance", Destination: &r.view, Usage: "columns of the table: finance (prices and costs) or platform (what was used and wasted)"},
			&cli.BoolFlag{Name: "totals", Destination: &r.totals, Usage: "with CSV: a last row with the totals"},
			&cli.BoolFlag{Name: "items", Destination: &r.items, Usage: "with JSON: what each row is made of"},
			&cli.BoolFlag{Name: "reconcile", Destination: &r.verify,
				Usage: "with --ledger and --prometheus: say where they disagree, and why: below the table, and with any other format in words on the standard error"},
			&cli.StringFlag{Name: "focus-version", Value: "1.3", Destination: &r.focusVersion, Usage: "`VERSION` of FOCUS: " + strings.Join(report.FOCUSVersions(), " or ")},
			&cli.StringFlag{Name: "focus-account", Destination: &r.focus.BillingAccountID, Usage: "`ID` of FOCUS' billing account (default: the cluster's name)"},
			&cli.StringFlag{Name: "focus-account-name", Destination: &r.focus.BillingAccountName, Usage: "`NAME` of it"},
			&cli.StringFlag{Name: "focus-issuer", Destination: &r.focus.Issuer, Usage: "`NAME` of who issues the invoice"},
			&cli.StringFlag{Name: "focus-provider", Destination: &r.focus.Provider, Usage: "`NAME` of who makes the GPUs available"},
			&cli.StringFlag{Name: "focus-host", Destination: &r.focus.Host, Usage: "`NAME` of who owns the machines"},
			&cli.BoolFlag{Name: "focus-showback", Destination: &r.focus.Showback, Usage: "nobody is invoiced: BilledCost is 0"},
		}),
		Action: plain(r.run),
	}
}

// check says what is wrong with the flags of the report itself.
func (r *reporter) check() error {
	switch {
	case r.format != "none" && !slices.Contains(formats(), r.format):
		return fmt.Errorf("--format %q: want %s or none", r.format, strings.Join(formats(), ", "))
	case r.view != "finance" && r.view != "platform":
		return fmt.Errorf("--view %q: want finance or platform", r.view)
	case !slices.Contains(report.FOCUSVersions(), r.focusVersion):
		return fmt.Errorf("--focus-version %q: want %s", r.focusVersion, strings.Join(report.FOCUSVersions(), " or "))
	case r.verify && (len(r.bill.source.ledgers) == 0 || r.bill.source.prometheus == ""):
		return errors.New("--reconcile compares two sources: give --ledger and --prometheus")
	case !r.verify && len(r.bill.source.ledgers) > 0 && r.bill.source.prometheus != "":
		return errors.New("--ledger and --prometheus: from which is the report to be made? Give one, or --reconcile to compare them")
	}
	for _, name := range r.outputs {
		if _, err := formatOf(name); err != nil {
			return err
		}
	}
	switch {
	case !r.wants(formatFOCUS):
	case r.bill.prices == "":
		return errors.New("FOCUS is of costs: give a price book with --prices")
	case len(r.bill.source.tenants)+len(r.bill.source.pods) > 0:
		return errors.New("FOCUS is of whole GPUs, of which --namespace and --pod keep parts: leave them out, and choose within the file (SubAccountId, x_Namespace)")
	}
	return nil
}

// formatOf is the format that a file's name asks for.
func formatOf(name string) (string, error) {
	base := strings.ToLower(filepath.Base(name))
	for _, e := range [][2]string{
		{".focus.csv", formatFOCUS}, {".csv", formatCSV}, {".json", formatJSON}, {".html", formatHTML}, {".htm", formatHTML}, {".txt", formatTable},
	} {
		if strings.HasSuffix(base, e[0]) {
			return e[1], nil
		}
	}
	return "", fmt.Errorf("--output %s: its ending says no format: want .html, .csv, .json, .txt or .focus.csv", name)
}

// wants reports whether anything is to be written in the format.
func (r *reporter) wants(format string) bool {
	return r.format == format || slices.ContainsFunc(r.outputs, func(name string) bool {
		f, _ := formatOf(name)
		return f == format
	})
}

func (r *reporter) run(ctx context.Context) error {
	if err := r.check(); err != nil {
		return err
	}
	b, err := r.bill.open(r.now(), r.stdin)
	if err != nil {
		return err
	}
	b.pods = b.pods || r.wants(formatFOCUS)
	p := newProgress(r.stderr)
	defer p.clear()
	if r.verify {
		return r.reconcile(ctx, b, p)
	}
	made, err := b.make(ctx, b.source(), r.wants(formatHTML), p)
	if err != nil {
		return err
	}
	p.clear()
	if err := r.write(made); err != nil {
		return err
	}
	return verdict(made)
}

// verdict is the exit code that a bill deserves; what is the matter stands in the report.
func verdict(b *bill.Bill) error {
	switch {
	case b.Difference != 0 || len(b.Unbalanced) > 0 || slices.ContainsFunc(b.Nodes, contradicted):
		return &exitError{code: exitUnbalanced, err: errors.New("the report does not add up; it says where")}
	case !b.Complete:
		return &exitError{code: exitIncomplete, err: errors.New("the report is incomplete; it says what is missing")}
	}
	return nil
}

// contradicted reports whether a node's ledger does not come to what it says itself.
func contradicted(n bill.Node) bool {
	return slices.ContainsFunc(n.Missing, func(m ledger.Missing) bool { return m.Reason == ledger.MissingContradicted })
}

// write writes all that was asked for. A file is there whole or not at all.
func (r *reporter) write(b *bill.Bill) error {
	for _, name := range r.outputs {
		format, err := formatOf(name)
		if err != nil {
			return err
		}
		var page bytes.Buffer
		if err := r.render(&page, b, format, 0); err != nil {
			return err
		}
		if err := replaceFile(name, page.Bytes()); err != nil {
			return fmt.Errorf("--output: %w", err)
		}
		fmt.Fprintln(r.stderr, "written:", name)
	}
	if r.format == "none" {
		return nil
	}
	return r.render(r.stdout, b, r.format, terminalWidth(r.stdout))
}

// render writes one format.
func (r *reporter) render(w io.Writer, b *bill.Bill, format string, width int) error {
	o := report.Options{Width: width, Totals: r.totals, Items: r.items, Generator: "gpumeter " + app.Version()}
	if r.view == "platform" {
		o.View = report.Platform
	}
	switch format {
	case formatCSV:
		return report.CSV(w, b, o)
	case formatJSON:
		return report.JSON(w, b, o)
	case formatHTML:
		return report.HTML(w, b, o)
	case formatFOCUS:
		return report.FOCUS(w, b, r.focusVersion, r.focus)
	default:
		return report.Table(w, b, o)
	}
}

// replaceFile puts data in the place of a file: all of it, or nothing.
func replaceFile(name string, data []byte) error {
	fresh, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*")
	if err != nil {
		return err
	}
	_, err = fresh.Write(data)
	err = errors.Join(err, fresh.Chmod(0o644), fresh.Close())
	if err == nil {
		err = os.Rename(fresh.Name(), name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(fresh.Name()))
	}
	return nil
}
