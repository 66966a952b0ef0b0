// SPDX-License-Identifier: Apache-2.0

package app

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
)

func TestNVIDIAsVariablesChangeWhatAnXIDMeans(t *testing.T) {
	for _, c := range []struct {
		name, disable, enable string
		// withdraws are codes that withdraw a GPU, stays those that do not.
		withdraws, stays []int
	}{
		{"neither", "", "", []int{79, 48, 119}, []int{13, 31, 43, 63, 94, 998}},
		{"some ignored", "79, 119", "", []int{48}, []int{79, 119, 31}},
		{"all ignored", "all", "", nil, []int{79, 48, 31, 998}},
		{"all ignored by another word", "XIDS", "", nil, []int{79, 48}},
		{"an allow-list", "all", "79", []int{79}, []int{48, 119, 31}},
		{"an informational one that is wanted", "", "31,998", []int{31, 79, 998}, []int{13}},
		{"all wanted", "79", "ALL", []int{79, 13, 31, 998}, nil},
		{"enabling wins", "79", "79", []int{79}, nil},
		{"blanks and empty places", " 79 ,, ", ",", []int{48}, []int{79}},
	} {
		t.Run(c.name, func(t *testing.T) {
			table, notes, err := ownXIDs("", environ(map[string]string{envDisableXIDs: c.disable, envEnableXIDs: c.enable}))
			if err != nil {
				t.Fatal(err)
			}
			for _, code := range c.withdraws {
				if x := table.Lookup(code); x.Class < health.ClassReset {
					t.Errorf("XID %d is %s", code, x.Class)
				}
			}
			for _, code := range c.stays {
				if x := table.Lookup(code); x.Class >= health.ClassReset {
					t.Errorf("XID %d is %s", code, x.Class)
				}
			}
			if (len(notes) > 0) != (c.disable != "" || c.enable != "") {
				t.Errorf("notes %v", notes)
			}
		})
	}
}

func TestATypoAmongXIDsIsNamed(t *testing.T) {
	for _, c := range []struct{ disable, enable, want string }{
		{"79,4x", "", `DP_DISABLE_HEALTHCHECKS: "4x", number 2 in the list, is no XID`},
		{"", "xids", `DP_ENABLE_HEALTHCHECKS: "xids", number 1 in the list`},
		{"0", "", `"0"`}, {"1000", "", `"1000"`}, {"-1", "", `"-1"`}, {"alll", "", `"alll"`},
	} {
		_, err := parseXIDChoice(c.disable, c.enable)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q, %q: %v, want %s", c.disable, c.enable, err, c.want)
		}
	}
	_, err := parseXIDChoice("a,b", "c")
	if n := strings.Count(err.Error(), "is no XID"); n != 3 {
		t.Errorf("%d mistakes of three are told: %v", n, err)
	}
}

func TestTheOwnEnginesXIDsCanBeChangedAsTheExporters(t *testing.T) {
	name := filepath.Join(t.TempDir(), "xid.yaml")
	if err := os.WriteFile(name, []byte("xids:\n  - {code: 31, class: reset, name: ours}\n  - {code: 79, class: watch, name: ours}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := defaults()
	c.stateDir, c.source, c.xidFile = "", sourceNVML, name
	c.env = environ(map[string]string{envEnableXIDs: "79"})
	e, err := newEngine(c, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	r := e.look(lookAt(noon, "boot", 3, xidOn("GPU-0", 31, noon), xidOn("GPU-1", 79, noon), xidOn("GPU-2", 13, noon)))
	for device, want := range map[gpu.UUID]health.Status{"GPU-0": unhealthy, "GPU-1": unhealthy, "GPU-2": healthy} {
		if got := statusOf(r, device); got != want {
			t.Errorf("%s is %v, want %v", device, got, want)
		}
	}
	c.xidFile = name + ".gone"
	if err := c.validate(); err == nil || !strings.Contains(err.Error(), "--xid-file: ") {
		t.Errorf("a file that is not there: %v", err)
	}
}

func FuzzXIDChoice(f *testing.F) {
	f.Add("all", "79,48")
	f.Add("1,2,x", "")
	f.Fuzz(func(t *testing.T, disable, enable string) {
		c, err := parseXIDChoice(disable, enable)
		for _, code := range append(c.ignore, c.watch...) {
			if code < 1 || code > health.MaxXID {
				t.Errorf("let %d through", code)
			}
		}
		if err == nil && c.empty() && strings.Trim(disable+enable, ", \t\r\n\v\f\u0085\u00a0\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000\u1680") != "" {
			t.Errorf("%q, %q ask for nothing and are no mistake", disable, enable)
		}
	})
}
