// SPDX-License-Identifier: Apache-2.0

package catalogue

import "github.com/gpumeter/gpumeter/dashboards/promql"

// What is asked on several pages.

func heldTime() promql.Register { return promql.NamespaceRegister("namespace_gpu_seconds") }
func usedTime() promql.Register {
	return promql.NamespaceRegister("namespace_used_gpu_seconds", "basis")
}
func cardEnergy() promql.Register { return promql.CardRegister("card_energy_joules") }

const (
	rules   = "Needs the recording rules of etc/prometheus/rules.yaml for times longer than Prometheus keeps raw samples."
	noRules = "nothing read"
)

// window is over what use is averaged: what is used becomes known once a minute, later than what is held.
const window = "15m"

// unhealthyGPUs is 1 for each unhealthy physical GPU and 0 for each other.
func unhealthyGPUs(s promql.Scope) string { return ofStatus(s, "unhealthy") }

func ofStatus(s promql.Scope, status string) string {
	return s.Device(s.Series("gpumeter_device_health", `GPU_I_ID=""`, `status="`+status+`"`))
}

// heldNow and usedNow are numbers of GPUs by a label of the registers; idleNow is what was held and not used, where use is measured.
func heldNow(s promql.Scope, by ...string) string {
	return promql.Sum(s.Flow(heldTime(), window), by...)
}

func usedNow(s promql.Scope, by ...string) string {
	return promql.Sum(s.Flow(usedTime(), window), by...)
}

func idleNow(s promql.Scope, by ...string) string {
	id := []string{"cluster", "node", "ledger_id", "namespace", "resource", "mode", "model", "profile"}
	return promql.Sum("clamp_min("+promql.Sum(s.Flow(heldTime(), window), id...)+" - "+promql.Sum(s.Flow(usedTime(), window), id...)+", 0)", by...)
}

// byState are the parts of the GPUs in each state, as graphs show them.
func byState(s promql.Scope, target func(expr, legend string) Target) []Target {
	return []Target{
		target(promql.Sum(s.Share()), "held"),
		target(promql.Sum(s.Rest(), "reason"), "{{reason}}"),
	}
}

const stateWords = "held is charged to pods. free can be asked for. unrequested are seats of a shared GPU that nobody asked for while others " +
	"hold some. stranded is what no MIG profile fits any more. unhealthy is withdrawn. unobserved: the kubelet did not say who holds it. " +
	"unattributed: it did, and that cannot be tied to a device. They add up to the GPUs. Of gpumeter_allocation_share and gpumeter_unallocated_share."

func fleet() Dashboard {
	s := promql.Scope{}
	d := Dashboard{
		Name: "fleet", Title: "gpumeter / Fleet", From: "now-6h", Refresh: "1m", variables: variables(),
		Description: "How many GPUs there are, who has them, what is wasted, what is broken, and where to look.",
	}
	return d.laid(fleetNumbers(s),
		line(
			graph("GPUs by state", "none", "What the GPUs were, over time. "+stateWords, byState(s, series)...).stacked().inColours(states()).few().wide(16),
			gauges("GPUs by state now", "none", "What the GPUs are now. "+stateWords, byState(s, now)...).inColours(states()).round(2)),
		line(
			graph("Allocated and used", "percentunit", "Of all GPUs: the part that is held, and the part that was at work (engine activity, or the time in which any kernel ran). "+
				"Of gpumeter_allocation_share, DCGM_FI_PROF_GR_ENGINE_ACTIVE and DCGM_FI_DEV_GPU_UTIL.",
				series(ratio(promql.Sum(s.Share()), promql.Count(s.GPUs())), "allocated"),
				series(mean(s.Busy()), "used")).
				inColours([]named{{"allocated", blue}, {"used", teal}}).partly().few().wide(8),
			graph("Power by model", "watt", "What the boards draw. Of DCGM_FI_DEV_POWER_USAGE, each GPU once.",
				series(promql.Sum(power(s, "model"), "model"), "{{model}}")).stacked().shaded().few().wide(8),
			graph("Unhealthy and unknown", "none", "GPUs that are withdrawn, and GPUs of which nothing is known. Of gpumeter_device_health.",
				series(promql.Sum(unhealthyGPUs(s)), "unhealthy"),
				series(promql.Sum(ofStatus(s, "unknown")), "unknown")).
				inColours([]named{{"unhealthy", red}, {"unknown", grey}}).round(0).few().wide(8)),
		line(models(s)),
		line(nodesTable(s)),
		line(
			gauges("Held and idle, by namespace", "none", "GPUs held and not used, averaged over a quarter of an hour: the ten namespaces with most. Where use is not measured there is nothing. "+
				"Of gpumeter_namespace_gpu_seconds_total less gpumeter_namespace_used_gpu_seconds_total.",
				now("sort_desc(topk(10, "+idleNow(s, "namespace")+" > 0.005))", "{{namespace}}")).
				at(yellow).round(2).wide(8).empty("where nothing held is idle, or its use is not measured").none("nothing held is idle"),
			gauges("Free GPUs, by cluster and model", "none", "Whole GPUs and parts of them that can be asked for. Of gpumeter_unallocated_share{reason=\"free\"}.",
				now("sort_desc("+promql.Sum(s.RestFor("free", "model"), "cluster", "model")+")", "{{cluster}} {{model}}")).at(mint).round(2).wide(8),
			gauges("Energy in this time, by model", "kwatth", "What the boards used in the time shown, by their own meters. Of gpumeter_card_energy_joules_total. "+rules,
				now(kilowattHours(s, "model"), "{{model}}")).at(teal).round(1).wide(8).none(noRules).empty(noEnergy)),
	)
}

func fleetNumbers(s promql.Scope) []Panel {
	return line(
		number("GPUs", "none", promql.Count(s.GPUs()), "Physical GPUs, lost ones included. With a namespace or a pod chosen: those that it holds a part of. Of gpumeter_device_info."),
		number("Nodes", "none", promql.Count(s.Nodes()), "Nodes whose exporter is scraped. Of gpumeter_ledger_info."),
		number("Allocated", "percentunit", ratio(promql.Sum(s.Share()), promql.Count(s.GPUs())),
			"Part of the GPUs that pods hold. Of gpumeter_allocation_share.").partly().round(0),
		number("Used", "percentunit", mean(s.Busy()),
			"How much the GPUs are at work, on average over all of them: the engine's activity, or the time in which any kernel ran. Of DCGM_FI_PROF_GR_ENGINE_ACTIVE, else DCGM_FI_DEV_GPU_UTIL.").
			partly().round(0),
		number("Held and idle", "none", idleNow(s),
			"GPUs that pods hold and do not use, averaged over a quarter of an hour, where use is measured. Of gpumeter_namespace_gpu_seconds_total less gpumeter_namespace_used_gpu_seconds_total.").
			round(1).at(text, step{1, yellow}),
		number("Unhealthy", "none", promql.Sum(unhealthyGPUs(s)),
			"GPUs that are withdrawn. Of gpumeter_device_health.").at(green, step{1, red}).linked(drill("Open Health", "health")),
		number("Holder unknown", "none", promql.Sum(promql.Or(s.RestFor("unobserved"), s.RestFor("unattributed"))),
			"GPUs whose holder is not known: unobserved or unattributed. Of gpumeter_unallocated_share.").round(1).at(green, step{0.01, orange}).
			linked(drill("Open gpumeter", "gpumeter")),
		number("Power", "watt", promql.Sum(power(s)), "What the boards draw now. Of DCGM_FI_DEV_POWER_USAGE, each GPU once."),
	)
}

const noEnergy = "with a namespace or a pod chosen: energy of GPUs is nobody's"

// kilowattHours are what the boards used in the time shown.
func kilowattHours(s promql.Scope, by ...string) string {
	return promql.Sum(s.Consumed(cardEnergy(), promql.Range()), by...) + " / 3.6e6"
}

func energy(s promql.Scope, by ...string) column {
	return value("Energy", "kwatth", 1, kilowattHours(s, by...)).but(noEnergy)
}

func ratio(part, whole string) string { return part + " / " + whole }

func mean(of string) string { return "avg(" + of + ")" }

func power(s promql.Scope, labels ...string) string {
	return s.Device(s.OfCard("DCGM_FI_DEV_POWER_USAGE"), labels...)
}

func models(s promql.Scope) Panel {
	by := []string{"cluster", "model"}
	sum := func(of string) string { return promql.Sum(of, by...) }
	columns := []column{
		label("cluster", "Cluster"), label("model", "Model"),
		value("GPUs", "none", 0, promql.Count(s.GPUs("model"), by...)),
		value("Held", "none", 2, sum(s.Share("model"))).but("where nothing is held"),
	}
	for _, r := range reasons() {
		columns = append(columns, value(r.name, "none", 2, sum(s.RestFor(r.name, "model"))))
	}
	columns = append(columns,
		value("Used", "percentunit", 0, promql.By("avg", by, s.Busy("model"))).meter(1, teal),
		value("Power", "watt", automatic, sum(power(s, "model"))),
		energy(s, by...))
	return list("By cluster and model", "GPUs by what they are now, and what they used in the time shown. "+stateWords+" Energy is of gpumeter_card_energy_joules_total. "+rules, columns...).sorted("GPUs").high(7)
}

func nodesTable(s promql.Scope) Panel {
	by := []string{"cluster", "node"}
	sum := func(of string) string { return promql.Sum(of, by...) }
	return list("Each node", "Each node, the broken ones first; follow a node for its GPUs. Held and idle is averaged over a quarter of an hour. Energy is of the time shown; a node that is gone has nothing else. "+
		"Of gpumeter_device_info, gpumeter_device_health, gpumeter_allocation_share, gpumeter_namespace_used_gpu_seconds_total, DCGM_FI_DEV_POWER_USAGE and gpumeter_card_energy_joules_total. "+rules,
		label("cluster", "Cluster"), label("node", "Node").to(toNode()),
		value("GPUs", "none", 0, promql.Count(s.GPUs(), by...)),
		value("Unhealthy", "none", 0, sum(unhealthyGPUs(s))).lit(step{1, red}),
		value("Unknown", "none", 0, sum(ofStatus(s, "unknown"))).lit(step{1, grey}),
		value("Allocated", "percentunit", 0, sum(s.Share())+" / "+promql.Count(s.GPUs(), by...)).meter(1, blue).but("where nothing is held"),
		value("Used", "percentunit", 0, promql.By("avg", by, s.Busy())).meter(1, teal),
		value("Held and idle", "none", 2, idleNow(s, by...)).but("where nothing is held or its use is not measured"),
		value("Free", "none", 2, sum(s.RestFor("free"))),
		value("Power", "watt", automatic, sum(power(s))),
		energy(s, by...),
	).sorted("Unhealthy").sorted("Held and idle").high(10)
}
