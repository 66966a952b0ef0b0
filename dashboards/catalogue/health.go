// SPDX-License-Identifier: Apache-2.0

package catalogue

import (
	"strconv"

	"github.com/gpumeter/gpumeter/dashboards/promql"
)

const allWell = "where all is well"

// grownIn is by how much a counter of physical GPUs grew in the time shown.
func grownIn(s promql.Scope, name string, matchers ...string) string {
	return s.Grown(func(s promql.Scope) string {
		return s.Indexed(s.Series(name, append([]string{`GPU_I_ID=""`}, matchers...)...))
	}, promql.Range())
}

func health() Dashboard {
	s := promql.Scope{}
	d := Dashboard{
		Name: "health", Title: "gpumeter / Health", From: "now-24h", Refresh: "1m", variables: variables(),
		Description: "Which GPUs are broken, why, since when, whom it hurts, and what it has cost.",
	}
	return d.laid(healthNumbers(s), line(conditions(s)), line(hurt(s), lostByCause(s)),
		line(
			graph("Unhealthy and unknown", "none", "GPUs that are withdrawn, and GPUs of which nothing is known. Of gpumeter_device_health.",
				series(promql.Sum(unhealthyGPUs(s)), "unhealthy"), series(promql.Sum(ofStatus(s, "unknown")), "unknown")).
				inColours([]named{{"unhealthy", red}, {"unknown", grey}}).round(0).few(),
			graph("XIDs by class", "none", "Errors that the driver reported, in each step, by what they ask for. Of gpumeter_xid_errors_total, which counts each once.",
				series(newXIDs(s, "class"), "{{class}}")).inBars().inColours(classes()).whole().moments(72).empty("where there was no XID").none("no XID in this time")),
		line(timeline("Verdicts of GPUs that were not always healthy", "What the verdict on each of them was; GPUs that were healthy all the time are left out. Of gpumeter_device_health.", verdicts(),
			series(promql.ByGPU(s.Indexed(verdict(s, `GPU_I_ID=""`)+troubled(s))), perGPU)).empty("where all GPUs were healthy").none("all GPUs were healthy all the time")),
		line(xidTimeline(s)),
		line(xidTable(s), breakdowns(s)))
}

// troubled keeps the GPUs that were unhealthy or unknown within the time shown.
func troubled(s promql.Scope) string {
	return ` and on (job, instance, UUID) (max_over_time(` + s.Series("gpumeter_device_health", `GPU_I_ID=""`, `status!="healthy"`) + `[$__range] @ end()) > 0)`
}

func healthNumbers(s promql.Scope) []Panel {
	severe := `class=~"reset|node|hardware"`
	return line(
		number("Unhealthy", "none", promql.Sum(unhealthyGPUs(s)), "GPUs that are withdrawn. Of gpumeter_device_health.").at(green, step{1, red}),
		number("Unknown", "none", promql.Sum(ofStatus(s, "unknown")), "GPUs of which nothing is known; they are not withdrawn. Of gpumeter_device_health.").at(green, step{1, grey}),
		number("Healthy", "percentunit", mean(ofStatus(s, "healthy")), "Part of the GPUs that are healthy. Of gpumeter_device_health.").partly().round(1).at(red, step{0.9, yellow}, step{1, green}),
		number("To be avoided", "none", promql.Sum(s.Device(s.Series("gpumeter_device_avoided", `GPU_I_ID=""`))),
			"GPUs that work and are given away last: something is pending or to be watched. Of gpumeter_device_avoided.").at(green, step{1, yellow}),
		number("Capacity lost now", "none", promql.Sum(s.RestFor("unhealthy")), "GPUs that nobody is charged for because they are broken. Of gpumeter_unallocated_share{reason=\"unhealthy\"}.").round(2).at(green, step{0.01, red}),
		number("Severe XIDs", "none", xidsIn(s, []string{severe}), "Errors of the classes reset, node and hardware in the time shown. Of gpumeter_xid_errors_total.").round(0).at(green, step{0.5, red}),
		number("Breakdowns", "none", promql.Sum(grownIn(s, "gpumeter_device_health_transitions_total", `status="unhealthy"`)),
			"How often a GPU became unhealthy in the time shown. Of gpumeter_device_health_transitions_total.").round(0).at(green, step{0.5, yellow}),
		number("Flapping", "none", promql.Or(promql.Count(s.Device(s.Series("gpumeter_device_condition", `kind="flapping"`))), "0 * "+promql.Count(s.GPUs())),
			"GPUs that broke again and again and wait for an operator's word: `gpumeter health clear`. Of gpumeter_device_condition.").at(green, step{1, red}),
	)
}

func conditions(s promql.Scope) Panel {
	labels := []string{"GPU_I_ID", "kind"}
	in := func(name string) string { return s.Indexed(s.Series(name), labels...) + " * 1000" }
	return list("What is wrong now", "Each fault with evidence: reset, node and hardware withdraw the device, watch and contained do not. docs/health.md says how each ends. "+
		"Of gpumeter_device_condition and its timestamps.",
		label("cluster", "Cluster"), label("node", "Node").to(toNode()), label("gpu", "GPU"), label("GPU_I_ID", "Instance"),
		label("kind", "Fault").to(external("Runbooks", docs+"runbooks/README.md"), external("What it means", docs+"health.md")),
		value("Asks for", "none", 0, s.Indexed(s.Series("gpumeter_device_condition")+ranked(), labels...)).means(rankWords()).but(allWell),
		value("Since", "dateTimeFromNow", 0, in("gpumeter_device_condition_start_timestamp_seconds")).but(allWell),
		value("Last seen", "dateTimeFromNow", 0, in("gpumeter_device_condition_last_timestamp_seconds")).but(allWell),
		value("Recovering since", "dateTimeFromNow", 0, in("gpumeter_device_condition_recovery_timestamp_seconds")).but("where nothing is recovering"),
		label("UUID", "UUID"),
	).sorted("Asks for").none("nothing is wrong")
}

func hurt(s promql.Scope) Panel {
	unhealthy := " and on (cluster, node, UUID) (" + unhealthyGPUs(s) + " == 1)"
	once := promql.By("max", []string{"job", "instance", "UUID", "reason", "namespace", "pod", "container"}, s.Held("gpumeter_uncharged_share"))
	held := s.Indexed(once, "namespace", "pod", "container")
	return list("Who holds unhealthy GPUs", "Containers on GPUs that are withdrawn: they hold them and are not charged. Of gpumeter_uncharged_share, gpumeter_allocation_share and gpumeter_device_health.",
		label("cluster", "Cluster"), label("node", "Node").to(toNode()), label("gpu", "GPU"), label("namespace", "Namespace"), label("pod", "Pod"), label("container", "Container"),
		value("Part of a GPU", "percentunit", 1, promql.Or(held+unhealthy, s.IndexedShare("namespace", "pod", "container")+unhealthy)).but("where nobody holds an unhealthy GPU"),
	).hiding("UUID").wide(14).none("nobody holds an unhealthy GPU")
}

// lostByCause blames one fault for each GPU: that of the worst class.
func lostByCause(s promql.Scope) Panel {
	worst := "topk by (cluster, node, UUID) (1, " + promql.Or(
		s.Device(s.Series("gpumeter_device_condition", `class="hardware"`)+" * 3", "kind", "class"),
		s.Device(s.Series("gpumeter_device_condition", `class="node"`)+" * 2", "kind", "class"),
		s.Device(s.Series("gpumeter_device_condition", `class="reset"`), "kind", "class")) + ")"
	return gauges("Capacity lost, by cause", "none", "GPUs that nobody is charged for because they are broken, by the fault that is worst. Of gpumeter_unallocated_share{reason=\"unhealthy\"} and gpumeter_device_condition.",
		now("sort_desc("+promql.Sum("(("+s.RestFor("unhealthy")+" > 0) * on (cluster, node, UUID) group_right () ("+worst+" ^ 0))", "kind", "class")+")", "{{kind}} ({{class}})")).
		at(red).round(2).wide(10).high(9).empty("where no capacity is lost").none("no capacity is lost")
}

func xidTimeline(s promql.Scope) Panel {
	return timeline("XIDs", "When each GPU had which XID, in the colour of what it asks for. Of gpumeter_xid_errors_total.", rankWords(),
		series("("+newXIDs(s, "node", "gpu", "xid", "class")+" ^ 0)"+ranked(), "{{node}} GPU {{gpu}}: XID {{xid}}")).
		empty("where there was no XID").none("no XID in this time").moments(72)
}

// ranked multiplies what has the label class by the rank of the class, the milder first, so that it can be shown as a state.
func ranked() string {
	ranks := []string{}
	for i, c := range classes() {
		ranks = append(ranks, promql.Set("vector("+strconv.Itoa(i+1)+")", "class", c.name))
	}
	return " * on (class) group_left () (" + promql.Or(ranks...) + ")"
}

func rankWords() []word {
	words := []word{}
	for i, c := range classes() {
		words = append(words, word{strconv.Itoa(i + 1), c.name, c.colour})
	}
	return words
}

func xidTable(s promql.Scope) Panel {
	return list("XIDs in this time", "How often the driver reported which error of which GPU; etc/xid.yaml says what each is. Of gpumeter_xid_errors_total.",
		label("cluster", "Cluster"), label("node", "Node").to(toNode()), label("gpu", "GPU"), label("xid", "XID").to(external("Runbooks", docs+"runbooks/README.md")),
		label("class", "Asks for").paint(classes()),
		value("Times", "none", 0, promql.Sum("("+s.Grown(xids(nil), promql.Range())+" > 0)", "cluster", "node", "gpu", "xid", "class")).but("where there was no XID"),
	).sorted("Times").wide(12).none("no XID in this time")
}

func breakdowns(s promql.Scope) Panel {
	in := func(name string, matchers ...string) string {
		return grownIn(s, name, matchers...) + " and on (cluster, node, UUID) (" +
			s.Device("increase("+s.Series("gpumeter_device_unhealthy_seconds_total", `GPU_I_ID=""`)+"[$__range])") + " > 0)"
	}
	why := "where all GPUs were healthy"
	return list("Breakdowns and recoveries", "GPUs that were unhealthy in the time shown: how often they broke, how often they came back, for how long they were away. "+
		"Of gpumeter_device_health_transitions_total and gpumeter_device_unhealthy_seconds_total.",
		label("cluster", "Cluster"), label("node", "Node").to(toNode()), label("gpu", "GPU"),
		value("Broke", "none", 0, in("gpumeter_device_health_transitions_total", `status="unhealthy"`)).but(why),
		value("Recovered", "none", 0, in("gpumeter_device_health_transitions_total", `status="healthy"`)).but(why),
		value("Unhealthy for", "s", 0, in("gpumeter_device_unhealthy_seconds_total")).but(why),
	).sorted("Unhealthy for").hiding("UUID").wide(12).none("all GPUs were healthy all the time")
}
