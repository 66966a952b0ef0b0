// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// aside is what was put aside of a ledger because it could not be used.
type aside struct {
	path string
	// whole: it is all of a ledger that was here before; else it is a file of this one.
	whole bool
	// oldest is the wall clock of the first record that can be read in it, 0 where there is none.
	oldest int64
}

// putAside are the ledgers that were here before the one in dir, and the files of its own that were put aside.
func putAside(dir string) []aside {
	var found []aside
	if filepath.Base(dir) == bookFolder {
		for _, name := range asideNames(filepath.Dir(dir), bookFolder, "") {
			found = append(found, aside{path: name, whole: true, oldest: oldestIn(name)})
		}
	}
	for _, name := range asideNames(dir, segmentPrefix, segmentSuffix) {
		found = append(found, aside{path: name, oldest: firstWall(name)})
	}
	return found
}

// asideNames are the paths in a folder whose names are prefix, anything, suffix, and a word that says why it was put aside.
func asideNames(dir, prefix, suffix string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		for _, word := range []string{wordCorrupt, wordNewer} {
			before, _, found := strings.Cut(e.Name(), "."+word+"-")
			if found && strings.HasPrefix(before, prefix) && strings.HasSuffix(before, suffix) && (suffix != "" || before == prefix) {
				names = append(names, filepath.Join(dir, e.Name()))
			}
		}
	}
	slices.Sort(names)
	return names
}

// oldestIn is the wall clock of the first record that can be read in a folder of segments.
func oldestIn(dir string) int64 {
	segments, err := listSegments(dir)
	if err != nil {
		return 0
	}
	for _, s := range segments {
		if wall := firstWall(s.path); wall != 0 {
			return wall
		}
	}
	return 0
}

// firstWall is the wall clock of the first whole line of a file.
func firstWall(path string) int64 {
	for line, err := range rawLines(path) {
		if err != nil {
			break
		}
		if h, ok := headOf(line); ok && intact(line) {
			return h.wall
		}
	}
	return 0
}

func (a *aside) text() string {
	if a.whole {
		return fmt.Sprintf("the ledger that was here before could not be used and was put aside as %s: what is in it is not counted; gpumeter verify --ledger on it says what can be read", a.path)
	}
	return fmt.Sprintf("%s was set aside because it could not be read: what only it has is not counted", filepath.Base(a.path))
}

// asides says what the answer lacks because of what was put aside.
func (a *nodeAnswer) asides(dir string) {
	first, last := a.q.Boundaries[0], a.q.Boundaries[len(a.q.Boundaries)-1]
	for _, x := range putAside(dir) {
		if text := x.text(); !slices.Contains(a.notes, text) {
			a.notes = append(a.notes, text)
		}
		if !x.whole || a.node.Created.IsZero() {
			continue
		}
		from := first
		if x.oldest != 0 {
			from = later(first, time.UnixMilli(x.oldest))
		}
		if to := earlier(a.node.Created, last); to.After(from) {
			a.miss(Missing{From: from.UTC(), To: to.UTC(), Reason: "put_aside", Text: fmt.Sprintf("node %s: %s", a.node.Node, x.text())})
		}
	}
}
