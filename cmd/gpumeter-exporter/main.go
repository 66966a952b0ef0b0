// SPDX-License-Identifier: Apache-2.0

// Command gpumeter-exporter samples a node's GPUs, says who holds how much of
// them, and serves it all to Prometheus.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/gpumeter/gpumeter/cmd/gpumeter-exporter/app"
)

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	// A second signal ends the process at once, whatever hangs.
	context.AfterFunc(ctx, stop)
	serve := func(ctx context.Context, cfg app.Config) error { return app.Serve(ctx, cfg, os.Stderr) }
	if err := app.Command(os.Stdout, os.Stderr, serve).Run(ctx, os.Args); err != nil {
		fmt.Fprintln(os.Stderr, "gpumeter-exporter:", err)
		return 1
	}
	return 0
}
