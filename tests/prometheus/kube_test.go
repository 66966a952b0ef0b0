// SPDX-License-Identifier: Apache-2.0

package prometheus

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/bill"
	"github.com/gpumeter/gpumeter/pkg/promusage"
)

// TestLabelsOfKubeStateMetricsGroupABill has pods, namespaces and nodes with labels that only kube-state-metrics tells, some by a
// scrape that renames what the target has too, and a label that is changed within the period.
func TestLabelsOfKubeStateMetricsGroupABill(t *testing.T) {
	db := openStorage(t)
	m := meterOf{id: "l1", node: "n1", born: epoch.Add(-30 * time.Hour)}
	g := newTarget(db, "a", nil)
	kube := newTarget(db, "kube", map[string]string{"namespace": "monitoring", "node": "n9"})
	other := newTarget(db, "kube", map[string]string{"cluster": "another"})
	for at := epoch.Add(-time.Hour); !at.After(epoch.Add(3 * time.Hour)); at = at.Add(30 * time.Second) {
		page := podsOf(m, at, map[string]float64{"train": 7200 + at.Sub(epoch).Seconds()})
		maps.DeleteFunc(page, func(key string, _ float64) bool { return len(key) > 4 && key[:4] == "kube" })
		g.scrape(t, at, page)
		team := `label_team="red",label_tier="old"`
		if at.After(epoch.Add(time.Hour)) {
			team = `label_team="blue"`
		}
		kube.scrape(t, at, map[string]float64{
			`kube_pod_labels{namespace="team-a",pod="train",uid="uid-train",label_app_kubernetes_io_name="x"}`:     1,
			`kube_pod_labels{namespace="team-a",pod="another",uid="uid-another",label_app_kubernetes_io_name="y"}`: 1,
			`kube_namespace_labels{namespace="team-a",label_cost_center="42"}`:                                     1,
			`kube_namespace_labels{namespace="team-b",label_cost_center="43"}`:                                     1,
			`kube_node_labels{node="n1",label_zone="z1",label_pool="of kube",` + team + `}`:                        1,
			`kube_node_labels{node="n2",label_zone="z2"}`:                                                          1,
		})
		other.scrape(t, at, map[string]float64{`kube_node_labels{node="n1",label_zone="z9",label_rack="r9"}`: 1})
	}
	for _, tt := range []struct {
		by   bill.Dimension
		want string
	}{
		{"label:app_kubernetes_io_name", "x"},
		{"namespace-label:cost_center", "42"},
		{"node-label:zone", "z1"},
		// It was changed, and what it is now counts.
		{"node-label:team", "blue"},
		{"node-label:tier", ""},
		// It is of a node of that name in another cluster.
		{"node-label:rack", ""},
		// What the exporter says of its node goes before what others do.
		{"node-label:pool", "a"},
	} {
		for _, told := range []bool{true, false} {
			s := reader(t, &web{storage: db}, func(c *promusage.Config) { c.KubeLabels = told })
			o := bill.Options{From: epoch, To: epoch.Add(2 * time.Hour), Zone: time.UTC, GroupBy: []bill.Dimension{tt.by}, NamespaceLabels: map[string]map[string]string{}}
			var err error
			if told {
				if o.NamespaceLabels, err = s.NamespaceLabels(t.Context(), o.From, o.To); err != nil {
					t.Fatal(err)
				}
			}
			q := bill.Query(o)
			u, err := s.Usage(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			b, err := bill.Make(u, o)
			if err != nil {
				t.Fatal(err)
			}
			found := map[string]string{}
			for _, r := range b.Rows {
				if r.Kind == bill.KindHeld {
					found[r.Keys[0]] = r.GPUHours.String()
				}
			}
			want := map[string]string{tt.want: "1"}
			if tt.by == "label:app_kubernetes_io_name" {
				want[tt.want] = "2"
			}
			if !told && tt.by != "node-label:pool" {
				want = map[string]string{"": want[tt.want]}
			}
			if fmt.Sprint(found) != fmt.Sprint(want) {
				t.Errorf("by %s, asked for: %t: rows %v, want %v", tt.by, told, found, want)
			}
		}
	}
}
