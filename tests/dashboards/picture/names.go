// SPDX-License-Identifier: Apache-2.0

package picture

import (
	"regexp"

	"github.com/gpumeter/gpumeter/tests/dashboards/grafana"
)

var fieldReference = regexp.MustCompile(`\$\{__field\.(?:labels\.(\w+)|(\w+))\}`)

// displayed is a display name with the labels that it speaks of.
func displayed(format string, c grafana.Column) string {
	return fieldReference.ReplaceAllStringFunc(format, func(ref string) string {
		m := fieldReference.FindStringSubmatch(ref)
		if m[1] != "" {
			return c.Labels[m[1]]
		}
		return c.Title()
	})
}
