// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// longestName is how many characters of foreign text the node page shows: as many as the name of a pod can have.
const longestName = 253

// displayed is text of others as the node page shows it: on one line, without what would turn the direction of the text
// around it, and cut where it is longer than any name can be.
func displayed(s string) string {
	if len(s) > 8*longestName {
		s = s[:8*longestName]
	}
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
			return unicode.ReplacementChar
		}
		return r
	}, oneLine(s))
	if len(s) <= longestName {
		return s
	}
	if runes := []rune(s); len(runes) > longestName {
		return string(runes[:longestName-1]) + "…"
	}
	return s
}

// amount is a part of GPUs: exact, and as people read it, with three decimals at most.
type amount struct{ Exact, Shown string }

// Round reports whether Shown is all that there is to say.
func (a amount) Round() bool { return a.Exact == a.Shown || !strings.Contains(a.Exact, "/") }

func amountOf(f sharing.Fraction) amount {
	return amountAs(f, f.Scale(1000, 1).Add(sharing.NewFraction(1, 2)).Floor())
}

// amountAs is f, shown as n thousandths. What is there is never shown as 0.
func amountAs(f sharing.Fraction, n int64) amount {
	a := amount{Exact: f.String(), Shown: inThousandths(n)}
	switch {
	case n == 0 && !f.IsZero():
		a.Shown = a.Exact
	case f.Equal(sharing.NewFraction(n, 1000)):
		a.Exact = a.Shown
	}
	return a
}

func inThousandths(n int64) string {
	s := strconv.FormatFloat(float64(n)/1000, 'f', 3, 64)
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}

// thousandths is f in thousandths, rounded down.
func thousandths(f sharing.Fraction) int64 { return f.Scale(1000, 1).Floor() }

// apportion rounds parts to thousandths that add up to total, which is the sum of the parts rounded down or up: those
// that lose most by rounding down are rounded up.
func apportion(parts []sharing.Fraction, total int64) []int64 {
	out, order, lost := make([]int64, len(parts)), make([]int, len(parts)), make([]sharing.Fraction, len(parts))
	for i, part := range parts {
		order[i], out[i] = i, thousandths(part)
		lost[i] = part.Scale(1000, 1).Sub(sharing.NewFraction(out[i], 1))
		total -= out[i]
	}
	slices.SortStableFunc(order, func(a, b int) int { return lost[b].Cmp(lost[a]) })
	for _, i := range order {
		if total > 0 && !lost[i].IsZero() {
			out[i]++
			total--
		}
	}
	return out
}

// moment is an instant with its distance from the time of the page.
type moment struct{ Machine, Shown, Ago string }

// momentOf is nil for an instant that is not known.
func momentOf(t, now time.Time) *moment {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &moment{t.Format(time.RFC3339), t.Format("2006-01-02 15:04:05"), distance(now.Sub(t))}
}

// distance is a distance in time, as coarse as people say it.
func distance(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < time.Second:
		return "now"
	case d < time.Minute:
		return fmt.Sprintf("%d s ago", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min ago", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h ago", int(d.Hours()))
	}
	return fmt.Sprintf("%d days ago", int(d.Hours()/24))
}

// stateHeld stands beside the causes for what somebody is charged for.
const stateHeld = "held"

// stateMeaning is what a state of a part of a GPU means.
func stateMeaning(state string) string {
	switch sharing.Cause(state) {
	case stateHeld:
		return "charged to a container"
	case sharing.CauseFree:
		return "could be requested or created now"
	case sharing.CauseUnrequested:
		return "seats that nobody holds"
	case sharing.CauseStranded:
		return "no MIG profile that could still be created uses it"
	case sharing.CauseUnhealthy:
		return "out of service; who holds it is not charged"
	case sharing.CauseUnobserved:
		return "nobody could see who held it"
	case sharing.CauseUnattributed:
		return "held, but by whom or how much is not known"
	}
	return ""
}

// asks is what a class of faults asks for.
func asks(c health.Class) string {
	switch c {
	case health.ClassApp:
		return "nothing: the program did wrong, the GPU is fine"
	case health.ClassInfo:
		return "nothing"
	case health.ClassWatch:
		return "nothing yet; watch it"
	case health.ClassContained:
		return "nothing yet: the error ended its program"
	case health.ClassReset:
		return "drain the GPU and reset it"
	case health.ClassNode:
		return "restart the machine"
	case health.ClassHardware:
		return "somebody has to look at the card or its cables"
	default:
		return ""
	}
}

// lacking is why there is no value, in words.
func lacking(r gpu.Reason) string {
	switch r {
	case gpu.ReasonNotSupported:
		return "not supported"
	case gpu.ReasonNotPermitted:
		return "not permitted"
	case gpu.ReasonNotFound:
		return "not found"
	case gpu.ReasonBlank:
		return "no value yet"
	case gpu.ReasonStale:
		return "too old"
	case gpu.ReasonLost:
		return "the GPU is lost"
	case gpu.ReasonTimeout:
		return "no answer"
	default:
		return strings.ReplaceAll(r.String(), "_", " ")
	}
}

// countOf is "1 GPU", "2 GPUs".
func countOf(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + one + "s"
}

// clockReason is the word for a bit of field 112 that holds clocks back; empty for those that only say that
// there is nothing to do or that somebody wants it so.
func clockReason(bit int) string {
	return [...]string{2: "power cap", 3: "hardware slowdown", 4: "sync boost", 5: "heat (software)", 6: "heat (hardware)", 7: "power brake", 8: ""}[bit]
}

// deviceName is how the page calls a device: "GPU 6", "GPU 6, 2g.20gb #3".
func deviceName(d *gpu.Device) string {
	name := "GPU " + strconv.Itoa(d.Index)
	if !d.IsMIG() {
		return name
	}
	return name + ", " + displayed(cmp.Or(d.Profile.Name, "MIG device")) + " " + placeName(d)
}

// placeName is the number of a MIG device's GPU instance, "#3", with that of its compute instance where there can be
// others beside it.
func placeName(d *gpu.Device) string {
	place := "#" + strconv.Itoa(d.GPUInstance)
	if !d.Profile.SpansInstance() {
		place += "." + strconv.Itoa(d.ComputeInstance)
	}
	return place
}
