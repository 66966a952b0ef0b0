// SPDX-License-Identifier: Apache-2.0

package catalogue

import "github.com/gpumeter/gpumeter/dashboards/promql"

const (
	noPrice   = "without price rules and with a price of 0"
	setAPrice = "no price: see the variable at the top"
	noHolder  = "with a namespace or a pod chosen: what nobody held is in none"
	monthLong = " * scalar(days_in_month()) * 86400 / $__range_s"
	billNote  = " The bill is `gpumeter report`, which knows discounts, quotas and who pays for what is idle; this is what it begins with. "
)

func hours(of string) string { return "(" + of + " / 3600)" }

// heldHours are GPU-hours held in the time shown.
func heldHours(s promql.Scope, by ...string) string {
	return hours(promql.Sum(s.Consumed(heldTime(), promql.Range()), by...))
}

func usedHours(s promql.Scope, by ...string) string {
	return hours(promql.Sum(s.Consumed(usedTime(), promql.Range()), by...))
}

// restHours are GPU-hours that nobody is charged for; what was booked as unobserved and found to have been held later is taken off, so
// that with those held they are the capacity.
func restHours(s promql.Scope, more ...string) string {
	by := append([]string{"reason"}, more...)
	rest := promql.Sum(s.Consumed(promql.CardRegister("unallocated_gpu_seconds", "reason"), promql.Range()), by...)
	corrected := promql.Sum(s.Consumed(promql.CardRegister("corrected_gpu_seconds", "reason"), promql.Range()), by...)
	return "(" + promql.Or(rest+" - "+corrected, rest) + ") / 3600"
}

// stateHours are the GPU-hours of each state, and with those of every state the capacity.
func stateHours(s promql.Scope, more ...string) string {
	return "(" + promql.Or(
		promql.Set(heldHours(s, more...), "state", "held"),
		`label_replace(`+restHours(s, more...)+`, "state", "$1", "reason", "(.+)")`) + ")"
}

// cost is what is held costs at list price.
func cost(s promql.Scope, by ...string) string {
	return promql.Sum(promql.Cost(heldHours(s, append([]string{"model"}, without(by, "currency", "model")...)...)), by...)
}

func without(labels []string, not ...string) []string {
	var left []string
	for _, l := range labels {
		found := false
		for _, n := range not {
			found = found || l == n
		}
		if !found {
			left = append(left, l)
		}
	}
	return left
}

func podHours(s promql.Scope, more ...string) string {
	return hours(promql.Sum(s.ConsumedByPods("pod_gpu_seconds", promql.Range()), append([]string{"namespace", "pod"}, more...)...))
}

func podUsedHours(s promql.Scope) string {
	return hours(promql.Sum(s.ConsumedByPods("pod_used_gpu_seconds", promql.Range(), "basis"), "namespace", "pod"))
}

func chargeback() Dashboard {
	s := promql.Scope{}
	d := Dashboard{
		Name: "chargeback", Title: "gpumeter / Chargeback", From: "now/M", Refresh: "", variables: append(variables(), price()),
		Description: "GPU-hours and cost of the time shown, at first the month so far: by namespace, pod, model and reason, what the month comes to, and who holds GPUs and does not use them.",
	}
	return d.laid(chargebackNumbers(s), line(namespaces(s)),
		line(
			pie("GPU-hours by model", "none", "GPU-hours held in the time shown. Of gpumeter_namespace_gpu_seconds_total. "+rules,
				now(heldHours(s, "model"), "{{model}}")).shaded().round(1).wide(8).none(noRules),
			pie("GPU-hours by mode", "none", "GPU-hours held whole, in replicas and as MIG devices. Of gpumeter_namespace_gpu_seconds_total. "+rules,
				now(heldHours(s, "mode"), "{{mode}}")).inColours(modes()).round(1).wide(8).none(noRules),
			gauges("GPU-hours by state", "none", "All GPU-hours of the time shown: held, and what nobody is charged for, by reason. Together they are the capacity. "+
				"Of gpumeter_namespace_gpu_seconds_total, gpumeter_unallocated_gpu_seconds_total and gpumeter_corrected_gpu_seconds_total. "+rules,
				now(heldHours(s), "held"), now(restHours(s), "{{reason}}")).inColours(states()).round(1).wide(8).none(noRules).empty(noHolder, "B")),
		line(
			graph("GPUs held, by namespace", "none", "How many GPUs the ten greatest namespaces of the time shown held. Of gpumeter_namespace_gpu_seconds_total.",
				series(promql.Sum(s.Flow(heldTime(), "$__rate_interval"), "namespace")+" and on (namespace) topk(10, "+greatest(s)+")", "{{namespace}}")).
				stacked().shaded().few().every("5m"),
			graph("GPU-hours a day, by namespace", "none", "GPU-hours held on each day, which ends at midnight UTC; the ten greatest namespaces of the time shown. "+
				"Of the recording rule gpumeter:namespace_gpu_seconds:hourly and gpumeter_namespace_gpu_seconds_total.",
				series(hours(promql.Sum(s.Consumed(heldTime(), promql.Day()), "namespace"))+" and on (namespace) topk(10, "+greatest(s)+")", "{{namespace}}")).
				inBars().shaded().every("1d").empty("in a time that has no midnight UTC").none("no whole day in this time")),
		line(idleHolders(s)),
		line(pods(s)),
		line(stateCosts(s), modelCosts(s), priceList()))
}

// greatest says which namespaces held most in the time shown.
func greatest(s promql.Scope) string { return promql.Sum(s.InAll(heldTime()), "namespace") }

func chargebackNumbers(s promql.Scope) []Panel {
	about := "A month at the rate of the time shown: what was held, by the time that has gone, times the length of the month. "
	return line(
		number("GPU-hours held", "none", heldHours(s), "GPU-hours that pods held in the time shown. Of gpumeter_namespace_gpu_seconds_total, last reading less first. "+rules).round(0).none(noRules),
		number("Cost", "none", cost(s, "currency"), "GPU-hours times the price of their model, by currency: from the rules of `gpumeter prices rules`, else the price at the top."+billNote+rules).
			withNames().legended("{{currency}}").round(2).empty(noPrice).none(setAPrice),
		number("Forecast: GPU-hours", "none", heldHours(s)+monthLong, about+rules).round(0).none(noRules),
		number("Forecast: cost", "none", cost(s, "currency")+monthLong, about+billNote+rules).withNames().legended("{{currency}}").round(2).empty(noPrice).none(setAPrice),
		number("Used of what was held", "percentunit", ratio(usedHours(s), heldHours(s)), "What was measured to be at work of the GPU-hours held. Of gpumeter_namespace_used_gpu_seconds_total and gpumeter_namespace_gpu_seconds_total. "+rules).
			partly().round(0).none(noRules),
		number("Held and idle", "none", hours(promql.Sum(idleIn(s, promql.Range()))), "GPU-hours that were held and not used, where use is measured. "+rules).round(0).at(text, step{1, yellow}).none(noRules),
		number("Not held", "none", promql.Sum(restHours(s)), "GPU-hours that nobody is charged for, by reason below. Of gpumeter_unallocated_gpu_seconds_total. "+rules).
			round(0).empty(noHolder).none("–"),
		number("Energy", "kwatth", promql.Sum(s.Consumed(promql.NamespaceRegister("namespace_energy_joules", "basis"), promql.Range()))+" / 3.6e6",
			"What the GPUs used for those who held them: measured where they held a whole GPU, else by their part. Of gpumeter_namespace_energy_joules_total. "+rules).round(1).none(noRules),
	)
}

// legended names the series of a figure.
func (p Panel) legended(legend string) Panel {
	for i := range p.Targets {
		p.Targets[i].Legend = legend
	}
	return p
}

// idleIn is held less used, of what is measured.
func idleIn(s promql.Scope, w promql.Window) string {
	id := []string{"cluster", "node", "ledger_id", "namespace", "resource", "mode", "model", "profile"}
	return "clamp_min(" + promql.Sum(s.Consumed(heldTime(), w), id...) + " - " + promql.Sum(s.Consumed(usedTime(), w), id...) + ", 0)"
}

func namespaces(s promql.Scope) Panel {
	used := value("Used", "percentunit", 0, usedHours(s, "namespace")+" / ("+heldHours(s, "namespace")+" > 0)").meter(1, teal)
	return list("By namespace", "What each namespace held in the time shown, what it costs at list price, what the month comes to at this rate, what was used of it, and what the rest costs."+billNote+
		"Of gpumeter_namespace_gpu_seconds_total, _used_gpu_seconds_total, _memory_byte_seconds_total and _energy_joules_total, last reading less first. "+rules,
		label("namespace", "Namespace").to(drill("Only this namespace", "chargeback", "namespace", cell("Namespace"))),
		value("GPU-hours", "none", 1, heldHours(s, "namespace")),
		value("Cost", "none", 2, cost(s, "namespace")).but(noPrice),
		value("Month at this rate", "none", 2, cost(s, "namespace")+monthLong).but(noPrice),
		used.but("where use is not measured"),
		value("Held and idle", "none", 1, hours(promql.Sum(idleIn(s, promql.Range()), "namespace"))).but("where use is not measured"),
		value("Cost of idle", "none", 2, promql.Sum(promql.Cost(hours(promql.Sum(idleIn(s, promql.Range()), "namespace", "model"))), "namespace")).
			but(noPrice+", or where use is not measured"),
		value("GiB-hours", "none", 0, promql.Sum(s.Consumed(promql.NamespaceRegister("namespace_memory_byte_seconds"), promql.Range()), "namespace")+" / 3600 / 2^30"),
		value("Energy", "kwatth", 1, promql.Sum(s.Consumed(promql.NamespaceRegister("namespace_energy_joules", "basis"), promql.Range()), "namespace")+" / 3.6e6"),
	).sorted("GPU-hours").high(10).none(noRules)
}

func idleHolders(s promql.Scope) Panel {
	return list("Who holds and does not use", "The fifteen pods with most idle GPU-hours in the time shown, where use is measured. Pods have no recording rules: over more than some days of a large fleet choose a namespace. "+
		"Of gpumeter_pod_gpu_seconds_total less gpumeter_pod_used_gpu_seconds_total.",
		label("namespace", "Namespace").to(drill("Only this namespace", "chargeback", "namespace", cell("Namespace"))), label("pod", "Pod"),
		value("Idle GPU-hours", "none", 1, "topk(15, "+podHours(s)+" - "+podUsedHours(s)+" > 0)").meter(0, yellow).but("where nothing held is idle, or its use is not measured"),
	).sorted("Idle GPU-hours").none("nothing that was held was idle")
}

func pods(s promql.Scope) Panel {
	return list("By pod", "The fifty pods that held most in the time shown, and what that costs at list price."+billNote+"Pods have no recording rules: over more than some days of a large fleet choose a namespace. "+
		"Of gpumeter_pod_gpu_seconds_total and gpumeter_pod_used_gpu_seconds_total.",
		label("namespace", "Namespace"), label("pod", "Pod"),
		value("GPU-hours", "none", 2, podHours(s)+amongFirst(podHours(s))).but("with --pod-gpu-seconds=false"),
		value("Cost", "none", 2, promql.Sum(promql.Cost(podHours(s, "model")), "namespace", "pod")+" and "+podHours(s)+amongFirst(podHours(s))).
			but(noPrice+", or with --pod-gpu-seconds=false"),
		value("Used GPU-hours", "none", 2, podUsedHours(s)+" and "+podHours(s)+amongFirst(podHours(s))).but("with --pod-gpu-seconds=false, or where use is not measured"),
	).sorted("GPU-hours").none("the exporters show no pods: --pod-gpu-seconds=false")
}

// amongFirst are the fifty greatest, and those that are as great as the last of them: two queries with topk could take different ones.
func amongFirst(of string) string { return " >= scalar(min(topk(50, " + of + " > 0)))" }

func stateCosts(s promql.Scope) Panel {
	return list("By state", "All GPU-hours of the time shown and what they cost at list price: held, and by reason what nobody is charged for. Together they are the capacity and its price. "+
		"GPUs of models without a price are in the hours and in no cost. Of gpumeter_namespace_gpu_seconds_total, gpumeter_unallocated_gpu_seconds_total and gpumeter_corrected_gpu_seconds_total. "+rules,
		label("state", "State").paint(states()),
		value("GPU-hours", "none", 1, promql.Sum(stateHours(s), "state")),
		value("Cost", "none", 2, promql.Sum(promql.Cost(stateHours(s, "model")), "state")).but(noPrice),
	).sorted("GPU-hours").wide(8).high(9).none(noRules)
}

func modelCosts(s promql.Scope) Panel {
	return list("By model", "GPU-hours and cost by model in the time shown."+billNote+rules,
		label("model", "Model"), value("GPU-hours", "none", 1, heldHours(s, "model")), value("Cost", "none", 2, cost(s, "model")).but(noPrice),
	).sorted("GPU-hours").wide(8).high(9).none(noRules)
}

func priceList() Panel {
	return list("Prices in use", "What an hour of a whole GPU costs here, by model. typed is the price at the top, which counts where no rule has one. Of the rule gpumeter:price_per_gpu_hour, which `gpumeter prices rules` writes.",
		label("model", "Model"), label("currency", "Currency"), value("Per GPU-hour", "none", 4, promql.Prices()).but(noPrice),
	).ordered("Model").wide(8).high(9).none(setAPrice)
}
