// SPDX-License-Identifier: Apache-2.0

package promusage

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"
)

// register is a family of the exporter's page, and the recording rule that keeps it once an hour.
type register struct {
	metric, rule string
	// labels are what it is kept by beside the ledger's id, as on the page.
	labels []string
	// matcher narrows it, where it is not empty.
	matcher string
	// zeros says that 0 is an answer, and not the same as not being there.
	zeros bool
}

// ledgerLabel is on every register; no node has another's.
const ledgerLabel = "ledger_id"

// aliased are labels that a scrape without honor_labels renames, because the target has them too.
var aliased = map[string]bool{"namespace": true, "pod": true, "container": true, "node": true, "cluster": true}

const alias = "exported_"

func kept(metric string, labels ...string) register {
	rule := "gpumeter:" + strings.TrimSuffix(strings.TrimPrefix(metric, "gpumeter_"), "_total") + ":hourly"
	return register{metric: metric, rule: rule, labels: labels}
}

// quantity are the registers of one thing in the units it is counted in.
type quantity struct{ gpu, memory, energy register }

func quantities(what string, labels ...string) quantity {
	q := quantity{
		gpu:    kept("gpumeter_"+what+"_gpu_seconds_total", labels...),
		memory: kept("gpumeter_"+what+"_memory_byte_seconds_total", labels...),
		energy: kept("gpumeter_"+what+"_energy_joules_total", labels...),
	}
	switch what {
	case "capacity":
		q.energy = kept("gpumeter_card_energy_joules_total", labels...)
	case "namespace", "pod", "allocated":
		q.energy.labels = append(slices.Clone(labels), "basis")
	}
	return q
}

// registers are those of a report.
type registers struct {
	info, created, commit, sequence register
	gaps, nodeLabels, devices       register
	// models is the capacity under each name that a card's model has had.
	models                               register
	capacity, allocated, rest, corrected quantity
	namespaces, pods                     quantity
	namespacesUsed, podsUsed, podsInfo   register
}

func allRegisters() registers {
	card := []string{"UUID"}
	cause := []string{"UUID", "reason"}
	series := []string{"namespace", "resource", "mode", "model", "profile"}
	pods := []string{"namespace", "pod", "pod_uid", "container", "UUID", "GPU_I_ID", "resource", "mode", "model", "profile"}
	used := func(labels []string) []string { return append(slices.Clone(labels), "basis") }
	commit := kept("gpumeter_ledger_commit_timestamp_seconds")
	commit.rule = "gpumeter:ledger_commit_timestamp:hourly"
	created := kept("gpumeter_ledger_created_timestamp_seconds")
	created.rule = "gpumeter:ledger_created_timestamp:hourly"
	gaps := kept("gpumeter_observation_gap_seconds_total", "reason")
	gaps.rule = "gpumeter:observation_gap:hourly"
	namespacesUsed := kept("gpumeter_namespace_used_gpu_seconds_total", used(series)...)
	podsUsed := kept("gpumeter_pod_used_gpu_seconds_total", used(pods)...)
	namespacesUsed.zeros, podsUsed.zeros = true, true
	return registers{
		info:    kept("gpumeter_ledger_info", "node", "cluster", "policy"),
		created: created, commit: commit, sequence: kept("gpumeter_ledger_sequence"), gaps: gaps,
		nodeLabels: kept("gpumeter_node_label", "label", "value"),
		devices:    kept("gpumeter_device_info", "UUID", "gpu"),
		models:     kept("gpumeter_capacity_gpu_seconds_total", "UUID", "model"),
		capacity:   quantities("capacity", card...), allocated: quantities("allocated", card...),
		rest: quantities("unallocated", cause...), corrected: quantities("corrected", cause...),
		namespaces: quantities("namespace", series...), pods: quantities("pod", pods...),
		namespacesUsed: namespacesUsed, podsUsed: podsUsed,
		podsInfo: kept("gpumeter_pod_info", "namespace", "pod", "pod_uid", "workload", "workload_kind"),
	}
}

// by is the list of labels that r's series are told apart by, under both of their names.
func (r register) by() string {
	names := []string{ledgerLabel}
	for _, l := range r.labels {
		names = append(names, l)
		if aliased[l] {
			names = append(names, alias+l)
		}
	}
	return strings.Join(names, ",")
}

// identity is a series' labels as they are on the exporter's page.
type identity []string

// identify reads r's labels, in its order, and the ledger's id.
func (r register) identify(m model.Metric) (ledgerID string, id identity) {
	id = make(identity, len(r.labels))
	for i, l := range r.labels {
		id[i] = label(m, l)
	}
	return string(m[ledgerLabel]), id
}

// label is a label of the page: the scrape's own of that name stands in its place where it has another name.
func label(m model.Metric, name string) string {
	if aliased[name] {
		if v, renamed := m[model.LabelName(alias+name)]; renamed && v != "" {
			return string(v)
		}
	}
	return string(m[model.LabelName(name)])
}

// millionths is a register's value as the whole number of millionths that the exporter has shown.
func millionths(v float64) int64 { return int64(math.Round(v * 1e6)) }

// microjoules is the same of energy, which is shown to the whole millijoule.
func microjoules(v float64) int64 { return int64(math.Round(v*1e3)) * 1000 }

// wallTime is a register that is a time, in whole milliseconds.
func wallTime(seconds float64) time.Time {
	return time.UnixMilli(int64(math.Round(seconds * 1000))).UTC()
}
