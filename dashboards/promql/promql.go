// SPDX-License-Identifier: Apache-2.0

// Package promql makes the expressions of the dashboards' queries. Each idea is said once: what a variable narrows down,
// which node a series is of, and that one GPU is counted once, however often its exporter is scraped.
//
// Three laws hold for all of them:
//
//   - A GPU, a GPU instance and a holder count once. Copies of a series, from a second scrape job, an HA pair of
//     Prometheus servers or --kubernetes-virtual-gpus, are made one by max before anything is added up.
//   - Nothing goes by a label that a scrape could have renamed: exported_namespace and the like are looked for.
//   - What is absent stays absent. Zeros are those of the exporter.
package promql

import "strings"

// The variables of the dashboards, as they stand in matchers.
const (
	ofCluster = `cluster=~"$cluster"`
	ofNode    = `node=~"$node"`
	ofModel   = `model=~"$model"`
)

// No series has the label unset. Its absence matches what the variables match only when they are All: so the one lets everything
// through when no holder is asked for, and the other nothing.
const (
	everyHolder = `unset=~"$namespace$pod"`
	someHolder  = `unset!~"$namespace$pod"`
	everyDevice = `unset=~"$model$namespace$pod"`
	someDevice  = `unset!~"$model$namespace$pod"`
)

// Holder are the labels that name who holds a part of a GPU.
func Holder() []string { return []string{"namespace", "pod", "container"} }

// Scope is what a dashboard's variables leave of all series.
type Scope struct {
	// Matchers stand in every selector: those of a dashboard that shows single nodes, so that a server need not read all.
	Matchers []string
	// offset is how long ago all is read, as PromQL has it; "" for now.
	offset string
}

// Before reads all at the beginning of a window: also which node a device was of, since an exporter that was restarted may have
// another address.
func (s Scope) Before(w Window) Scope {
	s.offset = w.Length
	return s
}

// Series is a selector.
func (s Scope) Series(name string, matchers ...string) string {
	all := append(append([]string{}, matchers...), s.Matchers...)
	if len(all) > 0 {
		name += "{" + strings.Join(all, ",") + "}"
	}
	if s.offset != "" {
		name += " offset " + s.offset
	}
	return name
}

// By is an aggregation by labels.
func By(op string, labels []string, of string) string {
	return op + " by (" + strings.Join(labels, ", ") + ") (" + of + ")"
}

// Sum adds up, by labels or all.
func Sum(of string, labels ...string) string {
	if len(labels) == 0 {
		return "sum(" + of + ")"
	}
	return By("sum", labels, of)
}

// Count counts, by labels or all.
func Count(of string, labels ...string) string {
	if len(labels) == 0 {
		return "count(" + of + ")"
	}
	return By("count", labels, of)
}

// Set gives every series a label of one value.
func Set(of, label, value string) string {
	return `label_replace(` + of + `, "` + label + `", "` + value + `", "", "")`
}

// Or is the first and what others add to it.
func Or(all ...string) string { return strings.Join(all, " or ") }

func replaced(of, to, from string) string {
	return `label_replace(` + of + `, "` + to + `", "$1", "` + from + `", "(.+)")`
}

func with(labels []string, more ...string) []string {
	return append(append([]string{}, labels...), more...)
}
