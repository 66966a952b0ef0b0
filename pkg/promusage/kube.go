// SPDX-License-Identifier: Apache-2.0

package promusage

import (
	"context"
	"maps"
	"strings"
	"time"

	"github.com/prometheus/common/model"

	"github.com/gpumeter/gpumeter/pkg/ledger"
)

// The series of kube-state-metrics that labels of objects are read from: in its writing, where what is not a letter or a digit
// is an underscore.
const (
	kubePodLabels       = "kube_pod_labels"
	kubeNodeLabels      = "kube_node_labels"
	kubeNamespaceLabels = "kube_namespace_labels"
)

// kubeLabels are the labels of something that kube-state-metrics told at any time within the period: of each object those that
// it had last. object says whose they are, "" for nobody's.
func (a *asker) kubeLabels(ctx context.Context, series string, from, to time.Time, object func(model.Metric) string) (map[string]map[string]string, error) {
	series += a.selector(nil)
	labels := map[string]map[string]string{}
	for start := from; start.Before(to); start = start.Add(longestWindow) {
		part := min(longestWindow, to.Sub(start))
		// Labels that were changed within the part are two series in it, and one at its end.
		for _, query := range []string{"last_over_time(" + series + "[" + span(part) + "])", series} {
			vector, err := a.instant(ctx, query, start.Add(part))
			if err != nil {
				return nil, err
			}
			told := map[string]map[string]string{}
			for _, sample := range vector {
				takeLabels(told, object(sample.Metric), sample.Metric)
			}
			maps.Copy(labels, told)
		}
	}
	return labels, nil
}

// takeLabels takes the labels up that a series tells of an object.
func takeLabels(told map[string]map[string]string, key string, m model.Metric) {
	if key == "" {
		return
	}
	if told[key] == nil {
		told[key] = map[string]string{}
	}
	for name, value := range m {
		if l, ok := strings.CutPrefix(string(name), "label_"); ok {
			told[key][l] = string(value)
		}
	}
}

// NamespaceLabels are the labels of the namespaces that there were between two moments, as kube-state-metrics told them to the
// server: app.kubernetes.io/name is app_kubernetes_io_name there. It needs its metric kube_namespace_labels, which has only the
// labels that its --metric-labels-allowlist names.
func (s *Source) NamespaceLabels(ctx context.Context, from, to time.Time) (map[string]map[string]string, error) {
	a := newAsker(s)
	return a.kubeLabels(ctx, kubeNamespaceLabels, a.latest(from), a.latest(to), func(m model.Metric) string { return label(m, "namespace") })
}

// kubeNodes adds the nodes' labels that kube-state-metrics tells to those that the ledgers tell.
func (r *report) kubeNodes(ctx context.Context) error {
	if !r.source.cfg.KubeLabels {
		return nil
	}
	key := func(cluster, node string) string { return cluster + "\xff" + node }
	labels, err := r.asker.kubeLabels(ctx, kubeNodeLabels, r.boundaries[0], r.boundaries[len(r.boundaries)-1], func(m model.Metric) string {
		return key(label(m, "cluster"), label(m, "node"))
	})
	if err != nil {
		return err
	}
	for _, c := range r.accounts {
		told := labels[key(c.Cluster, c.Node)]
		if told == nil {
			// The exporter may say of which cluster it is where the server does not.
			told = labels[key("", c.Node)]
		}
		for name, value := range told {
			if c.Labels == nil {
				c.Labels = map[string]string{}
			}
			if _, own := c.Labels[name]; !own {
				c.Labels[name] = value
			}
		}
	}
	return nil
}

// kubePods adds the pods' labels, by UID.
func (r *report) kubePods(ctx context.Context, c *cells) error {
	if !r.source.cfg.KubeLabels || r.query.Detail != ledger.DetailPods {
		return nil
	}
	labels, err := r.asker.kubeLabels(ctx, kubePodLabels, r.boundaries[0], r.boundaries[len(r.boundaries)-1], func(m model.Metric) string {
		return string(m["uid"])
	})
	if err != nil {
		return err
	}
	for key, h := range c.held {
		if l := labels[key.PodUID]; key.PodUID != "" && l != nil {
			h.Labels = l
		}
	}
	return nil
}
