// SPDX-License-Identifier: Apache-2.0

package prices

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"
)

// overlaps finds entries of which neither is more specific, and both could be for the same thing at the same time.
func (p *parser) overlaps(list []entry) {
	for i := range list {
		a := &list[i]
		for j := i + 1; j < len(list) && slices.Equal(a.ranked, list[j].ranked); j++ {
			b := &list[j]
			if !a.meets(&b.selector) || !together(a, b) {
				continue
			}
			first, second := a, b
			if b.line < a.line {
				first, second = b, a
			}
			p.fault(second.line, "%s (line %d) and %s (line %d) are as specific as each other and can both be for the same GPU at the same time: "+
				"make one more specific, or end one with valid_to", first.name, first.line, second.name, second.line)
		}
	}
}

// together reports whether there is a time at which both are valid.
func together(a, b *entry) bool {
	begins := func(x, y *entry) bool { return x.from.IsZero() || y.to.IsZero() || x.from.Before(y.to) }
	return begins(a, b) && begins(b, a)
}

// holes finds times between two prices of the same selector in which there is none.
func (p *parser) holes(list []entry) {
	bySelector := map[string][]*entry{}
	for i := range list {
		key := list[i].String()
		bySelector[key] = append(bySelector[key], &list[i])
	}
	for _, key := range sortedKeys(bySelector) {
		same := bySelector[key]
		slices.SortFunc(same, func(a, b *entry) int { return a.from.Compare(b.from) })
		for i := 1; i < len(same); i++ {
			before, after := same[i-1], same[i]
			if before.to.IsZero() || before.ends || !after.from.After(before.to) {
				continue
			}
			p.fault(after.line, "between %s (line %d, until %s) and %s (line %d, from %s) there is a hole: close it, or say \"ends: true\" in %s where it is meant",
				before.name, before.line, stamp(before.to), after.name, after.line, stamp(after.from), before.name)
		}
	}
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Format(time.RFC3339)
}

// hash is the version: the name, and what the book says, in an order of its own.
func (b *Book) hash() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%q %s %d %s %s %s\n", b.name, b.currency, b.decimals, b.zone, b.idle, b.stacking)
	for _, list := range []struct {
		name    string
		entries []entry
	}{{"prices", b.entries}, {"namespaces", b.rules}, {"discounts", b.discounts}, {"quotas", b.quotas}} {
		for i := range list.entries {
			e := &list.entries[i]
			fmt.Fprintf(&text, "%s %q %q %s %s %s %t %s %t\n", list.name, e.name, e.String(), stamp(e.from.UTC()), stamp(e.to.UTC()),
				e.amount.String(), e.absolute, e.per, e.shared)
		}
	}
	sum := sha256.Sum256([]byte(text.String()))
	return b.name + "@" + hex.EncodeToString(sum[:6])
}
