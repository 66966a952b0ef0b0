// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"runtime"
	"time"

	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// Verification is what was proven of a ledger, and what was not.
type Verification struct {
	Dir                     string
	LedgerID, Node, Cluster string
	// Segments are the files; Records what is in them, First and Last their numbers; Intervals the lines that were opened.
	Segments           int
	Records, Intervals uint64
	First, Last        uint64
	// From and To are the wall clock's stamps of the first and the last record.
	From, To time.Time
	// Cards are those of the ledger. Capacity is what they came to since the ledger's beginning, in GPU-milliseconds, and
	// Proven what of it the records that were looked at account for.
	Cards            int
	Capacity, Proven sharing.Fraction
	// Problems are what is wrong, in the order of the log; More is how many were left out.
	Problems []Problem
	More     int
	// Notes are for people, and no problems.
	Notes []string
}

// Problem is one thing that is wrong.
type Problem struct {
	// Kind is one of the Problem constants.
	Kind string
	// File and Line are where; Record is the number of the record, or of the last good one before.
	File   string
	Line   int
	Record uint64
	Text   string
}

// The kinds of Problem.
const (
	// ProblemDamage: a line is not as it was written.
	ProblemDamage = "damage"
	// ProblemChain: a line is not the one that was written after the one before it.
	ProblemChain = "chain"
	// ProblemSequence: the numbers of the records do not follow each other.
	ProblemSequence = "sequence"
	// ProblemRecord: a record contradicts those before it: parts of a card that are not one, time that goes
	// backwards, the end of a line that nobody opened.
	ProblemRecord = "record"
	// ProblemCarry: the totals that a segment begins with are not what the records before it come to.
	ProblemCarry = "carry"
	// ProblemConservation: what a card had is not what was held and what was not.
	ProblemConservation = "conservation"
	// ProblemEnd: the totals beside the log have records that are not at its end.
	ProblemEnd = "end"
	// ProblemTotals: the totals beside the log are not of it.
	ProblemTotals = "totals"
	// ProblemMissing: records are missing.
	ProblemMissing = "missing"
	// ProblemUnread: a file cannot be read, or a newer version wrote it.
	ProblemUnread = "unread"
)

// Contradicts says that the ledger does not add up; else it is only not whole.
func (p Problem) Contradicts() bool { return p.Kind != ProblemMissing && p.Kind != ProblemUnread }

// maxProblems is how many problems are told.
const maxProblems = 100

// Contradicts says that the ledger does not add up.
func (v *Verification) Contradicts() bool {
	for _, p := range v.Problems {
		if p.Contradicts() {
			return true
		}
	}
	return false
}

func (v *Verification) problem(p Problem) {
	if len(v.Problems) < maxProblems {
		v.Problems = append(v.Problems, p)
		return
	}
	// One that weighs more is told in the place of one that does not.
	v.More++
	if last := &v.Problems[maxProblems-1]; p.Contradicts() && !last.Contradicts() {
		*last = p
	}
}

// Verify goes over the whole ledger: every line's sum, the chain of their hashes over all segments, the numbers of the
// records, the boot clock, the parts of every card at every moment, that the records come to the totals that the next
// segment begins with, and that every card's capacity is what was held and what was not, exactly. The error says that it
// could not be done; what is wrong is in the Verification. Progress may be nil.
func (r *Reader) Verify(ctx context.Context, progress func(done float64, what string)) (Verification, error) {
	v := Verification{Dir: r.dir}
	extent, err := r.extent()
	if err != nil {
		return v, err
	}
	segments := extent.all
	if len(segments) == 0 {
		return v, fmt.Errorf("verify the ledger in %s: it has no segments any more", r.dir)
	}
	v.Segments = len(segments)
	j := joint{v: &v}
	err = proveEach(ctx, segments, func(i int, p *proven) {
		j.join(p)
		if progress != nil {
			progress(float64(i+1)/float64(len(segments)), segments[i].path)
		}
	})
	if err != nil {
		return v, err
	}
	j.close()
	j.ends(&extent)
	for _, x := range putAside(r.dir) {
		v.problem(Problem{Kind: ProblemMissing, File: filepath.Base(x.path), Text: x.text()})
	}
	return v, ctx.Err()
}

// proveEach proves segments, several at a time, and hands them on in their order.
func proveEach(ctx context.Context, segments []segment, take func(i int, p *proven)) error {
	proofs := make([]chan *proven, len(segments))
	for i := range proofs {
		proofs[i] = make(chan *proven, 1)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// So many are worked at, or wait to be joined.
	slots := make(chan struct{}, 2*runtime.GOMAXPROCS(0))
	go func() {
		for i, s := range segments {
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return
			}
			go func() { proofs[i] <- prove(ctx, s, i == len(segments)-1) }()
		}
	}()
	for i := range segments {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case p := <-proofs[i]:
			take(i, p)
			<-slots
		}
	}
	return ctx.Err()
}

// proven is what one segment says by itself.
type proven struct {
	segment    segment
	problems   []Problem
	records    uint64
	intervals  uint64
	first      scanned
	last       scanned
	start, end *Totals
	// account is what its records come to, nil where they cannot be folded to the end.
	account *Account
	torn    bool
	lines   int
	// hurt is the wall clock of the last good line before the first that is damaged, 0 where there is none.
	hurt   int64
	isHurt bool
}

func prove(ctx context.Context, s segment, last bool) *proven {
	p := &proven{segment: s}
	var scan scanner
	account := NewAccount()
	for line, err := range scan.lines(s, last) {
		if p.lines%4096 == 0 && ctx.Err() != nil {
			return p
		}
		p.lines++
		if d, ok := errors.AsType[*damage](err); ok {
			account = p.damaged(d, account)
		}
		if line.Body == nil {
			continue
		}
		account = p.fold(&line, account)
	}
	if account != nil && p.records > 0 {
		p.account, p.end = account, account.Totals()
	}
	return p
}

// fold takes a line; the account is nil while it cannot be told what the records come to.
func (p *proven) fold(line *scanned, account *Account) *Account {
	if p.records == 0 {
		p.first = *line
	}
	p.last = *line
	p.records++
	if _, open := line.Body.(*Open); open {
		p.intervals++
	}
	if account == nil {
		return nil
	}
	if p.records == 1 && !startsAnew(&line.Record) {
		p.add(ProblemRecord, line.Seq, "a segment has to begin with what the records before it came to, and this one does not")
		return nil
	}
	if err := account.Apply(line.Record); err != nil {
		p.add(ProblemRecord, line.Seq, err.Error())
		return nil
	}
	if p.records == 1 {
		p.start = account.Totals()
	}
	return account
}

func (p *proven) add(kind string, record uint64, text string) {
	if len(p.problems) <= maxProblems {
		p.problems = append(p.problems, Problem{Kind: kind, File: filepath.Base(p.segment.path), Line: p.lines, Record: record, Text: text})
	}
}

// damaged notes what is wrong with a line, and whether what comes after it can still be added up.
func (p *proven) damaged(d *damage, account *Account) *Account {
	kind := ProblemDamage
	switch d.What {
	case damageTorn:
		p.torn = true
		return account
	case damageChain:
		// The line itself is whole: whether it contradicts those before it, they say.
		p.add(ProblemChain, d.After, d.Err.Error())
		return account
	case damageOrder:
		kind = ProblemSequence
	case damageNewer, damageUnread:
		kind = ProblemUnread
	}
	p.add(kind, d.After, d.Err.Error())
	if !p.isHurt {
		p.hurt, p.isHurt = p.last.At.Wall, true
	}
	return nil
}

// joint puts what the segments say together.
type joint struct {
	v      *Verification
	before *proven
	totals *Totals
}

func (j *joint) join(p *proven) {
	v := j.v
	for _, problem := range p.problems {
		v.problem(problem)
	}
	if p.records == 0 {
		return
	}
	v.Records += p.records
	v.Intervals += p.intervals
	if v.First == 0 {
		v.First, v.From = p.first.Seq, time.UnixMilli(p.first.At.Wall).UTC()
		if p.start != nil {
			v.Proven = v.Proven.Sub(capacityOf(p.start))
		}
	}
	v.Last, v.To = p.last.Seq, time.UnixMilli(p.last.At.Wall).UTC()
	j.meets(p)
	for _, t := range []*Totals{p.start, p.end} {
		if t != nil {
			j.conserves(p, t)
			j.totals = t
		}
	}
	if p.torn {
		v.Notes = append(v.Notes, fmt.Sprintf("the last line of %s is not whole: an exporter is writing it, or was ended while it did", filepath.Base(p.segment.path)))
	}
	j.before = p
}

// meets holds the beginning of a segment against the end of the one before.
func (j *joint) meets(p *proven) {
	b := j.before
	if b == nil {
		return
	}
	problem := Problem{File: filepath.Base(p.segment.path), Line: 1, Record: p.first.Seq}
	switch {
	case p.first.Seq <= b.last.Seq:
		problem.Kind, problem.Text = ProblemSequence, fmt.Sprintf("it begins with record %d, and the segment before ended with %d", p.first.Seq, b.last.Seq)
	case p.first.Seq > b.last.Seq+1:
		problem.Kind, problem.Text = ProblemMissing, fmt.Sprintf("records %d to %d are missing", b.last.Seq+1, p.first.Seq-1)
	case p.first.Prev != b.last.Link:
		problem.Kind, problem.Text = ProblemChain, errChain.Error()
	case b.account != nil:
		if err := b.account.Apply(p.first.Record); err != nil {
			problem.Kind, problem.Text = ProblemCarry, err.Error()
		}
	}
	if problem.Kind != "" {
		j.v.problem(problem)
	}
	b.account = nil
}

// conserves proves that every card's capacity is what was held and what was not.
func (j *joint) conserves(p *proven, t *Totals) {
	for i := range t.Cards {
		c := &t.Cards[i]
		had, went := c.Capacity, c.Allocated
		for _, a := range c.Corrected {
			had = had.plus(a)
		}
		for _, a := range c.Unallocated {
			went = went.plus(a)
		}
		for _, q := range []struct {
			what      string
			had, went sharing.Fraction
		}{{"GPU-ms", had.GPU, went.GPU}, {"MiB-ms", had.Memory, went.Memory}, {"mJ", had.Energy, went.Energy}} {
			if !q.had.Equal(q.went) {
				j.v.problem(Problem{
					Kind: ProblemConservation, File: filepath.Base(p.segment.path), Line: p.lines, Record: t.Sequence,
					Text: fmt.Sprintf("GPU %s had %s %s, and %s were held or left", c.UUID, q.had, q.what, q.went),
				})
			}
		}
	}
}

func (j *joint) close() {
	if j.totals == nil {
		return
	}
	t, v := j.totals, j.v
	v.LedgerID, v.Node, v.Cluster, v.Cards = t.LedgerID, t.Node, t.Cluster, len(t.Cards)
	v.Capacity = capacityOf(t)
	v.Proven = v.Proven.Add(v.Capacity)
	if v.First > 1 {
		v.Notes = append(v.Notes, fmt.Sprintf("the log begins with record %d: what was before is kept as totals only", v.First))
	}
}

// capacityOf is the capacity of all cards in GPU-milliseconds.
func capacityOf(t *Totals) sharing.Fraction {
	var sum sharing.Fraction
	for i := range t.Cards {
		sum = sum.Add(t.Cards[i].Capacity.GPU)
	}
	return sum
}

// ends holds the totals beside the log against its end.
func (j *joint) ends(e *extent) {
	v := j.v
	problem := Problem{File: storeName, Record: v.Last}
	switch {
	case errors.Is(e.unread, fs.ErrNotExist):
		problem.Kind, problem.Text = ProblemMissing, "there are no totals beside the log: whether records at its end were cut off nothing can say"
	case e.unread != nil:
		problem.Kind, problem.Text = ProblemUnread, e.unread.Error()
	case e.foreign:
		problem.Kind, problem.Record = ProblemTotals, e.totals.Seq
		problem.Text = "the log's record of that number is not the one that the totals beside it are of: one of them was changed or put back"
	case e.cut > 0:
		problem.Kind = ProblemEnd
		problem.Text = fmt.Sprintf("%d records at the end are missing: the totals are of record %d, %s", e.cut, e.totals.Seq, time.UnixMilli(e.at.Wall).UTC().Format(time.RFC3339))
	case e.pending > 0:
		v.Notes = append(v.Notes, fmt.Sprintf("%d records at the end are not committed yet: the exporter does not show them, and reports leave them out", e.pending))
		return
	default:
		return
	}
	v.problem(problem)
}
