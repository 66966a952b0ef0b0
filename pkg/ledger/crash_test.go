// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// asWriter names the folder in which this test program is to write until it is killed.
const asWriter = "GPUMETER_TEST_WRITES_IN"

// asLimited says that this test program is the one whose files are limited.
const asLimited = "GPUMETER_TEST_IS_LIMITED"

// TestMain is the program that is killed, where it is run as that.
func TestMain(m *testing.M) {
	if dir := os.Getenv(asWriter); dir != "" {
		fmt.Fprintln(os.Stderr, writeForever(dir))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// writeForever replaces the file by ever higher numbers of changing lengths, and tells each when it is saved.
func writeForever(dir string) error {
	f := file{dir: dir, name: "conditions"}
	for n := 1; ; n++ {
		if err := f.replace(seal(conditionsWord, numbered(n))); err != nil {
			return err
		}
		fmt.Println(n)
	}
}

func numbered(n int) []byte {
	return append(bytes.Repeat([]byte{byte(n)}, n%7*3000), fmt.Sprintf(" %d", n)...)
}

func TestAKilledWriterLeavesTheOldOrTheNewAndNeverNeither(t *testing.T) {
	dir := t.TempDir()
	for round := range 12 {
		told := killedAfter(t, dir, time.Duration(5+round*7)*time.Millisecond)
		data, there, err := read(filepath.Join(dir, "conditions"))
		if err != nil || !there {
			t.Fatalf("round %d: there: %v, %v", round, there, err)
		}
		payload, err := unseal(conditionsWord, data)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		words := strings.Fields(string(payload[bytes.LastIndexByte(payload, ' '):]))
		got, err := strconv.Atoi(words[0])
		if err != nil || got < told || got > told+1 || !bytes.Equal(payload, numbered(got)) {
			t.Errorf("round %d: %d is there, and %d was told to be (%v)", round, got, told, err)
		}
	}
}

// killedAfter is the last number that a writer told to have saved before it was killed.
func killedAfter(t *testing.T, dir string, span time.Duration) int {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), asWriter+"="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	told := 0
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if told == 0 {
			time.AfterFunc(span, func() { _ = cmd.Process.Kill() })
		}
		if told, err = strconv.Atoi(lines.Text()); err != nil {
			t.Fatal(err)
		}
	}
	_, _ = io.Copy(io.Discard, out)
	_ = cmd.Wait()
	if told == 0 {
		t.Fatal("the writer told nothing")
	}
	return told
}

// The kernel stops each write at a file size, in the middle of it: those of the whole process, so that it is one of its own.
func TestAFullDiskKeepsWhatWasSaved(t *testing.T) {
	if os.Getenv(asLimited) == "" {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), self, "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), asLimited+"=yes")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	dir := t.TempDir()
	f := file{dir: dir, name: "conditions"}
	old := seal(conditionsWord, bytes.Repeat([]byte("a"), 9000))
	if err := f.replace(old); err != nil {
		t.Fatal(err)
	}
	limited(t, 5000, func() {
		if err := f.replace(seal(conditionsWord, bytes.Repeat([]byte("b"), 9000))); err == nil {
			t.Error("it was saved on a full disk")
		}
	})
	if got, _, err := read(f.path()); err != nil || !bytes.Equal(got, old) {
		t.Errorf("%d bytes, %v; want the old ones", len(got), err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 2 {
		t.Errorf("%v is left, want the file and its lock", entries)
	}
	if err := f.replace(seal(conditionsWord, []byte("c"))); err != nil {
		t.Errorf("when there is room again: %v", err)
	}
}

// limited runs f with a limit on the size of files.
func limited(t *testing.T, size uint64, f func()) {
	t.Helper()
	signal.Ignore(syscall.SIGXFSZ)
	defer signal.Reset(syscall.SIGXFSZ)
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: size, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
			t.Fatal(err)
		}
	}()
	f()
}
