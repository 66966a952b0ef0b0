// SPDX-License-Identifier: Apache-2.0

package report

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/shopspring/decimal"

	"github.com/gpumeter/gpumeter/pkg/bill"
	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// JSONVersion names the shape of the JSON. What is added keeps it; what changes or goes makes a new one.
const JSONVersion = "gpumeter.report/1"

// The types below are the document, as etc/report.schema.json describes it. Decimals are strings, so that no reader
// makes floats of money; what is not known is null or left out.
type document struct {
	Version       string          `json:"version"`
	ID            string          `json:"id"`
	From          time.Time       `json:"from"`
	To            time.Time       `json:"to"`
	Zone          string          `json:"zone"`
	GroupBy       []string        `json:"group_by"`
	Source        string          `json:"source"`
	Currency      string          `json:"currency,omitempty"`
	Decimals      int32           `json:"decimals"`
	PriceVersion  string          `json:"price_version,omitempty"`
	PolicyVersion string          `json:"policy_version,omitempty"`
	Idle          string          `json:"idle_policy,omitempty"`
	Complete      bool            `json:"complete"`
	Completeness  decimal.Decimal `json:"completeness_percent"`
	Capacity      decimal.Decimal `json:"capacity_gpu_hours"`
	Difference    int64           `json:"difference_gpu_microseconds"`
	Unbalanced    []string        `json:"unbalanced"`
	Total         documentSums    `json:"total"`
	Rows          []documentRow   `json:"rows"`
	Nodes         []documentNode  `json:"nodes"`
	Notes         []string        `json:"notes"`
	Hours         []documentHour  `json:"hours,omitempty"`
	Generator     string          `json:"generator,omitempty"`
}

type documentSums struct {
	GPUHours    decimal.Decimal  `json:"gpu_hours"`
	UsedHours   *decimal.Decimal `json:"used_gpu_hours"`
	WastedHours *decimal.Decimal `json:"wasted_gpu_hours"`
	MemoryHours decimal.Decimal  `json:"memory_gib_hours"`
	Energy      decimal.Decimal  `json:"energy_kwh"`
	ListCost    *decimal.Decimal `json:"list_cost"`
	Discount    *decimal.Decimal `json:"discount_cost"`
	NetCost     *decimal.Decimal `json:"net_cost"`
	IdleCost    *decimal.Decimal `json:"idle_share_cost"`
	Adjustment  *decimal.Decimal `json:"adjustment_cost"`
	TotalCost   *decimal.Decimal `json:"total_cost"`
	WastedCost  *decimal.Decimal `json:"wasted_cost"`
}

type documentRow struct {
	ID           string            `json:"id"`
	Kind         bill.RowKind      `json:"kind"`
	Keys         map[string]string `json:"keys"`
	Cause        sharing.Cause     `json:"unallocated_reason,omitempty"`
	Sums         documentSums      `json:"sums"`
	UnitPrice    *decimal.Decimal  `json:"unit_price"`
	Discounts    []string          `json:"discounts"`
	Bases        []ledger.Basis    `json:"used_basis"`
	Completeness decimal.Decimal   `json:"completeness_percent"`
	Items        []documentItem    `json:"items,omitempty"`
}

type documentItem struct {
	Node         int                    `json:"node"`
	Start        time.Time              `json:"start"`
	End          time.Time              `json:"end"`
	Namespace    string                 `json:"namespace,omitempty"`
	Resource     string                 `json:"resource,omitempty"`
	Mode         sharing.Mode           `json:"mode,omitempty"`
	Model        string                 `json:"model,omitempty"`
	Profile      string                 `json:"profile,omitempty"`
	Pod          string                 `json:"pod,omitempty"`
	PodUID       string                 `json:"pod_uid,omitempty"`
	Container    string                 `json:"container,omitempty"`
	WorkloadKind string                 `json:"workload_kind,omitempty"`
	Workload     string                 `json:"workload,omitempty"`
	Labels       map[string]string      `json:"labels,omitempty"`
	Card         gpu.UUID               `json:"gpu,omitempty"`
	CardIndex    *int                   `json:"gpu_index,omitempty"`
	GPUInstance  *int                   `json:"gpu_instance,omitempty"`
	Cause        sharing.Cause          `json:"unallocated_reason,omitempty"`
	GPU          int64                  `json:"gpu_microseconds"`
	Energy       int64                  `json:"energy_microjoules"`
	Memory       float64                `json:"memory_gib_seconds"`
	Used         map[ledger.Basis]int64 `json:"used_gpu_microseconds,omitempty"`
	Price        *documentPrice         `json:"price,omitempty"`
	Correction   *documentCorrection    `json:"correction,omitempty"`
}

type documentPrice struct {
	Hour     decimal.Decimal `json:"list_hour"`
	Discount decimal.Decimal `json:"discount_percent"`
	Sources  []string        `json:"discounts,omitempty"`
	Entry    string          `json:"entry"`
	// Free is what Quotas gave for nothing.
	Free   int64    `json:"free_gpu_microseconds,omitempty"`
	Quotas []string `json:"quotas,omitempty"`
	// List, Net and Idle are exact rational numbers, "number/number".
	List sharing.Fraction `json:"list_cost_exact"`
	Net  sharing.Fraction `json:"net_cost_exact"`
	Idle sharing.Fraction `json:"idle_share_cost_exact"`
}

type documentCorrection struct {
	From   sharing.Cause `json:"from_reason"`
	Start  time.Time     `json:"start"`
	End    time.Time     `json:"end"`
	Reason string        `json:"reason"`
	Refers uint64        `json:"refers"`
}

type documentNode struct {
	Cluster      string            `json:"cluster,omitempty"`
	Node         string            `json:"node"`
	LedgerID     string            `json:"ledger_id"`
	Created      *time.Time        `json:"created"`
	Labels       map[string]string `json:"labels,omitempty"`
	Policies     []string          `json:"mig_policies,omitempty"`
	GPUs         int               `json:"gpus"`
	Completeness decimal.Decimal   `json:"completeness_percent"`
	Missing      []documentAbsence `json:"missing"`
	Gaps         []documentAbsence `json:"gaps"`
}

type documentAbsence struct {
	From   time.Time `json:"from"`
	To     time.Time `json:"to"`
	Reason string    `json:"reason"`
	Text   string    `json:"text,omitempty"`
}

type documentHour struct {
	Node     int                     `json:"node"`
	Card     gpu.UUID                `json:"gpu"`
	Index    int                     `json:"index"`
	Model    string                  `json:"model"`
	Start    time.Time               `json:"start"`
	Known    bool                    `json:"known"`
	Capacity int64                   `json:"capacity_gpu_microseconds"`
	Held     int64                   `json:"held_gpu_microseconds"`
	Rest     map[sharing.Cause]int64 `json:"unallocated_gpu_microseconds,omitempty"`
}

// JSON writes b as etc/report.schema.json describes it; with o.Items with all that its rows are made of.
func JSON(w io.Writer, b *bill.Bill, o Options) error {
	d := document{
		Version: JSONVersion, ID: b.ID, From: b.From.In(b.Zone), To: b.To.In(b.Zone), Zone: b.Zone.String(), GroupBy: []string{},
		Source: b.Source, Currency: b.Currency, Decimals: b.Decimals, PriceVersion: b.PriceVersion, PolicyVersion: b.PolicyVersion,
		Complete: b.Complete, Completeness: completeness(b), Capacity: b.Capacity, Difference: b.Difference,
		Unbalanced: filled(b.Unbalanced), Total: sumsOf(b, totalRow(b)), Rows: make([]documentRow, 0, len(b.Rows)),
		Nodes: make([]documentNode, 0, len(b.Nodes)), Notes: filled(b.Notes), Generator: o.Generator,
	}
	if priced(b) {
		d.Idle = string(b.Idle)
	}
	for _, dimension := range b.GroupBy {
		d.GroupBy = append(d.GroupBy, string(dimension))
	}
	for i := range b.Rows {
		d.Rows = append(d.Rows, rowOf(b, &b.Rows[i], o.Items))
	}
	for i := range b.Nodes {
		d.Nodes = append(d.Nodes, nodeOf(b, &b.Nodes[i]))
	}
	for _, h := range b.Hours {
		d.Hours = append(d.Hours, documentHour{h.Node, h.Card, h.Index, h.Model, h.Start.In(b.Zone), h.Known, h.Capacity, h.Held, h.Rest})
	}
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	if err := out.Encode(d); err != nil {
		return fmt.Errorf("write the report as JSON: %w", err)
	}
	return nil
}

func sumsOf(b *bill.Bill, r *bill.Row) documentSums {
	s := documentSums{GPUHours: r.GPUHours, MemoryHours: r.MemoryHours, Energy: r.Energy}
	if measured(r) {
		s.UsedHours, s.WastedHours = &r.UsedHours, &r.WastedHours
	}
	if priced(b) {
		s.ListCost, s.Discount, s.NetCost = &r.ListCost, &r.Discount, &r.NetCost
		s.IdleCost, s.Adjustment, s.TotalCost = &r.IdleCost, &r.Adjustment, &r.TotalCost
		if measured(r) {
			s.WastedCost = &r.WastedCost
		}
	}
	return s
}

func rowOf(b *bill.Bill, r *bill.Row, items bool) documentRow {
	d := documentRow{
		ID: r.ID, Kind: r.Kind, Keys: make(map[string]string), Cause: r.Cause, Sums: sumsOf(b, r),
		Discounts: filled(r.Discounts), Bases: filled(r.Bases), Completeness: r.Completeness,
	}
	for i, key := range r.Keys {
		if key != "" {
			d.Keys[string(b.GroupBy[i])] = key
		}
	}
	if r.UnitPrice.Valid {
		d.UnitPrice = &r.UnitPrice.Decimal
	}
	if items {
		for i := range r.Items {
			d.Items = append(d.Items, itemOf(b, &r.Items[i]))
		}
	}
	return d
}

func itemOf(b *bill.Bill, item *bill.Item) documentItem {
	d := documentItem{
		Node: item.Node, Start: item.Start.In(b.Zone), End: item.End.In(b.Zone),
		Namespace: item.Namespace, Resource: item.Resource, Mode: item.Mode, Model: item.Model, Profile: item.Profile,
		Pod: item.Pod, PodUID: item.PodUID, Container: item.Container, WorkloadKind: item.WorkloadKind, Workload: item.Workload,
		Labels: item.Labels, Card: item.Card, Cause: item.Cause,
		GPU: item.GPU, Energy: item.Energy, Memory: item.Memory, Used: item.Used,
	}
	if item.Card != "" {
		d.CardIndex = &item.CardIndex
	}
	if item.Card != "" && item.GPUInstance != gpu.NoInstance {
		d.GPUInstance = &item.GPUInstance
	}
	if priced(b) {
		d.Price = &documentPrice{
			Hour: item.Price.Hour, Discount: item.Price.Discount, Sources: item.Price.Sources, Entry: item.Price.Entry,
			Free: item.Free, Quotas: item.Quotas, List: item.List, Net: item.Net, Idle: item.Idle,
		}
	}
	if c := item.Correction; c != nil {
		d.Correction = &documentCorrection{c.From, c.FromTime.In(b.Zone), c.ToTime.In(b.Zone), c.Reason, c.Refers}
	}
	return d
}

func nodeOf(b *bill.Bill, n *bill.Node) documentNode {
	d := documentNode{
		Cluster: n.Cluster, Node: n.Node, LedgerID: n.LedgerID, Labels: n.Labels, Policies: n.Policies, GPUs: n.GPUs, Completeness: n.Completeness,
		Missing: absencesOf(b, n.Missing), Gaps: absencesOf(b, n.Gaps),
	}
	if !n.Created.IsZero() {
		created := n.Created.In(b.Zone)
		d.Created = &created
	}
	return d
}

func absencesOf(b *bill.Bill, all []ledger.Missing) []documentAbsence {
	list := make([]documentAbsence, 0, len(all))
	for _, m := range all {
		list = append(list, documentAbsence{m.From.In(b.Zone), m.To.In(b.Zone), m.Reason, m.Text})
	}
	return list
}

// filled is list, and an empty list rather than none.
func filled[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
