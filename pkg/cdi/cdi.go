// SPDX-License-Identifier: Apache-2.0

// Package cdi writes the Container Device Interface's spec files, by which a container runtime
// knows what a device of the device plugin is: its device nodes, and the driver's libraries.
// Where NVIDIA's library can be loaded, NVIDIA's generator says what belongs to a device; on a
// node that only pretends to have GPUs it is the device nodes that the caller names. A node that
// should have the library and does not gets these too, and Writer.Bare says so.
package cdi

import (
	"cmp"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

const (
	defaultDir     = "/var/run/cdi"
	defaultVendor  = "k8s.device-plugin.nvidia.com"
	defaultHook    = "/usr/bin/nvidia-ctk"
	defaultTimeout = 30 * time.Second
)

// Config says where the specs go and what is in them. Each zero value has a meaning.
type Config struct {
	// Dir is the folder of the specs, empty for /var/run/cdi.
	Dir string
	// Vendor is the vendor of each kind, empty for "k8s.device-plugin.nvidia.com".
	Vendor string
	// DriverRoot is where the driver is installed on the host, and DevRoot what its device nodes
	// lie under; empty for "/", and for DriverRoot.
	DriverRoot, DevRoot string
	// DriverRootHere is where this process finds the host's DriverRoot, DevRootHere its DevRoot;
	// empty for the same path, and where there is one root only for the same folder.
	DriverRootHere, DevRootHere string
	// HookPath is the program on the host that the runtime calls for a container, empty for
	// /usr/bin/nvidia-ctk.
	HookPath string
	// FeatureFlags and DisabledHooks are NVIDIA's generator's.
	FeatureFlags, DisabledHooks []string
	// GDRCopy, GDS and MOFED add the device "all" of these classes.
	GDRCopy, GDS, MOFED bool
	// IMEXChannels are added as devices of the class imex-channel where the host has them.
	IMEXChannels []int
	// Plain leaves NVIDIA's generator alone also where its library is there: for a simulated node.
	Plain bool
	// Timeout is how long the driver may take to describe all devices, 0 for 30 s.
	Timeout time.Duration
	// Log is where it is told what NVIDIA's generator says; nil for nowhere.
	Log *slog.Logger
}

// Device is a device to be described.
type Device struct {
	// Name is what the allocator calls it, its UUID or its index.
	Name string
	UUID gpu.UUID
	// Nodes are its device nodes as a container has them, control nodes included. NVIDIA's
	// generator finds them itself.
	Nodes []string
	// Lost says that the driver cannot be asked about it.
	Lost bool
}

// MissingError says that some devices have no spec. The others have theirs.
type MissingError struct {
	devices []gpu.UUID
	err     error
}

// Error names the devices and what the driver said.
func (e *MissingError) Error() string {
	names := make([]string, len(e.devices))
	for i, d := range e.devices {
		names[i] = string(d)
	}
	return fmt.Sprintf("CDI: no spec for %s: %v", strings.Join(names, ", "), e.err)
}

// Unwrap is what the driver said.
func (e *MissingError) Unwrap() error { return e.err }

// Missing are the devices.
func (e *MissingError) Missing() []gpu.UUID { return e.devices }

// NewWriter makes a writer; it touches nothing yet.
func NewWriter(cfg Config) *Writer { return newWriter(cfg, nil) }

// newWriter takes the library to ask instead of the driver's, nil for that.
func newWriter(cfg Config, lib nvml.Interface) *Writer {
	cfg.Dir = cmp.Or(cfg.Dir, defaultDir)
	cfg.Vendor = cmp.Or(cfg.Vendor, defaultVendor)
	cfg.DriverRoot = cmp.Or(cfg.DriverRoot, "/")
	cfg.DriverRootHere = cmp.Or(cfg.DriverRootHere, cfg.DriverRoot)
	if cfg.DevRoot == "" || cfg.DevRoot == cfg.DriverRoot {
		cfg.DevRoot = cfg.DriverRoot
		cfg.DevRootHere = cmp.Or(cfg.DevRootHere, cfg.DriverRootHere)
	}
	cfg.DevRootHere = cmp.Or(cfg.DevRootHere, cfg.DevRoot)
	cfg.HookPath = cmp.Or(cfg.HookPath, defaultHook)
	if cfg.Timeout <= 0 {
		cfg.Timeout = defaultTimeout
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Writer{cfg: cfg, lib: lib, known: make(map[gpu.UUID]specs.Device)}
}
