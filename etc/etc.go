// SPDX-License-Identifier: Apache-2.0

// Package etc has the counter files and the table of XIDs that gpumeter ships, as they
// were built in.
package etc

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

//go:embed *.csv
var files embed.FS

//go:embed default-counters.csv
var defaultCounters string

//go:embed xid.yaml
var xids string

// XIDs is the text of xid.yaml, which says what the driver's error codes mean, the
// caller's own copy.
func XIDs() []byte { return []byte(xids) }

// DefaultCounters is the text of default-counters.csv, the caller's own copy.
func DefaultCounters() []byte { return []byte(defaultCounters) }

// ReadFile is the text of the shipped counter file with this name, the caller's own copy.
// For a name that is not shipped the error wraps fs.ErrNotExist and lists those
// that are. Safe for concurrent use.
func ReadFile(name string) ([]byte, error) {
	data, err := files.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read shipped counter file %q: %w; shipped are %s", name, fs.ErrNotExist, strings.Join(Names(), ", "))
	}
	if err != nil {
		return nil, fmt.Errorf("read shipped counter file %q: %w", name, err)
	}
	return data, nil
}

// Names are the names of the shipped counter files, ascending.
func Names() []string {
	names, err := fs.Glob(files, "*.csv")
	if err != nil {
		return nil
	}
	slices.Sort(names)
	return names
}
