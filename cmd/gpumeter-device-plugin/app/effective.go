// SPDX-License-Identifier: Apache-2.0

package app

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/gpumeter/gpumeter/pkg/deviceplugin"
)

// effective is what flags, environment and a config file come to. It is never modified once made.
type effective struct {
	settings deviceplugin.Settings
	// file is the config file's name, empty for none.
	file string
	// hash names the content: the same settings have the same one, whatever they come from.
	hash   string
	values values
	// shared are the settings that have no option, as they are shown.
	shared []shown
	// warnings are what was accepted and has no effect, or not the one that was meant.
	warnings []string
}

// shown is a setting for people.
type shown struct{ name, value, origin string }

// newEffective puts a config file together with flags and environment. data is empty for no file.
// The error has all that is wrong, joined.
func newEffective(flags flagValues, env lookup, name string, data []byte) (*effective, error) {
	file, problems := parseConfigFile(name, data)
	vs, more := choose(flags, env, file)
	problems = append(problems, more...)
	e := &effective{file: name, values: vs}
	if len(problems) == 0 {
		e.settings = settings(vs)
		e.settings.GPUNames, e.settings.MIGNames = file.gpuNames, file.migNames
		e.showNames(name, "resources.gpus", file.gpuNames)
		e.showNames(name, "resources.mig", file.migNames)
		problems = e.share(file)
	}
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	e.warn()
	sum := sha256.Sum256(fmt.Appendf(nil, "%+v %v", e.settings, e.specs()))
	e.hash = hex.EncodeToString(sum[:6])
	return e, nil
}

// settings are the options as the device plugin takes them.
func settings(v values) deviceplugin.Settings {
	s := deviceplugin.Settings{
		MIGStrategy: deviceplugin.MIGStrategy(v.text("mig-strategy")), Sharing: deviceplugin.SharingNone,
		IDStrategy:      deviceplugin.IDStrategy(v.text("device-id-strategy")),
		SharedPolicy:    deviceplugin.SharedPolicy(v.text("shared-devices-allocation-policy")),
		PassDeviceSpecs: v.boolean("pass-device-specs"), CDIAnnotationPrefix: v.text("cdi-annotation-prefix"),
		DevRoot: cmp.Or(v.text("dev-root"), v.text("driver-root")),
		GDRCopy: v.boolean("gdrcopy-enabled"), GDS: v.boolean("gds-enabled"), MOFED: v.boolean("mofed-enabled"),
		IMEXRequired: v.boolean("imex-required"), MPSRoot: v.text("mps-root"),
	}
	for _, w := range once(v.list("device-list-strategy")) {
		s.ListStrategies = append(s.ListStrategies, deviceplugin.ListStrategy(w))
	}
	if len(s.ListStrategies) == 0 {
		s.ListStrategies = []deviceplugin.ListStrategy{deviceplugin.ListEnvvar}
	}
	for _, w := range once(v.list("imex-channel-ids")) {
		if n, err := strconv.Atoi(w); err == nil {
			s.IMEXChannels = append(s.IMEXChannels, n)
		}
	}
	return s
}

// once are the words, each the first time that it is there.
func once(words []string) []string {
	var out []string
	for _, w := range words {
		if !slices.Contains(out, w) {
			out = append(out, w)
		}
	}
	return out
}

// share takes the file's sharing into the settings.
func (e *effective) share(file configFile) []error {
	kind, block, refuse := deviceplugin.SharingTimeSlicing, file.timeSlicing, false
	if file.mps != nil {
		if file.timeSlicing != nil {
			e.warnings = append(e.warnings, fmt.Sprintf("%s: sharing.timeSlicing has no effect, since sharing.mps is there too (keep one)", file.timeSlicing.at))
		}
		kind, block, refuse = deviceplugin.SharingMPS, file.mps, true
	}
	if block == nil {
		return nil
	}
	s := &e.settings
	s.SharedResources = block.resources
	s.RenameByDefault = block.rename.is(false)
	s.FailRequestsGreaterThanOne = block.refuse.is(refuse)
	e.show(block, kind)
	if !block.shares() {
		return nil
	}
	s.Sharing = kind
	if kind != deviceplugin.SharingMPS {
		return nil
	}
	var problems []error
	if s.MIGStrategy == deviceplugin.MIGMixed {
		problems = append(problems, fmt.Errorf("%s: sharing.mps does not go with the MIG strategy mixed, from %s (MIG devices cannot be shared by MPS; share them by timeSlicing)",
			block.at, e.values.get("mig-strategy").origin))
	}
	if s.MPSRoot == "" {
		problems = append(problems, fmt.Errorf("%s: sharing.mps needs a folder for its daemons (give --mps-root, such as /run/nvidia/mps)", block.at))
	}
	return problems
}

func (e *effective) showNames(file, name string, rules []deviceplugin.NameRule) {
	for _, r := range rules {
		e.shared = append(e.shared, shown{name, r.Pattern + " -> " + r.Name, file})
	}
}

// show adds the sharing to what is shown.
func (e *effective) show(block *sharingBlock, kind deviceplugin.Sharing) {
	add := func(name, value, origin string) { e.shared = append(e.shared, shown{name, value, origin}) }
	if !block.shares() {
		kind = deviceplugin.SharingNone
	}
	add("sharing", string(kind), block.at)
	add("renameByDefault", strconv.FormatBool(e.settings.RenameByDefault), cmp.Or(block.rename.at, originDefault))
	add("failRequestsGreaterThanOne", strconv.FormatBool(e.settings.FailRequestsGreaterThanOne), cmp.Or(block.refuse.at, originDefault))
	for _, r := range block.resources {
		add("sharing of "+r.Name, sharedText(r), block.at)
	}
}

// is the truth of a given value, or what holds without one.
func (g given) is(otherwise bool) bool {
	if len(g.value) == 0 {
		return otherwise
	}
	return g.value[0] == "true"
}

// warn adds what the settings do not do, or do in a way that surprises.
func (e *effective) warn() {
	warn := func(format string, args ...any) { e.warnings = append(e.warnings, fmt.Sprintf(format, args...)) }
	s := e.settings
	has := map[deviceplugin.ListStrategy]bool{}
	for _, l := range s.ListStrategies {
		has[l] = true
	}
	from := func(name string) string { return fmt.Sprintf("%s (%s)", name, e.values.get(name).origin) }
	if has[deviceplugin.ListCDIAnnotations] && has[deviceplugin.ListCDICRI] {
		warn("%s: cdi-annotations and cdi-cri together inject every device twice (keep cdi-cri)", from("device-list-strategy"))
	}
	if has[deviceplugin.ListEnvvar] {
		warn("%s: with envvar, a container without a GPU request sees all GPUs if its image sets NVIDIA_VISIBLE_DEVICES and the runtime takes it from unprivileged containers (cdi-cri does not have that)", from("device-list-strategy"))
	}
	if s.PassDeviceSpecs && !has[deviceplugin.ListEnvvar] && !has[deviceplugin.ListVolumeMounts] {
		warn("%s: has no effect with CDI strategies only, which bring the device nodes themselves", from("pass-device-specs"))
	}
	if e.values.text("device-discovery-strategy") == "tegra" {
		warn("%s: Tegra is not supported; GPUs are read as --source says", from("device-discovery-strategy"))
	}
}

// specs are the options that concern CDI specs and the driver's place, in a fixed order.
func (e *effective) specs() []string {
	var out []string
	for _, name := range []string{"driver-root", "dev-root", "driver-root-ctr-path", "nvidia-cdi-hook-path", "cdi-feature-flags", "cdi-disable-hooks"} {
		out = append(out, e.values.get(name).String())
	}
	return out
}

// cdi reports whether containers are told their devices by CDI.
func (e *effective) cdi() bool {
	for _, l := range e.settings.ListStrategies {
		if l == deviceplugin.ListCDIAnnotations || l == deviceplugin.ListCDICRI {
			return true
		}
	}
	return false
}
