// SPDX-License-Identifier: Apache-2.0

package app

import (
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gpumeter/gpumeter/pkg/deviceplugin"
)

// addSharing adds the readers of one way to share.
func (p *fileParser) addSharing(path string, to **sharingBlock) {
	row := &sharedRow{p: p}
	row.addReaders(path + ".resources[]")
	block := func() *sharingBlock { return *to }
	p.readers[path] = func(at string, n *yaml.Node) {
		if resolved(n) == nil {
			return
		}
		*to = &sharingBlock{at: p.place(n)}
		p.mapping(path, at, n)
		if b := block(); !b.listed && resolved(n).Kind == yaml.MappingNode {
			p.at(n, "%s.resources is missing: nothing would be shared (list what is, or leave %s out)", at, at)
		}
	}
	p.readers[path+".renameByDefault"] = func(at string, n *yaml.Node) { block().rename, _ = p.boolean(at, n) }
	p.readers[path+".failRequestsGreaterThanOne"] = func(at string, n *yaml.Node) { block().refuse, _ = p.boolean(at, n) }
	p.readers[path+".resources"] = func(at string, n *yaml.Node) {
		block().listed = true
		present := p.rows(at, n, func(at string, n *yaml.Node) {
			if r, ok := row.read(path+".resources[]", at, n); ok {
				block().resources = append(block().resources, r)
			}
		})
		if r := resolved(n); r == nil || present && len(r.Content) == 0 {
			p.at(n, "%s is empty: nothing would be shared (list what is, or leave %s out)", at, strings.TrimSuffix(at, ".resources"))
		}
	}
}

// sharedRow reads one row of resources.
type sharedRow struct {
	p   *fileParser
	out deviceplugin.SharedResource
	bad bool
	// replicated says that the row has replicas.
	replicated bool
}

func (s *sharedRow) addReaders(schema string) {
	s.p.readers[schema+".name"] = func(at string, n *yaml.Node) { s.out.Name = s.resource(at, n) }
	s.p.readers[schema+".rename"] = func(at string, n *yaml.Node) { s.out.Rename = s.resource(at, n) }
	s.p.readers[schema+".devices"] = s.devices
	s.p.readers[schema+".replicas"] = func(at string, n *yaml.Node) {
		s.replicated = true
		v, ok := s.p.whole(at, n)
		if ok && v < 1 {
			s.p.at(n, "%s is %d (write 1 or more; 1 hands a device out as it is)", at, v)
			ok = false
		}
		if ok && v > deviceplugin.MostReplicas {
			s.p.at(n, "%s is %d (the kubelet takes no list of so many; write less, at most some thousands)", at, v)
			ok = false
		}
		s.out.Replicas, s.bad = v, s.bad || !ok
	}
}

func (s *sharedRow) read(schema, at string, n *yaml.Node) (deviceplugin.SharedResource, bool) {
	s.out, s.bad, s.replicated = deviceplugin.SharedResource{All: true}, false, false
	before := len(s.p.problems)
	s.p.mapping(schema, at, n)
	if len(s.p.problems) > before || s.bad {
		return deviceplugin.SharedResource{}, false
	}
	switch {
	case s.out.Name == "":
		s.p.at(n, "%s has no name (write name: nvidia.com/gpu)", at)
	case !s.replicated:
		s.p.at(n, "%s has no replicas (write how many of each device, replicas: 4)", at)
	default:
		return s.out, true
	}
	return deviceplugin.SharedResource{}, false
}

func (s *sharedRow) resource(at string, n *yaml.Node) string {
	word, ok := s.p.word(at, n)
	if !ok || word == "" {
		return ""
	}
	name, err := deviceplugin.FullName(word)
	if err != nil {
		s.p.at(n, "%s: %v", at, err)
	}
	return name
}

// devices reads all, a count, or a list of devices.
func (s *sharedRow) devices(at string, n *yaml.Node) {
	r := resolved(n)
	switch {
	case r == nil:
	case r.Kind == yaml.SequenceNode:
		s.out.All = false
		s.p.rows(at, n, func(at string, row *yaml.Node) {
			word, ok := s.p.word(at, row)
			if !ok || !deviceReference(word) {
				s.p.at(row, `%s is %q (write a GPU's index, "0", a MIG device's, "0:1", or a UUID)`, at, word)
				return
			}
			s.out.Devices = append(s.out.Devices, word)
		})
		if len(r.Content) == 0 {
			s.p.at(n, "%s is empty (write all, or leave it out)", at)
		}
	case r.Kind == yaml.ScalarNode && r.Value == "all":
	case r.Kind == yaml.ScalarNode && r.Tag == "!!int":
		s.out.All = false
		count, ok := s.p.whole(at, n)
		if ok && count < 1 {
			s.p.at(n, "%s is %d (write all, a count of 1 or more, or a list)", at, count)
		}
		s.out.Count = count
	default:
		s.p.at(n, "%s is %q (write all, a count, or a list of indices and UUIDs)", at, r.Value)
	}
}

var referencePattern = regexp.MustCompile(`^(\d{1,4}(:\d{1,4})?|(GPU|MIG)-[0-9A-Za-z/-]{1,80})$`)

func deviceReference(word string) bool { return referencePattern.MatchString(word) }
