// SPDX-License-Identifier: Apache-2.0

package prices

import (
	"fmt"

	"go.yaml.in/yaml/v3"
)

// Team is who stands behind a namespace.
type Team struct {
	// CostCenter is empty where there is none.
	Name, CostCenter string
}

// Teams says which namespace is whose. It is immutable and safe for concurrent use.
type Teams struct {
	exact    map[string]Team
	patterns []teamRule
	labelled []teamRule
	// label is the namespace label that names the team of what no entry is for.
	label, costCenterLabel string
}

type teamRule struct {
	Team
	pattern pattern
	labels  map[string]string
}

// ParseTeams reads a file of teams. The error has all problems, each a *ProblemError with its line.
func ParseTeams(name string, data []byte) (*Teams, error) {
	r := &reader{file: name}
	t := &Teams{exact: map[string]Team{}}
	root := r.document(data)
	if root == nil {
		return nil, r.err()
	}
	r.fields(root, "a file of teams", map[string]func(*yaml.Node){
		"format": func(n *yaml.Node) {
			if n.Value != "1" {
				r.fault(n.Line, "format is to be 1, and is %s: this program reads no other", kindOf(n))
			}
		},
		"label":             func(n *yaml.Node) { t.label = r.text(n, "label") },
		"cost_center_label": func(n *yaml.Node) { t.costCenterLabel = r.text(n, "cost_center_label") },
		"teams":             func(n *yaml.Node) { r.list(n, "teams", func(n *yaml.Node) { t.add(r, n) }) },
	})
	if err := r.err(); err != nil {
		return nil, err
	}
	return t, nil
}

func (t *Teams) add(r *reader, n *yaml.Node) {
	var team Team
	var names []*yaml.Node
	var labels map[string]string
	r.fields(n, "an entry of teams", map[string]func(*yaml.Node){
		"team":             func(n *yaml.Node) { team.Name = r.text(n, "team") },
		"cost_center":      func(n *yaml.Node) { team.CostCenter = r.text(n, "cost_center") },
		"namespaces":       func(n *yaml.Node) { r.list(n, "namespaces", func(n *yaml.Node) { names = append(names, n) }) },
		"namespace_labels": func(n *yaml.Node) { labels = r.labels(n, "namespace_labels") },
	})
	if team.Name == "" {
		r.fault(n.Line, "an entry of teams: team is missing")
	}
	if len(names) == 0 && len(labels) == 0 {
		r.fault(n.Line, "team %q: give namespaces or namespace_labels", team.Name)
	}
	for _, n := range names {
		p := newPattern(r.text(n, "a namespace"))
		other, taken := t.exact[p.text]
		switch {
		case !p.given():
		case p.glob:
			t.patterns = append(t.patterns, teamRule{Team: team, pattern: p})
		case taken:
			r.fault(n.Line, "namespace %q is of team %q already", p.text, other.Name)
		default:
			t.exact[p.text] = team
		}
	}
	if len(labels) > 0 {
		t.labelled = append(t.labelled, teamRule{Team: team, labels: labels})
	}
}

// Of is the team of a namespace: that which names it, else the first with a pattern for it, else the first whose
// labels it has, else the one that its own label names. It is the zero Team where there is none, and for the
// empty namespace. The error wraps ErrLabelsUnknown where it depends on labels and labels is nil.
func (t *Teams) Of(namespace string, labels map[string]string) (Team, error) {
	if namespace == "" {
		return Team{}, nil
	}
	if team, ok := t.exact[namespace]; ok {
		return team, nil
	}
	for _, rule := range t.patterns {
		if rule.pattern.matches(namespace) {
			return rule.Team, nil
		}
	}
	if labels == nil && (len(t.labelled) > 0 || t.label != "") {
		return Team{}, fmt.Errorf("team of namespace %q: %w: hand in a list of them (--namespaces)", namespace, ErrLabelsUnknown)
	}
	for _, rule := range t.labelled {
		if contains(labels, rule.labels) {
			return rule.Team, nil
		}
	}
	if t.label == "" {
		return Team{}, nil
	}
	return Team{Name: labels[t.label], CostCenter: labels[t.costCenterLabel]}, nil
}
