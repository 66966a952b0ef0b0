// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// layer is a part of the image that changes on its own: Debian's files with a new lock, the shell of the
// variant with them, licences and counter files rarely, programs with every commit.
type layer struct {
	name, comment string
	tree          tree
}

// layers are all that is in the image, lowest first.
func layers(ctx context.Context, o options) ([]layer, error) {
	text, err := os.ReadFile(o.lock)
	if err != nil {
		return nil, fmt.Errorf("read the lock: %w", err)
	}
	pins, err := readLock(string(text))
	if err != nil {
		return nil, err
	}
	base, err := baseTree(ctx, o.arch, pins)
	if err != nil {
		return nil, err
	}
	out := []layer{{"debian", "Debian packages of deployment/image/packages.lock", base}}
	switch o.variant {
	case "":
	case operator:
		shell, err := shellTree(ctx, o.arch, pins)
		if err != nil {
			return nil, err
		}
		out = append(out, layer{"shell", "busybox and bash for the scripts of the GPU Operator", shell})
	default:
		return nil, fmt.Errorf("no variant %q, only %s", o.variant, operator)
	}
	data, err := dataTree(ctx, o)
	if err != nil {
		return nil, err
	}
	programs, err := programTree(o.programs)
	if err != nil {
		return nil, err
	}
	return append(out, layer{"data", "counter files and licences", data}, layer{"programs", "gpumeter's programs", programs}), nil
}

// operator is the variant with a shell.
const operator = "operator"

// baseTree is a system without shell and package manager: libraries, certificates, users, names.
func baseTree(ctx context.Context, arch string, pins []pin) (tree, error) {
	libraries, err := triple(arch)
	if err != nil {
		return nil, err
	}
	t := tree{}
	if err := t.install(ctx, arch, pins, basePackages()); err != nil {
		return nil, err
	}
	for _, top := range merged() {
		t.symlink(top, "usr/"+top)
		t.folder("usr/"+top, file{mode: 0o755})
	}
	t.folder("usr/lib/"+libraries, file{mode: 0o755})
	t.bundle()
	t.text("etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n")
	t.text("etc/nsswitch.conf", "hosts: files dns\n")
	t.text("etc/passwd", "root:x:0:0:root:/root:/sbin/nologin\nnobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n")
	t.text("etc/group", "root:x:0:\nnobody:x:65534:\nnonroot:x:65532:\n")
	for _, dir := range []string{"dev", "home/nonroot", "proc", "sys", "usr/local/bin"} {
		t.folder(dir, file{mode: 0o755})
	}
	t.folder("root", file{mode: 0o700})
	t.symlink("var/run", "/run")
	for _, dir := range writable() {
		t.folder(dir, file{mode: 0o777 | fs.ModeSticky})
	}
	return t, nil
}

// writable are the folders that everybody may write to, where nothing is mounted over them: the image's user, OpenShift's users,
// and root without the capability to pass over permissions, as manifests of dcgm-exporter have it.
func writable() []string { return []string{"run/gpumeter", "tmp", "var/lib/gpumeter"} }

// shellTree has the programs that the GPU Operator's scripts call, and bash under the path that
// its older versions start.
func shellTree(ctx context.Context, arch string, pins []pin) (tree, error) {
	t := tree{}
	if err := t.install(ctx, arch, pins, shellPackages()); err != nil {
		return nil, err
	}
	for _, name := range []string{"sh", "cat", "env", "grep", "ln", "ls", "mkdir", "rm", "sleep", "test", "lsmod"} {
		t.symlink("bin/"+name, "busybox")
	}
	t.symlink("bin/bash", "bash-static")
	return t, nil
}

// install unpacks packages in the pinned versions.
func (t tree) install(ctx context.Context, arch string, pins []pin, names []string) error {
	a, err := newAPT(arch)
	if err != nil {
		return err
	}
	for _, name := range names {
		p, err := find(pins, arch, name)
		if err != nil {
			return err
		}
		deb, err := a.file(ctx, p)
		if err != nil {
			return err
		}
		if err := t.unpack(ctx, name, deb); err != nil {
			return err
		}
	}
	return nil
}

// programTree has the programs, and the names by which those that they replace are called.
func programTree(dir string) (tree, error) {
	t := tree{}
	for _, name := range programs() {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, fmt.Errorf("no program for the image: %w: build it with `make programs`", err)
		}
		t.program("usr/bin/"+name, data)
	}
	for name, target := range links() {
		t.symlink("usr/bin/"+name, target)
	}
	return t, nil
}

// binaries are the programs' files.
func (o *options) binaries() []string {
	var out []string
	for _, name := range programs() {
		out = append(out, filepath.Join(o.programs, name))
	}
	return out
}

func programs() []string {
	return []string{"gpumeter", "gpumeter-device-plugin", "gpumeter-exporter"}
}

// links are other programs' names for ours: dcgm-exporter's, the NVIDIA device plugin's, and that of the
// container which chooses a node's config under the GPU Operator.
func links() map[string]string {
	return map[string]string{
		"dcgm-exporter":        "gpumeter-exporter",
		"nvidia-device-plugin": "gpumeter-device-plugin",
		"config-manager":       "gpumeter-device-plugin",
	}
}

// dataTree has the counter files where dcgm-exporter has them, and everybody's licence.
func dataTree(ctx context.Context, o options) (tree, error) {
	t := tree{}
	if err := t.read("licenses/LICENSE", filepath.Join(o.root, "LICENSE")); err != nil {
		return nil, err
	}
	counters, err := filepath.Glob(filepath.Join(o.root, "etc", "*.csv"))
	if err != nil || len(counters) == 0 {
		return nil, fmt.Errorf("no counter files below %s, %w", o.root, err)
	}
	for _, from := range counters {
		if err := t.read("etc/dcgm-exporter/"+filepath.Base(from), from); err != nil {
			return nil, err
		}
	}
	return t, t.moduleLicences(ctx, o.root, o.binaries())
}

// rootfs writes the image's files into a new folder.
func rootfs(ctx context.Context, o options) error {
	all, err := layers(ctx, o)
	if err != nil {
		return err
	}
	whole := tree{}
	for _, l := range all {
		maps.Copy(whole, l.tree)
	}
	if found, err := os.ReadDir(o.out); err == nil && len(found) > 0 {
		return fmt.Errorf("%s is not empty: remove it first", o.out)
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return fmt.Errorf("make the folder for the image's files: %w", err)
	}
	return whole.write(o.out, o.time())
}

// sorted are a map's keys in order.
func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
