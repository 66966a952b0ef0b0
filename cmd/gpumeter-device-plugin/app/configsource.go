// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/pkg/cluster"
)

const (
	// configPause is the time between two looks at the config. A ConfigMap's files are changed by
	// turning a link, which a look at the content notices for sure and a watch of a file does not.
	configPause = time.Second
	// labelPatience is how long the first config waits for the node's label.
	labelPatience = 10 * time.Second
)

// Where a config comes from, a label's value.
const (
	fromNothing  = "none"
	fromFile     = "file"
	fromLabel    = "label"
	fromDefault  = "default"
	fromFallback = "fallback"
	// fromMemory: the API server does not answer, and it is the one that held before a restart.
	fromMemory = "remembered"
)

// configRead is one look at the config.
type configRead struct {
	// name is the file's path, empty for none.
	name string
	// from says why it is this one.
	from string
	data []byte
	// nothing says that the file is the null device.
	nothing bool
	// synced says that the node's labels are known.
	synced bool
	// err is why there is nothing to be read.
	err error
	// asked says that somebody asked for it, and it is to be taken also if it is as before.
	asked bool
}

// blank says that there is a file, and nothing in it. NVIDIA's config-manager says by the null device
// that there is to be no config, which is not the same.
func (r configRead) blank() bool {
	if r.name == "" || r.err != nil || r.nothing {
		return false
	}
	for line := range bytes.Lines(r.data) {
		line = bytes.TrimSpace(line)
		if len(line) > 0 && line[0] != '#' && !bytes.Equal(line, []byte("---")) && !bytes.Equal(line, []byte("...")) {
			return false
		}
	}
	return true
}

func (r configRead) same(other configRead) bool {
	return r.name == other.name && r.from == other.from && bytes.Equal(r.data, other.data) &&
		(r.err == nil) == (other.err == nil) && (r.err == nil || r.err.Error() == other.err.Error())
}

// configSource finds the config that holds now.
type configSource struct {
	cfg config
	log *slog.Logger
	// node follows the node's labels; nil without a --config-dir.
	node func() (cluster.NodeState, <-chan struct{})
	// remembered is the config that held before a restart, for as long as the node's label is not known;
	// nil for none.
	remembered *configRead
	// asked is told of whoever wants the config to be read anew.
	asked <-chan os.Signal
}

// read looks at the config. state is the node's, of which no label is known before it is synced.
func (s *configSource) read(state cluster.NodeState) configRead {
	if s.remembered != nil && !state.Synced {
		return *s.remembered
	}
	name, from, err := s.choose(state)
	if err != nil || name == "" {
		return configRead{from: from, err: err, synced: state.Synced}
	}
	data, err := readBounded(name)
	if err != nil {
		err = fmt.Errorf("config of the device plugin: %w", err)
	}
	return configRead{name: name, from: from, data: data, nothing: isNull(name), err: err, synced: state.Synced}
}

// isNull says whether a file is the null device.
func isNull(name string) bool {
	info, err := os.Stat(name)
	if err != nil {
		return false
	}
	null, err := os.Stat(os.DevNull)
	return err == nil && os.SameFile(info, null)
}

// choose names the file, empty for none.
func (s *configSource) choose(state cluster.NodeState) (name, from string, err error) {
	if s.cfg.configDir == "" {
		if s.cfg.configFile == "" {
			return "", fromNothing, nil
		}
		return s.cfg.configFile, fromFile, nil
	}
	if label := state.Labels[s.cfg.nodeLabel]; label != "" {
		name, err := s.inDir(label)
		if err != nil {
			err = fmt.Errorf("label %s of node %s: %w", s.cfg.nodeLabel, s.cfg.nodeName, err)
		}
		return name, fromLabel, err
	}
	if s.cfg.defaultConfig != "" {
		name, err := s.inDir(s.cfg.defaultConfig)
		if err != nil {
			err = fmt.Errorf("--default-config: %w", err)
		}
		return name, fromDefault, err
	}
	return s.fallBack()
}

// inDir is the path of a file of the folder.
func (s *configSource) inDir(word string) (string, error) {
	names, err := s.names()
	if err != nil {
		return "", err
	}
	for _, name := range names {
		if name == word {
			return filepath.Join(s.cfg.configDir, name), nil
		}
	}
	if near, ok := nearest(word, names); ok {
		return "", fmt.Errorf("no config %q in %s; did you mean %s?", word, s.cfg.configDir, near)
	}
	return "", fmt.Errorf("no config %q in %s, which has: %s", word, s.cfg.configDir, strings.Join(names, ", "))
}

// names are the files of the folder. What begins with a dot is how a ConfigMap is turned over.
func (s *configSource) names() ([]string, error) {
	entries, err := os.ReadDir(s.cfg.configDir)
	if err != nil {
		return nil, fmt.Errorf("--config-dir: %w", err)
	}
	var out []string
	for _, e := range entries {
		info, err := os.Stat(filepath.Join(s.cfg.configDir, e.Name()))
		if err == nil && info.Mode().IsRegular() && !strings.HasPrefix(e.Name(), ".") {
			out = append(out, e.Name())
		}
	}
	return out, nil
}

// fallBack is what a node without a label gets where there is no default.
func (s *configSource) fallBack() (name, from string, err error) {
	names, err := s.names()
	if err != nil {
		return "", fromFallback, err
	}
	for _, strategy := range s.cfg.fallbacks {
		switch strategy {
		case "named":
			if name, err := s.inDir("default"); err == nil {
				return name, fromFallback, nil
			}
		case "single":
			if len(names) == 1 {
				return filepath.Join(s.cfg.configDir, names[0]), fromFallback, nil
			}
		case "empty":
			return "", fromFallback, nil
		}
	}
	return "", fromFallback, fmt.Errorf("the node has no label %s, and no --fallback-strategies gives a config: %s has %s (label the node, or give --default-config)",
		s.cfg.nodeLabel, s.cfg.configDir, strings.Join(names, ", "))
}

// readBounded reads a file that a ConfigMap could hold.
func readBounded(name string) ([]byte, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if isNull(name) {
		return nil, nil // what NVIDIA's config-manager links for no config
	}
	if !info.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "read", Path: name, Err: errors.New("is no file")}
	}
	if info.Size() > fileLimit {
		return nil, fmt.Errorf("%s has %d bytes, more than the %d that a ConfigMap can hold", name, info.Size(), fileLimit)
	}
	return os.ReadFile(name)
}

// run hands the config to each consumer: the first time when the node's label is known or patience ran
// out, and then whenever it changes or somebody asks. A file that changes is taken when two looks in a row
// have shown the same: the first may be of one that is half written. It returns nil when ctx ends.
func (s *configSource) run(ctx context.Context, hand func(configRead)) error {
	state, changed := s.await(ctx)
	ticker := time.NewTicker(configPause)
	defer ticker.Stop()
	held := s.read(state)
	hand(held)
	seen, asked := held, false
	for {
		look := false
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			look = true
		case <-changed:
		case <-s.asked:
			asked = true
		}
		state, changed = s.labels()
		next := s.read(state)
		settled := look && next.same(seen) || next.name != held.name || next.from != held.from
		if look {
			seen = next
		}
		if same := next.same(held); same && !asked || !same && !settled {
			continue
		}
		next.asked, asked = asked, false
		held = next
		hand(next)
	}
}

// labels are the node's; without a node there is nothing to change.
func (s *configSource) labels() (cluster.NodeState, <-chan struct{}) {
	if s.node == nil {
		return cluster.NodeState{Synced: true}, nil
	}
	return s.node()
}

// await waits for the node's labels, so that a default is never applied to be replaced at once.
func (s *configSource) await(ctx context.Context) (cluster.NodeState, <-chan struct{}) {
	state, changed := s.labels()
	patience := time.NewTimer(labelPatience)
	defer patience.Stop()
	for !state.Synced && ctx.Err() == nil {
		select {
		case <-changed:
			state, changed = s.labels()
		case <-patience.C:
			what := "the config for a node without one"
			if s.remembered != nil {
				what = "the config of before the restart"
			}
			s.log.Warn("the node's label is not known yet; until it is, this holds", "config", what, "name", s.read(state).name,
				"label", s.cfg.nodeLabel, "node", s.cfg.nodeName, "waited", labelPatience, "error", state.Err)
			return state, changed
		case <-ctx.Done():
		}
	}
	return state, changed
}
