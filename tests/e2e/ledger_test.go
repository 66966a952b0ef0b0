// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"os/exec"
	"path/filepath"
	"time"
)

// permit lets the exporter do what docs/permissions.md says, and nothing else.
func (n *testNode) permit() {
	n.t.Helper()
	const group = "rbac.authorization.k8s.io"
	for path, object := range map[string]map[string]any{
		"clusterroles": {
			"kind": "ClusterRole", "apiVersion": group + "/v1", "metadata": map[string]any{"name": exporter},
			"rules": []any{map[string]any{"apiGroups": []string{""}, "resources": []string{"pods", "nodes"}, "verbs": []string{"get", "list", "watch"}}},
		},
		"clusterrolebindings": {
			"kind": "ClusterRoleBinding", "apiVersion": group + "/v1", "metadata": map[string]any{"name": exporter},
			"roleRef":  map[string]any{"apiGroup": group, "kind": "ClusterRole", "name": exporter},
			"subjects": []any{map[string]any{"apiGroup": group, "kind": "User", "name": exporter}},
		},
	} {
		n.cluster.eventually(20*time.Second, "the API server takes "+path, func() error {
			return n.cluster.api.call(http.MethodPost, "/apis/"+group+"/v1/"+path, object, nil)
		})
	}
}

// charge is what a pod has come to, and as of when.
type charge struct {
	uid     string
	seconds float64
	at      time.Time
}

// charged reads what the page says of a pod; an error where it does not.
func charged(name string) (charge, error) {
	p, err := scrape(exporterPage)
	if err != nil {
		return charge{}, err
	}
	out := charge{at: time.UnixMicro(int64(p.sum("gpumeter_ledger_commit_timestamp_seconds", nil) * 1e6))}
	for _, m := range p["gpumeter_pod_gpu_seconds_total"].GetMetric() {
		l := labels(m)
		switch {
		case l["pod"] != name:
		case out.uid != "" && out.uid != l["pod_uid"]:
			return charge{}, fmt.Errorf("pod %s has two UIDs: %s and %s", name, out.uid, l["pod_uid"])
		default:
			out.uid = l["pod_uid"]
			out.seconds += value(m)
		}
	}
	if out.uid == "" {
		return charge{}, fmt.Errorf("pod %s is on no page with a UID", name)
	}
	return out, nil
}

func (n *testNode) chargesByUID() {
	for _, name := range []string{"whole", "shared-a", "shared-b", "slice"} {
		n.chargedByUID(name)
	}
}

// chargedByUID waits until a pod is charged under the API server's UID, and its workload is known.
func (n *testNode) chargedByUID(name string) {
	n.t.Helper()
	var p pod
	if err := n.cluster.api.get(podsPath+"/"+name, &p); err != nil {
		n.t.Fatal(err)
	}
	n.cluster.eventually(10*time.Second, "pod "+name+" is charged under its UID", func() error {
		c, err := charged(name)
		if err == nil && (c.uid != p.Metadata.UID || c.seconds == 0) {
			err = fmt.Errorf("charged: %+v, its UID is %s", c, p.Metadata.UID)
		}
		return err
	})
	page, err := scrape(exporterPage)
	if err != nil {
		n.t.Fatal(err)
	}
	if page.sum("gpumeter_pod_info", map[string]string{"pod": name, "pod_uid": p.Metadata.UID, "workload": name, "workload_kind": "Pod"}) != 1 {
		n.t.Errorf("what the API server says of pod %s is not on the page", name)
	}
}

// shortPod runs for five seconds, and is charged from when the kubelet gave it the GPU to its end.
func (n *testNode) shortPod() {
	const runsFor = 5 * time.Second
	n.make("short", whole, 1, fmt.Sprintf("sleep %d", int(runsFor.Seconds())))
	n.cluster.eventually(30*time.Second, "the kubelet lists pod short", func() error {
		_, err := n.kubelet.held("short")
		return err
	})
	from := time.Now()
	var p pod
	n.cluster.eventually(30*time.Second, "pod short has ended", func() error {
		if err := n.cluster.api.get(podsPath+"/short", &p); err != nil {
			return err
		}
		if p.Status.Phase != "Succeeded" {
			return fmt.Errorf("it is %s", p.Status.Phase)
		}
		return nil
	})
	held := time.Since(from)
	// What it came to is on the page when two commits are over, and stays there.
	time.Sleep(2*time.Second + 2*interval)
	c, err := charged("short")
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Logf("pod short ran for %v, held its GPU for %v, and is charged %.3f s", runsFor, held.Round(time.Millisecond), c.seconds)
	if c.uid != p.Metadata.UID {
		n.t.Errorf("it is charged under UID %s, its UID is %s", c.uid, p.Metadata.UID)
	}
	if c.seconds < runsFor.Seconds()-interval.Seconds() || math.Abs(c.seconds-held.Seconds()) > 2*interval.Seconds()+0.5 {
		n.t.Errorf("it is charged %.3f s", c.seconds)
	}
	time.Sleep(2 * time.Second)
	if later, err := charged("short"); err != nil || later.seconds != c.seconds {
		n.t.Errorf("two seconds later it is charged %+v, %v", later, err)
	}
	n.delete("short")
}

// crashIsBridged: the pod holds its GPU before and after, so that it is charged for the time between.
func (n *testNode) crashIsBridged() {
	before, err := charged("whole")
	if err != nil {
		n.t.Fatal(err)
	}
	n.cluster.kill(exporter)
	n.cards.forget()
	time.Sleep(3 * time.Second)
	n.start(exporter)
	var after charge
	n.cluster.eventually(20*time.Second, "the crash is over and charged", func() error {
		if after, err = charged("whole"); err != nil {
			return err
		}
		if after.at.Sub(before.at) < 4*time.Second {
			return errors.New("not yet")
		}
		return nil
	})
	const clocks = 0.02
	if off := after.seconds - before.seconds - after.at.Sub(before.at).Seconds(); math.Abs(off) > clocks {
		n.t.Errorf("pod whole is charged %+v before and %+v after, %v s off", before, after, off)
	}
	p, err := scrape(exporterPage)
	if err != nil {
		n.t.Fatal(err)
	}
	gap := p.sum("gpumeter_observation_gap_seconds_total", map[string]string{"reason": "restart"})
	n.t.Logf("a gap of %.3f s is bridged: %.3f s charged in %v", gap, after.seconds-before.seconds, after.at.Sub(before.at))
	if gap < 3 {
		n.t.Errorf("a gap of %v s is shown", gap)
	}
}

// ledgerVerifies: the program for people proves the folder, while the exporter writes to it.
func (n *testNode) ledgerVerifies() {
	out, err := exec.Command(filepath.Join(n.product, "gpumeter"), "verify", "--ledger", ledgerFolder).CombinedOutput()
	n.t.Logf("gpumeter verify: %s", out)
	if err != nil {
		n.t.Errorf("gpumeter verify: %v", err)
	}
}
