// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"strconv"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"go.yaml.in/yaml/v3"
)

// function reads a function of time: a number, the words blank and not_supported,
// or a mapping of one shape.
func (p *parser) function(n *yaml.Node, what string) function {
	if n.Kind == yaml.ScalarNode {
		switch n.Value {
		case "blank":
			return function{shape: shapeAbsent, reason: gpu.ReasonBlank}
		case "not_supported":
			return function{shape: shapeAbsent, reason: gpu.ReasonNotSupported}
		}
		return function{shape: shapeConstant, a: p.number(n, what)}
	}
	f, shapes := function{}, 0
	shaped := func(s shape, a, b, period string) func(*yaml.Node) {
		return func(n *yaml.Node) {
			f, shapes = p.shaped(n, s, a, b, period), shapes+1
		}
	}
	p.mapping(n, what, keys{
		"constant": func(n *yaml.Node) { f, shapes = function{a: p.number(n, "constant")}, shapes+1 },
		"text":     func(n *yaml.Node) { f, shapes = function{shape: shapeText, text: p.text(n, "text")}, shapes+1 },
		"sine":     shaped(shapeSine, "mean", "amplitude", "period"),
		"noise":    shaped(shapeNoise, "mean", "amplitude", "period"),
		"ramp":     shaped(shapeRamp, "from", "to", "over"),
		"saw":      shaped(shapeSaw, "from", "to", "period"),
		"square":   shaped(shapeSquare, "high", "low", "period"),
		"counter":  shaped(shapeCounter, "start", "rate", ""),
	})
	if shapes != 1 {
		p.at(n.Line, "%s needs one function (constant, sine, noise, ramp, saw, square, counter, text, blank, not_supported)", what)
	}
	return f
}

func (p *parser) shaped(n *yaml.Node, s shape, a, b, period string) function {
	f := function{shape: s, duty: 0.5, seed: hashText(strconv.Itoa(n.Line))}
	known := keys{
		a: func(n *yaml.Node) { f.a = p.number(n, a) },
		b: func(n *yaml.Node) { f.b = p.number(n, b) },
	}
	if period != "" {
		f.period = 60
		known[period] = func(n *yaml.Node) { f.period = p.positive(n, period).Seconds() }
	}
	p.mapping(n, "the function", known)
	if period != "" && f.period <= 0 {
		f.period = 60
	}
	if s == shapeCounter && f.b < 0 {
		p.at(n.Line, "a counter cannot fall (rate must not be negative)")
	}
	return f
}

func (p *parser) pod(n *yaml.Node) {
	s := podSpec{
		line: n.Line, namespace: "default", container: "main", resource: "nvidia.com/gpu",
		copies: 1, count: 1, level: 1, memory: -1, labels: map[string]string{},
	}
	p.mapping(n, "pods", keys{
		"name":      func(n *yaml.Node) { s.name = p.dnsName(n, "name") },
		"namespace": func(n *yaml.Node) { s.namespace = p.dnsName(n, "namespace") },
		"container": func(n *yaml.Node) { s.container = p.dnsName(n, "container") },
		"sidecars": func(n *yaml.Node) {
			p.list(n, "sidecars", func(c *yaml.Node) { s.sidecars = append(s.sidecars, p.dnsName(c, "sidecars")) })
		},
		"labels": func(n *yaml.Node) {
			if n.Kind != yaml.MappingNode {
				p.at(n.Line, "labels must be a mapping (write app: chat)")
				return
			}
			for i := 0; i+1 < len(n.Content); i += 2 {
				s.labels[n.Content[i].Value] = p.text(n.Content[i+1], "labels")
			}
		},
		"resource": func(n *yaml.Node) { s.resource = p.plain(n, "resource") },
		"count":    func(n *yaml.Node) { s.count = p.integer(n, "count", 1, 1024) },
		"copies":   func(n *yaml.Node) { s.copies = p.integer(n, "copies", 1, podLimit) },
		"suffix":   func(n *yaml.Node) { s.random = p.word(n, "suffix", "index", "random") == "random" },
		"start":    func(n *yaml.Node) { s.start = p.duration(n, "start") },
		"stop":     func(n *yaml.Node) { s.stop = p.positive(n, "stop") },
		"repeat":   func(n *yaml.Node) { p.repeat(n, &s) },
		"load":     func(n *yaml.Node) { p.load(n, &s) },
		"process":  func(n *yaml.Node) { s.process = p.plain(n, "process") },
	})
	if s.name == "" {
		p.at(n.Line, "a pod without a name")
	}
	if s.kind == nil {
		s.kind = p.kind("train")
	}
	if s.memory < 0 {
		s.memory = s.kind.memory
	}
	if s.process == "" {
		s.process = s.kind.process
	}
	p.s.pods = append(p.s.pods, s)
}

func (p *parser) repeat(n *yaml.Node, s *podSpec) {
	p.mapping(n, "repeat", keys{
		"every":    func(n *yaml.Node) { s.every = p.positive(n, "every") },
		"lifetime": func(n *yaml.Node) { s.lifeLow, s.lifeHigh = p.durations(n, "lifetime") },
		"jitter":   func(n *yaml.Node) { s.jitter = p.duration(n, "jitter") },
	})
	if s.every < time.Second || s.lifeLow < time.Second {
		p.at(n.Line, "repeat needs every and lifetime, a second or more each (write repeat: {every: 4m, lifetime: 1m..3m})")
	}
}

// load is a kind's name, or a mapping with shape, level and memory.
func (p *parser) load(n *yaml.Node, s *podSpec) {
	var known []string
	for _, k := range p.kinds {
		known = append(known, k.name)
	}
	if n.Kind == yaml.ScalarNode {
		s.kind = p.kind(p.word(n, "load", known...))
		return
	}
	ratio := func(n *yaml.Node, what string) float64 {
		v := p.number(n, what)
		if v < 0 || v > 1 {
			p.at(n.Line, "%s must be from 0 to 1, not %s", what, n.Value)
			return 1
		}
		return v
	}
	p.mapping(n, "load", keys{
		"shape":  func(n *yaml.Node) { s.kind = p.kind(p.word(n, "shape", known...)) },
		"level":  func(n *yaml.Node) { s.level = ratio(n, "level") },
		"memory": func(n *yaml.Node) { s.memory = ratio(n, "memory") },
	})
}

func (p *parser) kind(name string) *loadKind {
	for i := range p.kinds {
		if p.kinds[i].name == name {
			return &p.kinds[i]
		}
	}
	return nil
}

// event reads one event: at, do, and what the verb takes.
func (p *parser) event(n *yaml.Node) {
	e := eventSpec{line: n.Line, gpu: -1, instance: gpu.NoInstance, replica: -1, count: 1, code: -1, link: -1, result: gpu.HealthFail}
	var layout *yaml.Node
	given := map[string]int{}
	note := func(key string, read func(*yaml.Node)) func(*yaml.Node) {
		return func(n *yaml.Node) { given[key] = n.Line; read(n) }
	}
	p.mapping(n, "events", keys{
		"at": note("at", func(n *yaml.Node) { e.at = p.duration(n, "at") }),
		"do": func(n *yaml.Node) {
			var verbs []string
			for _, v := range eventVerbs() {
				verbs = append(verbs, v.name)
			}
			e.do = p.word(n, "event", verbs...)
		},
		"for":      note("for", func(n *yaml.Node) { e.last = p.positive(n, "for") }),
		"gpu":      note("gpu", func(n *yaml.Node) { e.gpu = p.integer(n, "gpu", 0, gpuLimit) }),
		"code":     note("code", func(n *yaml.Node) { e.code = p.integer(n, "code", 1, 999) }),
		"instance": note("instance", func(n *yaml.Node) { e.instance = p.integer(n, "instance", 0, 255) }),
		"count":    note("count", func(n *yaml.Node) { e.count = p.integer(n, "count", 1, 10000) }),
		"replica":  note("replica", func(n *yaml.Node) { e.replica = p.integer(n, "replica", 0, replicaLimit) }),
		"delay":    note("delay", func(n *yaml.Node) { e.delay = p.positive(n, "delay") }),
		"resource": note("resource", func(n *yaml.Node) { e.resource = p.plain(n, "resource") }),
		"layout":   note("layout", func(n *yaml.Node) { layout = n }),
		"action":   note("action", func(n *yaml.Node) { e.word = p.word(n, "action", actionWords()...) }),
		"state":    note("state", func(n *yaml.Node) { e.word = p.word(n, "state", statePending, stateFailed) }),
		"reason":   note("reason", func(n *yaml.Node) { e.word = p.word(n, "reason", slowdownWords()...) }),
		"system":   note("system", func(n *yaml.Node) { e.word = p.word(n, "system", systemWords()...) }),
		"result":   note("result", func(n *yaml.Node) { e.result = resultOf(p.word(n, "result", resultWarn, resultFail)) }),
		"link":     note("link", func(n *yaml.Node) { e.link = p.integer(n, "link", 0, linkLimit-1) }),
	})
	if len(p.errs) > 0 {
		return
	}
	p.checkVerb(&e, given)
	if e.gpu >= len(p.s.cards) {
		p.at(given["gpu"], "GPU %d on a node of %d (numbers begin at 0)", e.gpu, len(p.s.cards))
		return
	}
	if layout != nil && e.gpu >= 0 {
		card := &p.s.cards[e.gpu]
		slots, err := card.model.place(p.texts(layout, "layout"))
		switch {
		case err != nil:
			p.layoutError(layout, card.model, err)
		case !card.mig:
			p.at(layout.Line, "GPU %d is not in MIG mode (give it mig: [] in gpus)", e.gpu)
		}
		e.slots = slots
	}
	p.s.events = append(p.s.events, e)
}
