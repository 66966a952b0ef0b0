// SPDX-License-Identifier: Apache-2.0

package app

import (
	"fmt"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/gpumeter/gpumeter/pkg/cluster"
	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/meter"
)

const (
	// minCommit and maxCommit bound --ledger-commit: more often wears the disk, more seldom loses too much.
	minCommit, maxCommit = time.Second, 5 * time.Minute
	// minRetention and maxRetention bound --ledger-retention.
	minRetention, maxRetention = 24 * time.Hour, 3650 * 24 * time.Hour
	// minLedgerSize is a few files of the log.
	minLedgerSize = 64 << 20
)

// LedgerConfig is what an operator can say about the book of charges. Its folder is HealthConfig's.
type LedgerConfig struct {
	// Commit is how long a charge may wait for the disk.
	Commit time.Duration
	// Retention and MaxSize bound the log: a time such as "400d", a size such as "1GiB".
	Retention, MaxSize string
	// PodSeconds shows what each pod came to.
	PodSeconds bool
	// Cluster names the cluster in the ledger; empty for none.
	Cluster string
	// NodeLabels are patterns of those labels of the node that prices and reports may go by.
	NodeLabels []string
}

// defaultLedger is the LedgerConfig without any flag.
func defaultLedger() LedgerConfig {
	return LedgerConfig{Commit: 10 * time.Second, Retention: "400d", MaxSize: "1GiB", PodSeconds: true, NodeLabels: defaultNodeLabels()}
}

// defaultNodeLabels say what a node costs: its pool, its type, where it is, whether it is a spot one, its GPU.
func defaultNodeLabels() []string {
	return []string{
		"node.kubernetes.io/instance-type", "topology.kubernetes.io/region", "topology.kubernetes.io/zone",
		"karpenter.sh/nodepool", "karpenter.sh/capacity-type", "eks.amazonaws.com/nodegroup", "eks.amazonaws.com/capacityType",
		"cloud.google.com/gke-nodepool", "cloud.google.com/gke-spot", "cloud.google.com/gke-provisioning",
		"kubernetes.azure.com/agentpool", "kubernetes.azure.com/scalesetpriority", "nvidia.com/gpu.product",
	}
}

// Flags are those of the ledger, for every program that keeps one.
func (l *LedgerConfig) Flags() []cli.Flag {
	d := defaultLedger()
	return []cli.Flag{
		span(&l.Commit, d.Commit, "how long a charge may wait for the disk; a crash loses that much, and shows it as unobserved", "ledger-commit", "GPUMETER_LEDGER_COMMIT"),
		str(&l.Retention, d.Retention, "for how long the ledger's log is kept, such as 400d; the totals stay", "ledger-retention", "GPUMETER_LEDGER_RETENTION"),
		str(&l.MaxSize, d.MaxSize, "how large the ledger's log may become, such as 1GiB; then the oldest part of it goes", "ledger-max-size", "GPUMETER_LEDGER_MAX_SIZE"),
		&cli.BoolFlag{
			Name: "pod-gpu-seconds", Value: d.PodSeconds, Destination: &l.PodSeconds, Sources: fromEnv("GPUMETER_POD_GPU_SECONDS"),
			Usage: "show what each pod came to, and not namespaces alone; the ledger has it either way",
		},
		str(&l.Cluster, d.Cluster, "`NAME` of the cluster, as reports show it", "cluster-name", "GPUMETER_CLUSTER_NAME"),
		&cli.StringSliceFlag{
			Name: "node-labels", Value: d.NodeLabels, Destination: &l.NodeLabels, Sources: fromEnv("GPUMETER_NODE_LABELS"),
			Usage: "`LABELS` of the node that prices and reports may go by, * for anything but a slash; they need the API server",
		},
	}
}

// validate finds what can be known to be wrong before anything starts.
func (l LedgerConfig) validate() error {
	if l.Commit < minCommit || l.Commit > maxCommit {
		return fmt.Errorf("--ledger-commit %v: want %v to %v, such as 10s", l.Commit, minCommit, maxCommit)
	}
	if _, err := l.retention(); err != nil {
		return err
	}
	if _, err := l.maxSize(); err != nil {
		return err
	}
	for _, p := range l.NodeLabels {
		if _, err := path.Match(p, ""); err != nil {
			return fmt.Errorf("--node-labels %q: it is no pattern: %w", p, err)
		}
	}
	return nil
}

// retention is how long the log is kept.
func (l LedgerConfig) retention() (time.Duration, error) {
	var kept time.Duration
	days, inDays := strings.CutSuffix(strings.TrimSpace(l.Retention), "d")
	n, err := strconv.Atoi(days)
	switch {
	case inDays && err == nil && n <= int(maxRetention/(24*time.Hour)):
		kept = time.Duration(n) * 24 * time.Hour
	case inDays && err == nil:
		kept = maxRetention + 1
	default:
		if kept, err = time.ParseDuration(strings.TrimSpace(l.Retention)); err != nil {
			return 0, fmt.Errorf("--ledger-retention %q: want days or hours, such as 400d", l.Retention)
		}
	}
	if kept < minRetention || kept > maxRetention {
		return 0, fmt.Errorf("--ledger-retention %s: want 1d to %dd", l.Retention, maxRetention/(24*time.Hour))
	}
	return kept, nil
}

// maxSize is how large the log may become, in bytes.
func (l LedgerConfig) maxSize() (int64, error) {
	units := []struct {
		name  string
		bytes float64
	}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}}
	text, scale := strings.TrimSpace(l.MaxSize), 1.0
	for _, u := range units {
		if number, ok := strings.CutSuffix(text, u.name); ok {
			text, scale = strings.TrimSpace(number), u.bytes
		}
	}
	n, err := strconv.ParseFloat(text, 64)
	size := n * scale
	switch {
	case err != nil:
		return 0, fmt.Errorf("--ledger-max-size %q: want a size in bytes, MiB or GiB, such as 1GiB", l.MaxSize)
	case !(size >= minLedgerSize && size <= 1<<50):
		return 0, fmt.Errorf("--ledger-max-size %s: want 64MiB or more", l.MaxSize)
	}
	return int64(size), nil
}

// keepBook gives the meter the book of charges, in memory where nothing is to be kept.
func (a *App) keepBook(mc *meter.Config) error {
	retention, err := a.cfg.Ledger.retention()
	if err != nil {
		return err
	}
	size, err := a.cfg.Ledger.maxSize()
	if err != nil {
		return err
	}
	a.book = ledger.OpenBook(ledger.BookConfig{
		Dir: a.cfg.ledgerDir(), Node: a.host, Cluster: a.cfg.Ledger.Cluster, Version: Version(), Policy: mc.Policy.Name(),
		Interval: lookEvery(mc.Interval, a.speed()), Retention: retention, MaxBytes: size, Log: a.log,
	})
	mc.Book, mc.CommitEvery, mc.Clock = a.book, a.cfg.Ledger.Commit, a.clock()
	if a.node != nil {
		mc.NodeLabels = newNodeLabels(a.cfg.Ledger.NodeLabels, a.node.Watch).now
	}
	return nil
}

// speed is how fast the ledger's clock is: a simulated node's, else 1.
func (a *App) speed() float64 {
	if a.sources.Node() == nil {
		return 1
	}
	return a.cfg.Speed
}

// lookEvery is how often the meter looks by a clock of that speed. What holds a machine up for a moment is minutes of a fast
// story on it, and no gap in that.
func lookEvery(interval time.Duration, speed float64) time.Duration {
	if speed <= 1 {
		return interval
	}
	return max(time.Duration(speed*float64(ledger.LongestPause(interval))), ledger.StallAfter) / 3
}

// nodeLabels are the node's labels that are asked for. It is for one caller at a time.
type nodeLabels struct {
	patterns []string
	watch    func() (cluster.NodeState, <-chan struct{})
	// labels are those of the state that changes with the channel.
	labels  map[string]string
	changes <-chan struct{}
}

func newNodeLabels(patterns []string, watch func() (cluster.NodeState, <-chan struct{})) *nodeLabels {
	return &nodeLabels{patterns: trimmed(patterns), watch: watch}
}

// now are the labels as they are known, nil before they are.
func (n *nodeLabels) now() map[string]string {
	state, changes := n.watch()
	if changes == n.changes || !state.Synced {
		return n.labels
	}
	labels := map[string]string{}
	for name, value := range state.Labels {
		for _, p := range n.patterns {
			if ok, err := path.Match(p, name); ok && err == nil {
				labels[name] = value
			}
		}
	}
	n.labels, n.changes = labels, changes
	return labels
}
