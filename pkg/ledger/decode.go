// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"strconv"
	"strings"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// The kinds of record that a year of a ledger has millions of are read without encoding/json, where they are as a
// Book writes them: no white space, no escapes, ASCII, known names. Everything else is left to encoding/json, so that
// the two never disagree.

// decodePlain is the body that a text says; false where encoding/json has to read it.
func decodePlain(kind Kind, text []byte) (Body, bool) {
	switch kind {
	case KindOpen:
		o := &Open{}
		return o, readPlain(text, o.plain)
	case KindClose:
		c := &Close{}
		return c, readPlain(text, c.plain)
	case KindUse:
		u := &Use{}
		return u, readPlain(text, u.plain)
	default:
		return nil, false
	}
}

func (o *Open) plain(p *plainJSON, name string) bool {
	switch name {
	case "id":
		return p.uint(&o.ID)
	case "card":
		return p.int(&o.Card)
	case "device":
		return p.string((*string)(&o.Device))
	case "gi":
		return p.int(&o.GPUInstance)
	case "profile":
		return p.string(&o.Profile)
	case "cause":
		return p.string((*string)(&o.Cause))
	case "namespace":
		return p.string(&o.Namespace)
	case "pod":
		return p.string(&o.Pod)
	case "uid":
		return p.string(&o.PodUID)
	case "container":
		return p.string(&o.Container)
	case "resource":
		return p.string(&o.Resource)
	case "mode":
		return p.string((*string)(&o.Mode))
	case "seats":
		return p.int(&o.Seats)
	case "of":
		return p.int(&o.Of)
	case "weight":
		return p.string(&o.Weight)
	case "part":
		return p.string(&o.Part)
	case "memory":
		return p.string(&o.Memory)
	case "policy":
		return p.string(&o.Policy)
	}
	return false
}

func (c *Close) plain(p *plainJSON, name string) bool {
	switch name {
	case "id":
		return p.uint(&c.ID)
	case "why":
		return p.string(&c.Why)
	}
	return false
}

func (u *Use) plain(p *plainJSON, name string) bool {
	switch name {
	case "energy":
		return p.byCard(&u.Energy)
	case "busy":
		return p.byDevice(&u.Busy)
	case "basis":
		return p.string((*string)(&u.Basis))
	case "counters":
		return p.byCard(&u.Counters)
	}
	return false
}

// plainJSON is what is left of a text. Strings are parts of it, so that a body is one allocation beside its maps.
type plainJSON struct{ left string }

// readPlain reads an object whose members field reads.
func readPlain(text []byte, field func(p *plainJSON, name string) bool) bool {
	p := plainJSON{string(text)}
	return p.object(field) && p.left == ""
}

// take takes a byte if it is next.
func (p *plainJSON) take(b byte) bool {
	if p.left == "" || p.left[0] != b {
		return false
	}
	p.left = p.left[1:]
	return true
}

func (p *plainJSON) object(field func(p *plainJSON, name string) bool) bool {
	if !p.take('{') {
		return false
	}
	for first := true; !p.take('}'); first = false {
		var name string
		if !first && !p.take(',') || !p.string(&name) || !p.take(':') || !field(p, name) {
			return false
		}
	}
	return true
}

// string reads one that is as it looks.
func (p *plainJSON) string(to *string) bool {
	if !p.take('"') {
		return false
	}
	end := strings.IndexByte(p.left, '"')
	if end < 0 {
		return false
	}
	text := p.left[:end]
	for i := range len(text) {
		if c := text[i]; c < ' ' || c >= 0x7f || c == '\\' {
			return false
		}
	}
	*to, p.left = text, p.left[end+1:]
	return true
}

// number is the text of a whole number.
func (p *plainJSON) number() string {
	end := 0
	for end < len(p.left) && (p.left[end] >= '0' && p.left[end] <= '9' || end == 0 && p.left[0] == '-') {
		end++
	}
	text := p.left[:end]
	p.left = p.left[end:]
	// JSON has no leading zeros.
	if digits := strings.TrimPrefix(text, "-"); len(digits) > 1 && digits[0] == '0' {
		return ""
	}
	return text
}

func (p *plainJSON) int64(to *int64) bool {
	n, err := strconv.ParseInt(p.number(), 10, 64)
	*to = n
	return err == nil
}

func (p *plainJSON) int(to *int) bool {
	n, err := strconv.Atoi(p.number())
	*to = n
	return err == nil
}

func (p *plainJSON) uint(to *uint64) bool {
	n, err := strconv.ParseUint(p.number(), 10, 64)
	*to = n
	return err == nil
}

func (p *plainJSON) byCard(to *map[int]int64) bool {
	if *to == nil {
		*to = map[int]int64{}
	}
	return p.object(func(p *plainJSON, name string) bool {
		n, err := strconv.Atoi(name)
		var v int64
		if err != nil || !p.int64(&v) {
			return false
		}
		(*to)[n] = v
		return true
	})
}

func (p *plainJSON) byDevice(to *map[gpu.UUID]int64) bool {
	if *to == nil {
		*to = map[gpu.UUID]int64{}
	}
	return p.object(func(p *plainJSON, name string) bool {
		var v int64
		if !p.int64(&v) {
			return false
		}
		(*to)[gpu.UUID(name)] = v
		return true
	})
}
