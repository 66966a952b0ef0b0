// SPDX-License-Identifier: Apache-2.0

// Package report shows a bill to people and to programs: as a table, CSV, JSON, HTML and FOCUS. Whatever the names
// in a bill are, they are text there and nothing else. It is arithmetic and writing: no clock, no other I/O.
//
// All functions only read the bill and are safe for concurrent use; an error is the writer's, or says why a bill
// cannot be shown so.
package report

// View is which columns people see.
type View int

// The views.
const (
	// Finance is what is charged: quantities, prices, costs.
	Finance View = iota
	// Platform is what was done with what is charged: used, wasted, memory, energy.
	Platform
)

// Options are how a bill is shown. The zero value shows it to finance.
type Options struct {
	View View
	// Width is the number of columns of the terminal; 0 where there is none, and no name is folded.
	Width int
	// Totals adds a totals row to the CSV.
	Totals bool
	// Items adds to the JSON what each row is made of.
	Items bool
	// Generator is what made the report, for its foot: "gpumeter 1.2.3".
	Generator string
}
