// SPDX-License-Identifier: Apache-2.0

package bill

import (
	"cmp"
	"math/big"
	"slices"

	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// column is numbers of one kind over a common denominator: numerators[i]/den units.
type column struct {
	numerators []*big.Int
	den        *big.Int
}

// rat is f as a big.Rat of the caller's own.
func rat(f sharing.Fraction) *big.Rat {
	r, ok := new(big.Rat).SetString(f.String())
	if !ok {
		return new(big.Rat)
	}
	return r
}

// columns are the values in units of 1/unit, all over the same denominator: exact.
func columns(unit *big.Rat, values ...[]sharing.Fraction) []column {
	den := big.NewInt(1)
	rats := make([][]*big.Rat, len(values))
	for i, list := range values {
		rats[i] = make([]*big.Rat, len(list))
		for j, f := range list {
			r := rat(f)
			r.Mul(r, unit)
			rats[i][j] = r
			den = lcm(den, r.Denom())
		}
	}
	out := make([]column, len(values))
	for i, list := range rats {
		out[i] = column{numerators: make([]*big.Int, len(list)), den: den}
		for j, r := range list {
			scaled := new(big.Int).Quo(den, r.Denom())
			out[i].numerators[j] = scaled.Mul(scaled, r.Num())
		}
	}
	return out
}

func lcm(a, b *big.Int) *big.Int {
	rest := new(big.Int).Rem(a, b)
	if rest.Sign() == 0 {
		return a
	}
	g := new(big.Int).GCD(nil, nil, a, b)
	return g.Mul(new(big.Int).Quo(a, g), b)
}

// halfEven is n/den rounded to the next whole number, to the even one where two are as near.
func halfEven(n, den *big.Int) *big.Int {
	whole, rest := new(big.Int).DivMod(n, den, new(big.Int))
	switch rest.Lsh(rest, 1).Cmp(den) {
	case 1:
		whole.Add(whole, big.NewInt(1))
	case 0:
		whole.Add(whole, new(big.Int).And(whole, big.NewInt(1)))
	}
	return whole
}

// largestRemainder rounds each number down or up so that they add up to their rounded sum, which it returns too: up go
// those with the largest remainders, of equal ones the first. A whole number stays as it is.
func (c column) largestRemainder() (rounded []*big.Int, total *big.Int) {
	sum := new(big.Int)
	left := new(big.Int)
	rounded = make([]*big.Int, len(c.numerators))
	rests := make([]*big.Int, len(c.numerators))
	order := make([]int, len(c.numerators))
	for i, n := range c.numerators {
		sum.Add(sum, n)
		rounded[i], rests[i] = new(big.Int).DivMod(n, c.den, new(big.Int))
		left.Sub(left, rounded[i])
		order[i] = i
	}
	total = halfEven(sum, c.den)
	left.Add(left, total)
	slices.SortFunc(order, func(a, b int) int { return cmp.Or(rests[b].Cmp(rests[a]), cmp.Compare(a, b)) })
	for _, i := range order {
		if left.Sign() == 0 {
			break
		}
		rounded[i].Add(rounded[i], big.NewInt(1))
		left.Sub(left, big.NewInt(1))
	}
	return rounded, total
}
