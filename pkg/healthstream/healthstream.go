// SPDX-License-Identifier: Apache-2.0

// Package healthstream carries a node's verdicts to whoever acts on them, over gRPC on a unix
// socket: the complete list on every change and a heartbeat in between, so that a lost message
// heals itself. The server has any number of clients and waits for none of them; the client
// keeps the last list when the stream is lost.
package healthstream

import (
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
)

//go:generate go -C ../../tests/protogen run . gpumeter/health/v1/health.proto ../../pkg/healthstream/healthv1/health.proto

// List is all that the stream says: the devices of a node and what is known of their health.
// It is never modified once made.
type List struct {
	// Epoch names the server's life; versions of different epochs cannot be compared.
	Epoch string
	// Node is the node's name.
	Node string
	// Source is where the server has its readings from: "dcgm", "nvml" or "sim".
	Source string
	// Devices are physical GPUs, each followed by its MIG devices. They have identity, place and
	// profile, but neither Capacity nor MIGProfiles.
	Devices []Device
	// Report has a verdict for each device. Report.Version is the list's version: it grows
	// with every change of the devices or of the verdicts.
	Report health.Report
}

// Device is a device with what its allocation needs beside gpu.Device.
type Device struct {
	gpu.Device
	// MemoryBytes is the framebuffer's size, 0 where it is not known.
	MemoryBytes uint64
	// ComputeCapability is the CUDA one, "9.0"; empty where it is not known.
	ComputeCapability string
	// Peers are the GPUs that direct NVLinks lead to, with their number; only on a physical GPU.
	Peers map[gpu.UUID]int
}

// Received is a List with when it came, as a client has it.
type Received struct {
	List
	// At is the client's time of the last list or heartbeat.
	At time.Time
}
