// SPDX-License-Identifier: Apache-2.0

package app

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/pkg/deviceplugin"
)

// takeConfig takes what was read as the config. What is wrong with it keeps the last good one; the error is
// for having none yet.
func (d *director) takeConfig(r configRead, now time.Time) error {
	var next *effective
	err := r.err
	if err == nil {
		next, err = d.effect(r)
	}
	d.config.from, d.config.name = r.from, r.name
	if err != nil {
		d.config.good, d.config.problem = false, err.Error()
		if d.effective == nil {
			return fmt.Errorf("no config to begin with:\n%w", err)
		}
		d.log.Error("the config is not taken; the last good one stays", "config", r.name, "from", r.from, "error", err, "holds", d.effective.hash)
		return nil
	}
	before := d.effective
	d.effective = next
	d.use(next)
	d.config.good, d.config.problem, d.config.goodAt = true, "", now
	if r.synced && d.cfg.configDir != "" {
		d.keepConfig(rememberedConfig{Name: r.name, Nothing: r.nothing, Hash: next.hash, Data: r.data})
	}
	if before == nil || before.hash != next.hash || r.asked {
		d.log.Info("the config is taken", "config", r.name, "from", r.from, "hash", next.hash, "mig_strategy", next.settings.MIGStrategy, "sharing", next.settings.Sharing)
	}
	for _, w := range next.warnings {
		if before == nil || !slices.Contains(before.warnings, w) {
			d.log.Warn(w)
		}
	}
	return nil
}

// effect is what a config that was read comes to. It is an error for one that would take away what others
// hold: half a file, or sharing that cannot be done, of which only whole devices would be left.
func (d *director) effect(r configRead) (*effective, error) {
	next, err := newEffective(d.cfg.flags, d.cfg.env, r.name, r.data)
	if err != nil {
		return nil, err
	}
	if d.effective != nil && r.blank() && !d.blank {
		return nil, fmt.Errorf("%s is empty, and the config before was not (write version: v1 for NVIDIA's defaults)", r.name)
	}
	next.settings.NoTopology = next.settings.NoTopology || d.cfg.noTopology
	if d.stockFrom != "" {
		if err := unshared(deviceplugin.NewPlan(d.inventory, next.settings)); err != nil {
			return nil, err
		}
	}
	if d.effective == nil && r.blank() {
		next.warnings = append(next.warnings, r.name+" is empty: NVIDIA's defaults hold")
	}
	d.blank = r.blank()
	return next, nil
}

// unshared is why a plan cannot share what it should, nil if it can.
func unshared(_ deviceplugin.Plan, problems []error) error {
	var out []error
	for _, p := range problems {
		if problem, ok := errors.AsType[*deviceplugin.Problem](p); ok && problem.Unshares {
			out = append(out, p)
		}
	}
	return errors.Join(out...)
}
