// SPDX-License-Identifier: Apache-2.0

// Package app is the exporter's wiring: flags to Config, Config to a running App.
// It is shared by gpumeter-exporter and by `gpumeter demo`, so that the demo runs
// what users run.
package app

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/pkg/dcgm"
	"github.com/gpumeter/gpumeter/pkg/meter"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// DefaultCollectors is where dcgm-exporter's images keep their counters.
const DefaultCollectors = "/etc/dcgm-exporter/default-counters.csv"

// Config is everything the exporter can be told. The zero value is not usable;
// flags give it its defaults.
type Config struct {
	Collectors string
	// CollectorsSet says that the operator named the file, so that a missing one is an error.
	CollectorsSet bool
	Address       string
	Interval      string

	Kubernetes      bool
	KubeletSocket   string
	KubeletSet      bool
	KubeletMaxAge   time.Duration
	Checkpoint      string
	EnablePodUID    bool
	GPUIDType       string
	ResourceNames   []string
	ResourcePattern []string
	VirtualGPUs     bool
	// KubeletPoll is how often the kubelet is asked between ticks whether its allocations have changed; 0 for never.
	KubeletPoll time.Duration
	// PodLabels adds pods' labels to device series, those whose key one of PodLabelAllowlist's regular expressions matches.
	PodLabels         bool
	PodLabelAllowlist string
	// PodWatch is one of PodWatchAuto, PodWatchOn, PodWatchOff.
	PodWatch string
	// Kubeconfig says how the API server is reached; empty for the service account of the pod that this runs in.
	Kubeconfig string

	// JobFolder is where a batch scheduler says which job has which GPU; empty for nowhere.
	JobFolder string

	UseOldNamespace bool
	NoHostname      bool
	HostnameLabel   string
	NodeName        string
	// PodName and PodNamespace are the exporter's own pod, where it is one.
	PodName, PodNamespace string
	ReplaceBlanks         bool

	MIGPolicy  string
	MIGWeights []string

	// Source is auto, dcgm, nvml or sim.
	Source string
	// DCGMLibrary and NVMLLibrary are paths or sonames; empty for the usual ones.
	DCGMLibrary, NVMLLibrary string
	// HostEngine is the address of a host engine; empty for one inside this process.
	HostEngine string
	// DCGMLog has the engine inside this process write its log to the standard output.
	DCGMLog      bool
	DCGMLogLevel string
	// DCGMRelease lets SIGUSR1 let go of the driver.
	DCGMRelease bool
	// Devices, SwitchDevices and CPUDevices are selections.
	Devices, SwitchDevices, CPUDevices string
	// XIDWindow and ClockWindow are how far back the DCGM_EXP_*_COUNT metrics look.
	XIDWindow, ClockWindow string

	Health HealthConfig
	Ledger LedgerConfig

	Scenario string
	Speed    float64
	Seed     uint64
	SeedSet  bool

	WebConfigFile    string
	WebSystemdSocket bool
	ReadTimeout      time.Duration
	WriteTimeout     time.Duration
	EnablePprof      bool
	Debug            bool
	// Quiet leaves out of the log what is no warning.
	Quiet     bool
	LogFormat string

	// NotYet names what was asked for and is not there yet.
	NotYet []string
}

// sources are what --source takes.
func sources() []string { return []string{"auto", SourceDCGM, SourceNVML, SourceSim} }

// dcgmLogLevels are the severities of libdcgm's log.
func dcgmLogLevels() []string {
	return []string{"NONE", "FATAL", "ERROR", "WARN", "INFO", "DEBUG", "VERB"}
}

// dcgmLogLevel is the level as DCGM writes it.
func (c Config) dcgmLogLevel() string { return strings.ToUpper(c.DCGMLogLevel) }

// Duration reads an interval the way dcgm-exporter's users write it: a bare number
// is milliseconds, anything else a Go duration.
func Duration(s string) (time.Duration, error) {
	s = strings.TrimSpace(s)
	if ms, err := strconv.ParseInt(s, 10, 64); err == nil {
		if ms > int64(24*time.Hour/time.Millisecond) {
			return 0, fmt.Errorf("%q is %d ms, longer than a day", s, ms)
		}
		return time.Duration(ms) * time.Millisecond, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf(`%q is neither milliseconds ("30000") nor a duration ("30s")`, s)
	}
	return d, nil
}

// interval is the tick's, checked against the floor.
func (c Config) interval() (time.Duration, error) {
	d, err := Duration(c.Interval)
	if err != nil {
		return 0, fmt.Errorf("--collect-interval: %w", err)
	}
	if d < meter.MinInterval {
		hint := ""
		if n, err := strconv.Atoi(strings.TrimSpace(c.Interval)); err == nil && n > 0 {
			hint = fmt.Sprintf(" (a bare number is milliseconds: did you mean %ds?)", n)
		}
		return 0, fmt.Errorf("--collect-interval %s is %v; the least is %v%s", c.Interval, d, meter.MinInterval, hint)
	}
	if d > time.Hour {
		return 0, fmt.Errorf("--collect-interval %s is %v; the most is 1h", c.Interval, d)
	}
	return d, nil
}

// maxWindow bounds what the meter has to remember.
const maxWindow = 24 * time.Hour

// windows are how far back XIDs and clock events are counted.
func (c Config) windows() (xid, clock time.Duration, err error) {
	if xid, err = window("xid-count-window-size", c.XIDWindow); err != nil {
		return 0, 0, err
	}
	clock, err = window("clock-events-count-window-size", c.ClockWindow)
	return xid, clock, err
}

func window(flag, text string) (time.Duration, error) {
	d, err := Duration(text)
	switch {
	case err != nil:
		return 0, fmt.Errorf("--%s: %w", flag, err)
	case d < time.Millisecond || d > maxWindow:
		return 0, fmt.Errorf("--%s %s is %v: want 1ms to %v (a bare number is milliseconds)", flag, text, d, maxWindow)
	}
	return d, nil
}

// Policy is how MIG devices are weighed.
func (c Config) Policy() (sharing.Policy, error) {
	if c.MIGPolicy != "table" {
		if len(c.MIGWeights) > 0 {
			return sharing.Policy{}, fmt.Errorf("--mig-weight is for --mig-policy=table, not %s", c.MIGPolicy)
		}
		p, err := sharing.ParsePolicy(c.MIGPolicy)
		if err != nil {
			return sharing.Policy{}, fmt.Errorf("--mig-policy: %w, or table with --mig-weight", err)
		}
		return p, nil
	}
	table := make(map[string]sharing.Fraction, len(c.MIGWeights))
	for _, w := range c.MIGWeights {
		name, text, ok := strings.Cut(w, "=")
		if !ok {
			return sharing.Policy{}, fmt.Errorf("--mig-weight %q: want PROFILE=FRACTION, such as 1g.10gb=1/8", w)
		}
		f, err := sharing.ParseFraction(text)
		if err != nil {
			return sharing.Policy{}, fmt.Errorf("--mig-weight %q: %w", w, err)
		}
		if _, twice := table[name]; twice {
			return sharing.Policy{}, fmt.Errorf("--mig-weight names %s twice", name)
		}
		table[name] = f
	}
	if len(table) == 0 {
		return sharing.Policy{}, errors.New("--mig-policy=table needs at least one --mig-weight PROFILE=FRACTION")
	}
	p, err := sharing.NewTablePolicy(table)
	if err != nil {
		return sharing.Policy{}, fmt.Errorf("--mig-weight: %w", err)
	}
	return p, nil
}

// resources are the extended resources whose ids are GPUs.
func (c Config) resources() (sharing.Resources, error) {
	patterns := sharing.DefaultResourcePatterns()
	patterns = append(patterns, trimmed(c.ResourceNames)...)
	patterns = append(patterns, trimmed(c.ResourcePattern)...)
	r, err := sharing.NewResources(patterns...)
	if err != nil {
		return sharing.Resources{}, fmt.Errorf("--resource-pattern or --nvidia-resource-names: %w", err)
	}
	return r, nil
}

func trimmed(in []string) []string {
	var out []string
	for _, s := range in {
		if s = strings.TrimSpace(s); s != "" {
			out = append(out, s)
		}
	}
	return out
}

// Validate finds what can be known to be wrong before anything starts.
func (c Config) Validate() error {
	if _, err := c.interval(); err != nil {
		return err
	}
	if _, err := c.resources(); err != nil {
		return err
	}
	if _, err := c.Policy(); err != nil {
		return err
	}
	if err := c.validateSource(); err != nil {
		return err
	}
	if err := c.Health.validate(); err != nil {
		return err
	}
	if err := c.Ledger.validate(); err != nil {
		return err
	}
	if err := c.validatePods(); err != nil {
		return err
	}
	switch c.GPUIDType {
	case "uid", "device-name":
	default:
		return fmt.Errorf("--kubernetes-gpu-id-type %q: want uid or device-name (both are recognised by themselves, id by id)", c.GPUIDType)
	}
	switch c.HostnameLabel {
	case "hostname", "Hostname":
	default:
		return fmt.Errorf("--hostname-label %q: want hostname or Hostname", c.HostnameLabel)
	}
	switch c.LogFormat {
	case "text", "json":
	default:
		return fmt.Errorf("--log-format %q: want text or json", c.LogFormat)
	}
	if c.EnablePprof && c.WebConfigFile == "" && !loopback(c.Address) {
		return errors.New("--enable-pprof shows memory to whoever asks: give a --web-config-file with authentication, or listen on 127.0.0.1")
	}
	for _, t := range []struct {
		flag  string
		value time.Duration
	}{{"kubelet-max-age", c.KubeletMaxAge}, {"web-read-timeout", c.ReadTimeout}, {"web-write-timeout", c.WriteTimeout}} {
		if t.value <= 0 {
			return fmt.Errorf("--%s %v: want more than 0, such as 10s", t.flag, t.value)
		}
	}
	if !(c.Speed > 0) || c.Speed > 1e6 {
		return fmt.Errorf("--speed %v: want more than 0 and at most 1000000", c.Speed)
	}
	return nil
}

// validateSource checks what concerns the source of GPU readings.
func (c Config) validateSource() error {
	if !slices.Contains(sources(), c.Source) {
		return fmt.Errorf("--source %q: want %s", c.Source, strings.Join(sources(), ", "))
	}
	if _, err := c.endpoint(); err != nil {
		return err
	}
	if _, err := c.selections(); err != nil {
		return err
	}
	if _, _, err := c.windows(); err != nil {
		return err
	}
	if !slices.Contains(dcgmLogLevels(), c.dcgmLogLevel()) {
		return fmt.Errorf("--dcgm-log-level %q: want %s", c.DCGMLogLevel, strings.Join(dcgmLogLevels(), ", "))
	}
	return nil
}

// endpoint is the host engine that was named, the zero Endpoint where none was.
func (c Config) endpoint() (dcgm.Endpoint, error) {
	if c.HostEngine == "" {
		return dcgm.Endpoint{}, nil
	}
	e, err := dcgm.ParseEndpoint(c.HostEngine)
	if err != nil {
		return dcgm.Endpoint{}, fmt.Errorf("--remote-hostengine-info: %w", err)
	}
	return e, nil
}

func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err == nil && loopbackHost(host)
}

func loopbackHost(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Hostname is the value of the hostname label: the name of the node that the GPUs are in,
// where it is known. simulated is a simulated node's, else empty.
func (c Config) Hostname(simulated string) (string, error) {
	switch {
	case c.NoHostname:
		return "", nil
	case c.NodeName != "":
		return c.NodeName, nil
	case simulated != "":
		return simulated, nil
	}
	if remote := c.engineHost(); remote != "" && !c.Kubernetes {
		return remote, nil
	}
	h, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("host name for the %s label: %w; set NODE_NAME or --no-hostname", c.HostnameLabel, err)
	}
	return h, nil
}

// engineHost is the other machine that a host engine runs on, empty for one on this.
func (c Config) engineHost() string {
	e, err := c.endpoint()
	if err != nil || c.Source == "nvml" {
		return ""
	}
	u, err := url.Parse(e.String())
	if err != nil || u.Scheme != "tcp" || loopbackHost(u.Hostname()) {
		return ""
	}
	return u.Hostname()
}

// logger writes to w in the configured format and level.
func (c Config) logger(w interface{ Write([]byte) (int, error) }) *slog.Logger {
	o := &slog.HandlerOptions{Level: slog.LevelInfo}
	switch {
	case c.Debug:
		o.Level = slog.LevelDebug
	case c.Quiet:
		o.Level = slog.LevelWarn
	}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
