// SPDX-License-Identifier: Apache-2.0

package promql

import "strings"

// page is what names a page of an exporter. Where clusters use the same addresses it is not unique; with a UUID it is.
func page() []string { return []string{"job", "instance"} }

func card() []string { return with(page(), "UUID") }

func instance() []string { return with(card(), "GPU_I_ID") }

// Held are the series of a family that name a holder: those of the chosen namespaces and pods. Where the scrape has renamed the holder's
// labels, they get their names back.
func (s Scope) Held(name string, matchers ...string) string {
	plain := s.Series(name, with(matchers, `exported_namespace=""`, `namespace=~"$namespace"`, `pod=~"$pod"`)...)
	renamed := s.Series(name, with(matchers, `exported_namespace!=""`, `exported_namespace=~"$namespace"`, `exported_pod=~"$pod"`)...)
	for _, label := range Holder() {
		renamed = replaced(renamed, label, "exported_"+label)
	}
	return "(" + Or(plain, renamed) + ")"
}

// ledgers are the chosen nodes' ledgers: cluster and node by page and ledger.
func (s Scope) ledgers() string {
	return By("group", with(page(), "ledger_id", "cluster", "node"), s.Series("gpumeter_ledger_info", ofCluster, ofNode))
}

// cards are the chosen GPUs: cluster, node and model by page and UUID, all of them 1. With a namespace or a pod chosen they are
// those that it holds a part of. matchers leave less of them.
func (s Scope) cards(matchers ...string) string {
	capacity := "gpumeter_capacity_gpu_seconds_total"
	all := s.Series(capacity, with(matchers, ofModel, everyHolder)...)
	some := s.Series(capacity, with(matchers, ofModel, someHolder)...) + on("and", card()) + s.Held("gpumeter_allocation_share", someHolder)
	return By("group", with(card(), "cluster", "node", "model"),
		"("+Or(all, some)+")"+on("*", with(page(), "ledger_id"))+"group_left (cluster, node) "+s.ledgers())
}

// indexedCards are cards with their index on the node.
func (s Scope) indexedCards() string {
	return By("group", with(card(), "gpu"), s.Series("gpumeter_device_info", `GPU_I_ID=""`)) +
		on("*", card()) + "group_left (cluster, node, model) " + s.cards()
}

func on(op string, labels []string) string {
	return " " + op + " on (" + strings.Join(labels, ", ") + ") "
}

// Device says which node the devices of an expression are of, and makes one series of each by cluster, node, UUID and the labels
// named. The expression has the labels job, instance and UUID. model may be among the labels.
func (s Scope) Device(of string, labels ...string) string {
	return By("max", with([]string{"cluster", "node", "UUID"}, labels...),
		"("+of+")"+on("*", card())+"group_left (cluster, node, model) "+s.cards())
}

// Indexed is Device with the label gpu, the index of the GPU on its node.
func (s Scope) Indexed(of string, labels ...string) string {
	return By("max", with([]string{"cluster", "node", "gpu", "UUID"}, labels...),
		"("+of+")"+on("*", card())+"group_left (cluster, node, model, gpu) ("+s.indexedCards()+")")
}

// ByGPU is what Indexed made, without the UUID, so that graphs have the GPUs in their order on the node.
func ByGPU(of string, labels ...string) string {
	return By("max", with([]string{"cluster", "node", "gpu"}, labels...), of)
}

// GPUs are the physical GPUs, lost ones included: 1 for each.
func (s Scope) GPUs(labels ...string) string {
	return s.Device(s.Series("gpumeter_device_info", `GPU_I_ID=""`), labels...)
}

// MIGDevices are the MIG devices: 1 for each.
func (s Scope) MIGDevices(labels ...string) string {
	return s.Device(s.Series("gpumeter_device_info", `mig_uuid!=""`), with(labels, "mig_uuid")...)
}

// Share is the part of each GPU that is held, by the labels named beside the GPU's own.
func (s Scope) Share(labels ...string) string {
	once := By("max", with(instance(), "resource", "mode", "namespace", "pod", "container"), s.Held("gpumeter_allocation_share"))
	inner := with(card(), without(labels, "model")...)
	return s.Device(Sum(once, inner...), labels...)
}

// IndexedShare is Share with the label gpu.
func (s Scope) IndexedShare(labels ...string) string {
	once := By("max", with(instance(), "GPU_I_PROFILE", "resource", "mode", "namespace", "pod", "container"), s.Held("gpumeter_allocation_share"))
	return s.Indexed(Sum(once, with(card(), without(labels, "model")...)...), labels...)
}

// Rest is the part of each GPU that nobody is charged for, by reason; reasons that have none are left out, so that a fleet's
// are few.
func (s Scope) Rest(labels ...string) string {
	return s.Device(s.Series("gpumeter_unallocated_share")+" > 0", with(labels, "reason")...)
}

// RestFor is the part of each GPU for which nobody is charged because of a reason, 0 included.
func (s Scope) RestFor(reason string, labels ...string) string {
	return s.Device(s.Series("gpumeter_unallocated_share", `reason="`+reason+`"`), labels...)
}

// Busy is how much of each GPU was at work, 0 to 1: the engine's activity, by weight where the GPU is divided by MIG, and the time in which any kernel
// ran where the engine is not measured.
func (s Scope) Busy(labels ...string) string { return s.Device(s.busy(), labels...) }

// IndexedBusy is Busy with the label gpu.
func (s Scope) IndexedBusy(labels ...string) string { return s.Indexed(s.busy(), labels...) }

func (s Scope) busy() string {
	weight := By("max", instance(), s.Series("gpumeter_device_weight"))
	engine := Sum(By("max", instance(), s.Series("DCGM_FI_PROF_GR_ENGINE_ACTIVE"))+on("*", instance())+weight, card()...)
	kernels := By("max", card(), s.Series("DCGM_FI_DEV_GPU_UTIL")) + " / 100"
	return Or(engine, kernels)
}

// OfInstance is a field that DCGM tells by GPU instance, once for each, with the label GPU_I_ID.
func (s Scope) OfInstance(field string, matchers ...string) string {
	return By("max", with(instance(), "GPU_I_PROFILE"), s.Series(field, matchers...))
}

// OfCard is a field that DCGM tells of whole GPUs, once for each.
func (s Scope) OfCard(field string) string { return By("max", card(), s.Series(field)) }

// OverInstances adds up a quantity of GPU instances, such as memory, by GPU.
func (s Scope) OverInstances(field string) string {
	return Sum(By("max", instance(), s.Series(field)), card()...)
}

func without(labels []string, not string) []string {
	var left []string
	for _, l := range labels {
		if l != not {
			left = append(left, l)
		}
	}
	return left
}
