// SPDX-License-Identifier: Apache-2.0

package report

import (
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/shopspring/decimal"
)

// none is shown where there is no value, which is not the same as 0.
const none = "–"

// visible is foreign text as people may see it: what would move a cursor, turn the direction of writing or
// hide itself is shown as a mark of its own.
func visible(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r < ' ':
			return '\u2400' + r
		case r == 0x7f:
			return '\u2421'
		case r == '\u2028', r == '\u2029':
			return '\u2424'
		case r == utf8.RuneError, unicode.Is(unicode.Cc, r), unicode.Is(unicode.Bidi_Control, r), r == '\ufeff':
			return utf8.RuneError
		}
		return r
	}, text)
}

// cells is how many columns of a terminal text takes.
func cells(text string) int {
	n := 0
	for _, r := range text {
		n += cellsOf(r)
	}
	return n
}

func cellsOf(r rune) int {
	switch {
	case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
		return 0
	case r >= 0x1100 && (r <= 0x115f || r >= 0x2e80 && r <= 0xa4cf || r >= 0xac00 && r <= 0xd7a3 || r >= 0xf900 && r <= 0xfaff ||
		r >= 0xfe30 && r <= 0xfe6f || r >= 0xff00 && r <= 0xff60 || r >= 0xffe0 && r <= 0xffe6 || r >= 0x1f300 && r <= 0x1faff ||
		r >= 0x20000 && r <= 0x3fffd):
		return 2
	}
	return 1
}

// fold breaks text into lines of at most width cells, after a separator where there is one in the line's
// second half.
func fold(text string, width int) []string {
	var lines []string
	for cells(text) > width {
		end, used, after := 0, 0, 0
		for i, r := range text {
			if used += cellsOf(r); used > width {
				break
			}
			end = i + utf8.RuneLen(r)
			if strings.ContainsRune("-/._: ", r) {
				after = end
			}
		}
		if after > end/2 {
			end = after
		}
		if end == 0 {
			break
		}
		lines = append(lines, text[:end])
		text = text[end:]
	}
	return append(lines, text)
}

// thousands writes a number with a comma after every three digits before the point.
func thousands(number string) string {
	sign := ""
	if rest, negative := strings.CutPrefix(number, "-"); negative {
		sign, number = "-", rest
	}
	whole, fraction, point := strings.Cut(number, ".")
	var b strings.Builder
	b.WriteString(sign)
	for i, digit := range whole {
		if i > 0 && (len(whole)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(digit)
	}
	if point {
		b.WriteByte('.')
		b.WriteString(fraction)
	}
	return b.String()
}

// percent is part of whole with one decimal, or false where whole is nothing.
func percent(part, whole decimal.Decimal) (string, bool) {
	if whole.IsZero() {
		return none, false
	}
	return part.Mul(decimal.NewFromInt(100)).DivRound(whole, 1).StringFixed(1) + " %", true
}

// periodName is a period as people say it: "March 2026", "12 March 2026", or from when to when.
func periodName(from, to time.Time, zone *time.Location) string {
	from, to = from.In(zone), to.In(zone)
	switch {
	case midnight(from) && from.Day() == 1 && to.Equal(from.AddDate(0, 1, 0)):
		return from.Format("January 2006")
	case midnight(from) && to.Equal(from.AddDate(0, 0, 1)):
		return from.Format("2 January 2006")
	case midnight(from) && midnight(to):
		last := to.AddDate(0, 0, -1)
		if from.Year() == last.Year() {
			return from.Format("2 January") + " – " + last.Format("2 January 2006")
		}
		return from.Format("2 January 2006") + " – " + last.Format("2 January 2006")
	}
	return from.Format(minute) + " – " + to.Format(minute)
}

func midnight(t time.Time) bool {
	return t.Hour() == 0 && t.Minute() == 0 && t.Second() == 0 && t.Nanosecond() == 0
}

// minute is how moments are shown to people, second where it matters.
const (
	minute = "2006-01-02 15:04"
	second = "2006-01-02 15:04:05"
)

// lasted is a duration as people say it.
func lasted(d time.Duration) string {
	switch {
	case d < time.Minute:
		return d.Round(time.Second).String()
	case d < time.Hour:
		return decimal.NewFromFloat(d.Minutes()).Round(1).String() + " min"
	}
	return decimal.NewFromFloat(d.Hours()).Round(1).String() + " h"
}
