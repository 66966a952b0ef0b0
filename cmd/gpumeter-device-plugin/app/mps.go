// SPDX-License-Identifier: Apache-2.0

package app

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/gpumeter/gpumeter/pkg/deviceplugin"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/mps"
)

// mpsDaemons keeps the control daemons of the resources that are shared by MPS.
type mpsDaemons interface {
	// Ensure brings the daemons in line with what is handed out: one for each resource of the
	// plan whose sharing is MPS, none beside. It is called for each new plan, one call at a time,
	// also for plans without MPS; a device is not handed out before a call that knew it
	// returned nil. What goes wrong with a daemon is a fact, and no error.
	Ensure(settings deviceplugin.Settings, inventory deviceplugin.Inventory, plan deviceplugin.Plan) error
	// Run keeps them alive until ctx ends, and returns nil then.
	Run(ctx context.Context) error
}

// Whose business the MPS control daemons are.
const (
	// mpsOwn: the plugin starts them and keeps them alive.
	mpsOwn = "own"
	// mpsExternal: somebody else does, such as NVIDIA's DaemonSet; the plugin watches them.
	mpsExternal = "external"
	// mpsOff: nobody looks.
	mpsOff = "off"
)

// mpsConfig is what flags say of MPS.
type mpsConfig struct {
	daemon string
	// rootHere is where the plugin sees the folder of MPS.
	rootHere string
}

func (c *config) mpsFlags() []cli.Flag {
	return []cli.Flag{
		c.str(&c.mps.daemon, "who runs the MPS control daemons: own (the plugin starts them, and ends them when it ends, with all their clients), external (somebody else, such as NVIDIA's DaemonSet; they are watched), off (nobody looks)", "mps-daemon", "GPUMETER_MPS_DAEMON"),
		c.str(&c.mps.rootHere, "`FOLDER` in which the plugin sees --mps-root (default: /mps where that is there, else --mps-root itself)", "mps-root-ctr-path", "GPUMETER_MPS_ROOT_CTR_PATH"),
	}
}

// chartMPSRoot is where NVIDIA's chart mounts the folder of MPS.
const chartMPSRoot = "/mps"

// mpsPatience is how long new devices wait for their daemons: for the end of old ones and the first
// answer of new ones.
const mpsPatience = 20 * time.Second

// newMPS makes the daemons' keeper. driverRoot is where the plugin sees the driver's files. report
// takes all that is wrong now, nothing when all is well; it goes to the plugin's own engine and to
// the exporter. It is safe for concurrent use.
func newMPS(c config, driverRoot func() string, report func([]health.Fact), log *slog.Logger) mpsDaemons {
	if c.mps.daemon == mpsOff {
		return unwatchedMPS{report}
	}
	find := func(program, install string) func() (string, error) {
		return func() (string, error) {
			path, err := mps.FindIn(program, programFolders(c.env, driverRoot())...)
			if err != nil {
				return "", fmt.Errorf("%w: %s", err, install)
			}
			return path, nil
		}
	}
	environ := mpsEnviron(c.env)
	smi := find(mps.ComputeModeProgram, "give the plugin the driver capability utility")
	return &ownMPS{
		cfg: c.mps,
		supervisor: mps.New(mps.Config{
			External: c.mps.daemon == mpsExternal, Environ: environ,
			Find: find(mps.Program, "it comes with the driver (package nvidia-compute-utils); in a pod, "+
				"run the plugin with the NVIDIA runtime, NVIDIA_VISIBLE_DEVICES=all and NVIDIA_DRIVER_CAPABILITIES=compute,utility"),
			SetExclusive: mps.SetExclusiveBy(smi, environ), Report: report, Log: log,
		}),
	}
}

// ownMPS has the daemons kept or watched by pkg/mps.
type ownMPS struct {
	cfg        mpsConfig
	supervisor *mps.Supervisor
}

func (m *ownMPS) Run(ctx context.Context) error { return m.supervisor.Run(ctx) }

func (m *ownMPS) Ensure(s deviceplugin.Settings, inventory deviceplugin.Inventory, plan deviceplugin.Plan) error {
	ctx, cancel := context.WithTimeout(context.Background(), mpsPatience)
	defer cancel()
	m.supervisor.Ensure(ctx, mpsPlan(m.rootHere(s), deviceplugin.MPSDaemons(inventory, s, plan)))
	return nil
}

// rootHere is where the plugin sees the folder of MPS.
func (m *ownMPS) rootHere(s deviceplugin.Settings) string {
	fallback := s.MPSRoot
	if isDir(chartMPSRoot) {
		fallback = chartMPSRoot
	}
	return cmp.Or(m.cfg.rootHere, fallback)
}

func mpsPlan(root string, daemons []deviceplugin.MPSDaemon) mps.Plan {
	plan := mps.Plan{Root: root}
	for _, d := range daemons {
		next := mps.Daemon{Resource: d.Resource, ThreadPercent: d.ThreadPercent}
		for _, device := range d.Devices {
			next.Devices = append(next.Devices, mps.Device{UUID: device.UUID, MemoryMiB: device.MemoryMiB})
		}
		plan.Daemons = append(plan.Daemons, next)
	}
	return plan
}

// unwatchedMPS leaves the daemons alone, and takes back what was said of them before.
type unwatchedMPS struct{ report func([]health.Fact) }

func (unwatchedMPS) Ensure(deviceplugin.Settings, deviceplugin.Inventory, deviceplugin.Plan) error {
	return nil
}

func (m unwatchedMPS) Run(ctx context.Context) error {
	m.report(nil)
	<-ctx.Done()
	return nil
}

// programFolders are where the driver's programs can be, the plugin's own first.
func programFolders(env lookup, driverRoot string) []string {
	path, _ := env("PATH")
	folders := trimmed(filepath.SplitList(path))
	for _, root := range []string{driverRoot, "/"} {
		if root != "" {
			folders = append(folders, filepath.Join(root, "usr", "bin"), filepath.Join(root, "bin"))
		}
	}
	return folders
}

// mpsEnviron is what of the plugin's environment the driver's programs get: none of CUDA's own
// variables, which mean a client.
func mpsEnviron(env lookup) []string {
	var out []string
	for _, name := range []string{"PATH", "HOME", "LD_LIBRARY_PATH", "LANG"} {
		if value, ok := env(name); ok {
			out = append(out, name+"="+value)
		}
	}
	return out
}
