// SPDX-License-Identifier: Apache-2.0

package bill

import (
	"math/big"
	"testing"

	"pgregory.net/rapid"

	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// drawAmounts are exact amounts of rows: whole ones, halves, thirds, nothing at all, below zero.
func drawAmounts(t *rapid.T, n int, label string) []sharing.Fraction {
	den := rapid.SampledFrom([]int64{1, 2, 3, 4, 7, 8, 100, 3_600_000})
	amounts := make([]sharing.Fraction, n)
	for i := range amounts {
		if rapid.IntRange(0, 2).Draw(t, label+" none") > 0 {
			amounts[i] = sharing.NewFraction(rapid.Int64Range(-1000, 100_000).Draw(t, label), den.Draw(t, label+" den"))
		}
	}
	return amounts
}

func TestPrintedMoneyAddsUpInEveryRowAndColumnAndNoCellIsACentOff(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 30).Draw(t, "rows")
		list, net := drawAmounts(t, n, "list"), drawAmounts(t, n, "net")
		idle, adjustment := drawAmounts(t, n, "idle"), drawAmounts(t, n, "adjustment")
		for i := range net {
			switch rapid.IntRange(0, 3).Draw(t, "shape") {
			case 0: // no discount
				net[i] = list[i]
			case 1: // its idle cost is others'
				idle[i] = sharing.Fraction{}.Sub(net[i])
			case 2:
				adjustment[i] = sharing.Fraction{}
			}
		}
		c := columns(big.NewRat(1, 1), list, net, idle, adjustment)
		m := newMoney(c[0], c[1], c[2], c[3])
		exact := make([]*big.Rat, len(m.arcs))
		for i, a := range m.arcs {
			exact[i] = new(big.Rat).SetFrac(new(big.Int).Add(new(big.Int).Mul(a.floor, m.den), a.part), m.den)
		}
		m.round()
		sums := [cells]*big.Int{}
		for i := range sums {
			sums[i] = new(big.Int)
		}
		for r := range n {
			row := m.row(r)
			rowHolds(t, row)
			for i := range sums {
				sums[i].Add(sums[i], row[i])
			}
		}
		rowHolds(t, m.sum())
		for i, sum := range m.sum() {
			if sum.Cmp(sums[i]) != 0 {
				t.Fatalf("column %d adds up to %s, and %s is printed", i, sums[i], sum)
			}
		}
		for i, a := range m.arcs {
			off := new(big.Rat).Sub(exact[i], new(big.Rat).SetInt(a.floor))
			if off.Abs(off).Cmp(big.NewRat(1, 1)) >= 0 {
				t.Fatalf("cell %d is %s, and %s is printed", i, exact[i].RatString(), a.floor)
			}
		}
		half := big.NewRat(1, 2)
		for _, cell := range []int{cellTotal, cellNet} {
			off := new(big.Rat).Sub(exact[cell], new(big.Rat).SetInt(m.sum()[cell]))
			if off.Abs(off).Cmp(half) > 0 {
				t.Fatalf("sum %d is %s exactly, and %s is printed, not the nearest", cell, exact[cell].RatString(), m.sum()[cell])
			}
		}
		if want := halfEven(exact[cellTotal].Num(), exact[cellTotal].Denom()); m.sum()[cellTotal].Cmp(want) != 0 {
			t.Fatalf("the total is %s exactly, and %s is printed, want %s", exact[cellTotal].RatString(), m.sum()[cellTotal], want)
		}
	})
}

func rowHolds(t *rapid.T, row [cells]*big.Int) {
	t.Helper()
	if left := new(big.Int).Sub(row[cellList], row[cellDiscount]); left.Cmp(row[cellNet]) != 0 {
		t.Fatalf("list %s less discount %s is printed as net %s", row[cellList], row[cellDiscount], row[cellNet])
	}
	total := new(big.Int).Add(row[cellNet], row[cellIdle])
	if total.Add(total, row[cellAdjustment]); total.Cmp(row[cellTotal]) != 0 {
		t.Fatalf("net %s, idle %s and adjustment %s are printed as total %s", row[cellNet], row[cellIdle], row[cellAdjustment], row[cellTotal])
	}
}

// Where there is one column only, it is rounded as everybody does it by hand.
func TestMoneyOfOneColumnIsRoundedByLargestRemainder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 40).Draw(t, "rows")
		net := drawAmounts(t, n, "net")
		none := make([]sharing.Fraction, n)
		c := columns(big.NewRat(1, 1), net, net, none, none)
		m := newMoney(c[0], c[1], c[2], c[3])
		m.round()
		want, total := c[1].largestRemainder()
		if got := m.sum()[cellTotal]; got.Cmp(total) != 0 {
			t.Fatalf("total %s, want %s", got, total)
		}
		up, down := (*big.Int)(nil), (*big.Int)(nil)
		for r := range n {
			got := m.row(r)[cellTotal]
			floor, rest := new(big.Int).DivMod(c[1].numerators[r], c[1].den, new(big.Int))
			if rest.Sign() == 0 {
				continue
			}
			if got.Cmp(floor) > 0 && (up == nil || rest.Cmp(up) < 0) {
				up = rest
			}
			if got.Cmp(floor) == 0 && (down == nil || rest.Cmp(down) > 0) {
				down = rest
			}
		}
		if up != nil && down != nil && up.Cmp(down) < 0 {
			t.Fatalf("a remainder of %s went up and one of %s down; by largest remainder it is %v", up, down, want)
		}
	})
}

func TestLargestRemainder(t *testing.T) {
	third := sharing.NewFraction(1, 3)
	for _, c := range []struct {
		name   string
		values []sharing.Fraction
		want   []int64
		total  int64
	}{
		{"nothing", nil, nil, 0},
		{"three thirds", []sharing.Fraction{third, third, third}, []int64{1, 0, 0}, 1},
		{"two thirds twice", []sharing.Fraction{sharing.NewFraction(2, 3), sharing.NewFraction(2, 3)}, []int64{1, 0}, 1},
		{"the larger goes up", []sharing.Fraction{sharing.NewFraction(1, 4), sharing.NewFraction(3, 4)}, []int64{0, 1}, 1},
		{"a half is rounded to even", []sharing.Fraction{sharing.NewFraction(5, 2)}, []int64{2}, 2},
		{"to the even one above too", []sharing.Fraction{sharing.NewFraction(7, 2)}, []int64{4}, 4},
		{"below zero", []sharing.Fraction{sharing.NewFraction(-1, 3), sharing.NewFraction(-1, 3), sharing.NewFraction(-1, 3)}, []int64{0, 0, -1}, -1},
		{"whole ones stay", []sharing.Fraction{sharing.NewFraction(7, 1), third, sharing.NewFraction(2, 3)}, []int64{7, 0, 1}, 8},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, total := columns(big.NewRat(1, 1), c.values)[0].largestRemainder()
			if total.Int64() != c.total {
				t.Errorf("total %s, want %d", total, c.total)
			}
			for i := range got {
				if got[i].Int64() != c.want[i] {
					t.Errorf("rounded to %v, want %v", got, c.want)
					break
				}
			}
		})
	}
}

func BenchmarkMoney(b *testing.B) {
	const n = 20_000
	list, net, none := make([]sharing.Fraction, n), make([]sharing.Fraction, n), make([]sharing.Fraction, n)
	idle := make([]sharing.Fraction, n)
	for i := range int64(n) {
		list[i] = sharing.NewFraction(i*i*7919+1, 3_600_000)
		net[i] = list[i].Scale(17, 20)
		idle[i] = list[i].Scale(1, 13)
	}
	for b.Loop() {
		c := columns(big.NewRat(1, 1), list, net, idle, none)
		newMoney(c[0], c[1], c[2], c[3]).round()
	}
}
