// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"fmt"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// InventoryStore keeps a node's devices and their replicas beyond the process. Save may block for as long
// as a disk does: it runs apart from the loop, one call at a time.
type InventoryStore interface {
	Save(sharing.Inventory) error
}

// roster is the Meter's part that remembers devices beyond the reading that had them. It is for the loop alone.
type roster struct {
	// known are the devices as they were last listed, those that are missing behind the others.
	known []gpu.Device
	// missing are those of known that are not listed any more and on whose card there is still a verdict;
	// marked as lost where that says so.
	missing []gpu.Device
}

// follow takes over the devices of this tick's reading after their verdicts, and reports whether there
// are others, which an index of the reading's devices does not have.
func (r *roster) follow(listed []gpu.Device, fresh bool, report *health.Report) bool {
	cards := missingCards(listed, report)
	var missing []gpu.Device
	for _, d := range r.known {
		if lost, is := cards[d.Card()]; is {
			d.Lost = d.Lost || lost
			missing = append(missing, d)
		}
	}
	if fresh {
		r.known = joined(listed, missing)
	}
	r.missing = missing
	return len(missing) > 0
}

// missingCards are the physical GPUs that have a verdict and are not listed, and whether they are lost by it.
func missingCards(listed []gpu.Device, report *health.Report) map[gpu.UUID]bool {
	var cards map[gpu.UUID]bool
	for i := range report.Verdicts {
		v := &report.Verdicts[i]
		if v.Device != v.Card || slices.ContainsFunc(listed, func(d gpu.Device) bool { return d.UUID == v.Card }) {
			continue
		}
		if cards == nil {
			cards = map[gpu.UUID]bool{}
		}
		cards[v.Card] = slices.ContainsFunc(v.Conditions, func(c health.Condition) bool { return c.Kind == health.KindLost })
	}
	return cards
}

// held are the missing devices of cards on which the kubelet lists somebody.
func (r *roster) held(ix *sharing.Index, allocations []sharing.Allocation) []gpu.Device {
	if len(r.missing) == 0 {
		return nil
	}
	cards := map[gpu.UUID]bool{}
	for i := range allocations {
		if allocations[i].Terminal {
			continue
		}
		id, err := sharing.ParseID(allocations[i].DeviceID)
		if err != nil {
			continue
		}
		if d, reason := ix.Resolve(id); reason == "" {
			cards[d.Card()] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(r.missing), func(d gpu.Device) bool { return !cards[d.Card()] })
}

// joined is a with b behind it: a itself where there is no b.
func joined(a, b []gpu.Device) []gpu.Device {
	if len(b) == 0 {
		return a
	}
	return slices.Concat(a, b)
}

// missed are the faults of cards that somebody holds although they are not listed any more.
func missed(gone []gpu.Device) []Fault {
	var faults []Fault
	for _, d := range gone {
		if d.IsMIG() {
			continue
		}
		reason, meanwhile := gpu.ReasonNotFound, "those who hold it are charged until it is known to be lost"
		if d.Lost {
			reason, meanwhile = gpu.ReasonLost, "what is held of it is booked as unhealthy"
		}
		faults = append(faults, Fault{
			Source: SourceTelemetry, Subject: d.UUID, Kind: reason.String(),
			Text: fmt.Sprintf("GPU %d at %s is held and not listed any more; %s", d.Index, d.PCIBusID, meanwhile),
		})
	}
	return faults
}

// recorder has the inventory saved before a snapshot that rests on it is published, as long as the disk
// lets it. It is for the Meter's loop alone, and does nothing if nil.
type recorder struct {
	store    InventoryStore
	patience time.Duration

	answers chan error
	running bool
	began   time.Time
	// saving is what the call under way saves, saved what the last good one did, if there was one.
	saving, saved sharing.Inventory
	ever          bool
	err           error
}

func newRecorder(cfg Config) *recorder {
	return &recorder{store: cfg.Inventory, patience: min(cfg.Interval/4, savePatience), answers: make(chan error, 1)}
}

// begin saves v if that is due. A call that outlives its tick stays under way, and v waits for a later tick.
func (r *recorder) begin(v sharing.Inventory) {
	if r == nil {
		return
	}
	r.settle(0)
	if r.running || r.ever && r.saved.Equal(v) {
		return
	}
	r.running, r.began, r.saving = true, time.Now(), v
	go func() { r.answers <- r.store.Save(v) }()
}

// finish waits for what this tick began, and says what is wrong.
func (r *recorder) finish() []Fault {
	if r == nil {
		return nil
	}
	r.settle(r.patience - time.Since(r.began))
	switch {
	case r.running && time.Since(r.began) >= saveHangs:
		return r.fault("timeout", fmt.Sprintf("the disk has not answered for %v", time.Since(r.began).Round(time.Second)))
	case r.err != nil:
		return r.fault(faultKind(r.err), r.err.Error())
	}
	return nil
}

func (r *recorder) fault(kind, text string) []Fault {
	return []Fault{{
		Source: SourceInventory, Kind: kind,
		Text: text + "; a restart would forget what changed of the devices and their replicas",
	}}
}

// settle takes the answer of the call under way, if it comes within patience.
func (r *recorder) settle(patience time.Duration) {
	if !r.running {
		return
	}
	if came, err := awaitAnswer(r.answers, patience); came {
		r.take(err)
	}
}

// awaitAnswer is whether a disk answers a call within patience, and what. An answer that is there already needs none.
func awaitAnswer(answers <-chan error, patience time.Duration) (bool, error) {
	select {
	case err := <-answers:
		return true, err
	default:
	}
	if patience <= 0 {
		return false, nil
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case err := <-answers:
		return true, err
	case <-timer.C:
		return false, nil
	}
}

func (r *recorder) take(err error) {
	r.running, r.err = false, err
	if err == nil {
		r.saved, r.ever = r.saving, true
	}
}
