// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"maps"
	"slices"
	"strings"

	"github.com/gpumeter/gpumeter/pkg/ledger"
)

// maxPodLabels is how many labels of one pod its series get: a pod may have thousands.
const maxPodLabels = 32

// podKey is what a holder and what is known of its pod are matched by.
type podKey struct{ namespace, name string }

// podLabels are the labels that each pod adds to the series of what it holds, of those whose key is allowed.
// A key becomes a name as dcgm-exporter makes it: what cannot stand in one is an underscore. A name that is
// taken or cannot be one, such as gpu or 3scale_net, gets the prefix label_, since it would identify another
// device or cost the page; so does one by which Prometheus knows the target, such as instance, for those who
// scrape with honor_labels. Of two keys with one name the first one in order counts.
func podLabels(allowed func(key string) bool, pods []ledger.Pod, rows []*Counter) map[podKey][]label {
	if allowed == nil {
		return nil
	}
	taken := make(map[string]bool, len(rows))
	for _, row := range rows {
		taken[row.Name] = true
	}
	out := make(map[podKey][]label, len(pods))
	for i := range pods {
		var set []label
		seen := make(map[string]bool)
		for _, key := range slices.Sorted(maps.Keys(pods[i].Labels)) {
			if len(set) == maxPodLabels {
				break
			}
			name := podLabelName(key, taken)
			if value := pods[i].Labels[key]; value != "" && !seen[name] && allowed(key) {
				seen[name] = true
				set = append(set, label{name, value})
			}
		}
		out[podKey{pods[i].Namespace, pods[i].Name}] = set
	}
	return out
}

// podLabelName is the name of a pod label's key in a series.
func podLabelName(key string, taken map[string]bool) string {
	name := strings.Map(func(r rune) rune {
		if r < 0x80 && (letter(byte(r)) || digit(byte(r)) || r == '_') {
			return r
		}
		return '_'
	}, key)
	if !validLabelName(name) || builtinLabel(name) || targetLabel(name) || taken[name] {
		return "label_" + name
	}
	return name
}

// targetLabel reports whether Prometheus, or those who keep what it scrapes, know the exporter by this label.
func targetLabel(name string) bool {
	switch name {
	case "job", "instance", "cluster", "node", "replica", "le", "quantile":
		return true
	}
	return false
}
