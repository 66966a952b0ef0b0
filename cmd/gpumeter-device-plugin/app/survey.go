// SPDX-License-Identifier: Apache-2.0

package app

import (
	"slices"

	"github.com/gpumeter/gpumeter/pkg/deviceplugin"
)

// surveyed adds what the kernel knows of the devices. IMEX channels may be seen only where the plugin
// has the driver root.
func surveyed(c config, e *effective, devices []deviceplugin.Device, links []deviceplugin.Link) (deviceplugin.Inventory, []error) {
	inventory, problems := deviceplugin.Survey(c.hostRoot, devices, links)
	if here := e.values.text("driver-root-ctr-path"); isDir(here) {
		inventory.IMEXChannels = append(inventory.IMEXChannels, deviceplugin.IMEXChannels(here)...)
		slices.Sort(inventory.IMEXChannels)
		inventory.IMEXChannels = slices.Compact(inventory.IMEXChannels)
	}
	return inventory, problems
}

// tellSurvey logs what the kernel does not tell of devices, once each, and in one line what most
// nodes of one kind have in common.
func (d *director) tellSurvey(problems []error) {
	var first error
	n := 0
	for _, p := range problems {
		if d.surveySaid[p.Error()] || len(d.surveySaid) == mostSurveySaid {
			continue
		}
		d.surveySaid[p.Error()] = true
		d.log.Debug("the kernel does not tell all of a device", "error", p)
		if first == nil {
			first = p
		}
		n++
	}
	if n > 0 {
		d.log.Info("the kernel does not tell all of the devices; nothing waits for it", "facts", n, "first", first)
	}
}

// tellBare logs once that devices which somebody tells of have no device nodes here. Of the machine's own
// ones the plan has a problem.
func (d *director) tellBare(inventory deviceplugin.Inventory) {
	bare := inventory.WithoutNodes(d.effective.settings)
	const said = "no device nodes"
	if len(bare) == 0 {
		delete(d.surveySaid, said)
		return
	}
	if inventory.Physical || d.surveySaid[said] {
		return
	}
	d.surveySaid[said] = true
	d.log.Warn("devices have no device nodes that the plugin can see: containers get none from it", "devices", len(bare), "first", bare[0])
}
