// SPDX-License-Identifier: Apache-2.0

package app

import (
	"errors"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/pkg/deviceplugin"
	"github.com/gpumeter/gpumeter/pkg/health"
)

// status is what the director knows, for /metrics and probes. It is never modified once made.
type status struct {
	config    configStatus
	verdicts  string
	monitorUp bool
	unjudged  int
	// version is that of the exporter's list whose verdicts hold, 0 for none.
	version   uint64
	stock     stock
	stockFrom string
	problems  map[deviceplugin.ProblemKind]int
	// repartition is what the plugin's own engine knows of one.
	repartition health.Repartition
	// set says that the node's state is known and handed out; wanted are the resources of its plan.
	set    bool
	wanted []string
}

// revision names a config for the manager, which tells which one is in force.
type revision struct{ hash, from string }

// String is the hash and why the config is this one.
func (r revision) String() string { return r.hash + " " + r.from }

func parseRevision(text string) revision {
	hash, from, _ := strings.Cut(text, " ")
	return revision{hash, from}
}

// configStatus is how the last reading of the config went.
type configStatus struct {
	from    string
	name    string
	good    bool
	goodAt  time.Time
	problem string
}

// planned is a plan with what it could not do.
type planned struct {
	plan     deviceplugin.Plan
	problems []error
}

// publish makes the status that others read; p is nil where the plan is as before.
func (d *director) publish(p *planned) {
	before := d.status.Load()
	s := &status{
		config: d.config, verdicts: verdictNone, monitorUp: d.stream.up, unjudged: d.judged.unjudged,
		stock: d.stock, stockFrom: d.stockFrom, set: d.set,
		problems: before.problems, wanted: before.wanted,
	}
	if d.own != nil {
		s.repartition = d.own.Repartition
	}
	if d.judged.report != nil {
		s.version = d.judged.report.Version
	}
	if d.judged.source != "" {
		s.verdicts = d.judged.source
	}
	if p != nil {
		s.problems, s.wanted = map[deviceplugin.ProblemKind]int{}, nil
		for _, err := range p.problems {
			kind := deviceplugin.ProblemKind("other")
			if problem, ok := errors.AsType[*deviceplugin.Problem](err); ok {
				kind = problem.Kind
			}
			s.problems[kind]++
		}
		for _, r := range p.plan.Resources {
			s.wanted = append(s.wanted, r.Name)
		}
	}
	d.status.Store(s)
}
