// SPDX-License-Identifier: Apache-2.0

// Package app is the device plugin's wiring: flags, environment and NVIDIA's config file to
// settings, the settings with a node's GPUs and their verdicts to a running deviceplugin.Manager.
//
// Whatever changes while it runs (config, node label, MIG layout, verdicts) becomes a new
// deviceplugin.State for the Manager, which changes what it concerns and nothing else.
package app

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/healthstream"
)

// The sources of the inventory.
const (
	sourceAuto   = "auto"
	sourceNVML   = "nvml"
	sourceStream = "stream"
	sourceSim    = "sim"
)

// The policies for a health stream that is lost.
const (
	policyKeep      = "keep"
	policyUnhealthy = "unhealthy"
)

// config is what the program is told once, when it starts. What NVIDIA's config file can say is in flags and env.
type config struct {
	// flags are those of NVIDIA's options that were given; env is the environment.
	flags flagValues
	env   lookup

	configFile    string
	configFileSet bool
	// configDir has the files that a node label chooses from.
	configDir     string
	defaultConfig string
	fallbacks     []string
	nodeLabel     string
	nodeName      string
	kubeconfig    string

	kubeletDir       string
	kubeletSocket    string
	kubeletSocketSet bool

	source   string
	nvml     string
	scenario string
	interval time.Duration
	// hostRoot is the folder in which the host's sys, proc and dev are seen.
	hostRoot   string
	cdiDir     string
	noTopology bool

	healthSocket string
	lostAfter    time.Duration
	lostPolicy   string
	holdDown     time.Duration
	// xidFile has rows that replace those of the shipped table of XIDs, for the plugin's own engine.
	xidFile  string
	stateDir string

	mps mpsConfig

	features featureConfig
	// nodeWatch is how far the node's labels are asked for what its MIG manager says.
	nodeWatch string
	// repartition is for how long judging is paused at most for a repartition; 0 for never.
	repartition time.Duration

	address       string
	webConfigFile string
	logFormat     string
	debug         bool
	check         bool
}

// defaults is the config of a command line without flags.
func defaults() config {
	return config{
		nodeLabel: "nvidia.com/device-plugin.config", fallbacks: []string{"named", "single", "empty"},
		kubeletDir: "/var/lib/kubelet",
		source:     sourceAuto, scenario: "default", interval: time.Second, hostRoot: "/", cdiDir: "/var/run/cdi",
		healthSocket: healthstream.DefaultSocket, lostPolicy: policyKeep, holdDown: health.DefaultHoldDown, stateDir: "/var/lib/gpumeter",
		mps:       mpsConfig{daemon: mpsOwn},
		features:  featureConfig{labels: featuresOff, file: "/etc/kubernetes/node-feature-discovery/features.d/gpumeter"},
		nodeWatch: nodeWatchAuto, repartition: health.DefaultRepartitionFor,
		address: ":9402", logFormat: "text",
	}
}

// pluginDir is the kubelet's folder for device plugins, and socket its own in it, empty where it
// is not to be registered with.
func (c config) pluginDir() (dir, socket string) {
	dir = filepath.Join(c.kubeletDir, "device-plugins")
	if !c.kubeletSocketSet {
		return dir, filepath.Join(dir, "kubelet.sock")
	}
	if c.kubeletSocket == "" {
		return dir, ""
	}
	return filepath.Dir(c.kubeletSocket), c.kubeletSocket
}

// fallbackWords are what can stand in for a node label that is not there.
func fallbackWords() []string { return []string{"named", "single", "empty"} }

// validate finds what can be known to be wrong before anything starts.
func (c config) validate() error {
	var problems []error
	bad := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	word := func(flag, value string, allowed ...string) {
		if !slices.Contains(allowed, value) {
			bad("--%s %q: want %s", flag, value, either(allowed))
		}
	}
	word("source", c.source, sourceAuto, sourceNVML, sourceStream, sourceSim)
	word("health-lost-policy", c.lostPolicy, policyKeep, policyUnhealthy)
	word("mps-daemon", c.mps.daemon, mpsOwn, mpsExternal, mpsOff)
	word("feature-labels", c.features.labels, featuresOff, featuresFile, featuresNode)
	word("node-watch", c.nodeWatch, nodeWatchAuto, nodeWatchOn, nodeWatchOff)
	word("log-format", c.logFormat, "text", "json")
	for _, f := range c.fallbacks {
		word("fallback-strategies", f, fallbackWords()...)
	}
	if c.source == sourceStream && c.healthSocket == "" {
		bad("--source=stream needs a --health-socket")
	}
	if c.configFileSet && c.configDir != "" {
		bad("--config-file and --config-dir cannot be given together: a node label chooses a file of the folder")
	}
	if c.configDir != "" && c.nodeName == "" && !c.check {
		bad("--config-dir needs the node's name for its label %s: set NODE_NAME from spec.nodeName", c.nodeLabel)
	}
	problems = append(problems, c.validateNode()...)
	if c.defaultConfig != "" && filepath.Base(c.defaultConfig) != c.defaultConfig {
		bad("--default-config %q: want the name of a file in --config-dir", c.defaultConfig)
	}
	if c.interval < 100*time.Millisecond || c.interval > time.Minute {
		bad("--interval %v: want 100ms to 1m", c.interval)
	}
	if c.lostAfter < 0 {
		bad("--health-lost-after %v: want 0 (never) or more", c.lostAfter)
	}
	if c.lostAfter == 0 && c.lostPolicy == policyUnhealthy {
		bad("--health-lost-policy=unhealthy needs a --health-lost-after, such as 10m")
	}
	if _, _, err := ownXIDs(c.xidFile, c.env); err != nil {
		problems = append(problems, err)
	}
	if dir, _ := c.pluginDir(); !filepath.IsAbs(dir) {
		bad("--kubelet-dir %q: want an absolute path", c.kubeletDir)
	}
	return errors.Join(problems...)
}

// logger writes to w in the configured format and level.
func (c config) logger(w interface{ Write([]byte) (int, error) }) *slog.Logger {
	o := &slog.HandlerOptions{Level: slog.LevelInfo}
	if c.debug {
		o.Level = slog.LevelDebug
	}
	if c.logFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

// trimmed are the words without blanks and empty ones.
func trimmed(in []string) []string {
	var out []string
	for _, s := range in {
		if s = strings.TrimSpace(s); s != "" {
			out = append(out, s)
		}
	}
	return out
}
