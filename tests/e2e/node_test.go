// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestNode is the inner process: one node under one kubelet, from the first pod to the last.
func TestNode(t *testing.T) {
	if os.Getenv(envPlace) != placeInner {
		t.Skip("runs inside of TestRealKubelet only")
	}
	n := startNode(t)
	t.Logf("%6.2f s  the node is up", time.Since(n.began).Seconds())
	stages := []stage{
		{"pods get devices", n.podsGetDevices},
		{"the exporter says who has what within a tick", n.exporterAttributes},
		{"every pod is charged under the API server's UID", n.chargesByUID},
		{"a short pod is charged for as long as it held its GPU", n.shortPod},
		{"a crash of the exporter costs nobody a second", n.crashIsBridged},
		{"a fault of an application withdraws nothing", n.applicationFault},
		{"a broken card leaves with all its replicas", n.brokenCard},
		{"no restart heals it", n.restarts},
		{"evidence brings it back", n.recovery},
		{"an operator's word brings it back", n.operator},
		{"a new config is followed without a restart", n.newConfig},
		{"a pod that asks for two replicas is refused", n.refusal},
		{"a bad config changes nothing", n.badConfig},
		{"the ledger of all this can be proven", n.ledgerVerifies},
	}
	// What is shipped is the same for each kubelet.
	if n.cluster.minor == minors()[len(minors())-1] {
		stages = append(stages,
			stage{"the image takes over with the chart", n.shipped},
			stage{"a rollout costs nobody a second", n.rollout},
			stage{"the images stand in for those of others", n.replaced})
	}
	for _, stage := range stages {
		start := time.Now()
		t.Logf("== %s", stage.name)
		stage.do()
		t.Logf("%6.2f s  in all: %s", time.Since(start).Seconds(), stage.name)
	}
}

// stage is a part of the test that builds on the ones before.
type stage struct {
	name string
	do   func()
}

// podsGetDevices: each kind of device reaches a container, through CDI and, after the config was
// changed to that, in its environment and as device nodes that the kubelet adds.
func (n *testNode) podsGetDevices() {
	n.gets("whole", whole, "NVIDIA_VISIBLE_DEVICES=void")
	n.gets("shared-a", shared, "NVIDIA_VISIBLE_DEVICES=void")
	n.gets("slice", slice, "NVIDIA_VISIBLE_DEVICES=void")
	n.reconfigure(byEnv)
	n.gets("shared-b", shared, "NVIDIA_VISIBLE_DEVICES="+cardID(sharedCard))
	n.record("running")
}

// gets makes a pod that asks for one device and checks that its container has that one: a line
// of its environment, its device nodes, and those of no other card.
func (n *testNode) gets(name, resource, environment string) {
	n.t.Helper()
	n.create(name, resource, 1)
	n.runs(name)
	held, err := n.kubelet.held(name)
	if err != nil {
		n.t.Fatal(err)
	}
	if len(held[resource]) != 1 {
		n.t.Fatalf("pod %s holds %v, want one %s", name, held, resource)
	}
	device, _, _ := strings.Cut(held[resource][0], "::")
	n.sees(name, append(deviceNodes(device), environment))
}

// deviceNodes are those that a device's container has, and a container of another card has not.
func deviceNodes(device string) []string {
	for i := range cards {
		if device == cardID(i) {
			return []string{fmt.Sprintf("/dev/nvidia%d", i)}
		}
	}
	minors := migMinors()
	for i, instance := range instances {
		if device == sliceID(i) {
			return []string{
				fmt.Sprintf("/dev/nvidia%d", migCard),
				fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", minors[fmt.Sprintf("gpu%d/gi%d/access", migCard, instance)]),
				fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", minors[fmt.Sprintf("gpu%d/gi%d/ci0/access", migCard, instance)]),
			}
		}
	}
	return nil
}

// sees checks what a container has printed: its environment and the device nodes in it.
func (n *testNode) sees(name string, want []string) {
	n.t.Helper()
	var lines []string
	n.cluster.eventually(10*time.Second, "the container of "+name+" has said what it sees", func() error {
		var text string
		if err := n.cluster.api.get(podsPath+"/"+name+"/log", &text); err != nil {
			return err
		}
		lines = strings.Split(text, "\n")
		if !slices.Contains(lines, "complete") {
			return errors.New("the container has not said all of it")
		}
		return nil
	})
	for _, w := range want {
		if !slices.Contains(lines, w) {
			n.t.Errorf("the container of %s does not have %s; it has\n%s", name, w, strings.Join(lines, "\n"))
		}
	}
	for _, line := range lines {
		if isCard(line) && !slices.Contains(want, line) {
			n.t.Errorf("the container of %s has %s, a card that was not given to it", name, line)
		}
	}
}

// isCard says whether a path is a card's device node or that of an instance.
func isCard(path string) bool {
	var n int
	if _, err := fmt.Sscanf(path, "/dev/nvidia%d", &n); err == nil {
		return true
	}
	_, err := fmt.Sscanf(path, "/dev/nvidia-caps/nvidia-cap%d", &n)
	return err == nil
}

// The part of an H100 that a 1g.10gb is: the mean of one of seven and one of eight.
const slicePart = 15. / 112

func (n *testNode) exporterAttributes() {
	n.holds("whole", 20*interval, 1)
	n.holds("shared-a", 20*interval, 1./4)
	n.holds("shared-b", 20*interval, 1./4)
	n.holds("slice", 20*interval, slicePart)
	n.create("shared-c", shared, 1)
	n.cluster.eventually(30*time.Second, "the kubelet lists shared-c", func() error {
		_, err := n.kubelet.held("shared-c")
		return err
	})
	// A tick begins within an interval, and then the page is made.
	n.holds("shared-c", 2*interval, 1./4)
	n.runs("shared-c")
	n.delete("shared-c")
	n.cluster.eventually(10*interval, "the exporter has let go of shared-c", func() error {
		p, err := scrape(exporterPage)
		if err == nil && len(p.shares("shared-c")) > 0 {
			err = errors.New("shared-c is still on the page")
		}
		return err
	})
}

// holds waits until the exporter says that a pod holds this part of the card that the kubelet gave it.
func (n *testNode) holds(name string, limit time.Duration, part float64) {
	n.t.Helper()
	n.cluster.eventually(limit, fmt.Sprintf("the exporter says that %s holds %.4f", name, part), func() error {
		p, err := scrape(exporterPage)
		if err != nil {
			return err
		}
		held, err := n.kubelet.held(name)
		if err != nil {
			return err
		}
		got := p.shares(name)
		for _, ids := range held {
			if card := cardOf(ids[0]); len(got) == 1 && math.Abs(got[card]-part) <= tolerance {
				return nil
			}
		}
		return fmt.Errorf("the exporter says %v, the kubelet %v", got, held)
	})
}

// cardOf is the card of an id that the kubelet gave away.
func cardOf(id string) string {
	device, _, _ := strings.Cut(id, "::")
	if strings.HasPrefix(device, "MIG-") {
		return cardID(migCard)
	}
	return device
}

func (n *testNode) newConfig() {
	before := maps.Clone(n.everything())
	start := time.Now()
	n.configure(8)
	n.offers(20*time.Second, "the node offers eight replicas", n.everything())
	n.never(start, before)
	n.holds("shared-a", 20*time.Second, 1./8)
	n.create("shared-d", shared, 1)
	n.runs("shared-d")
	n.holds("shared-d", 10*interval, 1./8)
	n.record("eight-replicas")
}

func (n *testNode) refusal() {
	n.create("greedy", shared, 2)
	var p pod
	n.cluster.eventually(20*time.Second, "pod greedy is refused", func() error {
		if err := n.cluster.api.get(podsPath+"/greedy", &p); err != nil {
			return err
		}
		if p.Status.Phase != "Failed" {
			return fmt.Errorf("it is %s", p.Status.Phase)
		}
		return nil
	})
	n.t.Logf("%s: %s", p.Status.Reason, p.Status.Message)
	for _, word := range []string{"nvidia.com/gpu.shared", "failRequestsGreaterThanOne"} {
		if !strings.Contains(p.Status.Message, word) {
			n.t.Errorf("the message does not have %q", word)
		}
	}
	n.record("refused")
}

func (n *testNode) badConfig() {
	start := time.Now()
	n.writeConfig("version: v1\nsharing:\n  timeSlicing:\n    resource: []\n")
	n.cluster.eventually(10*time.Second, "the device plugin says that it does not take the config", func() error {
		p, err := scrape(pluginPage)
		if err == nil && p.sum("gpumeter_device_plugin_config_last_reload_successful", nil) != 0 {
			err = errors.New("it has not")
		}
		return err
	})
	n.never(start, n.everything())
	n.restart(kubelet, false)
	n.cluster.eventually(20*time.Second, "the old config still stands", func() error { return n.givesAway(n.everything()) })
}
