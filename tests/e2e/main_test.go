// SPDX-License-Identifier: Apache-2.0

// Package e2e proves the exporter and the device plugin on a real Kubernetes node: kubelet,
// containerd, runc and a control plane run on this machine, over GPUs that a pretend libdcgm
// has. `make e2e` runs it; docs/e2e.md says how it is made.
package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What the environment says.
const (
	// envRun switches the test on: it takes minutes, and programs that `go test` does not build.
	envRun = "GPUMETER_E2E"
	// envBin is the folder that build/build.sh printed.
	envBin = "GPUMETER_E2E_BIN"
	// envProduct is the folder with our programs.
	envProduct = "GPUMETER_E2E_PRODUCT"
	// envOut is where logs and the kubelet's answers are left.
	envOut = "GPUMETER_E2E_OUT"
	// envKubelets are the kubelets to run under, "1.36,1.37"; all without it.
	envKubelets = "GPUMETER_E2E_KUBELETS"
	// envPlace says which process of the test this is, see place.
	envPlace = "GPUMETER_E2E_PLACE"
	// envKubelet is the one kubelet of a process inside.
	envKubelet = "GPUMETER_E2E_KUBELET"
)

// The test is three processes: the outer one is what `go test` started; for each kubelet it
// starts a first one in new namespaces, which makes itself at home and starts the inner
// one, which does the work. When the first one ends, the kernel ends all that is in there.
const (
	placeFirst = "first"
	placeInner = "inner"
	// placeProbe only says whether the test can run, see run.sh.
	placeProbe = "probe"
)

func TestMain(m *testing.M) {
	switch os.Getenv(envPlace) {
	case placeFirst:
		os.Exit(first())
	case placeProbe:
		if err := possible(); err != nil {
			fmt.Println(strings.ReplaceAll(err.Error(), "\n", "; "))
			os.Exit(1)
		}
	default:
		os.Exit(m.Run())
	}
}

// minors are the kubelets there are, oldest first.
func minors() []string { return []string{"1.35", "1.36", "1.37"} }

// TestRealKubelet is the outer process.
func TestRealKubelet(t *testing.T) {
	if os.Getenv(envRun) != "1" {
		t.Skip("runs with `make e2e` only")
	}
	if os.Getenv(envPlace) == placeInner {
		t.Skip("this is the inner process")
	}
	if err := possible(); err != nil {
		t.Skipf("a Kubernetes node cannot run here: %v", err)
	}
	wanted := minors()
	if only := os.Getenv(envKubelets); only != "" {
		wanted = strings.Split(only, ",")
	}
	unlock, err := lock("/run/lock/gpumeter-e2e.lock")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(unlock)
	t.Cleanup(tidy)
	ctx, stop := signal.NotifyContext(t.Context(), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer stop()
	for _, minor := range wanted {
		t.Run("kubelet-"+minor, func(t *testing.T) {
			if !slices.Contains(minors(), minor) {
				t.Fatalf("there is no kubelet %q, only %s", minor, strings.Join(minors(), ", "))
			}
			start := time.Now()
			if err := enter(ctx, minor); err != nil {
				t.Fatal(err)
			}
			t.Logf("kubelet %s: %v", minor, time.Since(start).Round(100*time.Millisecond))
		})
		if ctx.Err() != nil {
			t.Fatal("stopped by a signal")
		}
	}
}

// possible says what is missing on this machine.
func possible() error {
	var missing []error
	if os.Geteuid() != 0 {
		missing = append(missing, errors.New("not root"))
	}
	for _, program := range []string{"runc", "busybox", "gcc"} {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, fmt.Errorf("no %s: apt-get install runc busybox-static gcc", program))
		}
	}
	if systems, err := os.ReadFile("/proc/filesystems"); err != nil || !strings.Contains(string(systems), "\toverlay\n") {
		missing = append(missing, errors.New("the kernel has no overlay file system"))
	}
	if err := canGroup(); err != nil {
		missing = append(missing, err)
	}
	if err := canEnter(); err != nil {
		missing = append(missing, err)
	}
	return errors.Join(missing...)
}

// cgroups are the hierarchies: one of version 2, or the controllers of version 1.
func cgroups() []string {
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		return []string{"/sys/fs/cgroup"}
	}
	found, err := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs")
	if err != nil {
		return nil
	}
	for i := range found {
		found[i] = filepath.Dir(found[i])
	}
	return found
}

func canGroup() error {
	all := cgroups()
	if len(all) == 0 {
		return errors.New("no cgroups below /sys/fs/cgroup")
	}
	for _, root := range all {
		probe := filepath.Join(root, "gpumeter-e2e")
		if err := os.Mkdir(probe, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("cannot make a cgroup: %w", err)
		}
		if err := os.Remove(probe); err != nil {
			return fmt.Errorf("cannot remove a cgroup: %w", err)
		}
	}
	return nil
}

func canEnter() error {
	probe := exec.Command("/bin/true")
	probe.SysProcAttr = namespaces()
	if err := probe.Run(); err != nil {
		return fmt.Errorf("cannot make namespaces: %w", err)
	}
	return nil
}

// namespaces are the new ones. The network has nothing but a loopback device in it, so
// nothing leaves the machine.
func namespaces() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		Pdeathsig:  syscall.SIGKILL,
	}
}

// lock keeps a second run out: the names of cgroups are the whole machine's.
func lock(path string) (func(), error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock: %w", err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("another run has %s: %w", path, err), file.Close())
	}
	return func() { _ = file.Close() }, nil
}

// tidy removes what is seen outside of the namespaces, the cgroups of pods and an empty folder,
// also those of an earlier run that was killed. Neither can be removed while it is in use.
func tidy() {
	_ = os.Remove(kubeletRoot)
	for _, root := range cgroups() {
		var found []string
		_ = filepath.WalkDir(filepath.Join(root, "kubepods"), func(path string, entry os.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				found = append(found, path)
			}
			return nil
		})
		for _, dir := range slices.Backward(found) {
			_ = os.Remove(dir)
		}
	}
}

// enter runs TestNode under one kubelet in namespaces of its own.
func enter(ctx context.Context, minor string) error {
	// The kernel sends the death signal when the thread ends that started the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := os.MkdirAll(kubeletRoot, 0o755); err != nil {
		return fmt.Errorf("make a place to mount on: %w", err)
	}
	defer tidy()
	inner := exec.CommandContext(ctx, "/proc/self/exe", "-test.run=^TestNode$", "-test.v", "-test.timeout=6m")
	inner.Env = append(os.Environ(), envPlace+"="+placeFirst, envKubelet+"="+minor)
	inner.Stdout, inner.Stderr = os.Stdout, os.Stderr
	inner.SysProcAttr = namespaces()
	if err := inner.Run(); err != nil {
		return fmt.Errorf("the node with kubelet %s: %w; logs are in %s", minor, err, outFolder(minor))
	}
	return nil
}

// outFolder has the logs and records of one kubelet's run.
func outFolder(minor string) string {
	return filepath.Join(os.Getenv(envOut), "kubelet-"+minor)
}
