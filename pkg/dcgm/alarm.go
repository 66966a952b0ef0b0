// SPDX-License-Identifier: Apache-2.0

package dcgm

import (
	"context"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

const (
	// listenInterval is how often each GPU is asked whether there is something new.
	listenInterval = time.Second
	// listenPatience bounds how long a reading may have to wait for such a look.
	listenPatience = 100 * time.Millisecond
)

// Alarms gets something within about a second after an XID, after a GPU was lost, unbound or is back, or
// after the engine has sampled another recovery action or level of health that may withdraw a GPU, if
// those were asked for; so that a Read need not be waited for, and each second until a Read has told it. A
// GPU that hangs is not heard meanwhile.
func (s *Source) Alarms() <-chan struct{} { return s.alarm }

// raise raises the alarm, if it is not raised already.
func (s *Source) raise() {
	select {
	case s.alarm <- struct{}{}:
	default:
	}
}

// listen looks for news between the readings until the source is closed.
func (s *Source) listen() {
	ticker := time.NewTicker(listenInterval)
	defer ticker.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-ticker.C:
			s.lookForNews()
		}
	}
}

// lookForNews has each GPU that is not behind with something looked at, and the list of those that can be
// used. A reading under way does the same.
func (s *Source) lookForNews() {
	select {
	case s.turn <- struct{}{}:
		defer s.giveTurn()
	default:
		return
	}
	if s.ctx.Err() != nil {
		return
	}
	ss := s.connection.present()
	if ss == nil {
		return
	}
	for _, c := range s.cards {
		s.hear(c)
		if c.told && !c.worker.busy() {
			c.worker.begin(cardJob{ss: ss, listen: true})
		}
	}
	s.hearClerk()
	if before := s.known(ss); before != nil && !s.clerk.busy() {
		s.clerk.begin(clerkJob{ss: ss, what: errandRollCall, before: before})
	}
	wait, done := context.WithTimeout(s.ctx, listenPatience)
	defer done()
	for _, c := range s.cards {
		if !c.worker.busy() {
			continue
		}
		if a, ok := c.worker.take(wait.Done()); ok {
			s.absorb(c, a)
		}
	}
	if s.clerk.busy() {
		if a, ok := s.clerk.take(wait.Done()); ok {
			s.filed(a)
		}
	}
}

// rollCall reports whether other GPUs can be used than in the survey before.
func (ss *session) rollCall(before *survey) (bool, error) {
	supported, err := ss.supportedDevices()
	if err != nil {
		return false, err
	}
	was := slices.Sorted(slices.Values(before.supported))
	return !slices.Equal(was, slices.Sorted(slices.Values(supported))), nil
}

// listen reports whether the GPU or an instance of it has an XID that was not told, or the GPU a level of
// health. It takes nothing: the next reading finds it where it is.
func (c *card) listen(ss *session) bool {
	if ss != c.ss || ss.over() || len(c.sets) == 0 {
		return false
	}
	own := c.sets[0]
	for _, list := range own.listen {
		if err := ss.latest(own.id, list.id, &c.records); err != nil {
			_ = ss.fail(err)
			return false
		}
		for i := range c.records.len() {
			if rec := c.records.at(i); rec.field == gpu.FieldXID && c.xids.untold(rec) || c.differs(rec) {
				return true
			}
		}
	}
	return false
}

// differs reports whether a record is a level of health of the card that is not as the last reading had it,
// 0 where it had none. What is absent is no news, nor is anything of a card that is lost.
func (c *card) differs(rec record) bool {
	if !urgent(rec.field) || rec.entity != (entity{groupGPU, c.id}) || c.lost != nil {
		return false
	}
	if rec.status == stGPUIsLost {
		// The reading will find it so.
		return true
	}
	v, present := rec.value().AsInt()
	return present && v != c.levels[rec.field]
}

// noteLevel keeps what a reading has of a level of health.
func (c *card) noteLevel(rec record) {
	if !urgent(rec.field) || rec.entity != (entity{groupGPU, c.id}) {
		return
	}
	if v, present := rec.value().AsInt(); present {
		if c.levels == nil {
			c.levels = map[gpu.FieldID]int64{}
		}
		c.levels[rec.field] = v
	}
}

// untold reports whether a record is an XID that is newer than what was told. Of an entity that no
// reading has looked at, nobody can say.
func (x *xids) untold(rec record) bool {
	cursor, known := x.cursors[rec.entity]
	_, present := rec.value().AsInt()
	return known && present && rec.ts > cursor.ts
}
