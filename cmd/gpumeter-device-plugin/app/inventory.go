// SPDX-License-Identifier: Apache-2.0

package app

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/gpumeter/gpumeter/pkg/deviceplugin"
	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/healthstream"
)

// stock is what a node has, before the kernel was asked where it is.
type stock struct {
	devices []deviceplugin.Device
	links   []deviceplugin.Link
}

func (s stock) same(other stock) bool { return reflect.DeepEqual(s, other) }

// plain are the devices without what is known of them only here.
func (s stock) plain() []gpu.Device {
	out := make([]gpu.Device, len(s.devices))
	for i, d := range s.devices {
		out[i] = d.Device
	}
	return out
}

// String sums it up: "8 GPUs, 14 MIG devices".
func (s stock) String() string {
	var cards, parts int
	for _, d := range s.devices {
		if d.IsMIG() {
			parts++
		} else {
			cards++
		}
	}
	return fmt.Sprintf("%d GPUs, %d MIG devices", cards, parts)
}

// stockOfReading is what a reading of the node's own GPUs shows.
func stockOfReading(r gpu.Reading) stock {
	memory, capability := slices.Index(r.Fields, fieldMemoryMiB), slices.Index(r.Fields, fieldComputeCapability)
	value := func(s gpu.Sample, column int) (int64, bool) {
		if column < 0 || column >= len(s.Values) {
			return 0, false
		}
		return s.Values[column].AsInt()
	}
	bytes, capabilities := map[gpu.Entity]uint64{}, map[gpu.UUID]string{}
	for _, s := range r.Samples {
		if mib, ok := value(s, memory); ok && mib > 0 {
			bytes[entity(s.Entity.Kind, s.Entity.GPU, s.Entity.ID)] = uint64(mib) << 20
		}
		if v, ok := value(s, capability); ok && v > 0 {
			capabilities[s.Entity.GPU] = fmt.Sprintf("%d.%d", v>>16, v&0xffff)
		}
	}
	var out stock
	for _, d := range r.Devices {
		of := entity(gpu.KindGPU, d.UUID, 0)
		if d.IsMIG() {
			of = entity(gpu.KindGPUInstance, d.Parent, d.GPUInstance)
		}
		out.devices = append(out.devices, deviceplugin.Device{
			Device: d, NUMANode: -1, MemoryBytes: bytes[of], ComputeCapability: capabilities[d.Card()],
		})
	}
	for _, p := range r.Peers {
		out.link(p.From, p.To, p.NVLinks)
	}
	out.order()
	return out
}

func entity(kind gpu.Kind, card gpu.UUID, id int) gpu.Entity {
	return gpu.Entity{Kind: kind, GPU: card, ID: id}
}

// stockOfList is what a health stream tells of.
func stockOfList(l *healthstream.List) stock {
	var out stock
	for _, d := range l.Devices {
		out.devices = append(out.devices, deviceplugin.Device{
			Device: d.Device, NUMANode: -1, MemoryBytes: d.MemoryBytes, ComputeCapability: d.ComputeCapability,
		})
		for peer, links := range d.Peers {
			out.link(d.UUID, peer, links)
		}
	}
	out.order()
	return out
}

// withKept is s with those devices of before that it lacks and are to be kept, each in its old place.
func (s stock) withKept(before stock, keep func(gpu.UUID) bool) stock {
	there := map[gpu.UUID]bool{}
	for _, d := range s.devices {
		there[d.UUID] = true
	}
	out := stock{devices: slices.Clone(s.devices), links: slices.Clone(s.links)}
	at := 0
	for _, d := range before.devices {
		if i := slices.IndexFunc(out.devices, func(o deviceplugin.Device) bool { return o.UUID == d.UUID }); i >= 0 {
			at = i + 1
			continue
		}
		if keep(d.UUID) {
			out.devices = slices.Insert(out.devices, at, d)
			at++
		}
	}
	for _, l := range before.links {
		if has := func(id gpu.UUID) bool {
			return slices.ContainsFunc(out.devices, func(d deviceplugin.Device) bool { return d.UUID == id })
		}; has(l.A) && has(l.B) && !(there[l.A] && there[l.B]) {
			out.link(l.A, l.B, l.NVLinks)
		}
	}
	out.order()
	return out
}

// link adds a way between two GPUs, unless the other direction has added it.
func (s *stock) link(a, b gpu.UUID, links int) {
	if links < 1 || a == b {
		return
	}
	l := deviceplugin.Link{A: min(a, b), B: max(a, b), NVLinks: links}
	if !slices.ContainsFunc(s.links, func(o deviceplugin.Link) bool { return o.A == l.A && o.B == l.B }) {
		s.links = append(s.links, l)
	}
}

// order makes equal stocks the same ones.
func (s *stock) order() {
	slices.SortFunc(s.links, func(x, y deviceplugin.Link) int {
		if c := strings.Compare(string(x.A), string(y.A)); c != 0 {
			return c
		}
		return strings.Compare(string(x.B), string(y.B))
	})
}
