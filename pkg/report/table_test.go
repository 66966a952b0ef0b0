// SPDX-License-Identifier: Apache-2.0

package report

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/shopspring/decimal"

	"github.com/gpumeter/gpumeter/pkg/ledger"
)

func tableOf(t *testing.T, o Options) func(io.Writer) error {
	b := march(t)
	return func(w io.Writer) error { return Table(w, b, o) }
}

func TestATableFitsItsTerminal(t *testing.T) {
	for _, width := range []int{140, 124} {
		rows, _, _ := strings.Cut(written(t, tableOf(t, Options{View: Platform, Width: width})), "Adds up")
		for line := range strings.Lines(rows) {
			if n := cells(strings.TrimRight(line, "\n")); n > width {
				t.Errorf("a line takes %d of %d columns: %s", n, width, line)
			}
		}
	}
}

func TestATableNeverCutsAName(t *testing.T) {
	b := march(t)
	long := strings.Repeat("team-with-a-long-name-", 8) + "end"
	b.Rows[0].Keys[0] = long
	text := written(t, func(w io.Writer) error { return Table(w, b, Options{Width: 120}) })
	left := long
	for line := range strings.Lines(text) {
		for field := range strings.FieldsSeq(line) {
			if rest, ok := strings.CutPrefix(left, field); ok {
				left = rest
				break
			}
		}
	}
	if left != "" {
		t.Errorf("of the name this is nowhere: %q\n%s", left, text)
	}
}

func TestATableSaysWhatIsMissing(t *testing.T) {
	text := written(t, tableOf(t, Options{}))
	for _, want := range []string{"INCOMPLETE  99.19 %", "prod/gpu-b", "2026-03-17 03:00:00", "(6 h)", "no_reading", "--ledger", "2026-Q1.2", "difference 0"} {
		if !strings.Contains(text, want) {
			t.Errorf("the table does not say %q:\n%s", want, text)
		}
	}
	b := march(t)
	b.Complete, b.Nodes[1].Missing = true, nil
	b.Difference, b.Unbalanced = 7_000_000, []string{"GPU-1: 7 s"}
	text = written(t, func(w io.Writer) error { return Table(w, b, Options{}) })
	for _, want := range []string{"Complete    yes", "WRONG:", "7 GPU-seconds apart", "GPU-1: 7 s"} {
		if !strings.Contains(text, want) {
			t.Errorf("the table does not say %q:\n%s", want, text)
		}
	}
}

func TestAHostileBillDoesNothingToATerminal(t *testing.T) {
	text := written(t, func(w io.Writer) error { return Table(w, hostile(t), Options{Generator: "x\x1b[2J"}) })
	for _, r := range text {
		if r != '\n' && (unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r)) {
			t.Fatalf("%U reaches the terminal", r)
		}
	}
}

// full is a disk that is.
type full struct{}

var errFull = errors.New("no space left on device")

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestEveryOutputSaysThatItCouldNotBeWritten(t *testing.T) {
	b := march(t)
	for name, err := range map[string]error{
		"table": Table(full{}, b, Options{}), "csv": CSV(full{}, b, Options{}), "json": JSON(full{}, b, Options{}),
		"html": HTML(full{}, b, Options{}), "focus": FOCUS(full{}, b, "1.3", FOCUSOptions{}),
	} {
		if !errors.Is(err, errFull) {
			t.Errorf("%s: error is %v, want the disk's", name, err)
		}
	}
}

func TestPeriodsAreNamedAsPeopleDo(t *testing.T) {
	berlin := inBerlin(t)
	day := func(d int) time.Time { return time.Date(2026, time.March, d, 0, 0, 0, 0, berlin) }
	for _, c := range []struct {
		from, to time.Time
		want     string
	}{
		{day(1), day(32), "March 2026"},
		{day(29), day(30), "29 March 2026"},
		{day(2), day(9), "2 March – 8 March 2026"},
		{day(1).AddDate(0, -3, 0), day(32), "1 December 2025 – 31 March 2026"},
		{day(1).Add(time.Hour), day(2), "2026-03-01 01:00 – 2026-03-02 00:00"},
	} {
		if got := periodName(c.from.UTC(), c.to.UTC(), berlin); got != c.want {
			t.Errorf("%s to %s is %q, want %q", c.from, c.to, got, c.want)
		}
	}
}

func TestNumbersHaveCommas(t *testing.T) {
	for number, want := range map[string]string{"0": "0", "999.5": "999.5", "1000": "1,000", "-1234567.8901": "-1,234,567.8901", "-12": "-12"} {
		if got := thousands(number); got != want {
			t.Errorf("%s is shown as %s, want %s", number, got, want)
		}
	}
}

func TestAPartOfNothingIsNoPercentage(t *testing.T) {
	if text, ok := percent(decimal.NewFromInt(1), decimal.Zero); ok || text != none {
		t.Errorf("it is %q", text)
	}
}

func TestAPlainBillShowsAllTheSame(t *testing.T) {
	b := march(t)
	b.Rows, b.Nodes, b.Hours, b.GroupBy, b.Notes = nil, nil, nil, nil, nil
	b.Total, b.Capacity, b.Complete = totalRow(march(t)).Sums, decimal.Zero, true
	b.Unbalanced = []string{}
	for _, write := range []func(io.Writer) error{
		func(w io.Writer) error { return Table(w, b, Options{Width: 10}) }, func(w io.Writer) error { return CSV(w, b, Options{}) },
		func(w io.Writer) error { return JSON(w, b, Options{Items: true}) }, func(w io.Writer) error { return HTML(w, b, Options{}) },
	} {
		if written(t, write) == "" {
			t.Error("nothing was written")
		}
	}
}

func TestWhatABasisMeansIsSaid(t *testing.T) {
	for _, basis := range []ledger.Basis{ledger.BasisEngine, ledger.BasisUtil, ledger.BasisEqual, ledger.BasisDevice, ledger.BasisShare} {
		if basisMeaning(basis) == string(basis) {
			t.Errorf("nothing is said of %s", basis)
		}
	}
	for _, cause := range causes() {
		if causeMeaning(cause) == "" {
			t.Errorf("nothing is said of %s", cause)
		}
	}
}
