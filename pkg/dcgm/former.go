// SPDX-License-Identifier: Apache-2.0

package dcgm

import (
	"maps"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// DCGM numbers instances anew at each repartition, and shows what it sampled of the former one
// of a number until it has sampled the new.

// former is the instance that had a number before, as long as samples may be of it.
type former struct {
	// uuid is its compute instance's, empty where it is not known.
	uuid string
	// until is when the last of its samples can be of, in the engine's measure. A UUID other
	// than its own shows that it ended earlier.
	until int64
}

// occupant is who has a number: two with the same are the same instance, or one that was made
// anew just as it was.
type occupant struct{ gpuInstance, computeInstance, slices int }

func occupants(instances []instance) map[entity]occupant {
	out := map[entity]occupant{}
	for _, i := range instances {
		out[entity{groupGPUInstance, uint32(i.id)}] = occupant{i.nvml, gpu.NoInstance, i.slices}
		for _, p := range i.parts {
			out[entity{groupComputeInstance, uint32(p.id)}] = occupant{i.nvml, p.nvml, p.slices}
		}
	}
	return out
}

// renumber takes in other instances than before. What is known of one that stays goes with it
// to its new number; samples of a number that has gone over to another instance are doubted.
func (c *card) renumber(instances []instance) {
	was, is := occupants(c.told.instances), occupants(instances)
	formers := map[entity]former{}
	for e, o := range is {
		before, had := was[e]
		switch f, doubted := c.formers[e]; {
		case !had:
			formers[e] = former{until: c.seen.clock}
		case before != o:
			formers[e] = former{uuid: c.told.text(e, gpu.FieldUUID), until: c.doubtUntil()}
		case doubted:
			formers[e] = f
		}
	}
	static := map[entity]map[gpu.FieldID]gpu.Value{}
	numbers := map[occupant]entity{}
	for e, o := range was {
		numbers[o] = e
	}
	for e, o := range is {
		if old, stays := numbers[o]; stays && c.told.static[old] != nil {
			static[e] = c.told.static[old]
		}
	}
	self := entity{groupGPU, c.id}
	if known := c.told.static[self]; known != nil {
		static[self] = known
	}
	c.formers, c.told.static, c.told.instances = formers, static, instances
	c.unfinished, c.tried, c.cols = true, time.Time{}, nil
	// The watches of a number may be gone with the former instance, soon after an earlier repair.
	c.mended = time.Time{}
}

// doubtUntil is until when a sample can be of an instance that is gone: the last look was at
// most a reading ago, and who asks another host knows its clock that well only.
func (c *card) doubtUntil() int64 {
	const slack = time.Second
	return c.seen.clock + (3*c.interval + slack).Microseconds()
}

// former reports whether a sample is of the instance that had the same number before.
func (c *card) former(rec record) bool {
	f, doubted := c.formers[rec.entity]
	return doubted && rec.ts > 0 && rec.ts <= f.until
}

// noticePart sees by the UUID of a compute instance that it is another one than it was.
func (c *card) noticePart(rec record, uuid string) {
	f, former := c.formers[rec.entity], c.former(rec)
	known := c.told.text(rec.entity, gpu.FieldUUID)
	if former && (f.uuid == "" || uuid == f.uuid) || !former && uuid == known {
		return
	}
	c.succeed(rec.entity, rec.ts-1, known != "" && uuid != known)
	c.redescribe()
}

// succeed has a compute instance and its GPU instance begin after a moment; what is known of
// them goes where they took the place of others unnoticed.
func (c *card) succeed(part entity, ended int64, unnoticed bool) {
	all := []entity{part}
	for _, i := range c.told.instances {
		for _, p := range i.parts {
			if uint32(p.id) == part.id {
				all = append(all, entity{groupGPUInstance, uint32(i.id)})
			}
		}
	}
	c.formers, c.told.static = maps.Clone(c.formers), maps.Clone(c.told.static)
	if c.formers == nil {
		c.formers = map[entity]former{}
	}
	for _, e := range all {
		if _, doubted := c.formers[e]; doubted || unnoticed {
			c.formers[e] = former{until: ended}
		}
		if unnoticed {
			delete(c.told.static, e)
		}
	}
}
