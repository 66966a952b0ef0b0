// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// work is a file system in memory for all that the node writes.
	work = "/run/e2e"
	// kubeletRoot is the kubelet's own folder: that of device plugins is fixed below it.
	kubeletRoot = "/var/lib/kubelet"
)

// first is process 1 of the new namespaces: it hides what the node would change of the machine,
// starts the inner process, and buries the dead until that one ends.
func first() int {
	if err := settle(); err != nil {
		fmt.Fprintln(os.Stderr, "settle in new namespaces:", err)
		return 1
	}
	inner := exec.Command("/proc/self/exe", os.Args[1:]...)
	inner.Env = append(os.Environ(), envPlace+"="+placeInner)
	inner.Stdout, inner.Stderr = os.Stdout, os.Stderr
	if err := inner.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "start the inner process:", err)
		return 1
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			fmt.Fprintln(os.Stderr, "wait:", err)
			return 1
		case pid == inner.Process.Pid && status.Exited():
			return status.ExitStatus()
		case pid == inner.Process.Pid:
			fmt.Fprintln(os.Stderr, "the inner process was killed:", status.Signal())
			return 1
		}
	}
}

func settle() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts to ourselves: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	// The work folder is a mount of its own, since cAdvisor knows file systems by their mounts.
	for _, dir := range []string{"/run", work, kubeletRoot} {
		if err := memory(dir); err != nil {
			return err
		}
	}
	for _, step := range []func() error{hideSysctls, makeDevices, loopbackUp} {
		if err := step(); err != nil {
			return err
		}
	}
	// As on a node under systemd: containers may mount / and follow what is mounted below it.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("share mounts among ourselves: %w", err)
	}
	return os.MkdirAll("/run/lock", 0o755)
}

// memory mounts an empty file system in memory.
func memory(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make a place to mount on: %w", err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount a file system in memory on %s: %w", dir, err)
	}
	return nil
}

// hideSysctls gives the kubelet files to write that are not the machine's.
func hideSysctls() error {
	names := []string{
		"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
		"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
	}
	for _, name := range names {
		theirs := filepath.Join("/proc/sys", name)
		value, err := os.ReadFile(theirs)
		if err != nil {
			return fmt.Errorf("read a sysctl: %w", err)
		}
		ours := filepath.Join("/run", "sysctl-"+strings.ReplaceAll(name, "/", "-"))
		if err := os.WriteFile(ours, value, 0o644); err != nil {
			return fmt.Errorf("copy a sysctl: %w", err)
		}
		if err := unix.Mount(ours, theirs, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("hide the sysctl %s: %w", name, err)
		}
	}
	return nil
}

// makeDevices mounts a /dev with NVIDIA's device nodes in it, all of them as harmless as
// /dev/null, and says in /proc/driver which capability belongs to which MIG instance.
func makeDevices() error {
	const dev = "/run/dev"
	if err := memory(dev); err != nil {
		return err
	}
	nodes := map[string]uint64{
		"null": unix.Mkdev(1, 3), "zero": unix.Mkdev(1, 5), "full": unix.Mkdev(1, 7), "random": unix.Mkdev(1, 8),
		"urandom": unix.Mkdev(1, 9), "kmsg": unix.Mkdev(1, 11), "tty": unix.Mkdev(5, 0),
		"nvidiactl": unix.Mkdev(1, 3), "nvidia-uvm": unix.Mkdev(1, 3), "nvidia-uvm-tools": unix.Mkdev(1, 3),
	}
	for i := range cards {
		nodes[fmt.Sprintf("nvidia%d", i)] = unix.Mkdev(1, 3)
	}
	minors := migMinors()
	for _, minor := range minors {
		nodes[fmt.Sprintf("nvidia-caps/nvidia-cap%d", minor)] = unix.Mkdev(1, 3)
	}
	for _, dir := range []string{"pts", "shm", "mqueue", "nvidia-caps"} {
		if err := os.MkdirAll(filepath.Join(dev, dir), 0o755); err != nil {
			return fmt.Errorf("make a folder of devices: %w", err)
		}
	}
	for name, device := range nodes {
		path := filepath.Join(dev, name)
		if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(device)); err != nil {
			return fmt.Errorf("make device node %s: %w", path, err)
		}
		if err := os.Chmod(path, 0o666); err != nil {
			return fmt.Errorf("let everybody use %s: %w", path, err)
		}
	}
	for name, target := range map[string]string{"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2", "ptmx": "pts/ptmx"} {
		if err := os.Symlink(target, filepath.Join(dev, name)); err != nil {
			return fmt.Errorf("make a link among devices: %w", err)
		}
	}
	if err := unix.Mount("/dev/pts", filepath.Join(dev, "pts"), "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("keep the terminals: %w", err)
	}
	if err := unix.Mount(dev, "/dev", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("mount /dev: %w", err)
	}
	return writeCapabilities(minors)
}

// migMinors are the capabilities of the MIG devices, in the driver's words.
func migMinors() map[string]int {
	minors := map[string]int{"config": 1, "monitor": 2}
	for _, instance := range instances {
		minors[fmt.Sprintf("gpu%d/gi%d/access", migCard, instance)] = 3 + 9*migCard*15 + instance*9
		minors[fmt.Sprintf("gpu%d/gi%d/ci0/access", migCard, instance)] = 4 + 9*migCard*15 + instance*9
	}
	return minors
}

func writeCapabilities(minors map[string]int) error {
	const driver = "/proc/driver"
	if err := unix.Mount("tmpfs", driver, "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount %s: %w", driver, err)
	}
	dir := filepath.Join(driver, "nvidia-caps")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return fmt.Errorf("make the folder of capabilities: %w", err)
	}
	var text strings.Builder
	for name, minor := range minors {
		fmt.Fprintf(&text, "%s %d\n", name, minor)
	}
	if err := os.WriteFile(filepath.Join(dir, "mig-minors"), []byte(text.String()), 0o644); err != nil {
		return fmt.Errorf("write the capabilities: %w", err)
	}
	return nil
}

func loopbackUp() error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return fmt.Errorf("open a socket: %w", err)
	}
	defer func() { _ = unix.Close(socket) }()
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return fmt.Errorf("name the loopback device: %w", err)
	}
	request.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(socket, unix.SIOCSIFFLAGS, request); err != nil {
		return fmt.Errorf("bring the loopback device up: %w", err)
	}
	return nil
}
