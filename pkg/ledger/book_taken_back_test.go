// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// What a commit that failed may have written is not left for others to read.
func TestACommitThatFailsTakesItsLinesBack(t *testing.T) {
	for call, failing := range []string{"write", "sync"} {
		dir, n := t.TempDir(), newBusyNode(7, 2)
		d := newFaultyDisk(t, dir)
		b := openBook(BookConfig{Dir: dir}, d)
		observe(b, n, 2)
		committed(t, b)
		observe(b, n, 2)
		committed(t, b)
		path := filepath.Join(dir, bookFolder, segmentName(1))
		size := sizeOf(path)
		d.at, d.until, d.err, d.half = d.calls+1+call, d.calls+2+call, syscall.ENOSPC, true
		observe(b, n, 2)
		if err := b.Commit(); err == nil || !strings.HasPrefix(d.called[d.at-1], failing) {
			t.Fatalf("%s: %v, %q", failing, err, d.called)
		}
		if left := sizeOf(path); left != size {
			t.Errorf("after a %s that failed the log has %d bytes, and %d were committed", failing, left, size)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
}
