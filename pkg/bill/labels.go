// SPDX-License-Identifier: Apache-2.0

package bill

import (
	"fmt"
	"strings"
)

// noteLabels names the labels that rows are grouped by and that nobody has: a slip of the pen looks like that, and a
// source that tells no labels too.
func (m *maker) noteLabels() {
	if len(m.items) == 0 {
		return
	}
	for _, d := range m.o.GroupBy {
		for _, kind := range []struct{ prefix, whose, how string }{
			{labelPrefix, "pod", "they come from the API server, which the exporter asks, or with --prometheus from kube-state-metrics (--kube-labels)"},
			{namespaceLabelPrefix, "namespace", "they come from --namespaces, or with --prometheus from kube-state-metrics (--kube-labels)"},
			{nodeLabelPrefix, "node", "they come from the exporter's --node-labels, or with --prometheus from kube-state-metrics (--kube-labels)"},
		} {
			if name, ok := strings.CutPrefix(string(d), kind.prefix); ok && !m.knowsLabel(kind.prefix, name) {
				m.notes = append(m.notes, fmt.Sprintf("group by %q: no %s that is shown is known to have this label; %s", d, kind.whose, kind.how))
			}
		}
	}
}

// knowsLabel reports whether anything shown has a label.
func (m *maker) knowsLabel(prefix, name string) bool {
	for i := range m.items {
		item := &m.items[i]
		labels := item.Labels
		switch prefix {
		case namespaceLabelPrefix:
			labels = m.namespaceLabels(item.Namespace)
		case nodeLabelPrefix:
			labels = m.nodes[item.Node].Labels
		}
		if _, ok := labels[name]; ok {
			return true
		}
	}
	return false
}
