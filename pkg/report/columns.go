// SPDX-License-Identifier: Apache-2.0

package report

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shopspring/decimal"

	"github.com/gpumeter/gpumeter/pkg/bill"
	"github.com/gpumeter/gpumeter/pkg/ledger"
)

// value is one cell: text that somebody else chose, or a number or a word of ours.
type value struct {
	text    string
	foreign bool
}

func ours(text string) value    { return value{text: text} }
func foreign(text string) value { return value{text: text, foreign: true} }

// column is one column of a bill's rows. The totals row is a row without keys.
type column struct {
	// name is the CSV's, title people's.
	name, title string
	// number says that it is written to the right.
	number bool
	of     func(b *bill.Bill, r *bill.Row) value
}

// kindTotal is the totals row's.
const kindTotal bill.RowKind = "total"

// totalRow is the bill's total as a row.
func totalRow(b *bill.Bill) *bill.Row {
	r := bill.Row{ID: b.ID, Kind: kindTotal, Keys: make([]string, len(b.GroupBy)), Sums: b.Total, Completeness: completeness(b)}
	for i := range b.Rows {
		for _, basis := range b.Rows[i].Bases {
			if !slices.Contains(r.Bases, basis) {
				r.Bases = append(r.Bases, basis)
			}
		}
	}
	slices.Sort(r.Bases)
	return &r
}

// completeness is the lowest of the nodes.
func completeness(b *bill.Bill) decimal.Decimal {
	lowest := decimal.NewFromInt(100)
	for i := range b.Nodes {
		lowest = decimal.Min(lowest, b.Nodes[i].Completeness)
	}
	return lowest
}

func priced(b *bill.Bill) bool { return b.Currency != "" }

// measured says whether anything is known of how much was used.
func measured(r *bill.Row) bool { return len(r.Bases) > 0 }

// money is an amount with the bill's decimals; nothing without prices.
func money(b *bill.Bill, amount decimal.Decimal) value {
	if !priced(b) {
		return value{}
	}
	return ours(amount.StringFixed(b.Decimals))
}

func cost(name, title string, of func(*bill.Row) decimal.Decimal) column {
	return column{name: name, title: title, number: true, of: func(b *bill.Bill, r *bill.Row) value { return money(b, of(r)) }}
}

func quantity(name, title string, decimals int32, known func(*bill.Row) bool, of func(*bill.Row) decimal.Decimal) column {
	return column{name: name, title: title, number: true, of: func(_ *bill.Bill, r *bill.Row) value {
		if !known(r) {
			return value{}
		}
		return ours(of(r).StringFixed(decimals))
	}}
}

func always(*bill.Row) bool { return true }

// keyColumns are what the rows are grouped by.
func keyColumns(b *bill.Bill) []column {
	columns := make([]column, 0, len(b.GroupBy))
	taken := make(map[string]bool)
	for i, dimension := range b.GroupBy {
		name := snake(string(dimension))
		for base, n := name, 2; taken[name]; n++ {
			name = base + "_" + strconv.Itoa(n)
		}
		taken[name] = true
		columns = append(columns, column{name: name, title: string(dimension), of: func(_ *bill.Bill, r *bill.Row) value {
			if i >= len(r.Keys) {
				return value{}
			}
			return foreign(r.Keys[i])
		}})
	}
	return columns
}

// snake is a dimension as the name of a column: "label:app.kubernetes.io/name" is "label_app_kubernetes_io_name".
func snake(dimension string) string {
	return strings.Trim(strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '_'
	}, dimension), "_")
}

func stamp(t time.Time, zone *time.Location) value { return ours(t.In(zone).Format(time.RFC3339)) }

// The columns of a row that several outputs share.
func hoursColumn() column {
	return quantity("billed_gpu_hours", "GPU-hours", 6, always, func(r *bill.Row) decimal.Decimal { return r.GPUHours })
}

func usedColumn(decimals int32) column {
	return quantity("used_gpu_hours", "used", decimals, measured, func(r *bill.Row) decimal.Decimal { return r.UsedHours })
}

func wastedColumn(decimals int32) column {
	return quantity("wasted_gpu_hours", "wasted", decimals, measured, func(r *bill.Row) decimal.Decimal { return r.WastedHours })
}

func priceColumn() column {
	return column{name: "unit_price", title: "price/h", number: true, of: func(_ *bill.Bill, r *bill.Row) value {
		if !r.UnitPrice.Valid {
			return value{}
		}
		return ours(r.UnitPrice.Decimal.String())
	}}
}

// alignedPriceColumn is it for people: all with the decimals of the one that has most.
func alignedPriceColumn(b *bill.Bill) column {
	decimals := int32(0)
	for i := range b.Rows {
		if p := b.Rows[i].UnitPrice; p.Valid {
			decimals = max(decimals, -p.Decimal.Exponent())
		}
	}
	c := priceColumn()
	c.of = func(_ *bill.Bill, r *bill.Row) value {
		if !r.UnitPrice.Valid {
			return value{}
		}
		return ours(r.UnitPrice.Decimal.StringFixed(decimals))
	}
	return c
}

// namedColumns are the key columns for people, who see that a holder has no name there.
func namedColumns(b *bill.Bill) []column {
	columns := keyColumns(b)
	for i := range columns {
		of := columns[i].of
		columns[i].of = func(b *bill.Bill, r *bill.Row) value {
			if v := of(b, r); v.text != "" || r.Kind != bill.KindHeld && (r.Kind != bill.KindAdjustment || r.Cause != "") {
				return v
			}
			return ours(orNone(""))
		}
	}
	return columns
}

func discountColumn() column {
	return column{name: "discount_percent", title: "disc. %", number: true, of: func(b *bill.Bill, r *bill.Row) value {
		if !priced(b) || r.ListCost.IsZero() {
			return value{}
		}
		if said, one := oneDiscount(r); one {
			return ours(said.String())
		}
		return ours(r.Discount.Mul(decimal.NewFromInt(100)).DivRound(r.ListCost, 4).String())
	}}
}

// oneDiscount is the discount that all of a row has: amounts that were rounded would come to another.
func oneDiscount(r *bill.Row) (said decimal.Decimal, one bool) {
	for i := range r.Items {
		item := &r.Items[i]
		if item.Free != 0 || i > 0 && !item.Price.Discount.Equal(said) {
			return decimal.Decimal{}, false
		}
		said = item.Price.Discount
	}
	return said, len(r.Items) > 0
}

func completeColumn() column {
	return column{name: "completeness_percent", title: "complete %", number: true, of: func(_ *bill.Bill, r *bill.Row) value {
		return ours(r.Completeness.String())
	}}
}

func wasteCostColumn() column {
	return column{name: "wasted_cost", title: "waste cost", number: true, of: func(b *bill.Bill, r *bill.Row) value {
		if !measured(r) {
			return value{}
		}
		return money(b, r.WastedCost)
	}}
}

// costColumns are the sums of money.
func costColumns() []column {
	return []column{
		cost("list_cost", "list", func(r *bill.Row) decimal.Decimal { return r.ListCost }),
		cost("discount_cost", "discount", func(r *bill.Row) decimal.Decimal { return r.Discount }),
		cost("net_cost", "net", func(r *bill.Row) decimal.Decimal { return r.NetCost }),
		cost("idle_share_cost", "idle share", func(r *bill.Row) decimal.Decimal { return r.IdleCost }),
		cost("adjustment_cost", "adjustment", func(r *bill.Row) decimal.Decimal { return r.Adjustment }),
		cost("total_cost", "total", func(r *bill.Row) decimal.Decimal { return r.TotalCost }),
	}
}

func memoryColumn(decimals int32) column {
	return quantity("memory_gib_hours", "GiB-hours", decimals, always, func(r *bill.Row) decimal.Decimal { return r.MemoryHours })
}

func energyColumn(decimals int32) column {
	return quantity("energy_kwh", "kWh", decimals, always, func(r *bill.Row) decimal.Decimal { return r.Energy })
}

func basisColumn() column {
	return column{name: "used_basis", title: "measured by", of: func(_ *bill.Bill, r *bill.Row) value {
		return ours(joinBases(r.Bases))
	}}
}

func joinBases(bases []ledger.Basis) string {
	words := make([]string, len(bases))
	for i, basis := range bases {
		words[i] = string(basis)
	}
	return strings.Join(words, " ")
}

func hoursOf(r *bill.Row) decimal.Decimal { return r.GPUHours }

func usedPercentColumn() column {
	return column{name: "used_percent", title: "used %", number: true, of: func(_ *bill.Bill, r *bill.Row) value {
		text, ok := percent(r.UsedHours, r.UsedHours.Add(r.WastedHours))
		if !ok || !measured(r) {
			return value{}
		}
		return ours(strings.TrimSuffix(text, " %"))
	}}
}
