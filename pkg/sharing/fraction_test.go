// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"math"
	"math/big"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// edges are numbers at which 64-bit arithmetic goes wrong.
var edges = rapid.OneOf(
	rapid.Int64Range(-200, 200),
	rapid.Int64(),
	rapid.SampledFrom([]int64{math.MinInt64, math.MinInt64 + 1, math.MaxInt64, math.MaxInt64 - 1, 1 << 32, -(1 << 32), 1 << 62}),
)

func drawFraction(t *rapid.T, label string) (Fraction, *big.Rat) {
	num, den := edges.Draw(t, label+" num"), edges.Filter(func(v int64) bool { return v != 0 }).Draw(t, label+" den")
	f, r := NewFraction(num, den), new(big.Rat).SetFrac(big.NewInt(num), big.NewInt(den))
	// A sum that left the 64-bit range must be as good an operand as any.
	if rapid.Bool().Draw(t, label+" far") {
		num, den := edges.Draw(t, label+" num2"), edges.Filter(func(v int64) bool { return v != 0 }).Draw(t, label+" den2")
		f, r = f.Add(NewFraction(num, den)), r.Add(r, new(big.Rat).SetFrac(big.NewInt(num), big.NewInt(den)))
	}
	return f, r
}

func TestFractionsComputeWhatBigRationalsDo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f, fr := drawFraction(t, "f")
		g, gr := drawFraction(t, "g")
		num := rapid.IntRange(-1000, 1000).Draw(t, "num")
		den := rapid.IntRange(1, 1000).Draw(t, "den")
		same := func(what string, got Fraction, want *big.Rat) {
			t.Helper()
			if got.rat().Cmp(want) != 0 || got.String() != want.RatString() {
				t.Fatalf("%s of %s and %s is %s, want %s", what, fr, gr, got, want.RatString())
			}
			if small := want.Num().IsInt64() && want.Num().Int64() != math.MinInt64 && want.Denom().IsInt64(); small != (got.wide == nil) {
				t.Fatalf("%s = %s is kept wide: %t", what, got, got.wide != nil)
			}
		}
		same("f", f, fr)
		same("g", g, gr)
		same("sum", f.Add(g), new(big.Rat).Add(fr, gr))
		same("difference", f.Sub(g), new(big.Rat).Sub(fr, gr))
		same("product", f.Mul(g), new(big.Rat).Mul(fr, gr))
		same("scaling", f.Scale(num, den), new(big.Rat).Mul(fr, big.NewRat(int64(num), int64(den))))
		if got, want := f.Cmp(g), fr.Cmp(gr); got != want {
			t.Fatalf("Cmp of %s and %s is %d, want %d", f, g, got, want)
		}
		if got, want := f.Sign(), fr.Sign(); got != want {
			t.Fatalf("sign of %s is %d, want %d", f, got, want)
		}
		if f.IsZero() != (fr.Sign() == 0) || f.IsOne() != (fr.Cmp(big.NewRat(1, 1)) == 0) || !f.Equal(f) {
			t.Fatalf("IsZero, IsOne or Equal of %s is wrong", f)
		}
		if want, _ := fr.Float64(); f.Float64() != want {
			t.Fatalf("float of %s is %v, want %v", f, f.Float64(), want)
		}
	})
}

func TestOperandsOfFractionsStayAsTheyWere(t *testing.T) {
	wide := NewFraction(math.MaxInt64, 1).Add(One())
	before := wide.String()
	wide.Add(One()).Sub(wide).Mul(wide).Scale(2, 3)
	if wide.neg(); wide.String() != before {
		t.Errorf("arithmetic changed its operand from %s to %s", before, wide)
	}
}

func TestFractionSpecialValues(t *testing.T) {
	var zero Fraction
	if !zero.IsZero() || zero.String() != "0" || zero.Float64() != 0 || !zero.Equal(NewFraction(0, -7)) {
		t.Errorf("the zero Fraction is %s, want 0", zero)
	}
	if got := NewFraction(3, 0); !got.IsZero() {
		t.Errorf("NewFraction(3, 0) = %s, want 0", got)
	}
	if got := NewFraction(-6, -8).String(); got != "3/4" {
		t.Errorf("NewFraction(-6, -8) = %s, want 3/4", got)
	}
	// NewFraction's lowest terms make equal small numbers equal structs.
	if NewFraction(30, 224) != NewFraction(15, 112) {
		t.Error("30/224 and 15/112 are kept apart")
	}
}

func TestParseFraction(t *testing.T) {
	for text, want := range map[string]string{
		"15/112": "15/112", "30/224": "15/112", "0.25": "1/4", "1": "1", "0": "0", "-1/2": "-1/2", "+0.5": "1/2",
		"007": "7", "0.10": "1/10", "18446744073709551616/2": "9223372036854775808",
		"1/010": "1/10", "+1/010": "1/10", "-010/16": "-5/8", "0/09": "0", "-0/08": "0", "00000000000000000000010/16": "5/8",
	} {
		got, err := ParseFraction(text)
		if err != nil || got.String() != want {
			t.Errorf("ParseFraction(%q) = %s, %v; want %s", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", "-", "/", "1/", "/2", "1/0", "1/00", "+-", "1./2", ".5", "5.", "1.5/2", "1e9", "1e999999999", "0x10", "1_000", " 1", "1 ", "--1", "+-1",
		"NaN", "Inf", "1/-2", "½", "1,5", strings.Repeat("1", 65),
	} {
		if got, err := ParseFraction(text); err == nil {
			t.Errorf("ParseFraction(%q) = %s, want an error", text, got)
		} else if !strings.Contains(err.Error(), "parse fraction \"") {
			t.Errorf("ParseFraction(%q): error %q does not name the text", text, err)
		}
	}
}

func FuzzParseFraction(f *testing.F) {
	for _, text := range []string{"15/112", "0.25", "1", "-1/2", "1/0", "1e9", "99999999999999999999/3", "0.000000000000000000001", "+7", "1.", "a/b"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := ParseFraction(text)
		if err != nil {
			if !got.IsZero() {
				t.Fatalf("%q: an error and %s", text, got)
			}
			return
		}
		want, ok := new(big.Rat).SetString(withoutLeadingZeros(text))
		if !ok || got.rat().Cmp(want) != 0 {
			t.Fatalf("%q is %s, want %v", text, got, want)
		}
		again, err := ParseFraction(got.String())
		if len(got.String()) <= 64 && (err != nil || !again.Equal(got)) {
			t.Fatalf("%q reads back as %s, %v", got, again, err)
		}
	})
}

// withoutLeadingZeros keeps a Rat from taking a number of a fraction for octal.
func withoutLeadingZeros(text string) string {
	num, den, slash := strings.Cut(text, "/")
	if !slash {
		return text
	}
	digits := strings.TrimLeft(num, "+-")
	sign := num[:len(num)-len(digits)]
	return sign + strings.TrimLeft(digits[:len(digits)-1], "0") + digits[len(digits)-1:] + "/" + strings.TrimLeft(den, "0")
}

func BenchmarkFractionAdd(b *testing.B) {
	f, g := NewFraction(15, 112), NewFraction(11, 56)
	for b.Loop() {
		f.Add(g)
	}
}

func TestFloorIsTheGreatestWholeNumberBelow(t *testing.T) {
	for _, c := range []struct {
		text string
		want int64
	}{
		{"0", 0}, {"7", 7}, {"7/2", 3}, {"-7/2", -4}, {"-4", -4}, {"1/3", 0}, {"-1/3", -1},
		{"9223372036854775807", math.MaxInt64}, {"92233720368547758070/10", math.MaxInt64},
		{"92233720368547758071/10", math.MaxInt64}, {"922337203685477580700", math.MaxInt64}, {"-922337203685477580700", math.MinInt64},
		{"100000000000000000001/100000000000000000000", 1}, {"-100000000000000000001/100000000000000000000", -2},
	} {
		var f Fraction
		if err := f.UnmarshalText([]byte(c.text)); err != nil {
			t.Fatal(err)
		}
		if got := f.Floor(); got != c.want {
			t.Errorf("Floor(%s) = %d, want %d", c.text, got, c.want)
		}
	}
}

func TestEveryFractionIsReadBackAsText(t *testing.T) {
	f := One()
	for _, den := range []int64{3, 7, 1 << 40, 1_000_003, 999_999_937, 5, 11, 13, 1<<61 - 1, 1_000_000_007, 1_000_000_009} {
		f = f.Add(NewFraction(-1, den))
		text, err := f.MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		var back Fraction
		if err := back.UnmarshalText(text); err != nil || !back.Equal(f) {
			t.Errorf("%s is read back as %v, %v", text, back, err)
		}
	}
	long := strings.Repeat("9", 70)
	for _, bad := range []string{long + "/0", long + "/", "--" + long, long + "x", long + "/-3", strings.Repeat("9", maxText+1), "x"} {
		var back Fraction
		if err := back.UnmarshalText([]byte(bad)); err == nil {
			t.Errorf("%.20q… (%d characters) is read as a fraction", bad, len(bad))
		}
	}
}
