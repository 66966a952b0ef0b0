// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/gpumeter/gpumeter/cmd/gpumeter-exporter/app"
	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/promusage"
)

// verifier is gpumeter verify.
type verifier struct {
	source sourceFlags
	period periodFlags
	step   time.Duration
	asJSON bool

	stdout, stderr io.Writer
	now            func() time.Time
}

func verifyCommand(stdout, stderr io.Writer, now func() time.Time) *cli.Command {
	v := &verifier{stdout: stdout, stderr: stderr, now: now}
	return &cli.Command{
		Name:  "verify",
		Usage: "prove that a ledger, or what Prometheus has of it, adds up",
		Description: "Of a ledger (--ledger) it checks every line's sum, the chain of hashes, the numbers of the records, that the parts of each GPU are one GPU " +
			"at every moment, and that the totals are what the records come to, exactly. Of Prometheus (--prometheus) it adds up every GPU's counters at every step " +
			"of the period, and looks for counters that fell.\n\n" +
			"It ends with 0 where all is proven, 2 where something is missing, which it names, 3 where something does not add up or was changed, and 1 where it could not look.",
		OnUsageError: app.UsageError,
		Flags: slices.Concat(v.source.flags(), v.period.flags(), []cli.Flag{
			&cli.DurationFlag{Name: "step", Value: time.Hour, Destination: &v.step, Usage: "with --prometheus: `TIME` from one check to the next"},
			&cli.BoolFlag{Name: "json", Destination: &v.asJSON, Usage: "JSON instead of words"},
		}),
		Action: plain(v.run),
	}
}

func (v *verifier) run(ctx context.Context) error {
	if err := v.source.check(); err != nil {
		return err
	}
	if v.step < time.Second {
		return fmt.Errorf("--step %v: want a second or more", v.step)
	}
	if v.source.prometheus == "" && (v.period.from != "" || v.period.to != "" || v.period.month != "" || v.period.closedOnly) {
		return errors.New("a ledger is verified whole: --from, --to, --month and --closed-only are for --prometheus")
	}
	p := newProgress(v.stderr)
	defer p.clear()
	var proof verification
	var err error
	if proof.Ledgers, err = v.ledgers(ctx, p); err != nil {
		return err
	}
	if v.source.prometheus != "" {
		if proof.Prometheus, err = v.server(ctx, p); err != nil {
			return err
		}
	}
	p.clear()
	if v.asJSON {
		e := json.NewEncoder(v.stdout)
		e.SetIndent("", "  ")
		err = e.Encode(&proof)
	} else {
		err = proof.write(v.stdout)
	}
	if err != nil {
		return fmt.Errorf("write what was proven: %w", err)
	}
	return exitFor(proof.exitCode())
}

// ledgers verifies one after the other: each uses all processors.
func (v *verifier) ledgers(ctx context.Context, p *progress) ([]ledgerProof, error) {
	readers, err := v.source.openLedgers(v.now)
	if err != nil {
		return nil, err
	}
	proofs := make([]ledgerProof, 0, len(readers))
	for _, r := range readers {
		found, err := r.Verify(ctx, p.step("verifying "+r.Dir()))
		if err != nil {
			return nil, err
		}
		proofs = append(proofs, proofOf(&found))
	}
	return proofs, nil
}

func (v *verifier) server(ctx context.Context, p *progress) (*serverProof, error) {
	period, err := v.period.period(v.now())
	if err != nil {
		return nil, err
	}
	transport, err := v.source.transport()
	if err != nil {
		return nil, err
	}
	source, err := promusage.New(promusage.Config{URL: v.source.prometheus, HTTP: transport, Now: v.now})
	if err != nil {
		return nil, err
	}
	found, err := source.Verify(ctx, period.From, period.To, v.step, p.step("verifying Prometheus"))
	if err != nil {
		return nil, err
	}
	s := serverProofOf(&found)
	s.From, s.To, s.Step = period.From.UTC(), period.To.UTC(), v.step.String()
	return s, nil
}

// verification is what was proven, for people and, in JSON, for scripts.
type verification struct {
	Ledgers    []ledgerProof `json:"ledgers,omitempty"`
	Prometheus *serverProof  `json:"prometheus,omitempty"`
}

// exitCode is 3 where anything contradicts itself, 2 where anything is missing.
func (v *verification) exitCode() int {
	code := 0
	for i := range v.Ledgers {
		code = max(code, v.Ledgers[i].exitCode())
	}
	if s := v.Prometheus; s != nil {
		code = max(code, s.exitCode())
	}
	return code
}

// ledgerProof is what was proven of one ledger.
type ledgerProof struct {
	Dir       string    `json:"dir"`
	LedgerID  string    `json:"ledger_id"`
	Node      string    `json:"node,omitempty"`
	Cluster   string    `json:"cluster,omitempty"`
	Files     int       `json:"files"`
	Records   uint64    `json:"records"`
	First     uint64    `json:"first_record"`
	Last      uint64    `json:"last_record"`
	From      time.Time `json:"from"`
	To        time.Time `json:"to"`
	GPUs      int       `json:"gpus"`
	Intervals uint64    `json:"intervals"`
	// Proven is in GPU-hours.
	Proven   float64        `json:"proven_gpu_hours"`
	Problems []problemProof `json:"problems"`
	More     int            `json:"more_problems,omitempty"`
	Notes    []string       `json:"notes,omitempty"`
	Verdict  string         `json:"verdict"`
}

type problemProof struct {
	Kind   string `json:"kind"`
	File   string `json:"file"`
	Line   int    `json:"line"`
	Record uint64 `json:"record"`
	Text   string `json:"text"`
}

// The verdicts.
const (
	verdictProven       = "proven"
	verdictIncomplete   = "incomplete"
	verdictContradicted = "contradicted"
)

func proofOf(v *ledger.Verification) ledgerProof {
	p := ledgerProof{
		Dir: v.Dir, LedgerID: v.LedgerID, Node: v.Node, Cluster: v.Cluster, Files: v.Segments, Records: v.Records,
		First: v.First, Last: v.Last, From: v.From, To: v.To, GPUs: v.Cards, Intervals: v.Intervals,
		Proven:   v.Proven.Float64() / float64(time.Hour.Milliseconds()),
		Problems: []problemProof{}, More: v.More, Notes: v.Notes, Verdict: verdictProven,
	}
	for _, problem := range v.Problems {
		p.Problems = append(p.Problems, problemProof(problem))
	}
	switch {
	case v.Contradicts():
		p.Verdict = verdictContradicted
	case len(v.Problems) > 0:
		p.Verdict = verdictIncomplete
	}
	return p
}

func (p *ledgerProof) exitCode() int { return codeOf(p.Verdict) }

func codeOf(verdict string) int {
	switch verdict {
	case verdictContradicted:
		return exitUnbalanced
	case verdictIncomplete:
		return exitIncomplete
	}
	return 0
}

// serverProof is what was proven of a Prometheus.
type serverProof struct {
	From    time.Time `json:"from"`
	To      time.Time `json:"to"`
	Step    string    `json:"step"`
	Nodes   int       `json:"nodes"`
	GPUs    int       `json:"gpus"`
	Checked int       `json:"checked"`
	// Worst and Allowed are in GPU-microseconds.
	Worst      int64            `json:"worst_difference_us"`
	Allowed    int64            `json:"rounding_us"`
	Violations []violationProof `json:"violations"`
	Failed     int              `json:"failed"`
	Missing    []missingProof   `json:"missing"`
	// Notes say what could not be looked for.
	Notes   []string `json:"notes,omitempty"`
	Verdict string   `json:"verdict"`
}

type violationProof struct {
	Node     string    `json:"node"`
	LedgerID string    `json:"ledger_id"`
	GPU      string    `json:"gpu"`
	At       time.Time `json:"at"`
	// The following are in GPU-microseconds.
	Capacity    int64 `json:"capacity_us"`
	Corrected   int64 `json:"corrected_us"`
	Allocated   int64 `json:"allocated_us"`
	Unallocated int64 `json:"unallocated_us"`
	Difference  int64 `json:"difference_us"`
}

type missingProof struct {
	Node   string    `json:"node"`
	From   time.Time `json:"from"`
	To     time.Time `json:"to"`
	Reason string    `json:"reason"`
	Text   string    `json:"text"`
}

func serverProofOf(v *promusage.Verification) *serverProof {
	s := &serverProof{
		Nodes: len(v.Nodes), GPUs: v.GPUs, Checked: v.Checked, Worst: v.Worst, Allowed: v.Allowed, Failed: v.Failed,
		Violations: []violationProof{}, Missing: []missingProof{}, Notes: v.Notes, Verdict: verdictProven,
	}
	for _, x := range v.Violations {
		s.Violations = append(s.Violations, violationProof{
			Node: x.Node, LedgerID: x.LedgerID, GPU: string(x.Card), At: x.At, Capacity: x.Capacity, Corrected: x.Corrected,
			Allocated: x.Allocated, Unallocated: x.Unallocated, Difference: x.Difference,
		})
	}
	for _, n := range v.Nodes {
		for _, m := range n.Missing {
			s.Missing = append(s.Missing, missingProof{Node: cmp.Or(n.Node, n.LedgerID), From: m.From, To: m.To, Reason: m.Reason, Text: m.Text})
		}
	}
	switch {
	case !v.OK():
		s.Verdict = verdictContradicted
	case len(s.Missing) > 0 || v.Checked == 0:
		s.Verdict = verdictIncomplete
	}
	return s
}

func (s *serverProof) exitCode() int { return codeOf(s.Verdict) }
