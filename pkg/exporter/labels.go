// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"strings"
	"unicode/utf8"
)

// label is one name and its value. The value is foreign text until clean has seen it.
type label struct{ name, value string }

// labelID is a label set within one page; equal sets have equal ids.
type labelID int32

const (
	// noLabels is what intern answers for a set that cannot be shown.
	noLabels labelID = -1
	// noDevice stands for the labels of a device that the inventory does not have.
	noDevice labelID = -2
)

// labelTable holds each label set of a page once, with its text rendered once: most
// of a page's bytes are the same few sets, repeated under every family.
type labelTable struct {
	ids   map[string]labelID
	sets  []labelSet
	pairs []label
	text  []byte
}

// labelSet is a set's place in the table's pairs and in its text.
type labelSet struct {
	firstPair, endPair int
	firstByte, endByte int
}

// intern gives the set its id. Labels without a value are left out, since an empty
// label and none are the same to Prometheus. A set with an invalid or repeated name
// is refused as a whole with noLabels.
func (t *labelTable) intern(set []label) labelID {
	first, start := len(t.pairs), len(t.text)
	if !t.append(first, set) {
		return noLabels
	}
	t.text = appendLabels(t.text, t.pairs[first:], '{')
	return t.identify(first, start)
}

// extend gives a set and more labels their id. What has no id stays without.
func (t *labelTable) extend(id labelID, more ...label) labelID {
	if id < 0 {
		return id
	}
	set, first, start := t.sets[id], len(t.pairs), len(t.text)
	t.pairs = append(t.pairs, t.pairs[set.firstPair:set.endPair]...)
	rest := len(t.pairs)
	if !t.append(first, more) {
		return noLabels
	}
	open := byte('{')
	if rest > first && len(t.pairs) > rest {
		t.text, open = append(t.text, t.text[set.firstByte:set.endByte-1]...), ','
	} else {
		rest = first
	}
	t.text = appendLabels(t.text, t.pairs[rest:], open)
	return t.identify(first, start)
}

// append adds labels to the set that begins at first and is the table's last; where one
// of them cannot be, it takes back the whole set and reports false.
func (t *labelTable) append(first int, set []label) bool {
	for _, l := range set {
		if l.value == "" {
			continue
		}
		if !validLabelName(l.name) || t.has(first, l.name) {
			t.pairs = t.pairs[:first]
			return false
		}
		t.pairs = append(t.pairs, label{l.name, clean(l.value)})
	}
	return true
}

// identify is the id of the last set, whose pairs and text begin at the given places. A
// set that was there before is taken back.
func (t *labelTable) identify(first, start int) labelID {
	if id, ok := t.ids[string(t.text[start:])]; ok {
		t.pairs, t.text = t.pairs[:first], t.text[:start]
		return id
	}
	id := labelID(len(t.sets))
	t.ids[string(t.text[start:])] = id
	t.sets = append(t.sets, labelSet{first, len(t.pairs), start, len(t.text)})
	return id
}

// has reports whether the set that begins at first already has a label of this name.
func (t *labelTable) has(first int, name string) bool {
	for _, l := range t.pairs[first:] {
		if l.name == name {
			return true
		}
	}
	return false
}

// appendLabels renders a set as the text format and OpenMetrics both have it: open is a
// brace, or the comma behind the labels that are there already.
func appendLabels(b []byte, set []label, open byte) []byte {
	for i, l := range set {
		if i == 0 {
			b = append(b, open)
		} else {
			b = append(b, ',')
		}
		b = append(b, l.name...)
		b = append(b, '=', '"')
		b = appendEscaped(b, l.value, true)
		b = append(b, '"')
	}
	if len(set) > 0 {
		b = append(b, '}')
	}
	return b
}

// appendEscaped escapes backslash and line feed, and quotes where they end the text.
func appendEscaped(b []byte, s string, quotes bool) []byte {
	if plain(s) {
		return append(b, s...)
	}
	special := "\\\n"
	if quotes {
		special = "\\\n\""
	}
	for {
		i := strings.IndexAny(s, special)
		if i < 0 {
			return append(b, s...)
		}
		b = append(b, s[:i]...)
		if s[i] == '\n' {
			b = append(b, '\\', 'n')
		} else {
			b = append(b, '\\', s[i])
		}
		s = s[i+1:]
	}
}

// clean makes foreign text fit for any format: invalid UTF-8 becomes U+FFFD, and so
// does NUL, which ends the input of Prometheus' lexers and would cost the whole page.
func clean(s string) string {
	if plain(s) {
		return s
	}
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "\uFFFD")
	}
	if strings.IndexByte(s, 0) >= 0 {
		s = strings.ReplaceAll(s, "\x00", "\uFFFD")
	}
	return s
}

// plain reports whether s is printable ASCII that needs no escaping, as nearly all
// label values are.
func plain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

// validLabelName reports whether name can stand in every format without quoting.
// Names with two leading underscores are Prometheus' own: "__name__" would rename
// the series.
func validLabelName(name string) bool {
	if name == "" || strings.HasPrefix(name, "__") {
		return false
	}
	for i := range len(name) {
		if c := name[i]; c != '_' && !letter(c) && (i == 0 || !digit(c)) {
			return false
		}
	}
	return true
}

// validMetricName reports whether name can stand in every format without quoting.
func validMetricName(name string) bool {
	if name == "" {
		return false
	}
	for i := range len(name) {
		if c := name[i]; c != '_' && c != ':' && !letter(c) && (i == 0 || !digit(c)) {
			return false
		}
	}
	return true
}

func letter(c byte) bool { return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' }

func digit(c byte) bool { return '0' <= c && c <= '9' }

// builtinLabel reports whether some series of a device has this label by itself.
func builtinLabel(name string) bool {
	switch name {
	case "gpu", "UUID", "uuid", "gpu_uuid", "pci_bus_id", "device", "modelName", "model_name",
		"GPU_I_PROFILE", "GPU_I_ID", "hostname", "Hostname", "nvlink", "nvswitch", "cpu", "cpucore",
		"container", "namespace", "pod", "container_name", "pod_namespace", "pod_name", "pod_uid", "vgpu", "hpc_job",
		"err_code", "err_msg", "window_size_in_ms", "xid", "clock_event", "health_watch", "health_error_code", "peer_gpu", "link_status":
		return true
	}
	return false
}
