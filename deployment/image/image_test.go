// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"context"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

func TestATreeIsTheSameTarWhateverTheOrder(t *testing.T) {
	at := time.Unix(1796000000, 0)
	forward, backward := tree{}, tree{}
	names := []string{"usr/bin/a", "lib/b.so", "etc/c", "etc/ssl/d"}
	for _, name := range names {
		forward.text(name, name)
	}
	for _, name := range slices.Backward(names) {
		backward.text(name, name)
	}
	one := must(t, func() ([]byte, error) { return forward.tar(at) })
	other := must(t, func() ([]byte, error) { return backward.tar(at) })
	if !bytes.Equal(one, other) {
		t.Error("two trees with the same files are different tars")
	}
	var got []string
	back := tree{}
	if err := back.readTar(bytes.NewReader(one), func(name string, _ bool) bool { got = append(got, name); return true }); err != nil {
		t.Fatal(err)
	}
	want := []string{"etc", "etc/c", "etc/ssl", "etc/ssl/d", "usr", "usr/bin", "usr/bin/a", "usr/lib", "usr/lib/b.so"}
	if !slices.Equal(got, want) {
		t.Errorf("the tar has %q, want %q", got, want)
	}
	if string(back["usr/lib/b.so"].data) != "lib/b.so" {
		t.Errorf("usr/lib/b.so has %q", back["usr/lib/b.so"].data)
	}
}

func TestATreeKeepsOwnersModesAndLinks(t *testing.T) {
	in := tree{}
	in.folder("tmp", file{mode: 0o777 | fs.ModeSticky})
	in.folder("srv", file{mode: 0o755, owner: 1, group: 2})
	in.symlink("usr/bin/dcgm-exporter", "gpumeter-exporter")
	data := must(t, func() ([]byte, error) { return in.tar(time.Unix(7, 0)) })
	out := tree{}
	if err := out.readTar(bytes.NewReader(data), func(string, bool) bool { return true }); err != nil {
		t.Fatal(err)
	}
	for name, want := range in {
		got := out[name]
		if got.mode != want.mode || got.owner != want.owner || got.group != want.group || got.link != want.link {
			t.Errorf("%s is %+v, want %+v", name, got, want)
		}
	}
	header, err := tar.NewReader(bytes.NewReader(data)).Next()
	if err != nil || !header.ModTime.Equal(time.Unix(7, 0)) {
		t.Errorf("the first entry is of %v, %v", header.ModTime, err)
	}
}

func TestOnlyWhatAContainerNeedsIsTakenFromAPackage(t *testing.T) {
	for name, want := range map[string]bool{
		"lib/x86_64-linux-gnu/libc.so.6":                       true,
		"lib64/ld-linux-x86-64.so.2":                           true,
		"usr/lib/aarch64-linux-gnu/libstdc++.so.6":             true,
		"usr/lib/x86_64-linux-gnu/gconv/UTF-16.so":             false,
		"usr/share/doc/libc6/copyright":                        true,
		"usr/share/doc/libc6/changelog.Debian.gz":              false,
		"usr/share/doc/ca-certificates/examples/a/copyright":   false,
		"usr/sbin/update-ca-certificates":                      false,
		"usr/share/man/man1/bash.1.gz":                         false,
		"etc/debian_version":                                   true,
		"etc/profile":                                          false,
		"bin/busybox":                                          true,
		"usr/share/ca-certificates/mozilla/Something_Root.crt": true,
	} {
		if got := wanted(name, false); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	if !wanted("usr/share/doc/libgcc-s1", true) || wanted("usr/share/doc/libgcc-s1", false) {
		t.Error("a package's folder of documents is taken if and only if it is a link")
	}
}

func TestALockThatCannotBeReadSaysWhere(t *testing.T) {
	sum := strings.Repeat("a", 64)
	pins, err := readLock("# words\n\namd64 libc6 2.36-9 " + sum + "\n")
	if err != nil || len(pins) != 1 || pins[0] != (pin{"amd64", "libc6", "2.36-9", sum}) {
		t.Fatalf("%v, %v", pins, err)
	}
	for _, text := range []string{"amd64 libc6 2.36-9\n", "amd64 libc6 2.36-9 abc\n", "amd64 libc6 2.36-9 " + sum + " more\n"} {
		if _, err := readLock("# words\n" + text); err == nil || !strings.Contains(err.Error(), "line 2") || !strings.Contains(err.Error(), "make image-lock") {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := find(pins, "arm64", "libc6"); err == nil {
		t.Error("a package of another architecture was found")
	}
}

func FuzzReadLock(f *testing.F) {
	f.Add("amd64 libc6 2.36-9 " + strings.Repeat("a", 64) + "\n# x\n")
	f.Fuzz(func(t *testing.T, text string) {
		pins, err := readLock(text)
		if err != nil {
			return
		}
		for _, p := range pins {
			if found, err := find(pins, p.arch, p.name); err != nil || found.name != p.name {
				t.Errorf("%+v is not found: %+v, %v", p, found, err)
			}
		}
	})
}

func TestThePinnedPackagesAreThoseOfTheImage(t *testing.T) {
	text, err := os.ReadFile("packages.lock")
	if err != nil {
		t.Fatal(err)
	}
	pins, err := readLock(string(text))
	if err != nil {
		t.Fatal(err)
	}
	names := slices.Concat(basePackages(), shellPackages())
	for _, arch := range []string{"amd64", "arm64"} {
		for _, name := range names {
			if _, err := find(pins, arch, name); err != nil {
				t.Error(err)
			}
		}
	}
	if len(pins) != 2*len(names) {
		t.Errorf("%d packages are pinned, the images have %d", len(pins), 2*len(names))
	}
}

func TestADownloadThatIsNotThePinnedPackageIsRefused(t *testing.T) {
	deb := filepath.Join(t.TempDir(), "x.deb")
	if err := os.WriteFile(deb, []byte("other"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := (pin{"amd64", "libc6", "2.36-9", strings.Repeat("a", 64)}).checkFile(deb); err == nil {
		t.Error("it was taken")
	}
}

func TestSumsAreThoseOfFilesInTheImage(t *testing.T) {
	in := tree{}
	in.text("lib/x/libc.so.6", "")
	in.text("etc/debian_version", "")
	if got, want := in.sums("aa  lib/x/libc.so.6\nbb  usr/bin/ldd\ncc  etc/debian_version\n"), "aa  usr/lib/x/libc.so.6\ncc  etc/debian_version\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// tiny is an image with one file.
func tiny(t *testing.T, arch string) v1.Image {
	t.Helper()
	l, err := compress(tree{"etc/arch": {mode: 0o644, data: []byte(arch)}}, time.Unix(0, 0))
	if err != nil {
		t.Fatal(err)
	}
	base, err := mutate.ConfigFile(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), &v1.ConfigFile{Architecture: arch, OS: "linux"})
	if err != nil {
		t.Fatal(err)
	}
	made, err := mutate.AppendLayers(base, l)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func TestArchivesOfArchitecturesJoinIntoOne(t *testing.T) {
	dir := t.TempDir()
	want := map[string]v1.Hash{}
	var from []string
	for _, arch := range []string{"amd64", "arm64"} {
		made := tiny(t, arch)
		want[arch] = must(t, made.Digest)
		to := filepath.Join(dir, arch+".tar")
		if err := writeArchive(to, "example.com/it:1", time.Unix(0, 0), made); err != nil {
			t.Fatal(err)
		}
		from = append(from, to)
	}
	o := options{reference: "example.com/it", version: "1", out: filepath.Join(dir, "all.tar")}
	if err := join(o, from, &bytes.Buffer{}); err != nil {
		t.Fatal(err)
	}
	first := must(t, func() ([]byte, error) { return os.ReadFile(o.out) })
	if err := join(o, from, &bytes.Buffer{}); err != nil {
		t.Fatal(err)
	}
	if second := must(t, func() ([]byte, error) { return os.ReadFile(o.out) }); !bytes.Equal(first, second) {
		t.Error("joined again it is another archive")
	}
	a, err := openArchive(o.out)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = a.close() }()
	got := map[string]v1.Hash{}
	for _, i := range a.images {
		got[must(t, i.ConfigFile).Architecture] = must(t, i.Digest)
	}
	if !maps.Equal(got, want) {
		t.Errorf("the archive has %v, want %v", got, want)
	}
	if err := join(o, from[:1], &bytes.Buffer{}); err == nil {
		t.Error("one image was joined")
	}
}

func TestACommandThatIsWrongSaysHow(t *testing.T) {
	for _, args := range [][]string{{}, {"bulid"}, {"build", "-variant", "shell", "-lock", "packages.lock", "-arch", "amd64"}, {"build", "-arch", "mips", "-lock", "packages.lock"}} {
		if err := run(context.Background(), args, &bytes.Buffer{}); err == nil || strings.Count(err.Error(), " ") < 3 {
			t.Errorf("%q: %v", args, err)
		}
	}
}

func TestATagHasNoPlus(t *testing.T) {
	for o, want := range map[options]string{
		{version: "v0.9.0"}:                    "0.9.0",
		{version: "v0.9.0-3-gabc+dirty"}:       "0.9.0-3-gabc-dirty",
		{version: "v0.9.0", variant: operator}: "0.9.0-operator",
	} {
		if got := o.tag(); got != want {
			t.Errorf("%+v: %q, want %q", o, got, want)
		}
	}
}
