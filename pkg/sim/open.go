// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// Open is the shipped scenario of that name or else the one in that file. A word that
// is neither is an error that lists the shipped names.
func Open(nameOrFile string) (*Scenario, error) {
	if nameOrFile == "" {
		return nil, fmt.Errorf("no scenario: give one of %s, or a file", strings.Join(Shipped(), ", "))
	}
	if slices.Contains(Shipped(), nameOrFile) {
		return LoadShipped(nameOrFile)
	}
	if strings.ContainsRune(nameOrFile, filepath.Separator) || filepath.Ext(nameOrFile) != "" {
		return Load(nameOrFile)
	}
	return nil, fmt.Errorf("no scenario %q ships with gpumeter: give one of %s, or a file such as ./%s.yaml",
		nameOrFile, strings.Join(Shipped(), ", "), nameOrFile)
}
