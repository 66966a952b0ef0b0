// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
)

// found is whose daemon answers in a place already.
type found int

const (
	nobody found = iota
	// ours was started by this program before it crashed, for the same GPUs.
	ours
	// foreign was started by somebody else.
	foreign
)

// takeOver looks for a daemon that answers already. Containers may be at work on it, so that it is
// used as it is; only one of ours for other GPUs has to go.
func (k *keeper) takeOver(ctx context.Context) (found, error) {
	if err := k.control.alive(ctx); err != nil {
		if errors.Is(err, errHangs) {
			return nobody, fmt.Errorf("a daemon is there that was not started by this program, and hangs: %w; end it", err)
		}
		return nobody, nil
	}
	record, err := os.ReadFile(k.place.record())
	if err != nil {
		k.log.Warn("somebody else's MPS control daemon answers: it is used, and keeps the limits it has (say --mps-daemon=external where that is meant)",
			"pipe", k.place.pipe())
		return foreign, nil
	}
	d, _ := k.now()
	if strings.TrimSpace(string(record)) == uuidList(d) {
		k.log.Info("an MPS control daemon of before is used on")
		return ours, nil
	}
	k.log.Warn("an MPS control daemon of before has other GPUs, and is ended", "had", strings.TrimSpace(string(record)))
	if err := k.quitAnswering(ctx); err != nil {
		return nobody, err
	}
	return nobody, nil
}

// quit tells a daemon to end, and waits. What does not end is killed by who has started it.
func (k *keeper) quit(ctx context.Context, c *child) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), k.cfg.pace.quit)
	defer cancel()
	if _, err := k.control.tell(ctx, cmdQuit); err != nil && !over(c) {
		k.log.Warn("the MPS control daemon does not take its end and is killed", "error", err)
		return
	}
	select {
	case <-c.ended:
		k.log.Info("the MPS control daemon has ended")
		_ = os.Remove(k.place.record())
	case <-ctx.Done():
		k.log.Warn("the MPS control daemon has not ended and is killed", "after", k.cfg.pace.quit)
	}
}

// quitAnswering ends a daemon of which nothing is known but that it answers.
func (k *keeper) quitAnswering(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), k.cfg.pace.quit)
	defer cancel()
	_, err := k.control.tell(ctx, cmdQuit)
	for err == nil && k.control.alive(ctx) == nil {
		if !sleep(ctx, k.cfg.pace.quit/100) {
			err = errors.New("it still answers")
		}
	}
	if err != nil {
		return fmt.Errorf("end the MPS control daemon of before, within %v: %w", k.cfg.pace.quit.Round(time.Millisecond), err)
	}
	_ = os.Remove(k.place.record())
	return nil
}
