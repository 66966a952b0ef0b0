// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/gpumeter/gpumeter/pkg/deviceplugin"
	"github.com/gpumeter/gpumeter/pkg/healthstream"
)

// checkPatience bounds looking at the GPUs for --check.
const checkPatience = 10 * time.Second

// errCheck is the answer to --check about a config with problems.
var errCheck = errors.New("the check found problems")

// check says what the config comes to on this node, on out. The error says that something is bad.
func check(ctx context.Context, c config, out io.Writer) error {
	reads, err := checkedConfigs(c)
	if err != nil {
		return err
	}
	s, from := checkedStock(ctx, c)
	bad := false
	for _, r := range reads {
		bad = checkOne(c, r, s, from, out) || bad
	}
	if bad {
		return errCheck
	}
	return nil
}

// checkedConfigs are the config, or all of a folder: the node's label may choose any of them.
func checkedConfigs(c config) ([]configRead, error) {
	source := &configSource{cfg: c}
	if c.configDir == "" {
		state, _ := source.labels()
		return []configRead{source.read(state)}, nil
	}
	names, err := source.names()
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("--config-dir %s has no files", c.configDir)
	}
	var out []configRead
	for _, name := range names {
		path := filepath.Join(c.configDir, name)
		data, err := readBounded(path)
		out = append(out, configRead{name: path, from: fromLabel, data: data, err: err})
	}
	return out, nil
}

// checkedStock is what the node has, and where from or why it is not known.
func checkedStock(ctx context.Context, c config) (*stock, string) {
	ctx, cancel := context.WithTimeout(ctx, checkPatience)
	defer cancel()
	quiet := slog.New(slog.DiscardHandler)
	var reasons []string
	t, err := newTelemetry(c, c.driverRootHere, quiet)
	if err != nil {
		return nil, err.Error()
	}
	if t != nil {
		s, err := readStock(ctx, t)
		if err == nil {
			return s, t.name
		}
		reasons = append(reasons, err.Error())
	}
	if c.source == sourceStream || c.source == sourceAuto && exists(c.healthSocket) {
		list, err := healthstream.NewClient(healthstream.ClientConfig{Socket: c.healthSocket}).List(ctx)
		if err == nil {
			s := stockOfList(list)
			return &s, sourceStream
		}
		reasons = append(reasons, err.Error())
	}
	return nil, strings.Join(reasons, "; ")
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return path != "" && err == nil
}

func readStock(ctx context.Context, t *telemetry) (*stock, error) {
	source, err := t.open()
	if err != nil {
		return nil, err
	}
	if closer, ok := source.(io.Closer); ok {
		defer func() { _ = closer.Close() }()
	}
	reading, err := source.Read(ctx, readingFields())
	if err != nil {
		return nil, err
	}
	s := stockOfReading(reading)
	return &s, nil
}

// checkOne checks one config, and reports whether it is bad. A nil stock is a node whose GPUs are
// not known; from says why.
func checkOne(c config, r configRead, s *stock, from string, out io.Writer) (bad bool) {
	name := r.name
	if name == "" {
		name = "none"
	}
	fmt.Fprintf(out, "config: %s\n", name)
	err := r.err
	var e *effective
	if err == nil {
		e, err = newEffective(c.flags, c.env, r.name, r.data)
	}
	if err != nil {
		fmt.Fprintln(out, "\nproblems:")
		for line := range strings.SplitSeq(err.Error(), "\n") {
			fmt.Fprintln(out, "  "+line)
		}
		return true
	}
	e.settings.NoTopology = c.noTopology
	fmt.Fprintf(out, "hash: %s\n\n", e.hash)
	printSettings(out, e)
	if len(e.warnings) > 0 {
		fmt.Fprintln(out, "\nwarnings:")
		for _, w := range e.warnings {
			fmt.Fprintln(out, "  "+w)
		}
	}
	if s == nil {
		fmt.Fprintf(out, "\nGPUs: not known here, so the resources are not either: %s\n  --source=sim --sim-scenario=NAME checks against a pretend node\n", from)
		return false
	}
	return printPlan(c, e, s, from, out)
}

func printSettings(out io.Writer, e *effective) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "SETTING\tVALUE\tFROM")
	for _, v := range e.values {
		fmt.Fprintf(w, "%s\t%s\t%s\n", v.name(), v, v.origin)
	}
	for _, v := range e.shared {
		fmt.Fprintf(w, "%s\t%s\t%s\n", v.name, v.value, v.origin)
	}
	_ = w.Flush()
}

// sharedText is a row of the sharing in a few words.
func sharedText(r deviceplugin.SharedResource) string {
	text := fmt.Sprintf("%d replicas of ", r.Replicas)
	switch {
	case r.All:
		text += "all devices"
	case len(r.Devices) > 0:
		text += strings.Join(r.Devices, ", ")
	default:
		text += fmt.Sprintf("%d devices", r.Count)
	}
	if r.Rename != "" {
		text += " as " + r.Rename
	}
	return text
}

// printPlan says what is handed out, and reports whether something cannot be as it was asked for.
func printPlan(c config, e *effective, s *stock, from string, out io.Writer) (bad bool) {
	fmt.Fprintf(out, "\nGPUs: %s (from %s)\n\n", s, from)
	inventory, _ := surveyed(c, e, s.devices, s.links)
	inventory.Physical = from == sourceNVML
	plan, problems := deviceplugin.NewPlan(inventory, e.settings)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "RESOURCE\tSHARING\tREPLICAS\tIDS\tLIST BYTES\tFIRST\tLAST")
	for _, r := range plan.Resources {
		first, last := "-", "-"
		if len(r.Seats) > 0 {
			first, last = r.Seats[0].ID, r.Seats[len(r.Seats)-1].ID
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%s\t%s\n", r.Name, r.Sharing, r.Replicas, len(r.Seats), deviceplugin.ListBytes(r), first, last)
	}
	_ = w.Flush()
	if len(problems) == 0 {
		return false
	}
	usual := func(err error) bool {
		problem, ok := errors.AsType[*deviceplugin.Problem](err)
		return ok && problem.Usual
	}
	warned, failed := false, false
	for _, p := range problems {
		if usual(p) {
			if !warned {
				fmt.Fprintln(out, "\nwarnings about this node:")
			}
			warned = true
			fmt.Fprintln(out, "  "+p.Error())
		}
	}
	for _, p := range problems {
		if !usual(p) {
			if !failed {
				fmt.Fprintln(out, "\nproblems:")
			}
			failed = true
			fmt.Fprintln(out, "  "+p.Error())
		}
	}
	return failed
}
