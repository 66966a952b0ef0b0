// SPDX-License-Identifier: Apache-2.0

// Package health says what a fault of a GPU means for those who use it. It is pure: no
// I/O, no clock, no state but what its callers hold.
package health

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Class is what an XID asks of whoever runs the node. The driver's own recovery action
// (XID 154), where there is one, overrides it in both directions.
type Class uint8

// The classes. The zero Class is none.
const (
	// ClassApp: the program on the GPU did wrong and ends; the GPU is fine.
	ClassApp Class = iota + 1
	// ClassInfo: nothing to do.
	ClassInfo
	// ClassWatch: nothing to do yet; repeated, or beside other signs, it means more.
	ClassWatch
	// ClassContained: a memory error that ended its victim and left the GPU usable.
	ClassContained
	// ClassReset: drain and reset the GPU.
	ClassReset
	// ClassNode: restart the machine, or the virtual machine.
	ClassNode
	// ClassHardware: somebody has to look at the card or its cables.
	ClassHardware
)

// Classes are all classes, in the order of their numbers.
func Classes() []Class {
	return []Class{ClassApp, ClassInfo, ClassWatch, ClassContained, ClassReset, ClassNode, ClassHardware}
}

// String is the class as a label value, "none" for what is not a class.
func (c Class) String() string {
	switch c {
	case ClassApp:
		return "app"
	case ClassInfo:
		return "info"
	case ClassWatch:
		return "watch"
	case ClassContained:
		return "contained"
	case ClassReset:
		return "reset"
	case ClassNode:
		return "node"
	case ClassHardware:
		return "hardware"
	default:
		return "none"
	}
}

// ParseClass is the class with this name. The error names those that there are.
func ParseClass(word string) (Class, error) {
	var names []string
	for _, c := range Classes() {
		if c.String() == word {
			return c, nil
		}
		names = append(names, c.String())
	}
	return 0, fmt.Errorf("unknown class %q (known: %s)", word, strings.Join(names, ", "))
}

// MaxXID is the highest code that a table takes; the driver's have three digits.
const MaxXID = 999

// XID is what is known of one of the driver's error codes.
type XID struct {
	// Code is the driver's number, 1 to MaxXID.
	Code int
	// Name is what happened, in a few words.
	Name  string
	Class Class
	// Source is who says so.
	Source string
	// Alert says that the code by itself is worth waking somebody for.
	Alert bool
	// Repeat raises the class of a code that comes again and again; zero for none.
	Repeat Repeat
}

// Validate says what is wrong with x, if anything is.
func (x XID) Validate() error {
	switch {
	case x.Code < 1 || x.Code > MaxXID:
		return fmt.Errorf("XID %d is out of range (write 1 to %d)", x.Code, MaxXID)
	case x.Name == "":
		return fmt.Errorf("XID %d has no name (say in a few words what happened)", x.Code)
	case !slices.Contains(Classes(), x.Class):
		return fmt.Errorf("XID %d has no class (give one of %v)", x.Code, Classes())
	}
	if err := x.Repeat.Validate(); err != nil {
		return fmt.Errorf("XID %d: %w", x.Code, err)
	}
	if !x.Repeat.IsZero() && (x.Class < ClassWatch || x.Repeat.Class <= x.Class) {
		return fmt.Errorf("XID %d of class %v cannot rise to %v by repeats (give a class from watch on and a higher one)", x.Code, x.Class, x.Repeat.Class)
	}
	return nil
}

// XIDTable is what is known of the driver's error codes. It is immutable, and safe for
// concurrent use. A nil table knows none.
type XIDTable struct {
	byCode  map[int]XID
	alerted []XID
}

// NewXIDTable makes a table. The error says of every row that is not valid, or is the
// second one of its code, what is wrong.
func NewXIDTable(xids []XID) (*XIDTable, error) {
	t := &XIDTable{byCode: make(map[int]XID, len(xids))}
	var errs []error
	for _, x := range xids {
		first, twice := t.byCode[x.Code]
		if err := x.Validate(); err != nil {
			errs = append(errs, err)
		} else if twice {
			errs = append(errs, fmt.Errorf("XID %d is there twice, as %q and %q (keep one)", x.Code, first.Name, x.Name))
		} else if t.byCode[x.Code] = x; x.Alert {
			t.alerted = append(t.alerted, x)
		}
	}
	if len(errs) > 0 {
		return nil, fmt.Errorf("XID table: %w", errors.Join(errs...))
	}
	slices.SortFunc(t.alerted, func(a, b XID) int { return a.Code - b.Code })
	return t, nil
}

// With is the table with these rows in place of its own of the same codes, or beside them.
// The error is NewXIDTable's. t is not modified, and may be nil.
func (t *XIDTable) With(rows []XID) (*XIDTable, error) {
	over, err := NewXIDTable(rows)
	if err != nil || t == nil {
		return over, err
	}
	all := slices.Clone(rows)
	for code, x := range t.byCode {
		if _, replaced := over.byCode[code]; !replaced {
			all = append(all, x)
		}
	}
	return NewXIDTable(all)
}

// Lookup is what is known of a code. A code that is not in the table is one to watch,
// under the name "unknown".
func (t *XIDTable) Lookup(code int) XID {
	if t != nil {
		if x, ok := t.byCode[code]; ok {
			return x
		}
	}
	return XID{Code: code, Name: "unknown", Class: ClassWatch}
}

// Alerted are the codes that an operator alerts on, ascending; the slice is the caller's own.
func (t *XIDTable) Alerted() []XID {
	if t == nil {
		return nil
	}
	return slices.Clone(t.alerted)
}
