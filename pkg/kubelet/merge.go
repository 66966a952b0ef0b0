// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"slices"
	"strings"
	"unicode/utf8"

	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// The reasons in sharing.Listing.Skipped.
const (
	SkippedNil                    = "nil_entry"
	SkippedEmptyName              = "empty_name"
	SkippedEmptyID                = "empty_id"
	SkippedInvalidUTF8            = "invalid_utf8"
	SkippedTooLong                = "too_long"
	SkippedAllocatableUnavailable = "allocatable_unavailable"
	SkippedCheckpointUnreadable   = "checkpoint_unreadable"
	SkippedCheckpointMalformed    = "checkpoint_malformed"
	SkippedCheckpointUnsettled    = "checkpoint_unsettled"
	SkippedCheckpointAmbiguous    = "checkpoint_ambiguous"
	// SkippedStarting counts what the kubelet did not list and the listing has all the
	// same: allocations kept from before the kubelet started.
	SkippedStarting = "kubelet_starting"
)

// maxText is longer than any name Kubernetes admits and any device id in use;
// what is longer would only inflate series and logs.
const maxText = 1024

// merger turns the kubelet's answers into a listing.
type merger struct {
	cfg *Config
	// record is nil where there is no checkpoint.
	record *record
	seen   map[sharing.Allocation]struct{}
	out    sharing.Listing
}

func (m *merger) skip(reason string, n int) {
	if m.out.Skipped == nil {
		m.out.Skipped = make(map[string]int)
	}
	m.out.Skipped[reason] += n
}

// usable counts the first text that is not, under the given reason where it is empty.
func (m *merger) usable(empty string, texts ...string) bool {
	for _, s := range texts {
		reason := ""
		switch {
		case s == "":
			reason = empty
		case len(s) > maxText:
			reason = SkippedTooLong
		case !utf8.ValidString(s):
			reason = SkippedInvalidUTF8
		default:
			continue
		}
		m.skip(reason, 1)
		return false
	}
	return true
}

func (m *merger) pod(pod *podresources.PodResources) {
	if pod == nil {
		m.skip(SkippedNil, 1)
		return
	}
	m.out.Pods++
	m.out.Containers += len(pod.GetContainers())
	if !m.usable(SkippedEmptyName, pod.GetNamespace(), pod.GetName()) {
		return
	}
	first := len(m.out.Allocations)
	for _, c := range pod.GetContainers() {
		if c == nil {
			m.skip(SkippedNil, 1)
			continue
		}
		if !m.usable(SkippedEmptyName, c.GetName()) {
			continue
		}
		m.container(sharing.Holder{Namespace: pod.GetNamespace(), Pod: pod.GetName(), Container: c.GetName()}, c)
	}
	m.identify(m.out.Allocations[first:])
}

func (m *merger) container(h sharing.Holder, c *podresources.ContainerResources) {
	for _, d := range c.GetDevices() {
		m.devices(d, func(id string) {
			m.add(sharing.Allocation{Holder: h, Resource: d.GetResourceName(), DeviceID: id})
		})
	}
	for _, claim := range c.GetDynamicResources() {
		if claim == nil {
			m.skip(SkippedNil, 1)
			continue
		}
		m.claim(h, claim)
	}
}

// devices gives each usable id of a resource that is metered to add.
func (m *merger) devices(d *podresources.ContainerDevices, add func(id string)) {
	if d == nil {
		m.skip(SkippedNil, 1)
		return
	}
	if !m.usable(SkippedEmptyName, d.GetResourceName()) || !m.cfg.Resources.Match(d.GetResourceName()) {
		return
	}
	for _, id := range d.GetDeviceIds() {
		if m.usable(SkippedEmptyID, id) {
			add(id)
		}
	}
}

// ids are the usable ids of a list without a holder, each once.
func (m *merger) ids(list []*podresources.ContainerDevices) []sharing.Advertised {
	var out []sharing.Advertised
	seen := make(map[sharing.Advertised]struct{})
	for _, d := range list {
		m.devices(d, func(id string) {
			a := sharing.Advertised{Resource: d.GetResourceName(), DeviceID: id}
			if _, again := seen[a]; !again {
				seen[a] = struct{}{}
				out = append(out, a)
			}
		})
	}
	return out
}

func (m *merger) claim(h sharing.Holder, claim *podresources.DynamicResource) {
	for _, r := range claim.GetClaimResources() {
		if r == nil {
			m.skip(SkippedNil, 1)
			continue
		}
		if !slices.Contains(m.cfg.DRADrivers, r.GetDriverName()) {
			continue
		}
		id := []string{r.GetPoolName(), r.GetDeviceName()}
		if r.ShareId != nil {
			// One claim can have several shares of one device; the form is Kubernetes' own.
			id = append(id, r.GetShareId())
		}
		if m.usable(SkippedEmptyName, claim.GetClaimNamespace(), claim.GetClaimName()) && m.usable(SkippedEmptyID, id...) {
			m.add(sharing.Allocation{
				Holder:   h,
				Resource: r.GetDriverName(),
				DeviceID: strings.Join(id, "/"),
				Claim:    claim.GetClaimNamespace() + "/" + claim.GetClaimName(),
			})
		}
	}
}

// add takes an allocation once: the kubelet repeats an id for each NUMA node.
func (m *merger) add(a sharing.Allocation) {
	if _, again := m.seen[a]; !again {
		m.seen[a] = struct{}{}
		m.out.Allocations = append(m.out.Allocations, a)
	}
}

// identify gives the allocations of one pod its UID, or its holder would be two. One
// device tells it for all: those of DRA are not in the checkpoint, and a leftover of a
// dead pod makes a device ambiguous. Devices that contradict each other tell nothing.
func (m *merger) identify(pod []sharing.Allocation) {
	var uids []string
	unclear := 0
	for _, a := range pod {
		uid, ambiguous := m.record.uid(a.Holder.Container, a.Resource, a.DeviceID)
		if ambiguous {
			unclear++
		} else if uid != "" && !slices.Contains(uids, uid) {
			uids = append(uids, uid)
		}
	}
	switch len(uids) {
	case 0:
	case 1:
		for i := range pod {
			pod[i].Holder.PodUID = uids[0]
		}
		return
	default:
		unclear = len(pod)
	}
	if unclear > 0 {
		m.skip(SkippedCheckpointAmbiguous, unclear)
	}
}
