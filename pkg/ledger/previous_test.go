// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpumeter/gpumeter/pkg/health"
)

// savedTwice is a folder in which the conditions of minutes 1 and 2 were saved.
func savedTwice(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	c, _ := opened(t, dir)
	for minute := range 2 {
		if err := c.Save(broken(t, minute+1)); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestWhatWasSavedBeforeStandsInForADamagedOrMissingFile(t *testing.T) {
	damage := func(text string) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	remove := func(t *testing.T, path string) {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	none := func(*testing.T, string) {}
	tests := []struct {
		name              string
		happens, previous func(*testing.T, string)
		want              Restored
		state             health.State
		says              string
	}{
		{"nothing", none, none, RestoredLast, broken(t, 2), ""},
		{"the file is damaged", damage("hello\n"), none, RestoredPrevious, broken(t, 1), "is used, which may lack what changed last"},
		{"the file is empty", damage(""), none, RestoredPrevious, broken(t, 1), "kept as"},
		{"the file is gone", remove, none, RestoredPrevious, broken(t, 1), "is gone"},
		{"a newer version wrote it", damage("gpumeter-conditions 2 x\n"), none, RestoredNewer, health.State{}, "not known until"},
		{"both are damaged", damage("hello\n"), damage("there\n"), RestoredCorrupt, health.State{}, "not known until"},
		{"both are gone", remove, remove, RestoredNew, health.State{}, ""},
		{"only what was before is gone", none, remove, RestoredLast, broken(t, 2), ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := savedTwice(t)
			path := filepath.Join(dir, "conditions")
			tt.happens(t, path)
			tt.previous(t, path+".previous")
			c, s, errs := OpenConditions(dir, "conditions")
			defer c.Close()
			if c.Restored() != tt.want || !same(t, s, tt.state) {
				t.Errorf("it is %s, with %+v", c.Restored(), s.Report().Verdicts)
			}
			switch {
			case tt.says == "" && len(errs) > 0, tt.says != "" && (len(errs) != 1 || !strings.Contains(errs[0].Error(), tt.says)):
				t.Errorf("problems: %v, want %q", errs, tt.says)
			}
			// Whatever it began with, it goes on.
			if err := c.Save(broken(t, 3)); err != nil {
				t.Fatal(err)
			}
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
			if c, s := opened(t, dir); c.Restored() != RestoredLast || !same(t, s, broken(t, 3)) {
				t.Errorf("after the next save it is %s", c.Restored())
			}
		})
	}
}

// A crash between putting a damaged file aside and the next save must not forget what stood in for it.
func TestWhatStoodInForADamagedFileIsThereAfterACrash(t *testing.T) {
	dir := savedTwice(t)
	if err := os.WriteFile(filepath.Join(dir, "conditions"), []byte("hello\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for start := range 3 {
		c, s, _ := OpenConditions(dir, "conditions")
		if c.Restored() != RestoredPrevious || !same(t, s, broken(t, 1)) {
			t.Errorf("start %d: %s", start+1, c.Restored())
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
