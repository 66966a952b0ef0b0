// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"time"
)

func (n *testNode) applicationFault() {
	start := time.Now()
	n.cards.do(fmt.Sprintf("xid %d 31", sharedCard))
	n.cluster.eventually(5*time.Second, "the exporter has counted XID 31", func() error {
		p, err := scrape(exporterPage)
		if err == nil && p.sum("gpumeter_xid_errors_total", map[string]string{"UUID": cardID(sharedCard), "xid": "31"}) != 1 {
			err = errors.New("it has not")
		}
		return err
	})
	// As long as a withdrawal takes at most.
	time.Sleep(withdrawn)
	n.never(start, n.everything())
}

// statusPeriods are some of the kubelet's, see kubeletConfig.
const statusPeriods = time.Second

// withdrawn is how long a broken card may stay on offer.
const withdrawn = 2 * time.Second

func (n *testNode) brokenCard() {
	start := time.Now()
	n.cards.do(fmt.Sprintf("xid %d 79", sharedCard))
	kubeletTook := n.cluster.eventually(withdrawn, "the kubelet gives no replica of the card away", n.cardIsOut)
	n.offers(withdrawn-time.Since(start), "the node's status has none", map[string]int{shared: 0})
	n.t.Logf("XID 79: out of the kubelet's allocatable after %v, out of the node's status after %v",
		kubeletTook.Round(time.Millisecond), n.watch.now().at.Sub(start).Round(time.Millisecond))
	if got := n.watch.now().capacity[shared]; got != n.replicas {
		n.t.Errorf("the node's capacity of %s became %d, want %d as before", shared, got, n.replicas)
	}
	rest := n.everything()
	delete(rest, shared)
	n.never(start, rest)
	n.podSays("shared-a", "Unhealthy")
	n.podSays("shared-b", "Unhealthy")
	n.podSays("whole", "Healthy")
	n.record("card-broken")
}

// cardIsOut is an error while the kubelet gives away a replica of the card that is broken, or
// not all of the other devices.
func (n *testNode) cardIsOut() error {
	want := n.everything()
	want[shared] = 0
	return n.givesAway(want)
}

// givesAway is an error unless the kubelet itself has so many devices to give away.
func (n *testNode) givesAway(want map[string]int) error {
	offered, err := n.kubelet.offered()
	if err != nil {
		return err
	}
	for resource, count := range want {
		if len(offered[resource]) != count {
			return fmt.Errorf("the kubelet gives away %v, want %d %s", offered[resource], count, resource)
		}
	}
	return nil
}

// podSays waits for the health in a pod's status.
func (n *testNode) podSays(name, want string) {
	n.t.Helper()
	n.cluster.eventually(5*time.Second, "the status of "+name+" has its device as "+want, func() error {
		got, err := n.health(name)
		if err == nil && got != want {
			err = fmt.Errorf("it has %q", got)
		}
		return err
	})
}

// restarts ends and starts the three programs in each order, every other time as a crash does.
func (n *testNode) restarts() {
	// A tick and the hold-down: what would heal wrongly does so within that.
	const healing = interval + holdDown
	start := time.Now()
	for i, order := range orders(exporter, plugin, kubelet) {
		for _, name := range order {
			n.restart(name, i%2 == 1)
			n.cluster.eventually(20*time.Second, "after "+name+" all agree on the broken card", n.agreed)
			if name == kubelet {
				// Its first word on the node may be from before the plugin was with it, and come after this.
				time.Sleep(statusPeriods)
				n.cluster.eventually(5*time.Second, "and still do when its status has come", n.agreed)
			}
			n.cluster.stays(healing, "and go on to", n.agreed)
			n.holds("shared-a", 10*interval, 1./4)
			n.holds("shared-b", 10*interval, 1./4)
		}
	}
	for _, s := range n.watch.since(start) {
		if s.allocatable[shared] != 0 {
			n.t.Errorf("%v into the restarts the node offered %d replicas of the broken card", s.at.Sub(start), s.allocatable[shared])
		}
	}
	for _, name := range []string{"whole", "shared-a", "shared-b", "slice"} {
		n.runs(name)
	}
	n.record("restarted")
}

// agreed is an error unless exporter, device plugin, kubelet and API server say that the card is
// broken and the others are not.
func (n *testNode) agreed() error {
	verdicts, err := scrape(exporterPage)
	if err != nil {
		return err
	}
	for i := range cards {
		want := 0.
		if i == sharedCard {
			want = 1
		}
		if got := verdicts.sum("gpumeter_device_health", map[string]string{"UUID": cardID(i), "status": "unhealthy"}); got != want {
			return fmt.Errorf("the exporter's verdict on card %d: %v unhealthy, want %v", i, got, want)
		}
	}
	handed, err := scrape(pluginPage)
	if err != nil {
		return err
	}
	if handed.sum("gpumeter_device_plugin_monitor_up", nil) != 1 {
		return errors.New("the device plugin has no health stream")
	}
	if open := handed.sum("gpumeter_device_plugin_streams", nil); open != float64(len(n.everything())) {
		return fmt.Errorf("%v streams to the kubelet are open, want one for each resource", open)
	}
	if now := n.watch.now().allocatable; now[shared] != 0 || now[whole] != n.everything()[whole] || now[slice] != n.everything()[slice] {
		return fmt.Errorf("the node offers %v", now)
	}
	return n.cardIsOut()
}

func orders(of ...string) [][]string {
	if len(of) == 1 {
		return [][]string{of}
	}
	var out [][]string
	for i, head := range of {
		for _, tail := range orders(slices.Concat(of[:i], of[i+1:])...) {
			out = append(out, append([]string{head}, tail...))
		}
	}
	return out
}

// recovery: the card goes away and comes back with nothing wrong, as after a reset.
func (n *testNode) recovery() {
	n.cards.do(fmt.Sprintf("detach %d", sharedCard))
	n.cluster.stays(withdrawn, "the card is gone and nothing of it on offer", n.cardIsOut)
	n.holds("shared-a", 10*interval, 1./4)
	n.cards.do(fmt.Sprintf("attach %d", sharedCard))
	n.offers(20*time.Second, "all of its replicas are on offer again", n.everything())
	n.podSays("shared-a", "Healthy")
	n.holds("shared-a", 10*interval, 1./4)
	n.record("card-back")
}

// operator: a word on the node ends what no evidence ends.
func (n *testNode) operator() {
	held, err := n.kubelet.held("whole")
	if err != nil {
		n.t.Fatal(err)
	}
	card := held[whole][0]
	start := time.Now()
	for i := range cards {
		if cardID(i) == card {
			n.cards.do(fmt.Sprintf("xid %d 79", i))
		}
	}
	rest := n.everything()
	n.offers(withdrawn, "the card of pod whole is withdrawn", map[string]int{whole: 1, shared: rest[shared], slice: rest[slice]})
	out, err := exec.Command(filepath.Join(n.product, "gpumeter"), "health", "clear", "--socket", healthSocket, "--device", card, "--reason", "seen to by hand").CombinedOutput()
	if err != nil {
		n.t.Fatalf("gpumeter health clear: %v: %s", err, out)
	}
	n.t.Logf("gpumeter health clear: %s", out)
	n.offers(5*time.Second, "it is back", rest)
	n.never(start, map[string]int{whole: 1, shared: rest[shared], slice: rest[slice]})
}
