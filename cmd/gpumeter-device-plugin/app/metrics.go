// SPDX-License-Identifier: Apache-2.0

package app

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/version"

	"github.com/gpumeter/gpumeter/pkg/deviceplugin"
	"github.com/gpumeter/gpumeter/pkg/health"
)

// observed is where metrics come from. Each call is cheap and safe for concurrent use.
type observed struct {
	status  func() *status
	manager func() deviceplugin.Stats
	// reconnects is how often the health stream came up again.
	reconnects func() uint64
	// specs is what the CDI specs lack, nil for nothing.
	specs func() *deviceplugin.Problem
	// labels is how writing the node's labels goes.
	labels func() labelState
	// registers says whether there is a kubelet to register with.
	registers bool
}

// collector writes the plugin's own metrics from what it is at the moment.
type collector struct {
	from observed

	build, devices, served, registered, streams, lists       *prometheus.Desc
	allocates, refused, preferences, registrations, duration *prometheus.Desc
	verdicts, monitor, reconnects, unjudged, listVersion     *prometheus.Desc
	config, reloaded, reloadedAt                             *prometheus.Desc
	inventory, inventoryFrom, problems, prepares, ready      *prometheus.Desc
	paused, labels, labelled, labelledAt                     *prometheus.Desc
}

const metricPrefix = "gpumeter_device_plugin_"

func newCollector(from observed) *collector {
	d := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(metricPrefix+name, help, labels, nil)
	}
	return &collector{
		from:          from,
		build:         d("build_info", "The program that runs, always 1.", "version", "revision", "goversion"),
		devices:       d("devices", "Seats in the newest list for the kubelet: devices, or their replicas where they are shared.", "resource", "health"),
		served:        d("resource_served", "Whether the resource is handed out now, 1 or 0.", "resource"),
		registered:    d("resource_registered", "Whether the kubelet took the registration of the resource's present socket, 1 or 0.", "resource"),
		streams:       d("streams", "Open ListAndWatch streams, one for a kubelet that listens.", "resource"),
		lists:         d("lists_sent_total", "Lists of devices sent to the kubelet.", "resource"),
		allocates:     d("allocate_total", "Answered Allocate calls, refused ones included.", "resource"),
		refused:       d("allocate_errors_total", "Refused Allocate calls by reason.", "resource", "reason"),
		preferences:   d("preferred_allocation_total", "Answered GetPreferredAllocation calls.", "resource"),
		registrations: d("registrations_total", "Registrations with the kubelet by result.", "resource", "result"),
		duration:      d("allocate_duration_seconds", "Time that an Allocate call took.", "resource"),
		verdicts:      d("verdict_source", "Whose verdicts hold, 1 for that one: stream (the exporter's), own, held (the exporter's last ones), policy (the exporter has been silent too long) or none.", "source"),
		monitor:       d("monitor_up", "Whether the exporter's health stream stands, 1 or 0."),
		reconnects:    d("monitor_reconnects_total", "How often the health stream came up again."),
		listVersion:   d("list_version", "Version of the exporter's list whose verdicts hold; absent where none does."),
		unjudged:      d("unjudged_devices", "Devices that are handed out although nobody has a verdict about them."),
		config:        d("config_info", "The config by which devices are handed out, always 1: the hash of what it comes to, and why it is this one.", "hash", "source"),
		reloaded:      d("config_last_reload_successful", "Whether the last reading of the config was good, 1 or 0; a bad one leaves the one before in place."),
		reloadedAt:    d("config_last_reload_success_timestamp_seconds", "When the config was last read and good, in seconds since 1970."),
		inventory:     d("inventory_devices", "Devices of the node, physical GPUs and MIG devices.", "kind"),
		inventoryFrom: d("inventory_source", "Where the inventory is from, 1 for that one.", "source"),
		problems:      d("problems", "What could not be done as the config asks, by kind; the log has the words.", "kind"),
		prepares:      d("prepares_total", "Preparations of devices for containers (CDI specs) by result.", "result"),
		paused:        d("judging_paused", "Whether the plugin's own verdicts rest, because GPUs are being divided anew, 1 or 0; absent where nobody knows of a MIG manager."),
		labels:        d("feature_labels", "Labels of the node that say what its GPUs are; absent where none are wanted."),
		labelled:      d("feature_labels_written", "Whether the newest of these labels are written, 1 or 0."),
		labelledAt:    d("feature_labels_last_write_timestamp_seconds", "When they were last written, in seconds since 1970."),
		ready:         d("ready", "What /readyz says, 1 for ready."),
	}
}

// Describe is the descriptions of all metrics.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.build, c.devices, c.served, c.registered, c.streams, c.lists, c.allocates, c.refused, c.preferences, c.registrations, c.duration,
		c.verdicts, c.monitor, c.reconnects, c.unjudged, c.listVersion, c.config, c.reloaded, c.reloadedAt,
		c.inventory, c.inventoryFrom, c.problems, c.prepares, c.paused, c.labels, c.labelled, c.labelledAt, c.ready,
	} {
		out <- d
	}
}

// page is where metrics go.
type page chan<- prometheus.Metric

// put adds a metric, or the error of having none.
func (p page) put(desc *prometheus.Desc, m prometheus.Metric, err error) {
	if err != nil {
		m = prometheus.NewInvalidMetric(desc, err)
	}
	p <- m
}

func (p page) gauge(desc *prometheus.Desc, v float64, labels ...string) {
	m, err := prometheus.NewConstMetric(desc, prometheus.GaugeValue, v, labels...)
	p.put(desc, m, err)
}

func (p page) count(desc *prometheus.Desc, v uint64, labels ...string) {
	m, err := prometheus.NewConstMetric(desc, prometheus.CounterValue, float64(v), labels...)
	p.put(desc, m, err)
}

// Collect is their values now.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	s, m, p := c.from.status(), c.from.manager(), page(out)
	p.gauge(c.build, 1, Version(), version.GetRevision(), version.GoVersion)
	for _, r := range m.Resources {
		c.resource(p, r)
	}
	for _, v := range verdictSources() {
		p.gauge(c.verdicts, truth(s.verdicts == v), v)
	}
	p.gauge(c.monitor, truth(s.monitorUp))
	p.count(c.reconnects, c.from.reconnects())
	p.gauge(c.unjudged, float64(s.unjudged))
	if s.version > 0 {
		p.gauge(c.listVersion, float64(s.version))
	}
	if r := parseRevision(m.Revision); r.hash != "" {
		p.gauge(c.config, 1, r.hash, r.from)
	}
	p.gauge(c.reloaded, truth(s.config.good))
	if !s.config.goodAt.IsZero() {
		p.gauge(c.reloadedAt, float64(s.config.goodAt.UnixMilli())/1e3)
	}
	c.node(p, s)
	p.count(c.prepares, m.Prepares, "success")
	p.count(c.prepares, m.PrepareFailures, "failure")
	if s.repartition.State != health.MIGUnsaid {
		p.gauge(c.paused, truth(s.repartition.Paused))
	}
	if l := c.from.labels(); l.wanted {
		p.gauge(c.labels, float64(l.labels))
		p.gauge(c.labelled, truth(l.written))
		if !l.at.IsZero() {
			p.gauge(c.labelledAt, float64(l.at.UnixMilli())/1e3)
		}
	}
	p.gauge(c.ready, truth(c.from.notReady(s, m) == ""))
}

// node is what the node has.
func (c *collector) node(p page, s *status) {
	cards := 0
	for _, d := range s.stock.devices {
		if !d.IsMIG() {
			cards++
		}
	}
	p.gauge(c.inventory, float64(cards), "gpu")
	p.gauge(c.inventory, float64(len(s.stock.devices)-cards), "mig")
	for _, from := range []string{sourceNVML, sourceStream, sourceSim} {
		p.gauge(c.inventoryFrom, truth(s.stockFrom == from), from)
	}
	for kind, n := range s.problems {
		p.gauge(c.problems, float64(n), string(kind))
	}
	if lack := c.from.specs(); lack != nil {
		p.gauge(c.problems, 1, string(lack.Kind))
	}
}

func (c *collector) resource(p page, r deviceplugin.ResourceStats) {
	p.gauge(c.devices, float64(r.Healthy), r.Name, "healthy")
	p.gauge(c.devices, float64(r.Unhealthy), r.Name, "unhealthy")
	p.gauge(c.served, truth(r.Served), r.Name)
	p.gauge(c.registered, truth(r.Registered), r.Name)
	p.gauge(c.streams, float64(r.Streams), r.Name)
	p.count(c.lists, r.Lists, r.Name)
	p.count(c.preferences, r.Preferences, r.Name)
	p.count(c.registrations, r.Registrations, r.Name, "success")
	p.count(c.registrations, r.RegistrationFailures, r.Name, "failure")
	p.count(c.allocates, r.Allocations.Count(), r.Name)
	for _, reason := range refusals(r.AllocateErrors) {
		p.count(c.refused, r.AllocateErrors[reason], r.Name, reason)
	}
	buckets, below := map[float64]uint64{}, uint64(0)
	for i, bound := range r.Allocations.Bounds {
		below += r.Allocations.Counts[i]
		buckets[bound.Seconds()] = below
	}
	m, err := prometheus.NewConstHistogram(c.duration, r.Allocations.Count(), r.Allocations.Sum.Seconds(), buckets, r.Name)
	p.put(c.duration, m, err)
}

// refusals are the reasons for which Allocate refuses, those that are known from the start and those that came up.
func refusals(counted map[string]uint64) []string {
	out := []string{
		deviceplugin.ReasonUnknownID, deviceplugin.ReasonDuplicateID, deviceplugin.ReasonNothing,
		deviceplugin.ReasonUnhealthy, deviceplugin.ReasonTooManyReplicas, deviceplugin.ReasonIMEX, deviceplugin.ReasonNodes,
	}
	for reason := range counted {
		if !slices.Contains(out, reason) {
			out = append(out, reason)
		}
	}
	return out
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
