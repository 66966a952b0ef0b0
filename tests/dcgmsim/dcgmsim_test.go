// SPDX-License-Identifier: Apache-2.0

package dcgmsim_test

import (
	"debug/elf"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/tests/dcgmsim"
)

const patience = time.Minute

// later are the functions that came after 4.0, and the version they came with.
func later() map[string]string {
	return map[string]string{
		"dcgmGetGpuChipArchitecture": "4.2.3", "dcgmGetNvLinkP2PStatus": "4.4.2", "dcgmConnect_v3": "4.5.0",
		"dcgmGetGpuStatus": "4.5.0", "dcgmAttachDriver": "4.5.0", "dcgmDetachDriver": "4.5.0",
	}
}

func TestEveryVersionHasTheSymbolsOfItsTime(t *testing.T) {
	for _, version := range dcgmsim.Versions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			path, err := dcgmsim.BuildVersion(t.TempDir(), version)
			if errors.Is(err, dcgmsim.ErrNoCompiler) {
				t.Skip(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			checkSymbols(t, path, version)
		})
	}
}

func checkSymbols(t *testing.T, path, version string) {
	t.Helper()
	library, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = library.Close() }()
	if soname, err := library.DynString(elf.DT_SONAME); err != nil || !slices.Equal(soname, []string{"libdcgm.so.4"}) {
		t.Errorf("soname %v, %v, want libdcgm.so.4", soname, err)
	}
	symbols, err := library.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	exported := make(map[string]bool)
	for _, symbol := range symbols {
		if symbol.Section == elf.SHN_UNDEF {
			continue
		}
		exported[symbol.Name] = true
		if !strings.HasPrefix(symbol.Name, "dcgm") && !strings.HasPrefix(symbol.Name, "Dcgm") && symbol.Name != "errorString" {
			t.Errorf("exports %s, which is no function of DCGM", symbol.Name)
		}
	}
	for name, since := range later() {
		if want := since <= version; exported[name] != want {
			t.Errorf("%s exported: %t, want %t", name, exported[name], want)
		}
	}
	for _, name := range []string{"dcgmInit", "dcgmWatchFields", "dcgmGetLatestValues_v2", "DcgmFieldGetById", "errorString"} {
		if !exported[name] {
			t.Errorf("%s is not exported", name)
		}
	}
}

func TestAVersionThatIsNotHereIsAnError(t *testing.T) {
	if _, err := dcgmsim.New(t.TempDir(), "gpus 1 h100\nversion 3.3.9"); !errors.Is(err, dcgmsim.ErrScenario) {
		t.Errorf("error %v, want %v", err, dcgmsim.ErrScenario)
	}
}

func TestEachCopyIsAFileOfItsOwn(t *testing.T) {
	dir := t.TempDir()
	first, err := dcgmsim.Build(dir)
	if errors.Is(err, dcgmsim.ErrNoCompiler) {
		t.Skip(err)
	}
	second, err2 := dcgmsim.Build(dir)
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	a, err := os.Stat(first)
	b, err2 := os.Stat(second)
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	if os.SameFile(a, b) {
		t.Errorf("%s and %s are one file", first, second)
	}
	if filepath.Base(first) != "libdcgm.so.4" {
		t.Errorf("the library is named %s, want libdcgm.so.4", filepath.Base(first))
	}
}

func TestAnErrorInTheScenarioNamesItsLine(t *testing.T) {
	probe := buildProbe(t)
	for _, test := range []struct{ name, scenario, want string }{
		{"unknown word", "gpus 1 h100\nfrobnicate 0", ":2: unknown word \"frobnicate\""},
		{"unknown model", "gpus 1 voodoo2", ":1: unknown model \"voodoo2\""},
		{"no such GPU", "# two\ngpus 2 h100\nhang 2", ":3: there is no GPU 2"},
		{"too many GPUs", "gpus 33 h100", ":1: 33 is not below 33"},
		{"unknown field", "gpus 1 h100\nfield 0 9999 1", ":2: field 9999 is not in this version"},
		{"later field", "version 4.0.0\ngpus 1 h100\nfield 0 1084 1", ":3: field 1084 is not in this version"},
		{"open quote", "gpu 0 model \"H100", ":1: an open quote"},
		{"no number", "gpus 1 h100\nfield 0 150 warm", ":2: \"warm\" is not a whole number"},
		{"no duration", "gpus 1 h100\nslow 0 fast", ":2: \"fast\" is not a duration"},
		{"no MIG", "gpus 1 h100\ngi 0 profile 1g.10gb", ":2: GPU 0 is not in MIG mode"},
		{"no profile", "gpus 1 h100\nmig 0 on\ngi 0 profile big", ":3: \"big\" is not a profile"},
		{"unknown call", "fail dcgmFly -1", ":1: unknown call \"dcgmFly\""},
		{"running clock", "advance 1s", ":1: want: advance DURATION, with the clock frozen"},
		{"missing words", "xid 0", ":1: want: xid GPU CODE"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, probe, test.scenario)
			m.returns("init", -7)
			if err := m.Err(); !errors.Is(err, dcgmsim.ErrScenario) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %q", err, test.want)
			}
		})
	}
}

func TestALaterErrorBreaksTheLibrary(t *testing.T) {
	m := newEngine(t, buildProbe(t), "gpus 1 h100")
	m.change("frobnicate")
	m.returns("devices", -7)
	if err := m.Do("gpus 1 h100"); !errors.Is(err, dcgmsim.ErrScenario) {
		t.Errorf("error %v, want %v", err, dcgmsim.ErrScenario)
	}
}

func TestAPersonsScenarioIsTakenFromTheEnvironment(t *testing.T) {
	probe := buildProbe(t)
	path, err := dcgmsim.Build(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	scenario := filepath.Join(t.TempDir(), "machine")
	if err := os.WriteFile(scenario, []byte("gpus 3 t4\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := startClient(t, probe, []string{"DCGMSIM_SCENARIO=" + scenario}, path)
	c.must("init")
	c.must("start")
	c.finds("devices", "0 1 2 ")
	if err := c.wait(); err != nil {
		t.Error(err)
	}
	gone := startClient(t, probe, []string{"DCGMSIM_SCENARIO=" + scenario + ".gone"}, path)
	gone.returns("init", -7)
	if err := gone.wait(); err != nil {
		t.Error(err)
	}
}

func TestWithoutAScenarioThereAreEightGPUs(t *testing.T) {
	probe := buildProbe(t)
	path, err := dcgmsim.Build(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	c := startClient(t, probe, nil, path)
	c.must("init")
	c.must("start")
	c.finds("devices", "0 1 2 3 4 5 6 7 ")
	if err := c.wait(); err != nil {
		t.Error(err)
	}
}

func TestCopiesInOneProcessKnowNothingOfEachOther(t *testing.T) {
	probe := buildProbe(t)
	one := newMachine(t, probe, "gpus 1 h100")
	two, err := dcgmsim.New(t.TempDir(), "gpus 2 h100")
	if err != nil {
		t.Fatal(err)
	}
	one.must("init")
	one.must("start")
	one.must("use " + two.Path)
	one.returns("devices", -10)
	one.must("init")
	one.must("start")
	one.finds("devices", "0 1 ")
}

func TestCallsAreCounted(t *testing.T) {
	m := newEngine(t, buildProbe(t), "gpus 1 h100")
	m.must("devices")
	m.must("devices")
	calls, err := m.Calls()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]int{"dcgmInit": 1, "dcgmStartEmbedded_v2": 1, "dcgmGetAllDevices": 2}
	if len(calls) != len(want) {
		t.Errorf("calls %v, want %v", calls, want)
	}
	for name, n := range want {
		if calls[name] != n {
			t.Errorf("%s was counted %d times, want %d", name, calls[name], n)
		}
	}
}

func TestNothingIsLeftOfWhatIsTakenBack(t *testing.T) {
	m := newEngine(t, buildProbe(t), "gpus 2 h100")
	m.must("churn 500")
	if got, want := m.state(), (dcgmsim.State{Embedded: true}); got != want {
		t.Errorf("state %+v, want %+v", got, want)
	}
}

func TestStrictEndsTheProcessOnMisuse(t *testing.T) {
	probe := buildProbe(t)
	for _, test := range []struct{ command, want string }{
		{"null", "dcgmGetAllDevices: NULL list or count"},
		{"destroy", "dcgmGroupDestroy: a group that is not there"},
	} {
		m := newEngine(t, probe, "gpus 1 h100\nstrict on")
		m.must("group 1:0")
		m.must("destroy")
		if _, err := m.in.Write([]byte(test.command + "\n")); err != nil {
			t.Fatal(err)
		}
		if err := m.wait(); err == nil || !strings.Contains(m.errors.String(), test.want) {
			t.Errorf("%s ended with %v and said %q, want an abort with %q", test.command, err, m.errors, test.want)
		}
	}
}
