// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"math"

	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/encoding/protowire"
)

// The field numbers of io.prometheus.client that a page needs.
const (
	familyName   protowire.Number = 1
	familyHelp   protowire.Number = 2
	familyType   protowire.Number = 3
	familyMetric protowire.Number = 4

	metricLabel   protowire.Number = 1
	metricGauge   protowire.Number = 2
	metricCounter protowire.Number = 3
	metricUntyped protowire.Number = 5

	pairName  protowire.Number = 1
	pairValue protowire.Number = 2

	// valueNumber is the number in Gauge, Counter and Untyped alike.
	valueNumber protowire.Number = 1
)

// valueSize is what Metric holds beside its labels: a message of one double.
const valueSize = 1 + 1 + 1 + 8

var protoKinds = [...]struct {
	typ   dto.MetricType
	value protowire.Number
}{
	kindGauge:   {dto.MetricType_GAUGE, metricGauge},
	kindCounter: {dto.MetricType_COUNTER, metricCounter},
	kindUntyped: {dto.MetricType_UNTYPED, metricUntyped},
}

// appendProtobuf renders c as length-delimited MetricFamily messages.
func (c *content) appendProtobuf(b []byte) []byte {
	text, ends := c.labels.protobuf()
	set := func(id labelID) []byte {
		if id == 0 {
			return text[:ends[0]]
		}
		return text[ends[id-1]:ends[id]]
	}
	for i := range c.families {
		f := &c.families[i]
		samples := c.samples[f.first:f.end]
		size := stringSize(familyName, f.name) + stringSize(familyHelp, f.help) +
			protowire.SizeTag(familyType) + protowire.SizeVarint(uint64(protoKinds[f.kind].typ))
		for _, s := range samples {
			size += protowire.SizeTag(familyMetric) + protowire.SizeBytes(len(set(s.labels))+valueSize)
		}
		b = protowire.AppendVarint(b, uint64(size))
		b = appendString(b, familyName, f.name)
		b = appendString(b, familyHelp, f.help)
		b = protowire.AppendTag(b, familyType, protowire.VarintType)
		b = protowire.AppendVarint(b, uint64(protoKinds[f.kind].typ))
		for _, s := range samples {
			labels := set(s.labels)
			b = protowire.AppendTag(b, familyMetric, protowire.BytesType)
			b = protowire.AppendVarint(b, uint64(len(labels)+valueSize))
			b = append(b, labels...)
			b = protowire.AppendTag(b, protoKinds[f.kind].value, protowire.BytesType)
			b = protowire.AppendVarint(b, valueSize-2)
			b = protowire.AppendTag(b, valueNumber, protowire.Fixed64Type)
			b = protowire.AppendFixed64(b, math.Float64bits(s.float()))
		}
	}
	return b
}

// protobuf renders every label set as Metric has it; set i ends at ends[i].
func (t *labelTable) protobuf() (b []byte, ends []int) {
	b = make([]byte, 0, len(t.text)+4*len(t.pairs))
	ends = make([]int, len(t.sets))
	for i, set := range t.sets {
		for _, l := range t.pairs[set.firstPair:set.endPair] {
			size := stringSize(pairName, l.name) + stringSize(pairValue, l.value)
			b = protowire.AppendTag(b, metricLabel, protowire.BytesType)
			b = protowire.AppendVarint(b, uint64(size))
			b = appendString(b, pairName, l.name)
			b = appendString(b, pairValue, l.value)
		}
		ends[i] = len(b)
	}
	return b, ends
}

func appendString(b []byte, num protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, num, protowire.BytesType), s)
}

func stringSize(num protowire.Number, s string) int {
	if s == "" {
		return 0
	}
	return protowire.SizeTag(num) + protowire.SizeBytes(len(s))
}
