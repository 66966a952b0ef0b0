// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// inventoryWord begins a file of an inventory.
const inventoryWord = "gpumeter-inventory"

// Inventory is the file with a node's devices and their replicas. It is safe for concurrent use; Saves
// wait for each other.
type Inventory struct{ doc document[sharing.Inventory] }

// OpenInventory opens dir/name as OpenConditions does, and with the same guards.
func OpenInventory(dir, name string) (*Inventory, sharing.Inventory, []error) {
	v := &Inventory{document[sharing.Inventory]{
		word: inventoryWord, what: "devices and their replicas", file: file{dir: dir, name: name},
		loss: "into how many replicas a GPU is divided is not known until its device plugin is heard",
	}}
	value, errs := v.doc.open()
	return v, value, errs
}

// Save replaces what is saved by v, with the promises of Conditions.Save.
func (v *Inventory) Save(value sharing.Inventory) error { return v.doc.save(value) }

// Close lets another process write the file. A later Save claims it again.
func (v *Inventory) Close() error { return v.doc.close() }
