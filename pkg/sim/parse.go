// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"time"
	"unicode"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"go.yaml.in/yaml/v3"
)

// The limits keep a scenario's timeline small enough to be held whole.
const (
	gpuLimit        = 64
	replicaLimit    = 128
	podLimit        = 1000
	backgroundLimit = 1000
	startLimit      = 5000
)

// Parse reads a scenario. The name is what errors call the file; each error is
// "name:line: what (hint)", and all that could be found come at once.
//
// An unknown key, a model that is neither known nor described, a MIG layout that
// does not fit, a pod that asks for what the node never offers, and times out of
// order are errors. Anchors and aliases of YAML are not part of the language.
func Parse(name string, data []byte) (*Scenario, error) {
	p := &parser{decoder: decoder{file: name}, s: &Scenario{
		Name:      strings.TrimSuffix(path.Base(name), path.Ext(name)),
		Node:      "gpu-node-1",
		driver:    "580.95.05",
		seed:      1,
		processes: true,
	}, kinds: loadKinds(), uuids: map[string]int{}}
	root := p.document(data)
	if root == nil {
		return nil, p.err()
	}
	p.scenario(root)
	if len(p.errs) == 0 {
		p.validate()
	}
	if err := p.err(); err != nil {
		return nil, err
	}
	return p.s, nil
}

type parser struct {
	decoder
	s      *Scenario
	models []*model
	minors []int
	kinds  []loadKind
	// uuids are the lines of those that are given.
	uuids map[string]int
}

func (p *parser) scenario(root *yaml.Node) {
	later := map[string]*yaml.Node{}
	keep := func(key string) func(*yaml.Node) {
		return func(n *yaml.Node) { later[key] = n }
	}
	p.mapping(root, "the scenario", keys{
		"description":     func(n *yaml.Node) { p.s.Description = strings.TrimSpace(p.text(n, "description")) },
		"node":            func(n *yaml.Node) { p.s.Node = p.dnsName(n, "node") },
		"driver":          func(n *yaml.Node) { p.s.driver = p.plain(n, "driver") },
		"seed":            func(n *yaml.Node) { p.s.seed = uint64(p.integer(n, "seed", 0, 1<<31-1)) },
		"loop":            func(n *yaml.Node) { p.s.Loop = p.positive(n, "loop") },
		"device_ids":      func(n *yaml.Node) { p.s.gkeIDs = p.word(n, "device_ids", "nvidia", "gke") == "gke" },
		"background_pods": func(n *yaml.Node) { p.s.background = p.integer(n, "background_pods", 0, backgroundLimit) },
		"processes":       func(n *yaml.Node) { p.s.processes = p.boolean(n, "processes") },
		"fields":          func(n *yaml.Node) { p.s.fields = p.overrides(n) },
		"minors": func(n *yaml.Node) {
			p.minors = []int{}
			p.list(n, "minors", func(c *yaml.Node) { p.minors = append(p.minors, p.integer(c, "minors", 0, 255)) })
		},
		"models":  keep("models"),
		"gpus":    keep("gpus"),
		"sharing": keep("sharing"),
		"pods":    keep("pods"),
		"events":  keep("events"),
	})
	// The sections in the order in which they refer to each other.
	for _, m := range builtinModels() {
		p.models = append(p.models, &m)
	}
	for _, section := range []struct {
		key  string
		read func(*yaml.Node)
	}{
		{"models", p.model}, {"gpus", p.card}, {"sharing", p.share}, {"pods", p.pod}, {"events", p.event},
	} {
		if n := later[section.key]; n != nil {
			p.list(n, section.key, section.read)
		} else if section.key == "gpus" {
			p.at(root.Line, "no gpus (add gpus: [{model: H100-80, count: 8}])")
		}
	}
}

func (p *parser) positive(n *yaml.Node, what string) time.Duration {
	d := p.duration(n, what)
	if d <= 0 && n.Value != "" {
		p.at(n.Line, "%s must be longer than zero (write a time such as 90s)", what)
	}
	return d
}

// plain is a text that can stand in a line of output: printable and of one line.
func (p *parser) plain(n *yaml.Node, what string) string {
	s := p.text(n, what)
	if len(s) > 200 || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		p.at(n.Line, "%s %q is not plain text (printable characters, 200 bytes at most)", what, s)
		return ""
	}
	return s
}

// dnsName is a name that Kubernetes would accept.
func (p *parser) dnsName(n *yaml.Node, what string) string {
	s := p.text(n, what)
	ok := s != "" && len(s) <= 63
	for i, c := range []byte(s) {
		alnum := 'a' <= c && c <= 'z' || '0' <= c && c <= '9'
		if !alnum && (c != '-' && c != '.' || i == 0 || i == len(s)-1) {
			ok = false
		}
	}
	if !ok {
		p.at(n.Line, "%s %q is not a Kubernetes name (lower-case letters, digits, - and . within, 63 at most)", what, s)
	}
	return s
}

func (p *parser) model(n *yaml.Node) {
	m := &model{}
	p.mapping(n, "models", keys{
		"name":         func(n *yaml.Node) { m.key = p.plain(n, "name") },
		"memory_mib":   func(n *yaml.Node) { m.memoryMiB = p.integer(n, "memory_mib", 1024, 1<<24) },
		"power_limit":  func(n *yaml.Node) { m.powerLimit = p.number(n, "power_limit") },
		"idle_power":   func(n *yaml.Node) { m.idle = p.number(n, "idle_power") },
		"sm_clock":     func(n *yaml.Node) { m.smClock = p.integer(n, "sm_clock", 1, 100000) },
		"memory_clock": func(n *yaml.Node) { m.memClock = p.integer(n, "memory_clock", 1, 100000) },
		"sms":          func(n *yaml.Node) { m.sms = p.integer(n, "sms", 1, 10000) },
		"nvlink": func(n *yaml.Node) {
			if p.boolean(n, "nvlink") {
				m.nvlinks = usualLinks
			}
		},
		"reserved_mib":  func(n *yaml.Node) { m.reservedMiB = p.integer(n, "reserved_mib", 0, 8192) },
		"idle_sm_clock": func(n *yaml.Node) { m.idleClock = p.integer(n, "idle_sm_clock", 1, 100000) },
	})
	m.product = m.key
	for _, need := range []struct {
		key     string
		missing bool
	}{
		{"name", m.key == ""}, {"memory_mib", m.memoryMiB == 0}, {"power_limit", m.powerLimit <= 0},
		{"sm_clock", m.smClock == 0}, {"memory_clock", m.memClock == 0},
	} {
		if need.missing {
			p.at(n.Line, "a model without %s (give name, memory_mib, power_limit, sm_clock and memory_clock)", need.key)
			return
		}
	}
	if m.idle <= 0 {
		m.idle = m.powerLimit / 10
	}
	if m.idle > m.powerLimit || m.reservedMiB >= m.memoryMiB {
		p.at(n.Line, "model %q is idle above its limit or reserves all its memory", m.key)
	}
	if m.idleClock == 0 {
		m.idleClock = min(210, m.smClock)
	}
	p.models = append(p.models, m)
}

func (p *parser) card(n *yaml.Node) {
	var (
		c      = cardSpec{line: n.Line, minor: -1}
		count  = 1
		layout []string
		mig    *yaml.Node
		uuids  *yaml.Node
	)
	p.mapping(n, "gpus", keys{
		"uuid":      func(n *yaml.Node) { c.uuid = p.uuid(n, "uuid", "GPU-") },
		"mig_uuids": func(n *yaml.Node) { uuids = n },
		"model":     func(n *yaml.Node) { c.model = p.findModel(n) },
		"count":     func(n *yaml.Node) { count = p.integer(n, "count", 1, gpuLimit) },
		"mig":       func(n *yaml.Node) { mig, c.mig, layout = n, true, p.texts(n, "mig") },
		"lost":      func(n *yaml.Node) { c.lost = p.boolean(n, "lost") },
		"numa": func(n *yaml.Node) {
			p.list(n, "numa", func(e *yaml.Node) { c.numa = append(c.numa, p.integer(e, "numa", 0, 63)) })
		},
		"fields": func(n *yaml.Node) { c.fields = p.overrides(n) },
	})
	if c.model == nil {
		if len(p.errs) == 0 {
			p.at(n.Line, "gpus without a model (known: %s)", strings.Join(Models(), ", "))
		}
		return
	}
	if mig != nil {
		slots, err := c.model.place(layout)
		if err != nil {
			p.layoutError(mig, c.model, err)
		}
		c.slots = slots
	}
	if uuids != nil {
		c.migUUIDs = p.migUUIDs(uuids, &c, len(layout))
	}
	if count > 1 && (c.uuid != "" || uuids != nil) {
		p.at(n.Line, "the uuids of one GPU for %d (leave count out, and write an entry for each GPU)", count)
	}
	for range count {
		p.s.cards = append(p.s.cards, c)
	}
}

// migUUIDs are the UUIDs of a card's first MIG devices, in the order of its layout as
// written, of so many entries.
func (p *parser) migUUIDs(n *yaml.Node, c *cardSpec, entries int) map[instance]string {
	var given []string
	p.list(n, "mig_uuids", func(e *yaml.Node) { given = append(given, p.uuid(e, "mig_uuids", "MIG-")) })
	if len(given) != entries {
		p.at(n.Line, "%d mig_uuids for %d instances in mig (give one for each, in the same order)", len(given), entries)
		return nil
	}
	out := map[instance]string{}
	for _, sl := range c.slots {
		out[c.instance(sl)] = given[sl.entry]
	}
	return out
}

// uuid is a driver's name of a device, which no other device of the node has.
func (p *parser) uuid(n *yaml.Node, key, prefix string) string {
	u := p.plain(n, key)
	line, twice := p.uuids[u]
	switch {
	case !strings.HasPrefix(u, prefix) || len(u) == len(prefix):
		p.at(n.Line, "%s %q (want %sxxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx)", key, u, prefix)
	case twice:
		p.at(n.Line, "%s %s is already at line %d (each device has its own)", key, u, line)
	default:
		p.uuids[u] = n.Line
	}
	return u
}

func (p *parser) layoutError(n *yaml.Node, m *model, err error) {
	if unknown := (*unknownWordError)(nil); errors.As(err, &unknown) {
		p.at(n.Line, "%v", err)
		return
	}
	hint := "this model has no MIG"
	if len(m.profiles) > 0 {
		hint = fmt.Sprintf("%d compute and %d memory slices in all; known: %s",
			m.capacity.Compute, m.capacity.Memory, strings.Join(m.profileNames(), ", "))
	}
	p.at(n.Line, "%v (%s)", err, hint)
}

func (p *parser) findModel(n *yaml.Node) *model {
	word := p.text(n, "model")
	names := make([]string, len(p.models))
	// The scenario's own models come last and win.
	for i := len(p.models) - 1; i >= 0; i-- {
		if names[i] = p.models[i].key; p.models[i].is(word) {
			return p.models[i]
		}
	}
	p.at(n.Line, "%v", &unknownWordError{what: "model", word: word, known: names})
	return nil
}

func (p *parser) share(n *yaml.Node) {
	s := sharingSpec{line: n.Line, resource: "nvidia.com/gpu", strategy: "time-slicing"}
	p.mapping(n, "sharing", keys{
		"resource": func(n *yaml.Node) { s.resource = p.plain(n, "resource") },
		"replicas": func(n *yaml.Node) { s.replicas = p.integer(n, "replicas", 2, replicaLimit) },
		"rename":   func(n *yaml.Node) { s.rename = p.boolean(n, "rename") },
		"strategy": func(n *yaml.Node) { s.strategy = p.word(n, "strategy", "time-slicing", "mps") },
		"gpus":     func(n *yaml.Node) { s.gpus = p.indices(n, "gpus") },
	})
	if s.replicas == 0 {
		p.at(n.Line, "sharing without replicas (add replicas: 4)")
	}
	p.s.sharing = append(p.s.sharing, s)
}

// overrides are the fields whose values the scenario dictates.
func (p *parser) overrides(n *yaml.Node) map[gpu.FieldID]function {
	out := map[gpu.FieldID]function{}
	if n.Kind != yaml.MappingNode {
		p.at(n.Line, "fields must be a mapping (write DCGM_FI_DEV_GPU_TEMP: {constant: 60})")
		return out
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		field, ok := gpu.FieldByName(key.Value)
		if !ok {
			p.at(key.Line, "%v", &unknownWordError{what: "field", word: key.Value, known: fieldNames()})
			continue
		}
		if _, twice := out[field.ID]; twice {
			p.at(key.Line, "field %s twice (keep one)", field.Name)
		}
		f := p.function(value, field.Name)
		if field.Type == gpu.FieldText && f.numeric() {
			p.at(value.Line, "%s is a text (write {text: …})", field.Name)
		}
		out[field.ID] = f
	}
	return out
}

func fieldNames() []string {
	var names []string
	for _, f := range gpu.Fields() {
		if f.Type != gpu.FieldUnknown {
			names = append(append(names, f.Name), f.Aliases...)
		}
	}
	return names
}
