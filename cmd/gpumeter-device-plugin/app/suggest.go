// SPDX-License-Identifier: Apache-2.0

package app

import (
	"strings"
)

// folded is a name without what people write differently: case, dashes and underscores.
func folded(name string) string {
	return strings.ToLower(strings.NewReplacer("-", "", "_", "", " ", "").Replace(name))
}

// mostEdits is how many letters may differ in a name that is still taken for the one that was meant.
const mostEdits = 4

// nearest is the name that somebody who wrote word may have meant.
func nearest(word string, names []string) (string, bool) {
	best, distance := "", min(len(word)/3, mostEdits)+1
	for _, name := range names {
		if d := edits(folded(word), folded(name)); d < distance {
			best, distance = name, d
		}
	}
	return best, best != ""
}

// longestCompared bounds what is compared letter by letter; no name is as long.
const longestCompared = 64

// edits is how many letters have to be put in, left out or changed to make one word of another.
func edits(a, b string) int {
	if len(a) > longestCompared || len(b) > longestCompared {
		return longestCompared
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
