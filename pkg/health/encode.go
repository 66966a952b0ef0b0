// SPDX-License-Identifier: Apache-2.0

package health

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// stateFormat is the format that is written. Formats from 1 to this one are read.
const stateFormat = 1

// ErrNewerFormat is the reason of an error about a state that a newer version has written.
var ErrNewerFormat = errors.New("it was written by a newer version")

type encoded struct {
	Format int `json:"format"`
	*data
}

// MarshalJSON is the state for UnmarshalJSON of this version and later ones.
func (s State) MarshalJSON() ([]byte, error) {
	return json.Marshal(encoded{stateFormat, s.data})
}

// UnmarshalJSON takes up a state that MarshalJSON has written: every verdict is what it was. An error
// leaves s as it was; it wraps ErrNewerFormat where a newer version has written the state.
func (s *State) UnmarshalJSON(text []byte) error {
	var format struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(text, &format); err != nil {
		return fmt.Errorf("state of health: %w", err)
	}
	switch {
	case format.Format > stateFormat:
		return fmt.Errorf("state of health in format %d, and up to %d is known: %w", format.Format, stateFormat, ErrNewerFormat)
	case format.Format < 1:
		return fmt.Errorf("state of health without a format (want 1 to %d)", stateFormat)
	}
	d := &data{}
	if err := json.Unmarshal(text, d); err != nil {
		return fmt.Errorf("state of health: %w", err)
	}
	if d.Version == 0 {
		// Nothing was known.
		*s = State{}
		return nil
	}
	if err := d.validate(); err != nil {
		return fmt.Errorf("state of health: %w", err)
	}
	d.restored = true
	d.report = (&Report{
		Time: d.Time, BootID: d.BootID, Version: d.Version, Verdicts: d.verdicts(), Records: d.Records, Clearings: d.Clearings,
		Ended: d.endings(), Repartition: d.Repartition.view(),
	}).filled()
	*s = State{d}
	return nil
}

// validate says what of a state cannot have been written by MarshalJSON.
func (d *data) validate() error {
	known := map[gpu.UUID]bool{}
	if len(d.Cards) > mostCards || len(d.Facts) > mostReporters || len(d.Clearings) > mostClearings || len(d.Records) > mostRecords+1 {
		return errors.New("it has more than a state can hold")
	}
	for i := range d.Cards {
		c := &d.Cards[i]
		if err := c.validate(known); err != nil {
			return fmt.Errorf("GPU %q: %w", line(string(c.UUID)), err)
		}
	}
	for reporter, facts := range d.Facts {
		if reporter != word(reporter) || !slices.Equal(facts, foldable(facts)) {
			return fmt.Errorf("facts of %q that cannot be", line(reporter))
		}
	}
	for i := range d.Records {
		r := &d.Records[i]
		if i > 0 && d.Records[i-1].Device >= r.Device || r.Unhealthy < 0 || r.Transitions == nil {
			return fmt.Errorf("a record of %q that cannot be", line(string(r.Device)))
		}
	}
	for i := range d.Clearings {
		if w := &d.Clearings[i]; w.Reason != line(w.Reason) || w.By != line(w.By) {
			return errors.New("a clearing that cannot be")
		}
	}
	if !d.Repartition.valid() {
		return errors.New("a repartition that cannot be")
	}
	if d.BootID != word(d.BootID) || !writable(d.Time) || !writable(d.Heard) {
		return errors.New("a time or boot id that cannot be")
	}
	return nil
}

func (c *card) validate(known map[gpu.UUID]bool) error {
	if len(c.Parts) > mostParts || len(c.Conditions) > mostConditions+1 || len(c.Past) > mostPast {
		return errors.New("it has more than a GPU can have")
	}
	for _, d := range append([]device{c.device}, c.Parts...) {
		if known[d.UUID] || d.UUID == "" || len(d.UUID) > mostWord || d.Status > Unhealthy || d.Note != line(d.Note) || !utf8.ValidString(string(d.UUID)) {
			return fmt.Errorf("device %q has no name, another's, or no status that there is", line(string(d.UUID)))
		}
		known[d.UUID] = true
	}
	if c.Bus != word(c.Bus) {
		return errors.New("its place on the bus cannot be")
	}
	for i := range c.Conditions {
		q := &c.Conditions[i]
		switch {
		case q.GPU != c.UUID || c.find(q.Subject, q.Kind) != i:
			return fmt.Errorf("condition %q is another GPU's, or there twice", line(string(q.Kind)))
		case q.Class < ClassWatch || q.Class > ClassHardware || q.Own < ClassWatch || q.Own > ClassHardware || q.Origin < ofEvent || q.Origin > ofFlapping:
			return fmt.Errorf("condition %q has a class or an origin that there is not", line(string(q.Kind)))
		case string(q.Kind) != word(string(q.Kind)) || q.Evidence != line(q.Evidence) || q.Cause != line(q.Cause) || q.Recovery != line(q.Recovery):
			return fmt.Errorf("condition %q has texts that cannot be", line(string(q.Kind)))
		case len(q.Recent) > mostRecent:
			return fmt.Errorf("condition %q has more occurrences than are kept", line(string(q.Kind)))
		}
	}
	for i := range c.Past {
		if len(c.Past[i].Returns) > mostRecent || len(c.Past[i].Kind) > mostWord || strings.ContainsRune(string(c.Past[i].Kind), 0) {
			return errors.New("it has a past that cannot be")
		}
	}
	return nil
}

// writable says whether JSON has a word for a time.
func writable(t time.Time) bool { return t.Year() >= 0 && t.Year() < 10000 }
