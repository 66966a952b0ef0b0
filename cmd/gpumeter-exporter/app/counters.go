// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"github.com/gpumeter/gpumeter/etc"
	"github.com/gpumeter/gpumeter/pkg/exporter"
)

// counterFile is the CSV of counters with what was last read of it.
type counterFile struct {
	// path is empty where the built-in counters are used.
	path     string
	data     []byte
	current  *exporter.Counters
	problems []exporter.Problem
}

// Counters are the configuration's counters as the exporter would start with them, where they were
// read, and what is wrong with them.
func (c Config) Counters() (from string, counters *exporter.Counters, problems []exporter.Problem, err error) {
	f, err := openCounters(c, slog.New(slog.DiscardHandler))
	if err != nil {
		return c.Collectors, nil, nil, err
	}
	from = f.path
	if from == "" {
		from = builtIn
	}
	return from, f.current, f.problems, nil
}

// builtIn is how the counters are named that come with the program.
const builtIn = "default-counters.csv (built in)"

// openCounters reads the counters for the first time. A file that the operator
// named must be readable and have a usable row; the default one may be missing,
// and then the built-in counters are used.
func openCounters(cfg Config, log *slog.Logger) (*counterFile, error) {
	if cfg.Collectors == "" {
		return nil, errors.New("--collectors is empty: give a readable CSV file, or leave the flag out for the default")
	}
	f := &counterFile{path: cfg.Collectors}
	data, err := readPlain(f.path)
	name := f.path
	if errors.Is(err, fs.ErrNotExist) && !cfg.CollectorsSet {
		log.Info("using the built-in default counters", "because", f.path+" does not exist")
		f.path, name = "", builtIn
		data, err = etc.ReadFile("default-counters.csv")
	}
	if err != nil {
		return nil, fmt.Errorf("read counters: %w; give a readable CSV file with --collectors", err)
	}
	f.data = data
	f.current, f.problems = exporter.ParseCounters(name, data)
	if len(f.current.Rows()) == 0 {
		return nil, fmt.Errorf("read counters: %s has no usable row: %s", name, first(f.problems))
	}
	report(log, f.problems)
	return f, nil
}

// readCounters reads no more of a file than its parser takes, and nothing that is no plain
// file: a pipe would block for as long as nobody writes to it.
func readPlain(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, exporter.MaxCounterFile+1))
}

func first(problems []exporter.Problem) string {
	if len(problems) == 0 {
		return "it is empty"
	}
	return problems[0].String()
}

// report logs what costs a row as an error and the rest as a warning, as
// gpumeter_config_problems counts them.
func report(log *slog.Logger, problems []exporter.Problem) {
	for _, p := range problems {
		level := slog.LevelWarn
		if p.Severity == exporter.SeverityError {
			level = slog.LevelError
		}
		log.Log(context.Background(), level, "counters", "problem", p.String())
	}
}

// watchCounters reloads on SIGHUP and when the file's content changes. It looks at
// the content rather than at the directory's events, because a mounted ConfigMap changes by
// a rename of a link above the file, or, mounted by subPath, not at all.
func (a *App) watchCounters(ctx context.Context, hup <-chan os.Signal) error {
	tick := time.NewTicker(5 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-hup:
			a.reload(true)
		case <-tick.C:
			a.reload(false)
		}
	}
}

// reload takes over a changed file, or keeps the last good counters and says so.
func (a *App) reload(asked bool) {
	f := a.counters
	if f.path == "" {
		if asked {
			a.log.Info("nothing to reload: the counters are built in")
		}
		return
	}
	data, err := readPlain(f.path)
	if err == nil && bytes.Equal(data, f.data) && !asked {
		return
	}
	now := time.Now()
	if err != nil {
		if f.data != nil || asked {
			a.log.Error("counters cannot be read; the last good ones stay", "error", err)
		}
		f.data = nil
		a.exporter.ReloadFailed(err, now)
		return
	}
	f.data = data
	counters, problems := exporter.ParseCounters(f.path, data)
	if len(counters.Rows()) == 0 {
		err := fmt.Errorf("%s has no usable row: %s", f.path, first(problems))
		a.log.Error("the last good counters stay", "error", err)
		a.exporter.ReloadFailed(err, now)
		return
	}
	report(a.log, problems)
	f.current, f.problems = counters, problems
	a.meter.Want(counters.Fields())
	a.exporter.Reload(counters, problems, now)
	a.log.Info("counters reloaded", "file", f.path, "rows", len(counters.Rows()), "problems", len(problems))
}
