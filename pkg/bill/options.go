// SPDX-License-Identifier: Apache-2.0

package bill

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/prices"
)

// Options say what bill is wanted.
type Options struct {
	// From and To are the period, end exclusive.
	From, To time.Time
	// Zone is the time zone of days, months and quotas; nil is UTC.
	Zone *time.Location
	// GroupBy may be empty: one row for all that was held, and one for each cause.
	GroupBy []Dimension
	// Prices is nil for a bill without money, Teams for one without teams.
	Prices *prices.Book
	Teams  *prices.Teams
	// NamespaceLabels are the labels of each namespace; nil where nobody knows them. A namespace that is not in
	// it has none.
	NamespaceLabels map[string]map[string]string
	// Nodes, Namespaces and Pods keep only what they name, where they name anything: the bill is made of the whole
	// Usage, and the rows of others are left out. What nobody held is left out where Namespaces or Pods name anything.
	Nodes, Namespaces, Pods []string
	// Filtered says that the Usage itself is of some namespaces or pods only, so that it need not add up to the
	// capacity.
	Filtered bool
	// ClosedOnly refuses a period that is not over at Now. A zero Now is not looked at.
	ClosedOnly bool
	Now        time.Time
}

func (o *Options) zone() *time.Location {
	if o.Zone == nil {
		return time.UTC
	}
	return o.Zone
}

// groups reports whether rows are grouped by d.
func (o *Options) groups(d Dimension) bool { return slices.Contains(o.GroupBy, d) }

func (o *Options) idle() prices.IdlePolicy {
	if o.Prices == nil {
		return prices.IdlePlatform
	}
	return o.Prices.Idle()
}

// ErrPeriod is wrapped where the period cannot be billed.
var ErrPeriod = errors.New("period cannot be billed")

// Validate says what is wrong with the options, before anything is read for them.
func (o *Options) Validate() error {
	var errs []error
	if !o.From.Before(o.To) {
		errs = append(errs, fmt.Errorf("%w: its end %s is not after its beginning %s", ErrPeriod, o.To.Format(time.RFC3339), o.From.Format(time.RFC3339)))
	}
	if o.ClosedOnly && !o.Now.IsZero() && o.To.After(o.Now) {
		errs = append(errs, fmt.Errorf("%w: it is not over before %s, and only closed periods are wanted", ErrPeriod, o.To.Format(time.RFC3339)))
	}
	seen := map[Dimension]bool{}
	for _, d := range o.GroupBy {
		if seen[d] {
			errs = append(errs, fmt.Errorf("group by %q: it is there twice", d))
		}
		seen[d] = true
		errs = append(errs, o.validateDimension(d))
	}
	return errors.Join(errs...)
}

// Dimensions are all dimensions without an argument.
func Dimensions() []Dimension {
	return []Dimension{
		ByCluster, ByNode, ByNamespace, ByPod, ByWorkload, ByTeam, ByCostCenter, ByResource, ByMode, ByModel, ByProfile, ByDay, ByHour,
	}
}

func (o *Options) validateDimension(d Dimension) error {
	for _, prefix := range []string{labelPrefix, namespaceLabelPrefix, nodeLabelPrefix} {
		name, ok := strings.CutPrefix(string(d), prefix)
		switch {
		case ok && name == "":
			return fmt.Errorf("group by %q: the label is missing", d)
		case ok && prefix == namespaceLabelPrefix && o.NamespaceLabels == nil:
			return fmt.Errorf("group by %q: the labels of namespaces are not known: hand in a list of them (--namespaces)", d)
		case ok:
			return nil
		}
	}
	switch {
	case !slices.Contains(Dimensions(), d):
		return fmt.Errorf("group by %q: there is no such dimension: known are %s, label:NAME, namespace-label:NAME and node-label:NAME", d, words(Dimensions()))
	case (d == ByTeam || d == ByCostCenter) && o.Teams == nil:
		return fmt.Errorf("group by %q: nobody says which namespace is whose: hand in a file of teams (--teams)", d)
	}
	return nil
}

func words(all []Dimension) string {
	text := make([]string, len(all))
	for i, d := range all {
		text[i] = string(d)
	}
	return strings.Join(text, ", ")
}

// Detail is how finely the Usage of such a bill is to be asked for.
func Detail(o Options) ledger.Detail {
	if o.idle() == prices.IdleSoleTenant || len(o.Pods) > 0 {
		return ledger.DetailPods
	}
	for _, d := range o.GroupBy {
		if d == ByPod || d == ByWorkload || strings.HasPrefix(string(d), labelPrefix) {
			return ledger.DetailPods
		}
	}
	return ledger.DetailSeries
}

// Boundaries are the moments between which the Usage of such a bill is to be asked for: within each window there is
// one day where rows are grouped by day, one price, and one quota. They are empty where the period is.
func Boundaries(o Options) []time.Time {
	if !o.From.Before(o.To) {
		return nil
	}
	at := []time.Time{o.From, o.To}
	step := func(next func(time.Time) time.Time) {
		for t := next(o.From); t.Before(o.To); t = next(t) {
			at = append(at, t)
		}
	}
	c := calendar{o.zone()}
	if o.groups(ByHour) {
		step(c.nextHour)
	}
	if o.groups(ByDay) || o.idle() == prices.IdleSoleTenant || o.quotaPer(prices.PerDay) {
		step(c.nextDay)
	}
	if o.idle() == prices.IdleSpread || o.quotaPer(prices.PerMonth) {
		step(c.nextMonth)
	}
	if o.Prices != nil {
		at = append(at, o.Prices.Changes(o.From, o.To)...)
	}
	slices.SortFunc(at, time.Time.Compare)
	return slices.CompactFunc(at, time.Time.Equal)
}

func (o *Options) quotaPer(per prices.Period) bool {
	return o.Prices != nil && slices.ContainsFunc(o.Prices.Quotas(), func(q prices.Quota) bool { return q.Per == per })
}
