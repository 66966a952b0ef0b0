// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	goflag "flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/pkg/deviceplugin"
)

var update = goflag.Bool("update", false, "write the golden files anew")

// golden compares with a file of testdata, or writes it.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v (go test -update writes it)", err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}

// environ is an environment.
func environ(vars map[string]string) lookup {
	return func(name string) (string, bool) {
		v, ok := vars[name]
		return v, ok
	}
}

func mustEffective(t *testing.T, flags flagValues, env map[string]string, file string) *effective {
	t.Helper()
	e, err := newEffective(flags, environ(env), "c.yaml", []byte(file))
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestAFlagGoesBeforeTheEnvironmentAndThatBeforeTheFile(t *testing.T) {
	const file = "flags: {migStrategy: single, gdsEnabled: true, plugin: {deviceListStrategy: [volume-mounts]}}"
	for _, c := range []struct {
		name   string
		flags  flagValues
		env    map[string]string
		file   string
		want   string
		origin string
	}{
		{"nothing", nil, nil, "", "none", "default"},
		{"file", nil, nil, file, "single", "c.yaml:1:22"},
		{"environment", nil, map[string]string{"MIG_STRATEGY": "mixed"}, file, "mixed", "MIG_STRATEGY"},
		{"empty variable", nil, map[string]string{"MIG_STRATEGY": ""}, file, "single", "c.yaml:1:22"},
		{"flag", flagValues{"mig-strategy": {"none"}}, map[string]string{"MIG_STRATEGY": "mixed"}, file, "none", "--mig-strategy"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := mustEffective(t, c.flags, c.env, c.file)
			if got := e.values.get("mig-strategy"); got.words[0] != c.want || got.origin != c.origin {
				t.Errorf("%s from %s, want %s from %s", got, got.origin, c.want, c.origin)
			}
			if string(e.settings.MIGStrategy) != c.want {
				t.Errorf("settings have %s", e.settings.MIGStrategy)
			}
		})
	}
	e := mustEffective(t, flagValues{"gds-enabled": {"false"}}, map[string]string{"DEVICE_LIST_STRATEGY": "envvar, cdi-cri"}, file)
	if e.settings.GDS || !cmp.Equal(e.settings.ListStrategies, []deviceplugin.ListStrategy{"envvar", "cdi-cri"}) {
		t.Errorf("GDS %v, strategies %v", e.settings.GDS, e.settings.ListStrategies)
	}
}

func TestASecondVariableOfNVIDIAsIsReadToo(t *testing.T) {
	e := mustEffective(t, nil, map[string]string{"NVIDIA_CTK_PATH": "/old", "CONTAINER_DRIVER_ROOT": "/host"}, "")
	if got := e.values.get("nvidia-cdi-hook-path"); got.words[0] != "/old" || got.origin != "NVIDIA_CTK_PATH" {
		t.Errorf("hook path %s from %s", got, got.origin)
	}
	if got := e.values.text("driver-root-ctr-path"); got != "/host" {
		t.Errorf("driver root in the container %s", got)
	}
}

func TestABadValueNamesWhereItComesFrom(t *testing.T) {
	const mps = "sharing: {mps: {resources: [{name: gpu, replicas: 2}]}}"
	for _, c := range []struct {
		name  string
		flags flagValues
		env   map[string]string
		file  string
		want  string
	}{
		{"flag", flagValues{"mig-strategy": {"some"}}, nil, "", `--mig-strategy: unknown value "some" (want none, single or mixed)`},
		{"variable", nil, map[string]string{"PASS_DEVICE_SPECS": "ja"}, "", `PASS_DEVICE_SPECS: "ja" is neither true nor false`},
		{"word of a list", nil, map[string]string{"DEVICE_LIST_STRATEGY": "envvar,cdi_cri"}, "", `DEVICE_LIST_STRATEGY: unknown value "cdi_cri"; did you mean cdi-cri?`},
		{"channel", nil, map[string]string{"IMEX_CHANNEL_IDS": "7"}, "", `IMEX_CHANNEL_IDS: unknown value "7" (want nothing or 0)`},
		{"file, overridden", flagValues{"mig-strategy": {"none"}}, nil, "flags: {migStrategy: some}", "c.yaml:1:22: flags.migStrategy"},
		{"MPS without a folder", nil, nil, mps, "c.yaml:1:16: sharing.mps needs a folder for its daemons (give --mps-root"},
		{"MPS with MIG devices", nil, map[string]string{"MIG_STRATEGY": "mixed", "MPS_ROOT": "/m"}, mps, "sharing.mps does not go with the MIG strategy mixed, from MIG_STRATEGY"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := newEffective(c.flags, environ(c.env), "c.yaml", []byte(c.file))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %s", err, c.want)
			}
		})
	}
}

func TestSharingIsWhatTheFileSays(t *testing.T) {
	const rows = "resources: [{name: gpu, replicas: 4}]"
	for _, c := range []struct {
		name, file string
		sharing    deviceplugin.Sharing
		refuse     bool
		warning    string
	}{
		{"none", "", deviceplugin.SharingNone, false, ""},
		{"turns", "sharing: {timeSlicing: {" + rows + "}}", deviceplugin.SharingTimeSlicing, false, ""},
		{"turns, one at a time", "sharing: {timeSlicing: {failRequestsGreaterThanOne: true, " + rows + "}}", deviceplugin.SharingTimeSlicing, true, ""},
		{"MPS refuses unless told", "sharing: {mps: {" + rows + "}}", deviceplugin.SharingMPS, true, ""},
		{"MPS told not to refuse", "sharing: {mps: {failRequestsGreaterThanOne: false, " + rows + "}}", deviceplugin.SharingMPS, false, ""},
		{"both", "sharing: {mps: {" + rows + "}, timeSlicing: {" + rows + "}}", deviceplugin.SharingMPS, true, "sharing.timeSlicing has no effect"},
		{"one replica", "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 1}]}}", deviceplugin.SharingNone, false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := mustEffective(t, nil, map[string]string{"MPS_ROOT": "/run/nvidia/mps"}, c.file)
			if s := e.settings; s.Sharing != c.sharing || s.FailRequestsGreaterThanOne != c.refuse {
				t.Errorf("%s, refusing %v", s.Sharing, s.FailRequestsGreaterThanOne)
			}
			if all := strings.Join(e.warnings, "\n"); !strings.Contains(all, c.warning) {
				t.Errorf("warnings %q lack %q", all, c.warning)
			}
		})
	}
}

// The variables are those that NVIDIA's GPU operator and chart give their plugin's container, with the
// driver in a container and CDI.
func TestTheEnvironmentOfNVIDIAsOperatorIsTaken(t *testing.T) {
	env := map[string]string{
		"PASS_DEVICE_SPECS": "true", "FAIL_ON_INIT_ERROR": "true", "DEVICE_LIST_STRATEGY": "cdi-annotations,cdi-cri", "DEVICE_ID_STRATEGY": "uuid",
		"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "all", "NVIDIA_MIG_MONITOR_DEVICES": "all", "MPS_ROOT": "/run/nvidia/mps",
		"MIG_STRATEGY": "single", "CDI_ENABLED": "true", "CDI_ANNOTATION_PREFIX": "cdi.k8s.io/", "CDI_FEATURE_FLAGS": "",
		"NVIDIA_CDI_HOOK_PATH": "/usr/local/nvidia/toolkit/nvidia-cdi-hook",
		"GDRCOPY_ENABLED":      "true", "GDS_ENABLED": "1", "MOFED_ENABLED": "T", "NVIDIA_DRIVER_ROOT": "/run/nvidia/driver", "NVIDIA_DEV_ROOT": "/run/nvidia/driver",
		"DRIVER_ROOT_CTR_PATH": "/driver-root", "DEV_ROOT_CTR_PATH": "/driver-root", "IS_HOST_DRIVER": "false",
		"NODE_LABEL": "nvidia.com/device-plugin.config", "SEND_SIGNAL": "true", "SIGNAL": "1", "PROCESS_TO_SIGNAL": "nvidia-device-plugin", "DEFAULT_CONFIG": "", "KUBECONFIG": "",
	}
	var got config
	cmd := command(environ(env), io.Discard, io.Discard, func(_ context.Context, c config) error { got = c; return nil })
	if err := cmd.Run(t.Context(), []string{"nvidia-device-plugin"}); err != nil {
		t.Fatal(err)
	}
	s := mustEffective(t, got.flags, env, "").settings
	want := deviceplugin.Settings{
		MIGStrategy: deviceplugin.MIGSingle, Sharing: deviceplugin.SharingNone, IDStrategy: deviceplugin.IDUUID, SharedPolicy: deviceplugin.Distributed,
		ListStrategies: []deviceplugin.ListStrategy{deviceplugin.ListCDIAnnotations, deviceplugin.ListCDICRI}, PassDeviceSpecs: true, CDIAnnotationPrefix: "cdi.k8s.io/",
		DevRoot: "/run/nvidia/driver", GDRCopy: true, GDS: true, MOFED: true, MPSRoot: "/run/nvidia/mps",
	}
	if diff := cmp.Diff(want, s); diff != "" {
		t.Errorf("settings (-want +got):\n%s", diff)
	}
	if got.driverRootHere() != "/driver-root" {
		t.Errorf("the driver root is looked for in %s", got.driverRootHere())
	}
}

func TestEachWordForTrueIsShownAsWhatItDoes(t *testing.T) {
	for word, want := range map[string]bool{"true": true, "1": true, "t": true, "TRUE": true, "false": false, "0": false, "F": false} {
		e := mustEffective(t, nil, map[string]string{"PASS_DEVICE_SPECS": word}, "")
		if shown := e.values.get("pass-device-specs").String(); e.settings.PassDeviceSpecs != want || shown != fmt.Sprint(want) {
			t.Errorf("%q is %v and shown as %s", word, e.settings.PassDeviceSpecs, shown)
		}
	}
	if _, err := newEffective(nil, environ(map[string]string{"PASS_DEVICE_SPECS": "yes"}), "", nil); err == nil || !strings.Contains(err.Error(), `PASS_DEVICE_SPECS: "yes" is neither true nor false`) {
		t.Errorf("yes: %v", err)
	}
}

func TestAWordThatIsGivenTwiceCountsOnce(t *testing.T) {
	s := mustEffective(t, nil, map[string]string{"DEVICE_LIST_STRATEGY": "envvar, envvar,cdi-cri", "IMEX_CHANNEL_IDS": "0,0"}, "").settings
	if len(s.ListStrategies) != 2 || len(s.IMEXChannels) != 1 {
		t.Errorf("strategies %v, channels %v", s.ListStrategies, s.IMEXChannels)
	}
}

func TestTheHashIsOfWhatTheConfigComesTo(t *testing.T) {
	plain := mustEffective(t, nil, nil, "")
	same := mustEffective(t, nil, map[string]string{"MIG_STRATEGY": "none"}, "# another text\nversion: v1\n")
	if plain.hash != same.hash {
		t.Error("the same settings have another hash when they come from elsewhere")
	}
	for name, file := range map[string]string{
		"replicas": "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}", "strategy": "flags: {migStrategy: single}",
		"hook": "flags: {plugin: {nvidiaCTKPath: /x}}", "name": "resources: {gpus: [{pattern: x, name: y}]}",
	} {
		if e := mustEffective(t, nil, nil, file); e.hash == plain.hash {
			t.Errorf("another %s has the same hash", name)
		}
	}
}

func TestWhatHasNoEffectIsSaid(t *testing.T) {
	for _, c := range []struct {
		env  map[string]string
		want string
	}{
		{map[string]string{"DEVICE_LIST_STRATEGY": "cdi-annotations,cdi-cri"}, "device-list-strategy (DEVICE_LIST_STRATEGY): cdi-annotations and cdi-cri together inject every device twice"},
		{map[string]string{"DEVICE_LIST_STRATEGY": "cdi-cri", "PASS_DEVICE_SPECS": "true"}, "pass-device-specs (PASS_DEVICE_SPECS): has no effect"},
		{map[string]string{"DEVICE_DISCOVERY_STRATEGY": "tegra"}, "Tegra is not supported"},
		{nil, "device-list-strategy (default): with envvar"},
	} {
		e := mustEffective(t, nil, c.env, "")
		if all := strings.Join(e.warnings, "\n"); !strings.Contains(all, c.want) {
			t.Errorf("warnings of %v: %q lack %q", c.env, all, c.want)
		}
	}
	if e := mustEffective(t, nil, map[string]string{"DEVICE_LIST_STRATEGY": "cdi-cri"}, ""); len(e.warnings) > 0 {
		t.Errorf("cdi-cri alone is warned of: %v", e.warnings)
	}
}

// What a node does without any setting must not change from one version to the next.
func TestTheDefaultsAreFrozenGolden(t *testing.T) {
	var b strings.Builder
	printSettings(&b, mustEffective(t, nil, nil, ""))
	golden(t, "defaults.txt", b.String())
}
