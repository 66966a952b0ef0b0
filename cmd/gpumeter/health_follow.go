// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/healthstream"
)

const (
	// lookForClearing is how often it is looked whether a clearing is on the list, and
	// clearingPatience for how long: one that changed nothing makes no new list.
	lookForClearing  = 50 * time.Millisecond
	clearingPatience = 2 * time.Second
)

// listAfter is the first list that has the clearing, or the present one where it does not come.
func listAfter(ctx context.Context, client *healthstream.Client, done health.Clearing) (*healthstream.List, error) {
	over := time.After(clearingPatience)
	for {
		list, err := client.List(ctx)
		if err != nil || slices.ContainsFunc(list.Report.Clearings, func(c health.Clearing) bool {
			return c.Device == done.Device && c.By == done.By && c.Time.Equal(done.Time)
		}) {
			return list, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-over:
			return list, nil
		case <-time.After(lookForClearing):
		}
	}
}

// writeClearing says what an operator's word ended and what it could not end.
func writeClearing(w io.Writer, c health.Clearing) error {
	if _, err := fmt.Fprintf(w, "cleared %s: %s (%s)\n", oneLine(string(c.Device)), oneLine(c.Reason), oneLine(c.By)); err != nil {
		return err
	}
	for _, part := range []struct {
		word       string
		conditions []health.Condition
	}{{"ended", c.Ended}, {"stands, because the GPU still says so", c.Standing}} {
		for _, v := range health.ViewConditions(part.conditions) {
			if _, err := fmt.Fprintf(w, "  %s: %s since %s: %s\n", part.word, conditionWord(&v), stamp(v.Since), oneLine(v.Evidence)); err != nil {
				return err
			}
		}
	}
	if len(c.Ended)+len(c.Standing) == 0 {
		if _, err := fmt.Fprintln(w, "  there was nothing to end"); err != nil {
			return err
		}
	}
	return nil
}

// follower writes what changes from one state of a client to the next.
type follower struct {
	desk *healthDesk
	// said is the state that was written last.
	said healthstream.ClientState
}

// watch writes what changes until ctx ends.
func (d *healthDesk) watch(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	client := d.client()
	running.Go(func() {
		// It ends with ctx, and never with an error.
		_ = client.Run(ctx)
	})
	f := follower{desk: d}
	for {
		state, changed := client.Watch()
		if err := f.write(state); err != nil {
			return fmt.Errorf("write what changed: %w", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

func (f *follower) write(state healthstream.ClientState) error {
	before := f.said
	f.said = state
	if err := f.writeStream(before, state); err != nil {
		return err
	}
	if state.List == nil || before.List != nil && sameList(before.List, state.List) {
		return nil
	}
	view := viewOf(&state.List.List)
	switch {
	case f.desk.asJSON:
		return view.writeJSON(f.desk.stdout, "")
	case before.List == nil:
		return view.writeTable(f.desk.stdout)
	default:
		return f.writeChanges(viewOf(&before.List.List), view)
	}
}

func sameList(a, b *healthstream.Received) bool {
	return a.Epoch == b.Epoch && a.Report.Version == b.Report.Version
}

// writeStream says that the stream is lost or back. It says so on the standard output only where
// that is for people: a JSON document is a list.
func (f *follower) writeStream(before, state healthstream.ClientState) error {
	if f.desk.asJSON {
		return nil
	}
	var text string
	switch down := !state.Up && state.Err != nil; {
	case down && state.List != nil && before.Err == nil:
		text = "the exporter does not answer: " + oneLine(state.Err.Error()) + "; the last verdicts stand"
	case down && state.List == nil && (before.Err == nil || before.Err.Error() != state.Err.Error()):
		text = "the exporter does not answer: " + oneLine(advised(state.Err).Error())
	case state.Up && !before.Up && before.Err != nil:
		text = "the exporter answers"
	default:
		return nil
	}
	return f.writeLine(text)
}

func (f *follower) writeLine(text string) error {
	_, err := fmt.Fprintf(f.desk.stdout, "%s  %s\n", stamp(f.desk.now()), text)
	return err
}

// writeChanges writes a line for each device that is new, gone, or judged in another way.
func (f *follower) writeChanges(before, now healthView) error {
	old := make(map[gpu.UUID]health.DeviceView, len(before.Devices))
	for _, d := range before.Devices {
		old[d.UUID] = d
	}
	for _, d := range now.Devices {
		was, known := old[d.UUID]
		delete(old, d.UUID)
		text := fmt.Sprintf("GPU %s  %s  %s  %s  %s", devicePlace(&d), oneLine(string(d.UUID)), statusWord(&d), conditionWords(&d), orDash(oneLine(d.Reason)))
		switch {
		case !known:
			text += "  (new)"
		case statusWord(&was) != statusWord(&d):
			text += "  (was " + statusWord(&was) + ")"
		case conditionWords(&was) == conditionWords(&d) && was.Reason == d.Reason:
			continue
		}
		if err := f.writeLine(text); err != nil {
			return err
		}
	}
	for _, d := range before.Devices {
		if _, gone := old[d.UUID]; !gone {
			continue
		}
		if err := f.writeLine(fmt.Sprintf("GPU %s  %s  is not listed any more", devicePlace(&d), oneLine(string(d.UUID)))); err != nil {
			return err
		}
	}
	return nil
}
