// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"cmp"
	"fmt"
	"math"
	"math/big"
	"math/bits"
	"strconv"
	"strings"
)

// Fraction is an exact rational number. It is immutable, its zero value is 0, and
// it is safe for concurrent use. Two Fractions are compared with Cmp or Equal,
// never with ==.
//
// Everything a GPU is normally divided into fits two 64-bit integers; what does not
// is carried by math/big, so no operation rounds or overflows.
type Fraction struct {
	num int64
	// less is the denominator less one, so that the zero value is 0/1.
	less int64
	// wide has the number where num and less cannot; they are then zero.
	wide *big.Rat
}

// NewFraction is num/den in lowest terms. A den of 0 gives 0: there is no such
// number, and parts of a GPU never have one.
func NewFraction(num, den int64) Fraction {
	if den == 0 || num == 0 {
		return Fraction{}
	}
	if num == math.MinInt64 || den == math.MinInt64 {
		return fromRat(new(big.Rat).SetFrac(big.NewInt(num), big.NewInt(den)))
	}
	if den < 0 {
		num, den = -num, -den
	}
	g := gcd(magnitude(num), uint64(den))
	return Fraction{num: num / int64(g), less: den/int64(g) - 1}
}

// One is 1, a whole GPU.
func One() Fraction { return Fraction{num: 1} }

// ParseFraction reads "15/112", "0.25" or "1": decimal digits with an optional
// sign, and either a slash or a decimal point. The error names the text.
func ParseFraction(text string) (Fraction, error) {
	if f, ok := parseSmall(text); ok {
		return f, nil
	}
	// math/big accepts far more (exponents, hexadecimal, underscores), and an
	// exponent makes a short text a very long number.
	if len(text) > 64 {
		return Fraction{}, fmt.Errorf("parse fraction %q: longer than 64 characters", text[:16]+"...")
	}
	digits := strings.TrimPrefix(strings.TrimPrefix(text, "-"), "+")
	if len(text)-len(digits) > 1 {
		return Fraction{}, fmt.Errorf("parse fraction %q: two signs", text)
	}
	whole, rest, slash := strings.Cut(digits, "/")
	point := false
	if !slash {
		whole, rest, point = strings.Cut(digits, ".")
	}
	if !isDigits(whole) || (slash || point) && !isDigits(rest) {
		return Fraction{}, fmt.Errorf("parse fraction %q: want a number such as 15/112, 0.25 or 1", text)
	}
	if slash && strings.Trim(rest, "0") == "" {
		return Fraction{}, fmt.Errorf("parse fraction %q: the denominator is zero", text)
	}
	r, ok := decimal(text)
	if !ok {
		return Fraction{}, fmt.Errorf("parse fraction %q: want a number such as 15/112, 0.25 or 1", text)
	}
	return fromRat(r), nil
}

// decimal reads what has been looked at: a Rat would take a fraction's number with a leading zero for octal.
func decimal(text string) (*big.Rat, bool) {
	num, den, slash := strings.Cut(text, "/")
	if !slash {
		return new(big.Rat).SetString(text)
	}
	n, whole := new(big.Int).SetString(num, 10)
	d, ok := new(big.Int).SetString(den, 10)
	if !whole || !ok || d.Sign() == 0 {
		return nil, false
	}
	return new(big.Rat).SetFrac(n, d), true
}

// parseSmall reads what nearly every text is, "1" or "15/112": digits, with or without a slash and digits that are
// not zero, of at most 18 each. It is false for all else.
func parseSmall(text string) (Fraction, bool) {
	whole, rest, slash := strings.Cut(text, "/")
	num, ok := smallNumber(whole)
	if !ok || !slash {
		return NewFraction(num, 1), ok
	}
	den, ok := smallNumber(rest)
	return NewFraction(num, den), ok && den != 0
}

func smallNumber(digits string) (int64, bool) {
	if digits == "" || len(digits) > 18 {
		return 0, false
	}
	n := int64(0)
	for i := range len(digits) {
		d := digits[i] - '0'
		if d > 9 {
			return 0, false
		}
		n = 10*n + int64(d)
	}
	return n, true
}

func isDigits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

// fromRat takes r over: the caller must not use it again.
func fromRat(r *big.Rat) Fraction {
	if r.Num().IsInt64() && r.Denom().IsInt64() && r.Num().Int64() != math.MinInt64 {
		return Fraction{num: r.Num().Int64(), less: r.Denom().Int64() - 1}
	}
	return Fraction{wide: r}
}

// rat is f as a big.Rat that the caller must not modify.
func (f Fraction) rat() *big.Rat {
	if f.wide != nil {
		return f.wide
	}
	return big.NewRat(f.num, f.less+1)
}

// Add is f + g.
func (f Fraction) Add(g Fraction) Fraction {
	if f.wide == nil && g.wide == nil {
		if sum, ok := addSmall(f, g); ok {
			return sum
		}
	}
	return fromRat(new(big.Rat).Add(f.rat(), g.rat()))
}

// addSmall is f + g over the least common denominator, or false on overflow.
func addSmall(f, g Fraction) (Fraction, bool) {
	fd, gd := uint64(f.less+1), uint64(g.less+1)
	shared := gcd(fd, gd)
	a, okA := mulInt(f.num, gd/shared)
	b, okB := mulInt(g.num, fd/shared)
	den, okDen := mulInt(int64(fd), gd/shared)
	sum := a + b
	overflow := (a^sum)&(b^sum) < 0
	if !okA || !okB || !okDen || overflow {
		return Fraction{}, false
	}
	return NewFraction(sum, den), true
}

// Sub is f - g.
func (f Fraction) Sub(g Fraction) Fraction { return f.Add(g.neg()) }

func (f Fraction) neg() Fraction {
	if f.wide != nil {
		return fromRat(new(big.Rat).Neg(f.wide))
	}
	return Fraction{num: -f.num, less: f.less}
}

// Mul is f × g.
func (f Fraction) Mul(g Fraction) Fraction {
	if f.wide != nil || g.wide != nil {
		return fromRat(new(big.Rat).Mul(f.rat(), g.rat()))
	}
	if f.num == 0 || g.num == 0 {
		return Fraction{}
	}
	// Cancelling crosswise first keeps the products as small as they can be.
	fd, gd := f.less+1, g.less+1
	left := int64(gcd(magnitude(f.num), uint64(gd)))
	right := int64(gcd(magnitude(g.num), uint64(fd)))
	num, okNum := mulInt(f.num/left, magnitude(g.num/right))
	den, okDen := mulInt(fd/right, uint64(gd/left))
	if !okNum || !okDen {
		return fromRat(new(big.Rat).Mul(f.rat(), g.rat()))
	}
	if g.num < 0 {
		num = -num
	}
	return Fraction{num: num, less: den - 1}
}

// Scale is f × num/den; a den of 0 gives 0, as in NewFraction.
func (f Fraction) Scale(num, den int) Fraction {
	return f.Mul(NewFraction(int64(num), int64(den)))
}

// Cmp is -1, 0 or 1 as f is less than, equal to or greater than g.
func (f Fraction) Cmp(g Fraction) int {
	if f.wide != nil || g.wide != nil {
		return f.rat().Cmp(g.rat())
	}
	if fs, gs := f.Sign(), g.Sign(); fs != gs || fs == 0 {
		return cmp.Compare(fs, gs)
	}
	fh, fl := bits.Mul64(magnitude(f.num), uint64(g.less+1))
	gh, gl := bits.Mul64(magnitude(g.num), uint64(f.less+1))
	order := 0
	switch {
	case fh > gh || fh == gh && fl > gl:
		order = 1
	case fh != gh || fl != gl:
		order = -1
	}
	return order * f.Sign()
}

// Equal reports whether f and g are the same number.
func (f Fraction) Equal(g Fraction) bool { return f.Cmp(g) == 0 }

// Sign is -1, 0 or 1.
func (f Fraction) Sign() int {
	if f.wide != nil {
		return f.wide.Sign()
	}
	return cmp.Compare(f.num, 0)
}

// IsZero reports whether f is 0.
func (f Fraction) IsZero() bool { return f.wide == nil && f.num == 0 }

// IsOne reports whether f is 1.
func (f Fraction) IsOne() bool { return f.wide == nil && f.num == 1 && f.less == 0 }

// Float64 is the float nearest to f. It is for exposition only.
func (f Fraction) Float64() float64 {
	if f.wide == nil && magnitude(f.num) <= 1<<53 && f.less < 1<<53 {
		// Both are exact as floats, so the division rounds once.
		return float64(f.num) / float64(f.less+1)
	}
	v, _ := f.rat().Float64()
	return v
}

// Floor is the greatest whole number that is not above f; the nearest int64 where there is none.
func (f Fraction) Floor() int64 {
	if f.wide == nil {
		den := f.less + 1
		q := f.num / den
		if f.num%den < 0 {
			q--
		}
		return q
	}
	// Div rounds towards minus infinity for a positive denominator, which a Rat's always is.
	q := new(big.Int).Div(f.wide.Num(), f.wide.Denom())
	switch {
	case q.IsInt64():
		return q.Int64()
	case q.Sign() < 0:
		return math.MinInt64
	}
	return math.MaxInt64
}

// MarshalText is String.
func (f Fraction) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// maxText bounds what UnmarshalText reads: far more than sums of a node's whole life need.
const maxText = 4096

// UnmarshalText reads what MarshalText wrote, of any length that sums of parts come to.
func (f *Fraction) UnmarshalText(text []byte) error {
	if len(text) <= 64 {
		parsed, err := ParseFraction(string(text))
		if err == nil {
			*f = parsed
		}
		return err
	}
	num, den, slash := strings.Cut(strings.TrimPrefix(string(text), "-"), "/")
	if len(text) > maxText || !isDigits(num) || slash && (!isDigits(den) || strings.Trim(den, "0") == "") {
		return fmt.Errorf("parse fraction %.16q...: want digits, or digits/digits, and %d characters at most", text, maxText)
	}
	r, ok := decimal(string(text))
	if !ok {
		return fmt.Errorf("parse fraction %.16q...: it is no number", text)
	}
	*f = fromRat(r)
	return nil
}

// String is the number in lowest terms, "15/112", or "2" where it is whole.
// ParseFraction reads it back unless it is longer than 64 characters.
func (f Fraction) String() string {
	if f.wide != nil {
		return f.wide.RatString()
	}
	if f.less == 0 {
		return strconv.FormatInt(f.num, 10)
	}
	return strconv.FormatInt(f.num, 10) + "/" + strconv.FormatInt(f.less+1, 10)
}

// mulInt is a × b, or false where it does not fit; b must be a positive int64's value.
func mulInt(a int64, b uint64) (int64, bool) {
	high, low := bits.Mul64(magnitude(a), b)
	if high != 0 || low > math.MaxInt64 {
		return 0, false
	}
	if a < 0 {
		return -int64(low), true
	}
	return int64(low), true
}

func magnitude(v int64) uint64 {
	if v < 0 {
		return -uint64(v)
	}
	return uint64(v)
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
