// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
)

// broken is a state in which GPU-a fell off the bus at the given minute.
func broken(t *testing.T, minute int) health.State {
	t.Helper()
	table, err := health.NewXIDTable([]health.XID{{Code: 79, Name: "GPU fell off the bus", Class: health.ClassNode}})
	if err != nil {
		t.Fatal(err)
	}
	rules, err := health.NewRules(health.Config{XIDs: table})
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 1, 2, 3, minute, 0, 0, time.UTC)
	return rules.Fold(health.State{}, health.Evidence{Time: at, BootID: "b", Fresh: true, Reading: gpu.Reading{
		Time:    at,
		Devices: []gpu.Device{{UUID: "GPU-a", GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance}},
		Events:  []gpu.Event{{Kind: gpu.EventXID, GPU: "GPU-a", Code: 79, Time: at, GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance}},
	}})
}

// opened is OpenConditions without a problem.
func opened(t *testing.T, dir string) (*Conditions, health.State) {
	t.Helper()
	c, s, errs := OpenConditions(dir, "conditions")
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c, s
}

func same(t *testing.T, a, b health.State) bool {
	t.Helper()
	var text [2]string
	for i, s := range []health.State{a, b} {
		data, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		text[i] = string(data)
	}
	return text[0] == text[1]
}

func TestWhatIsSavedIsThereAfterARestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "var", "lib")
	c, s := opened(t, dir)
	if !same(t, s, health.State{}) {
		t.Errorf("a first start knows %+v", s.Report())
	}
	for minute := range 3 {
		if err := c.Save(broken(t, minute)); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	_, s = opened(t, dir)
	if !same(t, s, broken(t, 2)) {
		t.Errorf("after a restart: %+v", s.Report())
	}
}

func TestADamagedFileIsPutAsideAndNeverDeleted(t *testing.T) {
	newer, err := json.Marshal(map[string]any{"format": 99, "version": 99})
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, word string
		content    []byte
		says       string
	}{
		{"torn", "corrupt", seal(conditionsWord, []byte(`{"a":1}`))[:20], "not as it was written"},
		{"empty, as after a power cut", "corrupt", nil, "not as it was written"},
		{"foreign", "corrupt", []byte("hello\n"), "not one of ours"},
		{"a later version's", "newer", []byte("gpumeter-conditions 2 x\n"), "newer version"},
		{"a later state", "newer", seal(conditionsWord, newer), ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "conditions")
			for round := range 2 {
				if err := os.WriteFile(path, tt.content, 0o600); err != nil {
					t.Fatal(err)
				}
				c, s, errs := OpenConditions(dir, "conditions")
				if len(errs) != 1 || !strings.Contains(errs[0].Error(), path) || !strings.Contains(errs[0].Error(), tt.says) || !strings.Contains(errs[0].Error(), "kept as") {
					t.Errorf("problems: %v", errs)
				}
				if !same(t, s, health.State{}) {
					t.Errorf("it was believed: %+v", s.Report())
				}
				if err := c.Save(broken(t, round)); err != nil {
					t.Errorf("nothing can be saved now: %v", err)
				}
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			}
			aside, _ := filepath.Glob(path + "." + tt.word + "-*")
			if len(aside) != 2 {
				t.Errorf("put aside: %v, want both", aside)
			}
			for _, file := range aside {
				if got, err := os.ReadFile(file); err != nil || !reflect.DeepEqual(append([]byte{}, got...), append([]byte{}, tt.content...)) {
					t.Errorf("%s has %q, %v", file, got, err)
				}
			}
			if _, s := opened(t, dir); !same(t, s, broken(t, 1)) {
				t.Errorf("after all: %+v", s.Report())
			}
		})
	}
}

func TestAFolderThatCannotBeWrittenIsToldAndStopsNothing(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{file, filepath.Join(file, "below"), "/proc/self", "/proc/gpumeter"} {
		c, s, errs := OpenConditions(dir, "conditions")
		if c == nil || !same(t, s, health.State{}) || len(errs) == 0 || !strings.Contains(errs[0].Error(), dir) {
			t.Errorf("%s: %v", dir, errs)
			continue
		}
		if err := c.Save(broken(t, 0)); err == nil {
			t.Errorf("%s: it was saved", dir)
		}
		if err := c.Close(); err != nil {
			t.Errorf("%s: %v", dir, err)
		}
	}
}

func TestAFolderThatSomebodyRemovesIsMadeAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gpumeter")
	c, _ := opened(t, dir)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := c.Save(broken(t, 1)); err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	if _, s := opened(t, dir); !same(t, s, broken(t, 1)) {
		t.Errorf("%+v", s.Report())
	}
}

func TestASecondProcessReadsAndWritesWhenTheFirstIsGone(t *testing.T) {
	dir := t.TempDir()
	first, _ := opened(t, dir)
	if err := first.Save(broken(t, 1)); err != nil {
		t.Fatal(err)
	}
	second, s, errs := OpenConditions(dir, "conditions")
	defer second.Close()
	if len(errs) != 1 || !strings.Contains(errs[0].Error(), "another process") || !same(t, s, broken(t, 1)) {
		t.Errorf("the second one: %v, %+v", errs, s.Report())
	}
	if err := second.Save(broken(t, 2)); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("both write: %v", err)
	}
	if err := first.Save(broken(t, 3)); err != nil {
		t.Error(err)
	}
	_ = first.Close()
	if err := second.Save(broken(t, 4)); err != nil {
		t.Errorf("the first is gone: %v", err)
	}
}

func TestWhatCannotBeReadIsNotWrittenOver(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "conditions")
	first, _ := opened(t, dir)
	if err := os.WriteFile(path, []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	second, _, errs := OpenConditions(dir, "conditions")
	defer second.Close()
	if len(errs) != 2 || !strings.Contains(errs[1].Error(), "stays") {
		t.Errorf("problems: %v", errs)
	}
	if err := second.Save(broken(t, 1)); err == nil {
		t.Error("it was saved")
	}
	if got, err := os.ReadFile(path); string(got) != "damaged" {
		t.Errorf("%q, %v", got, err)
	}
	_ = first.Close()
	if err := second.Save(broken(t, 1)); err != nil {
		t.Error(err)
	}
	if aside, _ := filepath.Glob(path + ".corrupt-*"); len(aside) != 1 {
		t.Errorf("put aside: %v", aside)
	}
}

func TestAFolderInItsPlaceIsPutAside(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "conditions"), 0o700); err != nil {
		t.Fatal(err)
	}
	c, _, errs := OpenConditions(dir, "conditions")
	defer c.Close()
	if len(errs) != 1 || !strings.Contains(errs[0].Error(), "no file of ours") {
		t.Errorf("problems: %v", errs)
	}
	if err := c.Save(broken(t, 1)); err != nil {
		t.Error(err)
	}
}
