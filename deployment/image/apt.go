// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// The archives, unless the environment names others: a mirror, or snapshot.debian.org when
// the versions of packages.lock are no longer in the archive itself.
const (
	archive         = "http://deb.debian.org/debian"
	securityArchive = "http://deb.debian.org/debian-security"
	envArchive      = "GPUMETER_DEBIAN"
	envSecurity     = "GPUMETER_DEBIAN_SECURITY"
	keyring         = "/usr/share/keyrings/debian-archive-keyring.gpg"
)

// apt is Debian's package manager with lists of its own, for one architecture. It verifies
// signatures of what it downloads; the machine's own lists are not touched.
type apt struct {
	dir  string
	arch string
}

// newAPT makes the folder of an apt; its lists are empty before update.
func newAPT(arch string) (*apt, error) {
	cache, err := cacheFolder()
	if err != nil {
		return nil, err
	}
	a := &apt{filepath.Join(cache, "apt-"+arch), arch}
	for _, dir := range []string{"lists/partial", "archives/partial", "debs"} {
		if err := os.MkdirAll(filepath.Join(a.dir, dir), 0o755); err != nil {
			return nil, fmt.Errorf("make a folder for apt: %w", err)
		}
	}
	from := func(variable, otherwise string) string {
		if set := os.Getenv(variable); set != "" {
			return set
		}
		return otherwise
	}
	sources := fmt.Sprintf("deb [signed-by=%s check-valid-until=no] %s %s main\ndeb [signed-by=%s check-valid-until=no] %s %s-security main\n",
		keyring, from(envArchive, archive), suite, keyring, from(envSecurity, securityArchive), suite)
	for name, text := range map[string]string{"sources.list": sources, "status": ""} {
		if err := os.WriteFile(filepath.Join(a.dir, name), []byte(text), 0o644); err != nil {
			return nil, fmt.Errorf("write apt's %s: %w", name, err)
		}
	}
	return a, nil
}

func (a *apt) options() []string {
	var out []string
	for _, setting := range []string{
		"Dir::Etc::SourceList=" + filepath.Join(a.dir, "sources.list"), "Dir::Etc::SourceParts=/dev/null",
		"Dir::Etc::Preferences=/dev/null", "Dir::Etc::PreferencesParts=/dev/null",
		"Dir::State::Lists=" + filepath.Join(a.dir, "lists"), "Dir::State::Status=" + filepath.Join(a.dir, "status"),
		"Dir::Cache=" + a.dir, "Dir::Cache::Archives=" + filepath.Join(a.dir, "archives"),
		"APT::Architecture=" + a.arch, "APT::Architectures=" + a.arch, "APT::Sandbox::User=root", "Acquire::Languages=none",
	} {
		out = append(out, "-o", setting)
	}
	return out
}

func (a *apt) update(ctx context.Context) error {
	if _, err := output(ctx, "apt-get", append(a.options(), "update")...); err != nil {
		return fmt.Errorf("read Debian's lists for %s: %w", a.arch, err)
	}
	return nil
}

// newest is the version that apt would install, with its checksum from the signed lists.
func (a *apt) newest(ctx context.Context, name string) (pin, error) {
	said, err := output(ctx, "apt-cache", append(a.options(), "--no-all-versions", "show", name)...)
	if err != nil {
		return pin{}, fmt.Errorf("look up Debian package %s: %w", name, err)
	}
	p := pin{arch: a.arch, name: name}
	for line := range strings.Lines(string(said)) {
		switch key, value, _ := strings.Cut(strings.TrimSpace(line), ": "); key {
		case "Version":
			p.version = value
		case "SHA256":
			p.sha256 = value
		}
	}
	if p.version == "" || p.sha256 == "" {
		return pin{}, fmt.Errorf("apt-cache says neither version nor SHA-256 of %s", name)
	}
	return p, nil
}

// file is the path of a package in the cache, downloaded when it is not there.
func (a *apt) file(ctx context.Context, p pin) (string, error) {
	kept := filepath.Join(a.dir, "debs", p.sha256+".deb")
	if p.checkFile(kept) == nil {
		return kept, nil
	}
	work, err := os.MkdirTemp(a.dir, "download-")
	if err != nil {
		return "", fmt.Errorf("make a folder to download to: %w", err)
	}
	defer func() { _ = os.RemoveAll(work) }()
	got, err := a.download(ctx, p, work)
	if err != nil {
		return "", err
	}
	if err := p.checkFile(got); err != nil {
		return "", err
	}
	if err := os.Rename(got, kept); err != nil {
		return "", fmt.Errorf("keep a downloaded package: %w", err)
	}
	return kept, nil
}

func (a *apt) download(ctx context.Context, p pin, work string) (string, error) {
	get := func() error {
		_, err := output(ctx, "env", append(append([]string{"-C", work, "apt-get"}, a.options()...), "download", p.name+"="+p.version)...)
		return err
	}
	if err := get(); err != nil {
		// The lists may be older than the lock.
		if err := a.update(ctx); err != nil {
			return "", err
		}
		if err := get(); err != nil {
			return "", fmt.Errorf("download %s %s for %s: %w; when Debian has a newer version, pin it with `make image-lock`, or set %s and %s to a snapshot of that time",
				p.name, p.version, p.arch, err, envArchive, envSecurity)
		}
	}
	found, err := filepath.Glob(filepath.Join(work, "*.deb"))
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("apt-get download of %s left %d packages, %w", p.name, len(found), err)
	}
	return found[0], nil
}

// writeLock pins the newest version of every package for both architectures.
func writeLock(ctx context.Context, to string, out io.Writer) error {
	var text strings.Builder
	fmt.Fprintf(&text, "# SPDX-License-Identifier: Apache-2.0\n#\n# The Debian packages in the image, from %s and %s-security: architecture, package, version, SHA-256.\n# `make image-lock` writes it.\n", suite, suite)
	for _, arch := range []string{"amd64", "arm64"} {
		a, err := newAPT(arch)
		if err != nil {
			return err
		}
		if err := a.update(ctx); err != nil {
			return err
		}
		for _, name := range append(basePackages(), shellPackages()...) {
			p, err := a.newest(ctx, name)
			if err != nil {
				return err
			}
			fmt.Fprintf(&text, "%s %s %s %s\n", p.arch, p.name, p.version, p.sha256)
		}
	}
	if err := os.WriteFile(to, []byte(text.String()), 0o644); err != nil {
		return fmt.Errorf("write the lock: %w", err)
	}
	_, err := fmt.Fprintf(out, "pinned in %s\n", to)
	return err
}
