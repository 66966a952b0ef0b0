// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// The reasons for which an allocation cannot be tied to a device. They are label values.
const (
	// ReasonMalformedID: the text is none of the forms of ParseID.
	ReasonMalformedID = "malformed_id"
	// ReasonMalformedReplica: what follows "::" or "vgpu" is not a plain decimal number.
	ReasonMalformedReplica = "malformed_replica"
	// ReasonNumberTooLarge: a number in the id is beyond 2^31 - 1.
	ReasonNumberTooLarge = "number_too_large"
	// ReasonUnknownDevice: no device of the node has this id.
	ReasonUnknownDevice = "unknown_device"
	// ReasonAmbiguousDevice: more than one device of the node has this minor number or PCI address.
	ReasonAmbiguousDevice = "ambiguous_device"
	// ReasonNoGPUInstance: the GPU is known, but it has no such GPU instance.
	ReasonNoGPUInstance = "no_gpu_instance"
	// ReasonNoComputeInstance: the GPU instance has no such compute instance.
	ReasonNoComputeInstance = "no_compute_instance"
	// ReasonAmbiguousInstance: the GPU instance has several MIG devices and the id does not say which.
	ReasonAmbiguousInstance = "ambiguous_instance"
	// ReasonClaimUnresolved: the device came from a DRA claim, whose device is not known.
	ReasonClaimUnresolved = "claim_unresolved"
)

// NoReplica is the Replica of an ID that names a whole device.
const NoReplica = -1

// Longer than any id that the device plugins write, with the suffix of a replica.
const maxIDLength = 128

type idForm uint8

const (
	formNone idForm = iota
	formUUID
	formLegacyMIG
	formMinor
	formIndex
	formPCI
)

// ID is a device id as a device plugin advertises it, parsed. It names a physical
// GPU or a MIG device, whole or one replica of it. IDs are comparable with ==; two
// spellings of one id are equal. The zero ID names nothing.
type ID struct {
	form idForm
	// uuid is the device's, or the parent's in the legacy MIG form.
	uuid gpu.UUID
	// number is the minor number or the index.
	number int
	gi, ci int
	// pci is in NVML's long form, lower case.
	pci string
	// replica is the number plus one, so that the zero ID has none.
	replica int
}

// Replica is the number of the replica, or NoReplica for a whole device.
func (id ID) Replica() int { return id.replica - 1 }

// IsReplica reports whether id names a replica, one seat of a shared device.
func (id ID) IsReplica() bool { return id.replica > 0 }

// Device is id without its replica.
func (id ID) Device() ID {
	id.replica = 0
	return id
}

// IDError says why a text is not a device id.
type IDError struct {
	// Text is the id, foreign text.
	Text string
	// Reason is one of ReasonMalformedID, ReasonMalformedReplica, ReasonNumberTooLarge.
	Reason string
}

// Error says what is wrong with the id.
func (e *IDError) Error() string {
	return fmt.Sprintf("parse device id %q: %s", e.Text, strings.ReplaceAll(e.Reason, "_", " "))
}

// ParseID reads a device id in one of the forms in use:
//
//	GPU-<uuid>  MIG-<uuid>  MIG-GPU-<uuid>/<gi>/<ci>     NVIDIA's plugin, each also with ::<replica>
//	nvidia<N>  nvidia<N>/gi<M>                           GKE's plugin, each also with /vgpu<replica>
//	<domain>:<bus>:<device>.<function>  <bus>:<dev>.<f>  plugins for whole devices in virtual machines
//	index<N>  index<N>/gi<M>                             batch schedulers, each also with /vgpu<replica>
//
// A uuid is letters, digits and hyphens; one of the driver's shape (8-4-4-4-12
// hexadecimal digits) is read in any case and kept in lower case, as the driver
// writes it. PCI addresses are read in any case. Numbers are plain decimal without
// leading zeros, so that one seat has one spelling. NVIDIA's own parser counts a
// replica that is not a number as 0; here it is an error, because it would put two
// holders on one seat.
//
// The error is an *IDError. ParseID never panics, and reading an ID's String gives
// the ID again.
func ParseID(text string) (ID, error) {
	id, reason := parseID(text)
	if reason != "" {
		return ID{}, &IDError{Text: text, Reason: reason}
	}
	return id, nil
}

// parseID is ParseID with the reason alone, for callers that count.
func parseID(text string) (ID, string) {
	if len(text) > maxIDLength {
		return ID{}, ReasonMalformedID
	}
	switch {
	case strings.HasPrefix(text, "GPU-"), strings.HasPrefix(text, "MIG-"):
		return parseNVIDIA(text)
	case strings.HasPrefix(text, minorPrefix):
		return parseNumbered(formMinor, text[len(minorPrefix):])
	case strings.HasPrefix(text, indexPrefix):
		return parseNumbered(formIndex, text[len(indexPrefix):])
	}
	pci, ok := canonicalPCI(text)
	if !ok {
		return ID{}, ReasonMalformedID
	}
	return ID{form: formPCI, pci: pci}, ""
}

func parseNVIDIA(text string) (ID, string) {
	base, suffix, replicated := strings.Cut(text, "::")
	var id ID
	if legacy, ok := strings.CutPrefix(base, "MIG-GPU-"); ok {
		parts := strings.Split(legacy, "/")
		if len(parts) != 3 || !isUUIDBody(parts[0]) {
			return ID{}, ReasonMalformedID
		}
		gi, reason := parseNumber(parts[1], ReasonMalformedID)
		if reason != "" {
			return ID{}, reason
		}
		ci, reason := parseNumber(parts[2], ReasonMalformedID)
		if reason != "" {
			return ID{}, reason
		}
		id = ID{form: formLegacyMIG, uuid: canonicalUUID(gpu.UUID("GPU-" + parts[0])), gi: gi, ci: ci}
	} else {
		if !isUUIDBody(base[len("GPU-"):]) {
			return ID{}, ReasonMalformedID
		}
		id = ID{form: formUUID, uuid: canonicalUUID(gpu.UUID(base))}
	}
	if replicated {
		n, reason := parseNumber(suffix, ReasonMalformedReplica)
		if reason != "" {
			return ID{}, reason
		}
		id.replica = n + 1
	}
	return id, ""
}

// What the ids that have a number begin with.
const (
	minorPrefix = "nvidia"
	indexPrefix = "index"
)

// IndexID is the id of the GPU with this index, as DCGM and nvidia-smi number them, or of one of its GPU instances unless
// that is gpu.NoInstance.
func IndexID(index, instance int) ID { return ID{form: formIndex, number: index, gi: instance} }

// WithReplica is one replica of what id names.
func (id ID) WithReplica(n int) ID {
	id.replica = n + 1
	return id
}

// parseNumbered reads what follows the prefix of an id that has a number.
func parseNumbered(form idForm, text string) (ID, string) {
	parts := strings.Split(text, "/")
	number, reason := parseNumber(parts[0], ReasonMalformedID)
	if reason != "" {
		return ID{}, reason
	}
	id := ID{form: form, number: number, gi: gpu.NoInstance}
	rest := parts[1:]
	if len(rest) > 0 && strings.HasPrefix(rest[0], "gi") {
		if id.gi, reason = parseNumber(rest[0][len("gi"):], ReasonMalformedID); reason != "" {
			return ID{}, reason
		}
		rest = rest[1:]
	}
	if len(rest) > 0 && strings.HasPrefix(rest[0], "vgpu") {
		n, reason := parseNumber(rest[0][len("vgpu"):], ReasonMalformedReplica)
		if reason != "" {
			return ID{}, reason
		}
		id.replica = n + 1
		rest = rest[1:]
	}
	if len(rest) > 0 {
		return ID{}, ReasonMalformedID
	}
	return id, ""
}

// parseNumber reads a decimal number below 2^31 - 1, or gives a reason: the one
// given where it is not a number.
func parseNumber(text, reason string) (int, string) {
	if !isDigits(text) || len(text) > 1 && text[0] == '0' {
		return 0, reason
	}
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n == math.MaxInt32 {
		return 0, ReasonNumberTooLarge
	}
	return int(n), ""
}

// isUUIDBody accepts more than hexadecimal digits: simulators have short ids.
func isUUIDBody(s string) bool {
	for i := range len(s) {
		c := s[i]
		if !(c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '-') {
			return false
		}
	}
	return s != ""
}

// canonicalUUID is u with the hexadecimal digits of the driver's shape in lower case.
func canonicalUUID(u gpu.UUID) gpu.UUID {
	const prefix = len("GPU-")
	if len(u) != prefix+36 {
		return u
	}
	upper := false
	for i := range 36 {
		c := u[prefix+i]
		switch {
		case i == 8 || i == 13 || i == 18 || i == 23:
			if c != '-' {
				return u
			}
		case c >= 'A' && c <= 'F':
			upper = true
		case !(c >= '0' && c <= '9' || c >= 'a' && c <= 'f'):
			return u
		}
	}
	if !upper {
		return u
	}
	return u[:prefix] + gpu.UUID(strings.ToLower(string(u[prefix:])))
}

// canonicalPCI reads "18:00.0", "0000:18:00.0" or "00000000:18:00.0" and writes the
// last of these, NVML's form, in lower case.
func canonicalPCI(text string) (string, bool) {
	domain, rest := "", text
	if strings.Count(text, ":") == 2 {
		domain, rest, _ = strings.Cut(text, ":")
		if len(domain) != 4 && len(domain) != 8 {
			return "", false
		}
	}
	if len(rest) != len("18:00.0") || rest[2] != ':' || rest[5] != '.' {
		return "", false
	}
	if !isHex(domain) || !isHex(rest[:2]) || !isHex(rest[3:5]) || rest[3] > '1' || rest[6] < '0' || rest[6] > '7' {
		return "", false
	}
	return strings.ToLower("00000000"[len(domain):] + domain + ":" + rest), true
}

func isHex(s string) bool {
	for i := range len(s) {
		c := s[i]
		if !(c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F') {
			return false
		}
	}
	return true
}

// String is the canonical spelling, which ParseID reads back; empty for the zero ID.
func (id ID) String() string {
	var b strings.Builder
	switch id.form {
	case formUUID:
		b.WriteString(string(id.uuid))
	case formLegacyMIG:
		fmt.Fprintf(&b, "MIG-%s/%d/%d", id.uuid, id.gi, id.ci)
	case formPCI:
		b.WriteString(id.pci)
	case formMinor, formIndex:
		prefix := minorPrefix
		if id.form == formIndex {
			prefix = indexPrefix
		}
		fmt.Fprintf(&b, "%s%d", prefix, id.number)
		if id.gi != gpu.NoInstance {
			fmt.Fprintf(&b, "/gi%d", id.gi)
		}
		if id.IsReplica() {
			fmt.Fprintf(&b, "/vgpu%d", id.Replica())
		}
		return b.String()
	}
	if id.IsReplica() {
		fmt.Fprintf(&b, "::%d", id.Replica())
	}
	return b.String()
}
