// SPDX-License-Identifier: Apache-2.0

// Command gpumeter is the tool for people: it shows what the exporter does.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/urfave/cli/v3"

	"github.com/gpumeter/gpumeter/cmd/gpumeter-exporter/app"
)

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	// A second signal ends the process at once, whatever hangs.
	context.AfterFunc(ctx, stop)
	if err := command(os.Stdout, os.Stderr).Run(ctx, os.Args); err != nil {
		fmt.Fprintln(os.Stderr, "gpumeter:", err)
		return 1
	}
	return 0
}

func command(stdout, stderr io.Writer) *cli.Command {
	return &cli.Command{
		Name:                  "gpumeter",
		Usage:                 "the electricity meter of a GPU node",
		Version:               app.Version(),
		EnableShellCompletion: true,
		Writer:                stdout,
		ErrWriter:             stderr,
		OnUsageError:          app.UsageError,
		Commands:              []*cli.Command{demoCommand(stdout, stderr), scenariosCommand(stdout)},
	}
}
