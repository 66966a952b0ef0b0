// SPDX-License-Identifier: Apache-2.0

package dcgm

import (
	"context"
	"fmt"
)

// Release lets go of the driver, so that it can be upgraded: an engine in this process is
// stopped, a host engine is disconnected from. From now on until Resume every Read answers an
// error of the kind "released", at once. Release waits for calls under way until ctx ends; its
// error says where the driver may still be held.
func (s *Source) Release(ctx context.Context) error {
	s.connection.leave()
	ctx, done := context.WithCancel(ctx)
	defer done()
	defer context.AfterFunc(s.ctx, done)()
	busy := true
	if err := s.takeTurn(ctx, nil); err == nil {
		defer s.giveTurn()
		s.settle(ctx)
		busy = s.busy()
	} else if s.ctx.Err() != nil {
		return fmt.Errorf("let go of DCGM: %w", err)
	}
	if ctx.Err() != nil {
		// Nothing is read any more all the same, and the driver is let go of when it can be.
		ctx, done = context.WithTimeout(context.WithoutCancel(ctx), closePatience)
		defer done()
	}
	if err := s.connection.order(ctx, order{release: true, detach: !busy}); err != nil {
		return fmt.Errorf("let go of DCGM: %w", err)
	}
	return nil
}

// Resume takes the engine again after Release. Where that fails it is tried again in the
// background.
func (s *Source) Resume(ctx context.Context) error {
	s.connection.arrive()
	if err := s.connection.order(ctx, order{}); err != nil {
		return fmt.Errorf("take DCGM again: %w", err)
	}
	return nil
}
