// SPDX-License-Identifier: Apache-2.0

package app

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumeter/gpumeter/pkg/deviceplugin"
)

// form is what a setting's value looks like.
type form uint8

const (
	text form = iota
	boolean
	list
)

// option is one of NVIDIA's settings: it can come from a flag, from the environment and, where it
// has a key, from the config file.
type option struct {
	// names are the flag and its aliases; the first one is the option's name here.
	names []string
	env   []string
	// key is the place in the config file, "flags.migStrategy"; empty for none.
	key   string
	form  form
	value string
	// words are those that it takes, nil for any.
	words []string
	usage string
}

func (o option) name() string { return o.names[0] }

// options are NVIDIA's, in the order in which they are shown: names, aliases, environment
// variables, keys and defaults of its device plugin v0.20.
func options() []option {
	return append(pluginOptions(), nodeOptions()...)
}

// pluginOptions say what is handed out and how.
func pluginOptions() []option {
	return []option{
		{
			names: []string{"mig-strategy"}, env: []string{"MIG_STRATEGY"}, key: "flags.migStrategy", value: string(deviceplugin.MIGNone),
			words: words(deviceplugin.MIGNone, deviceplugin.MIGSingle, deviceplugin.MIGMixed),
			usage: "how MIG devices are handed out: none, single (as nvidia.com/gpu) or mixed (as nvidia.com/mig-<profile>)",
		},
		{
			names: []string{"pass-device-specs"}, env: []string{"PASS_DEVICE_SPECS"}, key: "flags.plugin.passDeviceSpecs", form: boolean, value: "false",
			usage: "also answer with device nodes, which outlive what the CPU manager and systemd do to cgroups",
		},
		{
			names: []string{"device-list-strategy"}, env: []string{"DEVICE_LIST_STRATEGY"}, key: "flags.plugin.deviceListStrategy", form: list, value: string(deviceplugin.ListEnvvar),
			words: words(deviceplugin.ListEnvvar, deviceplugin.ListVolumeMounts, deviceplugin.ListCDIAnnotations, deviceplugin.ListCDICRI),
			usage: "how a container is told its devices: envvar, volume-mounts, cdi-annotations, cdi-cri; several may be given",
		},
		{
			names: []string{"device-id-strategy"}, env: []string{"DEVICE_ID_STRATEGY"}, key: "flags.plugin.deviceIDStrategy", value: string(deviceplugin.IDUUID),
			words: words(deviceplugin.IDUUID, deviceplugin.IDIndex),
			usage: "what stands for a device in what a container is told: uuid or index",
		},
		{
			names: []string{"shared-devices-allocation-policy"}, env: []string{"SHARED_DEVICES_ALLOCATION_POLICY"}, key: "flags.plugin.sharedDevicesAllocationPolicy", value: string(deviceplugin.Distributed),
			words: words(deviceplugin.Distributed, deviceplugin.Packed),
			usage: "which replicas go first: distributed over the GPUs, or packed",
		},
		{
			names: []string{"cdi-annotation-prefix"}, env: []string{"CDI_ANNOTATION_PREFIX"}, key: "flags.plugin.cdiAnnotationPrefix", value: "cdi.k8s.io/",
			usage: "`PREFIX` of CDI annotations",
		},
		{
			names: []string{"nvidia-cdi-hook-path", "nvidia-ctk-path"}, env: []string{"NVIDIA_CDI_HOOK_PATH", "NVIDIA_CTK_PATH"}, key: "flags.plugin.nvidiaCTKPath", value: "/usr/bin/nvidia-ctk",
			usage: "`PATH` on the host of the program that CDI specs name as their hook",
		},
		{
			names: []string{"driver-root-ctr-path", "container-driver-root"}, env: []string{"DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT"}, key: "flags.plugin.containerDriverRoot", value: "/driver-root",
			usage: "`FOLDER` in which the plugin sees the driver root",
		},
	}
}

// nodeOptions say what the node has and how the program deals with it.
func nodeOptions() []option {
	return []option{
		{
			names: []string{"fail-on-init-error"}, env: []string{"FAIL_ON_INIT_ERROR"}, key: "flags.failOnInitError", form: boolean, value: "true",
			usage: "end with an error where GPUs cannot be read and nothing else tells of them; false waits for the driver",
		},
		{
			names: []string{"driver-root", "nvidia-driver-root"}, env: []string{"NVIDIA_DRIVER_ROOT"}, key: "flags.nvidiaDriverRoot", value: "/",
			usage: "`FOLDER` on the host in which the driver is installed",
		},
		{
			names: []string{"dev-root", "nvidia-dev-root"}, env: []string{"NVIDIA_DEV_ROOT"}, key: "flags.nvidiaDevRoot",
			usage: "`FOLDER` on the host whose dev has the device nodes (default: the driver root)",
		},
		{
			names: []string{"gdrcopy-enabled"}, env: []string{"GDRCOPY_ENABLED"}, key: "flags.gdrcopyEnabled", form: boolean, value: "false",
			usage: "give every container with a GPU GDRCopy",
		},
		{
			names: []string{"gds-enabled"}, env: []string{"GDS_ENABLED"}, key: "flags.gdsEnabled", form: boolean, value: "false",
			usage: "give every container with a GPU GPUDirect Storage",
		},
		{
			names: []string{"mofed-enabled"}, env: []string{"MOFED_ENABLED"}, key: "flags.mofedEnabled", form: boolean, value: "false",
			usage: "give every container with a GPU the devices of MOFED",
		},
		{
			names: []string{"mps-root"}, env: []string{"MPS_ROOT"}, key: "flags.mpsRoot",
			usage: "`FOLDER` of MPS on the host; needed where sharing.mps is used",
		},
		{
			names: []string{"device-discovery-strategy"}, env: []string{"DEVICE_DISCOVERY_STRATEGY"}, key: "flags.deviceDiscoveryStrategy", value: "auto",
			words: []string{"auto", "nvml", "tegra"},
			usage: "accepted as NVIDIA's: auto or nvml; --source says where GPUs are read",
		},
		{
			names: []string{"imex-channel-ids"}, env: []string{"IMEX_CHANNEL_IDS"}, key: "imex.channelIDs", form: list, words: []string{"0"},
			usage: "IMEX channels that every container with a GPU gets: none or 0",
		},
		{
			names: []string{"imex-required"}, env: []string{"IMEX_REQUIRED"}, key: "imex.required", form: boolean, value: "false",
			usage: "refuse a container for which the IMEX channel is not there",
		},
		{
			names: []string{"cdi-feature-flags"}, env: []string{"CDI_FEATURE_FLAGS"}, form: list,
			usage: "features of the CDI spec's generator",
		},
		{
			names: []string{"cdi-disable-hooks"}, env: []string{"CDI_DISABLE_HOOKS"}, form: list,
			usage: "hooks that CDI specs leave out; all for all of them",
		},
	}
}

func words[W ~string](in ...W) []string {
	out := make([]string, len(in))
	for i, w := range in {
		out[i] = string(w)
	}
	return out
}

// check says what is wrong with a value, in words that go on from the value's origin.
func (o option) check(value []string) error {
	switch {
	case o.form == boolean:
		if _, err := strconv.ParseBool(value[0]); err != nil {
			return fmt.Errorf("%q is neither true nor false", value[0])
		}
		return nil
	case o.form == text && value[0] == "" && o.value != "":
		return fmt.Errorf("is empty (leave it out for the default, %s)", o.value)
	}
	for _, w := range value {
		if o.words != nil && !slices.Contains(o.words, w) {
			return fmt.Errorf("unknown value %q%s", w, o.hint(w))
		}
	}
	return nil
}

// hint is what to write instead of a word.
func (o option) hint(word string) string {
	if o.form == list && strings.Contains(word, ",") {
		return fmt.Sprintf(" (write a list: [%s])", strings.Join(o.parts(word), ", "))
	}
	if near, ok := nearest(word, o.words); ok {
		return fmt.Sprintf("; did you mean %s?", near)
	}
	if len(o.words) == 1 {
		return fmt.Sprintf(" (want nothing or %s)", o.words[0])
	}
	return fmt.Sprintf(" (want %s)", either(o.words))
}

// either is "a, b or c".
func either(in []string) string {
	if len(in) < 2 {
		return strings.Join(in, "")
	}
	return strings.Join(in[:len(in)-1], ", ") + " or " + in[len(in)-1]
}
