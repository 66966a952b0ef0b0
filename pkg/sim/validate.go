// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// verb is what an event of one kind must and may say beside at.
type verb struct {
	name      string
	must, may []string
}

func eventVerbs() []verb {
	return []verb{
		{doXID, []string{"gpu", "code"}, []string{"instance", "count"}},
		{doGPULost, []string{"gpu"}, []string{"for"}},
		{doGPUBack, []string{"gpu"}, nil},
		{doECC, []string{"gpu"}, []string{"count"}},
		{doRepartition, []string{"gpu", "layout"}, nil},
		{doKubeletRestart, []string{"for"}, nil},
		{doKubeletSlow, []string{"delay", "for"}, nil},
		{doPluginAway, []string{"for"}, []string{"resource"}},
		{doReplicaUnhealthy, []string{"gpu"}, []string{"replica", "for"}},
		{doHang, []string{"gpu", "for"}, nil},
		{doSlow, []string{"gpu", "delay", "for"}, nil},
		{doGPUGone, []string{"gpu"}, []string{"for"}},
		{doGPUReset, []string{"gpu"}, nil},
		{doRecoveryAction, []string{"gpu", "action"}, []string{"for"}},
		{doRowRemap, []string{"gpu", "state"}, []string{"for"}},
		{doRetiredPages, []string{"gpu"}, []string{"count"}},
		{doSRAMThreshold, []string{"gpu"}, []string{"for"}},
		{doUnrepairable, []string{"gpu"}, []string{"for"}},
		{doNVLinkDown, []string{"gpu", "link"}, []string{"for"}},
		{doSlowdown, []string{"gpu", "reason"}, []string{"for"}},
		{doIncident, []string{"gpu", "system", "code"}, []string{"result", "for"}},
		{doReboot, []string{"for"}, nil},
	}
}

func (p *parser) checkVerb(e *eventSpec, given map[string]int) {
	if e.do == "" {
		p.at(e.line, "an event without a verb (write do: xid)")
		return
	}
	verbs := eventVerbs()
	v := verbs[slices.IndexFunc(verbs, func(v verb) bool { return v.name == e.do })]
	all := slices.Concat([]string{"at"}, v.must, v.may)
	for _, key := range append([]string{"at"}, v.must...) {
		if given[key] == 0 {
			p.at(e.line, "%s without %s (it takes %s)", e.do, key, strings.Join(all, ", "))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(given)) {
		if !slices.Contains(all, key) {
			p.at(given[key], "%s has no use for %s (it takes %s)", e.do, key, strings.Join(all, ", "))
		}
	}
}

// validate checks what only the whole can show.
func (p *parser) validate() {
	s := p.s
	if len(s.cards) == 0 || len(s.cards) > gpuLimit {
		p.at(1, "%d GPUs on one node (1 to %d)", len(s.cards), gpuLimit)
		return
	}
	p.checkCards()
	p.checkSharing()
	for i := range s.events {
		e := &s.events[i]
		if i > 0 && e.at < s.events[i-1].at {
			p.at(e.line, "an event at %s after one at %s (write events in the order of time)", e.at, s.events[i-1].at)
		}
		if s.Loop > 0 && e.at+e.last > s.Loop {
			p.at(e.line, "%s ends at %s, after the loop of %s (make the loop longer)", e.do, e.at+e.last, s.Loop)
		}
	}
	if len(s.events) > startLimit {
		p.at(1, "%d events (%d at most)", len(s.events), startLimit)
	}
	p.checkInstances()
	if len(p.errs) == 0 {
		most := s.mostOffered()
		p.checkPods(most)
		p.checkPlugins(most)
	}
}

// checkPlugins sees that a plugin can only leave if it serves something.
func (p *parser) checkPlugins(most map[string]int) {
	for i := range p.s.events {
		if e := &p.s.events[i]; e.resource != "" && most[e.resource] == 0 {
			p.at(e.line, "%v", &unknownWordError{what: "resource of a plugin", word: e.resource, known: slices.Sorted(maps.Keys(most))})
		}
	}
}

func (p *parser) checkCards() {
	s := p.s
	if p.minors != nil && len(p.minors) != len(s.cards) {
		p.at(1, "minors has %d numbers for %d GPUs (give one for each)", len(p.minors), len(s.cards))
		return
	}
	seen := map[int]bool{}
	for i := range s.cards {
		c := &s.cards[i]
		c.minor = i
		if p.minors != nil {
			c.minor = p.minors[i]
		}
		if seen[c.minor] {
			p.at(1, "minor number %d twice (each GPU has its own)", c.minor)
		}
		seen[c.minor] = true
		if c.numa == nil {
			c.numa = []int{i * 2 / max(len(s.cards), 2)}
		}
	}
}

func (p *parser) checkSharing() {
	s := p.s
	devices := s.devicesOffered()
	for i := range s.sharing {
		sh := &s.sharing[i]
		if !slices.Contains(devices, sh.resource) {
			p.at(sh.line, "%v", &unknownWordError{what: "resource to share", word: sh.resource, known: devices})
		}
		for _, g := range sh.gpus {
			if g >= len(s.cards) {
				p.at(sh.line, "GPU %d on a node of %d (numbers begin at 0)", g, len(s.cards))
			}
			for j := range i {
				if s.sharing[j].covers(sh.resource, g) {
					p.at(sh.line, "%s of GPU %d is shared twice (give each entry its own gpus)", sh.resource, g)
				}
			}
		}
		for j := range i {
			if sh.gpus == nil && s.sharing[j].resource == sh.resource {
				p.at(sh.line, "%s is shared twice (give each entry its own gpus)", sh.resource)
			}
		}
	}
}

// checkPods holds the pods against the most that the node ever offers.
func (p *parser) checkPods(most map[string]int) {
	s := p.s
	offered := slices.Sorted(maps.Keys(most))
	copies, starts := 0, 0
	names := map[string]int{}
	for i := range s.pods {
		pod := &s.pods[i]
		if most[pod.resource] == 0 {
			p.at(pod.line, "pod %s asks for %s, which the node never offers (%s)", pod.name, pod.resource, suggest(pod.resource, offered))
		} else if pod.count > most[pod.resource] {
			p.at(pod.line, "pod %s asks for %d of %s, and the node has %d (lower count)", pod.name, pod.count, pod.resource, most[pod.resource])
		}
		p.checkNames(pod, names)
		if slices.Contains(pod.sidecars, pod.container) {
			p.at(pod.line, "container %s twice in pod %s (names must differ)", pod.container, pod.name)
		}
		p.checkTimes(pod)
		copies += pod.copies
		if pod.every > 0 && s.Loop > 0 {
			starts += pod.copies * (int(s.Loop/pod.every) + 1)
		} else {
			starts += pod.copies
		}
	}
	if copies > podLimit || starts > startLimit {
		p.at(1, "%d pods with %d starts (%d and %d at most)", copies, starts, podLimit, startLimit)
	}
}

// checkNames sees that no two pods get one name; generated suffixes differ by chance.
func (p *parser) checkNames(pod *podSpec, names map[string]int) {
	for c := range pod.copies {
		name := pod.namespace + "/" + pod.name
		if pod.copies > 1 && !pod.random && pod.every == 0 {
			name += "-" + strconv.Itoa(c)
		}
		if line, twice := names[name]; twice && line != pod.line {
			p.at(pod.line, "pod %s is already at line %d (names must differ)", name, line)
			return
		}
		names[name] = pod.line
	}
}

func (p *parser) checkTimes(pod *podSpec) {
	end := func(what string, d time.Duration) {
		if p.s.Loop > 0 && d > p.s.Loop {
			p.at(pod.line, "pod %s: %s %s is after the loop of %s (make the loop longer)", pod.name, what, d, p.s.Loop)
		}
	}
	end("start", pod.start)
	end("stop", pod.stop)
	if pod.stop > 0 && pod.stop <= pod.start {
		p.at(pod.line, "pod %s stops at %s but starts at %s (stop must be later)", pod.name, pod.stop, pod.start)
	}
	if pod.every == 0 {
		return
	}
	if p.s.Loop == 0 {
		p.at(pod.line, "pod %s repeats in a story without an end (add loop: 20m)", pod.name)
	}
	end("lifetime", pod.lifeHigh)
	if pod.jitter > pod.every {
		p.at(pod.line, "pod %s: jitter %s is longer than every %s (shorten it)", pod.name, pod.jitter, pod.every)
	}
}

// devicesOffered are the resources of devices that the node ever has, before any
// sharing, sorted.
func (s *Scenario) devicesOffered() []string {
	resources := map[string]bool{}
	add := func(card *cardSpec, slots []slot) {
		if !card.mig {
			resources["nvidia.com/gpu"] = true
		}
		for _, sl := range slots {
			resources[migResource(sl.profile.Name)] = true
		}
	}
	for i := range s.cards {
		add(&s.cards[i], s.cards[i].slots)
	}
	for i := range s.events {
		if e := &s.events[i]; e.do == doRepartition {
			add(&s.cards[e.gpu], e.slots)
		}
	}
	return slices.Sorted(maps.Keys(resources))
}

// mostOffered is the largest number of device ids that each resource ever has.
func (s *Scenario) mostOffered() map[string]int {
	layouts := make([][]slot, len(s.cards))
	for i := range s.cards {
		layouts[i] = s.cards[i].slots
	}
	most := map[string]int{}
	count := func() {
		now := map[string]int{}
		for i := range s.cards {
			for _, u := range s.unitsOf(i, "", layouts[i]) {
				now[u.resource] += max(u.replicas, 1)
			}
		}
		for r, n := range now {
			most[r] = max(most[r], n)
		}
	}
	count()
	for i := range s.events {
		if e := &s.events[i]; e.do == doRepartition {
			layouts[e.gpu] = e.slots
			count()
		}
	}
	return most
}

// unit is one device as the device plugin advertises it.
type unit struct {
	card     int
	uuid     string
	id       string
	resource string
	// replicas is 0 where the device is not shared.
	replicas int
}

// seatID is the kubelet's id of a replica, or of the device where it is not shared.
func (s *Scenario) seatID(u *unit, replica int) string {
	switch {
	case u.replicas == 0:
		return u.id
	case s.gkeIDs:
		return fmt.Sprintf("%s/vgpu%d", u.id, replica)
	default:
		return fmt.Sprintf("%s::%d", u.id, replica)
	}
}

// unitsOf is what the plugin advertises of one card under a layout: nothing of a
// card in MIG mode but its instances.
func (s *Scenario) unitsOf(card int, uuid string, slots []slot) []*unit {
	c := &s.cards[card]
	var units []*unit
	add := func(resource, id, gke string) {
		u := &unit{card: card, uuid: id, id: id, resource: resource}
		if s.gkeIDs {
			u.id = gke
		}
		for i := range s.sharing {
			if sh := &s.sharing[i]; sh.covers(resource, card) {
				u.resource, u.replicas = sh.advertised(), sh.replicas
			}
		}
		units = append(units, u)
	}
	if !c.mig {
		add("nvidia.com/gpu", uuid, fmt.Sprintf("nvidia%d", c.minor))
		return units
	}
	for _, sl := range slots {
		add(migResource(sl.profile.Name), c.migUUID(uuid, sl), fmt.Sprintf("nvidia%d/gi%d", c.minor, c.instance(sl).id))
	}
	return units
}

// migUUID is the same whenever the same instance is made again, as the driver does it.
func (c *cardSpec) migUUID(card string, sl slot) string {
	gi := c.instance(sl)
	if u, given := c.migUUIDs[gi]; given {
		return u
	}
	return "MIG-" + uuidFrom(mix(hashText(card), uint64(gi.id), hashText(gi.profile)))
}
