// SPDX-License-Identifier: Apache-2.0

package dcgm

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// strange compiles testdata/strange.c into a file of its own, which has a state of its own.
func strange(t *testing.T, flags ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "libdcgm.so.4")
	compile(t, path, "testdata/strange.c", flags...)
	return path
}

func compile(t *testing.T, path, source string, flags ...string) {
	t.Helper()
	compiler, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("there is no C compiler to make a library with")
	}
	args := append([]string{"-shared", "-fPIC", "-w", "-o", path, source}, flags...)
	if out, err := exec.Command(compiler, args...).CombinedOutput(); err != nil {
		t.Fatalf("compiling %s: %v\n%s", source, err, out)
	}
}

// started is the embedded engine of a strange library.
func started(t *testing.T, path string) *handle {
	t.Helper()
	l, err := load(path)
	if err != nil {
		t.Fatal(err)
	}
	h, err := l.startEmbedded(embedded{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.close() })
	return h
}

// noted is how often a strange library took a note.
func noted(path, suffix string) int {
	text, _ := os.ReadFile(path + "." + suffix)
	return len(text)
}

// awaitNote returns when a strange library, in a call on another thread, has taken a note.
func awaitNote(t *testing.T, path, suffix string) {
	t.Helper()
	for range 10_000 {
		if noted(path, suffix) > 0 {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatalf("the library never noted %q", suffix)
}

func touch(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestALibraryThatIsNotThereIsToldWithTheRemedy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "libdcgm.so.4")
	_, err := load(path)
	if err == nil {
		t.Fatal("a library that does not exist was loaded")
	}
	for _, part := range []string{path, "cannot open shared object file", "path of libdcgm.so.4"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %q", err, part)
		}
	}
	touch(t, path)
	if _, err := load(path); err == nil || !strings.Contains(err.Error(), "file too short") {
		t.Errorf("of an empty file, the error is %v", err)
	}
}

func TestALibraryThatLacksCallsIsToldByTheirNames(t *testing.T) {
	_, err := load(strange(t, "-DLACKING"))
	if err == nil || !strings.Contains(err.Error(), "lacks dcgmGroupCreate, dcgmGroupAddEntity:") {
		t.Errorf("the error does not name what is lacking, and only that: %v", err)
	}
	path := filepath.Join(t.TempDir(), "libother.so")
	source := filepath.Join(t.TempDir(), "other.c")
	if err := os.WriteFile(source, []byte("int other(void) { return 0; }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	compile(t, path, source)
	if _, err = load(path); err == nil || !strings.Contains(err.Error(), "DcgmFieldGetById") {
		t.Errorf("of a library that is not DCGM's, the error is %v", err)
	}
}

func TestDCGM3IsTooOld(t *testing.T) {
	_, err := load(strange(t, `-DBUILD_INFO="version:3.3.9"`))
	if err == nil || !strings.Contains(err.Error(), "is DCGM 3.3.9, which is too old") {
		t.Errorf("the error is %v", err)
	}
}

// The dynamic linker reads LD_LIBRARY_PATH when the process begins, so what it finds there
// is looked at in a process of its own.
func TestLoadInAnotherEnvironment(t *testing.T) {
	const asked = "GPUMETER_TEST_LOAD"
	if os.Getenv(asked) != "" {
		l, err := load("")
		if err != nil {
			fmt.Println("error:", err)
			return
		}
		version, err := l.version()
		fmt.Println("loaded:", l.path(), version, err)
		return
	}
	loadWith := func(dir string) string {
		cmd := exec.Command(os.Args[0], "-test.run=^TestLoadInAnotherEnvironment$", "-test.count=1")
		cmd.Env = append(os.Environ(), asked+"=1", "LD_LIBRARY_PATH="+dir)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	if out := loadWith(t.TempDir()); strings.Contains(out, "loaded:") {
		t.Skip("this machine has a libdcgm.so.4")
	} else {
		for _, part := range []string{"loading libdcgm.so.4", "install datacenter-gpu-manager-4", "LD_LIBRARY_PATH", "--dcgm-library"} {
			if !strings.Contains(out, part) {
				t.Errorf("with nothing there, the error does not say %q: %s", part, out)
			}
		}
	}

	path := strange(t)
	if out := loadWith(filepath.Dir(path)); !strings.Contains(out, "loaded: "+path+" 4.9.9 <nil>") {
		t.Errorf("the library in LD_LIBRARY_PATH was not found: %s", out)
	}
	old := filepath.Join(t.TempDir(), "libdcgm.so.3")
	compile(t, old, "testdata/strange.c")
	if out := loadWith(filepath.Dir(old)); !strings.Contains(out, "libdcgm.so.3 is there, but DCGM 3 is too old") {
		t.Errorf("with DCGM 3 only: %s", out)
	}
}

func TestCallsOfNewerDCGMAreMissingInOlder(t *testing.T) {
	h := started(t, strange(t))
	_, status := h.gpuStatus(0)
	_, peers := h.peers()
	_, links := h.directLinks(0)
	for name, err := range map[string]error{
		"dcgmGetGpuStatus": status, "dcgmGetNvLinkP2PStatus": peers, "dcgmGetDeviceTopology": links,
		"dcgmAttachDriver": h.attachDriver(), "dcgmDetachDriver": h.detachDriver(),
	} {
		if !errors.Is(err, errMissing) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCountsBeyondTheArraysAreNotBelieved(t *testing.T) {
	h := started(t, strange(t))
	if all, err := h.allDevices(); err != nil || len(all) != 32 || all[31] != 31 {
		t.Errorf("all devices: %v, %v", all, err)
	}
	if supported, err := h.supportedDevices(); err != nil || len(supported) != 0 {
		t.Errorf("supported devices: %v, %v", supported, err)
	}
	if ids, err := h.groupIDs(); err != nil || len(ids) != 64 {
		t.Errorf("%d groups, %v", len(ids), err)
	}
	if entities, err := h.hierarchy(); err != nil || len(entities) != 448 || entities[447].gpuInstance != gpu.NoInstance {
		t.Errorf("%d MIG entities, %v", len(entities), err)
	}
	if links, err := h.links(); err != nil || len(links) != 32*18+12*256 {
		t.Errorf("%d links, %v", len(links), err)
	}
	if ids, err := h.metricGroups(0); err != nil || len(ids) != 1 {
		t.Errorf("metric groups %v, %v", ids, err)
	}
	incidents, err := h.checkHealth(0)
	if err != nil || len(incidents) != 1024 || len(incidents[1023].text) != 1024 {
		t.Errorf("%d incidents, %v", len(incidents), err)
	}
	if _, err := h.entities(groupSwitch); err == nil || !strings.Contains(err.Error(), "changes too fast") {
		t.Errorf("entities that never fit: %v", err)
	}
	if _, err := h.engineVersion(); err == nil || !strings.Contains(err.Error(), strings.Repeat("x", 512)) {
		t.Errorf("a version text without an end: %v", err)
	}
	if a, err := h.attributes(0); err != nil || a.uuid != "" || a.migEnabled {
		t.Errorf("attributes that were not written: %+v, %v", a, err)
	}
	if _, ok := h.library.field(7); ok {
		t.Error("a field is believed to be another")
	}
	if _, ok := h.library.field(0); ok {
		t.Error("a field that is not known is described")
	}
}

func TestAFailedConnectionHasNoHandle(t *testing.T) {
	path := strange(t)
	l, err := load(path)
	if err != nil {
		t.Fatal(err)
	}
	h, err := l.connect("nobody", false, time.Second)
	if h != nil || returned(err) != stConnectionNotValid || !strings.Contains(err.Error(), "dcgmConnect_v2 of nobody: unknown error (-21)") {
		t.Errorf("handle %v, error %v", h, err)
	}
	h, err = l.connect("/run/dcgm.sock", true, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.close(); err != nil || noted(path, "disconnected") != 1 || noted(path, "stopped") != 0 {
		t.Errorf("close: %v, %d disconnected, %d stopped", err, noted(path, "disconnected"), noted(path, "stopped"))
	}
}

func TestRecordsAreWhatTheLibraryDelivered(t *testing.T) {
	h := started(t, strange(t))
	var r records
	defer r.free()
	if r.len() != 0 {
		t.Error("there are records before a call")
	}
	if err := h.latest(10, 1, &r); err != nil || r.len() != 8 {
		t.Fatalf("%d records of 8 in one delivery, %v", r.len(), err)
	}
	for i := range r.len() {
		want := record{entity: entity{groupGPU, 7}, field: gpu.FieldID(100 + i), kind: gpu.FieldInt, ts: int64(1000 + i), bits: uint64(-i)}
		if got := r.at(i); got != want {
			t.Errorf("record %d is %+v, want %+v", i, got, want)
		}
	}
	if err := h.latest(12, 1, &r); err != nil || r.len() != 2 {
		t.Fatalf("%d records of 2 texts, %v", r.len(), err)
	}
	if text, ok := r.at(0).value().AsText(); !ok || text != strings.Repeat("y", 256) {
		t.Errorf("text that never ends has %d bytes", len(text))
	}
	if text, ok := r.at(1).value().AsText(); !ok || text != "" {
		t.Errorf("an empty text is %q", text)
	}
	if err := h.latest(13, 1, &r); err != nil || r.len() != 0 {
		t.Errorf("%d records of nothing, %v", r.len(), err)
	}
	if next, err := h.since(10, 1, 41, &r); err != nil || next != 42 || r.len() != 8 {
		t.Errorf("%d records, next %d, %v", r.len(), next, err)
	}
	r.reset()
	if r.len() != 0 {
		t.Error("records stay after reset")
	}
	r.free()
	r.free()
	if r.len() != 0 {
		t.Error("records stay after free")
	}
	if err := h.latest(10, 1, &r); err != nil || r.len() != 8 {
		t.Errorf("records cannot be used after free: %d, %v", r.len(), err)
	}
}

func TestRecordsOfAnotherLayoutAreRefused(t *testing.T) {
	h := started(t, strange(t))
	var r records
	defer r.free()
	if err := h.latest(11, 1, &r); returned(err) != stVersionMismatch || r.len() != 1 {
		t.Errorf("%d records, error %v", r.len(), err)
	}
	if err := h.latest(10, 1, &r); err != nil || r.len() != 8 {
		t.Errorf("the failure stays: %d records, error %v", r.len(), err)
	}
}

func TestRecordsBeforeAFailureAreKept(t *testing.T) {
	h := started(t, strange(t))
	var r records
	defer r.free()
	if next, err := h.since(15, 1, 41, &r); returned(err) != stNotWatched || r.len() != 3 || next != 0 {
		t.Errorf("%d records, next %d, error %v", r.len(), next, err)
	}
	if err := h.latest(17, 9, &r); err == nil || err.Error() != "dcgmGetLatestValues_v2 of group 17, field group 9: unknown error (-999)" {
		t.Errorf("a code that nobody knows is %v", err)
	}
}

func TestManyRecordsAreKeptInOrder(t *testing.T) {
	h := started(t, strange(t))
	var r records
	defer r.free()
	for range 2 {
		if err := h.latest(14, 1, &r); err != nil || r.len() != 100_000 {
			t.Fatalf("%d records, %v", r.len(), err)
		}
		for i := range r.len() {
			want := gpu.Int(int64(i))
			if i%2 == 1 {
				want = gpu.Text(fmt.Sprintf("text %d", i%100))
			}
			if got := r.at(i); got.entity.id != uint32(i) || got.value() != want {
				t.Fatalf("record %d is %+v, want %+v", i, got, want)
			}
		}
		// 50 texts of 6 letters and 450 of 7 come 100 times each in a thousand.
		if n := int(r.kept.text_length); n != 5*6*1000+45*7*1000 {
			t.Errorf("the texts of one call have %d bytes", n)
		}
	}
}

func TestSteadyReadingDoesNotAllocate(t *testing.T) {
	h := started(t, strange(t))
	var r records
	defer r.free()
	present := 0
	read := func() {
		if err := h.latest(14, 1, &r); err != nil {
			t.Fatal(err)
		}
		for i := range r.len() {
			if r.at(i).value().Present() {
				present++
			}
		}
	}
	read()
	if allocs := testing.AllocsPerRun(3, read); allocs > 0 {
		t.Errorf("a reading allocates %v times", allocs)
	}
	if present != 5*100_000 {
		t.Errorf("%d values are there", present)
	}
}

// A call hangs in C while the handle is closed: the engine must not go away under it.
func TestCloseLeavesTheEngineToACallThatHangs(t *testing.T) {
	path := strange(t)
	h := started(t, path)
	var r records
	hung := make(chan error)
	go func() { hung <- h.latest(16, 1, &r) }()
	awaitNote(t, path, "hanging")

	if r.len() != 0 {
		t.Error("records are read while they are filled")
	}
	r.reset()
	r.free()
	if err := h.latest(10, 1, &r); err == nil || !strings.Contains(err.Error(), "has not come back") {
		t.Errorf("records are filled by two calls at once: %v", err)
	}
	var other records
	defer other.free()
	if err := h.latest(10, 1, &other); err != nil || other.len() != 8 {
		t.Errorf("another call waits for the one that hangs: %d records, %v", other.len(), err)
	}

	if err := h.close(); !errors.Is(err, errInFlight) {
		t.Errorf("close during a call: %v", err)
	}
	if err := h.close(); err != nil {
		t.Errorf("a second close: %v", err)
	}
	if err := h.update(true); !errors.Is(err, errClosed) {
		t.Errorf("a call after close: %v", err)
	}
	if n := noted(path, "stopped"); n != 0 {
		t.Fatal("the engine was stopped under a call")
	}
	touch(t, path+".go")
	if err := <-hung; err != nil || r.len() != 2 {
		t.Errorf("the call came back with %d records and %v", r.len(), err)
	}
	if n := noted(path, "stopped"); n != 1 {
		t.Errorf("the engine was stopped %d times once the call was back", n)
	}
	r.free()
}

// The engine that a hung call kept alive belongs to whoever starts it anew.
func TestAnEngineStartedAnewIsNotStoppedByALateCall(t *testing.T) {
	path := strange(t)
	h := started(t, path)
	hung := make(chan error)
	var r records
	go func() { hung <- h.latest(16, 1, &r) }()
	awaitNote(t, path, "hanging")
	if err := h.close(); !errors.Is(err, errInFlight) {
		t.Fatal(err)
	}
	again, err := h.library.startEmbedded(embedded{LogFile: filepath.Join(t.TempDir(), "log"), Severity: 3})
	if err != nil {
		t.Fatal(err)
	}
	touch(t, path+".go")
	if err := <-hung; err != nil {
		t.Error(err)
	}
	r.free()
	if n := noted(path, "stopped"); n != 0 {
		t.Error("the late call stopped the new engine")
	}
	if err := again.close(); err != nil || noted(path, "stopped") != 1 {
		t.Errorf("close: %v, stopped %d times", err, noted(path, "stopped"))
	}
}

// A start that hangs must hang nobody else.
func TestAStartThatHangsIsToldToTheNext(t *testing.T) {
	path := strange(t)
	l, err := load(path)
	if err != nil {
		t.Fatal(err)
	}
	old, err := l.startEmbedded(embedded{})
	if err != nil {
		t.Fatal(err)
	}
	touch(t, path+".slow")
	type outcome struct {
		h   *handle
		err error
	}
	slow := make(chan outcome)
	go func() {
		h, err := l.startEmbedded(embedded{})
		slow <- outcome{h, err}
	}()
	awaitNote(t, path, "starting")
	if _, err := l.startEmbedded(embedded{}); err == nil || !strings.Contains(err.Error(), "has not come back") {
		t.Errorf("a second start: %v", err)
	}
	if err := old.close(); err != nil || noted(path, "stopped") != 0 {
		t.Errorf("close while the engine is started anew: %v, stopped %d times", err, noted(path, "stopped"))
	}
	touch(t, path+".go")
	got := <-slow
	if got.err != nil {
		t.Fatal(got.err)
	}
	if err := got.h.close(); err != nil || noted(path, "stopped") != 1 {
		t.Errorf("close: %v, stopped %d times", err, noted(path, "stopped"))
	}
}

func TestCallsFromManyGoroutinesShareAHandle(t *testing.T) {
	path := strange(t)
	h := started(t, path)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			var r records
			defer r.free()
			for range 200 {
				err := h.latest(10, 1, &r)
				if errors.Is(err, errClosed) {
					return
				}
				if err != nil || r.len() != 8 || r.at(7).field != 107 {
					t.Errorf("%d records, %v", r.len(), err)
					return
				}
			}
		})
	}
	if err := h.close(); err != nil && !errors.Is(err, errInFlight) {
		t.Error(err)
	}
	wg.Wait()
	if n := noted(path, "stopped"); n != 1 {
		t.Errorf("the engine was stopped %d times", n)
	}
}
