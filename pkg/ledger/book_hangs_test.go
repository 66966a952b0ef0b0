// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"testing"
	"testing/synctest"
	"time"
)

// frozenDisk is one that does not answer at once.
type frozenDisk struct {
	osDisk
	wait time.Duration
}

func (d *frozenDisk) MkdirAll(dir string) error {
	time.Sleep(d.wait)
	return d.osDisk.MkdirAll(dir)
}

func (d *frozenDisk) SyncDir(dir string) error {
	time.Sleep(d.wait)
	return d.osDisk.SyncDir(dir)
}

func TestADiskThatHangsIsToldBeforeItAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &frozenDisk{osDisk: osDisk{hasty: true}, wait: 40 * time.Second}
		b := openBook(BookConfig{Dir: t.TempDir(), Node: "node-1"}, d)
		b.Observe(seen(instant("b", 0), []Card{a100(0)}, freeLine(a100(0))))
		done := make(chan error, 1)
		go func() { done <- b.Commit() }()
		for _, tt := range []struct {
			after    time.Duration
			degraded bool
		}{{time.Second, false}, {3900 * time.Millisecond, false}, {200 * time.Millisecond, true}, {30 * time.Second, true}} {
			time.Sleep(tt.after)
			// Nothing is observed meanwhile: the view changes by itself.
			if s := b.View().State; s.Degraded != tt.degraded || (s.Err != "") != tt.degraded {
				t.Errorf("%v later: degraded %v, %q", tt.after, s.Degraded, s.Err)
			}
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if s := b.View().State; s.Degraded || s.Err != "" {
			t.Errorf("the disk has answered, and the state is %+v", s)
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	})
}
