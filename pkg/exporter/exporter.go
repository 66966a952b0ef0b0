// SPDX-License-Identifier: Apache-2.0

// Package exporter shows a snapshot of the node as Prometheus families, and serves
// them over HTTP.
//
// A page is made from one snapshot and one configuration, at most once per format
// and content coding, when somebody first asks for it. After that a scrape is an
// atomic load, a few headers and one write.
package exporter

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/meter"
)

const (
	// defaultWindow is the meter's.
	defaultWindow = 5 * time.Minute
	// defaultFirstTick is about what a scrape of Prometheus may take, ten seconds, by half.
	defaultFirstTick = 5 * time.Second
)

// Snapshots is where the node's present state comes from. Latest must not block,
// and what it returns is never modified; nil stands for the empty snapshot.
type Snapshots interface {
	Latest() *meter.Snapshot
}

// Watcher is a Snapshots that tells of the next one: its channel closes when there is a newer snapshot.
// With one, a scrape that comes before the first tick waits for it.
type Watcher interface {
	Watch() (*meter.Snapshot, <-chan struct{})
}

// BuildInfo is what the program was built from; empty parts are left out.
type BuildInfo struct {
	Version, Revision, GoVersion string
}

// Link is an entry of the node page for something the caller serves beside it.
type Link struct {
	Path, Text string
}

// Config is how the page is labelled. The zero Config is dcgm-exporter's default
// without a host name.
type Config struct {
	// Hostname is the node's name; empty for no such label.
	Hostname string
	// HostnameLabel is "hostname", the default, or "Hostname".
	HostnameLabel string
	// OldNamespace gives the labels of device series their names of dcgm-exporter 1.x:
	// uuid, pod_name, pod_namespace, container_name.
	OldNamespace bool
	// VirtualGPUs repeats each series of a device once for each seat of each holder,
	// with the holder's labels. Sums over such series count the device many times.
	VirtualGPUs bool
	// PodUID adds the label pod_uid where the pod's UID is known.
	PodUID bool
	// PodLabels says which labels of pods, by their key, the series of the devices that they hold get; nil for none.
	PodLabels func(key string) bool
	// ReplaceBlanksInModelName turns blanks in the model's name into dashes.
	ReplaceBlanksInModelName bool
	// XIDs says what the driver's error codes mean. Without it DCGM_FI_DEV_XID_ERRORS has no
	// err_code and err_msg, every code is one to watch, and none is there before it happens.
	XIDs *health.XIDTable
	// XIDWindow and ClockWindow are the windows that the meter counts in, shown as a label
	// of the counts; 0 is the meter's default, five minutes.
	XIDWindow, ClockWindow time.Duration
	// ReadingMaxAge is the meter's limit for the age of values, beyond which the exporter is
	// not ready; 0 is the meter's default, two and a half intervals.
	ReadingMaxAge time.Duration
	// FirstTick is how long a scrape waits for the meter's first tick, before it is refused; 0 is 5 s.
	FirstTick time.Duration
	// SourceReason says why the telemetry source was taken, for gpumeter_source_info.
	SourceReason string
	Build        BuildInfo
	// Stream says how the health stream fares; nil where there is none. It must not block.
	Stream func() Stream
	// Restored is what became at the start of the conditions that were saved before, in a word for a label;
	// empty where none are kept.
	Restored string
	// Policy is how MIG devices are weighed, for gpumeter_ledger_info.
	Policy string
	// NoPodCharges leaves out what each pod came to, for the sake of Prometheus where pods are many.
	NoPodCharges bool
	// Links are shown on the node page after the exporter's own.
	Links []Link
}

// Exporter is the node as Prometheus sees it. Make it with New; its methods are
// safe for concurrent use.
type Exporter struct {
	snapshots Snapshots
	cfg       Config
	started   time.Time
	empty     meter.Snapshot
	index     *nodeTemplates

	negotiator negotiator
	page       atomic.Pointer[page]
	settings   atomic.Pointer[settings]
	reloading  sync.Mutex
	press      press
	// extent is the last page's, for the next one to begin with.
	extent atomic.Pointer[extent]
}

// settings are what a reload changes. A settings value is never modified.
type settings struct {
	rows     []Counter
	taken    time.Time
	failed   error
	problems map[Severity]int64
}

// New makes an Exporter that shows counters, which were read just now without
// problems; Reload says otherwise. An error names the part of cfg that is wrong.
func New(snapshots Snapshots, counters *Counters, cfg Config) (*Exporter, error) {
	if snapshots == nil {
		return nil, errors.New("exporter: no snapshots to show")
	}
	switch cfg.HostnameLabel {
	case "":
		cfg.HostnameLabel = "hostname"
	case "hostname", "Hostname":
	default:
		return nil, fmt.Errorf(`exporter: host name label %q: use "hostname" or "Hostname"`, cfg.HostnameLabel)
	}
	index, err := newNodeTemplates()
	if err != nil {
		return nil, err
	}
	cfg.Links = slices.Clone(cfg.Links)
	cfg.FirstTick = cmp.Or(cfg.FirstTick, defaultFirstTick)
	cfg.XIDWindow, cfg.ClockWindow = cmp.Or(cfg.XIDWindow, defaultWindow), cmp.Or(cfg.ClockWindow, defaultWindow)
	e := &Exporter{snapshots: snapshots, cfg: cfg, started: time.Now(), index: index}
	e.Reload(counters, nil, e.started)
	return e, nil
}

// Reload shows c from the next scrape on. The problems are counted in
// gpumeter_config_problems; at is when the configuration was read. A nil c shows no
// counters.
func (e *Exporter) Reload(c *Counters, problems []Problem, at time.Time) {
	st := &settings{taken: at, problems: make(map[Severity]int64)}
	if c != nil {
		st.rows = c.Rows()
	}
	for _, p := range problems {
		st.problems[p.Severity]++
	}
	e.reloading.Lock()
	defer e.reloading.Unlock()
	e.settings.Store(st)
}

// ReloadFailed says that a new configuration could not be read at the given time;
// the last good one stays. A failure older than the configuration in use is void.
func (e *Exporter) ReloadFailed(err error, at time.Time) {
	e.reloading.Lock()
	defer e.reloading.Unlock()
	st := *e.settings.Load()
	if at.Before(st.taken) {
		return
	}
	st.failed = err
	e.settings.Store(&st)
}

// latest is the snapshot to show, never nil.
func (e *Exporter) latest() *meter.Snapshot {
	if s := e.snapshots.Latest(); s != nil {
		return s
	}
	return &e.empty
}
