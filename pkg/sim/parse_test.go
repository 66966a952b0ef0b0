// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/gpumeter/gpumeter/pkg/gpu"
)

var update = flag.Bool("update", false, "write the golden files anew")

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
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs (-want +got), -update writes it anew:\n%s", file, diff)
	}
}

// What each shipped scenario says of itself.
func TestGoldenScenariosDescribeThemselves(t *testing.T) {
	var b strings.Builder
	for _, name := range Shipped() {
		s, err := LoadShipped(name)
		if err != nil {
			t.Fatal(err)
		}
		if s.Name != name || s.Description == "" {
			t.Errorf("scenario %s calls itself %q: %q", name, s.Name, s.Description)
		}
		b.WriteString("# " + name + "\n" + s.Description + "\n" + strings.Join(s.Summary(), "\n") + "\n\n")
	}
	golden(t, "summaries.golden", b.String())
}

func TestLoad(t *testing.T) {
	if _, err := LoadShipped("defualt"); err == nil || !strings.Contains(err.Error(), "did you mean default?") {
		t.Errorf("an unknown scenario: %v", err)
	}
	file := filepath.Join(t.TempDir(), "mine.yaml")
	if _, err := Load(file); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a missing file: %v", err)
	}
	if s, err := Open("default"); err != nil || s.Name != "default" {
		t.Errorf("a shipped name: %+v, %v", s, err)
	}
	if _, err := Open("./default"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a path without a file: %v", err)
	}
	if err := os.WriteFile(file, []byte("gpus: [{model: A30-24}]\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	s, err := Open(file)
	if err != nil || s.Name != "mine" {
		t.Errorf("a good file: %+v, %v", s, err)
	}
}

const oneCard = "gpus: [{model: H100-80, count: 2}]\n"

// Every error names the file and the line, and most say what to do.
func TestParseErrors(t *testing.T) {
	for _, tc := range []struct{ name, yaml, want string }{
		{"empty", "", `s:1: the scenario is empty (give at least gpus)`},
		{"comment only", "# nothing\n", `s:1: the scenario is empty (give at least gpus)`},
		{"not yaml", "gpus: [\n", `s:1: not YAML: did not find expected node content (check indentation and quotes)`},
		{"a list", "- a\n", `s:1: the scenario must be a mapping, not a list (write key: value)`},
		{"two documents", oneCard + "---\n" + oneCard, `s:2: a second document (one scenario per file)`},
		{"no gpus", "node: a\n", `s:1: no gpus (add gpus: [{model: H100-80, count: 8}])`},
		{"unknown key", oneCard + "podz: []\n", `s:2: unknown key "podz" in the scenario (did you mean pods?)`},
		{"key twice", oneCard + "seed: 1\nseed: 2\n", `s:3: key "seed" twice in the scenario (keep one)`},
		{"alias", "node: &a x\ndriver: *a\n" + oneCard, `s:2: an alias at "driver" (write the value out)`},
		{"unknown model", "gpus:\n  - {model: H100-90}\n", `s:2: unknown model "H100-90" (did you mean H100-80?)`},
		{"no model", "gpus:\n  - {count: 2}\n", `s:2: gpus without a model (known: A30-24, A100-SXM4-40GB, A100-SXM4-80GB, H100-80, H200-141, B200, RTX-PRO-6000)`},
		{"half a model", "models:\n  - {name: X, memory_mib: 4096}\n" + oneCard, `s:2: a model without power_limit (give name, memory_mib, power_limit, sm_clock and memory_clock)`},
		{"too many", "gpus: [{model: B200, count: 65}]\n", `s:1: count must be a whole number from 1 to 64, not "65"`},
		{"layout", "gpus:\n  - model: H100-80\n    mig: [4g.40gb, 4g.40gb]\n", `s:3: 4g.40gb + 4g.40gb do not fit together on NVIDIA H100 80GB HBM3 (7 compute and 8 memory slices in all; known: 1g.10gb, 1g.10gb+me, 1g.20gb, 2g.20gb, 3g.40gb, 4g.40gb, 7g.80gb)`},
		{"profile", "gpus:\n  - {model: H100-80, mig: [1g.5gb]}\n", `s:2: unknown MIG profile of NVIDIA H100 80GB HBM3 "1g.5gb" (did you mean 1g.10gb?)`},
		{"uuid twice", "gpus:\n  - {model: H100-80, uuid: GPU-a}\n  - {model: H100-80, uuid: GPU-a}\n", `s:3: uuid GPU-a is already at line 2 (each device has its own)`},
		{"MIG uuid twice", "gpus:\n  - model: H100-80\n    mig: [3g.40gb, 3g.40gb]\n    mig_uuids:\n      - MIG-a\n      - MIG-a\n", `s:6: mig_uuids MIG-a is already at line 5 (each device has its own)`},
		{"MIG uuid of another card", "gpus:\n  - {model: H100-80, mig: [3g.40gb], mig_uuids: [MIG-a]}\n  - {model: H100-80, mig: [3g.40gb], mig_uuids: [MIG-a]}\n", `s:3: mig_uuids MIG-a is already at line 2 (each device has its own)`},
		{"uuid of a MIG device", "gpus:\n  - {model: H100-80, uuid: MIG-a}\n", `s:2: uuid "MIG-a" (want GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx)`},
		{"empty uuid", "gpus:\n  - {model: H100-80, uuid: GPU-}\n", `s:2: uuid "GPU-" (want GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx)`},
		{"uuid of many", "gpus:\n  - {model: H100-80, count: 2, uuid: GPU-a}\n", `s:2: the uuids of one GPU for 2 (leave count out, and write an entry for each GPU)`},
		{"MIG uuids of many", "gpus:\n  - {model: H100-80, count: 2, mig: [3g.40gb], mig_uuids: [MIG-a]}\n", `s:2: the uuids of one GPU for 2 (leave count out, and write an entry for each GPU)`},
		{"too few MIG uuids", "gpus:\n  - model: H100-80\n    mig: [3g.40gb, 3g.40gb]\n    mig_uuids: [MIG-a]\n", `s:4: 1 mig_uuids for 2 instances in mig (give one for each, in the same order)`},
		{"MIG uuids without MIG", "gpus:\n  - {model: H100-80, mig_uuids: [MIG-a]}\n", `s:2: 1 mig_uuids for 0 instances in mig (give one for each, in the same order)`},
		{"plugin of what", oneCard + "events:\n  - {at: 1m, do: plugin_away, for: 1m, resource: nvidia.com/gup}\n", `s:3: unknown resource of a plugin "nvidia.com/gup" (did you mean nvidia.com/gpu?)`},
		{"minors", oneCard + "minors: [1]\n", `s:1: minors has 1 numbers for 2 GPUs (give one for each)`},
		{"sharing", oneCard + "sharing: [{replicas: 1}]\n", `s:2: replicas must be a whole number from 2 to 128, not "1"`},
		{"shared twice", oneCard + "sharing:\n  - {replicas: 2}\n  - {replicas: 4}\n", `s:4: nvidia.com/gpu is shared twice (give each entry its own gpus)`},
		{"shared what", oneCard + "sharing:\n  - {replicas: 2, resource: nvidia.com/gpus}\n", `s:3: unknown resource to share "nvidia.com/gpus" (did you mean nvidia.com/gpu?)`},
		{"name of a copy", oneCard + "pods:\n  - {name: a, copies: 2}\n  - {name: a-1}\n", `s:4: pod default/a-1 is already at line 3 (names must differ)`},
		{"control characters", oneCard + "driver: \"a\\nb\"\n", `s:2: driver "a\nb" is not plain text (printable characters, 200 bytes at most)`},
		{"shared where", oneCard + "sharing:\n  - {replicas: 2, gpus: 1-4}\n", `s:3: GPU 2 on a node of 2 (numbers begin at 0)`},
		{"resource", oneCard + "pods:\n  - {name: a, resource: nvidia.com/gpu.shared}\n", `s:3: pod a asks for nvidia.com/gpu.shared, which the node never offers (did you mean nvidia.com/gpu?)`},
		{"too much", oneCard + "pods:\n  - {name: a, count: 3}\n", `s:3: pod a asks for 3 of nvidia.com/gpu, and the node has 2 (lower count)`},
		{"pod name", oneCard + "pods:\n  - {name: A_b}\n", `s:3: name "A_b" is not a Kubernetes name (lower-case letters, digits, - and . within, 63 at most)`},
		{"pod twice", oneCard + "pods:\n  - {name: a}\n  - {name: a}\n", `s:4: pod default/a is already at line 3 (names must differ)`},
		{"stop", oneCard + "pods:\n  - {name: a, start: 5m, stop: 4m}\n", `s:3: pod a stops at 4m0s but starts at 5m0s (stop must be later)`},
		{"no loop", oneCard + "pods:\n  - {name: a, repeat: {every: 1m, lifetime: 30s}}\n", `s:3: pod a repeats in a story without an end (add loop: 20m)`},
		{"lifetime", oneCard + "loop: 9m\npods:\n  - {name: a, repeat: {every: 1m, lifetime: 3m..1m}}\n", `s:4: lifetime goes from 3m0s down to 1m0s (write the shorter first)`},
		{"time", oneCard + "loop: 20\n", `s:2: loop must be a time such as 90s or 5m, not "20"`},
		{"load", oneCard + "pods:\n  - {name: a, load: trian}\n", `s:3: unknown load "trian" (did you mean train?)`},
		{"level", oneCard + "pods:\n  - {name: a, load: {shape: train, level: 2}}\n", `s:3: level must be from 0 to 1, not 2`},
		{"verb", oneCard + "events:\n  - {at: 1m, do: gpu_lots, gpu: 0}\n", `s:3: unknown event "gpu_lots" (did you mean gpu_lost?)`},
		{"verb needs", oneCard + "events:\n  - {at: 1m, do: xid, gpu: 0}\n", `s:3: xid without code (it takes at, gpu, code, instance, count)`},
		{"verb has no use", oneCard + "events:\n  - {at: 1m, do: gpu_back, gpu: 0, code: 3}\n", `s:3: gpu_back has no use for code (it takes at, gpu)`},
		{"event gpu", oneCard + "events:\n  - {at: 1m, do: gpu_back, gpu: 2}\n", `s:3: GPU 2 on a node of 2 (numbers begin at 0)`},
		{"events order", oneCard + "events:\n  - {at: 2m, do: gpu_back, gpu: 0}\n  - {at: 1m, do: gpu_back, gpu: 0}\n", `s:4: an event at 1m0s after one at 2m0s (write events in the order of time)`},
		{"event too long", oneCard + "loop: 5m\nevents:\n  - {at: 4m, do: plugin_away, for: 2m}\n", `s:4: plugin_away ends at 6m0s, after the loop of 5m0s (make the loop longer)`},
		{"repartition", oneCard + "events:\n  - {at: 1m, do: repartition, gpu: 0, layout: [7g.80gb]}\n", `s:3: GPU 0 is not in MIG mode (give it mig: [] in gpus)`},
		{"instance of a whole card", oneCard + "events:\n  - {at: 1m, do: xid, gpu: 0, code: 43, instance: 7}\n", `s:3: GPU 0 has no GPU instance 7 at 1m0s (it has none)`},
		{"instance of another layout", "gpus: [{model: H100-80, mig: [3g.40gb, 1g.10gb]}]\nevents:\n  - {at: 1m, do: xid, gpu: 0, code: 43, instance: 1}\n  - {at: 2m, do: repartition, gpu: 0, layout: [2g.20gb]}\n  - {at: 2m, do: xid, gpu: 0, code: 43, instance: 1}\n", `s:5: GPU 0 has no GPU instance 1 at 2m0s (it has 3)`},
		{"instance of a lost card", oneCard + "events:\n  - {at: 1m, do: gpu_lost, gpu: 0, instance: 1}\n", `s:3: gpu_lost has no use for instance (it takes at, gpu, for)`},
		{"field", oneCard + "fields:\n  DCGM_FI_DEV_GPU_TMP: 60\n", `s:3: unknown field "DCGM_FI_DEV_GPU_TMP" (did you mean DCGM_FI_DEV_GPU_TEMP?)`},
		{"function", oneCard + "fields:\n  DCGM_FI_DEV_GPU_TEMP: {sin: {mean: 3}}\n", `s:3: unknown key "sin" in DCGM_FI_DEV_GPU_TEMP_CELSIUS (did you mean sine?)`},
		{"falling counter", oneCard + "fields:\n  \"156\": {counter: {rate: -1}}\n", `s:3: a counter cannot fall (rate must not be negative)`},
		{"text field", oneCard + "fields:\n  DCGM_FI_DRIVER_VERSION: 5\n", `s:3: DCGM_FI_SYSTEM_DRIVER_VERSION is a text (write {text: …})`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, err := Parse("s", []byte(tc.yaml))
			if err == nil {
				t.Fatalf("no error, got %+v", s)
			}
			if first, _, _ := strings.Cut(err.Error(), "\n"); first != tc.want {
				t.Errorf("error\n  %s\nwant\n  %s", err, tc.want)
			}
		})
	}
}

// All problems of a file come at once.
func TestParseTellsAllProblems(t *testing.T) {
	_, err := Parse("s.yaml", []byte("nod: a\ngpus:\n  - {model: H100-81}\npods:\n  - {name: a, coutn: 2}\n"))
	if err == nil || strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("want three lines, got: %v", err)
	}
}

func TestParseOwnModelAndSelectors(t *testing.T) {
	s, err := Parse("own.yaml", []byte(`
models: [{name: NVIDIA L4, memory_mib: 23034, power_limit: 72, sm_clock: 2040, memory_clock: 6251}]
device_ids: gke
gpus:
  - {model: l4, count: 4}
sharing:
  - {replicas: 3, gpus: [0, 2-3], strategy: mps}
pods:
  - {name: a, count: 10}
`))
	if err != nil {
		t.Fatal(err)
	}
	n, err := NewNode(s, Options{})
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, a := range n.Advertised(0) {
		ids = append(ids, a.DeviceID)
	}
	// The pod of ten holds every id; what is held can still be handed out, says the kubelet.
	want := "nvidia0/vgpu0 nvidia0/vgpu1 nvidia0/vgpu2 nvidia1 nvidia2/vgpu0 nvidia2/vgpu1 nvidia2/vgpu2 nvidia3/vgpu0 nvidia3/vgpu1 nvidia3/vgpu2"
	if got := strings.Join(ids, " "); got != want {
		t.Errorf("ids %s\nwant %s", got, want)
	}
	if held := n.Truth(0); len(held) != 10 {
		t.Errorf("%d ids held, want 10", len(held))
	}
}

var located = regexp.MustCompile(`^fuzz\.yaml:[1-9][0-9]*: .`)

// Parse never panics, and every line of its errors has a place.
func FuzzParse(f *testing.F) {
	for _, name := range Shipped() {
		data, err := shipped.ReadFile("scenarios/" + name + ".yaml")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(oneCard + "fields: {150: {sine: {mean: 1, amplitude: 2, period: 1s}}, 155: blank}\n"))
	f.Add([]byte("gpus: [{model: H100-80, uuid: GPU-a, mig: [1g.10gb@6, 3g.40gb], mig_uuids: [MIG-a, MIG-b]}]\n"))
	f.Add([]byte("loop: 1ns\ngpus: [{model: H100-80, mig: [3g.40gb]}]\nevents: [{at: 0s, do: xid, gpu: 0, code: 43, instance: 1, count: 3}]\n"))
	f.Add([]byte("gpus: &a [*a]\n"))
	f.Add([]byte("? [a]\n: b\n"))
	f.Add([]byte(oneCard + "loop: 1s\npods: [{name: a, repeat: {every: 1ns, lifetime: 1ns}}]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := Parse("fuzz.yaml", data)
		if err == nil {
			s.Summary()
			if len(s.cards) > 8 || len(s.pods) > 20 {
				return
			}
			n, err := NewNode(s, Options{})
			if err != nil {
				t.Fatal(err)
			}
			n.ReadingAt(90*time.Second, []gpu.FieldID{fieldPower, fieldEnergy, gpu.FieldXID, 252, gpu.FieldHealthStatus, gpu.FieldP2PStatus})
			n.tell(90 * time.Second)
			n.Truth(time.Hour)
			return
		}
		for line := range strings.SplitSeq(err.Error(), "\n") {
			if !located.MatchString(line) {
				t.Fatalf("error without a place: %q", line)
			}
		}
	})
}
