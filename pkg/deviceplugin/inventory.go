// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// Survey adds to the devices what the kernel knows of them: NUMA node, PCI path and device nodes,
// read below root, which is "/" or the folder where a container has the host's. NUMANode, PCIPath
// and Nodes of what it is given do not count. Where there are nodes of the driver, those of the
// devices that it knows are taken to be there. A file that is missing costs the fact only: the
// errors say which, a fact that no allocation needs is not among them.
func Survey(root string, devices []Device, links []Link) (Inventory, []error) {
	s := &survey{root: root}
	inv := Inventory{Devices: slices.Clone(devices), Links: slices.Clone(links)}
	inv.ControlNodes = s.present("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
	s.driver = len(inv.ControlNodes) > 0
	inv.IMEXChannels = IMEXChannels(root)
	caps := s.migMinors(inv.Devices)
	for i := range inv.Devices {
		d := &inv.Devices[i]
		d.NUMANode, d.PCIPath = s.place(d.PCIBusID)
		d.PCIClass = s.class(d.PCIBusID)
		d.Nodes = s.nodes(d, caps)
	}
	return inv, s.errs
}

// WithoutNodes are the devices of which a container would get no device node, where the settings have
// it get them from the plugin: by CDI, or by PassDeviceSpecs. A lost one has none and goes to nobody.
func (inv Inventory) WithoutNodes(s Settings) []gpu.UUID {
	cdi := slices.Contains(s.ListStrategies, ListCDIAnnotations) || slices.Contains(s.ListStrategies, ListCDICRI)
	if !cdi && !s.PassDeviceSpecs {
		return nil
	}
	var out []gpu.UUID
	for _, d := range inv.Devices {
		if len(d.Nodes) == 0 && !d.Lost {
			out = append(out, d.UUID)
		}
	}
	return out
}

type survey struct {
	root string
	// driver says that the driver's nodes can be seen below root.
	driver bool
	errs   []error
}

func (s *survey) path(host string) string { return filepath.Join(s.root, filepath.FromSlash(host)) }

func (s *survey) fail(format string, args ...any) {
	s.errs = append(s.errs, fmt.Errorf(format, args...))
}

// present are those of the paths that the host has.
func (s *survey) present(paths ...string) []string {
	var there []string
	for _, p := range paths {
		_, err := os.Stat(s.path(p))
		switch {
		case err == nil:
			there = append(there, p)
		case !errors.Is(err, fs.ErrNotExist):
			s.fail("device node %s counts as missing: %w", p, err)
		}
	}
	return there
}

// IMEXChannels are those that have a device node below root, none where it cannot be looked at.
func IMEXChannels(root string) []int {
	entries, err := os.ReadDir(filepath.Join(root, filepath.Dir(imexNode(0))))
	if err != nil {
		return nil // almost no node has them
	}
	var channels []int
	for _, e := range entries {
		if number, ok := strings.CutPrefix(e.Name(), "channel"); ok {
			if n, err := strconv.ParseUint(number, 10, 31); err == nil {
				channels = append(channels, int(n))
			}
		}
	}
	slices.Sort(channels)
	return channels
}

// place is where a card is attached.
func (s *survey) place(busID string) (numa int, way string) {
	const nowhere = -1
	if busID == "" {
		return nowhere, ""
	}
	name, err := sysfsName(busID)
	if err != nil {
		s.fail("no NUMA node and no PCI path for %s: %w", busID, err)
		return nowhere, ""
	}
	card := "/sys/bus/pci/devices/" + name
	if target, err := os.Readlink(s.path(card)); err == nil {
		_, way, _ = strings.Cut(filepath.ToSlash(target), "/devices/")
	}
	text, err := os.ReadFile(s.path(card + "/numa_node"))
	if err != nil {
		s.fail("no NUMA node for %s: %w", busID, err)
		return nowhere, way
	}
	numa, err = strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		s.fail("no NUMA node for %s: %w", busID, err)
		return nowhere, way
	}
	return max(numa, nowhere), way
}

// class is a card's PCI class. Nothing but a label needs it.
func (s *survey) class(busID string) uint32 {
	name, err := sysfsName(busID)
	if err != nil {
		return 0
	}
	text, err := os.ReadFile(s.path("/sys/bus/pci/devices/" + name + "/class"))
	if err != nil {
		return 0
	}
	class, err := strconv.ParseUint(strings.TrimSpace(string(text)), 0, 32)
	if err != nil {
		return 0
	}
	return uint32(class)
}

// sysfsName is NVML's PCI address as sysfs writes it, with a domain of four digits if that suffices.
func sysfsName(busID string) (string, error) {
	domain, rest, ok := strings.Cut(busID, ":")
	number, err := strconv.ParseUint(domain, 16, 32)
	if !ok || err != nil || strings.ContainsAny(rest, "/\x00") {
		return "", fmt.Errorf("%q is no PCI address", busID)
	}
	return fmt.Sprintf("%04x:%s", number, strings.ToLower(rest)), nil
}

// instance is a GPU instance, or a compute instance, by the minor number of its card.
type instance struct{ minor, gpu, compute int }

// migMinors are the minor numbers of the capabilities, empty on a node without MIG devices.
func (s *survey) migMinors(devices []Device) map[instance]int {
	if !slices.ContainsFunc(devices, func(d Device) bool { return d.IsMIG() }) {
		return nil
	}
	file, err := os.Open(s.path("/proc/driver/nvidia-caps/mig-minors"))
	if err != nil {
		s.fail("no capabilities of MIG devices: %w", err)
		return nil
	}
	defer file.Close()
	caps, err := parseMIGMinors(file)
	if err != nil {
		s.fail("capabilities of MIG devices in mig-minors: %w", err)
	}
	return caps
}

// parseMIGMinors reads lines as "gpu0/gi1/access 12" and "gpu0/gi1/ci0/access 13". Lines of
// another form, such as "config 1", are about no instance.
func parseMIGMinors(from io.Reader) (map[instance]int, error) {
	caps := make(map[instance]int)
	lines := bufio.NewScanner(from)
	for lines.Scan() {
		name, number, _ := strings.Cut(lines.Text(), " ")
		minor, err := strconv.ParseUint(strings.TrimSpace(number), 10, 31)
		parts := strings.Split(name, "/")
		if err != nil || len(parts) < 3 || len(parts) > 4 || parts[len(parts)-1] != "access" {
			continue
		}
		at := instance{compute: gpu.NoInstance}
		ok := numbered(parts[0], "gpu", &at.minor) && numbered(parts[1], "gi", &at.gpu)
		if ok && (len(parts) == 3 || numbered(parts[2], "ci", &at.compute)) {
			caps[at] = int(minor)
		}
	}
	return caps, lines.Err()
}

func numbered(text, prefix string, n *int) bool {
	digits, ok := strings.CutPrefix(text, prefix)
	value, err := strconv.ParseUint(digits, 10, 31)
	*n = int(value)
	return ok && err == nil
}

func (s *survey) nodes(d *Device, caps map[instance]int) []string {
	if d.Minor < 0 {
		return nil
	}
	want := []string{"/dev/nvidia" + strconv.Itoa(d.Minor)}
	if d.IsMIG() {
		whole := instance{minor: d.Minor, gpu: d.GPUInstance, compute: gpu.NoInstance}
		own := instance{minor: d.Minor, gpu: d.GPUInstance, compute: d.ComputeInstance}
		for _, at := range []instance{whole, own} {
			if n, ok := caps[at]; ok {
				want = append(want, "/dev/nvidia-caps/nvidia-cap"+strconv.Itoa(n))
			}
		}
	}
	if s.driver {
		// A container sees the nodes of its start: those of instances that are made later are
		// on the host and not here.
		return want
	}
	return s.present(want...)
}
