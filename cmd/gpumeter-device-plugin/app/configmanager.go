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
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/gpumeter/gpumeter/pkg/cluster"
)

// configManagerName is how the program is called where NVIDIA's GPU operator runs its config-manager from the device
// plugin's image.
const configManagerName = "config-manager"

// managerConfig is what NVIDIA's config-manager is told, by the same flags and variables.
type managerConfig struct {
	// source is the part that chooses a file.
	source  config
	oneshot bool
	// destination is the link to the file that is chosen.
	destination string
	sendSignal  bool
	signal      int
	process     string
	// proc is where processes are looked for.
	proc string
	// pause is until what could not be done is tried again.
	pause time.Duration
}

// CommandOf is the program by the name that it was started under: NVIDIA's config-manager, or else the device plugin.
func CommandOf(name string, env func(string) (string, bool), stdout, stderr io.Writer) *cli.Command {
	if filepath.Base(name) == configManagerName {
		return managerCommand(env, stdout, stderr, func(ctx context.Context, m managerConfig) error {
			return m.run(ctx, m.source.logger(stderr))
		})
	}
	return Command(env, stdout, stderr)
}

func managerCommand(env lookup, stdout, stderr io.Writer, run func(context.Context, managerConfig) error) *cli.Command {
	m := managerConfig{source: defaults(), proc: "/proc", pause: configPause}
	c := &m.source
	c.env, c.fallbacks = env, nil
	signal := strconv.Itoa(int(syscall.SIGHUP))
	return &cli.Command{
		Name: configManagerName, Version: VersionLine(), HideHelpCommand: true, Writer: stdout, ErrWriter: stderr,
		Usage: "links the config file that a node's label names, as NVIDIA's config-manager does; the device plugin does so itself with --config-dir",
		Flags: []cli.Flag{
			c.flag(&m.oneshot, "link the file once, and end", "oneshot", "ONESHOT"),
			c.str(&c.kubeconfig, "kubeconfig `FILE` instead of the pod's service account", "kubeconfig", "KUBECONFIG"),
			c.str(&c.nodeName, "the node's `NAME`", "node-name", "NODE_NAME"),
			c.str(&c.nodeLabel, "`LABEL` of the node that has a file's name", "node-label", "NODE_LABEL"),
			c.str(&c.configDir, "`FOLDER` with config files", "config-file-srcdir", "CONFIG_FILE_SRCDIR"),
			c.str(&m.destination, "the link's `PATH`", "config-file-dst", "CONFIG_FILE_DST"),
			c.str(&c.defaultConfig, "`NAME` of the file for a node without the label", "default-config", "DEFAULT_CONFIG"),
			c.words(&c.fallbacks, "for a node with neither: named, single, empty, in the order to try", "fallback-strategies", "FALLBACK_STRATEGIES"),
			c.flag(&m.sendSignal, "send --signal to --process-to-signal when the link changed", "send-signal", "SEND_SIGNAL"),
			c.str(&signal, "the signal's `NUMBER`", "signal", "SIGNAL"),
			c.str(&m.process, "`NAME` of the process", "process-to-signal", "PROCESS_TO_SIGNAL"),
		},
		Action: func(ctx context.Context, _ *cli.Command) error {
			c.fallbacks = trimmed(c.fallbacks)
			var err error
			if m.signal, err = strconv.Atoi(signal); err != nil {
				return fmt.Errorf("--signal %q: want a number, such as 1", signal)
			}
			if err := m.validate(); err != nil {
				return err
			}
			return run(ctx, m)
		},
	}
}

func (m managerConfig) validate() error {
	var problems []error
	for _, need := range []struct{ flag, value string }{
		{"node-name", m.source.nodeName}, {"node-label", m.source.nodeLabel}, {"config-file-srcdir", m.source.configDir}, {"config-file-dst", m.destination},
	} {
		if need.value == "" {
			problems = append(problems, fmt.Errorf("--%s is empty, and has to be given", need.flag))
		}
	}
	return errors.Join(problems...)
}

// run links the file that the node's label names, until ctx ends, or once. What cannot be done leaves the link as it is and
// is tried again: the device plugin keeps a good config, and so does this.
func (m managerConfig) run(ctx context.Context, log *slog.Logger) error {
	client, err := cluster.Connect(cluster.Config{Kubeconfig: m.source.kubeconfig, UserAgent: "gpumeter-config-manager/" + Version()})
	if err != nil {
		return err
	}
	watch := client.WatchNode(m.source.nodeName, log)
	watching, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		// It ends with the context, through whatever errors.
		_ = watch.Run(watching)
	}()
	defer func() { stop(); <-ended }()
	said := ""
	for {
		state, changed := watch.Watch()
		var again <-chan time.Time
		if state.Synced {
			err := m.follow(state, log)
			if m.oneshot {
				return err
			}
			if err != nil {
				again = time.After(m.pause)
				if err.Error() != said {
					log.Error("the config stays as it is", "error", err)
				}
				said = err.Error()
			} else {
				said = ""
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-again:
		}
	}
}

// follow has the link point to the file for these labels, and tells the process if that is a change.
func (m managerConfig) follow(state cluster.NodeState, log *slog.Logger) error {
	source := &configSource{cfg: m.source}
	file, from, err := source.choose(state)
	if err != nil {
		return err
	}
	if file == "" {
		file = os.DevNull
	}
	changed, err := relink(m.destination, file)
	if err != nil || !changed {
		return err
	}
	log.Info("the config is linked", "config", file, "from", from, "link", m.destination)
	if !m.sendSignal {
		return nil
	}
	if err := m.tell(); err != nil {
		// The device plugin looks at the file by itself.
		log.Warn("nobody was signalled", "error", err)
	}
	return nil
}

// relink has a link point to a file, at once, and says whether it did not before.
func relink(link, file string) (changed bool, err error) {
	if now, err := os.Readlink(link); err == nil && now == file {
		return false, nil
	}
	fresh := filepath.Join(filepath.Dir(link), ".gpumeter-config")
	if err := os.Remove(fresh); err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, fmt.Errorf("link to the config: %w", err)
	}
	if err := os.Symlink(file, fresh); err != nil {
		return false, fmt.Errorf("link to the config: %w", err)
	}
	if err := os.Rename(fresh, link); err != nil {
		return false, fmt.Errorf("link to the config: %w", err)
	}
	return true, nil
}

// tell signals the processes of the name.
func (m managerConfig) tell() error {
	entries, err := os.ReadDir(m.proc)
	if err != nil {
		return fmt.Errorf("find %s: %w", m.process, err)
	}
	told := 0
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		line, err := os.ReadFile(filepath.Join(m.proc, e.Name(), "cmdline"))
		if err != nil {
			continue // it has ended
		}
		program, _, _ := strings.Cut(string(line), "\x00")
		if program == "" || filepath.Base(program) != filepath.Base(m.process) {
			continue
		}
		if err := syscall.Kill(pid, syscall.Signal(m.signal)); err != nil {
			return fmt.Errorf("signal %s, process %d: %w", m.process, pid, err)
		}
		told++
	}
	if told == 0 {
		return fmt.Errorf("there is no process %s (do the containers share their processes? see shareProcessNamespace)", m.process)
	}
	return nil
}
