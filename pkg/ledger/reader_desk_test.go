// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// desk writes a ledger as an exporter would, and turns the page when it is told to.
type desk struct {
	t       testing.TB
	dir     string
	account *Account
	w       *logWriter
	at      Instant
	cards   []Card
	// records wait to be written.
	records []Record
	// latest is the latest that the wall clock ever showed.
	latest int64
	// walls are what the wall clock showed whenever something was written.
	walls []int64
}

// deskStart is a Sunday, 00:00 UTC.
var deskStart = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

func newDesk(t testing.TB) *desk {
	t.Helper()
	d := &desk{
		t: t, dir: t.TempDir(), account: NewAccount(), at: Instant{"boot-1", 1_000_000, deskStart.UnixMilli()},
		cards: []Card{{UUID: "GPU-0", Index: 0, Model: "H100", Memory: 80 * 1024}},
	}
	if err := os.Mkdir(filepath.Join(d.dir, bookFolder), 0o755); err != nil {
		t.Fatal(err)
	}
	d.w = &logWriter{disk: osDisk{hasty: true}, dir: filepath.Join(d.dir, bookFolder)}
	d.begin()
	return d
}

func (d *desk) write(records []Record) {
	d.records = append(d.records, records...)
	d.latest, d.walls = max(d.latest, d.at.Wall), append(d.walls, d.at.Wall)
}

// flush lets others see what was written.
func (d *desk) flush() {
	d.t.Helper()
	if _, err := d.w.write(d.records); err != nil {
		d.t.Fatal(err)
	}
	d.w.drop()
	if len(d.records) > 0 {
		d.total()
	}
	d.records = nil
}

// ahead writes what waits to the log and leaves the totals as they are, as between the two steps of a commit.
func (d *desk) ahead() {
	d.t.Helper()
	if _, err := d.w.write(d.records); err != nil {
		d.t.Fatal(err)
	}
	d.records = nil
	d.w.drop()
}

// total saves the totals beside the log.
func (d *desk) total() {
	d.t.Helper()
	c, err := checkpointOf(d.account)
	if err != nil {
		d.t.Fatal(err)
	}
	c.Seq, c.Link = d.w.seq, d.w.link.String()
	s, err := osDisk{hasty: true}.createStore(filepath.Join(d.dir, bookFolder, storeName), &c)
	if err != nil {
		d.t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		d.t.Fatal(err)
	}
}

// begin is a start of the exporter.
func (d *desk) begin() {
	d.t.Helper()
	d.write(d.account.Begin(Begin{LedgerID: "ledger-1", Node: "node-1", Cluster: "c", Policy: "blend"}, d.at))
}

// pass lets time pass by both clocks.
func (d *desk) pass(span time.Duration) {
	d.at.Boot += span.Milliseconds()
	d.at.Wall += span.Milliseconds()
}

// step sets the wall clock.
func (d *desk) step(by time.Duration) { d.at.Wall += by.Milliseconds() }

// reboot starts the machine anew after a time.
func (d *desk) reboot(id string, away, up time.Duration) {
	d.t.Helper()
	d.at = Instant{id, up.Milliseconds(), d.at.Wall + away.Milliseconds()}
	d.begin()
}

// see observes lines now.
func (d *desk) see(lines ...Line) {
	d.t.Helper()
	d.write(d.account.Observe(Observation{At: d.at, Cards: d.cards, Lines: lines}))
}

// stand observes lines every ten seconds for a while.
func (d *desk) stand(span time.Duration, lines ...Line) {
	d.t.Helper()
	d.see(lines...)
	for ; span > 0; span -= 10 * time.Second {
		d.pass(min(span, 10*time.Second))
		d.see(lines...)
	}
}

// turn begins a segment.
func (d *desk) turn() {
	d.t.Helper()
	state, err := d.account.MarshalJSON()
	if err != nil {
		d.t.Fatal(err)
	}
	d.account.seq++
	d.write([]Record{{Seq: d.account.seq, At: d.account.at, Body: &Carry{State: state}}})
}

// reader reads what was written, at the time of the desk.
func (d *desk) reader() *Reader {
	d.t.Helper()
	d.flush()
	r, err := OpenReader(d.dir)
	if err != nil {
		d.t.Fatal(err)
	}
	now := time.UnixMilli(d.at.Wall)
	r.now = func() time.Time { return now }
	return r
}

// segments are the files, oldest first.
func (d *desk) segments() []string {
	d.t.Helper()
	d.flush()
	all, err := listSegments(filepath.Join(d.dir, bookFolder))
	if err != nil {
		d.t.Fatal(err)
	}
	var paths []string
	for _, s := range all {
		paths = append(paths, s.path)
	}
	return paths
}

// usage asks for windows between moments, said as times since the start.
func (d *desk) usage(detail Detail, since ...time.Duration) Usage {
	d.t.Helper()
	u, err := d.reader().Usage(d.t.Context(), Query{Boundaries: deskTimes(since...), Detail: detail})
	if err != nil {
		d.t.Fatal(err)
	}
	if len(u.Nodes) != 1 {
		d.t.Fatalf("%d nodes", len(u.Nodes))
	}
	return u
}

func deskTimes(since ...time.Duration) []time.Time {
	times := make([]time.Time, 0, len(since))
	for _, s := range since {
		times = append(times, deskStart.Add(s))
	}
	return times
}

// whole is a line of a pod that has all of the card.
func whole(pod string) Line {
	l := seat(pod, 1)
	l.Mode, l.Resource = sharing.ModeExclusive, "nvidia.com/gpu"
	return l
}

// seat is a line of a pod that has one seat of several.
func seat(pod string, of int) Line {
	part := sharing.NewFraction(1, int64(of))
	return Line{
		Card: "GPU-0", Device: "GPU-0", GPUInstance: gpu.NoInstance, Resource: "nvidia.com/gpu.shared", Mode: sharing.ModeShared,
		Holder: sharing.Holder{Namespace: "team-" + pod[:1], Pod: pod, PodUID: "uid-" + pod, Container: "main"},
		Seats:  1, Of: of, Weight: sharing.One(), Part: part, Memory: part,
	}
}

// left is a line of so many seats that nobody has.
func left(cause sharing.Cause, seats, of int64) Line {
	part := sharing.NewFraction(seats, of)
	return Line{Card: "GPU-0", GPUInstance: gpu.NoInstance, Cause: cause, Weight: sharing.One(), Part: part, Memory: part}
}

// heldOf is what a namespace held in a window, in GPU-microseconds.
func heldOf(u Usage, namespace string, window int) int64 {
	sum := int64(0)
	for _, h := range u.Held {
		if h.Namespace == namespace && h.Window == window {
			sum += h.GPU
		}
	}
	return sum
}

// restOf is what was booked to a cause in a window, in GPU-microseconds; capacity for none.
func restOf(u Usage, cause sharing.Cause, window int) int64 {
	sum := int64(0)
	for _, r := range u.Rest {
		if r.Cause == cause && r.Window == window && !r.Corrected {
			sum += r.GPU
		}
	}
	return sum
}

// micros is a time in GPU-microseconds of one card.
func micros(d time.Duration) int64 { return d.Microseconds() }
