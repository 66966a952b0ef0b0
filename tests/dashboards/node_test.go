// SPDX-License-Identifier: Apache-2.0

package dashboards

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"time"

	"github.com/gpumeter/gpumeter/etc"
	"github.com/gpumeter/gpumeter/pkg/exporter"
	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/meter"
	"github.com/gpumeter/gpumeter/pkg/sharing"
	"github.com/gpumeter/gpumeter/pkg/sim"
	"github.com/gpumeter/gpumeter/pkg/xidfile"
)

// plan is one node of the fleet: which story it plays, how its exporter is set up, and who scrapes it.
type plan struct {
	scenario string
	// cluster is --cluster-name, empty for none.
	cluster string
	// allCounters asks for every row of the shipped counter file, and not for the default ones alone.
	allCounters bool
	// copies is --kubernetes-virtual-gpus.
	copies bool
	// oldHostname is --hostname-label=Hostname, as dashboards from before dcgm-exporter 4.8.3 want it.
	oldHostname bool
	// durable keeps the ledger on disk.
	durable bool
	// long is played from the month before on, with its clock turned by hand.
	long bool
	// scrapes are the targets that Prometheus has for the node.
	scrapes []scrape
}

// scrape is one target: the labels of its job and of service discovery, and whether those of the page win.
type scrape struct {
	job    string
	labels map[string]string
	honor  bool
}

// replicaLabel tells the servers of an HA pair apart.
const replicaLabel = "prometheus_replica"

// fleet is every shipped scenario as a node, in clusters, scraped in each of the ways that people scrape.
func fleet() []plan {
	monitored := func(node string) scrape {
		return scrape{job: "gpumeter", honor: true, labels: map[string]string{"node": node, "namespace": "gpu-system", "pod": "gpumeter-" + node, "container": "exporter"}}
	}
	discovered := func(node string, more ...string) scrape {
		s := monitored(node)
		s.job, s.honor = "kubernetes-pods", false
		for i := 0; i < len(more); i += 2 {
			s.labels[more[i]] = more[i+1]
		}
		return s
	}
	replica := func(s scrape, name string) scrape {
		s.labels = maps.Clone(s.labels)
		s.labels[replicaLabel] = name
		return s
	}
	pair := monitored("gpu-h100-02")
	return []plan{
		{scenario: "default", cluster: "west", durable: true, scrapes: []scrape{monitored("gpu-node-1"), discovered("gpu-node-1")}},
		{scenario: "bad-day", cluster: "west", allCounters: true, scrapes: []scrape{monitored("gpu-h100-13")}},
		{scenario: "bad-health", cluster: "west", allCounters: true, durable: true, scrapes: []scrape{discovered("gpu-h100-14")}},
		{scenario: "month", cluster: "west", long: true, scrapes: []scrape{monitored("gpu-month-1")}},
		{scenario: "h100x8-timeslice4", cluster: "east", oldHostname: true, scrapes: []scrape{replica(pair, "a"), replica(pair, "b")}},
		{scenario: "h100x8-timeslice4-renamed", cluster: "east", copies: true, scrapes: []scrape{monitored("gpu-h100-03")}},
		{scenario: "h100x8-mig-timeslice", cluster: "east", scrapes: []scrape{discovered("gpu-h100-04", "cluster", "east")}},
		{scenario: "a100x8-mig-mixed", cluster: "east", scrapes: []scrape{{job: "gpumeter", honor: true}}},
		{scenario: "h100x8-exclusive", scrapes: []scrape{{job: "static"}}},
	}
}

// player is one node with a meter and an exporter on it.
type player struct {
	plan
	name     string
	node     *sim.Node
	started  time.Time
	meter    *meter.Meter
	exporter *exporter.Exporter
	hand     *hand
	targets  []*target
	book     *ledger.Book
	kept     []interface{ Close() error }
}

// exporterInterval is --collect-interval.
const exporterInterval = 30 * time.Second

// newPlayer sets a node up at the present of the bubble it is called in; dir is where its ledger may lie.
func newPlayer(p plan, dir string) (*player, error) {
	sc, err := sim.LoadShipped(p.scenario)
	if err != nil {
		return nil, err
	}
	n := &player{plan: p, name: sc.Node, started: time.Now()}
	if p.long {
		n.started = mondayBefore(n.started)
	}
	if n.node, err = sim.NewNode(sc, sim.Options{Start: n.started}); err != nil {
		return nil, err
	}
	source := &pods{Node: n.node}
	mc := meter.Config{
		Telemetry: source, Allocations: source, Interval: exporterInterval, BootID: func() string { return n.node.BootID(n.elapsed()) },
		Clock: n.clock, NodeLabels: func() map[string]string { return map[string]string{"topology.kubernetes.io/zone": "z1"} },
	}
	if p.long {
		at := time.Since(n.started)
		n.hand = &hand{node: n.node, start: n.started, at: at, told: at}
		mc.Telemetry, mc.Allocations, mc.Interval = n.hand, n.hand, longStep
	}
	return n, n.wire(mc, dir)
}

func (n *player) wire(mc meter.Config, dir string) error {
	xids, err := xidfile.Load(etc.XIDs(), "")
	if err != nil {
		return err
	}
	mc.XIDs = xids
	if mc.Health, err = health.NewRules(health.Config{XIDs: xids}); err != nil {
		return err
	}
	counters, err := n.counters()
	if err != nil {
		return err
	}
	if mc.Policy, err = sharing.ParsePolicy("blend"); err != nil {
		return err
	}
	bc := ledger.BookConfig{Node: n.name, Cluster: n.cluster, Policy: mc.Policy.Name(), Interval: mc.Interval, Version: "0.9.0"}
	restored := ""
	if n.durable {
		bc.Dir = filepath.Join(dir, n.name)
		conditions, state, problems := ledger.OpenConditions(bc.Dir, "conditions")
		inventory, known, more := ledger.OpenInventory(bc.Dir, "inventory")
		if err := errors.Join(append(problems, more...)...); err != nil {
			return err
		}
		mc.Conditions, mc.HealthState, mc.Inventory, mc.Known = conditions, state, inventory, known
		n.kept = append(n.kept, conditions, inventory)
		restored = string(conditions.Restored())
	}
	n.book = ledger.OpenBook(bc)
	mc.Fields, mc.Book = counters.Fields(), n.book
	if n.meter, err = meter.New(mc); err != nil {
		return err
	}
	hostname := ""
	if n.oldHostname {
		hostname = "Hostname"
	}
	n.exporter, err = exporter.New(n.meter, counters, exporter.Config{
		Hostname: n.name, HostnameLabel: hostname, VirtualGPUs: n.copies, PodUID: true, XIDs: xids, Policy: mc.Policy.Name(), Restored: restored, SourceReason: "asked for",
		Build:  exporter.BuildInfo{Version: "0.9.0", Revision: "0000000", GoVersion: "go1.26"},
		Stream: func() exporter.Stream { return exporter.Stream{Epoch: "e", Version: 1, Clients: 1, Lists: 1} },
	})
	if err == nil {
		n.exporter.Reload(counters, nil, time.Now())
	}
	return err
}

// counters are the default ones, or all that the shipped file has.
func (n *player) counters() (*exporter.Counters, error) {
	data, err := etc.ReadFile("default-counters.csv")
	if err != nil {
		return nil, err
	}
	if n.allCounters {
		data = regexp.MustCompile(`(?m)^# (DCGM_)`).ReplaceAll(data, []byte("$1"))
	}
	c, problems := exporter.ParseCounters("default-counters.csv", data)
	if len(problems) > 0 {
		return nil, fmt.Errorf("default-counters.csv: %v", problems)
	}
	return c, nil
}

// elapsed is the time since the node's story began.
func (n *player) elapsed() time.Duration {
	if n.hand != nil {
		return n.hand.at
	}
	return n.node.Elapsed()
}

// looked is the time of the story at which the exporter has looked before a scrape now.
func (n *player) looked() time.Duration {
	if n.hand != nil {
		return n.hand.at
	}
	return n.node.Elapsed() - scrapeLag
}

func (n *player) clock() ledger.Instant {
	at := n.elapsed()
	return ledger.Instant{BootID: n.node.BootID(at), Boot: at.Milliseconds(), Wall: n.started.Add(at).UnixMilli()}
}

// page is what the exporter serves now.
func (n *player) page() ([]byte, error) {
	var b bytes.Buffer
	err := n.exporter.WritePage(&b, exporter.FormatText)
	return b.Bytes(), err
}

func (n *player) close() error {
	errs := []error{n.node.Close()}
	for _, c := range n.kept {
		errs = append(errs, c.Close())
	}
	return errors.Join(append(errs, n.book.Close())...)
}

// pods is a node with what an API server would tell of its pods.
type pods struct{ *sim.Node }

// Pods are those that hold something now.
func (p *pods) Pods() []ledger.Pod { return podsAt(p.Node, p.Elapsed()) }

func podsAt(n *sim.Node, at time.Duration) []ledger.Pod {
	var out []ledger.Pod
	for _, a := range n.Truth(at) {
		labels, _ := n.Labels(at, a.Holder.Namespace, a.Holder.Pod)
		out = append(out, ledger.Pod{
			Namespace: a.Holder.Namespace, Name: a.Holder.Pod, UID: a.Holder.PodUID, WorkloadKind: "Deployment", Workload: labels["app"], Labels: labels,
		})
	}
	return out
}

// hand turns a node's clock, so that weeks of it take seconds.
type hand struct {
	node     *sim.Node
	start    time.Time
	at, told time.Duration
}

// longStep is the time between two looks at the node that is played for weeks.
const longStep = 5 * time.Minute

// Read is the node's telemetry at the hand's moment.
func (h *hand) Read(_ context.Context, fields []gpu.FieldID) (gpu.Reading, error) {
	r := h.node.ReadingAt(h.at, fields)
	r.Events = h.node.Events(h.told, h.at)
	h.told = h.at
	return r, nil
}

// List is who holds what at that moment.
func (h *hand) List(context.Context) (sharing.Listing, error) {
	return sharing.Listing{Time: h.start.Add(h.at), Allocations: h.node.Truth(h.at), Advertised: h.node.Advertised(h.at)}, nil
}

// Pods is what an API server would tell of those who hold something then.
func (h *hand) Pods() []ledger.Pod { return podsAt(h.node, h.at) }

// mondayBefore is the midnight of the last Monday at or before t, in UTC.
func mondayBefore(t time.Time) time.Time {
	year, month, day := t.UTC().Date()
	return time.Date(year, month, day-(int(t.UTC().Weekday())+6)%7, 0, 0, 0, 0, time.UTC)
}
