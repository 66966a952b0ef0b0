// SPDX-License-Identifier: Apache-2.0

package prices

import (
	"maps"
	"slices"
	"strings"
)

// selector says what an entry is for. The fields that are given must all match.
type selector struct {
	node, cluster, model, profile, resource, mode, namespace pattern
	nodeLabels, namespaceLabels                              map[string]string
	// spot: the node says by one of the well-known labels that it can be taken away.
	spot bool
}

// answer is whether a selector matches a Subject of which not everything may be known.
type answer int

const (
	no answer = iota
	yes
	// nodeLabelsUnknown, namespaceLabelsUnknown: it would depend on labels that nobody told.
	nodeLabelsUnknown
	namespaceLabelsUnknown
)

func (s *selector) matches(subject *Subject) answer {
	named := s.model.matches(subject.Model) && s.namespace.matches(subject.Namespace) && s.node.matches(subject.Node) &&
		s.cluster.matches(subject.Cluster) && s.profile.matches(subject.Profile) && s.resource.matches(subject.Resource) &&
		s.mode.matches(subject.Mode)
	switch {
	case !named:
		return no
	case len(s.namespaceLabels) > 0 && subject.Namespace == "":
		return no
	case len(s.namespaceLabels) > 0 && subject.NamespaceLabels == nil:
		return namespaceLabelsUnknown
	case !contains(subject.NamespaceLabels, s.namespaceLabels):
		return no
	case (s.spot || len(s.nodeLabels) > 0) && subject.NodeLabels == nil:
		return nodeLabelsUnknown
	case !contains(subject.NodeLabels, s.nodeLabels) || s.spot && !isSpot(subject.NodeLabels):
		return no
	}
	return yes
}

// contains reports whether all of wanted is in labels.
func contains(labels, wanted map[string]string) bool {
	for name, value := range wanted {
		if had, ok := labels[name]; !ok || had != value {
			return false
		}
	}
	return true
}

// spotLabels are the labels by which nodes that can be taken away are known, in the words of those who lend them.
func spotLabels() [5]label {
	return [...]label{
		{"karpenter.sh/capacity-type", "spot"},
		{"eks.amazonaws.com/capacityType", "SPOT"},
		{"cloud.google.com/gke-spot", "true"},
		{"cloud.google.com/gke-preemptible", "true"},
		{"kubernetes.azure.com/scalesetpriority", "spot"},
	}
}

type label struct{ name, value string }

func isSpot(labels map[string]string) bool {
	for _, l := range spotLabels() {
		if labels[l.name] == l.value {
			return true
		}
	}
	return false
}

// rank says how specific s is: ranks are compared from the front, and the first difference decides.
func (s *selector) rank() []int {
	labels := len(s.nodeLabels)
	if s.spot {
		labels++
	}
	return []int{
		s.namespace.rank(), len(s.namespaceLabels), s.node.rank(), labels, s.cluster.rank(),
		s.model.rank(), s.profile.rank(), s.resource.rank(), s.mode.rank(),
	}
}

// meets reports whether some Subject could be matched by both.
func (s *selector) meets(o *selector) bool {
	return s.node.meets(o.node) && s.cluster.meets(o.cluster) && s.model.meets(o.model) && s.profile.meets(o.profile) &&
		s.resource.meets(o.resource) && s.mode.meets(o.mode) && s.namespace.meets(o.namespace) &&
		labelsMeet(s.nodeLabels, o.nodeLabels) && labelsMeet(s.namespaceLabels, o.namespaceLabels)
}

func labelsMeet(a, b map[string]string) bool {
	for name, value := range a {
		if other, ok := b[name]; ok && other != value {
			return false
		}
	}
	return true
}

// String is the selector as in the file, on one line; equal selectors have equal strings.
func (s *selector) String() string {
	var parts []string
	add := func(name, value string) {
		if value != "" {
			parts = append(parts, name+"="+value)
		}
	}
	add("namespace", s.namespace.text)
	addLabels(&parts, "namespace_labels", s.namespaceLabels)
	add("node", s.node.text)
	addLabels(&parts, "node_labels", s.nodeLabels)
	if s.spot {
		add("spot", "true")
	}
	add("cluster", s.cluster.text)
	add("model", s.model.text)
	add("profile", s.profile.text)
	add("resource", s.resource.text)
	add("mode", s.mode.text)
	return strings.Join(parts, ", ")
}

func addLabels(parts *[]string, what string, labels map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		*parts = append(*parts, what+"."+name+"="+labels[name])
	}
}

// contradiction says why nothing can match s; empty where something can.
func (s *selector) contradiction() string {
	if s.profile.given() && (s.mode.text == "exclusive" || s.mode.text == "shared") {
		return "mode " + s.mode.text + " is of whole GPUs, which have no profile"
	}
	if !s.spot {
		return ""
	}
	for _, l := range spotLabels() {
		if had, ok := s.nodeLabels[l.name]; !ok || had == l.value {
			return ""
		}
	}
	return "spot is true, and node_labels exclude every label that says so"
}
