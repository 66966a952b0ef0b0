// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"math/big"
	"slices"

	"github.com/shopspring/decimal"
)

// ratioDecimals are those of a ratio and of a quantity in GPU-hours: a GPU-microsecond is 2.8e-10 of them.
const ratioDecimals = 12

// hourMicros is a GPU-hour in GPU-microseconds.
const hourMicros = 3_600_000_000

// divideOrigins sets the quantity and the ratio of each charge, so that those of one origin add up to the
// origin's quantity, and to 1, to the last decimal.
func divideOrigins(charges []charge) error {
	origins := make(map[string][]int)
	var order []string
	for i := range charges {
		if _, known := origins[charges[i].origin]; !known {
			order = append(order, charges[i].origin)
		}
		origins[charges[i].origin] = append(origins[charges[i].origin], i)
	}
	for _, name := range order {
		members := origins[name]
		weights, total := make([]int64, len(members)), int64(0)
		for i, m := range members {
			weights[i] = charges[m].item.GPU
			total += weights[i]
		}
		if total == 0 {
			return fmt.Errorf("the charges of GPU %s come to nothing together, and have no part of it: %s", charges[members[0]].item.Card, name)
		}
		whole := decimal.NewFromBigRat(big.NewRat(total, hourMicros), ratioDecimals)
		for i, q := range divide(whole, weights) {
			c := &charges[members[i]]
			c.quantity, c.listed = q, q.Mul(c.item.Price.Hour)
		}
		for i, r := range divide(decimal.NewFromInt(1), weights) {
			charges[members[i]].ratio = r
		}
	}
	return nil
}

// divide divides whole by weights into parts of ratioDecimals decimals which add up to it: each is rounded down,
// and the units that are left go to those that were rounded down by most, to the first of them where it is alike.
// The weights must not add up to 0.
func divide(whole decimal.Decimal, weights []int64) []decimal.Decimal {
	total := new(big.Int)
	for _, w := range weights {
		total.Add(total, big.NewInt(w))
	}
	units := whole.Shift(ratioDecimals).BigInt()
	left := new(big.Int).Set(units)
	parts, lost, order := make([]*big.Int, len(weights)), make([]*big.Int, len(weights)), make([]int, len(weights))
	for i, w := range weights {
		product := new(big.Int).Mul(units, big.NewInt(w))
		if total.Sign() < 0 {
			product.Neg(product)
		}
		parts[i], lost[i] = new(big.Int).DivMod(product, new(big.Int).Abs(total), new(big.Int))
		left.Sub(left, parts[i])
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(lost[j].Cmp(lost[i]), 0) })
	for _, i := range order[:left.Int64()] {
		parts[i].Add(parts[i], big.NewInt(1))
	}
	divided := make([]decimal.Decimal, len(parts))
	for i, p := range parts {
		divided[i] = decimal.NewFromBigInt(p, -ratioDecimals)
	}
	return divided
}
