// SPDX-License-Identifier: Apache-2.0

package dcgm

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// partsPatience is how long somebody else may take to describe a card.
const partsPatience = 5 * time.Second

// prepare makes what is known and watched fit what is there and what is asked for.
func (c *card) prepare(job cardJob) error {
	var unknown error
	if c.told.attributes.uuid != "" && !sameInstances(c.told.instances, job.instances) {
		c.renumber(job.instances)
	}
	if c.suspect || c.told.attributes.uuid == "" {
		if unknown = c.identify(job); unknown != nil && len(c.devices) == 0 {
			return unknown
		}
	}
	if c.refused != nil && time.Since(c.mended) >= c.pauses.mend {
		c.mended, c.cols = time.Now(), nil
		c.asked = c.asked && c.doubt == nil
	}
	if job.cols == c.cols && job.crowded == c.crowded {
		if unknown != nil {
			c.refused = unknown
		}
		return nil
	}
	// Until it is done, so that a failure is tried again at the next reading.
	c.cols = nil
	c.askOffered(job.cols)
	refused, err := c.follow(job)
	if err != nil {
		return err
	}
	c.cols, c.crowded, c.refused = job.cols, job.crowded, both(both(unknown, c.doubt), refused)
	return nil
}

// identify asks what the GPU is. One that is not the one before is new in everything.
func (c *card) identify(job cardJob) error {
	a, err := c.ss.attributes(c.id)
	if err != nil {
		return c.ss.fail(fmt.Errorf("asking what GPU %d is: %w", c.id, err))
	}
	if a.uuid == "" {
		return fmt.Errorf("DCGM does not say what GPU %d is; is its driver still starting?", c.id)
	}
	if gpu.UUID(a.uuid) != c.xids.of {
		c.xids = xids{of: gpu.UUID(a.uuid)}
	}
	static := c.told.static
	if a.uuid != c.told.attributes.uuid {
		c.devices, c.lost, c.formers, c.levels, static = nil, nil, nil, nil, nil
	}
	c.told = description{id: c.id, attributes: a, instances: job.instances, static: static}
	c.suspect, c.unfinished, c.tried, c.asked, c.cols = false, true, time.Time{}, false, nil
	if len(c.devices) == 0 {
		c.devices = c.told.devices(nil)
	}
	return nil
}

// askOffered finds out which profiling fields the GPU offers, if any are asked for.
func (c *card) askOffered(cols *columns) {
	if c.asked || !slices.ContainsFunc(cols.fields, gpu.FieldID.Profiling) {
		return
	}
	ids, err := c.ss.metricGroups(c.id)
	c.offered, c.why, c.doubt, c.asked = ids, gpu.ReasonNotSupported, nil, true
	if err == nil {
		return
	}
	c.why = reasonOf(returned(c.ss.fail(err)))
	c.log.Debug("a GPU offers no profiling fields", "gpu", c.id, "error", err)
	if !notSupported(err) && c.why != gpu.ReasonNotPermitted {
		c.doubt = fmt.Errorf("asking for the profiling fields of GPU %d: %w", c.id, err)
	}
}

func (c *card) offers(id gpu.FieldID) bool { return slices.Contains(c.offered, id) }

// follow makes the GPU's groups those of the plan. Groups with the same members go on; others
// are ended before new ones are made, since an engine has few. What is refused costs its own
// fields only, unless it is the group by which the GPU itself is known.
func (c *card) follow(job cardJob) (refused, err error) {
	plans := cardPlan{
		id: c.id, instances: job.instances, cols: job.cols, gpus: c.gpus,
		offered: c.offers, bind: c.ss.bind, crowded: job.crowded,
	}.sets()
	kept := make([]*set, len(plans))
	for _, s := range c.sets {
		i := slices.IndexFunc(plans, func(p setPlan) bool { return p.name == s.plan.name && slices.Equal(p.members, s.plan.members) })
		if i >= 0 {
			kept[i] = s
		} else {
			s.close()
		}
	}
	c.sets = nil
	for i, plan := range plans {
		s, err := kept[i], error(nil)
		if s != nil {
			err = s.follow(plan, c.interval)
		} else {
			if i == 0 {
				c.watchedSince = time.Now()
			}
			s, err = openSet(c.ss, plan, c.interval)
		}
		if s != nil {
			c.sets = append(c.sets, s)
			c.fresh, s.fresh = c.fresh || s.fresh, false
			refused = both(refused, s.complaint())
		}
		if err != nil && s == nil && i == 0 {
			for _, s := range kept {
				if s != nil {
					s.close()
				}
			}
			return nil, err
		}
		refused = both(refused, err)
	}
	c.rows.cols = nil
	return refused, nil
}

// describe reads what the devices are made of, where that is not known or has changed.
func (c *card) describe() {
	if !c.unfinished || len(c.sets) == 0 || time.Since(c.tried) < c.pauses.mend && c.told.complete() {
		return
	}
	c.tried = time.Now()
	if c.statics == nil {
		lists, err := c.ss.lists.acquire(statics())
		if err != nil {
			_ = c.ss.fail(err)
			return
		}
		c.statics = lists
	}
	former := false
	static := map[entity]map[gpu.FieldID]gpu.Value{}
	for e, known := range c.told.static {
		static[e] = maps.Clone(known)
	}
	for _, list := range c.statics {
		if err := c.ss.latest(c.sets[0].id, list.id, &c.records); err != nil {
			_ = c.ss.fail(err)
			return
		}
		for i := range c.records.len() {
			rec := c.records.at(i)
			if c.former(rec) {
				former = true
				continue
			}
			if static[rec.entity] == nil {
				static[rec.entity] = map[gpu.FieldID]gpu.Value{}
			}
			// What was known stays until there is something else.
			if v := rec.value(); v.Present() || !static[rec.entity][rec.field].Present() {
				static[rec.entity][rec.field] = v
			}
		}
	}
	c.told.static = static
	parts, whole := c.others()
	devices := c.told.devices(parts)
	if former {
		c.tried = time.Time{}
	}
	c.unfinished = former || !c.told.complete() || c.told.unsliced() || !whole || c.parts != nil && !describes(parts, devices)
	if !slices.EqualFunc(devices, c.devices, sameDevice) {
		c.devices = devices
	}
}

// others are the card and its MIG devices as somebody else describes them, who may know more,
// and whether they could be asked.
func (c *card) others() ([]gpu.Device, bool) {
	if c.parts == nil {
		return nil, true
	}
	ctx, done := context.WithTimeout(context.Background(), partsPatience)
	defer done()
	parts, err := c.parts(ctx, gpu.UUID(c.told.attributes.uuid))
	if err != nil {
		c.log.Debug("a GPU is described by DCGM alone", "gpu", c.id, "error", err)
	}
	return parts, err == nil
}

// describes reports whether parts have all of the devices; somebody else may see them later.
func describes(parts, devices []gpu.Device) bool {
	return !slices.ContainsFunc(devices, func(d gpu.Device) bool {
		return !slices.ContainsFunc(parts, func(p gpu.Device) bool { return p.UUID == d.UUID })
	})
}

// repair mends what the reading has shown to be no longer as it was, and reports whether it is
// to be looked at again.
func (c *card) repair(job cardJob) bool {
	switch {
	case c.seen.unwatched && time.Since(c.mended) >= c.pauses.rewatch:
		// The GPU was away for a moment, and its watches have gone with it.
		c.mended = time.Now()
		c.closeSets()
		c.suspect = true
	case c.suspect, c.seen.changed:
	case c.seen.nodeUnwatched && time.Since(c.mended) >= c.pauses.rewatch:
		c.mended = time.Now()
		for _, s := range c.sets {
			// What is refused now is asked for again with the next change.
			_ = s.rewatch(watchValues, s.plan.watches[watchValues], c.interval)
		}
		return true
	default:
		return false
	}
	if c.seen.changed {
		// The survey may be from just before the change.
		if entities, err := c.ss.hierarchy(); err == nil {
			job.instances = instancesOf(entities)[c.id]
		}
	}
	c.seen.changed = false
	return c.prepare(job) == nil
}
