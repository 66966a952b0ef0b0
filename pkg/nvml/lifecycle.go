// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// The pauses between attempts to reach a driver that is away.
const (
	firstPause   = time.Second
	longestPause = 30 * time.Second
)

// takeTurn waits until nobody else speaks to the driver.
func (s *Source) takeTurn(w *waiting) error {
	if err := s.over(w); err != nil {
		return err
	}
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-w.Done():
		if err := s.over(w); err != nil {
			return err
		}
		return failed(kindTimeout, "read GPUs through NVML: another call is not over")
	}
}

func (s *Source) endTurn() { <-s.turn }

// awake is nil where the driver can be spoken to, after an attempt to reach it where one is due.
func (s *Source) awake(w *waiting) error {
	switch {
	case s.released:
		return failed(kindReleased, "the driver was released on request, so that it can be changed; no GPU is read until it is taken up again: "+
			"repeat the request (SIGUSR1 to the exporter), or restart the program")
	case s.down == nil:
		return s.rescan(w)
	case time.Now().Before(s.retry):
		return &failure{kindDriver, fmt.Errorf("%w; next attempt in %v", s.down, time.Until(s.retry).Round(time.Second))}
	}
	if err := s.reconnect(w); err != nil {
		return s.postpone(err)
	}
	s.down, s.pause = nil, 0
	s.log.Info("the driver is back", "driver", s.Origin().Driver)
	return nil
}

// postpone notes that the driver is away and that it was no use to try now.
func (s *Source) postpone(err error) error {
	s.down = err
	s.pause = min(max(s.pause*2, firstPause), longestPause)
	s.retry = time.Now().Add(s.pause)
	return &failure{kindDriver, fmt.Errorf("%w; next attempt in %v", err, s.pause)}
}

// lose notes that the driver is away. The next reading tries to reach it again.
func (s *Source) lose(ret nvml.Return) error {
	s.down = fmt.Errorf("%w: %w; %s", ErrNoDriver, returned(ret), remedyOf(ret))
	s.retry = time.Now()
	s.log.Warn("the driver is away", "error", s.down)
	return &failure{kindDriver, s.down}
}

// reconnect initialises the library anew.
func (s *Source) reconnect(w *waiting) error {
	if err := s.disconnect(w); err != nil {
		return err
	}
	return s.connect(w)
}

// disconnect lets go of the driver: no call may be under way when the library is shut down.
func (s *Source) disconnect(w *waiting) error {
	waitFor := make(map[*lane]call[struct{}])
	var stuck []string
	for _, c := range s.cards {
		letGo, idle := begin(c.lane, func() struct{} { c.forget(); return struct{}{} })
		if !idle {
			stuck = append(stuck, c.lane.name)
			continue
		}
		waitFor[c.lane] = letGo
	}
	for _, l := range []*lane{s.node, s.peers.lane} {
		nothing, idle := begin(l, func() struct{} { return struct{}{} })
		if !idle {
			stuck = append(stuck, l.name)
			continue
		}
		waitFor[l] = nothing
	}
	for l, c := range waitFor {
		if _, ok := c.wait(w.Done()); !ok {
			stuck = append(stuck, l.name)
		}
	}
	if len(stuck) > 0 {
		return fmt.Errorf("the driver cannot be let go: calls are outstanding for %s; end this program instead", strings.Join(stuck, ", "))
	}
	s.peers = peerBook{lane: s.peers.lane, lib: s.lib}
	shutting, _ := begin(s.node, s.lib.Shutdown)
	ret, ok := shutting.wait(w.Done())
	switch {
	case !ok:
		return fmt.Errorf("nvmlShutdown has not come back for %v", s.node.outstanding().Round(time.Millisecond))
	case ret != nvml.SUCCESS && !driverGone(ret):
		return fmt.Errorf("nvmlShutdown: %w", returned(ret))
	}
	return nil
}

// Release lets go of the driver, so that it can be unloaded. Until Resume, Read answers an error
// of the kind "released". It fails, and nothing changes, while a call hangs.
func (s *Source) Release(ctx context.Context) error {
	w := s.wait(ctx)
	defer w.end()
	if err := s.takeTurn(w); err != nil {
		return err
	}
	defer s.endTurn()
	if s.released {
		return nil
	}
	if err := s.disconnect(w); err != nil {
		// What was let go of meanwhile is taken up again by the next reading.
		return fmt.Errorf("release the driver: %w", err)
	}
	s.released = true
	s.log.Info("the driver is released")
	return nil
}

// Resume takes up the driver again. Where it cannot, the readings go on trying.
func (s *Source) Resume(ctx context.Context) error {
	w := s.wait(ctx)
	defer w.end()
	if err := s.takeTurn(w); err != nil {
		return err
	}
	defer s.endTurn()
	if !s.released {
		return nil
	}
	s.released = false
	if err := s.connect(w); err != nil {
		s.down, s.retry, s.pause = err, time.Now().Add(firstPause), firstPause
		return fmt.Errorf("resume the driver: %w", err)
	}
	s.down, s.pause = nil, 0
	s.log.Info("the driver is resumed", "driver", s.Origin().Driver)
	return nil
}

// closePatience is how long Close waits for the driver.
const closePatience = 2 * time.Second

// Close lets go of the driver for good. It does not wait for a call that hangs: what that
// holds, the end of the process frees.
func (s *Source) Close() error {
	s.closing.Do(func() {
		// Whoever reads sees the end of life and gives the turn back.
		s.close()
		defer close(s.ended)
		ctx, cancel := context.WithTimeout(context.Background(), closePatience)
		defer cancel()
		select {
		case s.turn <- struct{}{}:
			defer s.endTurn()
		case <-ctx.Done():
			return
		}
		if s.released || s.down != nil {
			return
		}
		if err := s.disconnect(&waiting{Context: ctx, caller: ctx}); err != nil {
			s.log.Warn("closed without letting go of the driver", "error", err)
		}
	})
	return nil
}
