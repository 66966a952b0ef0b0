// SPDX-License-Identifier: Apache-2.0

package app

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/version"
	"github.com/urfave/cli/v3"
)

// Version is what was stamped into the program by `make build`.
func Version() string { return cmp.Or(version.Version, "devel") }

// Command is the device plugin's command line. Names, aliases, environment variables and defaults
// are those of NVIDIA's device plugin where the two have the same thing. env is the environment.
func Command(env func(string) (string, bool), stdout, stderr io.Writer) *cli.Command {
	return command(env, stdout, stderr, func(ctx context.Context, c config) error {
		if c.check {
			return check(ctx, c, stdout)
		}
		return serve(ctx, c, stderr)
	})
}

// command calls run with what was asked for, once that is known to be possible.
func command(env lookup, stdout, stderr io.Writer, run func(context.Context, config) error) *cli.Command {
	c := defaults()
	c.env = env
	return &cli.Command{
		Name:                  "gpumeter-device-plugin",
		Usage:                 "hands out GPUs, MIG devices and their replicas to the kubelet, and takes back what is broken",
		Version:               VersionLine(),
		Flags:                 slices.Concat(nvidiaFlags(), c.ownFlags(), c.nodeFlags(), c.featureFlags(), c.mpsFlags()),
		HideHelpCommand:       true,
		EnableShellCompletion: true,
		ConfigureShellCompletionCommand: func(c *cli.Command) {
			c.Hidden = false
			c.Usage = "print the completion script for bash, zsh, fish or pwsh"
		},
		Writer:    stdout,
		ErrWriter: stderr,
		OnUsageError: func(_ context.Context, _ *cli.Command, err error, _ bool) error {
			return fmt.Errorf("%w; see --help", err)
		},
		Action: func(ctx context.Context, cmd *cli.Command) error {
			if cmd.NArg() > 0 {
				return fmt.Errorf("%q is no flag; see --help", cmd.Args().First())
			}
			c.note(cmd)
			if err := c.validate(); err != nil {
				return err
			}
			return run(ctx, c)
		},
	}
}

// note keeps what a flag's destination alone does not tell: whether it was given.
func (c *config) note(cmd *cli.Command) {
	c.configFileSet = cmd.IsSet("config-file")
	c.kubeletSocketSet = cmd.IsSet("kubelet-socket")
	c.fallbacks = trimmed(c.fallbacks)
	if c.source == sourceSim && !cmd.IsSet("state-dir") {
		// A pretend node's faults are none of the machine's.
		c.stateDir = ""
	}
	if c.source == sourceSim && !cmd.IsSet("mps-daemon") {
		// No daemon takes GPUs that are not there.
		c.mps.daemon = mpsOff
	}
	c.flags = flagValues{}
	for _, o := range options() {
		switch name := o.name(); {
		case !cmd.IsSet(name):
		case o.form == boolean:
			c.flags[name] = []string{fmt.Sprint(cmd.Bool(name))}
		case o.form == list:
			c.flags[name] = append([]string{}, trimmed(cmd.StringSlice(name))...)
		default:
			c.flags[name] = []string{cmd.String(name)}
		}
	}
}

// shownVar is an environment variable that --help shows and that is read elsewhere: a flag that is
// set was given, so that what a value comes from is known.
type shownVar string

func (v shownVar) Lookup() (string, bool) { return "", false }
func (v shownVar) String() string         { return "environment variable " + string(v) }
func (v shownVar) GoString() string       { return string(v) }
func (v shownVar) IsFromEnv() bool        { return true }
func (v shownVar) Key() string            { return string(v) }

// nvidiaFlags are those of the options, and those of its that have no key in the config file.
func nvidiaFlags() []cli.Flag {
	const category = "NVIDIA's device plugin (also keys of the config file)"
	var out []cli.Flag
	for _, o := range options() {
		var sources []cli.ValueSource
		for _, name := range o.env {
			sources = append(sources, shownVar(name))
		}
		shown := cli.NewValueSourceChain(sources...)
		switch o.form {
		case boolean:
			out = append(out, &cli.BoolFlag{Name: o.name(), Aliases: o.names[1:], Usage: o.usage, Sources: shown, Value: o.value == "true", Category: category})
		case list:
			out = append(out, &cli.StringSliceFlag{Name: o.name(), Aliases: o.names[1:], Usage: o.usage, Sources: shown, Value: o.parts(o.value), Category: category})
		default:
			out = append(out, &cli.StringFlag{Name: o.name(), Aliases: o.names[1:], Usage: o.usage, Sources: shown, Value: o.value, Category: category})
		}
	}
	return out
}

// fromEnv reads environment variables of which an empty one is as good as none, since charts and
// unit files set them to nothing to mean the default.
func (c *config) fromEnv(names []string) cli.ValueSourceChain {
	sources := make([]cli.ValueSource, len(names))
	for i, name := range names {
		sources[i] = setVar{shownVar(name), c.env}
	}
	return cli.NewValueSourceChain(sources...)
}

type setVar struct {
	shownVar
	env lookup
}

func (v setVar) Lookup() (string, bool) {
	text, ok := v.env(v.Key())
	return text, ok && text != ""
}

func (c *config) str(p *string, usage, name string, env ...string) cli.Flag {
	n := strings.Split(name, ",")
	return &cli.StringFlag{Name: n[0], Aliases: n[1:], Value: *p, Usage: usage, Sources: c.fromEnv(env), Destination: p}
}

func (c *config) flag(p *bool, usage, name string, env ...string) cli.Flag {
	return &cli.BoolFlag{Name: name, Value: *p, Usage: usage, Sources: c.fromEnv(env), Destination: p}
}

func (c *config) span(p *time.Duration, usage, name string, env ...string) cli.Flag {
	return &cli.DurationFlag{Name: name, Value: *p, Usage: usage, Sources: c.fromEnv(env), Destination: p}
}

func (c *config) words(p *[]string, usage, name string, env ...string) cli.Flag {
	return &cli.StringSliceFlag{Name: name, Value: *p, Usage: usage, Sources: c.fromEnv(env), Destination: p}
}

// ownFlags are those that no config file can say.
func (c *config) ownFlags() []cli.Flag {
	return []cli.Flag{
		c.str(&c.configFile, "NVIDIA's config `FILE`, version v1; a change of it takes effect by itself", "config-file", "CONFIG_FILE"),
		c.str(&c.configDir, "`FOLDER` with config files, of which the node's label chooses one", "config-dir,config-file-srcdir", "CONFIG_FILE_SRCDIR"),
		c.str(&c.defaultConfig, "with --config-dir: `NAME` of the file for a node without the label", "default-config", "DEFAULT_CONFIG"),
		c.words(&c.fallbacks, "with --config-dir and neither label nor default: named (the file called default), single (the only file), empty (no config), in this order", "fallback-strategies", "FALLBACK_STRATEGIES"),
		c.str(&c.nodeLabel, "`LABEL` of the node that has a file's name", "node-label", "NODE_LABEL"),
		c.str(&c.nodeName, "the node's `NAME`", "node-name", "NODE_NAME"),
		c.str(&c.kubeconfig, "kubeconfig `FILE` instead of the pod's service account", "kubeconfig", "KUBECONFIG"),

		c.str(&c.kubeletDir, "the kubelet's `FOLDER`; device-plugins is below it", "kubelet-dir", "GPUMETER_KUBELET_DIR"),
		c.str(&c.kubeletSocket, "the kubelet's `SOCKET` for device plugins (default: kubelet.sock in device-plugins of --kubelet-dir); an empty one serves and does not register", "kubelet-socket", "KUBELET_SOCKET"),
		c.str(&c.cdiDir, "`FOLDER` for CDI specs", "cdi-dir", "GPUMETER_CDI_DIR"),
		c.flag(&c.noTopology, "leave out NUMA hints", "no-topology", "GPUMETER_NO_TOPOLOGY"),

		c.str(&c.source, "where GPUs are read: nvml, stream (the exporter's health stream), sim (a pretend node), or auto: NVML where it is, else the stream", "source", "GPUMETER_SOURCE"),
		c.str(&c.nvml, "`PATH` or soname of NVML's library (default: libnvidia-ml.so.1)", "nvml-library", "GPUMETER_NVML_LIBRARY"),
		c.str(&c.scenario, "with --source=sim: a shipped scenario's name or a `FILE`", "sim-scenario", "GPUMETER_SCENARIO"),
		c.span(&c.interval, "`TIME` between two looks at the GPUs", "interval", "GPUMETER_PLUGIN_INTERVAL"),
		c.str(&c.hostRoot, "`FOLDER` in which the host's sys, proc and dev are seen", "host-root", "GPUMETER_HOST_ROOT"),

		c.str(&c.healthSocket, "`SOCKET` of the exporter's health stream; empty for none", "health-socket", "GPUMETER_HEALTH_SOCKET"),
		c.span(&c.lostAfter, "`TIME` after which --health-lost-policy is followed; 0 for never", "health-lost-after", "GPUMETER_HEALTH_LOST_AFTER"),
		c.str(&c.lostPolicy, "for a health stream that is lost: keep its last verdicts, or unhealthy", "health-lost-policy", "GPUMETER_HEALTH_LOST_POLICY"),
		c.span(&c.holdDown, "`TIME` for which evidence of recovery must stand before a device is Healthy again, where the exporter does not say so", "health-hold-down", "GPUMETER_HEALTH_HOLD_DOWN"),
		c.str(&c.xidFile, "`FILE` with XIDs whose class is to be another for the plugin's own engine, as the exporter's --xid-file; give both the same. It is read at the start", "xid-file", "GPUMETER_XID_FILE"),
		c.str(&c.stateDir, "`FOLDER` for what must outlive a restart; empty for none", "state-dir", "GPUMETER_STATE_DIR"),

		c.str(&c.address, "`ADDRESS` to listen on for /metrics, /healthz and /readyz", "address,web.listen-address", "GPUMETER_PLUGIN_LISTEN"),
		c.str(&c.webConfigFile, "`FILE` with TLS and basic auth settings of the Prometheus exporter toolkit", "web-config-file,web.config.file", "GPUMETER_PLUGIN_WEB_CONFIG_FILE"),
		c.flag(&c.debug, "log details", "debug", "GPUMETER_DEBUG"),
		c.str(&c.logFormat, "text or json", "log-format", "GPUMETER_LOG_FORMAT"),
		c.flag(&c.check, "say what the config comes to (settings with their origin, resources, ids, sizes, problems) and end; nothing is served", "check"),
	}
}
