// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// charges renders the ledger's totals. What has come since the last commit is among them at 0, so
// that no series is born with a step.
type charges struct {
	*ownFamilies

	id         string
	cards      []cardCharges
	namespaces []heldCharges
	pods       []heldCharges
	// infos are the pods of which more is known, each once.
	infos []labelID
}

type cardCharges struct {
	*ledger.CardTotal
	labels labelID
}

// heldCharges is what one series of a holder came to.
type heldCharges struct {
	amount ledger.Amount
	used   map[ledger.Basis]sharing.Fraction
	// basis is what its energy rests on.
	basis  ledger.Basis
	labels labelID
}

func newCharges(f *ownFamilies, v *ledger.View) *charges {
	c := &charges{
		ownFamilies: f, id: v.Totals.LedgerID, cards: make([]cardCharges, 0, len(v.Totals.Cards)+len(v.NewCards)),
		namespaces: make([]heldCharges, 0, len(v.Totals.Series)+len(v.NewSeries)),
	}
	for i := range v.Totals.Cards {
		c.card(&v.Totals.Cards[i])
	}
	for i := range v.NewCards {
		c.card(&ledger.CardTotal{Card: v.NewCards[i]})
	}
	set := make([]label, 0, 12)
	for i := range v.Totals.Series {
		s := &v.Totals.Series[i]
		c.namespaces = append(c.namespaces, c.held(c.seriesLabels(set, &s.Series), &s.Series, s.Amount, s.Used))
	}
	for i := range v.NewSeries {
		c.namespaces = append(c.namespaces, c.held(c.seriesLabels(set, &v.NewSeries[i]), &v.NewSeries[i], ledger.Amount{}, nil))
	}
	if f.cfg.NoPodCharges {
		return c
	}
	c.pods = make([]heldCharges, 0, len(v.Totals.Pods)+len(v.NewPods))
	told := map[labelID]bool{}
	for _, pods := range [][]ledger.PodTotal{v.Totals.Pods, v.NewPods} {
		for i := range pods {
			p := &pods[i]
			c.pods = append(c.pods, c.held(c.podLabels(set, &p.PodSeries), &p.Series, p.Amount, p.Used))
			c.info(p, told)
		}
	}
	return c
}

func (c *charges) card(t *ledger.CardTotal) {
	c.cards = append(c.cards, cardCharges{t, c.set("UUID", string(t.UUID), "model", t.Model, "ledger_id", c.id)})
}

// held is one holder's.
func (c *charges) held(set []label, s *ledger.Series, a ledger.Amount, used map[ledger.Basis]sharing.Fraction) heldCharges {
	return heldCharges{a, used, ledger.EnergyBasis(s.Mode), c.labels.intern(set)}
}

// seriesLabels are those of the billing series, and podLabels those of the drill-down.
func (c *charges) seriesLabels(set []label, s *ledger.Series) []label {
	return append(set, label{"namespace", s.Namespace}, label{"resource", s.Resource}, label{"mode", string(s.Mode)},
		label{"model", s.Model}, label{"profile", s.Profile}, label{"ledger_id", c.id})
}

func (c *charges) podLabels(set []label, p *ledger.PodSeries) []label {
	return append(set, label{"namespace", p.Namespace}, label{"pod", p.Pod}, label{"pod_uid", p.PodUID}, label{"container", p.Container},
		label{"UUID", string(p.Card)}, label{"GPU_I_ID", instanceNumber(p.GPUInstance)},
		label{"resource", p.Resource}, label{"mode", string(p.Mode)}, label{"model", p.Model}, label{"profile", p.Profile}, label{"ledger_id", c.id})
}

// info keeps the labels of what the API server says of a pod, once for all that it holds.
func (c *charges) info(p *ledger.PodTotal, told map[labelID]bool) {
	if p.Pod.Name == "" {
		return
	}
	id := c.set("namespace", p.Namespace, "pod", p.PodSeries.Pod, "pod_uid", p.PodUID,
		"workload", p.Pod.Workload, "workload_kind", p.Pod.WorkloadKind, "ledger_id", c.id)
	if !told[id] {
		told[id] = true
		c.infos = append(c.infos, id)
	}
}

// quantity is what there is of a GPU; each has families of its own.
type quantity struct {
	// name is in the families' names, what in their help.
	name, what string
	of         func(*ledger.Amount) float64
}

func gpuTime() quantity {
	return quantity{"gpu_seconds", "GPU time, in seconds of a whole GPU", func(a *ledger.Amount) float64 { return micro(a.GPU) }}
}

func memoryTime() quantity {
	return quantity{"memory_byte_seconds", "GPU memory over time, by memory slices and replicas, in bytes times seconds",
		// A whole number of MiB-milliseconds is the unit of the registers.
		func(a *ledger.Amount) float64 { return a.Memory.Float64() * (1 << 20) / 1e3 }}
}

func energy() quantity {
	return quantity{"energy_joules", "energy by the GPU's own meter, in joules", func(a *ledger.Amount) float64 { return joules(a.Energy) }}
}

// micro is a register as it is shown: whole millionths, as the nearest number.
func micro(register sharing.Fraction) float64 { return float64(ledger.Micro(register)) / 1e6 }

// joules is a register of energy, to the whole millijoule: division by a thousand of an exact integer, so that a reader
// finds it again.
func joules(register sharing.Fraction) float64 {
	return float64(ledger.Microjoules(register)/1000) / 1e3
}

// allocatedHelp and unallocatedHelp are what became of a GPU.
const (
	allocatedHelp   = "What containers held of a GPU and are charged for: "
	unallocatedHelp = "What nobody is charged for of a GPU, by why: "
)

// addCards has, of each GPU, all that there was of it and what became of that.
func (c *charges) addCards() {
	unallocated := func(t *ledger.CardTotal) map[sharing.Cause]ledger.Amount { return t.Unallocated }
	corrected := func(t *ledger.CardTotal) map[sharing.Cause]ledger.Amount { return t.Corrected }
	for _, q := range []quantity{gpuTime(), memoryTime()} {
		c.perCard("capacity", "All of a GPU while it was metered: ", q, func(t *ledger.CardTotal) *ledger.Amount { return &t.Capacity })
		c.perCard("allocated", allocatedHelp, q, func(t *ledger.CardTotal) *ledger.Amount { return &t.Allocated })
		c.perReason("unallocated", unallocatedHelp, q, sharing.Causes(), unallocated)
		c.perReason("corrected", "What of a GPU was booked to a reason first and to a container later, so that it is in both totals: ", q,
			[]sharing.Cause{sharing.CauseUnobserved}, corrected)
	}
	q := energy()
	c.perCard("card", "All that a GPU used while it was metered: ", q, func(t *ledger.CardTotal) *ledger.Amount { return &t.Capacity })
	c.family("allocated", allocatedHelp, q)
	for i := range c.cards {
		for _, basis := range []ledger.Basis{ledger.BasisDevice, ledger.BasisShare} {
			c.number(c.labels.extend(c.cards[i].labels, label{"basis", string(basis)}), joules(c.cards[i].AllocatedEnergy[basis]))
		}
	}
	c.perReason("unallocated", unallocatedHelp, q, sharing.Causes(), unallocated)
}

func (c *charges) family(of, help string, q quantity) {
	c.begin(ownPrefix+of+"_"+q.name+"_total", help+q.what+". It never falls while ledger_id stays.", kindCounter)
}

func (c *charges) perCard(of, help string, q quantity, amount func(*ledger.CardTotal) *ledger.Amount) {
	c.family(of, help, q)
	for i := range c.cards {
		c.number(c.cards[i].labels, q.of(amount(c.cards[i].CardTotal)))
	}
}

func (c *charges) perReason(of, help string, q quantity, causes []sharing.Cause, amounts func(*ledger.CardTotal) map[sharing.Cause]ledger.Amount) {
	c.family(of, help, q)
	for i := range c.cards {
		by := amounts(c.cards[i].CardTotal)
		for _, cause := range causes {
			a := by[cause]
			c.number(c.labels.extend(c.cards[i].labels, label{"reason", string(cause)}), q.of(&a))
		}
	}
}

func (c *charges) addNamespaces() { c.addHeld("namespace", "a namespace", c.namespaces) }

// addPods is the drill-down: what each container holds of each device, until a while after its end.
func (c *charges) addPods() {
	c.addHeld("pod", "a container of a pod", c.pods)
	c.begin("gpumeter_pod_info", "What the API server says of a pod that holds a part of a GPU; always 1.", kindGauge)
	for _, id := range c.infos {
		c.count(id, 1)
	}
}

func (c *charges) addHeld(of, holder string, held []heldCharges) {
	for _, q := range []quantity{gpuTime(), memoryTime()} {
		c.family(of, "What "+holder+" held of GPUs: ", q)
		for i := range held {
			c.number(held[i].labels, q.of(&held[i].amount))
		}
	}
	q := energy()
	c.family(of, "What the GPUs used for "+holder+", measured where it held the whole GPU (basis device), else by its share: ", q)
	for i := range held {
		c.number(c.labels.extend(held[i].labels, label{"basis", string(held[i].basis)}), q.of(&held[i].amount))
	}
	c.begin(ownPrefix+of+"_used_gpu_seconds_total", "How long what "+holder+" held was busy, in seconds of a whole GPU, by what that rests on; it is charged to nobody.", kindCounter)
	for i := range held {
		for _, basis := range []ledger.Basis{ledger.BasisEngine, ledger.BasisUtil, ledger.BasisEqual} {
			if used, known := held[i].used[basis]; known {
				c.number(c.labels.extend(held[i].labels, label{"basis", string(basis)}), micro(used))
			}
		}
	}
}
