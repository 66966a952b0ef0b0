// SPDX-License-Identifier: Apache-2.0

package catalogue

import "github.com/gpumeter/gpumeter/dashboards/promql"

const (
	noPlugin  = "where no device plugin of gpumeter is scraped with the label node"
	pluginSay = "Scraped from the device plugin, port 9402; the node is the scrape's label. "
)

// plugin is a family of the device plugin, whose nodes are known by the scrape's label alone.
func plugin(form func(selector string) string, name string) string {
	return form(promql.Scope{}.Series(name, `cluster=~"$cluster"`, `node=~"$node"`))
}

func itself() Dashboard {
	s := promql.Scope{}
	d := Dashboard{
		Name: "gpumeter", Title: "gpumeter / gpumeter", From: "now-6h", Refresh: "1m", variables: variables(),
		Description: "Whether gpumeter itself works: ticks, sources, faults, ages, the ledger, the device plugin.",
	}
	return d.laid(itselfNumbers(s), line(exporters(s)), sources(s), faults(s), ledger(s), line(heading("Device plugin")), devicePlugin(), line(pluginTable()))
}

func itselfNumbers(s promql.Scope) []Panel {
	page := func(name string, labels ...string) string { return s.Page("%s", name, nil, labels...) }
	return line(
		number("Nodes", "none", promql.Count(s.Nodes()), "Nodes whose exporter is scraped and has a ledger. Of gpumeter_ledger_info."),
		number("Pages without a ledger", "none", "count(gpumeter_build_info) - (count(gpumeter_build_info and on (job, instance) gpumeter_ledger_info) or 0 * count(gpumeter_build_info))",
			"Exporters that are scraped and whose node these dashboards do not know, as in the first seconds after an installation; whatever the variables. Of gpumeter_build_info and gpumeter_ledger_info.").
			at(green, step{1, orange}),
		number("Sources down", "none", "count("+page("gpumeter_source_up", "source")+" == 0) or 0 * count("+page("gpumeter_source_up", "source")+")",
			"Sources that did not answer in the last tick: telemetry is DCGM or NVML, allocations is the kubelet. Of gpumeter_source_up.").at(green, step{1, red}),
		number("Oldest page", "s", "max(time() - "+page("gpumeter_snapshot_timestamp_seconds")+")", "The oldest tick that a node shows. Of gpumeter_snapshot_timestamp_seconds.").round(0).
			at(green, step{90, yellow}, step{300, red}),
		number("Oldest commit", "s", "max(time() - "+s.Page("%s", "gpumeter_ledger_commit_timestamp_seconds", nil)+")",
			"As of when the totals of the slowest ledger are. Of gpumeter_ledger_commit_timestamp_seconds.").round(0).at(green, step{120, yellow}, step{600, red}),
		number("Ledgers degraded", "none", promql.Sum(page("gpumeter_ledger_degraded")), "Ledgers whose disk does not take them, so that a restart loses charges. Of gpumeter_ledger_degraded.").at(green, step{1, red}),
		number("Conservation errors", "none", "count("+s.Device(s.Series("gpumeter_conservation_error_gpu_seconds"))+" != 0) or 0 * count("+s.Device(s.Series("gpumeter_conservation_error_gpu_seconds"))+")",
			"GPUs whose parts do not add up to one GPU. Always 0, or the meter is wrong. Of gpumeter_conservation_error_gpu_seconds.").at(green, step{1, red}),
		number("Configurations refused", "none", "count("+page("gpumeter_config_last_reload_successful")+" == 0) or 0 * count("+page("gpumeter_config_last_reload_successful")+")",
			"Exporters that go on with an older configuration since the new one is wrong. Of gpumeter_config_last_reload_successful.").at(green, step{1, red}),
	)
}

func exporters(s promql.Scope) Panel {
	page := func(form, name string, labels ...string) string { return s.Page(form, name, nil, labels...) }
	down := promql.By("min", []string{"cluster", "node"}, page("%s", "gpumeter_source_up", "source"))
	return list("Exporters", "Each node's exporter. Of gpumeter_source_info, gpumeter_build_info, gpumeter_source_up and the like.",
		label("cluster", "Cluster"), label("node", "Node").to(toNode()), label("version", "Version"), label("library", "Library"), label("driver", "Driver"),
		value("Sources up", "none", 0, down).means(yesNo()).width(90),
		value("Interval", "s", 1, page(about("gpumeter_source_info", "library, driver"), "gpumeter_tick_interval_seconds", "library", "driver")),
		value("Tick takes", "s", 3, page(about("gpumeter_build_info", "version"), "gpumeter_tick_duration_seconds", "version")),
		value("Late ticks, last hour", "none", 0, "round("+page("increase(%s[1h])", "gpumeter_late_ticks_total")+")").lit(step{1, yellow}),
		value("Commit", "dateTimeFromNow", 0, page("%s", "gpumeter_ledger_commit_timestamp_seconds")+" * 1000"),
		value("Log on disk", "bytes", 1, page("%s", "gpumeter_ledger_size_bytes")).but("where the ledger is in memory only"),
		value("Series left out", "none", 0, promql.Sum(page("%s", "gpumeter_dropped_series", "reason"), "cluster", "node")).lit(step{1, red}),
	).ordered("Node")
}

// about gives a family the labels of another one of the same page.
func about(name, labels string) string {
	return "%s * on (job, instance) group_left (" + labels + ") topk by (job, instance) (1, group by (job, instance, " + labels + ") (" + name + "))"
}

// inStep is by how much the counters of a page grew in each step of a graph.
func inStep(least string) string {
	return "(%[1]s - (%[1]s offset $__interval or 0 * %[1]s and on (job, instance) gpumeter_ticks_total offset $__interval) " + least + ")"
}

func sources(s promql.Scope) []Panel {
	page := func(name string, labels ...string) string { return s.Page("%s", name, nil, labels...) }
	top := func(of string) string { return "topk(10, " + of + ")" }
	return line(
		graph("Longest ticks", "s", "How long a tick took, the ten longest at each moment. Of gpumeter_tick_duration_seconds.",
			series(top(page("gpumeter_tick_duration_seconds")), "{{node}}")).few().wide(8),
		graph("Age of sources", "s", "How old a source's last good answer was at the last tick: the oldest of all nodes. Of gpumeter_source_age_seconds.",
			series(promql.By("max", []string{"source"}, page("gpumeter_source_age_seconds", "source")), "{{source}}")).few().wide(8),
		graph("Calls of sources", "s", "How long a source's last call took: the longest of all nodes, and calls that have not come back. Of gpumeter_source_call_duration_seconds and gpumeter_source_outstanding_seconds.",
			series(promql.By("max", []string{"source"}, page("gpumeter_source_call_duration_seconds", "source")), "{{source}}"),
			series(promql.By("max", []string{"source"}, page("gpumeter_source_outstanding_seconds", "source")), "{{source}} outstanding")).few().wide(8))
}

func faults(s promql.Scope) []Panel {
	page := func(form, name string, labels ...string) string { return s.Page(form, name, nil, labels...) }
	return line(
		graph("Faults", "none", "Ticks in which something was wrong with a source, in each step, by source and kind. Of gpumeter_faults_total.",
			series(promql.Sum(page(inStep("> 0"), "gpumeter_faults_total", "source", "kind"), "source", "kind"), "{{source}}: {{kind}}")).
			inBars().whole().few().wide(8).empty("where there was no fault").none("no fault in this time"),
		graph("Late ticks", "none", "Ticks that began more than half an interval late, in each step, by node. Of gpumeter_late_ticks_total.",
			series("topk(10, "+page(inStep(">= 0"), "gpumeter_late_ticks_total")+")", "{{node}}")).inBars().whole().few().wide(8),
		list("Fields without a value", "Devices that have no value of a configured field, by reason, over all nodes. Of gpumeter_absent_values.",
			label("field", "Field"), label("reason", "Reason"),
			value("Devices", "none", 0, promql.Sum(page("%s", "gpumeter_absent_values", "field", "reason"), "field", "reason")+" > 0").but("where every device has every field"),
		).sorted("Devices").wide(8).high(8).none("every device has every field"))
}

func ledger(s promql.Scope) []Panel {
	page := func(form, name string, labels ...string) string { return s.Page(form, name, nil, labels...) }
	top := func(of string) string { return "topk(10, " + of + ")" }
	return line(
		graph("Age of commits", "s", "How old the totals of the ten slowest ledgers are. Of gpumeter_ledger_commit_timestamp_seconds.",
			series(top("(time() - "+page("%s", "gpumeter_ledger_commit_timestamp_seconds")+")"), "{{node}}")).few().wide(6),
		graph("Records that wait for the disk", "none", "Of the ten ledgers with most. Of gpumeter_ledger_pending_records.",
			series(top(page("%s", "gpumeter_ledger_pending_records")), "{{node}}")).whole().few().wide(6).empty("where ledgers are in memory only").none("ledgers are in memory only"),
		graph("Time that nobody watched", "s", "In each step, by why. Of gpumeter_observation_gap_seconds_total.",
			series(promql.Sum(page(inStep("> 0"), "gpumeter_observation_gap_seconds_total", "reason"), "reason"), "{{reason}}")).
			inBars().few().wide(6).empty("where all time was watched").none("all time was watched"),
		graph("Holder unknown", "none", "GPUs whose holder is not known. Of gpumeter_unallocated_share.",
			series(promql.Sum(s.RestFor("unobserved")), "unobserved"), series(promql.Sum(s.RestFor("unattributed")), "unattributed")).
			stacked().inColours(reasons()).few().wide(6))
}

func devicePlugin() []Panel {
	sum := func(labels string) func(string) string {
		return func(of string) string {
			return "sum by (" + labels + ") (max by (cluster, node, resource, health, reason, kind) (" + of + "))"
		}
	}
	return line(
		graph("Devices told to the kubelet", "none", pluginSay+"Seats in the newest list, by resource and health. Of gpumeter_device_plugin_devices.",
			series(plugin(sum("resource, health"), "gpumeter_device_plugin_devices"), "{{resource}} {{health}}")).few().wide(8).empty(noPlugin).none("no device plugin is scraped"),
		graph("Allocate calls", "none", pluginSay+"Pods that were given devices, per minute. Of gpumeter_device_plugin_allocate_total.",
			series(plugin(func(of string) string {
				return "sum(max by (cluster, node, resource) (rate(" + of + "[$__rate_interval]))) * 60"
			}, "gpumeter_device_plugin_allocate_total"), "calls")).
			few().wide(8).empty(noPlugin).none("no device plugin is scraped"),
		graph("Refused Allocate calls", "none", pluginSay+"In each step, by reason. Of gpumeter_device_plugin_allocate_errors_total.",
			series(plugin(func(of string) string {
				return "sum by (reason) (max by (cluster, node, resource, reason) (increase(" + of + "[$__rate_interval])) > 0)"
			}, "gpumeter_device_plugin_allocate_errors_total"), "{{reason}}")).inBars().few().wide(8).empty(noPlugin+", or none was refused").none("none was refused"))
}

func pluginTable() Panel {
	by := "cluster, node"
	most := func(op string) func(string) string {
		return func(of string) string { return op + " by (" + by + ") (" + of + ")" }
	}
	return list("Device plugins", pluginSay+"Of gpumeter_device_plugin_ready, gpumeter_device_plugin_monitor_up, gpumeter_device_plugin_resource_registered, gpumeter_device_plugin_unjudged_devices and gpumeter_device_plugin_config_last_reload_successful.",
		label("cluster", "Cluster"), label("node", "Node").to(toNode()),
		value("Ready", "none", 0, plugin(most("max"), "gpumeter_device_plugin_ready")).means(yesNo()).but(noPlugin),
		value("Hears verdicts", "none", 0, plugin(most("max"), "gpumeter_device_plugin_monitor_up")).means(yesNo()).but(noPlugin),
		value("Registered", "none", 0, plugin(most("min"), "gpumeter_device_plugin_resource_registered")).means(yesNo()).but(noPlugin),
		value("Not judged", "none", 0, plugin(most("max"), "gpumeter_device_plugin_unjudged_devices")).lit(step{1, yellow}).but(noPlugin),
		value("Config taken", "none", 0, plugin(most("min"), "gpumeter_device_plugin_config_last_reload_successful")).means(yesNo()).but(noPlugin),
	).ordered("Node").high(7).none("no device plugin is scraped")
}
