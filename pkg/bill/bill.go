// SPDX-License-Identifier: Apache-2.0

// Package bill makes a bill of what was consumed and what it costs: rows that add up to their total, to
// the last cent, with all that is behind each of them. It is arithmetic: no clock, no I/O.
package bill

import (
	"time"

	"github.com/shopspring/decimal"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/prices"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// Dimension is what rows are grouped by: one of the names below, or "label:app", "namespace-label:team",
// "node-label:pool" for a label of a pod, a namespace, a node.
type Dimension string

// The dimensions without an argument.
const (
	ByCluster   Dimension = "cluster"
	ByNode      Dimension = "node"
	ByNamespace Dimension = "namespace"
	ByPod       Dimension = "pod"
	ByWorkload  Dimension = "workload"
	ByTeam      Dimension = "team"
	ByResource  Dimension = "resource"
	ByMode      Dimension = "mode"
	ByModel     Dimension = "model"
	ByProfile   Dimension = "profile"
	// ByCostCenter is the cost center of the team.
	ByCostCenter Dimension = "cost-center"
	ByDay        Dimension = "day"
	ByHour       Dimension = "hour"
)

// The beginnings of dimensions that name a label.
const (
	labelPrefix          = "label:"
	namespaceLabelPrefix = "namespace-label:"
	nodeLabelPrefix      = "node-label:"
)

// RowKind is what a row is of.
type RowKind string

// The kinds of row.
const (
	// KindHeld: somebody held it and is charged.
	KindHeld RowKind = "held"
	// KindUnallocated: nobody is charged; Cause says why.
	KindUnallocated RowKind = "unallocated"
	// KindAdjustment: it belongs to an earlier period and came to be known late.
	KindAdjustment RowKind = "adjustment"
)

// Bill is one period's. It is immutable once made.
type Bill struct {
	// ID is made of all that the bill rests on: the same consumption, prices and options give the same.
	ID string
	// From and To are the period, end exclusive; Zone is the time zone of its days.
	From, To time.Time
	Zone     *time.Location
	GroupBy  []Dimension
	// Source is the Usage's.
	Source string
	// Currency is ISO 4217; empty for a bill without prices. Decimals are those of its amounts.
	Currency string
	Decimals int32
	// PriceVersion and PolicyVersion name the price book and the charging policy.
	PriceVersion, PolicyVersion string
	Idle                        prices.IdlePolicy

	// Rows are in the order they are shown: held by what they are grouped by, unallocated after them, adjustments last.
	Rows []Row
	// OfHolders says that only what some namespaces or pods held is shown: what nobody held, and others, are left out.
	OfHolders bool
	// Total is of all rows: their exact sum, as shown.
	Total Sums
	// Capacity is what there was in GPU-hours, to which all rows add up; zero where OfHolders or Options.Filtered.
	Capacity decimal.Decimal
	// Difference is by how many GPU-microseconds they do not, beyond what registers are rounded by: not zero only
	// where data contradict themselves. Unbalanced name where.
	Difference int64
	Unbalanced []string

	// Nodes are what the period rests on, node by node. Complete says that nothing is missing of any.
	Nodes    []Node
	Complete bool
	Notes    []string
	// Hours is what each GPU did by the hour, for a picture; empty unless asked for.
	Hours []CardHour
}

// Node is how complete one node's data are.
type Node struct {
	ledger.NodeUsage
	// Completeness is the percentage of the period, or of the node's own life within it, that is in the bill.
	Completeness decimal.Decimal
	GPUs         int
}

// Sums are the numbers of a row. Costs are zero without prices.
type Sums struct {
	// GPUHours have six decimals.
	GPUHours decimal.Decimal
	// UsedHours are what was measured to be busy of it, WastedHours the rest of what was held and measured.
	UsedHours, WastedHours decimal.Decimal
	// MemoryHours are in GiB-hours, Energy in kWh.
	MemoryHours, Energy decimal.Decimal
	// ListCost less discount is NetCost; IdleCost is the share of what nobody held, Adjustment what belongs to an
	// earlier period; TotalCost is NetCost + IdleCost + Adjustment.
	ListCost, Discount, NetCost, IdleCost, Adjustment, TotalCost decimal.Decimal
	// WastedCost is the part of NetCost that was held and not used: for looking at, in no sum.
	WastedCost decimal.Decimal
}

// Plus is both together.
func (s Sums) Plus(o Sums) Sums {
	return Sums{
		GPUHours: s.GPUHours.Add(o.GPUHours), UsedHours: s.UsedHours.Add(o.UsedHours), WastedHours: s.WastedHours.Add(o.WastedHours),
		MemoryHours: s.MemoryHours.Add(o.MemoryHours), Energy: s.Energy.Add(o.Energy), ListCost: s.ListCost.Add(o.ListCost),
		Discount: s.Discount.Add(o.Discount), NetCost: s.NetCost.Add(o.NetCost), IdleCost: s.IdleCost.Add(o.IdleCost),
		Adjustment: s.Adjustment.Add(o.Adjustment), TotalCost: s.TotalCost.Add(o.TotalCost), WastedCost: s.WastedCost.Add(o.WastedCost),
	}
}

// Row is one line of the bill.
type Row struct {
	// ID is stable: the same row of a period that begins at the same time has the same one, whatever else is asked for.
	ID   string
	Kind RowKind
	// Keys are the values of GroupBy, in its order; empty where there is none.
	Keys  []string
	Cause sharing.Cause
	Sums
	// UnitPrice is the list price of a GPU-hour where all of the row has the same.
	UnitPrice decimal.NullDecimal
	// Discounts name what was taken off.
	Discounts []string
	// Bases say what UsedHours rest on.
	Bases []ledger.Basis
	// Completeness is the lowest of its nodes, in percent.
	Completeness decimal.Decimal
	// Items are what it is made of, in an order that is always the same.
	Items []Item
}

// Item is one consumption at one price: of one series in one window on one node. What its row is rounded to is the
// row's affair; an Item is exact.
type Item struct {
	Kind RowKind
	// Node is an index into Bill.Nodes.
	Node       int
	Start, End time.Time
	ledger.Series
	Pod, PodUID, Container string
	WorkloadKind, Workload string
	Labels                 map[string]string
	// CardIndex is 0 where there is no Card.
	Card        gpu.UUID
	CardIndex   int
	GPUInstance int
	Cause       sharing.Cause
	ledger.Quantity
	Used  map[ledger.Basis]int64
	Price prices.Price
	// Free is what of GPU a quota gave for nothing, and Quotas the names of those.
	Free   int64
	Quotas []string
	// List and Net are the costs in the bill's currency, exact: fractions of a unit, not of a cent. Idle is what it
	// bears of what nobody held, or, below zero, what others bear of it.
	List, Net, Idle sharing.Fraction
	// Correction is set for an adjustment.
	Correction *ledger.Corrected
}

// CardHour is what one GPU did in one hour or part of one.
type CardHour struct {
	Node  int
	Card  gpu.UUID
	Index int
	Model string
	Start time.Time
	// Capacity and Held are in GPU-microseconds; Rest by cause.
	Capacity, Held int64
	Rest           map[sharing.Cause]int64
	// Known says that the hour is in the data.
	Known bool
}
