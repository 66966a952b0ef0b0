// SPDX-License-Identifier: Apache-2.0

package app

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/gpumeter/gpumeter/pkg/deviceplugin"
)

// addReaders adds a reader for each key that a config file can have, those of GPU feature discovery
// included, which reads the same file.
func (p *fileParser) addReaders() {
	p.readers["version"] = p.version
	for _, path := range []string{"flags", "flags.plugin", "flags.gfd", "resources", "sharing", "imex"} {
		p.readers[path] = func(at string, n *yaml.Node) { p.mapping(path, at, n) }
	}
	for _, o := range options() {
		if o.key != "" {
			p.readers[o.key] = p.option(o)
		}
	}
	p.addNameRules("resources.gpus", &p.file.gpuNames)
	p.addNameRules("resources.mig", &p.file.migNames)
	p.addSharing("sharing.timeSlicing", &p.file.timeSlicing)
	p.addSharing("sharing.mps", &p.file.mps)
	p.addDiscovery()
}

func (p *fileParser) version(path string, n *yaml.Node) {
	if word, ok := p.word(path, n); ok && word != "v1" && word != "" {
		p.at(n, "unknown version %q (this program reads v1)", word)
	}
}

// option reads the value of one of the options.
func (p *fileParser) option(o option) reader {
	return func(path string, n *yaml.Node) {
		var g given
		switch o.form {
		case boolean:
			var ok bool
			if g, ok = p.boolean(path, n); !ok {
				return
			}
		case list:
			value, ok := p.words(path, n)
			if !ok {
				return
			}
			g = given{value, p.place(n)}
		default:
			word, ok := p.word(path, n)
			if !ok || word == "" {
				return
			}
			g = given{[]string{word}, p.place(n)}
		}
		if err := o.check(g.value); err != nil {
			p.at(n, "%s: %v", path, err)
			return
		}
		p.file.values[o.key] = g
	}
}

// words are one word or a list of them.
func (p *fileParser) words(path string, n *yaml.Node) ([]string, bool) {
	if r := resolved(n); r != nil && r.Kind == yaml.ScalarNode {
		if r.Value == "" {
			return nil, false
		}
		return []string{r.Value}, true
	}
	out, good := []string{}, true
	present := p.rows(path, n, func(at string, row *yaml.Node) {
		word, ok := p.word(at, row)
		if !ok || word == "" {
			p.at(row, "%s is empty", at)
			good = false
			return
		}
		out = append(out, word)
	})
	return out, present && good
}

// addNameRules adds the readers of a list of patterns with names.
func (p *fileParser) addNameRules(path string, to *[]deviceplugin.NameRule) {
	var rule deviceplugin.NameRule
	p.readers[path+"[].pattern"] = func(at string, n *yaml.Node) { rule.Pattern, _ = p.word(at, n) }
	p.readers[path+"[].name"] = func(at string, n *yaml.Node) { rule.Name, _ = p.word(at, n) }
	p.readers[path] = func(at string, n *yaml.Node) {
		p.rows(at, n, func(at string, row *yaml.Node) {
			rule = deviceplugin.NameRule{}
			p.mapping(path+"[]", at, row)
			if rule.Pattern == "" || rule.Name == "" {
				p.at(row, "%s needs pattern and name", at)
				return
			}
			name, err := deviceplugin.FullName(rule.Name)
			if err != nil {
				p.at(row, "%s.name: %v", at, err)
				return
			}
			*to = append(*to, deviceplugin.NameRule{Pattern: rule.Pattern, Name: name})
		})
	}
}

// addDiscovery adds the keys of GPU feature discovery, which have no meaning here.
func (p *fileParser) addDiscovery() {
	flag := func(path string, n *yaml.Node) { p.boolean(path, n) }
	word := func(path string, n *yaml.Node) { p.word(path, n) }
	p.readers["flags.useNodeFeatureAPI"] = flag
	p.readers["flags.gfd.oneshot"] = flag
	p.readers["flags.gfd.noTimestamp"] = flag
	p.readers["flags.gfd.outputFile"] = word
	p.readers["flags.gfd.machineTypeFile"] = word
	p.readers["flags.gfd.sleepInterval"] = func(path string, n *yaml.Node) {
		interval, ok := p.word(path, n)
		if !ok || interval == "" || interval == "infinite" {
			return
		}
		if _, err := strconv.ParseInt(interval, 10, 64); err == nil {
			return
		}
		if _, err := time.ParseDuration(interval); err != nil {
			p.at(n, `%s is %q (write a duration such as 60s, nanoseconds or infinite)`, path, interval)
		}
	}
}

// remedy is what to do about a key that is not known under a schema path.
func (p *fileParser) remedy(schema, key string) string {
	var here, elsewhere []string
	for path := range p.readers {
		parent, name := split(path)
		if parent == schema {
			here = append(here, name)
		} else if folded(name) == folded(key) && !strings.Contains(path, "[]") {
			elsewhere = append(elsewhere, path)
		}
	}
	slices.Sort(here)
	slices.Sort(elsewhere)
	if near, ok := nearest(key, here); ok && (folded(near) == folded(key) || len(elsewhere) == 0) {
		return fmt.Sprintf("did you mean %s?", near)
	}
	if len(elsewhere) > 0 {
		return "it belongs under " + either(parents(elsewhere))
	}
	if path, ok := renamed(key); ok {
		return "write " + path
	}
	if len(here) == 0 {
		return "nothing is known here"
	}
	return "known here: " + strings.Join(here, ", ")
}

// split parts a path into its parent and its last word.
func split(path string) (parent, name string) {
	i := strings.LastIndexByte(path, '.')
	return path[:max(i, 0)], path[i+1:]
}

// parents are the mappings of paths, the file itself by name; the more usual one first.
func parents(paths []string) []string {
	var out []string
	for _, path := range paths {
		parent, _ := split(path)
		if parent == "" {
			parent = "the top of the file"
		}
		out = append(out, parent)
	}
	slices.Sort(out)
	slices.Reverse(out)
	return slices.Compact(out)
}

// renamed is the key for what has another name elsewhere: a flag, an environment variable, a value of a Helm chart.
func renamed(key string) (string, bool) {
	if folded(key) == "compatwithcpumanager" {
		return "flags.plugin.passDeviceSpecs", true
	}
	for _, o := range options() {
		for _, name := range slices.Concat(o.names, o.env) {
			if o.key != "" && folded(name) == folded(key) {
				return o.key, true
			}
		}
	}
	return "", false
}
