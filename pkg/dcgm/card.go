// SPDX-License-Identifier: Apache-2.0

package dcgm

import (
	"errors"
	"fmt"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// card reads one GPU and its instances. It belongs to the goroutine of its worker: every call
// that can hang because of this GPU is made there and nowhere else.
type card struct {
	*settings
	id uint32
	// records are what a reading got, samples the XIDs since an earlier one.
	records, samples records

	ss *session
	// told is what the engine said of the GPU; its attributes.uuid is empty as long as they
	// are not known. suspect says that it may be another GPU now, unfinished that something is
	// not known that may be later, and tried when that was last looked at.
	told       description
	suspect    bool
	unfinished bool
	tried      time.Time
	// devices are the card and its MIG devices, empty until they are known; described are
	// those that the rows are laid out for, lost the same while the GPU is lost.
	devices, described, lost []gpu.Device

	// offered are the profiling fields that the GPU offers, why the others are absent, doubt an
	// error that may pass; valid once asked is set.
	offered []gpu.FieldID
	why     gpu.Reason
	doubt   error
	asked   bool

	// cols and crowded are what the sets were planned for; cols is nil where they must be
	// planned anew. The first set has what is watched for the source itself.
	cols    *columns
	crowded bool
	sets    []*set
	statics []*fieldList
	// refused is what DCGM did not do of it, or why the GPU could not be identified.
	refused error
	// watchedSince is when XIDs were first watched; mended is when something was last tried again.
	watchedSince, mended time.Time

	// fresh says that watches are new, and may have to be sampled by request.
	fresh bool
	// formers are the instances that had the numbers of the present ones before.
	formers map[entity]former

	xids xids
	// levels are what the readings had last of what may withdraw the card.
	levels map[gpu.FieldID]int64
	rows   rows
	seen   seen
}

// cardJob is one reading of a GPU.
type cardJob struct {
	ss        *session
	cols      *columns
	instances []instance
	// listed says that the engine knows the GPU, supported that it can be used.
	listed, supported bool
	// crowded says that the GPU can have one group only.
	crowded bool
	// listen says that this is no reading, but a look whether there is something that was not told.
	listen bool
}

// cardAnswer is what a reading of a GPU got. The rows are the worker's from the next job on.
type cardAnswer struct {
	devices []gpu.Device
	driver  string
	rows    *rows
	events  []gpu.Event
	// gone says that the GPU is not there any more, lost that it is but cannot be reached.
	gone, lost bool
	// unsampled says that the engine has not yet sampled what was newly watched.
	unsampled bool
	troubles  []trouble
	// listened says that this answers no reading, news that there is something that was not told.
	listened, news bool
}

// trouble is a gpu.Trouble of the answer's GPU.
type trouble struct {
	reason gpu.Reason
	text   string
}

func troubleOf(err error) trouble {
	reason := gpu.ReasonError
	var o *outage
	switch code := returned(err); {
	case code != stOK:
		reason = reasonOf(code)
	case errors.Is(err, errMissing):
		reason = gpu.ReasonNotSupported
	case errors.As(err, &o) && o.kind == kindTimeout:
		reason = gpu.ReasonTimeout
	}
	return trouble{reason, err.Error()}
}

// read does one job.
func (c *card) read(job cardJob) cardAnswer {
	if job.listen {
		return cardAnswer{listened: true, news: c.listen(job.ss)}
	}
	if job.ss != c.ss {
		c.enter(job.ss)
	}
	there := presenceHere
	if !job.listed || !job.supported || c.lost != nil {
		there = c.presence(job)
	}
	switch there {
	case presenceGone:
		c.leave()
		return cardAnswer{gone: true}
	case presenceLost:
		return c.readLost()
	default:
	}
	if c.lost != nil {
		// It has come back, with or without its watches: the look will show.
		c.lost, c.suspect = nil, true
	}
	if err := c.prepare(job); err != nil {
		return c.failed(err)
	}
	a := c.look(job)
	if c.repair(job) {
		a = c.lookAgain(job, a)
	}
	if c.seen.silent != gpu.ReasonNone && c.presence(job) == presenceLost {
		lost := c.readLost()
		lost.events = append(a.events, lost.events...)
		return lost
	}
	return a
}

// free gives back what the card has outside Go.
func (c *card) free() {
	c.records.free()
	c.samples.free()
}

// enter begins with another session: nothing that was made in the one before is there.
func (c *card) enter(ss *session) {
	c.ss, c.sets, c.statics, c.cols = ss, nil, nil, nil
	c.suspect, c.refused = true, nil
	c.seen, c.formers = seen{}, nil
	c.mended = time.Time{}
}

// leave gives back what was made for a GPU that is gone. How far its XIDs were told is kept,
// since it may come back.
func (c *card) leave() {
	c.closeSets()
	c.told, c.devices, c.lost, c.levels = description{}, nil, nil, nil
	c.seen, c.formers = seen{}, nil
}

func (c *card) closeSets() {
	for _, s := range c.sets {
		s.close()
	}
	if !c.ss.over() {
		c.ss.lists.release(c.statics)
	}
	c.sets, c.statics, c.cols = nil, nil, nil
}

type presence int

const (
	presenceHere presence = iota
	presenceLost
	presenceGone
)

// presence is whether the GPU is there. DCGM drops from the GPUs that can be used those that
// fell off the bus, which stay in the inventory, and those that were unbound, which leave it.
func (c *card) presence(job cardJob) presence {
	if !job.listed {
		return presenceGone
	}
	known := c.told.attributes.uuid != ""
	status, err := c.ss.gpuStatus(c.id)
	switch {
	case errors.Is(err, errMissing):
		// Engines that cannot say it cannot detach GPUs either.
		status = gpuOK
	case err != nil:
		_ = c.ss.fail(err)
		status = gpuOK
	}
	switch status {
	case gpuLost, gpuInaccessible:
		if !known && c.identify(job) != nil {
			return presenceGone
		}
		return presenceLost
	case gpuUnsupported, gpuDisabled, gpuDetached:
		return presenceGone
	default:
	}
	switch {
	case !job.supported && !known:
		return presenceGone
	case !job.supported, c.seen.silent == gpu.ReasonLost:
		return presenceLost
	default:
		return presenceHere
	}
}

// readLost answers for a GPU that cannot be reached. Its XIDs are still told: the last one says
// why.
func (c *card) readLost() cardAnswer {
	if c.lost == nil {
		c.lost = lostDevices(c.devices)
	}
	a := cardAnswer{devices: c.lost, lost: true, driver: c.told.attributes.driver}
	c.seen.begin()
	c.xids.begin()
	if len(c.sets) > 0 && c.latest(c.sets[0], nil) == nil {
		a.events = c.newEvents()
	}
	a.troubles = []trouble{{gpu.ReasonLost, fmt.Sprintf(
		"GPU %d at %s is lost: the driver can no longer reach it; look for XID 79 in the kernel's log, and reset the GPU or restart the node",
		c.id, c.told.attributes.pciBusID)}}
	return a
}

// failed answers for a GPU of which nothing could be read.
func (c *card) failed(err error) cardAnswer {
	return cardAnswer{devices: c.devices, driver: c.told.attributes.driver, troubles: []trouble{troubleOf(err)}}
}
