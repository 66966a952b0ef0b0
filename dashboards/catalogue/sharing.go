// SPDX-License-Identifier: Apache-2.0

package catalogue

import (
	"strings"

	"github.com/grafana/grafana-foundation-sdk/go/barchart"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	sdk "github.com/grafana/grafana-foundation-sdk/go/dashboard"

	"github.com/gpumeter/gpumeter/dashboards/promql"
)

const noShared = "where no GPU is shared in replicas"

// seats are the replicas of each shared device.
func seats(s promql.Scope, labels ...string) string {
	return s.Device(s.Series("gpumeter_device_replicas"), append(labels, "GPU_I_ID")...)
}

// taken are the replicas that are held of each shared device: what is held of it by what one replica counts as.
func taken(s promql.Scope, labels ...string) string {
	return "(" + s.Share(append(labels, "GPU_I_ID")...) + " * on (cluster, node, UUID, GPU_I_ID) " + seats(s) +
		" / on (cluster, node, UUID, GPU_I_ID) " + s.Device(s.Series("gpumeter_device_weight"), "GPU_I_ID") + ")"
}

func sharing() Dashboard {
	s := promql.Scope{}
	d := Dashboard{
		Name: "sharing", Title: "gpumeter / Sharing", From: "now-6h", Refresh: "1m", variables: variables(),
		Description: "GPUs that several share, by time-slicing, MPS and MIG: which seats are taken, what is stranded, and whether what is charged is what is used.",
	}
	return d.laid(sharingNumbers(s),
		line(seatMap(s)),
		line(
			graph("Held by mode", "none", "GPUs that are held whole, in replicas, as MIG devices, and in replicas of MIG devices. Of gpumeter_allocation_share.",
				series(promql.Sum(s.Share("mode"), "mode"), "{{mode}}")).stacked().inColours(modes()).few().wide(8),
			graph("Seats over time", "none", "Replicas of shared GPUs and MIG devices, and how many of them are held. Of gpumeter_device_replicas and gpumeter_allocation_share.",
				series(promql.Sum(seats(s)), "seats"), series(promql.Sum(taken(s)), "held")).
				inColours([]named{{"seats", grey}, {"held", blue}}).few().wide(8).empty(noShared).none("no GPU is shared in replicas"),
			graph("Capacity that nobody can use now", "none", "GPUs by why: seats that nobody asked for beside those that are held, and what no MIG profile fits any more. Of gpumeter_unallocated_share.",
				series(promql.Sum(s.RestFor("unrequested")), "unrequested"), series(promql.Sum(s.RestFor("stranded")), "stranded")).
				stacked().inColours(reasons()).few().wide(8)),
		line(measured(s), chargedBy(s)),
		line(sharedDevices(s)),
		line(stranded(s), uncharged(s)))
}

func sharingNumbers(s promql.Scope) []Panel {
	return line(
		number("Seats", "none", promql.Sum(seats(s)), "Replicas of GPUs and MIG devices that are shared. Of gpumeter_device_replicas.").empty(noShared).none("none"),
		number("Seats held", "none", promql.Sum(taken(s)), "Replicas that a container holds. Of gpumeter_allocation_share by gpumeter_device_weight and gpumeter_device_replicas.").round(0).empty(noShared).none("none"),
		number("Unrequested", "none", promql.Sum(s.RestFor("unrequested")), "GPUs in seats that nobody asked for while others hold some of the same GPU. Of gpumeter_unallocated_share.").round(2),
		number("MIG devices", "none", promql.Count(s.MIGDevices()), "MIG devices of the chosen GPUs. Of gpumeter_device_info.").empty(noMIG).none("none"),
		number("Stranded", "none", promql.Sum(s.RestFor("stranded")), "GPUs in slices that no MIG profile fits any more, until the GPU is divided anew. Of gpumeter_unallocated_share.").round(2).at(green, step{0.01, purple}),
		number("Held in parts", "none", promql.Sum(s.Share("mode")+` unless on (mode) `+promql.Set("vector(1)", "mode", "exclusive")),
			"GPUs that are held in replicas or as MIG devices, and not whole. Of gpumeter_allocation_share.").round(2).empty("where GPUs are held whole only").none("none"),
		number("Used of what is held", "percentunit", "clamp_max("+ratio(usedNow(s), heldNow(s))+", 1)", "What was measured to be at work of what is held and charged, over a quarter of an hour. Of gpumeter_namespace_used_gpu_seconds_total and gpumeter_namespace_gpu_seconds_total.").
			partly().round(0),
		number("Contradictions", "none", promql.Or(promql.Sum(s.Page("%s", "gpumeter_conflicting_allocations", nil, "kind")), "0 * "+promql.Count(s.Nodes())),
			"Allocations that contradict others and are not charged. Of gpumeter_conflicting_allocations.").at(green, step{1, red}),
	)
}

// seatMap is a bar for each GPU that is shared, made of what its holders have of it and of what nobody has.
func seatMap(s promql.Scope) Panel {
	name := func(of string) string {
		return `label_join(label_join(` + of + `, "card", " GPU ", "node", "gpu"), "part", "", "namespace", "reason")`
	}
	some := " and on (cluster, node, gpu) topk(40, " + promql.Count(s.IndexedShare("mode", "namespace", "pod", "container", "GPU_I_ID"), "cluster", "node", "gpu") + ")"
	parts := promql.Sum("("+s.IndexedShare("namespace")+some+")", "node", "gpu", "namespace")
	rest := promql.Sum("("+s.Indexed(s.Series("gpumeter_unallocated_share")+" > 0", "reason")+some+")", "node", "gpu", "reason")
	p := Panel{
		Type: "barchart", Title: "Map of the GPUs", Unit: "percentunit", Width: 24, Height: 14,
		Description: "Each bar is one GPU: the parts that namespaces hold of it, and what nobody is charged for, by reason. The forty GPUs with most holders. " +
			"Of gpumeter_allocation_share and gpumeter_unallocated_share.",
		Targets: []Target{{Expr: promql.Sum(name(promql.Or(parts, rest)), "card", "part"), Instant: true, MayBeEmpty: "where nothing is held"}},
		look: look{
			noValue: "nothing is held",
			options: barchart.Options{
				XField: new(`card`), Orientation: common.VizOrientationHorizontal, Stacking: common.StackingModeNormal, ShowValue: common.VisibilityModeNever,
				BarWidth: 0.9, GroupWidth: 0.9, XTickLabelMaxLength: 40, Legend: legend(), Tooltip: tooltip(), FullHighlight: false,
			},
			custom: barchart.FieldConfig{LineWidth: new(int32(0)), FillOpacity: new(int32(85))},
			transformations: []sdk.DataTransformerConfig{
				{Id: "groupingToMatrix", Options: map[string]any{"rowField": "card", "columnField": "part", "valueField": "Value", "emptyValue": "zero"}},
				{Id: "organize", Options: map[string]any{"renameByName": map[string]string{`card\part`: "card"}, "excludeByName": map[string]bool{}, "indexByName": map[string]int{}}},
				{Id: "sortBy", Options: map[string]any{"sort": []map[string]any{{"field": "card"}}}},
			},
		},
	}
	return p.lettered().partly().shaded().inColours(reasons())
}

func measured(s promql.Scope) Panel {
	return graph("Measured against charged", "none", "GPUs that were held and are charged, and what was measured to be at work of them, over a quarter of an hour. What is used is charged to nobody. "+
		"Of gpumeter_namespace_gpu_seconds_total and gpumeter_namespace_used_gpu_seconds_total.",
		series(heldNow(s), "charged"), series(usedNow(s), "measured")).inColours([]named{{"charged", blue}, {"measured", teal}}).few()
}

func chargedBy(s promql.Scope) Panel {
	by := []string{"namespace", "mode"}
	return list("By namespace and mode", "GPUs held and used now, over a quarter of an hour. Of gpumeter_namespace_gpu_seconds_total and gpumeter_namespace_used_gpu_seconds_total.",
		label("namespace", "Namespace").to(drill("Open Chargeback", "chargeback", "namespace", cell("Namespace"))), label("mode", "Mode").paint(modes()),
		value("Charged", "none", 2, heldNow(s, by...)+" > 0"),
		value("Measured", "none", 2, usedNow(s, by...)+" and "+heldNow(s, by...)+" > 0"),
		value("Used of it", "percentunit", 0, "clamp_max("+usedNow(s, by...)+" / ("+heldNow(s, by...)+" > 0), 1)").meter(1, teal),
	).sorted("Charged").wide(12).high(8)
}

func sharedDevices(s promql.Scope) Panel {
	by := []string{"cluster", "node", "gpu", "UUID", "GPU_I_ID"}
	in := func(of string) string { return s.Indexed(of, "GPU_I_ID") }
	device := []string{"job", "instance", "UUID", "GPU_I_ID"}
	return list("Shared devices", "Each GPU or MIG device that is given away in replicas. Of gpumeter_device_replicas, gpumeter_allocation_share, gpumeter_device_weight and gpumeter_device_processes.",
		label("cluster", "Cluster"), label("node", "Node").to(toNode()), label("gpu", "GPU"), label("GPU_I_ID", "Instance"),
		value("Seats", "none", 0, in(s.Series("gpumeter_device_replicas"))).but(noShared),
		value("Held", "none", 0, promql.By("max", by, "("+s.IndexedShare("GPU_I_ID")+" * on ("+strings.Join(by, ", ")+") "+in(s.Series("gpumeter_device_replicas"))+
			" / on ("+strings.Join(by, ", ")+") "+in(s.Series("gpumeter_device_weight"))+")")).lit(step{1, blue}).but(noShared),
		value("Holders", "none", 0, promql.Count(s.IndexedShare("GPU_I_ID", "namespace", "pod")+" and on ("+strings.Join(by, ", ")+") "+in(s.Series("gpumeter_device_replicas")), by...)).but(noShared),
		value("Counts as", "percentunit", 1, in(s.Series("gpumeter_device_weight"))+" and on ("+strings.Join(by, ", ")+") "+in(s.Series("gpumeter_device_replicas"))).but(noShared),
		value("Engine", "percentunit", 0, in(promql.By("max", device, s.Series("DCGM_FI_PROF_GR_ENGINE_ACTIVE")))+" and on ("+strings.Join(by, ", ")+") "+in(s.Series("gpumeter_device_replicas"))).
			meter(1, teal).but(noShared+", or where profiling fields are not read"),
		value("Processes", "none", 0, in(promql.By("max", device, s.Series("gpumeter_device_processes")))+" and on ("+strings.Join(by, ", ")+") "+in(s.Series("gpumeter_device_replicas"))).
			but(noShared+", or where the source sees no processes, as DCGM does"),
	).sorted("Held").hiding("UUID").none("no GPU is shared in replicas")
}

func stranded(s promql.Scope) Panel {
	return gauges("Stranded, by GPU", "percentunit", "The ten GPUs with most that no MIG profile fits any more. They are whole again when they are divided anew. Of gpumeter_unallocated_share.",
		now("sort_desc(topk(10, "+promql.ByGPU(s.Indexed(s.Series("gpumeter_unallocated_share", `reason="stranded"`)+" > 0"))+"))", perGPU)).
		at(purple).partly().round(1).wide(8).empty("where nothing is stranded").none("nothing is stranded")
}

func uncharged(s promql.Scope) Panel {
	once := promql.By("max", []string{"job", "instance", "UUID", "reason", "namespace", "pod", "container"}, s.Held("gpumeter_uncharged_share"))
	return list("Held and not charged", "Parts of GPUs that a container holds and is not charged for, by reason, as those of broken GPUs. Of gpumeter_uncharged_share.",
		label("cluster", "Cluster"), label("node", "Node").to(toNode()), label("gpu", "GPU"), label("reason", "Reason").paint(reasons()),
		label("namespace", "Namespace"), label("pod", "Pod"), label("container", "Container"),
		value("Part of a GPU", "percentunit", 1, s.Indexed(once, "reason", "namespace", "pod", "container")).but("where all that is held is charged"),
	).hiding("UUID").wide(16).high(8).none("all that is held is charged")
}
