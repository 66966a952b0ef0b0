// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"debug/elf"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// envImages of `make verify-image` are the archives to look at, separated by blanks.
const envImages = "GPUMETER_IMAGES"

// image is one image of an archive with its files.
type image struct {
	v1.Image

	archive string
	config  *v1.ConfigFile
	files   tree
}

func (i image) operator() bool { return strings.Contains(i.archive, "-"+operator) }

// forEachImage runs a test over all images that `make verify-image` names.
func forEachImage(t *testing.T, test func(*testing.T, image)) {
	t.Helper()
	named := strings.Fields(os.Getenv(envImages))
	if len(named) == 0 {
		t.Skip("looks at archives with `make verify-image` only")
	}
	for _, from := range named {
		a, err := openArchive(from)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = a.close() })
		for _, found := range a.images {
			config, err := found.ConfigFile()
			if err != nil {
				t.Fatal(err)
			}
			t.Run(filepath.Base(from)+"/"+config.Architecture, func(t *testing.T) {
				files := tree{}
				if err := files.readTar(mutate.Extract(found), func(string, bool) bool { return true }); err != nil {
					t.Fatal(err)
				}
				test(t, image{found, from, config, files})
			})
		}
	}
}

func TestAnArchiveIsAnImageThatEnginesTake(t *testing.T) {
	forEachImage(t, func(t *testing.T, i image) {
		if err := validate.Image(i); err != nil {
			t.Error(err)
		}
		size := int64(0)
		layers, err := i.Layers()
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range layers {
			n, err := l.Size()
			if err != nil {
				t.Fatal(err)
			}
			size += n
		}
		if size > 60e6 {
			t.Errorf("the image has %.1f MB, more than 60", float64(size)/1e6)
		}
		if strings.HasSuffix(i.archive, i.config.Architecture+".tar") {
			saved, err := tarball.ImageFromPath(i.archive, nil)
			if err != nil {
				t.Fatalf("`docker load` would not take it: %v", err)
			}
			if got, _ := saved.ConfigName(); got != must(t, i.ConfigName) {
				t.Errorf("docker would load image %s", got)
			}
		}
	})
}

func must[V any](t *testing.T, f func() (V, error)) V {
	t.Helper()
	v, err := f()
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestAnImageStartsTheExporterAndNobodyElse(t *testing.T) {
	forEachImage(t, func(t *testing.T, i image) {
		want := config(options{variant: map[bool]string{true: operator}[i.operator()]})
		got := i.config.Config
		if got.User != want.User || got.WorkingDir != want.WorkingDir || !slices.Equal(got.Entrypoint, want.Entrypoint) || len(got.Cmd) != 0 {
			t.Errorf("it starts %q %q as %q in %q", got.Entrypoint, got.Cmd, got.User, got.WorkingDir)
		}
		for _, label := range []string{"version", "revision", "created", "source", "licenses"} {
			if got.Labels["org.opencontainers.image."+label] == "" {
				t.Errorf("no label %s", label)
			}
		}
		manifest := must(t, i.Manifest)
		for name, value := range got.Labels {
			if manifest.Annotations[name] != value {
				t.Errorf("annotation %s is %q, the label is %q", name, manifest.Annotations[name], value)
			}
		}
	})
}

func TestEveryLibraryThatAProgramNeedsIsInTheImage(t *testing.T) {
	forEachImage(t, func(t *testing.T, i image) {
		dir := "usr/lib/" + must(t, func() (string, error) { return triple(i.config.Architecture) })
		objects := 0
		for name, f := range i.files {
			if !bytes.HasPrefix(f.data, []byte(elf.ELFMAG)) {
				continue
			}
			objects++
			object, err := elf.NewFile(bytes.NewReader(f.data))
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if want := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[i.config.Architecture]; object.Machine != want {
				t.Errorf("%s is for %v", name, object.Machine)
			}
			needed, err := object.ImportedLibraries()
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			for _, library := range needed {
				if !i.has(path.Join(dir, library)) {
					t.Errorf("%s needs %s, which is not in the image", name, library)
				}
			}
			for _, p := range object.Progs {
				if p.Type == elf.PT_INTERP {
					loader, err := io.ReadAll(p.Open())
					if err != nil {
						t.Fatal(err)
					}
					if at := strings.Trim(string(loader), "\x00"); !i.has(at) {
						t.Errorf("%s is loaded by %s, which is not in the image", name, at)
					}
				}
			}
		}
		if objects < len(programs()) {
			t.Errorf("%d programs and libraries", objects)
		}
	})
}

func (i image) has(name string) bool {
	_, ok := i.files.follow(name)
	return ok
}

// follow is the file that a path leads to over links.
func (t tree) follow(name string) (file, bool) {
	name = strings.Trim(path.Clean("/"+name), "/")
	for range 16 {
		parts := strings.Split(name, "/")
		moved := false
		for n := range parts {
			at := path.Join(parts[:n+1]...)
			if f, ok := t[at]; ok && f.link != "" {
				to := f.link
				if !path.IsAbs(to) {
					to = path.Join(path.Dir(at), to)
				}
				name, moved = strings.Trim(path.Join(append([]string{"/" + to}, parts[n+1:]...)...), "/"), true
				break
			}
		}
		if !moved {
			f, ok := t[name]
			return f, ok
		}
	}
	return file{}, false
}

func TestAnImageHasNothingForAnIntruder(t *testing.T) {
	forEachImage(t, func(t *testing.T, i image) {
		for name, f := range i.files {
			if f.mode&(fs.ModeSetuid|fs.ModeSetgid) != 0 {
				t.Errorf("%s is setuid or setgid", name)
			}
			if want := slices.Contains(writable(), name); f.link == "" && (f.mode.Perm()&0o022 != 0) != want || want && f.mode&fs.ModeSticky == 0 {
				t.Errorf("%s has the mode %v", name, f.mode)
			}
			if f.owner != 0 || f.group != 0 {
				t.Errorf("%s belongs to %d:%d", name, f.owner, f.group)
			}
			if f.link != "" {
				if _, ok := i.files.follow(name); !ok {
					t.Errorf("%s leads to nothing: %s", name, f.link)
				}
			}
		}
		for _, shell := range []string{"bin/sh", "bin/bash"} {
			if _, ok := i.files.follow(shell); ok != i.operator() {
				t.Errorf("%s: %v", shell, ok)
			}
		}
	})
}

func TestAnImageHasWhatItsPredecessorsHave(t *testing.T) {
	forEachImage(t, func(t *testing.T, i image) {
		for name, target := range links() {
			got, ok := i.files.follow("/usr/bin/" + name)
			want, _ := i.files.follow("/usr/bin/" + target)
			if !ok || !bytes.Equal(got.data, want.data) || len(got.data) == 0 {
				t.Errorf("/usr/bin/%s is not %s", name, target)
			}
		}
		for _, name := range []string{
			"etc/dcgm-exporter/default-counters.csv", "etc/dcgm-exporter/dcp-metrics-included.csv", "etc/dcgm-exporter/1.x-compatibility-metrics.csv",
			"etc/debian_version", "etc/ssl/certs/ca-certificates.crt", "licenses/LICENSE", "licenses/modules/go/LICENSE", "var/lib/dpkg/status.d/libc6", "usr/share/doc/libc6/copyright",
		} {
			if f, ok := i.files.follow(name); !ok || len(f.data) == 0 {
				t.Errorf("no /%s", name)
			}
		}
	})
}

func TestProgramsRunInTheImage(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may change the root folder")
	}
	forEachImage(t, func(t *testing.T, i image) {
		root := t.TempDir()
		if err := os.Chmod(filepath.Dir(root), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := i.files.write(root, time.Unix(0, 0)); err != nil {
			t.Fatal(err)
		}
		emulator := emulate(t, root, i.config.Architecture)
		version := i.config.Config.Labels["org.opencontainers.image.version"]
		for _, name := range append(programs(), "dcgm-exporter", "nvidia-device-plugin") {
			out, err := inside(root, append(emulator, "/usr/bin/"+name, "--version")...).CombinedOutput()
			if err != nil || !strings.Contains(string(out), version) {
				t.Errorf("%s --version: %v: %s", name, err, out)
			}
		}
		if i.operator() {
			out, err := inside(root, append(emulator, "/bin/bash", "-c", `[[ -n $0 ]] && echo both`)...).CombinedOutput()
			if err != nil || string(out) != "both\n" {
				t.Errorf("bash: %v: %s", err, out)
			}
		}
		scrape(t, inside(root, append(emulator, i.config.Config.Entrypoint[0], "--source=sim", "--address=127.0.0.1:9561",
			"--collectors=/etc/dcgm-exporter/dcp-metrics-included.csv", "--ledger-dir=/var/lib/gpumeter")...))
	})
}

// emulate puts an emulator into the root folder where the image is for another machine.
func emulate(t *testing.T, root, arch string) []string {
	t.Helper()
	if arch == runtime.GOARCH {
		return nil
	}
	name := "qemu-" + map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[arch] + "-static"
	from, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("no %s to run %s programs with: apt-get install qemu-user-static", name, arch)
	}
	data, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, name), data, 0o755); err != nil {
		t.Fatal(err)
	}
	return []string{"/" + name}
}

// inside is a command in the root folder, as the image's user.
func inside(root string, argv ...string) *exec.Cmd {
	command := &exec.Cmd{Path: argv[0], Args: argv, Dir: "/", Env: []string{"PATH=/usr/bin:/bin"}}
	command.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
	return command
}

// scrape starts an exporter and reads its page.
func scrape(t *testing.T, command *exec.Cmd) {
	t.Helper()
	var said bytes.Buffer
	command.Stdout, command.Stderr = &said, &said
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = command.Process.Signal(syscall.SIGTERM)
		if err := command.Wait(); err != nil {
			t.Errorf("the exporter ended with %v: %s", err, said.String())
		}
	}()
	for start := time.Now(); time.Since(start) < 30*time.Second; time.Sleep(100 * time.Millisecond) {
		response, err := http.Get("http://127.0.0.1:9561/metrics")
		if err != nil {
			continue
		}
		page, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err == nil && strings.Contains(string(page), "DCGM_FI_PROF_GR_ENGINE_ACTIVE{") {
			return
		}
	}
	t.Errorf("no page with dcgm-exporter's series: %s", said.String())
}
