// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"slices"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// eventSource is a GPU's set of events. Each GPU has one of its own, since a set with a lost
// GPU in it returns nothing but that, and is heard on the GPU's lane, since waiting can hang.
type eventSource struct {
	set nvml.EventSet
	// types are those that it is registered for.
	types uint64
	// deaf says that the GPU has no events, so that it need not be asked again.
	deaf bool
	// action is what the GPU needed when last asked. actionSettled says that asking again is
	// no use: there is an event for it, or no action at all.
	action        int64
	actionKnown   bool
	actionSettled bool
	// lastXID is the code of the last XID, 0 where there was none since the GPU is heard.
	lastXID gpu.Value
}

// eventTypes are those that are registered for where the GPU has them.
const eventTypes = nvml.EventTypeXidCriticalError | nvml.EventTypeSingleBitEccError |
	nvml.EventTypeDoubleBitEccError | nvml.EventTypeGpuRecoveryAction

func eventFunctions() []string {
	return []string{
		"nvmlEventSetCreate", "nvmlDeviceRegisterEvents", "nvmlEventSetWait_v2|nvmlEventSetWait", "nvmlEventSetFree",
		"nvmlDeviceGetSupportedEventTypes",
	}
}

// listen registers for the GPU's events where that is not done yet. Events before it are not
// told. A GPU that cannot be listened to is in trouble: its XIDs would be missed.
func (c *card) listen() []gpu.Trouble {
	if c.events.set != nil || c.events.deaf || c.lost {
		return nil
	}
	if !c.lib.has(eventFunctions()...) {
		c.events.deaf = true
		return nil
	}
	c.calling("nvmlDeviceRegisterEvents")
	ret := c.register()
	c.note(ret)
	switch {
	case ret == nvml.SUCCESS:
		if c.events.types&nvml.EventTypeXidCriticalError != 0 && !c.events.lastXID.Present() {
			c.events.lastXID = gpu.Int(0)
		}
		return nil
	case c.lost:
		return nil
	case reasonOf(ret) == gpu.ReasonNotSupported:
		c.events.deaf = true
		return nil
	}
	return []gpu.Trouble{c.trouble(reasonOf(ret), "its XIDs are not heard: registering for its events failed: "+returned(ret).Error())}
}

// register has the driver record events: all that the GPU says to have, else XIDs alone. One
// kind that is refused, such as memory errors while ECC is off, refuses the others with it.
func (c *card) register() nvml.Return {
	types, ret := c.handle.GetSupportedEventTypes()
	if ret != nvml.SUCCESS {
		return ret
	}
	if types &= eventTypes; types == 0 {
		return nvml.ERROR_NOT_SUPPORTED
	}
	ret = c.registerFor(types)
	c.note(ret)
	if xids := types & nvml.EventTypeXidCriticalError; ret != nvml.SUCCESS && xids != 0 && xids != types && !c.lost && c.gone == nvml.SUCCESS {
		c.log.Debug("a GPU's driver refuses events; listening for XIDs alone", "gpu", c.device.UUID, "types", types, "error", returned(ret))
		ret = c.registerFor(xids)
	}
	return ret
}

func (c *card) registerFor(types uint64) nvml.Return {
	set, ret := c.lib.EventSetCreate()
	if ret != nvml.SUCCESS {
		return ret
	}
	if ret := c.handle.RegisterEvents(types, set); ret != nvml.SUCCESS {
		// What an error leaves of a set is not said; it is not used again.
		_ = set.Free()
		return ret
	}
	c.events.set, c.events.types = set, types
	c.events.actionSettled = types&nvml.EventTypeGpuRecoveryAction != 0
	return nvml.SUCCESS
}

// endEvents stops listening. What the GPU said last is kept.
func (c *card) endEvents() {
	if c.events.set != nil {
		_ = c.events.set.Free()
	}
	c.events.set, c.events.types, c.events.deaf, c.events.actionSettled = nil, 0, false, false
}

// mostHeard bounds what is taken from a set at once: an ECC storm has thousands a second.
const mostHeard = 2048

// attend is what is done between readings: the events, and the recovery action where there is no event
// for it and a reading has found that there is an action at all.
func (c *card) attend() {
	c.hear()
	if c.handle != nil && c.events.actionKnown && !c.device.Lost {
		c.calling("nvmlDeviceGetFieldValues")
		c.watchAction()
	}
}

// raiseLoss raises the alarm once for each time that the GPU is lost.
func (c *card) raiseLoss() {
	if !c.lossRaised {
		c.lossRaised = true
		c.queue.raise()
	}
}

// hear takes the events that have happened. It does not wait.
func (c *card) hear() {
	if c.events.set == nil {
		return
	}
	c.calling("nvmlEventSetWait_v2")
	for range mostHeard {
		data, ret := c.events.set.Wait(0)
		switch ret {
		case nvml.SUCCESS:
			c.happened(data)
		case nvml.ERROR_TIMEOUT:
			return
		default:
			c.note(ret)
			if ret == nvml.ERROR_GPU_IS_LOST {
				c.raiseLoss()
			}
			if ret != nvml.ERROR_GPU_IS_LOST && !driverGone(ret) {
				c.log.Warn("a GPU's events were interrupted; listening anew", "gpu", c.device.UUID, "error", returned(ret))
			}
			c.endEvents()
			return
		}
	}
}

// happened queues an event until a reading takes it.
func (c *card) happened(data nvml.EventData) {
	e := gpu.Event{
		Time: time.Now(), GPU: c.device.UUID, Code: int(data.EventData),
		GPUInstance: instanceID(data.GpuInstanceId), ComputeInstance: instanceID(data.ComputeInstanceId),
	}
	if !c.device.MIGEnabled {
		// Older forms of the call leave the ids as they are.
		e.GPUInstance, e.ComputeInstance = gpu.NoInstance, gpu.NoInstance
	}
	switch data.EventType {
	case nvml.EventTypeXidCriticalError:
		e.Kind = gpu.EventXID
		c.events.lastXID = gpu.Int(int64(e.Code))
	case nvml.EventTypeSingleBitEccError:
		e.Kind, e.Code = gpu.EventECCSingleBit, 0
	case nvml.EventTypeDoubleBitEccError:
		e.Kind, e.Code = gpu.EventECCDoubleBit, 0
	case nvml.EventTypeGpuRecoveryAction:
		// The event does not say which.
		action, ret := c.recoveryAction()
		if ret != nvml.SUCCESS {
			return
		}
		e.Kind, e.Code = gpu.EventRecoveryAction, int(action)
		c.events.action, c.events.actionKnown = action, true
	default:
		return
	}
	c.queue.add(e)
	if e.Kind != gpu.EventECCSingleBit {
		c.queue.raise()
	}
}

// instanceID is an id of NVML's, whose word for none has all bits set.
func instanceID(id uint32) int {
	if id == noInstance {
		return gpu.NoInstance
	}
	return int(id)
}

const noInstance = 0xFFFFFFFF

// watchAction tells of a changed recovery action to those whose driver has no event for it.
func (c *card) watchAction() {
	if c.events.actionSettled {
		return
	}
	action, ret := c.recoveryAction()
	if ret != nvml.SUCCESS {
		if ret == nvml.ERROR_GPU_IS_LOST {
			c.raiseLoss()
		}
		c.events.actionSettled = reasonOf(ret) == gpu.ReasonNotSupported
		return
	}
	if c.events.actionKnown && action != c.events.action {
		c.queue.add(gpu.Event{
			Kind: gpu.EventRecoveryAction, Time: time.Now(), GPU: c.device.UUID, Code: int(action),
			GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance,
		})
		c.queue.raise()
	}
	c.events.action, c.events.actionKnown = action, true
}

func (c *card) recoveryAction() (int64, nvml.Return) {
	if !c.lib.has("nvmlDeviceGetFieldValues") {
		return 0, nvml.ERROR_NOT_SUPPORTED
	}
	v := []nvml.FieldValue{{FieldId: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION}}
	if ret := fieldReturn(c.handle.GetFieldValues(v), &v[0]); ret != nvml.SUCCESS {
		c.note(ret)
		return 0, ret
	}
	action, ok := decoded(&v[0]).AsInt()
	if !ok {
		return 0, nvml.ERROR_UNKNOWN
	}
	return action, nvml.SUCCESS
}

// xidQuery answers the last XID. Alerts are written for the 0 that DCGM before 4.5 and
// dcgm-exporter with it had for none.
func xidQuery() *query {
	return &query{fields: []gpu.FieldID{gpu.FieldXID}, known: true, needs: eventFunctions(), read: func(p *probe) {
		last := p.events.lastXID
		if !last.Present() && (p.events.deaf || p.events.set != nil) {
			last = gpu.Absent(gpu.ReasonNotSupported)
		}
		p.put(gpu.FieldXID, last)
	}}
}

// eventQueue holds events until a reading that comes to its asker takes them.
type eventQueue struct {
	// alarm has room for the news that something waits which should not.
	alarm chan struct{}

	mu      sync.Mutex
	waiting []gpu.Event
	dropped int
}

// mostQueued bounds the events that wait; memory errors, which come in storms, get half of it.
const mostQueued = 8192

func newEventQueue() *eventQueue { return &eventQueue{alarm: make(chan struct{}, 1)} }

// raise raises the alarm, if it is not raised already.
func (q *eventQueue) raise() {
	select {
	case q.alarm <- struct{}{}:
	default:
	}
}

func (q *eventQueue) add(e gpu.Event) {
	q.mu.Lock()
	defer q.mu.Unlock()
	room := mostQueued
	if e.Kind == gpu.EventECCSingleBit || e.Kind == gpu.EventECCDoubleBit {
		room /= 2
	}
	if len(q.waiting) >= room {
		q.dropped++
		return
	}
	q.waiting = append(q.waiting, e)
}

// take empties the queue, in the order of time, and says how many had no room since the last.
func (q *eventQueue) take() ([]gpu.Event, int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	events, dropped := q.waiting, q.dropped
	q.waiting, q.dropped = nil, 0
	slices.SortStableFunc(events, func(a, b gpu.Event) int { return a.Time.Compare(b.Time) })
	return events, dropped
}
