// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/meter"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// healthPage is the health of a node as JSON. docs/health-api.md has its schema, which only grows.
type healthPage struct {
	Node    string    `json:"node,omitempty"`
	Time    time.Time `json:"time"`
	BootID  string    `json:"bootID,omitempty"`
	Version uint64    `json:"version"`
	// Stream is missing where no health stream is served.
	Stream *toldList `json:"stream,omitempty"`
	// Saved is missing where conditions are not meant to outlive the exporter.
	Saved     *bool  `json:"saved,omitempty"`
	SaveError string `json:"saveError,omitempty"`
	// Repartition is missing where nobody knows of a MIG manager.
	Repartition *health.Repartition   `json:"repartition,omitempty"`
	Devices     []json.RawMessage     `json:"devices"`
	Clearings   []health.ClearingView `json:"clearings"`
}

// judgedDevice is a device with who holds it.
type judgedDevice struct {
	health.DeviceView
	Holders []shownHolder `json:"holders"`
}

type shownHolder struct {
	Namespace string   `json:"namespace"`
	Pod       string   `json:"pod"`
	PodUID    string   `json:"podUID,omitempty"`
	Container string   `json:"container"`
	Device    gpu.UUID `json:"device"`
	// Share is the part of the physical GPU.
	Share float64 `json:"share"`
}

// healthJSON is a page's health, encoded when somebody first asks for it.
type healthJSON struct {
	page    healthPage
	devices []health.Verdict
	all     []byte
	err     error
}

func encodeHealth(cfg *Config, s *meter.Snapshot) *healthJSON {
	h := &healthJSON{page: healthPage{Node: cfg.Hostname, Time: s.Time, Stream: cfg.told(), Devices: []json.RawMessage{}, Clearings: []health.ClearingView{}}}
	if s.HealthStore != (meter.StoreState{}) {
		h.page.Saved, h.page.SaveError = &s.HealthStore.Saved, s.HealthStore.Err
	}
	if r := s.Health; r != nil {
		h.page.BootID, h.page.Version, h.devices = r.BootID, r.Version, r.Verdicts
		if r.Repartition.State != health.MIGUnsaid {
			h.page.Repartition = &r.Repartition
		}
		holders, records := holdersOf(&s.Division), make(map[gpu.UUID]*health.Record, len(r.Records))
		for i := range r.Records {
			records[r.Records[i].Device] = &r.Records[i]
		}
		listed := make(map[gpu.UUID]*gpu.Device, len(s.Reading.Devices))
		for i := range s.Reading.Devices {
			listed[s.Reading.Devices[i].UUID] = &s.Reading.Devices[i]
		}
		for i := range r.Verdicts {
			v := &r.Verdicts[i]
			held := holders[v.Device]
			if held == nil {
				held = []shownHolder{}
			}
			d, err := json.Marshal(judgedDevice{health.ViewDevice(v, listed[v.Device], records[v.Device]), held})
			h.page.Devices, h.err = append(h.page.Devices, d), cmp.Or(h.err, err)
		}
		h.page.Clearings = health.ViewClearings(r.Clearings)
	}
	if h.err == nil {
		h.all, h.err = json.Marshal(&h.page)
	}
	return h
}

// only is what concerns one device: itself and, for a physical GPU, its MIG devices; nil where
// there is no verdict on it.
func (h *healthJSON) only(device gpu.UUID) ([]byte, error) {
	p := h.page
	p.Devices, p.Clearings = nil, slices.DeleteFunc(slices.Clone(p.Clearings), func(c health.ClearingView) bool { return c.Device != device })
	for i := range h.devices {
		if v := &h.devices[i]; v.Device == device || v.Card == device {
			p.Devices = append(p.Devices, h.page.Devices[i])
		}
	}
	if p.Devices == nil {
		return nil, nil
	}
	return json.Marshal(&p)
}

// holdersOf are the containers that hold a device, by device: charged or not, since a device that
// is withdrawn is charged to nobody. Under a physical GPU are those of its MIG devices too.
func holdersOf(d *sharing.Division) map[gpu.UUID][]shownHolder {
	type seat struct {
		holder sharing.Holder
		device gpu.UUID
	}
	parts := make(map[gpu.UUID]map[seat]sharing.Fraction)
	hold := func(under, device gpu.UUID, h sharing.Holder, part sharing.Fraction) {
		if parts[under] == nil {
			parts[under] = make(map[seat]sharing.Fraction)
		}
		at := seat{h, device}
		parts[under][at] = parts[under][at].Add(part)
	}
	add := func(card, device gpu.UUID, h sharing.Holder, part sharing.Fraction) {
		device = cmp.Or(device, card)
		hold(card, device, h, part)
		if device != card {
			hold(device, device, h, part)
		}
	}
	for _, s := range d.Shares {
		add(s.Card, s.Device, s.Holder, s.Part)
	}
	for _, u := range d.Unallocated {
		if u.Holder != (sharing.Holder{}) {
			add(u.Card, u.Device, u.Holder, u.Part)
		}
	}
	out := make(map[gpu.UUID][]shownHolder, len(parts))
	for under, held := range parts {
		for at, part := range held {
			h := at.holder
			out[under] = append(out[under], shownHolder{h.Namespace, h.Pod, h.PodUID, h.Container, at.device, part.Float64()})
		}
		slices.SortFunc(out[under], func(a, b shownHolder) int {
			return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Container, b.Container),
				cmp.Compare(a.PodUID, b.PodUID), cmp.Compare(a.Device, b.Device))
		})
	}
	return out
}

// serveHealthJSON is the node's health for programs and for whoever is called at night.
func (e *Exporter) serveHealthJSON(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Content-Type", "application/json; charset=utf-8")
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	answer := func(status int, body []byte) {
		header.Set("Content-Length", strconv.Itoa(len(body)))
		w.WriteHeader(status)
		if r.Method != http.MethodHead {
			// A client that went away is no fault of the node.
			_, _ = w.Write(body)
		}
	}
	refuse := func(status int, format string, args ...any) {
		body, _ := json.Marshal(map[string]string{"error": fmt.Sprintf(format, args...)})
		answer(status, body)
	}
	query := r.URL.Query()
	for name, values := range query {
		if name != "device" || len(values) != 1 {
			refuse(http.StatusBadRequest, "one parameter is taken, device=UUID; this is %q with %d values", name, len(values))
			return
		}
		if values[0] == "" {
			refuse(http.StatusBadRequest, "device= is empty: give a UUID, or leave it out for all devices")
			return
		}
	}
	p := e.current()
	if p.snapshot.Seq == 0 {
		refuse(http.StatusServiceUnavailable, "awaiting the first tick")
		return
	}
	h := p.healthJSON()
	body, err := h.all, h.err
	device := gpu.UUID(query.Get("device"))
	if query.Has("device") && err == nil {
		body, err = h.only(device)
	}
	switch {
	case err != nil:
		refuse(http.StatusInternalServerError, "the health of this tick cannot be shown: %v", err)
	case body == nil:
		refuse(http.StatusNotFound, "no verdict on a device %q here; the UUIDs are in gpumeter_device_info", device)
	default:
		answer(http.StatusOK, body)
	}
}
