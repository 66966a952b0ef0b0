// SPDX-License-Identifier: Apache-2.0

// Command gpumeter is the tool for people: it shows what the exporter does.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/gpumeter/gpumeter/cmd/gpumeter-exporter/app"
)

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	// A second signal ends the process at once, whatever hangs.
	context.AfterFunc(ctx, stop)
	return exitCode(command(os.Stdout, os.Stderr, time.Now).Run(ctx, os.Args), os.Stderr)
}

// exitCode is the process's, after what is left to be said was said.
func exitCode(err error, stderr io.Writer) int {
	var exit *exitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit) && exit.err == nil:
		return exit.code
	}
	fmt.Fprintln(stderr, "gpumeter:", err)
	if exit != nil {
		return exit.code
	}
	return 1
}

// command is gpumeter at the time that now tells.
func command(stdout, stderr io.Writer, now func() time.Time) *cli.Command {
	return &cli.Command{
		Name:                            "gpumeter",
		Usage:                           "the electricity meter of a GPU node",
		Version:                         app.VersionLine(),
		EnableShellCompletion:           true,
		ConfigureShellCompletionCommand: app.ShowCompletion,
		Writer:                          stdout,
		ErrWriter:                       stderr,
		OnUsageError:                    app.UsageError,
		Commands: []*cli.Command{
			demoCommand(stdout, stderr), doctorCommand(stdout, stderr), explainCommand(stdout, stderr, now), healthCommand(stdout),
			pricesCommand(stdout, stderr, now), reportCommand(stdout, stderr, now), scenariosCommand(stdout), verifyCommand(stdout, stderr, now),
		},
	}
}
