// SPDX-License-Identifier: Apache-2.0

package exporter

import "strings"

// appendOpenMetrics renders c in OpenMetrics 1.0.0.
//
// OpenMetrics wants the samples of a counter to end in _total. A family of DCGM's
// that does not is given as unknown under its own name, because Prometheus
// negotiates OpenMetrics first and a name that changes with the format would break
// every dashboard. So is a counter whose name without _total is another family's.
func (c *content) appendOpenMetrics(b []byte) []byte {
	taken := make(map[string]bool, len(c.families))
	for i := range c.families {
		taken[c.families[i].name] = true
	}
	for i := range c.families {
		f := &c.families[i]
		name, typ := f.name, openMetricsTypes[f.kind]
		if f.kind == kindCounter {
			base, ok := strings.CutSuffix(f.name, "_total")
			if ok && base != "" && !taken[base] {
				name = base
			} else {
				typ = openMetricsTypes[kindUntyped]
			}
		}
		b = appendHeader(b, name, f.help, typ, true)
		b = c.appendSamples(b, f)
	}
	return append(b, "# EOF\n"...)
}

var openMetricsTypes = [...]string{kindGauge: "gauge", kindCounter: "counter", kindUntyped: "unknown"}
