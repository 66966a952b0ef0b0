// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"math"
	"strconv"
)

// appendText renders c in Prometheus' text format 0.0.4.
func (c *content) appendText(b []byte) []byte {
	for i := range c.families {
		f := &c.families[i]
		b = appendHeader(b, f.name, f.help, textTypes[f.kind], false)
		b = c.appendSamples(b, f)
	}
	return b
}

var textTypes = [...]string{kindGauge: "gauge", kindCounter: "counter", kindUntyped: "untyped"}

// appendHeader renders what stands before a family's samples. A family without help
// has no HELP line: Prometheus' lexer wants text there.
func appendHeader(b []byte, name, help, typ string, quotes bool) []byte {
	if help != "" {
		b = append(b, "# HELP "...)
		b = append(b, name...)
		b = append(b, ' ')
		b = appendEscaped(b, help, quotes)
		b = append(b, '\n')
	}
	b = append(b, "# TYPE "...)
	b = append(b, name...)
	b = append(b, ' ')
	b = append(b, typ...)
	return append(b, '\n')
}

// appendSamples renders a family's series, which look the same in both text formats.
func (c *content) appendSamples(b []byte, f *family) []byte {
	for _, s := range c.samples[f.first:f.end] {
		set := &c.labels.sets[s.labels]
		b = append(b, f.name...)
		b = append(b, c.labels.text[set.firstByte:set.endByte]...)
		b = append(b, ' ')
		b = appendNumber(b, s)
		b = append(b, '\n')
	}
	return b
}

// appendNumber renders whole numbers whole and real numbers by the shortest digits
// that read back as the same number, with an exponent only where zeros would crowd.
func appendNumber(b []byte, s sample) []byte {
	if !s.isFloat {
		return strconv.AppendInt(b, int64(s.bits), 10)
	}
	v := s.float()
	if a := math.Abs(v); a != 0 && (a < 1e-6 || a >= 1e15) {
		return strconv.AppendFloat(b, v, 'g', -1, 64)
	}
	return strconv.AppendFloat(b, v, 'f', -1, 64)
}
