// SPDX-License-Identifier: Apache-2.0

// Package deviceplugin hands out GPUs, MIG devices and their replicas to the kubelet, over its
// device plugin API v1beta1. What is handed out follows from an Inventory, Settings and the
// verdicts of a health.Report; a change of any of them is a new list on the streams that are
// open, and disturbs no resource that it does not concern. Nothing here calls a driver.
package deviceplugin

import (
	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// Inventory is what a node has to hand out. It is never modified once made.
type Inventory struct {
	// Devices are physical GPUs in index order, each followed by its MIG devices.
	Devices []Device
	// Links are the direct ways between two physical GPUs; both directions are the same one.
	Links []Link
	// ControlNodes are the device nodes that every container with a GPU needs and that the
	// host has, such as /dev/nvidiactl.
	ControlNodes []string
	// Physical says that the devices are this machine's own, and not pretended or told of by somebody: where
	// no device node of one is there, no container can use it.
	Physical bool
	// IMEXChannels are the IMEX channels whose device nodes the host has.
	IMEXChannels []int
}

// Device is a gpu.Device with what its allocation needs.
type Device struct {
	gpu.Device
	// NUMANode is where the card is attached, -1 for nowhere in particular.
	NUMANode int
	// PCIPath is the card's way through the PCI bridges, from the root port down, as sysfs has
	// it; empty where it is not known.
	PCIPath string
	// PCIClass is the card's, as sysfs has it: 0x030200 for one without a display; 0 where it is not known.
	PCIClass uint32
	// Nodes are its own device nodes on the host, such as /dev/nvidia0, for a MIG device
	// also the capabilities of its instances, /dev/nvidia-caps/nvidia-cap12. They are
	// written as a container has them, without Settings.DevRoot.
	Nodes []string
	// MemoryBytes is the framebuffer's size, 0 where it is not known.
	MemoryBytes uint64
	// ComputeCapability is the CUDA one, "9.0"; empty where it is not known.
	ComputeCapability string
}

// Link is how two GPUs are joined by NVLink.
type Link struct {
	A, B gpu.UUID
	// NVLinks is how many direct links there are.
	NVLinks int
}

// MIGStrategy is how MIG devices are handed out.
type MIGStrategy string

const (
	// MIGNone: physical GPUs only, also those in MIG mode.
	MIGNone MIGStrategy = "none"
	// MIGSingle: all MIG devices are alike and are handed out as nvidia.com/gpu.
	MIGSingle MIGStrategy = "single"
	// MIGMixed: each profile is a resource of its own, nvidia.com/mig-1g.10gb.
	MIGMixed MIGStrategy = "mixed"
)

// Sharing is how a resource's devices are shared.
type Sharing string

// The kinds of sharing.
const (
	SharingNone        Sharing = "none"
	SharingTimeSlicing Sharing = "time-slicing"
	SharingMPS         Sharing = "mps"
)

// ListStrategy is how a container is told its devices.
type ListStrategy string

// The list strategies.
const (
	ListEnvvar         ListStrategy = "envvar"
	ListVolumeMounts   ListStrategy = "volume-mounts"
	ListCDIAnnotations ListStrategy = "cdi-annotations"
	ListCDICRI         ListStrategy = "cdi-cri"
)

// IDStrategy is what stands for a device in what a container is told.
type IDStrategy string

// The id strategies.
const (
	IDUUID  IDStrategy = "uuid"
	IDIndex IDStrategy = "index"
)

// SharedPolicy is which replicas are preferred.
type SharedPolicy string

const (
	// Distributed takes the device with the fewest replicas given away.
	Distributed SharedPolicy = "distributed"
	// Packed takes the one with the most.
	Packed SharedPolicy = "packed"
)

// Settings are what the operator wants, checked and complete: the config file, flags and
// environment together.
type Settings struct {
	MIGStrategy MIGStrategy
	// GPUNames and MIGNames choose resource names: the first rule that matches. Without a match
	// a GPU is nvidia.com/gpu and a MIG device nvidia.com/mig-<profile>.
	GPUNames, MIGNames []NameRule
	// Sharing is the kind in use; SharedResources has the resources it concerns.
	Sharing                    Sharing
	RenameByDefault            bool
	FailRequestsGreaterThanOne bool
	SharedResources            []SharedResource

	ListStrategies []ListStrategy
	IDStrategy     IDStrategy
	SharedPolicy   SharedPolicy
	// PassDeviceSpecs adds the device nodes to what envvar and volume-mounts answer.
	PassDeviceSpecs bool
	// CDIAnnotationPrefix is "cdi.k8s.io/" unless changed.
	CDIAnnotationPrefix string
	// DevRoot is the prefix of device nodes on the host, "/" unless changed.
	DevRoot             string
	GDRCopy, GDS, MOFED bool
	IMEXChannels        []int
	IMEXRequired        bool
	// MPSRoot is the folder of MPS on the host.
	MPSRoot string
	// NoTopology leaves out NUMA hints.
	NoTopology bool
}

// NameRule names the devices that a pattern matches: of a GPU its product name with * and ?,
// of a MIG device its profile, exactly or with * and ?.
type NameRule struct{ Pattern, Name string }

// SharedResource is a resource whose devices are handed out as replicas.
type SharedResource struct {
	// Name is the resource before it is renamed, "nvidia.com/gpu".
	Name string
	// Rename is the name it gets, empty for none but what RenameByDefault says.
	Rename string
	// All shares every device; otherwise Devices names those that are ("0" for a GPU, "0:1" for
	// the second MIG device of GPU 0, UUIDs), or, if that is empty too, Count is how many of
	// them, in the order of the inventory. What an earlier entry for the same resource has
	// taken is not taken again.
	All     bool
	Devices []string
	Count   int
	// Replicas of each device; 1 hands it out as it is.
	Replicas int
}

// Resource is one extended resource and what it hands out.
type Resource struct {
	// Name is the full one, "nvidia.com/gpu.shared".
	Name string
	// Sharing is SharingNone where no device of it has more than one replica.
	Sharing Sharing
	// Replicas is the largest number of replicas of one device.
	Replicas int
	// Seats are ordered by device, then by replica.
	Seats []Seat
}

// Seat is what the kubelet hands out.
type Seat struct {
	// ID is the device's UUID, with "::n" where it is one of several replicas.
	ID string
	// Device is in the inventory.
	Device gpu.UUID
	// Replica is n, 0 where there is one only.
	Replica int
}
