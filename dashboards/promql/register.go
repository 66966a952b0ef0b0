// SPDX-License-Identifier: Apache-2.0

package promql

// Register is a counter of the ledgers: consumption is the difference of two of its readings.
type Register struct {
	// Name is the counter's without gpumeter_ and _total.
	Name string
	// Labels name a series of it beside ledger_id.
	Labels []string
	// OfNamespace says that the register is a namespace's; else it is a GPU's.
	OfNamespace bool
}

// NamespaceRegister is a register of namespaces, by the labels it has beyond those that all of them have.
func NamespaceRegister(name string, more ...string) Register {
	return Register{Name: name, OfNamespace: true, Labels: with([]string{"namespace", "resource", "mode", "model", "profile"}, more...)}
}

// CardRegister is a register of GPUs, by the labels it has beyond those that all of them have.
func CardRegister(name string, more ...string) Register {
	return Register{Name: name, Labels: with([]string{"UUID", "model"}, more...)}
}

func (r Register) raw() string    { return "gpumeter_" + r.Name + "_total" }
func (r Register) hourly() string { return "gpumeter:" + r.Name + ":hourly" }

// one makes one series of all copies of a register. The holder's label gets its name back first: of two scrape jobs one may have renamed it.
func (r Register) one(op, of string) string {
	if r.OfNamespace {
		of = replaced(of, "namespace", "exported_namespace")
	}
	return By(op, with([]string{"ledger_id"}, r.Labels...), of)
}

func (r Register) matchers() []string {
	if r.OfNamespace {
		return []string{ofModel}
	}
	return []string{ofModel, everyHolder}
}

// Window is a time that ends at the moment of evaluation.
type Window struct {
	// Length is its length as PromQL has it, Seconds the same as a number.
	Length, Seconds string
}

// Range is the time that the dashboard shows.
func Range() Window { return Window{Length: "$__range", Seconds: "$__range_s"} }

// Step is the time from one moment of a graph to the next.
func Step() Window { return Window{Length: "$__interval", Seconds: "$__interval_ms / 1000"} }

// Day is one day.
func Day() Window { return Window{Length: "1d", Seconds: "86400"} }

// Consumed is by how much a register grew in a window, by cluster, node and the register's own labels: its last reading less that at the
// beginning, at the maximum of all that was scraped of it. Nothing is extrapolated. The beginning is, in this order,
//
//   - the reading at that moment, raw or hourly;
//   - of a ledger that was not read then, though it was there: its first hourly reading. It may have counted for a year;
//   - of a ledger that was, or that began later: 0, since registers are born at 0.
//
// Without any of these nothing is known, and there is no series.
func (s Scope) Consumed(r Register, w Window) string {
	raw, hourly := s.Series(r.raw(), r.matchers()...), s.Series(r.hourly(), r.matchers()...)
	end := "(" + Or(r.one("max", raw), r.one("max", "max_over_time("+hourly+"["+w.Length+"])")) + ")"
	start := Or(r.one("max", raw+" offset "+w.Length), r.one("max", "last_over_time("+hourly+"[2h] offset "+w.Length+")"))
	first := r.one("min", "min_over_time("+hourly+"["+w.Length+"])") + on("unless", []string{"ledger_id"}) + s.known(w)
	zero := "0 * " + end + on("and", []string{"ledger_id"}) + s.known(w)
	return s.ofLedgers("("+end+" - ("+Or(start, first, zero)+"))", w, r.OfNamespace)
}

// ConsumedByPods is Consumed of a register of pods in seconds, which have no hourly readings. A pod's series stay for 15 minutes after
// its end, so that one look in ten minutes sees what each came to, and what is there still is read now. A series that came within the
// window began at 0, unless its ledger was not known at the window's beginning: then what it showed first is no consumption.
func (s Scope) ConsumedByPods(name string, w Window, more ...string) string {
	id := with([]string{"ledger_id", "namespace", "pod", "container", "pod_uid", "UUID", "GPU_I_ID", "resource", "mode", "model", "profile"}, more...)
	looks := s.Held("gpumeter_"+name+"_total", ofModel) + "[" + w.Length + ":10m]"
	end := "(" + Or(By("max", id, s.Held("gpumeter_"+name+"_total", ofModel)), By("max", id, "max_over_time("+looks+")")) + ")"
	start := By("max", id, s.Before(w).Held("gpumeter_"+name+"_total", ofModel))
	first := By("min", id, "min_over_time("+looks+")") + on("unless", []string{"ledger_id"}) + s.known(w)
	zero := "0 * " + end + on("and", []string{"ledger_id"}) + s.known(w)
	return s.ofLedgers("("+end+" - ("+Or(start, first, zero)+"))", w, false)
}

// known are the ledgers of which it is known what they had at the beginning of a window: those that were read then, and those that
// began later.
func (s Scope) known(w Window) string {
	created := Or("gpumeter_ledger_created_timestamp_seconds", "last_over_time(gpumeter:ledger_created_timestamp:hourly["+w.Length+"])")
	read := Or("gpumeter_ledger_commit_timestamp_seconds offset "+w.Length,
		"last_over_time(gpumeter:ledger_commit_timestamp:hourly[2h] offset "+w.Length+")")
	return "(" + Or(By("max", []string{"ledger_id"}, created)+" >= time() - "+w.Seconds, By("group", []string{"ledger_id"}, read)) + ")"
}

// ofLedgers keeps what is of the chosen nodes and namespaces, and says which node it is of.
func (s Scope) ofLedgers(of string, w Window, byNamespace bool) string {
	if byNamespace {
		of = kept(of)
	}
	return of + on("*", []string{"ledger_id"}) + "group_left (cluster, node) " + s.ledgersIn(w)
}

// ledgersIn are cluster and node by ledger, of all that were there in a window. A ledger on a copied disk has two nodes, of which one
// is taken: the alert GpumeterLedgerCloned is for that.
func (s Scope) ledgersIn(w Window) string {
	return "topk by (ledger_id) (1, " + By("group", []string{"ledger_id", "cluster", "node"}, Or(
		s.Series("gpumeter_ledger_info", ofCluster, ofNode),
		"last_over_time("+s.Series("gpumeter:ledger_info:hourly", ofCluster, ofNode)+"["+w.Length+"])")) + ")"
}

// kept are the series of the chosen namespaces, after their label got its name back: a matcher cannot see that one.
func kept(of string) string {
	return `(label_replace(` + of + `, "kept", "yes", "namespace", "$namespace") and on (kept) ` + Set("vector(1)", "kept", "yes") + ")"
}

// Flow is how fast a namespace's register grows now, per second, by cluster, node and the register's own labels. For GPU time this
// is a number of GPUs.
func (s Scope) Flow(r Register, window string) string {
	rate := r.one("max", "rate("+s.Series(r.raw(), r.matchers()...)+"["+window+"])")
	return s.ofLedgers(rate, Window{Length: "1h"}, r.OfNamespace)
}

// InAll is about how much a register grew in all of the time that a graph shows, the same at each of its moments: to choose what the graph shows.
func (s Scope) InAll(r Register) string {
	return s.ofLedgers("("+Or(
		r.one("max", "increase("+s.Series(r.hourly(), r.matchers()...)+"[$__range] @ end())"),
		r.one("max", "rate("+s.Series(r.raw(), r.matchers()...)+"[1h] @ end())"))+")", Window{Length: "1h"}, r.OfNamespace)
}

// Namespaces are those that have held something on the chosen nodes, for the variable of that name.
func Namespaces() string {
	of := replaced("gpumeter_namespace_gpu_seconds_total", "namespace", "exported_namespace")
	return By("group", []string{"namespace"}, of+on("and", []string{"ledger_id"})+Scope{}.ledgers())
}

// Pods are those of the chosen namespaces that hold something on the chosen nodes, or have within minutes.
func Pods() string {
	every := `exported_namespace!="",exported_namespace=~"$namespace"`
	of := Or(`gpumeter_pod_gpu_seconds_total{exported_namespace="",namespace=~"$namespace"}`,
		replaced("gpumeter_pod_gpu_seconds_total{"+every+"}", "pod", "exported_pod"))
	return By("group", []string{"pod"}, "("+of+")"+on("and", []string{"ledger_id"})+Scope{}.ledgers())
}
