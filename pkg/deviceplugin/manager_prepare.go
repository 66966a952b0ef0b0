// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"fmt"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
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
	// settings and devices are those of the last one that succeeded, nil before the first.
	settings *Settings
	devices  map[gpu.UUID]int
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

// ready leaves out the seats of devices that no container can use yet.
func (p *preparation) ready(seats []Seat) []Seat {
	unready := func(s Seat) bool {
		_, ok := p.devices[s.Device]
		return !ok
	}
	if !p.needed || !slices.ContainsFunc(seats, unready) {
		return seats
	}
	return slices.DeleteFunc(slices.Clone(seats), unready)
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

// prepareEnded takes note of what containers can use now.
func (r *reconciler) prepareEnded(result prepared) {
	r.preparing = nil
	if result.err != nil {
		err := fmt.Errorf("prepare the devices for containers: %w", result.err)
		wait := r.prepare.retry.after()
		if !r.prepare.wanted {
			r.prepare.due(time.Now().Add(wait))
		}
		r.manager.note(func(s *Stats) { s.PrepareFailures++; s.PrepareError = err.Error() })
		r.manager.log.Error("what is new is not handed out before this works", "err", err, "again_in", wait)
		return
	}
	r.prepare.retry.reset()
	r.prepare.settings, r.prepare.devices = &result.scheme.settings, result.scheme.devices
	if r.next != nil && r.prepare.speaks(r.next.settings) {
		r.present, r.next = *r.next, nil
	}
	r.manager.note(func(s *Stats) { s.Prepares++; s.PrepareError = "" })
}
