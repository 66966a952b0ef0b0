// SPDX-License-Identifier: Apache-2.0

package promql

import "fmt"

// nodes are the chosen nodes by page. With a model, a namespace or a pod chosen they are those that have such a GPU.
// Where none is chosen, nothing is asked of the GPUs.
func (s Scope) nodes() string {
	info := "gpumeter_ledger_info"
	some := s.Series(info, ofCluster, ofNode, someDevice) + on("and", page()) + s.cards(someDevice)
	return By("group", with(page(), "cluster", "node"), Or(s.Series(info, ofCluster, ofNode, everyDevice), some))
}

// Nodes are the chosen nodes: 1 for each, by cluster and node.
func (s Scope) Nodes() string { return By("group", []string{"cluster", "node"}, s.nodes()) }

// Page says which node the series of a page are of, and makes one of each by cluster, node and the labels named. form is what is asked of
// the series, with %s for the selector.
//
// A page is known by its address and, where series have a cluster, by that: addresses come twice in several clusters. Where
// only the exporter knows its cluster, its other series have none.
func (s Scope) Page(form, name string, matchers []string, labels ...string) string {
	by := with(page(), "cluster")
	all := fmt.Sprintf(form, s.Series(name, matchers...))
	bare := fmt.Sprintf(form, s.Series(name, with(matchers, `cluster=""`)...))
	return By("max", with([]string{"cluster", "node"}, labels...), Or(
		all+on("*", by)+"group_left (node) "+By("group", with(by, "node"), s.nodes()),
		bare+on("*", page())+"group_left (cluster, node) topk by (job, instance) (1, "+s.nodes()+")"))
}
