// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// cell is one cell of a row, without quotes and the space around it.
type cell struct {
	text string
	// column is where it begins, in bytes from 1; a quoted cell begins with its quote.
	column int
}

// cellError is why a line could not be split.
type cellError struct {
	column     int
	text, hint string
}

// splitCells parts a line at its commas; the first cell is always there, empty
// cells at the end are left out. encoding/csv is not used: it takes a quote that
// is not closed for the beginning of a cell of many lines, which then costs the
// rest of the file.
func splitCells(line string) ([]cell, *cellError) {
	if bad := checkText(line); bad != nil {
		return nil, bad
	}
	var cells []cell
	for at := 0; ; {
		at += len(line[at:]) - len(strings.TrimLeft(line[at:], " \t"))
		c := cell{column: at + 1}
		if strings.HasPrefix(line[at:], `"`) {
			text, end, bad := quotedCell(line, at)
			if bad != nil {
				return nil, bad
			}
			c.text, at = strings.Trim(text, " \t"), end
		} else {
			text, _, _ := strings.Cut(line[at:], ",")
			c.text = strings.TrimRight(text, " \t")
			at += len(text)
		}
		cells = append(cells, c)
		if at == len(line) {
			break
		}
		at++
	}
	for len(cells) > 1 && cells[len(cells)-1].text == "" {
		cells = cells[:len(cells)-1]
	}
	return cells, nil
}

// quotedCell reads the quoted cell that begins at line[at]. end is the place of
// the comma after it, or the end of the line.
func quotedCell(line string, at int) (text string, end int, bad *cellError) {
	var b strings.Builder
	for i := at + 1; i < len(line); i++ {
		if line[i] != '"' {
			b.WriteByte(line[i])
			continue
		}
		if i+1 < len(line) && line[i+1] == '"' {
			b.WriteByte('"')
			i++
			continue
		}
		end := i + 1
		end += len(line[end:]) - len(strings.TrimLeft(line[end:], " \t"))
		if end < len(line) && line[end] != ',' {
			return "", 0, &cellError{end + 1, "text after a closing quote", "write a quote inside a quoted cell twice"}
		}
		return b.String(), end, nil
	}
	return "", 0, &cellError{at + 1, "quote is not closed on this line", "close it; a cell cannot go on to the next line"}
}

// checkText finds what has no place in a row: bytes that are not UTF-8, and
// control characters other than the tab.
func checkText(line string) *cellError {
	for i, r := range line {
		if r == utf8.RuneError && !strings.HasPrefix(line[i:], "\ufffd") {
			return &cellError{i + 1, fmt.Sprintf("byte 0x%02x is not UTF-8", line[i]), "save the file as UTF-8"}
		}
		if r < ' ' && r != '\t' || r >= 0x7f && r < 0xa0 {
			return &cellError{i + 1, fmt.Sprintf("control character %U", r), "remove it"}
		}
	}
	return nil
}

// quoted is foreign text fit for a message.
func quoted(text string) string {
	const limit = 64
	if len(text) <= limit {
		return strconv.Quote(text)
	}
	return strconv.Quote(strings.ToValidUTF8(text[:limit], "")) + "..."
}

const (
	// maxGuesses is for how many unknown names of one file the nearest are looked for.
	maxGuesses = 16
	// maxGuessBytes is longer than any name.
	maxGuessBytes = 80
)

// nearestNames is a hint with the names that name may be a misspelling of, at
// most three and one per field, or empty. Names farther off than the nearest are
// noise beside it.
func nearestNames(name string) string {
	if len(name) > maxGuessBytes {
		return ""
	}
	type guess struct {
		name     string
		distance int
	}
	var guesses []guess
	wanted := strings.ToUpper(name)
	known := gpu.Fields()
	for id := gpu.FieldXIDErrorsCount; id.Computed(); id++ {
		if f, ok := gpu.FieldByID(id); ok {
			known = append(known, f)
		}
	}
	for _, f := range known {
		best := guess{distance: max(2, len(name)/4) + 1}
		candidates := append([]string{f.Name}, f.Aliases...)
		if f.Tag != "" && strings.HasPrefix(wanted, "DCGM_") && !strings.HasPrefix(wanted, "DCGM_FI_") {
			candidates = append(candidates, "dcgm_"+f.Tag)
		}
		for _, c := range candidates {
			if d := editDistance(wanted, strings.ToUpper(c), best.distance); d < best.distance {
				best = guess{c, d}
			}
		}
		if best.name != "" {
			guesses = append(guesses, best)
		}
	}
	slices.SortFunc(guesses, func(a, b guess) int {
		return cmp.Or(cmp.Compare(a.distance, b.distance), cmp.Compare(a.name, b.name))
	})
	var names []string
	for _, g := range guesses[:min(3, len(guesses))] {
		if g.distance <= guesses[0].distance+1 {
			names = append(names, g.name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return "did you mean " + strings.Join(names, ", ") + "?"
}

// editDistance is how many bytes must be put in, taken out or changed to make b of
// a; limit where it is that or more.
func editDistance(a, b string, limit int) int {
	if len(a)-len(b) >= limit || len(b)-len(a) >= limit {
		return limit
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal, least := row[0], i+1
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
			least = min(least, row[j+1])
		}
		if least >= limit {
			return limit
		}
	}
	return min(row[len(b)], limit)
}
