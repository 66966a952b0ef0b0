// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/meter"
)

// verdict is one device's, with its labels.
type verdict struct {
	*health.Verdict
	id labelID
	// own are its conditions without those of its card, one for each kind, the worst.
	own []*health.Condition
}

// addVerdicts says what is known of each device's health. There is nothing to say before the
// first verdict, and where nobody makes any.
func (f *ownFamilies) addVerdicts() {
	r := f.snapshot.Health
	if r == nil || len(r.Verdicts) == 0 {
		return
	}
	verdicts := f.verdicts(r)
	f.begin("gpumeter_device_health", "What the verdict on a physical GPU or MIG device is: 1 for the status it has, 0 for the others.", kindGauge)
	for i := range verdicts {
		for _, s := range health.Statuses() {
			f.count(f.labels.extend(verdicts[i].id, label{"status", s.String()}), truth(verdicts[i].Status == s))
		}
	}
	f.begin("gpumeter_device_avoided", "Whether the device works and others are taken first where they are free: something is pending or to be watched.", kindGauge)
	for i := range verdicts {
		f.count(verdicts[i].id, truth(verdicts[i].Avoided()))
	}
	f.addConditions(verdicts)
	f.addRecords(r, verdicts)
	f.begin("gpumeter_health_version", "Version of the verdicts, which grows with each change of them or of the devices, also over restarts where they are saved.", kindGauge)
	f.count(f.set(), int64(r.Version))
	f.addRepartition(r)
	f.addConditionStore()
}

func (f *ownFamilies) verdicts(r *health.Report) []verdict {
	out := make([]verdict, len(r.Verdicts))
	set := make([]label, 0, 16)
	for i := range r.Verdicts {
		v := &r.Verdicts[i]
		out[i] = verdict{Verdict: v, id: f.labels.intern(f.deviceLabels(set, v.Card, v.Device)), own: ownConditions(v)}
	}
	return out
}

// ownConditions are those of the device itself, the worst of each kind: a MIG device's verdict has
// its card's conditions too, and two compute instances can have one kind each.
func ownConditions(v *health.Verdict) []*health.Condition {
	var own []*health.Condition
	for i := range v.Conditions {
		c := &v.Conditions[i]
		again := false
		for _, o := range own {
			again = again || o.Kind == c.Kind
		}
		if whole := c.GPUInstance == gpu.NoInstance; whole == (v.Device == v.Card) && !again {
			own = append(own, c)
		}
	}
	return own
}

func (f *ownFamilies) addConditions(verdicts []verdict) {
	f.begin("gpumeter_device_condition", "A fault of a device with evidence; 1 while it stands. One of the whole card is on the card alone.", kindGauge)
	for i := range verdicts {
		for _, c := range verdicts[i].own {
			f.count(f.labels.extend(verdicts[i].id, label{"kind", string(c.Kind)}, label{"class", c.Class.String()}), 1)
		}
	}
	each := func(name, help string, at func(*health.Condition) time.Time) {
		f.begin(name, help, kindGauge)
		for i := range verdicts {
			for _, c := range verdicts[i].own {
				f.instant(f.labels.extend(verdicts[i].id, label{"kind", string(c.Kind)}), at(c))
			}
		}
	}
	each("gpumeter_device_condition_start_timestamp_seconds", "When the condition was first seen, in Unix time.",
		func(c *health.Condition) time.Time { return c.Since })
	each("gpumeter_device_condition_last_timestamp_seconds", "When the condition was last seen, in Unix time.",
		func(c *health.Condition) time.Time { return c.Last })
	each("gpumeter_device_condition_recovery_timestamp_seconds",
		"From when the evidence stands that the condition is over, in Unix time; it ends when that has stood long enough.",
		func(c *health.Condition) time.Time { return c.RecoveringSince })
}

// addRecords has what is counted of each device that has a verdict, from 0 on, because the first
// step of a counter that was not there is lost to increase(). Of a MIG device that is no more nobody
// knows where it was.
func (f *ownFamilies) addRecords(r *health.Report, verdicts []verdict) {
	records := make(map[gpu.UUID]*health.Record, len(r.Records))
	for i := range r.Records {
		records[r.Records[i].Device] = &r.Records[i]
	}
	none := &health.Record{}
	each := func(name, help string, add func(labelID, *health.Record)) {
		f.begin(name, help, kindCounter)
		for i := range verdicts {
			if counted := records[verdicts[i].Device]; counted != nil {
				add(verdicts[i].id, counted)
			} else {
				add(verdicts[i].id, none)
			}
		}
	}
	each("gpumeter_device_health_transitions_total", "How often a device's verdict became the status.", func(id labelID, c *health.Record) {
		for _, s := range health.Statuses() {
			f.count(f.labels.extend(id, label{"status", s.String()}), int64(c.Transitions[s.String()]))
		}
	})
	each("gpumeter_device_unhealthy_seconds_total", "Time for which the device was unhealthy while it was watched.", func(id labelID, c *health.Record) {
		f.number(id, c.Unhealthy.Seconds())
	})
	each("gpumeter_device_health_clearings_total", "How often an operator has cleared the device.", func(id labelID, c *health.Record) {
		f.count(id, int64(c.Clearings))
	})
	last := make(map[gpu.UUID]time.Time, len(r.Clearings))
	for i := range r.Clearings {
		last[r.Clearings[i].Device] = r.Clearings[i].Time
	}
	f.begin("gpumeter_device_health_last_clearing_timestamp_seconds", "When an operator last cleared the device, in Unix time.", kindGauge)
	for i := range verdicts {
		f.instant(verdicts[i].id, last[verdicts[i].Device])
	}
}

// addRestored says what the verdicts began with. There is nothing to say where nothing is kept.
func (f *ownFamilies) addRestored() {
	if f.cfg.Restored == "" {
		return
	}
	f.begin("gpumeter_health_conditions_restored", "What became of the conditions saved before the exporter began: restored, new (there were none), previous (the last save is damaged, the one before it is used), corrupt, newer or unread (nothing is known of what was broken); always 1.", kindGauge)
	f.count(f.set("result", f.cfg.Restored), 1)
}

// addConditionStore says whether the conditions would outlive a crash. There is nothing to say
// where they are not meant to.
func (f *ownFamilies) addConditionStore() {
	store := &f.snapshot.HealthStore
	if *store == (meter.StoreState{}) {
		return
	}
	f.begin("gpumeter_health_conditions_saved", "Whether all conditions are on disk, and so outlive a restart.", kindGauge)
	f.count(f.set(), truth(store.Saved))
	f.begin("gpumeter_health_last_save_timestamp_seconds", "When the conditions were last saved, in Unix time.", kindGauge)
	f.instant(f.set(), store.At)
}
