// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"slices"

	"github.com/gpumeter/gpumeter/pkg/health"
)

// otherMIGState stands for any word of a MIG manager that is not known here.
const otherMIGState = "other"

// addRepartition says what the node's MIG manager is doing, and whether that pauses judging. There is
// nothing to say where nobody knows.
func (f *ownFamilies) addRepartition(r *health.Report) {
	said := r.Repartition.State
	if said == health.MIGUnsaid {
		return
	}
	states := append(health.MIGStates(), health.MIGNone)
	f.begin("gpumeter_mig_repartition", "What the MIG manager says of dividing the node's GPUs anew, as the label nvidia.com/mig.config.state has it: 1 for its word, 0 for the others; none where there is no such label.", kindGauge)
	for _, s := range states {
		f.count(f.set("state", string(s)), truth(s == said))
	}
	f.count(f.set("state", otherMIGState), truth(!slices.Contains(states, said)))
	f.begin("gpumeter_mig_repartition_start_timestamp_seconds", "From when the MIG manager has said so, as far as the exporter has seen, in Unix time.", kindGauge)
	f.instant(f.set(), r.Repartition.Since)
	f.begin("gpumeter_health_judging_paused", "Whether GPUs are being divided anew, so that none is called lost or stuck, and none recovers.", kindGauge)
	f.count(f.set(), truth(r.Repartition.Paused))
}
