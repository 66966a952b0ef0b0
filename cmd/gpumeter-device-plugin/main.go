// SPDX-License-Identifier: Apache-2.0

// Command gpumeter-device-plugin hands out a node's GPUs, MIG devices and their replicas to the
// kubelet, and takes back what is broken.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/gpumeter/gpumeter/cmd/gpumeter-device-plugin/app"
)

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	// A second signal ends the process at once, whatever hangs.
	context.AfterFunc(ctx, stop)
	if err := app.CommandOf(os.Args[0], os.LookupEnv, os.Stdout, os.Stderr).Run(ctx, os.Args); err != nil {
		fmt.Fprintln(os.Stderr, "gpumeter-device-plugin:", err)
		return 1
	}
	return 0
}
