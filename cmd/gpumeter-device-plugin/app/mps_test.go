// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/pkg/deviceplugin"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/mps"
	"github.com/gpumeter/gpumeter/tests/fakekubelet"
)

const sharedByMPS = "version: v1\nsharing: {mps: {renameByDefault: true, failRequestsGreaterThanOne: true, resources: [{name: nvidia.com/gpu, devices: [0, 1], replicas: 4}]}}\n"

// withDriver gives the site the pretend driver's programs for MPS.
func (s *site) withDriver() {
	s.t.Helper()
	for _, program := range []string{mps.Program, mps.ComputeModeProgram} {
		build := exec.CommandContext(s.t.Context(), "go", "build", "-o", s.path(filepath.Join("bin", program)), "../../../pkg/mps/testdata/pretend")
		if out, err := build.CombinedOutput(); err != nil {
			s.t.Fatalf("%v\n%s", err, out)
		}
	}
	s.env["PATH"], s.env["HOME"] = s.path("bin"), s.dir
}

func TestADeadMPSDaemonTakesItsGPUsOutUntilItIsBack(t *testing.T) {
	s := newSite(t)
	s.withDriver()
	root := s.path("mps")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	p := s.start("--source=sim", "--mps-daemon=own", "--mps-root="+root, "--mps-root-ctr-path="+root, "--health-hold-down=1s",
		"--sim-scenario", s.write("story.yaml", story), "--config-file", s.write("config.yaml", sharedByMPS))
	s.await("at first", func(k *fakekubelet.Kubelet) bool { return has(shared, 8, 8)(k) && has(gpus, 1, 1)(k) })
	got, err := s.kubelet.Allocate(t.Context(), "client", shared, 1)
	if err != nil || got.Response.Envs["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] != "25" {
		t.Errorf("allocated %+v, %v", got, err)
	}
	folder := filepath.Join(root, shared)
	if told := content(t, filepath.Join(folder, "commands")); !strings.Contains(told, "set_default_active_thread_percentage 25\n") {
		t.Errorf("the daemon was told\n%s", told)
	}
	write(t, filepath.Join(folder, "ends-at-once"), "")
	pid, err := strconv.Atoi(strings.TrimSpace(content(t, filepath.Join(folder, "pids"))))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.await("after the daemon's death", func(k *fakekubelet.Kubelet) bool { return has(shared, 8, 0)(k) && has(gpus, 1, 1)(k) })
	if err := os.Remove(filepath.Join(folder, "ends-at-once")); err != nil {
		t.Fatal(err)
	}
	s.await("when it is back", has(shared, 8, 8))
	p.stop()
	if told := content(t, filepath.Join(folder, "commands")); !strings.HasSuffix(told, "quit\n") {
		t.Errorf("the daemon was not told to quit:\n%s", told)
	}
	if modes := content(t, s.path("smi")); !strings.Contains(modes, "EXCLUSIVE_PROCESS") || !strings.HasSuffix(modes, "DEFAULT\n") {
		t.Errorf("compute modes:\n%s", modes)
	}
}

func content(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestAPretendNodeHasNoMPSDaemonsUnlessTheyAreAskedFor(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, mpsOwn},
		{[]string{"--source=sim"}, mpsOff},
		{[]string{"--source=sim", "--mps-daemon=external"}, mpsExternal},
	} {
		got, err := parse(t, nil, c.args...)
		if err != nil || got.mps.daemon != c.want {
			t.Errorf("%v: %q, %v; want %q", c.args, got.mps.daemon, err, c.want)
		}
	}
	if _, err := parse(t, nil, "--mps-daemon=mine"); err == nil || !strings.Contains(err.Error(), "own, external or off") {
		t.Errorf("an unknown word: %v", err)
	}
}

func TestWhatWasSaidOfMPSIsTakenBackWhereNobodyLooks(t *testing.T) {
	said := make(chan []health.Fact, 1)
	daemons := newMPS(config{mps: mpsConfig{daemon: mpsOff}}, nil, func(f []health.Fact) { said <- f }, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := daemons.Run(ctx); err != nil {
		t.Error(err)
	}
	if len(said) != 1 || len(<-said) != 0 {
		t.Error("an exporter that was told of a dead daemon before will go on to believe it")
	}
}

func TestTheDaemonsGetWhatThePlanSays(t *testing.T) {
	got := mpsPlan("/mps", []deviceplugin.MPSDaemon{{
		Resource: shared, ThreadPercent: 25, Devices: []deviceplugin.MPSDevice{{UUID: "GPU-0", MemoryMiB: 20480}, {UUID: "GPU-1"}},
	}})
	want := mps.Plan{Root: "/mps", Daemons: []mps.Daemon{{
		Resource: shared, ThreadPercent: 25, Devices: []mps.Device{{UUID: "GPU-0", MemoryMiB: 20480}, {UUID: "GPU-1"}},
	}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestTheDriversProgramsAreLookedForInThePathAndTheDriversRoot(t *testing.T) {
	env := environ(map[string]string{"PATH": "/opt/bin::/usr/local/bin", "CUDA_VISIBLE_DEVICES": "3", "HOME": "/root"})
	want := []string{"/opt/bin", "/usr/local/bin", "/driver-root/usr/bin", "/driver-root/bin", "/usr/bin", "/bin"}
	if got := programFolders(env, "/driver-root"); !slices.Equal(got, want) {
		t.Errorf("folders %v", got)
	}
	if got := mpsEnviron(env); !slices.Equal(got, []string{"PATH=/opt/bin::/usr/local/bin", "HOME=/root"}) {
		t.Errorf("environment %v", got)
	}
}
