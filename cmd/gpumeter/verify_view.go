// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// write says in plain words what was proven and what was not.
func (v *verification) write(w io.Writer) error {
	var b strings.Builder
	for i := range v.Ledgers {
		if i > 0 {
			b.WriteByte('\n')
		}
		v.Ledgers[i].write(&b)
	}
	if v.Prometheus != nil {
		if len(v.Ledgers) > 0 {
			b.WriteByte('\n')
		}
		v.Prometheus.write(&b)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (p *ledgerProof) write(b *strings.Builder) {
	fmt.Fprintf(b, "Ledger %s of node %s", orDash(oneLine(p.LedgerID)), orDash(oneLine(p.Node)))
	if p.Cluster != "" {
		fmt.Fprintf(b, " in %s", oneLine(p.Cluster))
	}
	fmt.Fprintf(b, ": %s%s\n  %s\n", strings.ToUpper(p.Verdict), p.since(), p.Dir)
	fmt.Fprintf(b, "  %s records in %s, numbers %s to %s, from %s to %s\n",
		grouped(p.Records), many(p.Files, "file"), grouped(p.First), grouped(p.Last), stamp(p.From), stamp(p.To))
	if p.Verdict == verdictProven {
		fmt.Fprintf(b, "  every line is as it was written and follows the one before it: no record%s was changed, taken out or put in\n", p.later())
		fmt.Fprintf(b, "  the parts of %s were one GPU each at every moment, over %s intervals\n", many(p.GPUs, "GPU"), grouped(p.Intervals))
		fmt.Fprintf(b, "  every file begins with exactly what the records before it come to\n")
		fmt.Fprintf(b, "  %s GPU-hours there were = what was held + what was not, to the last millisecond\n", strconv.FormatFloat(p.Proven, 'f', 6, 64))
	}
	for _, x := range p.Problems {
		fmt.Fprintf(b, "  %s:%d: record %d: %s: %s\n", oneLine(x.File), x.Line, x.Record, x.Kind, oneLine(x.Text))
	}
	if p.More > 0 {
		fmt.Fprintf(b, "  and %s more\n", many(p.More, "problem"))
	}
	for _, note := range p.Notes {
		fmt.Fprintf(b, "  note: %s\n", oneLine(note))
	}
}

// since says from when on there is a log, where that is not the ledger's beginning.
func (p *ledgerProof) since() string {
	if p.First <= 1 {
		return ""
	}
	return fmt.Sprintf(" from record %s (%s) on; what was before is not here: retired, or removed", grouped(p.First), stamp(p.From))
}

// later narrows what is said of all records.
func (p *ledgerProof) later() string {
	if p.First <= 1 {
		return ""
	}
	return " from there on"
}

func (s *serverProof) write(b *strings.Builder) {
	fmt.Fprintf(b, "Prometheus, from %s to %s, every %s: %s\n", stamp(s.From), stamp(s.To), s.Step, strings.ToUpper(s.Verdict))
	fmt.Fprintf(b, "  %s, %s, %s readings of a GPU added up\n", many(s.Nodes, "ledger"), many(s.GPUs, "GPU"), grouped(uint64(max(s.Checked, 0))))
	switch {
	case s.Checked == 0:
		fmt.Fprintf(b, "  there is nothing to prove: no counters of gpumeter are known in this period\n")
	case s.Failed == 0:
		fmt.Fprintf(b, "  capacity + corrected = allocated + unallocated for each of them: at most %d µs apart, and rounding explains %d\n", s.Worst, s.Allowed)
	}
	for _, x := range s.Violations {
		fmt.Fprintf(b, "  %s %s at %s: %d µs capacity + %d corrected - %d allocated - %d unallocated = %d µs too much\n",
			orDash(oneLine(cmp.Or(x.Node, x.LedgerID))), oneLine(x.GPU), stamp(x.At), x.Capacity, x.Corrected, x.Allocated, x.Unallocated, x.Difference)
	}
	if more := s.Failed - len(s.Violations); more > 0 {
		fmt.Fprintf(b, "  and %d more that do not add up\n", more)
	}
	for _, m := range s.Missing {
		fmt.Fprintf(b, "  missing of %s from %s to %s: %s: %s\n", orDash(oneLine(m.Node)), stamp(m.From), stamp(m.To), m.Reason, oneLine(m.Text))
	}
	for _, note := range s.Notes {
		fmt.Fprintf(b, "  note: %s\n", oneLine(note))
	}
}

// grouped is a number with its thousands apart.
func grouped(n uint64) string {
	digits := strconv.FormatUint(n, 10)
	var b strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	return b.String()
}

func many(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%s %ss", grouped(uint64(max(n, 0))), what)
}
