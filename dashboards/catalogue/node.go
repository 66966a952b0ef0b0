// SPDX-License-Identifier: Apache-2.0

package catalogue

import "github.com/gpumeter/gpumeter/dashboards/promql"

// verdict is 2 for an unhealthy device, 1 for one of which nothing is known, 0 for a healthy one.
func verdict(s promql.Scope, matchers ...string) string {
	of := func(status string) string {
		return s.Series("gpumeter_device_health", append(matchers, `status="`+status+`"`)...)
	}
	return "(2 * max without (status) (" + of("unhealthy") + ") + max without (status) (" + of("unknown") + "))"
}

const (
	perGPU = "{{node}} GPU {{gpu}}"
	noMIG  = "where no GPU is divided by MIG"
)

func node() Dashboard {
	s := promql.Scope{Matchers: []string{`instance=~"$instance"`}}
	d := Dashboard{
		Name: "node", Title: "gpumeter / Node", From: "now-3h", Refresh: "30s", variables: singleNode(variables()),
		Description: "Every GPU and MIG device of a node: who holds it, how it is, how hot and how busy.",
	}
	return d.laid(nodeNumbers(s), line(gpuTable(s)), line(holders(s)), line(migTable(s)),
		line(
			timeline("Verdicts", "What the verdict on each GPU was. Of gpumeter_device_health.", verdicts(),
				series(promql.ByGPU(s.Indexed(verdict(s, `GPU_I_ID=""`))), perGPU)).wide(12),
			graph("XIDs", "none", "Errors that the driver reported, in each step, by code and class. Of gpumeter_xid_errors_total, which counts each once.",
				series(newXIDs(s, "node", "gpu", "xid", "class"), perGPU+": XID {{xid}} ({{class}})")).inBars().whole().wide(12).high(9).
				empty("where there was no XID").none("no XID in this time")),
		utilisation(s), thermals(s), transfers(s))
}

func nodeNumbers(s promql.Scope) []Panel {
	return line(
		number("GPUs", "none", promql.Count(s.GPUs()), "Physical GPUs of the node, lost ones included. Of gpumeter_device_info."),
		number("MIG devices", "none", promql.Count(s.MIGDevices()), "MIG devices of the node. Of gpumeter_device_info.").empty(noMIG).none("none"),
		number("Allocated", "percentunit", ratio(promql.Sum(s.Share()), promql.Count(s.GPUs())), "Part of the GPUs that pods hold. Of gpumeter_allocation_share.").
			partly().round(0).empty("where nothing is held").none("nothing held"),
		number("Used", "percentunit", mean(s.Busy()), "How much the GPUs are at work, on average. Of DCGM_FI_PROF_GR_ENGINE_ACTIVE, else DCGM_FI_DEV_GPU_UTIL.").partly().round(0),
		number("Unhealthy", "none", promql.Sum(unhealthyGPUs(s)), "GPUs that are withdrawn. Of gpumeter_device_health.").at(green, step{1, red}).linked(drill("Open Health", "health")),
		number("Hottest", "celsius", "max("+s.Device(s.OfCard("DCGM_FI_DEV_GPU_TEMP"))+")", "The hottest GPU. Of DCGM_FI_DEV_GPU_TEMP.").round(0).at(green, step{80, yellow}, step{88, red}),
		number("Power", "watt", promql.Sum(power(s)), "What the boards draw. Of DCGM_FI_DEV_POWER_USAGE, each GPU once."),
		number("XIDs in this time", "none", xidsIn(s, nil),
			"Errors that the driver reported in the time shown; the graph below has the codes. Of gpumeter_xid_errors_total.").round(0).at(green, step{0.5, yellow}),
	)
}

func gpuTable(s promql.Scope) Panel {
	card := func(field string) string { return s.Indexed(s.OfCard(field)) }
	memory := func(field string) string { return s.Indexed(s.OverInstances(field)) }
	return list("Each GPU", "Each physical GPU. With MIG, memory is that of its instances, and used is their engines' activity by weight. "+
		"Of gpumeter_device_health, gpumeter_allocation_share and the DCGM fields of the default counter file.",
		label("node", "Node"), label("gpu", "GPU"), label("model", "Model"), label("UUID", "UUID"),
		value("Health", "none", 0, s.Indexed(verdict(s, `GPU_I_ID=""`), "model")).means(verdicts()).width(90),
		value("Held", "percentunit", 0, s.IndexedShare()).meter(1, blue).but("where nothing is held"),
		value("Used", "percentunit", 0, s.IndexedBusy()).meter(1, teal),
		value("Memory used", "mbytes", 1, memory("DCGM_FI_DEV_FB_USED")),
		value("Memory free", "mbytes", 1, memory("DCGM_FI_DEV_FB_FREE")),
		value("Temperature", "celsius", 0, card("DCGM_FI_DEV_GPU_TEMP")).lit(step{80, yellow}, step{88, red}),
		value("Power", "watt", automatic, card("DCGM_FI_DEV_POWER_USAGE")),
		value("SM clock", "rotmhz", automatic, card("DCGM_FI_DEV_SM_CLOCK")),
		value("Last XID", "none", 0, card("DCGM_FI_DEV_XID_ERRORS")).lit(step{1, yellow}),
		value("Read", "dateTimeFromNow", 0, s.Indexed(s.OfCard("gpumeter_device_sample_timestamp_seconds"))+" * 1000"),
	).ordered("GPU").hiding("cluster")
}

func holders(s promql.Scope) Panel {
	return list("Who holds what", "Each container's part of a physical GPU, as it is charged. Follow a pod for its cost. Of gpumeter_allocation_share.",
		label("node", "Node"), label("gpu", "GPU"), label("GPU_I_ID", "Instance"), label("GPU_I_PROFILE", "Profile"), label("mode", "Mode").paint(modes()),
		label("resource", "Resource"), label("namespace", "Namespace"),
		label("pod", "Pod").to(drill("Open Chargeback", "chargeback", "namespace", cell("Namespace"), "pod", cell("Pod"))),
		label("container", "Container"),
		value("Part of a GPU", "percentunit", 1, s.IndexedShare("GPU_I_ID", "GPU_I_PROFILE", "mode", "resource", "namespace", "pod", "container")).meter(1, blue).
			but("where nothing is held"),
	).ordered("GPU").hiding("cluster", "UUID").none("nothing is held")
}

func migTable(s promql.Scope) Panel {
	in := func(of string) string { return s.Indexed(of, "GPU_I_ID", "GPU_I_PROFILE") }
	mig := `GPU_I_ID!=""`
	of := func(field string) string {
		return in(s.OfInstance(field, mig))
	}
	return list("GPU instances of MIG", "Each GPU instance. Of gpumeter_device_weight, gpumeter_device_health, gpumeter_allocation_share, DCGM_FI_PROF_GR_ENGINE_ACTIVE and DCGM_FI_DEV_FB_USED.",
		label("node", "Node"), label("gpu", "GPU"), label("GPU_I_ID", "Instance"), label("GPU_I_PROFILE", "Profile"),
		value("Counts as", "percentunit", 1, of("gpumeter_device_weight")).but(noMIG),
		value("Health", "none", 0, in(verdict(s, mig))).means(verdicts()).width(90).but(noMIG),
		value("Held of the GPU", "percentunit", 1, s.IndexedShare("GPU_I_ID", "GPU_I_PROFILE")+" and on (UUID, GPU_I_ID) "+s.Series("gpumeter_device_weight", mig)).but("where nothing of it is held"),
		value("Used", "percentunit", 0, of("DCGM_FI_PROF_GR_ENGINE_ACTIVE")).meter(1, teal).but(noMIG),
		value("Memory used", "mbytes", 1, of("DCGM_FI_DEV_FB_USED")).but(noMIG),
		value("Memory free", "mbytes", 1, of("DCGM_FI_DEV_FB_FREE")).but(noMIG),
		value("Processes", "none", 0, of("gpumeter_device_processes")).but("where the source sees no processes, as DCGM does, or without MIG"),
	).ordered("GPU").hiding("cluster", "UUID").none("no GPU of this node is divided by MIG")
}

func utilisation(s promql.Scope) []Panel {
	return line(
		graph("Used, by GPU", "percentunit", "How much each GPU was at work: the engine's activity, by weight over the instances of MIG, else the time in which any kernel ran. Of DCGM_FI_PROF_GR_ENGINE_ACTIVE, DCGM_FI_DEV_GPU_UTIL.",
			series(promql.ByGPU(s.IndexedBusy()), perGPU)).partly().listed(),
		graph("Memory used, by GPU", "mbytes", "Memory in use by GPU, that of its instances together. Of DCGM_FI_DEV_FB_USED.",
			series(promql.ByGPU(s.Indexed(s.OverInstances("DCGM_FI_DEV_FB_USED"))), perGPU)).listed())
}

func thermals(s promql.Scope) []Panel {
	return line(
		graph("Temperature, by GPU", "celsius", "The temperature of each GPU. Of DCGM_FI_DEV_GPU_TEMP.", series(promql.ByGPU(s.Indexed(s.OfCard("DCGM_FI_DEV_GPU_TEMP"))), perGPU)).wide(8),
		graph("Power, by GPU", "watt", "What each board draws. Of DCGM_FI_DEV_POWER_USAGE.", series(promql.ByGPU(s.Indexed(s.OfCard("DCGM_FI_DEV_POWER_USAGE"))), perGPU)).wide(8),
		graph("Held back", "none", "Which GPUs the driver slows down, for heat or for power. Of gpumeter_device_condition, kinds thermal_slowdown and power_slowdown.",
			series(promql.ByGPU(s.Indexed(s.Series("gpumeter_device_condition", `kind=~"thermal_slowdown|power_slowdown"`), "kind"), "kind"), perGPU+" {{kind}}")).
			inBars().round(0).wide(8).empty("where no GPU is slowed down").none("no GPU was slowed down"))
}

func transfers(s promql.Scope) []Panel {
	return line(
		graph("SM clock", "rotmhz", "Clock of the multiprocessors. Of DCGM_FI_DEV_SM_CLOCK.", series(promql.ByGPU(s.Indexed(s.OfCard("DCGM_FI_DEV_SM_CLOCK"))), perGPU)).wide(8),
		graph("PCIe", "Bps", "Data over PCIe, both ways, headers included. Of DCGM_FI_PROF_PCIE_TX_BYTES and DCGM_FI_PROF_PCIE_RX_BYTES.",
			series(promql.ByGPU(s.Indexed(s.OfCard("DCGM_FI_PROF_PCIE_TX_BYTES"))), perGPU+" sent"),
			series(promql.ByGPU(s.Indexed(s.OfCard("DCGM_FI_PROF_PCIE_RX_BYTES"))), perGPU+" received")).wide(8).empty("where profiling fields are not read").none("profiling fields are not read"),
		graph("NVLink", "MBs", "Throughput over all links. Of DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL.",
			series(promql.ByGPU(s.Indexed(s.OfCard("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"))), perGPU)).wide(8).empty("where GPUs have no NVLink").none("no NVLink"))
}

// xids are the errors of each GPU that has had any, as counted by now.
func xids(matchers []string) func(promql.Scope) string {
	return func(s promql.Scope) string {
		return s.Indexed(s.Series("gpumeter_xid_errors_total", matchers...)+" > 0", "xid", "class", "GPU_I_ID", "GPU_CI_ID")
	}
}

// newXIDs are the errors of each step of a graph.
func newXIDs(s promql.Scope, by ...string) string {
	return promql.Sum("("+s.Grown(xids(nil), promql.Step())+" > 0)", by...)
}

// xidsIn is how many errors there were in the time shown: 0 where they are counted and there were none.
func xidsIn(s promql.Scope, matchers []string) string {
	return promql.Or(promql.Sum(s.Grown(xids(matchers), promql.Range())), "0 * max("+s.Series("gpumeter_xid_errors_total", matchers...)+")")
}
