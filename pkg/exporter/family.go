// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"math"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// ownPrefix begins the names of the families that are gpumeter's own.
const ownPrefix = "gpumeter_"

// kind is how a family behaves, in the terms all three formats share.
type kind uint8

const (
	kindGauge kind = iota
	kindCounter
	kindUntyped
)

// family is all series of one name. Its samples are content.samples[first:end].
type family struct {
	name, help string
	kind       kind
	first, end int
}

// sample is one series' value. Whole numbers stay whole: a byte counter beyond 2^53
// keeps its last digit in the text formats.
type sample struct {
	labels  labelID
	isFloat bool
	bits    uint64
}

func integer(labels labelID, v int64) sample { return sample{labels: labels, bits: uint64(v)} }

func decimal(labels labelID, v float64) sample {
	return sample{labels: labels, isFloat: true, bits: math.Float64bits(v)}
}

func (s sample) float() float64 {
	if s.isFloat {
		return math.Float64frombits(s.bits)
	}
	return float64(int64(s.bits))
}

// The reasons a series is not shown, as the values of gpumeter_dropped_series.
const (
	dropDuplicate     = "duplicate"
	dropInvalidLabels = "invalid_labels"
	dropInvalidName   = "invalid_name"
	dropUnknownDevice = "unknown_device"
)

// content is a page before it has a format: families in the order they are shown.
type content struct {
	families []family
	samples  []sample
	labels   labelTable
}

// builder fills a content, and is the one place that refuses what would make a page
// invalid.
type builder struct {
	content
	// seen has, by label set, the ordinal of the family that had it last.
	seen    []int
	names   map[string]bool
	open    bool
	drop    string
	dropped map[string]int
	scratch []label
}

// extent is how large a page's content is.
type extent struct{ families, samples, sets, pairs, text int }

func (c *content) extent() extent {
	return extent{len(c.families), len(c.samples), len(c.labels.sets), len(c.labels.pairs), len(c.labels.text)}
}

// newBuilder has room for content of the given extent; any other fits as well.
func newBuilder(e extent) *builder {
	b := &builder{
		seen:    make([]int, 0, roomy(e.sets)),
		names:   make(map[string]bool, e.families),
		dropped: make(map[string]int),
	}
	b.families = make([]family, 0, roomy(e.families))
	b.samples = make([]sample, 0, roomy(e.samples))
	b.labels = labelTable{
		ids:   make(map[string]labelID, e.sets),
		sets:  make([]labelSet, 0, roomy(e.sets)),
		pairs: make([]label, 0, roomy(e.pairs)),
		text:  make([]byte, 0, roomy(e.text)),
	}
	return b
}

// roomy is a capacity for something that was n large a moment ago.
func roomy(n int) int { return n + n/16 + 64 }

// begin opens a family. Samples added until the next begin are its own; where the
// name is taken, invalid or not the caller's to use, they are dropped and counted.
func (b *builder) begin(name, help string, k kind) {
	b.end()
	b.drop = ""
	switch {
	case !validMetricName(name):
		b.drop = dropInvalidName
	case b.names[name]:
		b.drop = dropDuplicate
	default:
		b.names[name] = true
	}
	b.open = true
	b.families = append(b.families, family{
		name: name, help: strings.TrimSpace(clean(help)), kind: k, first: len(b.samples),
	})
}

// beginForeign opens a family whose name the operator chose.
func (b *builder) beginForeign(name, help string, k kind) {
	b.begin(name, help, k)
	if b.drop == "" && strings.HasPrefix(name, ownPrefix) {
		delete(b.names, name)
		b.drop = dropInvalidName
	}
}

// end closes the open family; one without samples is not shown.
func (b *builder) end() {
	if !b.open {
		return
	}
	b.open = false
	last := &b.families[len(b.families)-1]
	last.end = len(b.samples)
	if last.first == last.end {
		b.families = b.families[:len(b.families)-1]
	}
}

// add puts a sample into the open family unless it cannot be shown.
func (b *builder) add(s sample) {
	switch {
	case b.drop != "":
		b.dropped[b.drop]++
		return
	case s.labels == noLabels:
		b.dropped[dropInvalidLabels]++
		return
	case s.labels == noDevice:
		b.dropped[dropUnknownDevice]++
		return
	}
	for len(b.seen) <= int(s.labels) {
		b.seen = append(b.seen, 0)
	}
	// Families without samples are taken back, so the number of families repeats;
	// where the samples begin does not.
	mark := b.families[len(b.families)-1].first + 1
	if b.seen[s.labels] == mark {
		b.dropped[dropDuplicate]++
		return
	}
	b.seen[s.labels] = mark
	b.samples = append(b.samples, s)
}

// set interns labels given as alternating names and values.
func (b *builder) set(namesAndValues ...string) labelID {
	b.scratch = b.scratch[:0]
	for i := 0; i+1 < len(namesAndValues); i += 2 {
		b.scratch = append(b.scratch, label{namesAndValues[i], namesAndValues[i+1]})
	}
	return b.labels.intern(b.scratch)
}

// count adds a whole number.
func (b *builder) count(labels labelID, n int64) { b.add(integer(labels, n)) }

// number adds a real number. Infinities and NaN are no quantity of anything, so
// they are left out.
func (b *builder) number(labels labelID, v float64) {
	if !math.IsNaN(v) && !math.IsInf(v, 0) {
		b.add(decimal(labels, v))
	}
}

// instant adds a moment as Unix seconds, unless it is the zero time.
func (b *builder) instant(labels labelID, t time.Time) {
	if !t.IsZero() {
		b.number(labels, float64(t.UnixMilli())/1e3)
	}
}

// reading adds a value read from a device, where it is a number.
func (b *builder) reading(labels labelID, v gpu.Value) {
	if n, ok := v.AsInt(); ok {
		b.count(labels, n)
	} else if f, ok := v.AsFloat(); ok {
		b.number(labels, f)
	}
}
