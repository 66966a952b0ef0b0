// SPDX-License-Identifier: Apache-2.0

package prices

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/shopspring/decimal"
	"go.yaml.in/yaml/v3"
)

// parser fills a Book.
type parser struct {
	reader
	book *Book
	// names has the line of each.
	names map[string]int
}

// Parse reads a price book. The error has all problems, each a *ProblemError with its line. The text is as in
// etc/prices.example.yaml, and name is the file's, for the problems.
func Parse(name string, data []byte) (*Book, error) {
	p := &parser{reader: reader{file: name}, names: map[string]int{}, book: &Book{
		decimals: -1, zone: time.UTC, idle: IdlePlatform, stacking: StackCompound,
	}}
	root := p.document(data)
	if root == nil {
		return nil, p.err()
	}
	p.head(root)
	// The rest of the file is read by what its head says: dates by the zone.
	p.fields(root, "a price book", p.sections())
	if p.book.name == "" {
		p.fault(0, "name is missing: it names the book on each bill")
	}
	if len(p.book.entries) == 0 {
		p.fault(0, "prices is missing: a book without a price prices nothing")
	}
	p.settle()
	if err := p.err(); err != nil {
		return nil, err
	}
	p.book.version = p.book.hash()
	return p.book, nil
}

// head reads the zone before anything that depends on it.
func (p *parser) head(root *yaml.Node) {
	if root.Kind != yaml.MappingNode {
		return
	}
	for i := 0; i+1 < len(root.Content); i += 2 {
		if root.Content[i].Value != "time_zone" {
			continue
		}
		value := root.Content[i+1]
		zone, err := time.LoadLocation(value.Value)
		if err != nil || value.Value == "" || value.Value == "Local" {
			p.fault(value.Line, "time_zone is to be a zone such as Europe/Berlin or UTC, and is %s", kindOf(value))
			continue
		}
		p.book.zone = zone
	}
}

// sections are the keys of the whole document.
func (p *parser) sections() map[string]func(*yaml.Node) {
	b := p.book
	return map[string]func(*yaml.Node){
		"format": func(n *yaml.Node) {
			if n.Value != "1" {
				p.fault(n.Line, "format is to be 1, and is %s: this program reads no other", kindOf(n))
			}
		},
		"name":      func(n *yaml.Node) { b.name = p.text(n, "name") },
		"time_zone": func(*yaml.Node) {},
		"currency":  p.currency,
		"decimals":  p.decimals,
		"idle": func(n *yaml.Node) {
			b.idle = IdlePolicy(p.oneOf(n, "idle", string(IdlePlatform), string(IdleSpread), string(IdleSoleTenant)))
		},
		"stacking": func(n *yaml.Node) {
			b.stacking = Stacking(p.oneOf(n, "stacking", string(StackCompound), string(StackAdd)))
		},
		"prices":     func(n *yaml.Node) { p.list(n, "prices", p.price) },
		"namespaces": func(n *yaml.Node) { p.list(n, "namespaces", p.rule) },
		"discounts":  func(n *yaml.Node) { p.list(n, "discounts", p.discount) },
		"quotas":     func(n *yaml.Node) { p.list(n, "quotas", p.quota) },
	}
}

func (p *parser) currency(n *yaml.Node) {
	code := p.text(n, "currency")
	decimals, ok := currencyDecimals(code)
	if !ok && code != "" {
		p.fault(n.Line, "currency is to be a code of ISO 4217 such as EUR, and is %q", code)
	}
	p.book.currency = code
	if p.book.decimals < 0 {
		p.book.decimals = decimals
	}
}

func (p *parser) decimals(n *yaml.Node) {
	const most = 6
	if n.Kind != yaml.ScalarNode || len(n.Value) != 1 || n.Value[0] < '0' || n.Value[0] > '0'+most {
		p.fault(n.Line, "decimals is to be a number from 0 to %d, and is %s", most, kindOf(n))
		return
	}
	p.book.decimals = int32(n.Value[0] - '0')
}

// entry reads what all entries have, and what is more by extra. name is a word for an entry without a name.
func (p *parser) entry(n *yaml.Node, list string, count int, scoped bool, extra map[string]func(*yaml.Node)) entry {
	e := entry{name: fmt.Sprintf("%s[%d]", list, count), line: n.Line}
	known := map[string]func(*yaml.Node){
		"name":        func(n *yaml.Node) { e.name = p.text(n, "name") },
		"valid_from":  func(n *yaml.Node) { e.from = p.moment(n, "valid_from", p.book.zone) },
		"valid_to":    func(n *yaml.Node) { e.to = p.moment(n, "valid_to", p.book.zone) },
		"model":       func(n *yaml.Node) { e.model = newPattern(p.text(n, "model")) },
		"resource":    func(n *yaml.Node) { e.resource = newPattern(p.text(n, "resource")) },
		"profile":     func(n *yaml.Node) { e.profile = newPattern(p.text(n, "profile")) },
		"mode":        func(n *yaml.Node) { e.mode = newPattern(p.oneOf(n, "mode", modes()...)) },
		"node":        func(n *yaml.Node) { e.node = newPattern(p.text(n, "node")) },
		"cluster":     func(n *yaml.Node) { e.cluster = newPattern(p.text(n, "cluster")) },
		"node_labels": func(n *yaml.Node) { e.nodeLabels = p.labels(n, "node_labels") },
		"spot": func(n *yaml.Node) {
			if e.spot = p.flag(n, "spot"); !e.spot {
				p.fault(n.Line, "spot: false says nothing: an entry without spot is for all nodes, and one with spot goes before it")
			}
		},
	}
	if scoped {
		known["namespace"] = func(n *yaml.Node) { e.namespace = newPattern(p.text(n, "namespace")) }
		known["namespace_labels"] = func(n *yaml.Node) { e.namespaceLabels = p.labels(n, "namespace_labels") }
	}
	maps.Copy(known, extra)
	p.fields(n, "an entry of "+list, known)
	if line, taken := p.names[e.name]; taken {
		p.fault(e.line, "the name %q is taken by line %d: give each entry its own", e.name, line)
	}
	p.names[e.name] = e.line
	if !e.from.IsZero() && !e.to.IsZero() && !e.from.Before(e.to) {
		p.fault(e.line, "%s: valid_to is not after valid_from, so it is never valid", e.name)
	}
	e.ranked = e.rank()
	return e
}

// modes are those of sharing.Mode.
func modes() []string { return []string{"exclusive", "mig", "shared", "mig-shared"} }

// price reads an entry of prices, and one more for each of its profiles.
func (p *parser) price(n *yaml.Node) {
	var amounts int
	var amount decimal.Decimal
	var ends bool
	var profiles *yaml.Node
	e := p.entry(n, "prices", p.count(p.book.entries), false, map[string]func(*yaml.Node){
		"price": func(n *yaml.Node) {
			amount, amounts = p.positive(n, "price", "\"free: true\" where it costs nothing"), amounts+1
		},
		"free": func(n *yaml.Node) {
			if p.flag(n, "free") {
				amounts++
			}
		},
		"ends":     func(n *yaml.Node) { ends = p.flag(n, "ends") },
		"profiles": func(n *yaml.Node) { profiles = n },
	})
	if amounts != 1 {
		p.fault(e.line, "%s: give either price, or \"free: true\" where it costs nothing", e.name)
	}
	if !e.model.given() {
		p.fault(e.line, "%s: model is missing: \"*\" is every model", e.name)
	}
	e.amount, e.ends = amount, ends
	p.book.entries = append(p.book.entries, e)
	if profiles == nil {
		return
	}
	if e.profile.given() {
		p.fault(profiles.Line, "%s: it has profile already, and cannot have profiles beside it", e.name)
	}
	p.profiles(profiles, e)
}

// count is the number of the next entry in the file: those that came of profiles are not counted.
func (p *parser) count(list []entry) int {
	lines := map[int]bool{}
	for i := range list {
		lines[list[i].line] = true
	}
	return len(lines) + 1
}

func (p *parser) profiles(n *yaml.Node, of entry) {
	if n.Kind != yaml.MappingNode {
		p.fault(n.Line, "profiles is to be a mapping of profiles to prices, and is %s", kindOf(n))
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name := p.text(n.Content[i], "a profile")
		if name == "" {
			continue
		}
		if seen[name] {
			p.fault(n.Content[i].Line, "profiles has %q twice", name)
		}
		seen[name] = true
		e := of
		e.profile, e.name, e.line = newPattern(name), of.name+"/"+name, n.Content[i].Line
		e.amount = p.positive(n.Content[i+1], "the price of "+name, "an entry of its own with \"free: true\" where it costs nothing")
		e.ranked = e.rank()
		p.book.entries = append(p.book.entries, e)
	}
}

// positive is a number above 0: a 0 is too easily left over from a template.
func (p *parser) positive(n *yaml.Node, what, instead string) decimal.Decimal {
	problems := len(p.problems)
	d := p.number(n, what)
	if len(p.problems) == problems && d.IsZero() {
		p.fault(n.Line, "%s is 0: write %s", what, instead)
	}
	return d
}

// rule reads an entry of namespaces.
func (p *parser) rule(n *yaml.Node) {
	var amounts int
	var amount decimal.Decimal
	var absolute bool
	e := p.entry(n, "namespaces", len(p.book.rules)+1, true, map[string]func(*yaml.Node){
		"price": func(n *yaml.Node) {
			amount, absolute, amounts = p.positive(n, "price", "\"free: true\" where it costs nothing"), true, amounts+1
		},
		"multiplier": func(n *yaml.Node) {
			amount, amounts = p.positive(n, "multiplier", "\"free: true\" where it costs nothing"), amounts+1
		},
		"free": func(n *yaml.Node) {
			if p.flag(n, "free") {
				absolute, amounts = true, amounts+1
			}
		},
	})
	if amounts != 1 {
		p.fault(e.line, "%s: give one of price, multiplier, \"free: true\"", e.name)
	}
	p.wantNamespace(e)
	e.amount, e.absolute = amount, absolute
	p.book.rules = append(p.book.rules, e)
}

func (p *parser) wantNamespace(e entry) {
	if !e.namespace.given() && len(e.namespaceLabels) == 0 {
		p.fault(e.line, "%s: namespace or namespace_labels is missing: \"*\" is every namespace", e.name)
	}
}

// discount reads an entry of discounts.
func (p *parser) discount(n *yaml.Node) {
	var percent decimal.Decimal
	e := p.entry(n, "discounts", len(p.book.discounts)+1, true, map[string]func(*yaml.Node){
		"percent": func(n *yaml.Node) {
			percent = p.positive(n, "percent", "no discount where there is none")
			if percent.GreaterThan(decimal.NewFromInt(100)) {
				p.fault(n.Line, "percent is above 100: that would pay for using it")
			}
		},
	})
	if percent.IsZero() {
		p.fault(e.line, "%s: percent is missing", e.name)
	}
	e.amount = percent
	p.book.discounts = append(p.book.discounts, e)
}

// quota reads an entry of quotas.
func (p *parser) quota(n *yaml.Node) {
	per, shared := PerMonth, false
	var hours decimal.Decimal
	e := p.entry(n, "quotas", len(p.book.quotas)+1, true, map[string]func(*yaml.Node){
		"gpu_hours": func(n *yaml.Node) { hours = p.positive(n, "gpu_hours", "no quota where there is none") },
		"per":       func(n *yaml.Node) { per = Period(p.oneOf(n, "per", string(PerMonth), string(PerDay))) },
		"shared":    func(n *yaml.Node) { shared = p.flag(n, "shared") },
	})
	if hours.IsZero() {
		p.fault(e.line, "%s: gpu_hours is missing", e.name)
	}
	if hours.Exponent() < -6 {
		p.fault(e.line, "%s: gpu_hours has more than 6 decimals", e.name)
	}
	p.wantNamespace(e)
	e.amount, e.per, e.shared = hours, per, shared
	p.book.quotas = append(p.book.quotas, e)
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// settle checks the entries against each other and puts them in order.
func (p *parser) settle() {
	if p.book.currency == "" && !p.toldOf("currency") {
		p.fault(0, "currency is missing: a code of ISO 4217 such as EUR")
	}
	for _, list := range [][]entry{p.book.entries, p.book.rules} {
		slices.SortFunc(list, bySpecificity)
		p.overlaps(list)
	}
	p.holes(p.book.entries)
	for _, list := range [][]entry{p.book.entries, p.book.rules, p.book.discounts, p.book.quotas} {
		for i := range list {
			if why := list[i].contradiction(); why != "" {
				p.book.warnings = append(p.book.warnings, Problem{File: p.file, Line: list[i].line, Text: list[i].name + ": nothing can match it: " + why})
			}
		}
	}
	slices.SortStableFunc(p.book.warnings, func(a, b Problem) int { return a.Line - b.Line })
}

func (p *parser) toldOf(what string) bool {
	return slices.ContainsFunc(p.problems, func(problem Problem) bool { return strings.HasPrefix(problem.Text, what) })
}
