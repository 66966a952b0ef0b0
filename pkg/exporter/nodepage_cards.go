// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// nodeCard is a physical GPU with what it is divided into.
type nodeCard struct {
	UUID, Name, Model, PCI string
	// Facts are what else is to be known of it, in a few words each.
	Facts   []string
	Verdict nodeVerdict
	Sum     nodeSum
	Vitals  []nodeVital
	// Columns are its GPU instances and the gaps between them; one for a card that is not divided.
	Columns []nodeColumn
	// Grid is how many memory slices the columns are laid out on, 0 where their places are not known.
	Grid int
	MIG  bool
	// Rest are the parts of a divided card that no MIG device has.
	Rest []nodePart
}

// nodeVerdict is a verdict in words.
type nodeVerdict struct {
	// Class is for the style sheet: good, warn, bad, none.
	Class, Word, Reason string
	Since               *moment
}

// nodeVital is a value of a device; Level is how much of what it can be, in percent, -1 where that says nothing.
type nodeVital struct {
	Name, Value string
	Absent      bool
	Level       int
}

// nodeColumn is a GPU instance with its MIG devices, or a place where none is.
type nodeColumn struct {
	Start, Span int
	Vitals      []nodeVital
	Devices     []nodeDevice
}

// nodeDevice is a MIG device, or a whole card, as boxes.
type nodeDevice struct {
	UUID string
	// Short is its profile, Place where in its card it is.
	Short, Place string
	Verdict      nodeVerdict
	Boxes        []nodeBox
	More         int
	// Several says that the boxes are seats.
	Several bool
}

// nodeBox is one seat, or a whole device.
type nodeBox struct {
	State, Title, Note string
	// Tint is the colour of a namespace in the style sheet, empty for none.
	Tint string
}

func (p *nodePainter) card(d *gpu.Device) nodeCard {
	c := nodeCard{
		UUID: displayed(string(d.UUID)), Name: deviceName(d), Model: displayed(d.Model), PCI: displayed(d.PCIBusID),
		Verdict: p.verdict(d), Sum: p.sum(d),
	}
	if !p.listed(d.UUID) {
		c.Facts = append(c.Facts, "not listed any more")
	}
	if d.Lost {
		c.Facts = append(c.Facts, "lost: the driver cannot reach it")
	}
	if d.MIGEnabled {
		c.Facts = append(c.Facts, "MIG mode")
	}
	c.Vitals = p.cardVitals(d)
	migs := p.instances(d)
	if c.MIG = len(migs) > 0; !c.MIG {
		c.Columns = []nodeColumn{{Devices: []nodeDevice{p.device(d)}}}
		return c
	}
	c.Columns, c.Grid = p.columnsOf(d, migs)
	parts := make(map[sharing.Cause]sharing.Fraction)
	for _, u := range p.rest[d.UUID] {
		parts[u.Cause] = parts[u.Cause].Add(u.Part)
	}
	for _, cause := range sharing.Causes() {
		if part := parts[cause]; !part.IsZero() {
			c.Rest = append(c.Rest, nodePart{State: string(cause), Meaning: stateMeaning(string(cause)), Amount: amountOf(part)})
		}
	}
	return c
}

func (p *nodePainter) listed(u gpu.UUID) bool {
	return slices.ContainsFunc(p.s.Reading.Devices, func(d gpu.Device) bool { return d.UUID == u })
}

// instances are the MIG devices of a card, those of one GPU instance beside each other.
func (p *nodePainter) instances(card *gpu.Device) [][]*gpu.Device {
	var out [][]*gpu.Device
	for i := range p.n.all {
		d := &p.n.all[i]
		if d.Parent != card.UUID {
			continue
		}
		at := slices.IndexFunc(out, func(group []*gpu.Device) bool {
			return d.GPUInstance >= 0 && group[0].GPUInstance == d.GPUInstance
		})
		if at < 0 {
			out = append(out, []*gpu.Device{d})
			continue
		}
		out[at] = append(out[at], d)
	}
	slices.SortStableFunc(out, func(a, b []*gpu.Device) int {
		return cmp.Or(cmp.Compare(a[0].Placement.Start, b[0].Placement.Start), cmp.Compare(a[0].GPUInstance, b[0].GPUInstance))
	})
	return out
}

// mostSlices is how many memory slices the style sheet can lay out.
const mostSlices = 8

// columnsOf lays the GPU instances of a card out by their places in its memory, with the gaps between them, and
// says on how many slices; on 0 where the places are not known or cannot be.
func (p *nodePainter) columnsOf(card *gpu.Device, migs [][]*gpu.Device) ([]nodeColumn, int) {
	grid, next := card.Capacity.Memory, 0
	var placed, loose []nodeColumn
	for _, group := range migs {
		column := nodeColumn{Vitals: p.instanceVitals(group[0])}
		for _, d := range group {
			column.Devices = append(column.Devices, p.device(d))
		}
		loose = append(loose, column)
		at := group[0].Placement
		if grid > mostSlices || at.Size <= 0 || at.Start < next || at.Start+at.Size > grid {
			grid = 0
		}
		if at.Start > next && grid > 0 {
			placed = append(placed, nodeColumn{Start: next, Span: at.Start - next})
		}
		column.Start, column.Span, next = at.Start, at.Size, at.Start+at.Size
		placed = append(placed, column)
	}
	if grid == 0 {
		return loose, 0
	}
	if next < grid {
		placed = append(placed, nodeColumn{Start: next, Span: grid - next})
	}
	return placed, grid
}

func (p *nodePainter) verdict(d *gpu.Device) nodeVerdict {
	v := p.verdicts[d.UUID]
	switch {
	case v == nil && d.Lost:
		return nodeVerdict{Class: "bad", Word: "lost"}
	case v == nil:
		return nodeVerdict{Class: "none", Word: "not judged"}
	}
	return p.verdictOf(v)
}

func (p *nodePainter) verdictOf(v *health.Verdict) nodeVerdict {
	out := nodeVerdict{Class: "none", Word: v.Status.String(), Reason: displayed(v.Reason), Since: momentOf(v.Since, p.now)}
	switch {
	case v.Status == health.Unhealthy:
		out.Class = "bad"
	case v.Avoided():
		out.Class, out.Word = "warn", v.Status.String()+", avoided"
	case v.Status == health.Healthy:
		out.Class = "good"
	}
	return out
}

// device is a device as boxes.
func (p *nodePainter) device(d *gpu.Device) nodeDevice {
	out := nodeDevice{UUID: displayed(string(d.UUID)), Short: displayed(d.Profile.Name), Place: placeName(d), Verdict: p.verdict(d)}
	boxes := p.boxesOf(d)
	out.Several = len(boxes) > 1
	room := min(maxDeviceBoxes, p.boxes)
	if len(boxes) > room {
		out.More = len(boxes) - room
		boxes = boxes[:room]
	}
	p.boxes -= len(boxes)
	out.Boxes = boxes
	return out
}

// boxesOf are the seats of a device in their order, then what of it is nobody's seat.
func (p *nodePainter) boxesOf(d *gpu.Device) []nodeBox {
	var boxes []nodeBox
	seats := make(map[int]nodeBox)
	held, of := 0, p.s.Seats.Of(d.UUID)
	for _, s := range p.shares[d.UUID] {
		box := p.heldBox(&s.Holder)
		held, of = held+s.Seats, max(of, s.Of)
		if len(s.SeatIDs) == 0 {
			boxes = append(boxes, box)
		}
		note := box.Note
		for _, id := range s.SeatIDs {
			box.Note = note + " #" + strconv.Itoa(id)
			seats[id] = box
		}
	}
	for _, u := range p.rest[d.UUID] {
		if u.Cause != sharing.CauseUnrequested || u.Holder != (sharing.Holder{}) || of <= held {
			continue
		}
		for id, left := 0, min(of-held, maxDeviceBoxes+1); left > 0; id++ {
			if _, taken := seats[id]; !taken {
				seats[id] = nodeBox{State: string(u.Cause), Title: string(u.Cause), Note: "seat #" + strconv.Itoa(id)}
				left--
			}
		}
	}
	ids := make([]int, 0, len(seats))
	for id := range seats {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		boxes = append(boxes, seats[id])
	}
	return append(boxes, p.restBoxes(d, of > held)...)
}

// restBoxes are the parts of a device that are nobody's, or somebody's who is not charged for them. Those that a
// divided card keeps for itself are none of its boxes.
func (p *nodePainter) restBoxes(d *gpu.Device, seated bool) []nodeBox {
	var boxes []nodeBox
	for _, u := range p.rest[d.UUID] {
		part := amountOf(u.Part).Shown + " GPU"
		switch {
		case u.Holder != (sharing.Holder{}):
			box := p.heldBox(&u.Holder)
			box.State, box.Note = string(u.Cause), box.Note+" · "+part+", "+string(u.Cause)+", not charged"
			boxes = append(boxes, box)
		case u.Cause == sharing.CauseUnrequested && seated:
		default:
			boxes = append(boxes, nodeBox{State: string(u.Cause), Title: string(u.Cause), Note: part})
		}
	}
	return boxes
}

func (p *nodePainter) heldBox(h *sharing.Holder) nodeBox {
	return nodeBox{State: stateHeld, Title: displayed(cmp.Or(h.Pod, "(no name)")), Note: displayed(h.Namespace), Tint: p.tints[h.Namespace]}
}

// The fields that cards and GPU instances show.
const (
	columnMemoryTemp gpu.FieldID = 140
	columnTemp       gpu.FieldID = 150
	columnPower      gpu.FieldID = 155
	columnPowerLimit gpu.FieldID = 160
	columnUtil       gpu.FieldID = 203
	columnFBTotal    gpu.FieldID = 250
	columnFBFree     gpu.FieldID = 251
	columnFBUsed     gpu.FieldID = 252
	columnFBReserved gpu.FieldID = 253
	columnEngine     gpu.FieldID = 1001
)

// value is a field of an entity; false where it is not among the fields, or no quantity of the entity.
func (p *nodePainter) value(e gpu.Entity, id gpu.FieldID) (gpu.Value, bool) {
	column, asked := p.columns[id]
	sample := p.samples[e]
	if !asked || sample == nil || column >= len(sample.Values) {
		return gpu.Value{}, false
	}
	v := sample.Values[column]
	return v, v.Present() || v.Reason() != gpu.ReasonScope
}

// number is a field's value where there is one.
func (p *nodePainter) number(e gpu.Entity, id gpu.FieldID) (float64, bool) {
	v, _ := p.value(e, id)
	return v.AsFloat()
}

// vital adds a field to the list under a name, formatted by form; one that is absent says why.
func (p *nodePainter) vital(list []nodeVital, e gpu.Entity, id gpu.FieldID, name string, form func(float64) (string, int)) []nodeVital {
	v, asked := p.value(e, id)
	if !asked {
		return list
	}
	n, there := v.AsFloat()
	if !there {
		return append(list, nodeVital{Name: name, Value: "absent: " + lacking(v.Reason()), Absent: true, Level: -1})
	}
	text, level := form(n)
	return append(list, nodeVital{Name: name, Value: text, Level: min(level, 100)})
}

func (p *nodePainter) cardVitals(d *gpu.Device) []nodeVital {
	e := gpu.Entity{Kind: gpu.KindGPU, GPU: d.UUID}
	list := p.vital(nil, e, columnTemp, "Temperature", func(n float64) (string, int) {
		text := fmt.Sprintf("%.0f\u00a0°C", n)
		if memory, ok := p.number(e, columnMemoryTemp); ok {
			text += fmt.Sprintf(", memory %.0f\u00a0°C", memory)
		}
		return text, -1
	})
	list = p.vital(list, e, columnPower, "Power", func(n float64) (string, int) {
		if limit, ok := p.number(e, columnPowerLimit); ok && limit > 0 {
			return fmt.Sprintf("%.0f of %.0f\u00a0W", n, limit), int(100 * n / limit)
		}
		return fmt.Sprintf("%.0f\u00a0W", n), -1
	})
	list = p.vital(list, e, columnUtil, "Utilisation", func(n float64) (string, int) { return fmt.Sprintf("%.0f\u00a0%%", n), int(n) })
	list = p.usage(list, e)
	if !p.listed(d.UUID) {
		return list
	}
	if window, ok := p.s.RecentClocks[d.UUID]; ok {
		for bit, n := range window.Reasons {
			if word := clockReason(bit); word != "" && n > 0 {
				list = append(list, nodeVital{Name: "Clocks held back", Value: fmt.Sprintf("%s in %d of %d samples", word, n, window.Samples), Level: -1})
			}
		}
	}
	if p.s.Reading.Processes != nil && !d.Lost {
		list = append(list, nodeVital{Name: "Processes", Value: strconv.Itoa(p.processesOf(d.UUID)), Level: -1})
	}
	if sample := p.samples[e]; sample != nil && !sample.Time.IsZero() {
		if age := p.s.Reading.Time.Sub(sample.Time); age > 2*interval(p.s)+5*time.Second {
			list = append(list, nodeVital{Name: "Last values", Value: distance(age), Level: -1})
		}
	}
	return list
}

func (p *nodePainter) processesOf(card gpu.UUID) int {
	n := 0
	for key, count := range p.processes {
		if key.card == card {
			n += count
		}
	}
	return n
}

// usage are the quantities that a GPU instance has where there is one, and else its card.
func (p *nodePainter) usage(list []nodeVital, e gpu.Entity) []nodeVital {
	list = p.vital(list, e, columnEngine, "Engine active", func(n float64) (string, int) {
		return strconv.FormatFloat(100*n, 'f', 0, 64) + "\u00a0%", int(100 * n)
	})
	return p.vital(list, e, columnFBUsed, "Memory", func(used float64) (string, int) {
		total, ok := p.number(e, columnFBTotal)
		if free, known := p.number(e, columnFBFree); !ok && known {
			reserved, _ := p.number(e, columnFBReserved)
			total, ok = used+free+reserved, true
		}
		if !ok || total <= 0 {
			return gigabytes(used) + "\u00a0GiB", -1
		}
		return gigabytes(used) + " of " + gigabytes(total) + "\u00a0GiB", int(100 * used / total)
	})
}

// gigabytes are MiB as GiB with one decimal.
func gigabytes(mib float64) string { return strconv.FormatFloat(mib/1024, 'f', 1, 64) }

func (p *nodePainter) instanceVitals(d *gpu.Device) []nodeVital {
	return p.usage(nil, gpu.Entity{Kind: gpu.KindGPUInstance, GPU: d.Parent, ID: d.GPUInstance})
}
