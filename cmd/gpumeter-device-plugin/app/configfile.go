// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gpumeter/gpumeter/pkg/deviceplugin"
)

const (
	// problemLimit bounds what one look at a hopeless file prints.
	problemLimit = 20
	// problemLength is how long one problem may be, which quotes what is in the file.
	problemLength = 500
	// fileLimit is more than a ConfigMap can hold.
	fileLimit = 1 << 20
	// depthLimit is more than the schema has, for files whose aliases contain themselves.
	depthLimit = 16
)

// configFile is what NVIDIA's config file v1 says, where it says something.
type configFile struct {
	// values are those of options, by key.
	values map[string]given
	// gpuNames and migNames are resources.gpus and resources.mig.
	gpuNames, migNames []deviceplugin.NameRule
	timeSlicing, mps   *sharingBlock
}

// given is a value with the place where it stands, "config.yaml:3:16".
type given struct {
	value []string
	at    string
}

// sharingBlock is sharing.timeSlicing or sharing.mps.
type sharingBlock struct {
	at string
	// rename and refuse are renameByDefault and failRequestsGreaterThanOne, zero where not given.
	rename, refuse given
	resources      []deviceplugin.SharedResource
	// listed says that there is a list of resources, be it empty.
	listed bool
}

// shares reports whether any device has more than one replica.
func (b *sharingBlock) shares() bool {
	return b != nil && slices.ContainsFunc(b.resources, func(r deviceplugin.SharedResource) bool { return r.Replicas > 1 })
}

// parseConfigFile reads NVIDIA's config file v1 strictly. Each problem is "name:line:column: what (remedy)".
// What is read beside problems is of no use to anybody but to find more of them.
func parseConfigFile(name string, data []byte) (configFile, []error) {
	p := &fileParser{name: name, readers: map[string]reader{}}
	p.file.values = map[string]given{}
	p.addReaders()
	p.document(data)
	if p.unsaid > 0 {
		p.problems = append(p.problems, fmt.Errorf("%s: and %d more", name, p.unsaid))
	}
	return p.file, p.problems
}

// A reader takes the value of a key; path is where it stands, as people write it.
type reader func(path string, n *yaml.Node)

type fileParser struct {
	name string
	file configFile
	// readers are by schema path, in which lists are "[]".
	readers  map[string]reader
	depth    int
	problems []error
	unsaid   int
}

// at records a problem at a place in the file.
func (p *fileParser) at(n *yaml.Node, format string, args ...any) {
	if len(p.problems) == problemLimit {
		p.unsaid++
		return
	}
	p.problems = append(p.problems, errors.New(p.place(n)+": "+clipped(fmt.Sprintf(format, args...))))
}

// clipped keeps short what quotes a file.
func clipped(what string) string {
	if len(what) > problemLength {
		what = what[:problemLength] + "…"
	}
	return strings.ToValidUTF8(what, "?")
}

func (p *fileParser) place(n *yaml.Node) string {
	return fmt.Sprintf("%s:%d:%d", p.name, max(n.Line, 1), max(n.Column, 1))
}

func (p *fileParser) document(data []byte) {
	if len(data) > fileLimit {
		p.at(&yaml.Node{}, "the file has %d bytes, more than the %d that a ConfigMap can hold", len(data), fileLimit)
		return
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var doc, more yaml.Node
	err := decoder.Decode(&doc)
	switch {
	case errors.Is(err, io.EOF):
		return
	case err != nil:
		line, what := yamlProblem(err)
		p.at(&yaml.Node{Line: line}, "not YAML: %s (check indentation and quotes)", what)
		return
	}
	if err := decoder.Decode(&more); !errors.Is(err, io.EOF) && !blank(&more, err) {
		p.at(&more, "something follows the config (one document per file)")
	}
	for _, n := range doc.Content {
		if hasKey(n, "kind") && hasKey(n, "apiVersion") {
			p.at(n, "this is an object for the API server and not a config (the config is the text in its data alone)")
			continue
		}
		p.mapping("", "", n)
	}
}

// blank says that a document has nothing in it, as what follows a mark at the end of a file.
func blank(doc *yaml.Node, err error) bool {
	return err == nil && !slices.ContainsFunc(doc.Content, func(n *yaml.Node) bool { return resolved(n) != nil })
}

func hasKey(n *yaml.Node, key string) bool {
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return true
		}
	}
	return false
}

// yamlProblem is the line and the text of a decoder's error, which has the line within its text.
func yamlProblem(err error) (line int, what string) {
	what = strings.TrimPrefix(err.Error(), "yaml: ")
	number, rest, found := strings.Cut(strings.TrimPrefix(what, "line "), ": ")
	if n, err := strconv.Atoi(number); err == nil && found {
		return n, rest
	}
	return 1, what
}

// resolved is the node that an alias stands for; nil for null, which is as good as nothing.
func resolved(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode && n.Alias != nil {
		n = n.Alias
	}
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return nil
	}
	return n
}

// joined is a key's path.
func joined(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// mapping reads what is under a schema path; path is the same for people, with numbers for rows.
func (p *fileParser) mapping(schema, path string, n *yaml.Node) {
	if n = resolved(n); n == nil {
		return
	}
	if p.depth++; p.depth > depthLimit {
		p.at(n, "%s: nested too deeply", path)
		return
	}
	defer func() { p.depth-- }()
	if n.Kind != yaml.MappingNode {
		p.at(n, "%s must be a mapping (write key: value)", named(path))
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		full := joined(path, key.Value)
		read, known := p.readers[joined(schema, key.Value)]
		switch {
		case key.Kind != yaml.ScalarNode || key.Tag == "!!merge":
			p.at(key, "%s has a key that is no plain word (write the keys out)", named(path))
		case !known && len(p.problems) >= problemLimit:
			p.unsaid++
		case !known && schema == "" && strings.Contains(value.Value, "\n"):
			p.at(key, "%s: unknown; if the text under it is the config, the file must be that text alone", full)
		case !known:
			p.at(key, "%s: unknown; %s", full, p.remedy(schema, key.Value))
		case seen[key.Value]:
			p.at(key, "%s twice (keep one)", full)
		default:
			seen[key.Value] = true
			read(full, value)
		}
	}
}

// named is a path in a sentence.
func named(path string) string {
	if path == "" {
		return "the file"
	}
	return path
}

// rows reads each row of a list.
func (p *fileParser) rows(path string, n *yaml.Node, read func(path string, row *yaml.Node)) (present bool) {
	if n = resolved(n); n == nil {
		return false
	}
	if n.Kind != yaml.SequenceNode {
		p.at(n, "%s must be a list (write rows that begin with -)", path)
		return false
	}
	for i, row := range n.Content {
		read(fmt.Sprintf("%s[%d]", path, i), row)
	}
	return true
}

// word is a scalar as it is written; false where it is none.
func (p *fileParser) word(path string, n *yaml.Node) (string, bool) {
	if n = resolved(n); n == nil {
		return "", false
	}
	if n.Kind != yaml.ScalarNode {
		p.at(n, "%s must be one value, not a list or mapping", path)
		return "", false
	}
	return n.Value, true
}

// boolean is true or false; YAML 1.1's words for them are taken where they are not quoted, as NVIDIA's parser does.
func (p *fileParser) boolean(path string, n *yaml.Node) (given, bool) {
	n = resolved(n)
	if n == nil {
		return given{}, false
	}
	if n.Kind == yaml.ScalarNode && n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) == 0 {
		switch strings.ToLower(n.Value) {
		case "true", "yes", "on", "y":
			return given{[]string{"true"}, p.place(n)}, true
		case "false", "no", "off", "n":
			return given{[]string{"false"}, p.place(n)}, true
		}
	}
	p.at(n, "%s must be true or false (without quotes)", path)
	return given{}, false
}

// whole is a whole number.
func (p *fileParser) whole(path string, n *yaml.Node) (int, bool) {
	word, ok := p.word(path, n)
	if !ok {
		return 0, false
	}
	v, err := strconv.Atoi(word)
	if err != nil || resolved(n).Tag != "!!int" {
		p.at(n, "%s is %q (write a whole number, without quotes)", path, word)
		return 0, false
	}
	return v, true
}
