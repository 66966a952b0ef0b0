// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/gpumeter/gpumeter/cmd/gpumeter-exporter/app"
	"github.com/gpumeter/gpumeter/etc"
	"github.com/gpumeter/gpumeter/pkg/prices"
)

// priceCheck reads a price book and says what it says.
type priceCheck struct {
	at string
	// strict makes an error of warnings.
	strict  bool
	subject prices.Subject
	now     func() time.Time
	stdin   io.Reader
	stdout  io.Writer
	stderr  io.Writer
}

func pricesCommand(stdout, stderr io.Writer, now func() time.Time) *cli.Command {
	c := &priceCheck{now: now, stdin: os.Stdin, stdout: stdout, stderr: stderr}
	return &cli.Command{
		Name:         "prices",
		Usage:        "look at price books",
		OnUsageError: app.UsageError,
		Commands: []*cli.Command{
			{
				Name:      "check",
				Usage:     "say what is wrong with a price book, or what it says",
				ArgsUsage: "FILE",
				Description: "It ends with 0 where the book can be used and with 1 where it cannot: all that is wrong is told at once, by line. What is " +
					"allowed and probably not meant is a warning. With --model it says what an hour of such a GPU costs, with what is taken off.",
				OnUsageError: app.UsageError,
				Flags:        c.flags(),
				Action: func(_ context.Context, cmd *cli.Command) error {
					if cmd.NArg() != 1 {
						return errors.New("give one FILE with a price book, or - for standard input; gpumeter prices example writes one")
					}
					return c.run(cmd.Args().First())
				},
			},
			c.rulesCommand(),
			{
				Name:         "example",
				Usage:        "write a price book with all there is to say, to begin with",
				OnUsageError: app.UsageError,
				Action: plain(func(context.Context) error {
					_, err := stdout.Write(etc.ExamplePrices())
					return err
				}),
			},
		},
	}
}

func (c *priceCheck) flags() []cli.Flag {
	s := &c.subject
	return []cli.Flag{
		&cli.StringFlag{Name: "at", Usage: "`TIME` of the prices to show: a date in the book's zone, or an instant; now if it is left out", Destination: &c.at},
		&cli.BoolFlag{Name: "strict", Usage: "end with 1 for warnings too", Destination: &c.strict},
		&cli.StringFlag{Name: "model", Usage: "show the price of this `MODEL`", Destination: &s.Model},
		&cli.StringFlag{Name: "profile", Usage: "of this MIG `PROFILE`", Destination: &s.Profile},
		&cli.StringFlag{Name: "resource", Usage: "of this extended `RESOURCE`", Destination: &s.Resource},
		&cli.StringFlag{Name: "mode", Usage: "held in this `MODE`: exclusive, mig, shared, mig-shared", Destination: &s.Mode},
		&cli.StringFlag{Name: "namespace", Usage: "held by this `NAMESPACE`; by nobody if it is left out", Destination: &s.Namespace},
		&cli.StringMapFlag{Name: "namespace-label", Usage: "`LABEL=VALUE` of the namespace", Destination: &s.NamespaceLabels},
		&cli.StringFlag{Name: "node", Usage: "on this `NODE`", Destination: &s.Node},
		&cli.StringMapFlag{Name: "node-label", Usage: "`LABEL=VALUE` of the node", Destination: &s.NodeLabels},
		&cli.StringFlag{Name: "cluster", Usage: "in this `CLUSTER`", Destination: &s.Cluster},
	}
}

func (c *priceCheck) run(name string) error {
	data, err := c.read(name)
	if err != nil {
		return fmt.Errorf("read the price book: %w", err)
	}
	book, err := prices.Parse(name, data)
	if err != nil {
		return fmt.Errorf("the price book cannot be used:\n%w", err)
	}
	at, err := c.moment(book.Zone())
	if err != nil {
		return err
	}
	warnings := book.Warnings()
	listed := book.ListedAt(at)
	if len(listed) == 0 {
		warnings = append(warnings, prices.Problem{File: name, Text: "no price is valid at " + at.Format(time.RFC3339)})
	}
	for _, w := range warnings {
		fmt.Fprintln(c.stderr, "warning:", w)
	}
	if c.subject.Model != "" {
		err = c.showOne(book, at)
	} else {
		err = c.showAll(book, listed, at)
	}
	if err == nil && c.strict && len(warnings) > 0 {
		return errors.New("there are warnings, and --strict")
	}
	return err
}

func (c *priceCheck) read(name string) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(c.stdin)
	}
	return os.ReadFile(name)
}

// moment is --at; a date is its first instant in the zone.
func (c *priceCheck) moment(zone *time.Location) (time.Time, error) {
	if c.at == "" {
		return c.now().In(zone), nil
	}
	if day, err := time.Parse(time.DateOnly, c.at); err == nil {
		return prices.StartOfDay(day.Year(), day.Month(), day.Day(), zone), nil
	}
	t, err := time.Parse(time.RFC3339, c.at)
	if err != nil {
		return time.Time{}, fmt.Errorf("--at %q: give a date such as 2026-01-31 or an instant such as 2026-01-31T12:00:00Z", c.at)
	}
	return t.In(zone), nil
}

// showAll writes the prices of a moment, the most specific first.
func (c *priceCheck) showAll(book *prices.Book, listed []prices.Listed, at time.Time) error {
	table := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "%s: amounts in %s with %d decimals, dates in %s, what nobody held: %s\n\n", book.Version(), book.Currency(), book.Decimals(), book.Zone(), book.Idle())
	fmt.Fprintf(table, "PRICE\t%s/GPU-HOUR\tFROM\tUNTIL\tFOR\n", book.Currency())
	for _, l := range listed {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", l.Name, l.Hour, c.limit(l.From, at), c.limit(l.To, at), l.Selector)
	}
	for _, q := range book.Quotas() {
		shared := "each namespace"
		if q.Shared {
			shared = "all namespaces together"
		}
		fmt.Fprintf(table, "%s\tfree: %s GPU-hours per %s, %s\n", q.Name, q.Hours, q.Per, shared)
	}
	return table.Flush()
}

// limit is a limit of validity in the zone of at.
func (c *priceCheck) limit(t, at time.Time) string {
	if t.IsZero() {
		return "-"
	}
	t = t.In(at.Location())
	if t.Equal(prices.StartOfDay(t.Year(), t.Month(), t.Day(), t.Location())) {
		return t.Format(time.DateOnly)
	}
	return t.Format(time.RFC3339)
}

// showOne writes what one GPU-hour costs. Labels that were not given are none.
func (c *priceCheck) showOne(book *prices.Book, at time.Time) error {
	s := c.subject
	s.At = at
	if s.NamespaceLabels == nil {
		s.NamespaceLabels = map[string]string{}
	}
	if s.NodeLabels == nil {
		s.NodeLabels = map[string]string{}
	}
	p, err := book.Price(s)
	if err != nil {
		return err
	}
	fmt.Fprintf(c.stdout, "%s %s per GPU-hour by %s of %s\n", p.Hour, book.Currency(), p.Entry, p.Version)
	if len(p.Sources) == 0 {
		return nil
	}
	net := p.Hour.Sub(p.Hour.Mul(p.Discount).Shift(-2))
	_, err = fmt.Fprintf(c.stdout, "less %s %% by %s: %s %s\n", p.Discount, strings.Join(p.Sources, ", "), net, book.Currency())
	return err
}
