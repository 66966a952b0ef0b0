// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
)

// preparation is what containers can use already.
type preparation struct {
	// needed says that there is a Prepare at all.
	needed bool
	// wanted says that what is to be handed out has changed since the last Prepare began, at
	// is the earliest time of the next one.
	wanted bool
	at     time.Time
	retry  backoff
	// settings and devices are those of the last one that succeeded, if only for some devices;
	// nil before the first.
	settings *Settings
	devices  map[gpu.UUID]int
	// tried are the devices of the last one that ended, however it did.
	tried map[gpu.UUID]int
}

// incomplete is an error of a Prepare that some devices are not ready, and the others are.
type incomplete interface {
	error
	Missing() []gpu.UUID
}

// missingOf are the devices that a Prepare has failed for; whole says that it has failed for all.
// Joined errors are each looked at: one that names no devices concerns all of them.
func missingOf(err error) (missing []gpu.UUID, whole bool) {
	if some, ok := err.(incomplete); ok { //nolint:errorlint // the tree is walked here
		return some.Missing(), false
	}
	switch e := err.(type) { //nolint:errorlint // the tree is walked here
	case interface{ Unwrap() []error }:
		for _, each := range e.Unwrap() {
			more, all := missingOf(each)
			missing, whole = append(missing, more...), whole || all
		}
		return missing, whole
	case interface{ Unwrap() error }:
		return missingOf(e.Unwrap())
	default:
		return nil, true
	}
}

// prepared is the end of a Prepare.
type prepared struct {
	scheme scheme
	err    error
}

// due asks for a Prepare at a time.
func (p *preparation) due(at time.Time) { p.wanted, p.at = true, at }

// speaks says that what containers are told under s is what was prepared for, device by device.
func (p *preparation) speaks(s Settings) bool {
	if !p.needed || p.settings == nil {
		return true
	}
	o := *p.settings
	return slices.Equal(s.ListStrategies, o.ListStrategies) && s.IDStrategy == o.IDStrategy && s.DevRoot == o.DevRoot &&
		s.GDRCopy == o.GDRCopy && s.GDS == o.GDS && s.MOFED == o.MOFED && slices.Equal(s.IMEXChannels, o.IMEXChannels)
}

// ready leaves out the seats of devices that no container can use yet. One that is Unhealthy goes
// to no container, and stays: the kubelet is to count a lost GPU also after a restart.
func (p *preparation) ready(seats []Seat, verdicts *book) []Seat {
	unready := func(s Seat) bool { return p.lacks(s, verdicts) }
	if !slices.ContainsFunc(seats, unready) {
		return seats
	}
	return slices.DeleteFunc(slices.Clone(seats), unready)
}

func (p *preparation) lacks(s Seat, verdicts *book) bool {
	_, ok := p.devices[s.Device]
	return p.needed && !ok && verdicts.status(s.Device) != health.Unhealthy
}

// pending says that there is a seat that is not ready and whose first Prepare has not ended.
func (p *preparation) pending(seats []Seat, verdicts *book) bool {
	return slices.ContainsFunc(seats, func(s Seat) bool {
		_, tried := p.tried[s.Device]
		return !tried && p.lacks(s, verdicts)
	})
}

// startPrepare starts a Prepare if one is due, and says for how long none will be.
func (r *reconciler) startPrepare(now time.Time) time.Duration {
	run := r.manager.config.Prepare
	switch {
	case run == nil || !r.prepare.wanted || r.preparing != nil:
		return idle
	case now.Before(r.prepare.at):
		return r.prepare.at.Sub(now)
	}
	r.prepare.wanted = false
	s := r.present
	if r.next != nil {
		s = *r.next
	}
	result := make(chan prepared, 1) // nobody may be there to take it
	r.preparing = result
	go func() { result <- prepared{s, run(s.inventory, s.plan)} }()
	return idle
}

// prepareEnded takes note of what containers can use now. What failed is tried again.
func (r *reconciler) prepareEnded(result prepared) {
	r.preparing = nil
	r.prepare.tried = result.scheme.devices
	if result.err == nil {
		r.prepare.retry.reset()
		r.prepareDone(result.scheme, nil)
		r.manager.note(func(s *Stats) { s.Prepares++; s.PrepareError = "" })
		return
	}
	err := fmt.Errorf("prepare the devices for containers: %w", result.err)
	wait := r.prepare.retry.after()
	if !r.prepare.wanted {
		r.prepare.due(time.Now().Add(wait))
	}
	var isNew bool
	r.manager.note(func(s *Stats) {
		isNew = s.PrepareError != err.Error()
		s.PrepareFailures++
		s.PrepareError = err.Error()
	})
	missing, whole := missingOf(result.err)
	if !whole {
		r.prepareDone(result.scheme, missing)
	}
	if isNew {
		r.manager.log.Error("what is not ready for containers is not handed out before this works", "err", err, "all_that_is_new", whole, "again_in", wait)
	}
}

// prepareDone goes over to what was prepared, but for the devices that are missing.
func (r *reconciler) prepareDone(s scheme, missing []gpu.UUID) {
	devices := maps.Clone(s.devices)
	for _, device := range missing {
		delete(devices, device)
	}
	r.prepare.settings, r.prepare.devices = &s.settings, devices
	if r.next != nil && r.prepare.speaks(r.next.settings) {
		r.present, r.next = *r.next, nil
	}
}
