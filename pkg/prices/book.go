// SPDX-License-Identifier: Apache-2.0

package prices

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/shopspring/decimal"
)

// Book is a price book. It is immutable and safe for concurrent use.
type Book struct {
	name, version, currency string
	decimals                int32
	zone                    *time.Location
	idle                    IdlePolicy
	stacking                Stacking
	// entries and rules are ordered by rank, the most specific first.
	entries, rules []entry
	// discounts and quotas are in the order of the file, which is that in which they apply.
	discounts, quotas []entry
	warnings          []Problem
}

// entry is one item of one of the book's lists, valid in [from, to); a zero time is no limit.
type entry struct {
	selector
	name string
	line int
	// ranked is selector.rank.
	ranked   []int
	from, to time.Time
	// ends says that nothing need follow upon to.
	ends bool
	// amount is a price, a multiplier, a percentage or GPU-hours, by the list and by absolute.
	amount decimal.Decimal
	// absolute says of a namespace rule that amount is a price.
	absolute bool
	per      Period
	shared   bool
}

func (e *entry) validAt(at time.Time) bool {
	return (e.from.IsZero() || !at.Before(e.from)) && (e.to.IsZero() || at.Before(e.to))
}

// ErrNoPrice is wrapped where no entry of the book is for a Subject.
var ErrNoPrice = errors.New("the price book has no price for it")

// ErrLabelsUnknown is wrapped where a price depends on labels that nobody told.
var ErrLabelsUnknown = errors.New("labels are not known")

// Name is the book's own name.
func (b *Book) Name() string { return b.name }

// Version is the book's name and a hash of what it says; comments, spacing and the order of prices are not in it.
func (b *Book) Version() string { return b.version }

// Currency is the code of ISO 4217, Decimals how many decimals its amounts are rounded to.
func (b *Book) Currency() string { return b.currency }

// Decimals is how many decimals amounts are rounded to.
func (b *Book) Decimals() int32 { return b.decimals }

// Zone is the time zone of the book's dates.
func (b *Book) Zone() *time.Location { return b.zone }

// Idle is who pays for what nobody held.
func (b *Book) Idle() IdlePolicy { return b.idle }

// Warnings are what is allowed and probably not meant: entries that nothing can match.
func (b *Book) Warnings() []Problem { return slices.Clone(b.warnings) }

// Changes are the moments within (from, to) at which something of the book begins or ends, ascending.
func (b *Book) Changes(from, to time.Time) []time.Time {
	var at []time.Time
	add := func(t time.Time) {
		if t.After(from) && t.Before(to) {
			at = append(at, t)
		}
	}
	for _, list := range [][]entry{b.entries, b.rules, b.discounts, b.quotas} {
		for i := range list {
			add(list[i].from)
			add(list[i].to)
		}
	}
	slices.SortFunc(at, time.Time.Compare)
	return slices.CompactFunc(at, time.Time.Equal)
}

// Price is what a GPU-hour of the subject costs at its time. The error wraps ErrNoPrice where the book has no
// price for it, and ErrLabelsUnknown where that depends on labels that are not known; it is never 0 then.
func (b *Book) Price(s Subject) (Price, error) {
	found, err := b.first(b.entries, &s)
	if err != nil {
		return Price{}, err
	}
	if found == nil {
		return Price{}, fmt.Errorf("%s: %w: add an entry to prices, or one with \"free: true\" where it costs nothing", s.describe(), ErrNoPrice)
	}
	rule, err := b.first(b.rules, &s)
	if err != nil {
		return Price{}, err
	}
	p := Price{Hour: found.amount, Entry: found.name, Version: b.version}
	factor := decimal.NewFromInt(1)
	switch {
	case rule == nil:
	case rule.absolute:
		// What was agreed on is agreed on: nothing more is taken off or put on.
		p.Hour, p.Entry = rule.amount, rule.name
		return p, nil
	default:
		factor = rule.amount
		p.Sources = append(p.Sources, rule.name)
	}
	return b.discounted(p, factor, &s)
}

// discounted takes the discounts off.
func (b *Book) discounted(p Price, factor decimal.Decimal, s *Subject) (Price, error) {
	hundred := decimal.NewFromInt(100)
	var sum decimal.Decimal
	for i := range b.discounts {
		d := &b.discounts[i]
		applies, err := d.applies(s)
		if err != nil {
			return Price{}, err
		}
		if !applies {
			continue
		}
		p.Sources = append(p.Sources, d.name)
		if b.stacking == StackAdd {
			sum = sum.Add(d.amount)
			continue
		}
		factor = factor.Mul(hundred.Sub(d.amount).Shift(-2))
	}
	if sum.GreaterThan(hundred) {
		return Price{}, fmt.Errorf("%s: the discounts %s add up to %s %%: more than 100 would pay for using it", s.describe(),
			strings.Join(p.Sources, ", "), sum)
	}
	factor = factor.Mul(hundred.Sub(sum).Shift(-2))
	p.Discount = hundred.Sub(factor.Shift(2))
	return p, nil
}

// first is the most specific entry that matches, nil where none does.
func (b *Book) first(list []entry, s *Subject) (*entry, error) {
	for i := range list {
		applies, err := list[i].applies(s)
		if err != nil {
			return nil, err
		}
		if applies {
			return &list[i], nil
		}
	}
	return nil, nil
}

// applies reports whether e is for s at its time.
func (e *entry) applies(s *Subject) (bool, error) {
	if !e.validAt(s.At) {
		return false, nil
	}
	switch e.matches(s) {
	case yes:
		return true, nil
	case nodeLabelsUnknown:
		return false, fmt.Errorf("%s: %w: %q depends on labels of node %q: let the exporter tell them with --node-labels", s.describe(),
			ErrLabelsUnknown, e.name, s.Node)
	case namespaceLabelsUnknown:
		return false, fmt.Errorf("%s: %w: %q depends on labels of namespace %q: hand in a list of them (--namespaces)", s.describe(),
			ErrLabelsUnknown, e.name, s.Namespace)
	case no:
	}
	return false, nil
}

// describe names what is priced, for errors: by what a price can depend on.
func (s *Subject) describe() string {
	var text strings.Builder
	fmt.Fprintf(&text, "price of model %q", s.Model)
	for _, part := range []struct{ name, value string }{
		{"profile", s.Profile}, {"resource", s.Resource}, {"mode", s.Mode}, {"node", s.Node},
	} {
		if part.value != "" {
			fmt.Fprintf(&text, ", %s %q", part.name, part.value)
		}
	}
	return text.String() + " at " + s.At.Format(time.RFC3339)
}

// Quota is a number of GPU-hours that cost nothing.
type Quota struct {
	Name string
	// Hours are GPU-hours, for each calendar Per.
	Hours decimal.Decimal
	Per   Period
	// Shared says that all namespaces that match have the hours together; else each has them for itself.
	Shared bool
	entry  entry
}

// Quotas are the book's, in the order in which they are used up.
func (b *Book) Quotas() []Quota {
	quotas := make([]Quota, 0, len(b.quotas))
	for _, e := range b.quotas {
		quotas = append(quotas, Quota{Name: e.name, Hours: e.amount, Per: e.per, Shared: e.shared, entry: e})
	}
	return quotas
}

// Applies reports whether the subject's hours may be taken from the quota. The error wraps ErrLabelsUnknown.
func (q *Quota) Applies(s Subject) (bool, error) { return q.entry.applies(&s) }

// Listed is one price of the book as it stands at some time.
type Listed struct {
	Name string
	// Selector is what it is for, on one line.
	Selector string
	Hour     decimal.Decimal
	// From and To are zero where there is no limit.
	From, To time.Time
	Line     int
}

// ListedAt are the prices that are valid at a time, the most specific first.
func (b *Book) ListedAt(at time.Time) []Listed {
	var listed []Listed
	for i := range b.entries {
		e := &b.entries[i]
		if e.validAt(at) {
			listed = append(listed, Listed{Name: e.name, Selector: e.String(), Hour: e.amount, From: e.from, To: e.to, Line: e.line})
		}
	}
	return listed
}

// bySpecificity orders by rank, the most specific first, and by time and name what is as specific.
func bySpecificity(a, b entry) int {
	return cmp.Or(slices.Compare(b.ranked, a.ranked), cmp.Compare(a.String(), b.String()), a.from.Compare(b.from), cmp.Compare(a.name, b.name))
}
