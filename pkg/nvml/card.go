// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// card is the GPU at one of NVML's indices. It belongs to its lane: nothing else touches it.
type card struct {
	lib   *library
	log   *slog.Logger
	lane  *lane
	index int
	queue *eventQueue

	// handle is of this reading; it goes stale when the GPU is reset or bound anew.
	handle nvml.Device
	// device and parts are as last known; the device has no UUID where it never answered.
	device gpu.Device
	parts  []part

	// memory is the whole card's in bytes, mostInstances the MIG devices it can have.
	memory        uint64
	mostInstances int
	profiles      []profile
	profilesKnown bool

	// lost and gone are what calls of this reading said of the GPU and of the driver.
	lost bool
	gone nvml.Return

	// lossRaised says that the alarm was raised because it is lost.
	lossRaised bool

	// remembered are the answers of static queries.
	remembered map[gpu.FieldID]gpu.Value
	batch      []nvml.FieldValue
	traffic    map[meterOf]traffic
	// links is the number of NVLinks, -1 while it is not known.
	links int
	// linkStates are those of the links that are read, by their numbers, and linkStatesRet what became
	// of the call for them.
	linkStates    []nvml.FieldValue
	linkStatesRet nvml.Return

	// readings counts them, so that what was not seen in one can be told.
	readings   uint64
	monitors   map[int]*monitor
	gpmKnown   bool
	gpmLacks   gpu.Reason
	gpmRefused map[nvml.GpmMetricId]bool
	gpmRequest *nvml.GpmMetricsGetType

	events eventSource
	// utilSince is the time of the last sample of processes' utilisation, NVML's.
	utilSince uint64
	// complained is what panicked and was logged.
	complained map[string]bool
}

func newCard(s *Source, index int) *card {
	c := &card{lib: s.lib, log: s.log, index: index, queue: s.queue, complained: make(map[string]bool)}
	c.become("")
	c.lane = newLane(fmt.Sprintf("GPU %d", index), s.log, s.ended, c.attend)
	return c
}

// become makes the card another GPU, of which nothing is known yet.
func (c *card) become(uuid gpu.UUID) {
	c.forget()
	c.device = gpu.Device{
		UUID: uuid, Index: c.index, Minor: -1,
		GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance, InstanceEntity: gpu.NoInstance,
	}
	c.parts = nil
	c.memory, c.mostInstances, c.profiles, c.profilesKnown = 0, 0, nil, false
	c.events = eventSource{}
	c.utilSince = 0
}

// forget lets go of whatever belongs to the driver's present life, after hearing what it has
// still to tell.
func (c *card) forget() {
	// What its last words say of the GPU and the driver is about the life that ends.
	lost, gone := c.lost, c.gone
	c.hear()
	c.lost, c.gone = lost, gone
	for _, m := range c.monitors {
		m.free()
	}
	c.monitors = make(map[int]*monitor)
	c.endEvents()
	c.handle = nil
	c.remembered = make(map[gpu.FieldID]gpu.Value)
	c.traffic = make(map[meterOf]traffic)
	c.links = -1
	c.gpmKnown, c.gpmLacks, c.gpmRefused = false, gpu.ReasonNone, make(map[nvml.GpmMetricId]bool)
}

// note hears from a return code what it says of more than the call.
func (c *card) note(ret nvml.Return) {
	switch {
	case ret == nvml.ERROR_GPU_IS_LOST:
		c.lost = true
	case driverGone(ret):
		c.gone = ret
	}
}

// attempt does a part of a reading that the others do without: a panic of the binding costs no
// more.
func (c *card) attempt(what string, part func()) {
	defer func() {
		if fault := recover(); fault != nil {
			c.panicked(what, fault)
		}
	}()
	part()
}

// panicked logs once what the binding cannot take.
func (c *card) panicked(what string, fault any) {
	if !c.complained[what] {
		c.complained[what] = true
		c.log.Error("a call of NVML panicked; what it tells is absent", "gpu", c.device.UUID, "of", what, "panic", fault)
	}
}

// question is what a reading asks of a card.
type question struct {
	// plan is nil where only the inventory is wanted.
	plan *plan
	node nodeFacts
	// gpus and links choose the samples.
	gpus, links gpu.Selection
}

// answer is what a card said. It is the reading's: the card keeps nothing of it that changes.
type answer struct {
	// device has no UUID where the GPU never answered; fresh says that it is at this index now.
	device    gpu.Device
	fresh     bool
	parts     []gpu.Device
	samples   []gpu.Sample
	links     []gpu.Sample
	processes []gpu.Process
	troubles  []gpu.Trouble
	// gone is set where the driver as a whole is.
	gone nvml.Return
	// deaf, gpm and gpmKnown are for people.
	deaf     bool
	gpm      gpu.Reason
	gpmKnown bool
}

// answer does a reading's calls, on the lane.
func (c *card) answer(q question) answer {
	c.lost, c.gone = false, nvml.SUCCESS
	var a answer
	ret := c.acquire()
	a.fresh = ret == nvml.SUCCESS
	if a.fresh {
		c.attempt("identity", c.lookAround)
		c.attempt("MIG devices", func() { a.troubles = c.lookForParts() })
		if q.plan != nil {
			c.attempt("events", func() {
				a.troubles = append(a.troubles, c.listen()...)
				c.hear()
				c.watchAction()
			})
			c.read(q, &a)
			c.attempt("processes", func() { a.processes = c.processes() })
		}
	}
	switch {
	case c.gone != nvml.SUCCESS:
		a.gone = c.gone
	case c.lost, !a.fresh && c.device.Lost:
		// A driver that was loaded anew does not know why it cannot reach a GPU that it had lost.
		c.device.Lost = true
		a.troubles = []gpu.Trouble{c.trouble(gpu.ReasonLost, "the driver can no longer reach it: it has fallen off the bus; "+
			"see dmesg for XID 79, then reset or reboot")}
		c.blank(q, &a, gpu.ReasonLost)
	case !a.fresh:
		a.troubles = []gpu.Trouble{c.trouble(reasonOf(ret), "no handle: "+returned(ret).Error())}
		c.blank(q, &a, reasonOf(ret))
	default:
		c.lossRaised = false
	}
	a.device, a.parts = c.device, c.devices()
	a.deaf, a.gpm, a.gpmKnown = c.events.deaf, c.gpmLacks, c.gpmKnown
	return a
}

// devices are the MIG devices as they are now: a reading's do not change any more.
func (c *card) devices() []gpu.Device {
	out := make([]gpu.Device, len(c.parts))
	for i := range c.parts {
		out[i] = c.parts[i].device
		out[i].Lost = c.device.Lost
	}
	return out
}

// trouble says what is wrong with the card. One whose UUID is not known is named by its index.
func (c *card) trouble(reason gpu.Reason, what string) gpu.Trouble {
	return gpu.Trouble{GPU: c.device.UUID, Reason: reason, Text: fmt.Sprintf("GPU %d: %s", c.index, what)}
}

// acquire gets the handle of the GPU that is at the index now.
func (c *card) acquire() nvml.Return {
	c.calling("nvmlDeviceGetHandleByIndex_v2")
	handle, ret := c.lib.DeviceGetHandleByIndex(c.index)
	c.note(ret)
	if ret != nvml.SUCCESS {
		return ret
	}
	uuid, ret := handle.GetUUID()
	c.note(ret)
	if ret != nvml.SUCCESS {
		return ret
	}
	if gpu.UUID(uuid) != c.device.UUID {
		c.become(gpu.UUID(uuid))
	} else if c.device.Lost {
		// It is back, and may have been reset.
		c.forget()
	}
	c.device.Lost = false
	c.handle = handle
	return nvml.SUCCESS
}

// calling says which function is under way, for who waits.
func (c *card) calling(function string) { c.lane.doing.Store(&function) }

// pciInfoFunction is what nvml.Device.GetPciInfo calls.
const pciInfoFunction = "nvmlDeviceGetPciInfo_v3|nvmlDeviceGetPciInfo_v2|nvmlDeviceGetPciInfo"

// lookAround asks what the GPU is, where that is not known yet.
func (c *card) lookAround() {
	if c.device.Model == "" && c.lib.has("nvmlDeviceGetName") {
		name, ret := c.handle.GetName()
		c.note(ret)
		c.device.Model = name
	}
	if c.device.PCIBusID == "" && c.lib.has(pciInfoFunction) {
		info, ret := c.handle.GetPciInfo()
		c.note(ret)
		if ret == nvml.SUCCESS {
			c.device.PCIBusID = cString(info.BusId[:])
		}
	}
	if c.device.Minor < 0 && c.lib.has("nvmlDeviceGetMinorNumber") {
		minor, ret := c.handle.GetMinorNumber()
		c.note(ret)
		if ret == nvml.SUCCESS {
			c.device.Minor = minor
		}
	}
	if c.memory == 0 && c.lib.has("nvmlDeviceGetMemoryInfo") {
		memory, ret := c.handle.GetMemoryInfo()
		c.note(ret)
		if ret == nvml.SUCCESS {
			c.memory = memory.Total
		}
	}
}

// read takes the samples of the card, its GPU instances and links.
func (c *card) read(q question, a *answer) {
	c.readings++
	defer c.endMonitors()
	if q.gpus.Major(c.index) {
		kind := cardKind(slices.ContainsFunc(c.parts, func(p part) bool { return q.gpus.Minor(p.device.InstanceEntity) }))
		a.samples = append(a.samples, c.sampleOf(q, kind, gpu.Entity{Kind: gpu.KindGPU, GPU: c.device.UUID}, c.handle))
	}
	for i := range c.parts {
		d := &c.parts[i].device
		if i > 0 && c.parts[i-1].device.GPUInstance == d.GPUInstance || !q.gpus.Minor(d.InstanceEntity) {
			continue
		}
		e := gpu.Entity{Kind: gpu.KindGPUInstance, GPU: c.device.UUID, ID: d.GPUInstance}
		a.samples = append(a.samples, c.sampleOf(q, instance, e, c.parts[i].handle))
	}
	if q.plan.links {
		c.attempt("links", func() { c.readLinks(q, a) })
	}
}

func (c *card) readLinks(q question, a *answer) {
	if len(q.plan.rows[link].columns[fieldLinkState]) > 0 {
		c.attempt("link states", func() { c.askLinkStates(q.links) })
	}
	for n := range c.linkCount() {
		if q.links.Minor(n) {
			e := gpu.Entity{Kind: gpu.KindLink, GPU: c.device.UUID, ID: n}
			a.links = append(a.links, c.sampleOf(q, link, e, c.handle))
		}
	}
}

// cardKind is what a card is for who reads some of its instances, or none: then the quantities of
// instances are the whole card's, as dcgm-exporter has them.
func cardKind(withInstances bool) entityKind {
	if withInstances {
		return divided
	}
	return undivided
}

// sampleOf asks one entity. A GPU that is lost meanwhile is not asked any further. Where all that
// was asked failed, the sample has no time yet: see recollect.
func (c *card) sampleOf(q question, kind entityKind, e gpu.Entity, device nvml.Device) gpu.Sample {
	row := &q.plan.rows[kind]
	p := &probe{card: c, plan: row, device: device, instance: gpu.NoInstance, values: row.start(q)}
	switch kind {
	case instance:
		p.instance = e.ID
	case link:
		p.link = e.ID
	}
	for _, query := range row.queries {
		if c.lost || c.gone != nvml.SUCCESS {
			break
		}
		p.ask(query)
	}
	s := gpu.Sample{Entity: e, Values: p.values}
	if p.heard || !p.failed {
		s.Time = time.Now()
	}
	return s
}

// start is a new row with what need not be asked.
func (r *rowPlan) start(q question) []gpu.Value {
	values := append([]gpu.Value(nil), r.blank...)
	for _, id := range q.plan.node {
		for _, i := range r.columns[id] {
			values[i] = q.node.value(id)
		}
	}
	return values
}

// blank are the samples of a card that does not answer.
func (c *card) blank(q question, a *answer, reason gpu.Reason) {
	a.samples, a.links, a.processes = nil, nil, nil
	if q.plan != nil && c.device.UUID != "" {
		a.samples = q.silent(c.device, c.devices(), reason)
	}
}

// silent are the samples of a GPU and its instances, absent for a reason. They have no time yet:
// see recollect.
func (q question) silent(card gpu.Device, parts []gpu.Device, reason gpu.Reason) []gpu.Sample {
	var out []gpu.Sample
	row := func(kind entityKind, e gpu.Entity) {
		plan := &q.plan.rows[kind]
		values := plan.start(q)
		for id, columns := range plan.columns {
			for _, i := range columns {
				if scopeOf(id) != gpu.ScopeNode {
					values[i] = gpu.Absent(reason)
				}
			}
		}
		out = append(out, gpu.Sample{Entity: e, Values: values})
	}
	if q.gpus.Major(card.Index) {
		kind := cardKind(slices.ContainsFunc(parts, func(d gpu.Device) bool { return q.gpus.Minor(d.InstanceEntity) }))
		row(kind, gpu.Entity{Kind: gpu.KindGPU, GPU: card.UUID})
	}
	for i, d := range parts {
		if (i == 0 || parts[i-1].GPUInstance != d.GPUInstance) && q.gpus.Minor(d.InstanceEntity) {
			row(instance, gpu.Entity{Kind: gpu.KindGPUInstance, GPU: card.UUID, ID: d.GPUInstance})
		}
	}
	return out
}
