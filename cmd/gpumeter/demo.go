// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/gpumeter/gpumeter/cmd/gpumeter-exporter/app"
	"github.com/gpumeter/gpumeter/pkg/sim"
)

func scenariosCommand(stdout io.Writer) *cli.Command {
	return &cli.Command{
		Name:  "scenarios",
		Usage: "list the simulated nodes that ship with gpumeter",
		Action: func(context.Context, *cli.Command) error {
			for _, name := range sim.Shipped() {
				s, err := sim.LoadShipped(name)
				if err != nil {
					return err
				}
				fmt.Fprintf(stdout, "%s\n    %s\n", name, strings.Join(strings.Fields(s.Description), " "))
			}
			return nil
		},
	}
}

func demoCommand(stdout, stderr io.Writer) *cli.Command {
	cfg := app.Defaults()
	cfg.Source, cfg.Kubernetes, cfg.Quiet = "sim", true, true
	var span time.Duration
	var month bool
	return &cli.Command{
		Name:         "demo",
		Usage:        "run a simulated GPU node with the exporter on it; needs no GPU and no Kubernetes",
		OnUsageError: app.UsageError,
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "address", Aliases: []string{"a"}, Value: "127.0.0.1:9400", Usage: "`ADDRESS` to listen on", Destination: &cfg.Address},
			&cli.StringFlag{Name: "scenario", Value: "default", Usage: "a shipped scenario (see `gpumeter scenarios`) or a FILE", Destination: &cfg.Scenario},
			&cli.FloatFlag{Name: "speed", Value: 60, Usage: "simulated seconds per second", Destination: &cfg.Speed},
			&cli.Uint64Flag{Name: "seed", Usage: "instead of the scenario's own seed", Destination: &cfg.Seed},
			&cli.StringFlag{Name: "collect-interval", Aliases: []string{"c"}, Value: "250ms", Usage: "`TIME` between samplings", Destination: &cfg.Interval},
			&cli.StringFlag{Name: "collectors", Aliases: []string{"f"}, Value: app.DefaultCollectors, Usage: "`FILE` with the counters; built-in ones if it does not exist", Destination: &cfg.Collectors},
			&cli.BoolFlag{Name: "kubernetes-virtual-gpus", Usage: "copy series per holder as dcgm-exporter does", Destination: &cfg.VirtualGPUs},
			&cli.BoolFlag{Name: "debug", Usage: "log details", Destination: &cfg.Debug},
			&cli.BoolFlag{Name: "month", Value: true, Usage: "close with the bill of a simulated month, as a table and as a page", Destination: &month},
			&cli.DurationFlag{Name: "for", Usage: "stop after this `TIME` (default: run until Ctrl-C)", Destination: &span},
		}, cfg.Health.Flags()...),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			if cmd.NArg() > 0 {
				return fmt.Errorf("%q is no flag; see gpumeter demo --help", cmd.Args().First())
			}
			cfg.CollectorsSet, cfg.SeedSet = cmd.IsSet("collectors"), cmd.IsSet("seed")
			cfg.Health.Note(cmd)
			if span < 0 {
				return fmt.Errorf("--for %v: want a time of 0 or more", span)
			}
			if err := demo(ctx, cfg, span, stdout, stderr); err != nil || !month {
				return err
			}
			return closeWithMonth(ctx, stdout, stderr)
		},
	}
}

// demo runs the exporter over a simulated node for span (0: until ctx ends) and closes with the account.
func demo(ctx context.Context, cfg app.Config, span time.Duration, stdout, stderr io.Writer) error {
	a, err := app.New(cfg, stderr)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if span > 0 {
		ctx, cancel = context.WithTimeout(ctx, span)
		defer cancel()
	}
	failed := make(chan error, 1)
	go func() {
		failed <- a.Run(ctx)
		cancel()
	}()
	if addr, err := a.Addr(ctx); err == nil {
		greet(stdout, a.Node(), cfg, addr, span)
	}
	account := newTally()
	for {
		s, stale := a.Meter().Watch()
		account.add(s)
		select {
		case <-stale:
			continue
		case <-ctx.Done():
		}
		break
	}
	if err := <-failed; err != nil {
		return err
	}
	return account.print(stdout)
}

// closeWithMonth shows the bill of a simulated month. Where it was Ctrl-C that ended the demo, ctx is over and not looked
// at: a second one ends the program.
func closeWithMonth(ctx context.Context, stdout, stderr io.Writer) error {
	if ctx.Err() != nil {
		ctx = context.WithoutCancel(ctx)
	}
	dir, err := os.MkdirTemp("", "gpumeter-demo-")
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "\nAnd this is what a month of such a node comes to. It is metered now, minute by minute, into a ledger on disk;\n"+
		"that takes some seconds (Ctrl-C leaves it off, --month=false leaves it out).\n\n")
	page, err := monthReport(ctx, dir, time.Now(), stdout, stderr)
	if err != nil {
		return err
	}
	from, _ := lastMonth(time.Now())
	fmt.Fprintf(stdout, "\nThe same as a page: %s\n\nAsk its ledger yourself:\n", page)
	for _, line := range []string{
		"report --ledger %[1]s --month %[2]s --view platform --group-by workload",
		"report --ledger %[1]s --month %[2]s --group-by day --format csv",
		"explain --ledger %[1]s --month %[2]s --namespace sandbox",
		"verify --ledger %[1]s",
	} {
		// As it was called: it need not be on the PATH.
		fmt.Fprintf(stdout, "  "+os.Args[0]+" "+line+"\n", dir, from.Format("2006-01"))
	}
	return nil
}

// greet says in plain words what runs and where to look.
func greet(w io.Writer, node *sim.Node, cfg app.Config, addr net.Addr, span time.Duration) {
	fmt.Fprintf(w, "This is a pretend GPU node, %s: no GPU is touched.\n\n", node.Scenario().Node)
	for _, l := range node.Scenario().Summary() {
		fmt.Fprintf(w, "  %s\n", l)
	}
	fmt.Fprintf(w, "\nIts clock runs %gx; a simulated kubelet serves the real PodResources API; the exporter samples every %s.\n", cfg.Speed, cfg.Interval)
	fmt.Fprintf(w, "\nOpen:\n")
	for _, p := range []struct{ path, what string }{
		{"/", "what this is"},
		{"/metrics", "what Prometheus scrapes; look for gpumeter_allocation_share and gpumeter_device_health"},
		{"/api/v1/health", "which device is broken, why, and whose job it hurts"},
		{"/readyz", "whether it has measured yet, and how old its sources are"},
		{"/livez", "whether its loop turns"},
	} {
		fmt.Fprintf(w, "  http://%s%-15s %s\n", addr, p.path, p.what)
	}
	switch {
	case cfg.Health.SocketSet && cfg.Health.Socket != "":
		fmt.Fprintf(w, "\nAsk it: gpumeter health --socket %s\n", cfg.Health.Socket)
	case node.Scenario().Name != "bad-health":
		fmt.Fprintf(w, "\nTo see GPUs break and recover: --scenario bad-health, with --health-socket /tmp/health.sock also for gpumeter health.\n")
	default:
		fmt.Fprintf(w, "\nWith --health-socket /tmp/health.sock it can be asked: gpumeter health --socket /tmp/health.sock\n")
	}
	if span > 0 {
		fmt.Fprintf(w, "\nIt stops by itself after %v, says who held how much, and makes the bill of a month.\n", span)
	} else {
		fmt.Fprintf(w, "\nStop it with Ctrl-C; then it says who held how much, and makes the bill of a month.\n")
	}
}
