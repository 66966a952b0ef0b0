// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/urfave/cli/v3"
)

// nvidias are the flags, aliases and environment variables of NVIDIA's device plugin, as its manifests have them.
func nvidias() map[string][]string {
	return map[string][]string{
		"mig-strategy": {"MIG_STRATEGY"}, "fail-on-init-error": {"FAIL_ON_INIT_ERROR"},
		"driver-root,nvidia-driver-root": {"NVIDIA_DRIVER_ROOT"}, "dev-root,nvidia-dev-root": {"NVIDIA_DEV_ROOT"},
		"pass-device-specs": {"PASS_DEVICE_SPECS"}, "device-list-strategy": {"DEVICE_LIST_STRATEGY"}, "device-id-strategy": {"DEVICE_ID_STRATEGY"},
		"shared-devices-allocation-policy": {"SHARED_DEVICES_ALLOCATION_POLICY"}, "cdi-annotation-prefix": {"CDI_ANNOTATION_PREFIX"},
		"nvidia-cdi-hook-path,nvidia-ctk-path":       {"NVIDIA_CDI_HOOK_PATH", "NVIDIA_CTK_PATH"},
		"driver-root-ctr-path,container-driver-root": {"DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT"},
		"gdrcopy-enabled":                            {"GDRCOPY_ENABLED"}, "gds-enabled": {"GDS_ENABLED"}, "mofed-enabled": {"MOFED_ENABLED"}, "mps-root": {"MPS_ROOT"},
		"device-discovery-strategy": {"DEVICE_DISCOVERY_STRATEGY"}, "imex-channel-ids": {"IMEX_CHANNEL_IDS"}, "imex-required": {"IMEX_REQUIRED"},
		"kubelet-socket": {"KUBELET_SOCKET"}, "config-file": {"CONFIG_FILE"},
		"cdi-feature-flags": {"CDI_FEATURE_FLAGS"}, "cdi-disable-hooks": {"CDI_DISABLE_HOOKS"},
	}
}

func TestEveryFlagOfNVIDIAsIsThere(t *testing.T) {
	type documented interface{ GetEnvVars() []string }
	cmd := Command(environ(nil), io.Discard, io.Discard)
	for flag, env := range nvidias() {
		names := strings.Split(flag, ",")
		i := slices.IndexFunc(cmd.Flags, func(f cli.Flag) bool { return slices.Equal(f.Names(), names) })
		if i < 0 {
			t.Errorf("no flag %s", flag)
			continue
		}
		if got := cmd.Flags[i].(documented).GetEnvVars(); !slices.Equal(got, env) {
			t.Errorf("--%s has the variables %v, want %v", flag, got, env)
		}
	}
}

func TestFlagsAndVariablesReachTheConfig(t *testing.T) {
	c, err := parse(t, map[string]string{"CONFIG_FILE": "/c.yaml", "KUBELET_SOCKET": "", "NODE_NAME": "n1", "GPUMETER_HEALTH_LOST_AFTER": "5m"},
		"--nvidia-driver-root=/run/nvidia/driver", "--device-list-strategy=envvar,cdi-cri", "--imex-channel-ids=0", "--fail-on-init-error=false", "--web.listen-address=:1")
	if err != nil {
		t.Fatal(err)
	}
	want := flagValues{
		"driver-root": {"/run/nvidia/driver"}, "device-list-strategy": {"envvar", "cdi-cri"}, "imex-channel-ids": {"0"}, "fail-on-init-error": {"false"},
	}
	if diff := cmp.Diff(want, c.flags); diff != "" {
		t.Error(diff)
	}
	if c.configFile != "/c.yaml" || !c.configFileSet || c.nodeName != "n1" || c.lostAfter != 5*time.Minute || c.address != ":1" {
		t.Errorf("config %+v", c)
	}
	if _, socket := c.pluginDir(); socket != "/var/lib/kubelet/device-plugins/kubelet.sock" {
		t.Errorf("an empty variable took the kubelet away: %q", socket)
	}
}

func TestWhereTheKubeletIs(t *testing.T) {
	for _, c := range []struct {
		args        []string
		dir, socket string
	}{
		{nil, "/var/lib/kubelet/device-plugins", "/var/lib/kubelet/device-plugins/kubelet.sock"},
		{[]string{"--kubelet-dir=/var/snap/k"}, "/var/snap/k/device-plugins", "/var/snap/k/device-plugins/kubelet.sock"},
		{[]string{"--kubelet-dir=/a", "--kubelet-socket=/b/kubelet.sock"}, "/b", "/b/kubelet.sock"},
		{[]string{"--kubelet-socket="}, "/var/lib/kubelet/device-plugins", ""},
	} {
		config, err := parse(t, nil, c.args...)
		if err != nil {
			t.Fatal(err)
		}
		if dir, socket := config.pluginDir(); dir != c.dir || socket != c.socket {
			t.Errorf("%v: %s, %q", c.args, dir, socket)
		}
	}
}

func TestACommandLineThatCannotWorkSaysWhatToDo(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"x"}, `"x" is no flag`},
		{[]string{"--source=dcgm"}, `--source "dcgm": want auto, nvml, stream or sim`},
		{[]string{"--source=stream", "--health-socket="}, "--source=stream needs a --health-socket"},
		{[]string{"--health-lost-policy=die"}, "want keep or unhealthy"},
		{[]string{"--health-lost-policy=unhealthy"}, "needs a --health-lost-after"},
		{[]string{"--health-lost-after=-1s"}, "want 0 (never) or more"},
		{[]string{"--config-file=a", "--config-dir=b"}, "cannot be given together"},
		{[]string{"--config-dir=b"}, "set NODE_NAME"},
		{[]string{"--config-dir=b", "--node-name=n", "--default-config=../x"}, "want the name of a file"},
		{[]string{"--fallback-strategies=any"}, "want named, single or empty"},
		{[]string{"--interval=1ms"}, "want 100ms to 1m"},
		{[]string{"--kubelet-dir=k"}, "want an absolute path"},
		{[]string{"--log-format=xml"}, "want text or json"},
		{[]string{"--mig-strat=none"}, "see --help"},
	} {
		if _, err := parse(t, nil, c.args...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %s", c.args, err, c.want)
		}
	}
	if _, err := parse(t, map[string]string{envDisableXIDs: "79,4x"}, "--source=stream"); err == nil || !strings.Contains(err.Error(), "4x") {
		t.Errorf("a typo among XIDs: %v", err)
	}
}

func TestAPretendNodeKeepsNothingUnasked(t *testing.T) {
	for want, args := range map[string][]string{"": {"--source=sim"}, "/x": {"--source=sim", "--state-dir=/x"}, "/var/lib/gpumeter": nil} {
		if c, err := parse(t, nil, args...); err != nil || c.stateDir != want {
			t.Errorf("%v: state in %q, %v", args, c.stateDir, err)
		}
	}
}

// checked is what --check says, without the folder's name.
func checked(t *testing.T, file string, env map[string]string, args ...string) (string, error) {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "config.yaml"), file)
	if err := os.Mkdir(filepath.Join(dir, "root"), 0o700); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	args = append([]string{"plugin", "--check", "--config-file", filepath.Join(dir, "config.yaml"), "--host-root", filepath.Join(dir, "root")}, args...)
	err := Command(environ(env), &out, io.Discard).Run(t.Context(), args)
	return strings.ReplaceAll(out.String(), dir+"/", ""), err
}

func withoutHash(page string) string {
	var out strings.Builder
	for line := range strings.Lines(page) {
		if !strings.HasPrefix(line, "hash: ") {
			out.WriteString(line)
		}
	}
	return out.String()
}

func TestTheCheckSaysWhatAConfigComesToGolden(t *testing.T) {
	const file = `version: v1
flags:
  migStrategy: mixed
  plugin: {deviceListStrategy: [cdi-cri]}
resources:
  mig: [{pattern: 2g.20gb, name: medium}]
sharing:
  timeSlicing:
    renameByDefault: true
    resources:
    - {name: nvidia.com/gpu, devices: ["0", "1"], replicas: 4}
`
	page, err := checked(t, file, map[string]string{"PASS_DEVICE_SPECS": "true"}, "--source=sim", "--device-id-strategy=index")
	if err != nil {
		t.Error(err)
	}
	golden(t, "check.txt", withoutHash(page))
}

func TestTheCheckOfABadConfigFails(t *testing.T) {
	page, err := checked(t, "version: v1\nflags:\n  renameByDefault: true\n  migStrategy: mixd\n", nil, "--source=sim")
	if err == nil || !strings.Contains(page, "config.yaml:3:3: flags.renameByDefault: unknown; it belongs under sharing.timeSlicing") || !strings.Contains(page, "did you mean") {
		t.Errorf("%v: %s", err, page)
	}
	page, err = checked(t, "sharing: {timeSlicing: {resources: [{name: gpu, devices: [77], replicas: 2}]}}", nil, "--source=sim")
	if err == nil || !strings.Contains(page, "problems:") || !strings.Contains(page, "77") {
		t.Errorf("a device that is not there: %v: %s", err, page)
	}
}

func TestTheCheckOfAPretendNodeWithoutAConfigIsGood(t *testing.T) {
	page, err := checked(t, "version: v1", nil, "--source=sim")
	if err != nil || !strings.Contains(page, "warnings about this node:") || !strings.Contains(page, "MIG mode") || strings.Contains(page, "problems:") {
		t.Errorf("%v: %s", err, page)
	}
}

// P31: a list that the kubelet would not take is refused with its size.
func TestTheCheckSeesAListThatIsTooLong(t *testing.T) {
	page, err := checked(t, "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 16384}]}}", nil, "--source=sim", "--sim-scenario=h100x8-exclusive")
	if err == nil || !strings.Contains(page, "bytes") || !strings.Contains(page, "131072") {
		t.Errorf("%v: %s", err, page)
	}
}

func TestTheCheckWorksWithoutGPUs(t *testing.T) {
	page, err := checked(t, "flags: {migStrategy: mixed}", nil, "--source=nvml", "--nvml-library=/nowhere/libnvidia-ml.so.1")
	if err != nil || !strings.Contains(page, "GPUs: not known here") || !strings.Contains(page, "/nowhere/libnvidia-ml.so.1") {
		t.Errorf("%v: %s", err, page)
	}
	page, err = checked(t, "flags: {migStrategy: x}", nil, "--source=nvml", "--nvml-library=/nowhere/libnvidia-ml.so.1")
	if err == nil {
		t.Errorf("a bad config passes where there are no GPUs: %s", page)
	}
}

func TestTheCheckOfAFolderChecksEachFile(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "good"), "version: v1")
	write(t, filepath.Join(dir, "bad"), "version: v2")
	var out bytes.Buffer
	err := Command(environ(nil), &out, io.Discard).Run(t.Context(), []string{"plugin", "--check", "--source=sim", "--config-dir", dir})
	if err == nil || !strings.Contains(out.String(), "config: "+dir+"/good") || !strings.Contains(out.String(), dir+"/bad:1:10") {
		t.Errorf("%v: %s", err, &out)
	}
}
