// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// compiled is a library made of testdata/oldlibrary.c.
func compiled(t *testing.T, flags ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), soname)
	args := append([]string{"-shared", "-fPIC", "-o", path, "testdata/oldlibrary.c"}, flags...)
	if out, err := exec.CommandContext(t.Context(), "gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	return path
}

// libraryVariable names the library for TestInAProcessOfItsOwn. The binding resolves functions
// once per process, so that each library needs one.
const libraryVariable = "GPUMETER_TEST_NVML_LIBRARY"

// inAnotherProcess opens and reads a library, and is what that says.
func inAnotherProcess(t *testing.T, library string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestInAProcessOfItsOwn$", "-test.v")
	cmd.Env = append(os.Environ(), libraryVariable+"="+library)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("the process ended with %v:\n%s", err, out)
	}
	return string(out)
}

func TestInAProcessOfItsOwn(t *testing.T) {
	path := os.Getenv(libraryVariable)
	if path == "" {
		t.Skip("for the tests of libraries")
	}
	if path == "none" {
		path = ""
	}
	// More than once, as a driver that is released and resumed.
	for range 2 {
		s, err := Open(Config{Library: path})
		if err != nil {
			fmt.Println("no library:", errors.Is(err, ErrNoLibrary), "no driver:", errors.Is(err, ErrNoDriver))
			fmt.Println("error:", err)
			return
		}
		var fields []gpu.FieldID
		for _, f := range gpu.Fields() {
			fields = append(fields, f.ID)
		}
		for range 2 {
			r := read(t, s, append(fields, gpu.FieldP2PStatus)...)
			for i, d := range r.Devices {
				fmt.Println("device:", d.UUID, d.Model, d.Minor, d.MIGEnabled, len(r.Processes))
				for j, v := range r.Samples[i].Values {
					if v.Present() {
						fmt.Println("field:", i, r.Fields[j], show(v))
					}
					if !v.Present() && v.Reason() != gpu.ReasonNotSupported && v.Reason() != gpu.ReasonScope && v.Reason() != gpu.ReasonBlank {
						fmt.Println("odd:", r.Fields[j], show(v))
					}
				}
			}
			fmt.Println("troubles:", len(r.Troubles))
			if err := s.Release(t.Context()); err != nil {
				t.Error(err)
			}
			if err := s.Resume(t.Context()); err != nil {
				t.Error(err)
			}
		}
		fmt.Println("origin:", s.Origin())
		fmt.Println("facts:", strings.Join(s.Facts(), "; "))
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	fmt.Println("alive")
}

// A function that the library lacks ends the process that calls it. None is called.
func TestALibraryOfAnOldDriverIsReadAsFarAsItGoes(t *testing.T) {
	path := compiled(t)
	said := inAnotherProcess(t, path)
	for _, want := range []string{
		"device: GPU-00000000-0000-0000-0000-000000000000 Tesla T4 -1 false 0", "field: 1 150 31", "field: 0 140 60", "field: 0 1 \"450.51.05\"",
		"troubles: 0", "origin: {libnvidia-ml  450.51.05}", "library " + path, "does not have: [nvmlDeviceGetApplicationsClock", "alive",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("it does not say %q:\n%s", want, said)
		}
	}
	if strings.Contains(said, "odd:") {
		t.Errorf("something is absent for an odd reason:\n%s", said)
	}
}

func TestALibraryWithoutADriverSaysSo(t *testing.T) {
	said := inAnotherProcess(t, compiled(t, "-DINIT_RETURNS=9"))
	for _, want := range []string{"no library: false no driver: true", "the driver is not loaded (9)", "modprobe nvidia"} {
		if !strings.Contains(said, want) {
			t.Errorf("it does not say %q:\n%s", want, said)
		}
	}
}

func TestSomethingElseIsNoManagementLibrary(t *testing.T) {
	said := inAnotherProcess(t, "libc.so.6")
	for _, want := range []string{"no library: true no driver: false", "is no management library", "it lacks nvmlInit_v2"} {
		if !strings.Contains(said, want) {
			t.Errorf("it does not say %q:\n%s", want, said)
		}
	}
}

func TestNoLibrarySaysWhereItWasLookedFor(t *testing.T) {
	said := inAnotherProcess(t, "/nowhere/libnvidia-ml.so.1")
	for _, want := range []string{
		"no library: true", "looked for /nowhere/libnvidia-ml.so.1; install the driver", "runtimeClassName: nvidia",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("it does not say %q:\n%s", want, said)
		}
	}
	broken := filepath.Join(t.TempDir(), soname)
	if err := os.WriteFile(broken, []byte("no library"), 0o600); err != nil {
		t.Fatal(err)
	}
	if said := inAnotherProcess(t, broken); strings.Count(said, broken) != 1 || !strings.Contains(said, broken+" (file too short)") {
		t.Errorf("it is not said why a file is no library:\n%s", said)
	}
	if l, err := load(""); err == nil {
		t.Skipf("this machine has a management library: %s", l.path)
	}
	said = inAnotherProcess(t, "none")
	for _, want := range append(elsewhere(), "looked for libnvidia-ml.so.1, /run") {
		if strings.Count(said, want) != 1 {
			t.Errorf("it was not looked for once as %q:\n%s", want, said)
		}
	}
}
