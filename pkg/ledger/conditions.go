// SPDX-License-Identifier: Apache-2.0

// Package ledger keeps on disk what a node's meter must still know after a restart. So far that is
// the conditions of its devices and who its devices are, small files that are replaced as a whole; the
// book of charges, an append-only log, comes later and will stand beside them.
package ledger

import (
	"github.com/gpumeter/gpumeter/pkg/health"
)

// conditionsWord begins a file of conditions.
const conditionsWord = "gpumeter-conditions"

// Conditions is the file with what is known of a node's health. It is safe for concurrent use; Saves
// wait for each other.
type Conditions struct{ doc document[health.State] }

// OpenConditions opens dir/name, makes dir where it is missing, and reads what was saved last; the
// zero State where nothing was. It always gives a Conditions to save to: the errors are for the log,
// and say what is wrong and what that costs.
//
// A file that is torn, changed or written by a newer version is put aside under its own name with
// ".corrupt-" or ".newer-" and the time, and is never deleted. What was saved before the last time is kept
// under its name with ".previous", and used where the file itself is damaged or gone. Only one process at a time writes the
// file; a second one reads it, and its Saves fail until the first is gone.
func OpenConditions(dir, name string) (*Conditions, health.State, []error) {
	c := &Conditions{document[health.State]{
		word: conditionsWord, what: "conditions", file: file{dir: dir, name: name},
		loss: "what it knew of broken GPUs is not known until it is seen again",
	}}
	state, errs := c.doc.open()
	return c, state, errs
}

// Restored is what OpenConditions found.
func (c *Conditions) Restored() Restored { return c.doc.found }

// Save replaces what is saved by s. After it returned nil, s is what is read after a crash of the
// process or the machine; after an error, or a crash within it, either s or what was there before. It
// writes to a disk and may take as long as that does.
func (c *Conditions) Save(s health.State) error { return c.doc.save(s) }

// Close lets another process write the file. A later Save claims it again.
func (c *Conditions) Close() error { return c.doc.close() }
