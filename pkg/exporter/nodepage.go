// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/meter"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// What the node page shows at most, so that its size has a bound whatever the node has.
const (
	maxBoxes       = 1024
	maxDeviceBoxes = 64
	maxHolderRows  = 512
	maxEventRows   = 48
	maxTroubles    = 32
)

// nodePage is what the node page says of a snapshot: all but what changes from one request to the next.
type nodePage struct {
	Title, Summary string
	// Count is how many GPUs there are, in words.
	Count        string
	Sum          nodeSum
	Troubles     []nodeTrouble
	MoreTroubles int
	Notes        []nodeNote
	MoreNotes    int
	Cards        []nodeCard
	Namespaces   []nodeNamespace
	Holders      []nodeHolder
	MoreHolders  int
	Events       []nodeEvent
	MoreEvents   int
	XIDs         []nodeXID
	Resources    []nodeResource
	Observed     bool
	Ledger       *nodeLedger
	Judged       bool
	Verdicts     string
}

// nodeSum is how parts add up.
type nodeSum struct {
	Parts []nodePart
	Total amount
	// Off says that the parts are not as many GPUs as there are.
	Off bool
	// Scale is the width of a bar of all parts.
	Scale int64
}

// nodePart is all that has one state.
type nodePart struct {
	State, Meaning string
	Amount         amount
	Percent        string
	// X and Width are its place in a bar.
	X, Width int64
	None     bool
}

// nodePainter makes a nodePage of one snapshot.
type nodePainter struct {
	cfg *Config
	s   *meter.Snapshot
	n   *node
	// now is the source's clock when the snapshot was taken: a pretend node's may run fast.
	now       time.Time
	columns   map[gpu.FieldID]int
	samples   map[gpu.Entity]*gpu.Sample
	verdicts  map[gpu.UUID]*health.Verdict
	shares    map[gpu.UUID][]*sharing.Share
	rest      map[gpu.UUID][]*sharing.Unallocated
	processes map[instanceKey]int
	// tints number the namespaces.
	tints map[string]string
	// boxes is how many more the page may have.
	boxes int
}

func newNodePainter(cfg *Config, s *meter.Snapshot) *nodePainter {
	p := &nodePainter{
		cfg: cfg, s: s, n: newNode(s), now: s.Time, boxes: maxBoxes,
		columns: make(map[gpu.FieldID]int), samples: make(map[gpu.Entity]*gpu.Sample),
		verdicts: make(map[gpu.UUID]*health.Verdict), shares: make(map[gpu.UUID][]*sharing.Share),
		rest: make(map[gpu.UUID][]*sharing.Unallocated), processes: make(map[instanceKey]int), tints: make(map[string]string),
	}
	if s.Health != nil && !s.Health.Time.IsZero() {
		p.now = s.Health.Time
	} else if !s.Reading.Time.IsZero() {
		p.now = s.Reading.Time
	}
	for i, id := range s.Reading.Fields {
		p.columns[id] = i
	}
	for i := range s.Reading.Samples {
		p.samples[s.Reading.Samples[i].Entity] = &s.Reading.Samples[i]
	}
	if s.Health != nil {
		for i := range s.Health.Verdicts {
			p.verdicts[s.Health.Verdicts[i].Device] = &s.Health.Verdicts[i]
		}
	}
	for i := range s.Division.Shares {
		share := &s.Division.Shares[i]
		p.shares[share.Device] = append(p.shares[share.Device], share)
	}
	for i := range s.Division.Unallocated {
		u := &s.Division.Unallocated[i]
		device := cmp.Or(u.Device, u.Card)
		p.rest[device] = append(p.rest[device], u)
	}
	for _, process := range s.Reading.Processes {
		p.processes[instanceKey{process.GPU, process.GPUInstance}]++
	}
	p.tint()
	return p
}

// tint numbers the namespaces in the order of the alphabet, so that a colour stays where it is from tick to tick.
func (p *nodePainter) tint() {
	var names []string
	for i := range p.s.Division.Shares {
		names = append(names, p.s.Division.Shares[i].Holder.Namespace)
	}
	for i := range p.s.Division.Unallocated {
		names = append(names, p.s.Division.Unallocated[i].Holder.Namespace)
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if name != "" {
			p.tints[name] = "t" + strconv.Itoa(len(p.tints)%8)
		}
	}
}

// paintNode is the whole page.
func paintNode(cfg *Config, st *settings, s *meter.Snapshot) *nodePage {
	p := newNodePainter(cfg, s)
	page := &nodePage{Count: countOf(len(p.n.cards), "GPU"), Summary: p.summary(), Observed: s.Observed}
	page.Sum = p.sum(nil)
	page.Title = p.title(&page.Sum)
	page.Troubles, page.MoreTroubles = p.troubles()
	page.Notes, page.MoreNotes = p.notes(st, &page.Sum)
	for _, card := range p.n.cards {
		page.Cards = append(page.Cards, p.card(card))
	}
	page.Holders, page.MoreHolders = p.holders()
	page.Namespaces = p.namespaces(page.Sum.Parts[0].Width)
	page.Events, page.MoreEvents = p.events()
	page.XIDs = p.xids()
	page.Resources = p.resources()
	page.Ledger = p.ledger()
	page.Judged = s.Health != nil && len(s.Health.Verdicts) > 0
	page.Verdicts = p.verdictCounts()
	return page
}

// sum adds up the parts of a card, or of all for nil.
func (p *nodePainter) sum(card *gpu.Device) nodeSum {
	states := []string{stateHeld}
	for _, cause := range sharing.Causes() {
		states = append(states, string(cause))
	}
	parts := make([]sharing.Fraction, len(states))
	for i := range p.s.Division.Shares {
		if share := &p.s.Division.Shares[i]; card == nil || share.Card == card.UUID {
			parts[0] = parts[0].Add(share.Part)
		}
	}
	for i := range p.s.Division.Unallocated {
		u := &p.s.Division.Unallocated[i]
		if at := slices.Index(states, string(u.Cause)); at > 0 && (card == nil || u.Card == card.UUID) {
			parts[at] = parts[at].Add(u.Part)
		}
	}
	whole := sharing.One()
	if card == nil {
		whole = sharing.NewFraction(int64(len(p.n.cards)), 1)
	}
	return sumOf(states, parts, whole)
}

func sumOf(states []string, parts []sharing.Fraction, whole sharing.Fraction) nodeSum {
	total := sharing.Fraction{}
	for _, part := range parts {
		total = total.Add(part)
	}
	out, shown := nodeSum{}, apportion(parts, thousandths(total))
	for i, part := range parts {
		out.Parts = append(out.Parts, nodePart{
			State: states[i], Meaning: stateMeaning(states[i]), Amount: amountAs(part, shown[i]), None: part.IsZero(),
			X: out.Scale, Width: shown[i], Percent: percentOf(part, whole),
		})
		out.Scale += shown[i]
	}
	out.Total, out.Off = amountOf(total), !total.Equal(whole)
	return out
}

func percentOf(part, whole sharing.Fraction) string {
	if whole.IsZero() {
		return "0 %"
	}
	percent := 100 * part.Float64() / whole.Float64()
	switch {
	case percent > 0 && percent < 0.1:
		return "< 0.1 %"
	default:
		return strings.TrimSuffix(strconv.FormatFloat(percent, 'f', 1, 64), ".0") + " %"
	}
}

// title is what a browser shows of the page among others.
func (p *nodePainter) title(sum *nodeSum) string {
	title := sum.Parts[0].Amount.Shown + " of " + countOf(len(p.n.cards), "GPU") + " held"
	at := slices.IndexFunc(sum.Parts, func(part nodePart) bool { return part.State == string(sharing.CauseUnhealthy) })
	if at < 0 || sum.Parts[at].None {
		return title
	}
	return title + ", " + sum.Parts[at].Amount.Shown + " unhealthy"
}

// summary says what the node has: "8 GPUs, 4 MIG devices, 1 lost: NVIDIA H100 80GB HBM3".
func (p *nodePainter) summary() string {
	var models []string
	migs, lost := 0, 0
	for i := range p.n.all {
		d := &p.n.all[i]
		switch {
		case d.IsMIG():
			migs++
			continue
		case d.Lost:
			lost++
		}
		if model := displayed(d.Model); model != "" && !slices.Contains(models, model) {
			models = append(models, model)
		}
	}
	text := countOf(len(p.n.cards), "GPU")
	if migs > 0 {
		text += ", " + countOf(migs, "MIG device")
	}
	if lost > 0 {
		text += ", " + strconv.Itoa(lost) + " lost"
	}
	if len(models) > 4 {
		models = append(models[:3], "…")
	}
	if len(models) > 0 {
		text += ": " + strings.Join(models, ", ")
	}
	return text
}

// nodeResource is how many device ids of a resource there are and are held.
type nodeResource struct {
	Name             string
	Advertised, Held int
	// Away says that ids are held or on record and none is advertised.
	Away bool
}

func (p *nodePainter) resources() []nodeResource {
	counts := make(map[string]*nodeResource)
	at := func(name string) *nodeResource {
		if counts[name] == nil {
			counts[name] = &nodeResource{Name: displayed(name)}
		}
		return counts[name]
	}
	for i := range p.s.Listing.Allocations {
		if a := &p.s.Listing.Allocations[i]; a.Claim == "" && !a.Terminal {
			at(a.Resource).Held++
		}
	}
	for _, a := range p.s.Listing.Registered {
		at(a.Resource)
	}
	for _, a := range p.s.Listing.Advertised {
		at(a.Resource).Advertised++
	}
	var out []nodeResource
	for name, r := range counts {
		r.Away = r.Advertised == 0 && name != sharing.JobResource
		out = append(out, *r)
	}
	slices.SortFunc(out, func(a, b nodeResource) int { return cmp.Compare(a.Name, b.Name) })
	return out[:min(len(out), maxTroubles)]
}

// nodeLedger is how the book of charges fares.
type nodeLedger struct {
	ID, Err, Restored, Size       string
	Durable, Degraded             bool
	Pending                       int
	Created, Committed, OldestLog *moment
	Sequence                      uint64
	Gaps                          string
	Errors                        uint64
}

func (p *nodePainter) ledger() *nodeLedger {
	v := p.s.Ledger
	if v == nil {
		return nil
	}
	st := &v.State
	l := &nodeLedger{
		Err: displayed(st.Err), Restored: displayed(string(st.Restored)), Durable: st.Durable, Degraded: st.Degraded, Pending: st.Pending,
		Size: bytesText(st.Size), Committed: momentOf(st.Committed, p.s.Time), OldestLog: momentOf(st.Oldest, p.s.Time),
	}
	for _, n := range st.Errors {
		l.Errors += n
	}
	if meter.Committed(v) {
		l.ID, l.Sequence, l.Created = displayed(v.Totals.LedgerID), v.Totals.Sequence, momentOf(v.Totals.Created, p.s.Time)
		var gaps int64
		for _, reason := range ledger.GapReasons() {
			gaps += v.Totals.Gaps[reason]
		}
		l.Gaps = (time.Duration(gaps) * time.Millisecond).Round(time.Second).String()
	}
	return l
}

func bytesText(n int64) string {
	switch {
	case n < 1<<10:
		return strconv.FormatInt(n, 10) + " bytes"
	case n < 1<<20:
		return strconv.FormatFloat(float64(n)/(1<<10), 'f', 1, 64) + " KiB"
	}
	return strconv.FormatFloat(float64(n)/(1<<20), 'f', 1, 64) + " MiB"
}
