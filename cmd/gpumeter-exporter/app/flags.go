// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/gpumeter/gpumeter/pkg/kubelet"
)

// Command is the exporter's command line; its action is run with what was asked for. It is
// dcgm-exporter's where the two have the same thing: names, aliases, environment variables, defaults.
func Command(stdout, stderr io.Writer, run func(context.Context, Config) error) *cli.Command {
	cfg := &Config{}
	flags, note := cfg.ReadingFlags()
	later := notYetFlags()
	return &cli.Command{
		Name:    "gpumeter-exporter",
		Usage:   "the electricity meter of a GPU node: who holds how much of which GPU, and what it does",
		Version: VersionLine(),
		Flags: slices.Concat(flags, under(categoryHolders, cfg.holderFlags()), under(categorySeries, cfg.seriesFlags()), under(categoryServing, cfg.servingFlags()),
			under(categoryHealth, cfg.Health.Flags()), under(categoryLedger, cfg.Ledger.Flags()), grantedFlags(), later),
		HideHelpCommand:                 true,
		EnableShellCompletion:           true,
		ConfigureShellCompletionCommand: ShowCompletion,
		Writer:                          stdout,
		ErrWriter:                       stderr,
		OnUsageError:                    UsageError,
		Action: func(ctx context.Context, cmd *cli.Command) error {
			if cmd.NArg() > 0 {
				return fmt.Errorf("%q is no flag; see --help", cmd.Args().First())
			}
			note(cmd)
			cfg.NotYet = asked(cmd, later)
			return run(ctx, *cfg)
		},
	}
}

// UsageError leaves the help text out, in which the one sentence that matters would be lost.
func UsageError(_ context.Context, _ *cli.Command, err error, _ bool) error {
	return fmt.Errorf("%w; see --help", err)
}

// Defaults is the Config that the command line has without any flag.
func Defaults() Config {
	return Config{
		Collectors: DefaultCollectors, Address: ":9400", Interval: "30000",
		KubeletSocket: kubelet.DefaultSocket, KubeletMaxAge: 5 * time.Minute,
		Checkpoint: kubelet.DefaultCheckpoint,
		GPUIDType:  "uid", HostnameLabel: "hostname", MIGPolicy: "blend",
		Source: "auto", DCGMLogLevel: "NONE",
		Devices: "f", SwitchDevices: "f", CPUDevices: "f", XIDWindow: "300000", ClockWindow: "300000",
		KubeletPoll: time.Second, PodWatch: PodWatchAuto,
		Health: defaultHealth(), Ledger: defaultLedger(),
		Scenario: "default", Speed: 1,
		ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, LogFormat: "text",
	}
}

// fromEnv reads environment variables of which an empty one is as good as none, since
// charts and unit files set them to nothing to mean the default.
func fromEnv(names ...string) cli.ValueSourceChain {
	sources := make([]cli.ValueSource, len(names))
	for i, name := range names {
		sources[i] = setVar{cli.EnvVar(name), name}
	}
	return cli.NewValueSourceChain(sources...)
}

// setVar shows in --help as the variable that it is.
type setVar struct {
	cli.ValueSource
	name string
}

func (v setVar) IsFromEnv() bool { return true }
func (v setVar) Key() string     { return v.name }

func (v setVar) Lookup() (string, bool) {
	text, ok := v.ValueSource.Lookup()
	return text, ok && text != ""
}

func str(p *string, value, usage, name string, env ...string) *cli.StringFlag {
	n, aliases := split(name)
	return &cli.StringFlag{Name: n, Aliases: aliases, Value: value, Usage: usage, Sources: fromEnv(env...), Destination: p}
}

func flag(p *bool, usage, name string, env ...string) *cli.BoolFlag {
	n, aliases := split(name)
	return &cli.BoolFlag{Name: n, Aliases: aliases, Usage: usage, Sources: fromEnv(env...), Destination: p}
}

func list(p *[]string, usage, name string, env ...string) *cli.StringSliceFlag {
	n, aliases := split(name)
	return &cli.StringSliceFlag{Name: n, Aliases: aliases, Usage: usage, Sources: fromEnv(env...), Destination: p}
}

func span(p *time.Duration, value time.Duration, usage, name string, env ...string) *cli.DurationFlag {
	n, aliases := split(name)
	return &cli.DurationFlag{Name: n, Aliases: aliases, Value: value, Usage: usage, Sources: fromEnv(env...), Destination: p}
}

// split parts "collectors,f" into a name and its aliases.
func split(name string) (string, []string) {
	parts := strings.Split(name, ",")
	return parts[0], parts[1:]
}

// note keeps what a flag's value alone does not tell: whether it was given.
func (c *Config) note(cmd *cli.Command) {
	c.CollectorsSet = cmd.IsSet("collectors")
	c.KubeletSet = cmd.IsSet("pod-resources-kubelet-socket")
	c.SeedSet = cmd.IsSet("seed")
	c.Health.Note(cmd)
}

// ReadingFlags are those that say what is read and where: counters, GPUs, kubelet. They are
// the same for every program that reads a node. The function completes the Config once the
// command line has been parsed.
func (c *Config) ReadingFlags() ([]cli.Flag, func(*cli.Command)) {
	return slices.Concat(under(categorySources, c.counterFlags()), under(categorySources, c.sourceFlags()), under(categoryHolders, c.podFlags())), c.note
}

// What flags are listed under.
const (
	categorySources = "What is read"
	categoryHolders = "Who holds it"
	categorySeries  = "Series and labels"
	categoryServing = "Running and serving"
	categoryHealth  = "Health"
	categoryLedger  = "Ledger"
)

// under lists flags under a category, unless they have one.
func under(category string, flags []cli.Flag) []cli.Flag {
	for _, f := range flags {
		if f, ok := f.(cli.CategorizableFlag); ok && f.GetCategory() == "" {
			f.SetCategory(category)
		}
	}
	return flags
}

// ShowCompletion lists the command that prints a shell's completion script among the others.
func ShowCompletion(c *cli.Command) {
	c.Hidden = false
	c.Usage = "print the completion script for bash, zsh, fish or pwsh"
}

func (c *Config) counterFlags() []cli.Flag {
	return []cli.Flag{
		str(&c.Collectors, DefaultCollectors, "`FILE` with the counters to export, dcgm-exporter's CSV", "collectors,f", "DCGM_EXPORTER_COLLECTORS"),
	}
}

// grammar is the selections', in dcgm-exporter's letters.
const grammar = "f for everything, g for %s, i for %s, with numbers and ranges as in g:0,2-3, and both as in g:0-3+i"

func (c *Config) sourceFlags() []cli.Flag {
	d := Defaults()
	return []cli.Flag{
		str(&c.Source, d.Source, "where GPUs are read: dcgm, nvml, sim (a pretend node), or auto, which takes a host engine that is named, else libdcgm, else NVML", "source", "GPUMETER_SOURCE"),
		str(&c.HostEngine, "", "`ADDRESS` of a DCGM host engine: unix:///path, tcp://host:port, host:port, [v6]:port; without one an engine runs inside this process. "+
			"Prefer that or a unix socket: over TCP each large reply of DCGM stalls for 40 ms", "remote-hostengine-info,r", "DCGM_REMOTE_HOSTENGINE_INFO"),
		str(&c.DCGMLibrary, "", "`PATH` or soname of DCGM's library (default: libdcgm.so.4)", "dcgm-library", "GPUMETER_DCGM_LIBRARY"),
		str(&c.NVMLLibrary, "", "`PATH` or soname of NVML's library (default: libnvidia-ml.so.1)", "nvml-library", "GPUMETER_NVML_LIBRARY"),
		flag(&c.DCGMLog, "have the DCGM engine inside this process write its log to the standard output, from --dcgm-log-level on", "enable-dcgm-log", "DCGM_EXPORTER_ENABLE_DCGM_LOG"),
		str(&c.DCGMLogLevel, d.DCGMLogLevel, strings.Join(dcgmLogLevels(), ", "), "dcgm-log-level", "DCGM_EXPORTER_DCGM_LOG_LEVEL"),
		str(&c.Devices, d.Devices, "`SELECTION` of GPUs: "+fmt.Sprintf(grammar, "GPUs", "GPU instances (DCGM's entity ids)"), "devices,d", "DCGM_EXPORTER_DEVICES_STR"),
		str(&c.SwitchDevices, d.SwitchDevices, "`SELECTION` of NvSwitches: "+fmt.Sprintf(grammar, "switches", "links"), "switch-devices,s", "DCGM_EXPORTER_OTHER_DEVICES_STR"),
		str(&c.CPUDevices, d.CPUDevices, "`SELECTION` of CPUs: "+fmt.Sprintf(grammar, "CPUs", "cores"), "cpu-devices,p", "DCGM_EXPORTER_CPU_DEVICES_STR"),
		str(&c.Scenario, d.Scenario, "with --source=sim: a shipped scenario's name or a `FILE`", "scenario", "GPUMETER_SCENARIO"),
		&cli.FloatFlag{Name: "speed", Value: d.Speed, Usage: "with --source=sim: simulated seconds per second", Sources: fromEnv("GPUMETER_SPEED"), Destination: &c.Speed},
		&cli.Uint64Flag{Name: "seed", Usage: "with --source=sim: what the node's GPUs and pods follow from (default: the node's name, or the scenario's own seed)", Sources: fromEnv("GPUMETER_SEED"), Destination: &c.Seed},
	}
}

func (c *Config) podFlags() []cli.Flag {
	d := Defaults()
	return []cli.Flag{
		flag(&c.Kubernetes, "map GPUs to pods", "kubernetes,k", "DCGM_EXPORTER_KUBERNETES"),
		str(&c.KubeletSocket, d.KubeletSocket, "the kubelet's PodResources `SOCKET`", "pod-resources-kubelet-socket", "DCGM_POD_RESOURCES_KUBELET_SOCKET"),
		str(&c.Checkpoint, d.Checkpoint, "the kubelet's device checkpoint, read for pod UIDs; empty for none", "kubelet-checkpoint", "GPUMETER_KUBELET_CHECKPOINT"),
		list(&c.ResourceNames, "further resource `NAMES` that are GPUs", "nvidia-resource-names", "NVIDIA_RESOURCE_NAMES"),
		list(&c.ResourcePattern, "further resources that are GPUs, * matches anything, such as 'example.com/gpu-*'", "resource-pattern", "GPUMETER_RESOURCE_PATTERN"),
		str(&c.MIGPolicy, d.MIGPolicy, "how MIG devices are weighed: blend, compute, memory, sm or table", "mig-policy", "GPUMETER_MIG_POLICY"),
		list(&c.MIGWeights, "with --mig-policy=table: `PROFILE=FRACTION`, such as 1g.10gb=1/8", "mig-weight", "GPUMETER_MIG_WEIGHT"),
		str(&c.JobFolder, "", "`FOLDER` in which a batch scheduler says which job has which GPU, for the label hpc_job; without --kubernetes jobs are charged too", "hpc-job-mapping-dir", "DCGM_HPC_JOB_MAPPING_DIR"),
		str(&c.NodeName, "", "the node's `NAME`", "node-name", "NODE_NAME"),
	}
}

// holderFlags are those that say how it is found out who holds what, for the exporter alone.
func (c *Config) holderFlags() []cli.Flag {
	d := Defaults()
	return []cli.Flag{
		str(&c.GPUIDType, d.GPUIDType, "uid or device-name; accepted for compatibility, every id is recognised by its form", "kubernetes-gpu-id-type", "DCGM_EXPORTER_KUBERNETES_GPU_ID_TYPE"),
		span(&c.KubeletMaxAge, d.KubeletMaxAge, "how long the kubelet's last good answer stands in for a kubelet that does not answer", "kubelet-max-age", "GPUMETER_KUBELET_MAX_AGE"),
		span(&c.KubeletPoll, d.KubeletPoll, "how often the kubelet is asked between samplings whether its allocations have changed, so that short pods are charged; 0 for never", "kubelet-poll", "GPUMETER_KUBELET_POLL"),
		str(&c.PodWatch, d.PodWatch, "whether the API server is asked for the node's pods, for their UIDs, ends, labels and owners: auto (in a pod whose node is named by --node-name), on, off", "kubernetes-pod-watch", "GPUMETER_KUBERNETES_POD_WATCH"),
		str(&c.Kubeconfig, "", "`FILE` that says how the API server is reached; by default the pod's service account", "kubeconfig", "GPUMETER_KUBECONFIG"),
		str(&c.PodName, "", "`NAME` of the exporter's own pod, by which a kubelet that has just started is told from one that lists everything; the host name by default", "pod-name", "POD_NAME"),
		str(&c.PodNamespace, "", "`NAMESPACE` of the exporter's own pod; any by default", "pod-namespace", "POD_NAMESPACE"),
	}
}

// seriesFlags are those that say how the page looks.
func (c *Config) seriesFlags() []cli.Flag {
	d := Defaults()
	return []cli.Flag{
		flag(&c.EnablePodUID, "add the label pod_uid where the UID is known", "kubernetes-enable-pod-uid", "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID"),
		flag(&c.PodLabels, "add the labels of a pod to the series of what it holds alone; they come from the API server", "kubernetes-enable-pod-labels", "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS"),
		str(&c.PodLabelAllowlist, "", "`REGEXES`, separated by commas, of which one must match a pod label's key; empty for all labels", "kubernetes-pod-label-allowlist-regex", "DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX"),
		flag(&c.VirtualGPUs, "copy each series once per holder of a shared GPU, as dcgm-exporter does; sums over it over-count", "kubernetes-virtual-gpus", "KUBERNETES_VIRTUAL_GPUS"),
		flag(&c.UseOldNamespace, "label names of dcgm-exporter 1.x (uuid, pod_name, ...)", "use-old-namespace,o", "DCGM_EXPORTER_USE_OLD_NAMESPACE"),
		flag(&c.NoHostname, "leave the hostname label out", "no-hostname,n", "DCGM_EXPORTER_NO_HOSTNAME"),
		str(&c.HostnameLabel, d.HostnameLabel, "name of the host label: hostname, or Hostname as before dcgm-exporter 4.8.3", "hostname-label", "GPUMETER_HOSTNAME_LABEL"),
		flag(&c.ReplaceBlanks, "dashes for blanks in modelName", "replace-blanks-in-model-name,rbmn", "DCGM_EXPORTER_REPLACE_BLANKS_IN_MODEL_NAME"),
		str(&c.XIDWindow, d.XIDWindow, "`TIME` that DCGM_EXP_XID_ERRORS_COUNT looks back; a bare number is milliseconds", "xid-count-window-size,x", "DCGM_EXPORTER_XID_COUNT_WINDOW_SIZE"),
		str(&c.ClockWindow, d.ClockWindow, "`TIME` that DCGM_EXP_CLOCK_EVENTS_COUNT looks back; a bare number is milliseconds", "clock-events-count-window-size", "DCGM_EXPORTER_CLOCK_EVENTS_COUNT_WINDOW_SIZE"),
	}
}

// servingFlags are those of the running program.
func (c *Config) servingFlags() []cli.Flag {
	d := Defaults()
	return []cli.Flag{
		str(&c.Address, d.Address, "`ADDRESS` to listen on", "address,a", "DCGM_EXPORTER_LISTEN"),
		str(&c.Interval, d.Interval, "`TIME` between samplings; a bare number is milliseconds", "collect-interval,c", "DCGM_EXPORTER_INTERVAL"),
		flag(&c.DCGMRelease, "on SIGUSR1 let go of the GPU driver, for an upgrade of it, and take it up again on the next one", "dcgm-release", "GPUMETER_DCGM_RELEASE"),
		str(&c.WebConfigFile, "", "`FILE` with TLS and basic auth settings of the Prometheus exporter toolkit", "web-config-file", "DCGM_EXPORTER_WEB_CONFIG_FILE"),
		flag(&c.WebSystemdSocket, "listen on the socket that systemd hands over", "web-systemd-socket", "DCGM_EXPORTER_SYSTEMD_SOCKET"),
		span(&c.ReadTimeout, d.ReadTimeout, "`TIME` for reading a request, such as 10s", "web-read-timeout", "DCGM_EXPORTER_WEB_READ_TIMEOUT"),
		span(&c.WriteTimeout, d.WriteTimeout, "`TIME` for writing a response, such as 30s", "web-write-timeout", "DCGM_EXPORTER_WEB_WRITE_TIMEOUT"),
		flag(&c.EnablePprof, "serve /debug/pprof", "enable-pprof", "DCGM_EXPORTER_ENABLE_PPROF"),
		flag(&c.Debug, "log details", "debug", "DCGM_EXPORTER_DEBUG"),
		str(&c.LogFormat, d.LogFormat, "text or json", "log-format", "DCGM_EXPORTER_LOG_FORMAT"),
	}
}

// acceptedFlags are dcgm-exporter's that are taken and not read; usage says why.
type acceptedFlags struct {
	flags           []cli.Flag
	usage, category string
}

func (a *acceptedFlags) text(name, env, value string) {
	n, aliases := split(name)
	a.flags = append(a.flags, &cli.StringFlag{
		Name: n, Aliases: aliases, Value: value, Usage: a.usage, Sources: fromEnv(env), Category: a.category,
	})
}

func (a *acceptedFlags) boolean(name, env string, value bool) {
	n, aliases := split(name)
	a.flags = append(a.flags, &cli.BoolFlag{
		Name: n, Aliases: aliases, Value: value, Usage: a.usage, Sources: fromEnv(env), Category: a.category,
	})
}

// grantedFlags are dcgm-exporter's that ask for what is always so here.
func grantedFlags() []cli.Flag {
	a := acceptedFlags{category: "accepted, and always so"}
	a.usage = "dcgm-exporter's; the inventory is looked at on every tick"
	a.boolean("enable-gpu-bind-unbind-watch", "DCGM_EXPORTER_ENABLE_GPU_BIND_UNBIND_WATCH", false)
	a.text("gpu-bind-unbind-poll-interval", "DCGM_EXPORTER_GPU_BIND_UNBIND_POLL_INTERVAL", "1s")
	a.usage = "dcgm-exporter's; a scrape only reads, and any number may come at once"
	a.text("max-concurrent-scrapes", "DCGM_EXPORTER_MAX_CONCURRENT_SCRAPES", "")
	a.usage = "dcgm-exporter's; the exporter's own metrics are always on the page"
	a.boolean("enable-exporter-metrics", "DCGM_EXPORTER_ENABLE_EXPORTER_METRICS", false)
	a.usage = "dcgm-exporter's; nothing that is missing at the start ends the exporter"
	a.boolean("disable-startup-validate", "DISABLE_STARTUP_VALIDATE", false)
	return a.flags
}

// notYetFlags are dcgm-exporter's that have no effect yet. They are accepted, so that an installation's arguments go on working, and
// answered with a warning each, so that nobody believes in them.
func notYetFlags() []cli.Flag {
	a := acceptedFlags{usage: "dcgm-exporter's; no effect yet", category: "accepted, without effect yet"}
	a.text("configmap-data,m", "DCGM_EXPORTER_CONFIGMAP_DATA", "none")
	a.text("config-file", "DCGM_EXPORTER_CONFIG_FILE", "")
	a.boolean("kubernetes-enable-dra", "KUBERNETES_ENABLE_DRA", false)
	a.boolean("fake-gpus", "DCGM_EXPORTER_USE_FAKE_GPUS", false)
	a.boolean("dump-enabled", "DCGM_EXPORTER_DUMP_ENABLED", false)
	a.text("dump-directory", "DCGM_EXPORTER_DUMP_DIRECTORY", "/tmp/dcgm-exporter-debug")
	a.text("dump-retention", "DCGM_EXPORTER_DUMP_RETENTION", "24")
	a.boolean("dump-compression", "DCGM_EXPORTER_DUMP_COMPRESSION", true)
	a.text("container-labels", "DCGM_EXPORTER_CONTAINER_LABELS", "")
	a.text("container-runtime-socket", "DCGM_EXPORTER_CONTAINER_RUNTIME_SOCKET", "")
	return a.flags
}

// asked are the not-yet flags that were given a value other than their default.
func asked(cmd *cli.Command, later []cli.Flag) []string {
	var out []string
	for _, f := range later {
		name := f.Names()[0]
		if !cmd.IsSet(name) {
			continue
		}
		switch f := f.(type) {
		case *cli.BoolFlag:
			if v := cmd.Bool(name); v != f.Value {
				out = append(out, fmt.Sprintf("--%s=%v", name, v))
			}
		case *cli.StringFlag:
			if v := cmd.String(name); v != f.Value {
				out = append(out, fmt.Sprintf("--%s=%s", name, v))
			}
		}
	}
	return out
}
