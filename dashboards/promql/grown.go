// SPDX-License-Identifier: Apache-2.0

package promql

// Grown is by how much counters grew in a window, in whole numbers: unlike increase() it makes 3 of three events, and it sees the first
// event of a series that is born with it. of makes the counters, with the labels cluster and node, and none that a restart of an
// exporter changes. What was not there at the beginning counts from 0 where the node was scraped then or its ledger began later; else
// nothing is known of it. Where nothing is known, and where a counter has fallen, as after a restart without a ledger, there is no
// series.
func (s Scope) Grown(of func(Scope) string, w Window) string {
	known := By("group", []string{"cluster", "node"},
		"gpumeter_ledger_info offset "+w.Length+" or gpumeter_ledger_info and on (ledger_id) gpumeter_ledger_created_timestamp_seconds >= time() - "+w.Seconds)
	return "((" + of(s) + ") - ((" + of(s.Before(w)) + ") or 0 * (" + of(s) + ") and on (cluster, node) " + known + ") >= 0)"
}
