// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"fmt"
	"time"

	"github.com/gpumeter/gpumeter/pkg/health"
)

const (
	// saveEvery is how often the state of health is saved when nothing of it changes, and
	// saveCounting when some device's unhealthy time is counted.
	saveEvery    = time.Minute
	saveCounting = 10 * time.Second
	// unsavedLimit is how long the records may stay as they were last saved.
	unsavedLimit = 2 * time.Minute
	// saveHangs is how long a disk may take before it is a fault, and savePatience the longest that
	// a tick waits for it. At the end of the loop it has lastPatience.
	saveHangs    = 5 * time.Second
	savePatience = time.Second
	lastPatience = 2 * time.Second
)

// Store keeps what is known of the node's health beyond the process. Save may block for as long as a
// disk does: it runs apart from the loop, one call at a time.
type Store interface {
	Save(health.State) error
}

// StoreState is whether what a snapshot says of health would outlive a crash. It is zero without a Store.
type StoreState struct {
	// Saved says that all of Snapshot.Health that must be kept is on disk.
	Saved bool
	// Err is what went wrong at last, empty since it went well.
	Err string
	// At is when it last went well, on the wall clock; zero before.
	At time.Time
}

// keeper has the state of health saved before it is published, as long as the disk lets it. It is for
// the Meter's loop alone, and does nothing if nil.
type keeper struct {
	store              Store
	interval, patience time.Duration
	// told are the records that are published, those of the turn toldAt: what was saved then, or
	// what was in memory where nothing could be saved for long. turn counts the calls of keep.
	told         []health.Record
	turn, toldAt uint64
	// since is when the records that are told were the latest.
	since time.Time

	answers chan error
	running bool
	began   time.Time
	// saving is the Durable of the call under way, saved that of the last good one.
	saving, saved uint64
	// records are those of the call under way, of the turn recordsAt.
	records   []health.Record
	recordsAt uint64
	at        time.Time
	err       error
}

func newKeeper(cfg Config) *keeper {
	return &keeper{
		store: cfg.Conditions, interval: cfg.Interval, patience: min(cfg.Interval/4, savePatience), answers: make(chan error, 1),
		told: cfg.HealthState.Report().Records, since: time.Now(),
	}
}

// keep saves s if that is due, and says what became of it. A call that outlives its tick stays under
// way, and a newer state waits for its end.
func (k *keeper) keep(s health.State, now time.Time) (StoreState, []Fault) {
	if k == nil {
		return StoreState{}, nil
	}
	k.turn++
	if k.running || !k.holds(s) || k.due(s, now) {
		k.save(s, k.patience)
	}
	if k.toldAt != k.turn && k.overdue() {
		k.told, k.toldAt = s.Report().Records, k.turn
	}
	return StoreState{Saved: k.holds(s), Err: k.trouble(), At: k.at}, k.faults()
}

// due says whether a save is due though nothing has changed but what time brings. Where a device is
// unhealthy the next tick must not be too late for it.
func (k *keeper) due(s health.State, now time.Time) bool {
	age := now.Sub(k.at)
	return age >= saveEvery || age+k.interval > saveCounting && len(unhealthy(s.Report())) > 0
}

// overdue says that nothing has been saved for so long that the records are published unsaved.
func (k *keeper) overdue() bool { return time.Since(k.since) >= unsavedLimit }

// published is the report as it may be told: with the records that a restart would begin with. Only so
// do counters of health never fall, also where the process is killed.
func (k *keeper) published(r *health.Report) *health.Report {
	if k == nil {
		return r
	}
	out := *r
	out.Records = k.told
	return &out
}

// last saves what the loop ends with.
func (k *keeper) last(s health.State) {
	if k != nil {
		k.save(s, lastPatience)
	}
}

// save waits for the call under way, if there is one, and then for one with s, within patience for both.
func (k *keeper) save(s health.State, patience time.Duration) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for begun, answered := false, false; ; answered = true {
		if !k.running {
			if begun || answered && k.holds(s) {
				return
			}
			begun, k.running, k.began, k.saving = true, true, time.Now(), s.Durable()
			k.records, k.recordsAt = s.Report().Records, k.turn
			go func() { k.answers <- k.store.Save(s) }()
		}
		select {
		case err := <-k.answers:
			k.running, k.err = false, err
			if err == nil {
				k.stored()
			}
		case <-timer.C:
			return
		}
	}
}

// stored takes in that the call under way went well. Its records are told, unless later ones were.
func (k *keeper) stored() {
	k.saved, k.at, k.since = k.saving, time.Now(), k.began
	if k.recordsAt > k.toldAt {
		k.told, k.toldAt = k.records, k.recordsAt
	}
}

func (k *keeper) holds(s health.State) bool { return !k.at.IsZero() && k.saved == s.Durable() }

func (k *keeper) trouble() string {
	switch {
	case k.hangs():
		return fmt.Sprintf("the disk has not answered for %v", time.Since(k.began).Round(time.Second))
	case k.err != nil:
		return k.err.Error()
	}
	return ""
}

func (k *keeper) hangs() bool { return k.running && time.Since(k.began) >= saveHangs }

func (k *keeper) faults() []Fault {
	text := k.trouble()
	if text == "" {
		return nil
	}
	kind := "timeout"
	if !k.hangs() {
		kind = faultKind(k.err)
	}
	since := "the start"
	if !k.at.IsZero() {
		since = k.at.Format(time.RFC3339)
	}
	text += "; a restart would forget what changed since " + since
	if k.overdue() {
		text += ", and counters of health would fall by that much"
	}
	return []Fault{{Source: SourceConditions, Kind: kind, Text: text}}
}
