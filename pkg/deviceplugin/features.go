// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// NodeFacts are what labels say beside the inventory. What is zero is not known, and makes no label.
type NodeFacts struct {
	// DriverVersion is the driver's, "580.95.05".
	DriverVersion string
	// CUDAVersion is the one that the driver supports, 1000 times the major and 10 times the minor number: 13000.
	CUDAVersion int
	// Machine is the firmware's name of the machine, foreign text.
	Machine string
	// MIGKnown says that the inventory has the MIG profiles of each GPU that offers any.
	MIGKnown bool
	// Changed is when the labels last were others.
	Changed time.Time
}

// The labels that are one for a node; those of a resource are its name, a dot and a word.
const (
	labelMIGStrategy = defaultDomain + "mig.strategy"
	labelMIGCapable  = defaultDomain + "mig.capable"
	labelMPSCapable  = defaultDomain + "mps.capable"
	labelMachine     = defaultGPUName + ".machine"
	labelMode        = defaultGPUName + ".mode"
	labelTimestamp   = defaultDomain + "gfd.timestamp"
)

// Features are the labels of a node as NVIDIA's GPU feature discovery has them, for who chooses nodes by what
// their GPUs are. They speak of what is there, whether it works or not. Where devices of one name differ in something,
// that has no label: it holds for none of them. A node without GPUs has no labels.
func Features(inv Inventory, s Settings, node NodeFacts) map[string]string {
	l := newFeatures(inv, s)
	if len(l.cards) == 0 {
		return map[string]string{}
	}
	l.node(node)
	l.gpus()
	if s.MIGStrategy == MIGMixed {
		l.profiles()
	}
	return l.labels
}

// features makes the labels of one node.
type features struct {
	settings Settings
	labels   map[string]string
	// cards are the physical GPUs, parts the MIG devices, each after its card.
	cards, parts []*Device
	model        map[gpu.UUID]string
	// seats are how many each device is handed out as, bare those whose name does not say that they are shared.
	seats map[gpu.UUID]int
	bare  map[gpu.UUID]bool
	kind  Sharing
}

func newFeatures(inv Inventory, s Settings) *features {
	l := &features{settings: s, labels: map[string]string{}, model: map[gpu.UUID]string{}, seats: map[gpu.UUID]int{}, bare: map[gpu.UUID]bool{}, kind: SharingNone}
	l.cards, l.parts = split((&planner{settings: s}).known(inv))
	for _, d := range l.cards {
		l.model[d.UUID] = d.Model
	}
	alone := s
	alone.Sharing = SharingNone
	unshared, _ := NewPlan(inv, alone)
	base := map[gpu.UUID]string{}
	for _, r := range unshared.Resources {
		for _, seat := range r.Seats {
			base[seat.Device] = r.Name
		}
	}
	plan, _ := NewPlan(inv, s)
	for _, r := range plan.Resources {
		if r.Sharing != SharingNone {
			l.kind = r.Sharing
		}
		for _, seat := range r.Seats {
			l.seats[seat.Device]++
			l.bare[seat.Device] = base[seat.Device] == r.Name
		}
	}
	return l
}

// node is what does not depend on a resource.
func (l *features) node(n NodeFacts) {
	if l.settings.MIGStrategy == MIGSingle || l.settings.MIGStrategy == MIGMixed {
		l.set(labelMIGStrategy, string(l.settings.MIGStrategy))
	}
	capable := slices.ContainsFunc(l.cards, func(d *Device) bool { return d.MIGEnabled || len(d.MIGProfiles) > 0 })
	if capable || n.MIGKnown {
		l.set(labelMIGCapable, strconv.FormatBool(capable))
	}
	l.set(labelMPSCapable, strconv.FormatBool(l.kind == SharingMPS))
	l.set(labelMachine, plainValue(n.Machine))
	if class, known := alike(l.cards, func(d *Device) uint32 { return d.PCIClass }); known {
		l.set(labelMode, mode(class))
	}
	if parts := strings.Split(n.DriverVersion, "."); len(parts) == 2 || len(parts) == 3 {
		l.set(defaultDomain+"cuda.driver-version.full", n.DriverVersion)
		for i, words := range [][2]string{{"driver-version.major", "driver.major"}, {"driver-version.minor", "driver.minor"}, {"driver-version.revision", "driver.rev"}} {
			if i < len(parts) {
				l.set(defaultDomain+"cuda."+words[0], parts[i])
				l.set(defaultDomain+"cuda."+words[1], parts[i])
			}
		}
	}
	if major, minor := n.CUDAVersion/1000, n.CUDAVersion%1000/10; major > 0 {
		l.set(defaultDomain+"cuda.runtime-version.full", fmt.Sprintf("%d.%d", major, minor))
		for _, word := range []string{"runtime-version", "runtime"} {
			l.set(defaultDomain+"cuda."+word+".major", strconv.Itoa(major))
			l.set(defaultDomain+"cuda."+word+".minor", strconv.Itoa(minor))
		}
	}
	if !n.Changed.IsZero() {
		l.set(labelTimestamp, strconv.FormatInt(n.Changed.Unix(), 10))
	}
}

// gpus are the labels of nvidia.com/gpu: of the physical GPUs, or, with the MIG strategy single, of the MIG devices that
// go by this name.
func (l *features) gpus() {
	l.architecture(defaultGPUName, l.cards)
	if l.settings.MIGStrategy != MIGSingle || len(l.parts) == 0 {
		l.resource(defaultGPUName, l.cards)
		return
	}
	l.resource(defaultGPUName, (&planner{settings: l.settings}).alike(l.parts))
}

// profiles are the labels of the MIG devices of each profile.
func (l *features) profiles() {
	by := map[string][]*Device{}
	for _, d := range l.parts {
		if name, err := FullName(DefaultName(d.Profile.Name)); err == nil && d.Profile.Name != "" {
			by[name] = append(by[name], d)
		}
	}
	for name, devices := range by {
		l.resource(name, devices)
	}
}

// resource are the labels of devices that go by one name.
func (l *features) resource(name string, devices []*Device) {
	shared, handed := l.sharing(devices)
	l.set(name+".count", strconv.Itoa(len(devices)))
	l.set(name+".sharing-strategy", string(shared))
	if n, all := same(handed, func(d *Device) int { return l.seats[d.UUID] }); all || len(handed) == 0 {
		l.set(name+".replicas", strconv.Itoa(n))
	}
	if product, known := alike(devices, l.product); known {
		suffix := ""
		if shared != SharingNone && slices.ContainsFunc(handed, func(d *Device) bool { return l.seats[d.UUID] > 1 && l.bare[d.UUID] }) {
			suffix = "-SHARED"
		}
		l.set(name+".product", product.value(suffix))
	}
	l.number(name+".memory", devices, func(d *Device) int { return int(d.MemoryBytes >> 20) })
	if !devices[0].IsMIG() {
		return
	}
	l.number(name+".multiprocessors", devices, func(d *Device) int { return d.Profile.ComputeInstanceSMs })
	l.number(name+".slices.gi", devices, func(d *Device) int { return d.Profile.Compute })
	l.number(name+".slices.ci", devices, func(d *Device) int { return d.Profile.ComputeInstanceSlices })
}

// sharing is how devices are shared, if any is, and which of them are handed out.
func (l *features) sharing(devices []*Device) (Sharing, []*Device) {
	kind := SharingNone
	var handed []*Device
	for _, d := range devices {
		if l.seats[d.UUID] > 0 {
			handed = append(handed, d)
		}
		if l.seats[d.UUID] > 1 {
			kind = l.settings.Sharing
		}
	}
	return kind, handed
}

// architecture is what CUDA programs are built for.
func (l *features) architecture(name string, cards []*Device) {
	capability, known := alike(cards, func(d *Device) string { return d.ComputeCapability })
	major, minor, ok := strings.Cut(capability, ".")
	if !known || !ok {
		return
	}
	l.set(name+".compute.major", major)
	l.set(name+".compute.minor", minor)
	l.set(name+".family", family(major, minor))
}

// alike is what all the devices of which it is known have, and whether that is the same. A GPU that does not answer now
// changes no label.
func alike[T comparable](devices []*Device, of func(*Device) T) (T, bool) {
	var unknown T
	return same(slices.DeleteFunc(slices.Clone(devices), func(d *Device) bool { return of(d) == unknown }), of)
}

// number is a label of what all the devices have the same of, and is known.
func (l *features) number(name string, devices []*Device, of func(*Device) int) {
	if n, known := alike(devices, of); known {
		l.set(name, strconv.Itoa(n))
	}
}

// set adds a label, unless there is nothing to say or Kubernetes would not take it.
func (l *features) set(name, value string) {
	if validLabel(name, value) {
		l.labels[name] = value
	}
}

// same is what all the devices have, and whether they have the same.
func same[T comparable](devices []*Device, of func(*Device) T) (T, bool) {
	var first T
	for i, d := range devices {
		switch v := of(d); {
		case i == 0:
			first = v
		case v != first:
			var none T
			return none, false
		}
	}
	return first, len(devices) > 0
}

// family is NVIDIA's word for the GPUs of a compute capability, empty for one that is not known here.
func family(major, minor string) string {
	switch major {
	case "3":
		return "kepler"
	case "5":
		return "maxwell"
	case "6":
		return "pascal"
	case "7":
		if minor < "5" {
			return "volta"
		}
		return "turing"
	case "8":
		if minor < "9" {
			return "ampere"
		}
		return "ada-lovelace"
	case "9":
		return "hopper"
	case "10", "11", "12":
		return "blackwell"
	default:
		return ""
	}
}

// mode is what GPUs of a PCI class are built for, empty where it is not known.
func mode(class uint32) string {
	switch class {
	case 0x030000:
		return "graphics"
	case 0x030200:
		return "compute"
	default:
		return ""
	}
}
