// SPDX-License-Identifier: Apache-2.0

package app

import (
	"cmp"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/gpumeter/gpumeter/etc"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/healthstream"
	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/meter"
	"github.com/gpumeter/gpumeter/pkg/xidfile"
)

const (
	// DefaultLedgerDir is where a real node's exporter keeps what must outlive it.
	DefaultLedgerDir = "/var/lib/gpumeter"
	// conditionsFile is the state of health in the ledger's folder.
	conditionsFile = "conditions"
	// inventoryFile are the devices and their replicas.
	inventoryFile = "inventory"
	// bootIDFile is the kernel's.
	bootIDFile = "/proc/sys/kernel/random/boot_id"
	// maxHealthTime bounds the durations of the flags, maxRepeats the counts.
	maxHealthTime = 7 * 24 * time.Hour
	// minStuckAfter is more than a reading of a healthy GPU ever takes.
	minStuckAfter = 5 * time.Second
	maxRepeats    = 64
	// maxRepartition is longer than any repartition takes: meanwhile a GPU that is lost is not called so.
	maxRepartition = 12 * time.Hour
)

// HealthConfig is what an operator can say about verdicts, where they are kept and who hears them.
type HealthConfig struct {
	// LedgerDir is the folder that outlives the exporter; empty to keep nothing. A simulated node
	// keeps nothing unless LedgerDirSet.
	LedgerDir    string
	LedgerDirSet bool
	// XIDFile has rows that replace those of the built-in table, code by code.
	XIDFile         string
	HoldDown        time.Duration
	FlapLimit       int
	FlapWindow      time.Duration
	ContainedLimit  int
	ContainedWindow time.Duration
	StuckAfter      time.Duration
	// RepartitionLimit is for how long judging is paused at most while a MIG manager divides the node's GPUs anew; 0 for
	// never.
	RepartitionLimit time.Duration
	// Socket is where the health stream is served; empty for none. A simulated node serves none
	// unless SocketSet.
	Socket      string
	SocketSet   bool
	SocketGroup string
}

// defaultHealth is the HealthConfig without any flag.
func defaultHealth() HealthConfig {
	contained := health.DefaultContained()
	return HealthConfig{
		LedgerDir: DefaultLedgerDir, HoldDown: health.DefaultHoldDown,
		FlapLimit: health.DefaultFlapLimit, FlapWindow: health.DefaultFlapWindow,
		ContainedLimit: contained.Count, ContainedWindow: contained.Within,
		StuckAfter: health.DefaultStuckAfter, RepartitionLimit: health.DefaultRepartitionFor, Socket: healthstream.DefaultSocket,
	}
}

// Flags are those of health, for every program that makes verdicts. Note completes the config once the
// command line has been parsed.
func (h *HealthConfig) Flags() []cli.Flag {
	d := defaultHealth()
	folder := str(&h.LedgerDir, d.LedgerDir, "`FOLDER` for what must outlive the exporter, such as the conditions of broken GPUs; empty to keep nothing. On a pretend node nothing is kept unless this is given", "ledger-dir", "GPUMETER_LEDGER_DIR")
	folder.Category = categoryLedger
	return []cli.Flag{
		folder,
		str(&h.XIDFile, "", "`FILE` with XIDs whose class is to be another, in the form of etc/xid.yaml; each row replaces the built-in one of its code. It is read at the start", "xid-file", "GPUMETER_XID_FILE"),
		span(&h.HoldDown, d.HoldDown, "for how long the evidence that a GPU has recovered must stand before the GPU is healthy again", "health-hold-down", "GPUMETER_HEALTH_HOLD_DOWN"),
		number(&h.FlapLimit, d.FlapLimit, "how often a GPU may break again after it had recovered, within --health-flap-window, before only an operator returns it; -1 for any number", "health-flap-limit", "GPUMETER_HEALTH_FLAP_LIMIT"),
		span(&h.FlapWindow, d.FlapWindow, "see --health-flap-limit", "health-flap-window", "GPUMETER_HEALTH_FLAP_WINDOW"),
		number(&h.ContainedLimit, d.ContainedLimit, "how many contained memory errors, within --health-contained-window, ask for a reset of the GPU", "health-contained-limit", "GPUMETER_HEALTH_CONTAINED_LIMIT"),
		span(&h.ContainedWindow, d.ContainedWindow, "see --health-contained-limit", "health-contained-window", "GPUMETER_HEALTH_CONTAINED_WINDOW"),
		span(&h.StuckAfter, d.StuckAfter, "for how long a GPU may not answer, while others do, before it is unhealthy", "health-stuck-after", "GPUMETER_HEALTH_STUCK_AFTER"),
		span(&h.RepartitionLimit, d.RepartitionLimit, "for how long no GPU is called lost or stuck, and none recovers, while a MIG manager divides the node's GPUs anew, as the node's label "+health.MIGStateLabel+" says; 0 to judge all the same. It needs the API server", "health-repartition-limit", "GPUMETER_HEALTH_REPARTITION_LIMIT"),
		str(&h.Socket, d.Socket, "unix `SOCKET` on which verdicts are told to the device plugin and operators give theirs; empty for none. On a pretend node there is none unless this is given", "health-socket", "GPUMETER_HEALTH_SOCKET"),
		str(&h.SocketGroup, "", "`GROUP`, by name or number, that may use the health socket beside root; by default the exporter's own", "health-socket-group", "GPUMETER_HEALTH_SOCKET_GROUP"),
	}
}

func number(p *int, value int, usage, name string, env ...string) *cli.IntFlag {
	n, aliases := split(name)
	return &cli.IntFlag{Name: n, Aliases: aliases, Value: value, Usage: usage, Sources: fromEnv(env...), Destination: p}
}

// Note keeps whether flags were given.
func (h *HealthConfig) Note(cmd *cli.Command) {
	h.LedgerDirSet, h.SocketSet = cmd.IsSet("ledger-dir"), cmd.IsSet("health-socket")
}

// validate finds what can be known to be wrong before anything starts.
func (h HealthConfig) validate() error {
	for _, d := range []struct {
		flag  string
		value time.Duration
	}{
		{"health-hold-down", h.HoldDown}, {"health-flap-window", h.FlapWindow},
		{"health-contained-window", h.ContainedWindow}, {"health-stuck-after", h.StuckAfter},
	} {
		if d.value <= 0 || d.value > maxHealthTime {
			return fmt.Errorf("--%s %v: want more than 0 and at most %v, such as 1m", d.flag, d.value, maxHealthTime)
		}
	}
	switch {
	case h.RepartitionLimit < 0 || h.RepartitionLimit > maxRepartition:
		return fmt.Errorf("--health-repartition-limit %v: want 0 to %v, such as 30m", h.RepartitionLimit, maxRepartition)
	case h.StuckAfter < minStuckAfter:
		return fmt.Errorf("--health-stuck-after %v: want %v or more, since a busy driver takes its time, and a GPU that is stuck is withdrawn", h.StuckAfter, minStuckAfter)
	case h.FlapLimit != -1 && (h.FlapLimit < 1 || h.FlapLimit > maxRepeats):
		return fmt.Errorf("--health-flap-limit %d: want 1 to %d, or -1 for any number", h.FlapLimit, maxRepeats)
	case h.ContainedLimit < 2 || h.ContainedLimit > maxRepeats:
		return fmt.Errorf("--health-contained-limit %d: want 2 to %d", h.ContainedLimit, maxRepeats)
	}
	if info, err := os.Stat(h.LedgerDir); h.LedgerDirSet && h.LedgerDir != "" && err == nil && !info.IsDir() {
		return fmt.Errorf("--ledger-dir %s: it is not a folder", h.LedgerDir)
	}
	return nil
}

// ledgerDir is where conditions are kept, empty for nowhere.
func (c Config) ledgerDir() string {
	if c.Source == SourceSim && !c.Health.LedgerDirSet {
		return ""
	}
	return c.Health.LedgerDir
}

// healthSocket is where the health stream is served, empty for nowhere.
func (c Config) healthSocket() string {
	if c.Source == SourceSim && !c.Health.SocketSet {
		return ""
	}
	return c.Health.Socket
}

// xids are the built-in codes with the operator's in place of those.
func (h HealthConfig) xids(log *slog.Logger) (*health.XIDTable, error) {
	table, err := xidfile.Load(etc.XIDs(), h.XIDFile)
	if err != nil {
		return nil, fmt.Errorf("--xid-file: %w", err)
	}
	if h.XIDFile != "" {
		log.Info("XIDs are classed by the operator's file", "file", h.XIDFile)
	}
	return table, nil
}

// rules are how evidence becomes verdicts.
func (h HealthConfig) rules(xids *health.XIDTable) (*health.Rules, error) {
	contained := health.DefaultContained()
	contained.Count, contained.Within = h.ContainedLimit, h.ContainedWindow
	rules, err := health.NewRules(health.Config{
		XIDs: xids, HoldDown: h.HoldDown, FlapLimit: h.FlapLimit, FlapWindow: h.FlapWindow,
		Contained: contained, StuckAfter: h.StuckAfter, RepartitionFor: cmp.Or(h.RepartitionLimit, -1),
	})
	if err != nil {
		return nil, fmt.Errorf("--health-*: %w", err)
	}
	return rules, nil
}

// watchHealth gives the meter its rules.
func (a *App) watchHealth(mc *meter.Config) error {
	var err error
	if a.xids, err = a.cfg.Health.xids(a.log); err != nil {
		return err
	}
	if mc.Health, err = a.cfg.Health.rules(a.xids); err != nil {
		return err
	}
	mc.XIDs, mc.BootID = a.xids, a.bootID()
	if a.node != nil {
		mc.MIGState = func() health.MIGState {
			node, _ := a.node.Watch()
			return health.MIGStateOf(node.Labels, node.Exists)
		}
	}
	return nil
}

// remember gives the meter what was known when the exporter last ran, and where to keep it.
func (a *App) remember(mc *meter.Config) {
	dir := a.cfg.ledgerDir()
	if dir == "" {
		a.log.Info("conditions and replicas of GPUs are not kept over a restart of the exporter; --ledger-dir keeps them")
		return
	}
	var problems []error
	a.conditions, mc.HealthState, problems = ledger.OpenConditions(dir, conditionsFile)
	for _, p := range problems {
		a.log.Warn("conditions", "problem", p)
	}
	a.inventory, mc.Known, problems = ledger.OpenInventory(dir, inventoryFile)
	for _, p := range problems {
		a.log.Warn("inventory", "problem", p)
	}
	mc.Conditions, mc.Inventory = a.conditions, a.inventory
}

// bootID is the kernel's boot id, a simulated node's own where there is one.
func (a *App) bootID() func() string {
	if node := a.sources.Node(); node != nil {
		return func() string { return node.BootID(node.Elapsed()) }
	}
	id, err := readBootID(bootIDFile)
	if err != nil {
		a.log.Warn("the kernel's boot id is not known, so a restart of the machine is no evidence that a GPU has recovered", "error", err)
	}
	return func() string { return id }
}

// readBootID names the time since the kernel began.
func readBootID(file string) (string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	id := strings.TrimSpace(string(data))
	if id == "" {
		return "", fmt.Errorf("%s is empty", file)
	}
	return id, nil
}

// restored is what became of the conditions that were saved before, empty where none are kept.
func (a *App) restored() string {
	if a.conditions == nil {
		return ""
	}
	return string(a.conditions.Restored())
}
