// SPDX-License-Identifier: Apache-2.0

package app

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
)

func TestTheStreamsLastListOutlivesARestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	held, list, err := openHeld(dir)
	if err != nil || list != nil {
		t.Fatalf("at first: %v, %v", list, err)
	}
	want := listOf(healthy, unhealthy)
	want.Node, want.Report.BootID, want.Report.Version = "n1", "boot", 7
	want.Devices[0].Peers = map[gpu.UUID]int{"GPU-1": 4}
	want.Report.Verdicts[1].Conditions = []health.Condition{{
		Subject: health.WholeCard("GPU-1"), Kind: health.XIDKind(79), Class: health.ClassNode, Since: noon, Last: noon.Add(time.Second), Count: 2, XID: 79,
	}}
	if err := held.save(want); err != nil {
		t.Fatal(err)
	}
	again, got, err := openHeld(dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	before, err := os.Stat(again.path)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.save(want); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(again.path); err != nil || !os.SameFile(before, after) {
		t.Errorf("the same list was written anew: %v", err)
	}
	want.Report.Version++
	if err := again.save(want); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(again.path); err != nil || os.SameFile(before, after) {
		t.Errorf("a newer list was not written: %v", err)
	}
	if files, _ := os.ReadDir(dir); len(files) != 1 {
		t.Errorf("left behind: %v", files)
	}
}

func TestAListThatCannotBeReadIsNone(t *testing.T) {
	for name, data := range map[string]string{
		"nothing": "", "torn": `{"Format":1,"List":{"Epoch":`, "newer": `{"Format":2,"List":{}}`, "no list": `{"Format":1}`, "another thing": `[]`,
	} {
		dir := t.TempDir()
		write(t, filepath.Join(dir, heldFile), data)
		held, list, err := openHeld(dir)
		if err == nil || list != nil {
			t.Errorf("%s: %v, %v", name, list, err)
		}
		if err := held.save(listOf(healthy)); err != nil {
			t.Errorf("%s: not written anew: %v", name, err)
		}
	}
}

func TestAFolderThatCannotBeWrittenIsSaid(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, "")
	held, _, _ := openHeld(file)
	if err := held.save(listOf(healthy)); err == nil {
		t.Error("saved below a file")
	}
}
