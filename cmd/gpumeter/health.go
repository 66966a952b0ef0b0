// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/gpumeter/gpumeter/cmd/gpumeter-exporter/app"
	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/healthstream"
)

// The exit codes of gpumeter health beside 0, every device is healthy, and 1, an error.
const (
	exitUnhealthy = 2
	// exitUnknown: nothing is unhealthy, and of something nobody can tell.
	exitUnknown = 3
)

// healthDesk asks a node's exporter for its verdicts.
type healthDesk struct {
	socket string
	// timeout is how long an answer may take.
	timeout time.Duration
	asJSON  bool
	stdout  io.Writer
	now     func() time.Time
}

func healthCommand(stdout io.Writer) *cli.Command {
	d := &healthDesk{stdout: stdout, now: time.Now}
	var device, reason, by string
	return &cli.Command{
		Name:  "health",
		Usage: "say which GPUs of this node are healthy, and why the others are not",
		Description: "It asks the exporter on this node. It ends with 0 where every device is healthy, 2 where one is unhealthy, " +
			"3 where none is and one is unknown, and 1 where nobody answers.",
		OnUsageError: app.UsageError,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "socket", Value: healthstream.DefaultSocket, Sources: cli.EnvVars("GPUMETER_HEALTH_SOCKET"),
				Usage: "`FILE` where the exporter serves the health stream (its --health-socket)", Destination: &d.socket},
			&cli.DurationFlag{Name: "timeout", Value: 10 * time.Second, Usage: "`TIME` that an answer may take", Destination: &d.timeout},
			&cli.BoolFlag{Name: "json", Usage: "JSON instead of a table (docs/healthstream.md has its keys)", Destination: &d.asJSON},
		},
		Action: plain(d.show),
		Commands: []*cli.Command{
			{
				Name:         "watch",
				Usage:        "say what changes, as it does",
				OnUsageError: app.UsageError,
				Action:       plain(d.watch),
			},
			{
				Name:         "clear",
				Usage:        "end the conditions of a device that was looked after; what the GPU itself still says stands",
				OnUsageError: app.UsageError,
				Flags: []cli.Flag{
					&cli.StringFlag{Name: "device", Usage: "`UUID` of a GPU, or of a MIG device for its own conditions only", Destination: &device},
					&cli.StringFlag{Name: "reason", Usage: "why it is good, in `WORDS` for the record", Destination: &reason},
					&cli.StringFlag{Name: "by", Value: operatorName(os.Getenv), Usage: "`NAME` of who says so; the exporter notes the user and process by itself", Destination: &by},
				},
				Action: plain(func(ctx context.Context) error { return d.clear(ctx, gpu.UUID(device), reason, by) }),
			},
		},
	}
}

// plain is an action without arguments.
func plain(action func(context.Context) error) cli.ActionFunc {
	return func(ctx context.Context, cmd *cli.Command) error {
		if cmd.NArg() > 0 {
			return fmt.Errorf("%q is no flag; see %s --help", cmd.Args().First(), cmd.FullName())
		}
		return action(ctx)
	}
}

// operatorName is the user who logged in, as far as the environment knows.
func operatorName(env func(string) string) string {
	for _, name := range []string{"SUDO_USER", "USER", "LOGNAME"} {
		if v := env(name); v != "" {
			return v
		}
	}
	return ""
}

func (d *healthDesk) client() *healthstream.Client {
	return healthstream.NewClient(healthstream.ClientConfig{Socket: d.socket, Now: d.now})
}

// show writes the verdicts of now; the error has the exit code.
func (d *healthDesk) show(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	list, err := d.client().List(ctx)
	if err != nil {
		return advised(err)
	}
	v := viewOf(list)
	if d.asJSON {
		err = v.writeJSON(d.stdout, "  ")
	} else {
		err = v.writeTable(d.stdout)
	}
	if err != nil {
		return fmt.Errorf("write the verdicts: %w", err)
	}
	return exitFor(v.exitCode())
}

// clear tells the exporter an operator's word and writes what came of it.
func (d *healthDesk) clear(ctx context.Context, device gpu.UUID, reason, by string) error {
	switch {
	case device == "":
		return errors.New("--device is missing: give the UUID of a GPU or MIG device; gpumeter health lists them")
	case strings.TrimSpace(reason) == "":
		return errors.New("--reason is missing: say for the record why the device is good")
	}
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	client := d.client()
	done, err := client.Clear(ctx, device, reason, by)
	if err != nil {
		return advised(err)
	}
	after, err := listAfter(ctx, client, done)
	if err != nil {
		return fmt.Errorf("the word was taken, and what came of it cannot be seen: %w", advised(err))
	}
	v := viewOf(after).about(device)
	// Of a GPU that is gone nothing is left once its conditions have ended.
	forgotten := len(v.Devices) == 0
	switch {
	case d.asJSON:
		err = v.writeJSON(d.stdout, "  ")
	case forgotten:
		err = writeClearing(d.stdout, done)
		if err == nil {
			_, err = fmt.Fprintln(d.stdout, "it is not listed on this node any more, and nothing is known against it")
		}
	default:
		err = errors.Join(writeClearing(d.stdout, done), v.writeTable(d.stdout))
	}
	if err != nil {
		return fmt.Errorf("write what was cleared: %w", err)
	}
	if forgotten {
		return nil
	}
	return exitFor(v.exitCode())
}

// advised is the error with what to do about it.
func advised(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w; run this where gpumeter-exporter runs (kubectl exec into its pod), or name its --health-socket with --socket", err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w; run this as root, or as a member of the socket's group", err)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w; the exporter that made this socket has ended: start it again", err)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w; the exporter does not measure yet, or hangs: see its log and /readyz", err)
	default:
		return err
	}
}

func exitFor(code int) error {
	if code == 0 {
		return nil
	}
	return &exitError{code: code}
}
