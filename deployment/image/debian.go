// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// suite is Debian's release; packages.lock pins versions within it.
const suite = "bookworm"

// The Debian packages: those of every image and those that the GPU Operator's scripts need.
// libgcc and libstdc++ are for libdcgm and its modules, our programs need libc6 alone.
func basePackages() []string {
	return []string{"base-files", "ca-certificates", "gcc-12-base", "libc6", "libgcc-s1", "libstdc++6"}
}
func shellPackages() []string { return []string{"bash-static", "busybox-static"} }

// triple is the name of Debian's library folder.
func triple(arch string) (string, error) {
	switch arch {
	case "amd64":
		return "x86_64-linux-gnu", nil
	case "arm64":
		return "aarch64-linux-gnu", nil
	}
	return "", fmt.Errorf("no architecture %q, only amd64 and arm64", arch)
}

// unpack adds what a container needs of a Debian package, its licence, and its record for scanners.
func (t tree) unpack(ctx context.Context, name, deb string) error {
	content, err := output(ctx, "dpkg-deb", "--fsys-tarfile", deb)
	if err != nil {
		return fmt.Errorf("unpack Debian package %s: %w", name, err)
	}
	if err := t.readTar(bytes.NewReader(content), wanted); err != nil {
		return fmt.Errorf("unpack Debian package %s: %w", name, err)
	}
	control := tree{}
	raw, err := output(ctx, "dpkg-deb", "--ctrl-tarfile", deb)
	if err != nil {
		return fmt.Errorf("read the control of Debian package %s: %w", name, err)
	}
	if err := control.readTar(bytes.NewReader(raw), func(string, bool) bool { return true }); err != nil {
		return fmt.Errorf("read the control of Debian package %s: %w", name, err)
	}
	// Where distroless images have it, and scanners look.
	const status = "var/lib/dpkg/status.d/"
	t.text(status+name, string(control["control"].data))
	t.text(status+name+".md5sums", t.sums(string(control["md5sums"].data)))
	return nil
}

// sums are those lines of a package's md5sums whose files are in the image, under their paths there.
func (t tree) sums(all string) string {
	var kept strings.Builder
	for line := range strings.Lines(all) {
		sum, name, ok := strings.Cut(strings.TrimSpace(line), "  ")
		if !ok {
			continue
		}
		for _, name := range []string{name, "usr/" + name} {
			if _, in := t[name]; in {
				fmt.Fprintf(&kept, "%s  %s\n", sum, name)
			}
		}
	}
	return kept.String()
}

// wanted says which files of Debian's packages are in the image: libraries, certificates, licences, the
// names of the system, and the programs of the shell packages.
func wanted(name string, link bool) bool {
	if slices.Contains([]string{
		// NVIDIA's container runtime looks for the first to know where libraries go.
		"etc/debian_version", "etc/os-release", "usr/lib/os-release",
		"etc/ld.so.conf.d/x86_64-linux-gnu.conf", "etc/ld.so.conf.d/aarch64-linux-gnu.conf",
		"bin/busybox", "bin/bash-static",
	}, name) {
		return true
	}
	in := func(folders ...string) bool {
		return slices.ContainsFunc(folders, func(folder string) bool { return strings.HasPrefix(name, folder) })
	}
	switch base := path.Base(name); {
	case in("usr/share/doc/"):
		// A package's folder may be a link to that of another.
		depth := strings.Count(name, "/")
		return depth == 3 && link || depth == 4 && base == "copyright"
	case in("usr/share/common-licenses/", "usr/share/ca-certificates/mozilla/"):
		return true
	case strings.Contains(name, "/gconv/") || strings.Contains(name, "/audit/"):
		return false
	}
	return in("lib/", "lib64/", "usr/lib/", "usr/lib64/") && strings.Contains(path.Base(name), ".so")
}

// bundle puts the certificates into one file, as update-ca-certificates would.
func (t tree) bundle() {
	var all strings.Builder
	for _, name := range t.names() {
		if strings.HasPrefix(name, "usr/share/ca-certificates/") && path.Ext(name) == ".crt" {
			all.Write(bytes.TrimSpace(t[name].data))
			all.WriteByte('\n')
			delete(t, name)
		}
	}
	t.text("etc/ssl/certs/ca-certificates.crt", all.String())
}

// pin is a line of packages.lock: one version of a package and what its file has to be.
type pin struct{ arch, name, version, sha256 string }

// readLock reads packages.lock.
func readLock(text string) ([]pin, error) {
	var pins []pin
	lines := bufio.NewScanner(strings.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		if len(fields) != 4 || len(fields[3]) != sha256.Size*2 {
			return nil, fmt.Errorf("packages.lock line %d: want architecture, package, version and SHA-256, got %q: make it anew with `make image-lock`", n, lines.Text())
		}
		pins = append(pins, pin{fields[0], fields[1], fields[2], fields[3]})
	}
	return pins, lines.Err()
}

// find is the pin of a package.
func find(pins []pin, arch, name string) (pin, error) {
	i := slices.IndexFunc(pins, func(p pin) bool { return p.arch == arch && p.name == name })
	if i < 0 {
		return pin{}, fmt.Errorf("packages.lock has no %s for %s: make it anew with `make image-lock`", name, arch)
	}
	return pins[i], nil
}

// checkFile holds a downloaded package against its pin.
func (p pin) checkFile(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(data)
	if got := hex.EncodeToString(sum[:]); got != p.sha256 {
		return fmt.Errorf("%s is not %s %s: its SHA-256 is %s, packages.lock says %s", file, p.name, p.version, got, p.sha256)
	}
	return nil
}

// output runs a program and is what it printed; its complaints are in the error.
func output(ctx context.Context, name string, args ...string) ([]byte, error) {
	command := exec.CommandContext(ctx, name, args...)
	var out, complaints bytes.Buffer
	command.Stdout, command.Stderr = &out, &complaints
	command.Env = append(os.Environ(), "LC_ALL=C")
	if err := command.Run(); err != nil {
		return nil, fmt.Errorf("%s: %w: %s", name, err, bytes.TrimSpace(complaints.Bytes()))
	}
	return out.Bytes(), nil
}

// cacheFolder keeps downloaded packages between runs.
func cacheFolder() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", errors.New("no folder for downloaded packages: set HOME or XDG_CACHE_HOME")
	}
	return filepath.Join(cache, "gpumeter", "debian"), nil
}
