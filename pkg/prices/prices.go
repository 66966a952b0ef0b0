// SPDX-License-Identifier: Apache-2.0

// Package prices is the dated price book: what an hour of which GPU costs from when to when, what is taken off or
// put on for whom, and who pays for what nobody used. It reads no file; a Book is immutable and safe for
// concurrent use.
package prices

import (
	"time"

	"github.com/shopspring/decimal"
)

// Subject is what is to be priced: one consumption, within a time in which no price changes.
type Subject struct {
	Model, Resource, Profile string
	// Mode is sharing.Mode as a word; empty for what nobody held.
	Mode string
	// Namespace is empty for what nobody held.
	Namespace string
	// NamespaceLabels, NodeLabels are nil where they are not known. What is known to have none has an empty map.
	NamespaceLabels, NodeLabels map[string]string
	Node, Cluster               string
	At                          time.Time
}

// Price is what a Subject costs.
type Price struct {
	// Hour is the list price of one GPU-hour: the whole physical GPU's, of which a slice is charged its part.
	Hour decimal.Decimal
	// Discount is what is taken off in percent, all discounts in their order together, and Sources their names.
	// A multiplier above 1 is a negative discount.
	Discount decimal.Decimal
	Sources  []string
	// Entry names the entry of the book, Version the book's.
	Entry, Version string
}

// IdlePolicy is who pays for what of a GPU nobody held.
type IdlePolicy string

// The policies.
const (
	// IdlePlatform: the platform; rows of their own.
	IdlePlatform IdlePolicy = "platform"
	// IdleSpread: those who held, in proportion to their cost, within a calendar month, cluster and model.
	IdleSpread IdlePolicy = "spread"
	// IdleSoleTenant: the one namespace that held replicas of a shared GPU on a day pays for its unrequested ones; the
	// rest is the platform's.
	IdleSoleTenant IdlePolicy = "sole-tenant"
)

// Stacking is how several discounts come together.
type Stacking string

// The ways of stacking.
const (
	// StackCompound: each discount is taken off what the ones before it left.
	StackCompound Stacking = "compound"
	// StackAdd: the percentages are added, and taken off the list price.
	StackAdd Stacking = "add"
)

// Period is a calendar period, in the time zone of the bill.
type Period string

// The periods.
const (
	PerMonth Period = "month"
	PerDay   Period = "day"
)
