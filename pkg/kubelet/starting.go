// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"log/slog"
	"slices"
	"sync"
	"time"

	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// starting adds to the answers of a kubelet that has just started what it had before. It
// serves before it has heard of its pods: at first it lists none, then the static ones, and
// those of the API server when that can be reached, all at once. Their containers run on
// meanwhile.
type starting struct {
	// podName and podNamespace are this process's own pod, which comes from the API server
	// and runs: when the kubelet lists it, it lists the others too. An empty name is none, an
	// empty namespace is any.
	podName, podNamespace string
	// limit is how long after a connection an answer without the own pod is added to.
	limit  time.Duration
	notice *notice

	mu sync.Mutex
	// known says that a believed answer once had the own pod.
	known bool
	// connected is when the present connection was made; zero once an answer on it was believed.
	connected time.Time
	// listed is when an answer on the present connection first had the own pod.
	listed time.Time
	// last is what the last listing had.
	last []sharing.Allocation
	// before is how many there were when the connection was made; pending are those of
	// them that no answer on it has had.
	before  int
	pending []sharing.Allocation
}

// connect notes a new connection: the kubelet may be a new process.
func (s *starting) connect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.connected, s.listed, s.before, s.pending = time.Now(), time.Time{}, len(s.last), s.last
}

// own reports whether an answer has this process's own pod.
func (s *starting) own(pods []*podresources.PodResources) bool {
	return s.podName != "" && slices.ContainsFunc(pods, func(p *podresources.PodResources) bool {
		return p.GetName() == s.podName && (s.podNamespace == "" || p.GetNamespace() == s.podNamespace)
	})
}

// complete is an answer with what has to be kept from before, which is counted.
// UIDs that are not known are filled in, in the answer.
func (s *starting) complete(answer []sharing.Allocation, own bool) (all []sharing.Allocation, kept int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.connected.IsZero() {
		s.recognise(answer)
		s.pending = missing(s.pending, answer)
		if own && s.listed.IsZero() {
			s.listed = time.Now()
		}
		// The pods of the API server are admitted one after the other, if quickly.
		if s.believe(own && time.Since(s.listed) >= ownPodSettle) {
			s.connected, s.pending = time.Time{}, nil
		}
	}
	if s.connected.IsZero() {
		s.known = s.known || own
	}
	all = slices.Concat(answer, s.pending)
	s.last = slices.Clone(all)
	return all, len(s.pending)
}

// believe reports whether what is pending has ended, and says so where it matters; settled
// says that the own pod has been listed for a moment.
func (s *starting) believe(settled bool) bool {
	limit := startupGrace
	if s.known {
		limit = s.limit
	}
	switch {
	case len(s.pending) == 0:
		s.notice.back()
	case s.known && settled:
		s.notice.back("ended", len(s.pending))
	case time.Since(s.connected) >= limit:
		s.notice.end(slog.LevelWarn, "kubelet still lists fewer pods than before its start", "ended", len(s.pending),
			"effect", "the allocations that it does not list are taken for ended")
	default:
		s.notice.lost(slog.LevelInfo, "", "kept", len(s.pending), "of", s.before, "limit", limit,
			"effect", "allocations that it does not list yet are kept")
		return false
	}
	return true
}

// recognise gives allocations whose pod UID is not known the one that they had in the
// last listing: the checkpoint, too, may take a moment to be of use.
func (s *starting) recognise(answer []sharing.Allocation) {
	uids := make(map[sharing.Allocation]string, len(s.last))
	for _, a := range s.last {
		uids[identity(a)] = a.Holder.PodUID
	}
	for i, a := range answer {
		if a.Holder.PodUID == "" {
			answer[i].Holder.PodUID = uids[identity(a)]
		}
	}
}

// missing are the allocations of before that an answer does not have, less those whose
// device it gives to somebody else. Holders of one claim have its devices in common.
func missing(before, answer []sharing.Allocation) []sharing.Allocation {
	type held struct{ id, claim string }
	listed := make(map[sharing.Allocation]bool, len(answer))
	taken := make(map[string]bool, len(answer))
	claimed := make(map[held]bool)
	for _, a := range answer {
		listed[identity(a)] = true
		taken[a.DeviceID] = true
		if a.Claim != "" {
			claimed[held{a.DeviceID, a.Claim}] = true
		}
	}
	var out []sharing.Allocation
	for _, a := range before {
		if !listed[identity(a)] && (!taken[a.DeviceID] || claimed[held{a.DeviceID, a.Claim}]) {
			out = append(out, a)
		}
	}
	return out
}

// identity is what an allocation is recognised by: without what can be unknown.
func identity(a sharing.Allocation) sharing.Allocation {
	a.Holder.PodUID, a.Since = "", time.Time{}
	return a
}
