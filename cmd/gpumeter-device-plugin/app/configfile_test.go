// SPDX-License-Identifier: Apache-2.0

package app

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/pkg/deviceplugin"
)

// everything is a config file with every key that there is.
const everything = `version: v1
flags:
  migStrategy: mixed
  failOnInitError: no
  nvidiaDriverRoot: /run/nvidia/driver
  nvidiaDevRoot: /
  gdrcopyEnabled: true
  gdsEnabled: false
  mofedEnabled: off
  mpsRoot: /run/nvidia/mps
  deviceDiscoveryStrategy: nvml
  useNodeFeatureAPI: true
  plugin:
    passDeviceSpecs: true
    deviceListStrategy: [envvar, cdi-cri]
    deviceIDStrategy: index
    sharedDevicesAllocationPolicy: packed
    cdiAnnotationPrefix: cdi.example.com/
    nvidiaCTKPath: /opt/nvidia-ctk
    containerDriverRoot: /host
  gfd:
    oneshot: false
    noTimestamp: true
    sleepInterval: 60s
    outputFile: /etc/out
    machineTypeFile: /sys/class/dmi/id/product_name
resources:
  gpus:
  - {pattern: "*A100*", name: a100}
  mig:
  - {pattern: 1g.5gb, name: example.com/small}
sharing:
  timeSlicing:
    renameByDefault: true
    failRequestsGreaterThanOne: true
    resources:
    - name: nvidia.com/gpu
      rename: nvidia.com/gpu.turns
      devices: all
      replicas: 4
    - {name: mig-1g.10gb, devices: 2, replicas: 2}
    - {name: example.com/small, devices: [0, "0:1", 1:0, GPU-4cf8db2d, MIG-8a7b], replicas: 1}
imex:
  channelIDs: [0]
  required: true
`

func TestWhatNVIDIAsParserTakesAsNothingIsNothing(t *testing.T) {
	for _, text := range []string{
		"", "# nothing\n", "---\n", "version: v1\n---\n", "---\nversion: v1\n...\n", "version: v1\n---\n# the end\n", "{}",
		"version: v1\nflags:\nresources:\nsharing:\n  timeSlicing: null\nimex: {}\n", "flags: {plugin: null, useNodeFeatureAPI: null}",
	} {
		if _, problems := parseConfigFile("c.yaml", []byte(text)); len(problems) > 0 {
			t.Errorf("%q: %v", text, problems)
		}
	}
}

func TestEveryKeyOfTheConfigFileIsRead(t *testing.T) {
	file, problems := parseConfigFile("c.yaml", []byte(everything))
	if len(problems) > 0 {
		t.Fatal(errors.Join(problems...))
	}
	for _, o := range options() {
		if _, ok := file.values[o.key]; !ok && o.key != "" {
			t.Errorf("%s is not read", o.key)
		}
	}
	want := []deviceplugin.SharedResource{
		{Name: "nvidia.com/gpu", Rename: "nvidia.com/gpu.turns", All: true, Replicas: 4},
		{Name: "nvidia.com/mig-1g.10gb", Count: 2, Replicas: 2},
		{Name: "example.com/small", Devices: []string{"0", "0:1", "1:0", "GPU-4cf8db2d", "MIG-8a7b"}, Replicas: 1},
	}
	if diff := cmp.Diff(want, file.timeSlicing.resources); diff != "" {
		t.Error(diff)
	}
	if got := file.values["flags.failOnInitError"]; got.value[0] != "false" || got.at != "c.yaml:4:20" {
		t.Errorf("failOnInitError: no is %v", got)
	}
	if diff := cmp.Diff([]deviceplugin.NameRule{{Pattern: "*A100*", Name: "nvidia.com/a100"}}, file.gpuNames); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]deviceplugin.NameRule{{Pattern: "1g.5gb", Name: "example.com/small"}}, file.migNames); diff != "" {
		t.Error(diff)
	}
}

func TestAMistakeInTheConfigFileIsToldWithItsPlaceAndRemedy(t *testing.T) {
	const row = "sharing:\n  timeSlicing:\n    resources:\n    - name: gpu\n      "
	for _, c := range []struct{ name, file, want string }{
		{"key under the wrong parent", "flags:\n  renameByDefault: true", "c.yaml:2:3: flags.renameByDefault: unknown; it belongs under sharing.timeSlicing or sharing.mps"},
		{"key of the plugin among the flags", "flags:\n  passDeviceSpecs: true", "c.yaml:2:3: flags.passDeviceSpecs: unknown; it belongs under flags.plugin"},
		{"key at the top", "migStrategy: single", "c.yaml:1:1: migStrategy: unknown; it belongs under flags"},
		{"misspelt key", "flags:\n  migStrategie: mixed", "c.yaml:2:3: flags.migStrategie: unknown; did you mean migStrategy?"},
		{"key in the form of a flag", "flags:\n  mig-strategy: mixed", "flags.mig-strategy: unknown; did you mean migStrategy?"},
		{"key in the form of a variable", "flags:\n  NVIDIA_CTK_PATH: /x", "flags.NVIDIA_CTK_PATH: unknown; it belongs under flags.plugin"},
		{"name of a flag", "flags:\n  driver-root: /x", "flags.driver-root: unknown; write flags.nvidiaDriverRoot"},
		{"key of a chart", "flags: {compatWithCPUManager: true}", "write flags.plugin.passDeviceSpecs"},
		{"key that nobody knows", "imex: {zzzzzzzzzz: 1}", "imex.zzzzzzzzzz: unknown; known here: channelIDs, required"},
		{"key in a row", row + "replica: 2\n      replicas: 2", "c.yaml:5:7: sharing.timeSlicing.resources[0].replica: unknown; did you mean replicas?"},
		{"key twice", "version: v1\nversion: v1", "c.yaml:2:1: version twice (keep one)"},
		{"other version", "version: v2", `c.yaml:1:10: unknown version "v2"`},
		{"quoted truth", "flags: {failOnInitError: \"true\"}", "flags.failOnInitError must be true or false (without quotes)"},
		{"number for truth", "flags: {gdsEnabled: 1}", "flags.gdsEnabled must be true or false"},
		{"list for a word", "flags: {migStrategy: [single]}", "flags.migStrategy must be one value"},
		{"mapping for a list", "resources: {gpus: {pattern: x, name: y}}", "resources.gpus must be a list"},
		{"word for a mapping", "flags: mixed", "c.yaml:1:8: flags must be a mapping"},
		{"unknown strategy", "flags: {migStrategy: Mixed}", `c.yaml:1:22: flags.migStrategy: unknown value "Mixed"; did you mean mixed?`},
		{"unknown list strategy", "flags: {plugin: {deviceListStrategy: [envvar, volume]}}", `unknown value "volume" (want envvar, volume-mounts, cdi-annotations or cdi-cri)`},
		{"list as one word", "flags: {plugin: {deviceListStrategy: \"envvar,cdi-cri\"}}", `unknown value "envvar,cdi-cri" (write a list: [envvar, cdi-cri])`},
		{"other IMEX channel", "imex: {channelIDs: [0, 1]}", `imex.channelIDs: unknown value "1" (want nothing or 0)`},
		{"no resources", "sharing: {mps: {renameByDefault: true}}", "sharing.mps.resources is missing"},
		{"empty resources", "sharing: {mps: {resources: []}}", "sharing.mps.resources is empty"},
		{"null resources", "sharing:\n  mps:\n    resources:\n", "sharing.mps.resources is empty"},
		{"row without a name", "sharing: {mps: {resources: [{replicas: 2}]}}", "c.yaml:1:29: sharing.mps.resources[0] has no name"},
		{"row without replicas", "sharing: {mps: {resources: [{name: gpu}]}}", "sharing.mps.resources[0] has no replicas"},
		{"no replicas at all", row + "replicas: 0", "c.yaml:5:17: sharing.timeSlicing.resources[0].replicas is 0 (write 1 or more"},
		{"replicas in quotes", row + "replicas: \"4\"", `replicas is "4" (write a whole number, without quotes)`},
		{"half a replica", row + "replicas: 1.5", `replicas is "1.5"`},
		{"some devices", row + "devices: some\n      replicas: 2", `devices is "some" (write all, a count, or a list of indices and UUIDs)`},
		{"count in quotes", row + "devices: \"2\"\n      replicas: 2", `devices is "2" (write all`},
		{"no devices", row + "devices: 0\n      replicas: 2", "devices is 0 (write all"},
		{"empty list of devices", row + "devices: []\n      replicas: 2", "devices is empty"},
		{"device that is none", row + "devices: [a]\n      replicas: 2", `devices[0] is "a"`},
		{"name of another kind", "sharing: {mps: {resources: [{name: a b, replicas: 2}]}}", `sharing.mps.resources[0].name: resource name "nvidia.com/a b"`},
		{"name that is too long", "resources: {gpus: [{pattern: x, name: " + strings.Repeat("x", 63) + "}]}", "resources.gpus[0].name:"},
		{"rule without a name", "resources: {mig: [{pattern: x}]}", "resources.mig[0] needs pattern and name"},
		{"time that is none", "flags: {gfd: {sleepInterval: soon}}", `flags.gfd.sleepInterval is "soon"`},
		{"a whole ConfigMap", "apiVersion: v1\nkind: ConfigMap\ndata:\n  any: |\n    version: v1\n", "c.yaml:1:1: this is an object for the API server and not a config (the config is the text in its data alone)"},
		{"a value of a chart", "any: |-\n  version: v1\n  flags: {}\n", "c.yaml:1:1: any: unknown; if the text under it is the config, the file must be that text alone"},
		{"two documents", "version: v1\n---\nversion: v1", "something follows the config"},
		{"no YAML", "flags:\n\t- x", "c.yaml:2:1: not YAML"},
		{"key that is no word", "? [a]\n: b", "has a key that is no plain word"},
		{"merged keys", "flags: &f {migStrategy: none}\nimex:\n  <<: *f", "has a key that is no plain word"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, problems := parseConfigFile("c.yaml", []byte(c.file))
			if text := errors.Join(problems...); text == nil || !strings.Contains(text.Error(), c.want) {
				t.Errorf("problems: %v\nwant %s", text, c.want)
			}
			for _, p := range problems {
				if !strings.HasPrefix(p.Error(), "c.yaml:") {
					t.Errorf("%v has no place", p)
				}
			}
		})
	}
}

func TestAllMistakesAreToldAtOnce(t *testing.T) {
	_, problems := parseConfigFile("c.yaml", []byte("version: v3\nflags: {foo: 1, plugin: {bar: 2}}\nsharing: {mps: {resources: [{name: x}]}}"))
	if len(problems) != 4 {
		t.Errorf("problems: %v, want four", problems)
	}
	_, problems = parseConfigFile("c.yaml", []byte("flags:\n"+strings.Repeat("  ? [x]\n  : y\n", 50)))
	if len(problems) != problemLimit+1 || !strings.Contains(problems[problemLimit].Error(), "and 30 more") {
		t.Errorf("a hopeless file has %d problems, the last: %v", len(problems), problems[len(problems)-1])
	}
}

// A file of a million wrong keys is as quickly refused as one of twenty: looking for what was meant has an end.
func TestAHopelessFileHasItsMistakesCounted(t *testing.T) {
	_, problems := parseConfigFile("c.yaml", []byte(strings.Repeat("flagz: 1\n", 100_000)))
	if last := problems[len(problems)-1].Error(); len(problems) != problemLimit+1 || !strings.Contains(last, "and 99980 more") {
		t.Errorf("%d problems, the last: %s", len(problems), last)
	}
}

func TestWhatNVIDIATakesIsTaken(t *testing.T) {
	for name, file := range map[string]string{
		"nothing": "", "a comment": "# none\n", "null": "null", "the version alone": "version: v1", "no version": "flags: {migStrategy: single}",
		"empty version": `version: ""`, "null mappings": "version: v1\nflags:\nresources:\nsharing:\nimex:\n",
		"JSON":               `{"version":"v1","flags":{"migStrategy":"none","plugin":{"deviceListStrategy":"volume-mounts"}}}`,
		"a strategy as word": "flags: {plugin: {deviceListStrategy: cdi-cri}}",
		"no sleep":           "flags: {gfd: {sleepInterval: infinite}}", "sleep in nanoseconds": "flags: {gfd: {sleepInterval: 60000000000}}",
		"no sharing any more": "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 1}]}}",
		"an alias":            "sharing:\n  timeSlicing:\n    resources:\n    - &r {name: gpu, replicas: 2}\n  mps:\n    resources: [*r]\n",
	} {
		if _, problems := parseConfigFile("c.yaml", []byte(file)); len(problems) > 0 {
			t.Errorf("%s: %v", name, errors.Join(problems...))
		}
	}
}

// FuzzConfigFile holds the parser to what it promises of any text: an end, places, and values that are allowed.
func FuzzConfigFile(f *testing.F) {
	f.Add([]byte(everything))
	f.Add([]byte("flags: &a\n  plugin: *a"))
	f.Add([]byte("sharing: {timeSlicing: {resources: [{name: gpu, devices: [0], replicas: 2}]}}"))
	f.Add([]byte("a: &a [*a]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, problems := parseConfigFile("c.yaml", data)
		if len(problems) > problemLimit+1 {
			t.Errorf("%d problems", len(problems))
		}
		for _, p := range problems {
			if !strings.HasPrefix(p.Error(), "c.yaml:") {
				t.Errorf("no place: %v", p)
			}
		}
		if len(problems) > 0 {
			return
		}
		for _, o := range options() {
			if g, ok := file.values[o.key]; ok && o.key != "" {
				if err := o.check(g.value); err != nil {
					t.Errorf("%s: %v was let through: %v", o.key, g.value, err)
				}
			}
		}
		for _, b := range []*sharingBlock{file.timeSlicing, file.mps} {
			if b == nil {
				continue
			}
			for _, r := range b.resources {
				if _, err := deviceplugin.FullName(r.Name); err != nil || r.Replicas < 1 {
					t.Errorf("let through: %+v: %v", r, err)
				}
			}
		}
	})
}
