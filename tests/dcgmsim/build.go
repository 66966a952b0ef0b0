// SPDX-License-Identifier: Apache-2.0

package dcgmsim

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	soname = "libdcgm.so.4"
	newest = "4.6.0"
)

// ErrNoCompiler means that there is no C compiler: a test that only wants the library
// where it can be had skips on it.
var ErrNoCompiler = errors.New("no C compiler for the pretend libdcgm: install gcc")

//go:embed lib
var sources embed.FS

// Versions are the versions of DCGM that there is a library of, oldest first. Symbols
// that came later are absent from the earlier ones.
func Versions() []string {
	return []string{"4.0.0", "4.2.3", "4.4.2", "4.5.0", newest}
}

// Build makes a fresh copy of the library in its newest version in a new folder below
// dir, and returns its path. Without a scenario beside it, it has eight H100.
//
// Each copy has a state of its own, even within one process: the loader takes files
// for the same library only when they are the same file.
func Build(dir string) (string, error) {
	return BuildVersion(dir, newest)
}

// BuildVersion is Build for one of the Versions. The C compiler runs once for each
// version and state of the sources; the result is kept in the user's cache.
func BuildVersion(dir, version string) (string, error) {
	library, err := compiled(version)
	if err != nil {
		return "", err
	}
	to, err := fresh(dir)
	if err != nil {
		return "", err
	}
	if err := copyFile(library, to); err != nil {
		return "", fmt.Errorf("copy the pretend libdcgm: %w", err)
	}
	return to, nil
}

// versionNumber is 40600 for 4.6.0, as the C sources count.
func versionNumber(version string) (int, error) {
	if !slices.Contains(Versions(), version) {
		return 0, fmt.Errorf("%w: there is no pretend libdcgm %q, only %s", ErrScenario, version, strings.Join(Versions(), ", "))
	}
	number := 0
	for part := range strings.SplitSeq(version, ".") {
		n, err := strconv.Atoi(part)
		if err != nil {
			return 0, fmt.Errorf("version %q: %w", version, err)
		}
		number = number*100 + n
	}
	return number, nil
}

// compiled is the path of the library in the cache.
func compiled(version string) (string, error) {
	number, err := versionNumber(version)
	if err != nil {
		return "", err
	}
	compiler, err := findCompiler()
	if err != nil {
		return "", err
	}
	sum, err := digest(compiler)
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	library := filepath.Join(cache, "gpumeter", "dcgmsim", sum, "libdcgm-"+version+".so")
	if _, err := os.Stat(library); err == nil {
		return library, nil
	}
	if err := os.MkdirAll(filepath.Dir(library), 0o750); err != nil {
		return "", fmt.Errorf("make the cache of the pretend libdcgm: %w", err)
	}
	return library, compile(compiler, number, library)
}

func compilers() []string { return []string{"gcc", "cc", "clang"} }

func findCompiler() (string, error) {
	for _, name := range compilers() {
		if compiler, err := exec.LookPath(name); err == nil {
			return compiler, nil
		}
	}
	return "", ErrNoCompiler
}

func flags() []string {
	return []string{
		"-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread",
		"-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-soname," + soname,
	}
}

// digest tells apart what would be compiled to something else.
func digest(compiler string) (string, error) {
	hash := sha256.New()
	fmt.Fprintln(hash, compiler, flags())
	files, err := sources.ReadDir("lib")
	if err != nil {
		return "", fmt.Errorf("read the sources of the pretend libdcgm: %w", err)
	}
	for _, file := range files {
		text, err := sources.ReadFile(path.Join("lib", file.Name()))
		if err != nil {
			return "", fmt.Errorf("read the sources of the pretend libdcgm: %w", err)
		}
		fmt.Fprintln(hash, file.Name(), len(text))
		hash.Write(text)
	}
	return hex.EncodeToString(hash.Sum(nil))[:24], nil
}

// compile builds beside the library and renames, so that of several at once each
// leaves a whole one.
func compile(compiler string, version int, library string) error {
	const patience = 5 * time.Minute
	work, err := os.MkdirTemp(filepath.Dir(library), "build-")
	if err != nil {
		return fmt.Errorf("make a folder to build the pretend libdcgm: %w", err)
	}
	defer func() { _ = os.RemoveAll(work) }()
	if err := os.CopyFS(work, sources); err != nil {
		return fmt.Errorf("write the sources of the pretend libdcgm: %w", err)
	}
	units, err := filepath.Glob(filepath.Join(work, "lib", "*.c"))
	if err != nil {
		return fmt.Errorf("list the sources of the pretend libdcgm: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	made := filepath.Join(work, soname)
	args := slices.Concat(flags(), []string{fmt.Sprintf("-DSIM_VERSION=%d", version), "-o", made}, units, []string{"-lm", "-ldl"})
	if said, err := exec.CommandContext(ctx, compiler, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("compile the pretend libdcgm with %s: %w: %s", compiler, err, bytes.TrimSpace(said))
	}
	if err := os.Rename(made, library); err != nil {
		return fmt.Errorf("keep the pretend libdcgm: %w", err)
	}
	return nil
}

func copyFile(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }()
	target, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o700)
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	return errors.Join(err, target.Close())
}
