// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"slices"

	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// Pod is what the API server says of a pod. Its labels must not be modified.
type Pod struct {
	Namespace, Name, UID string
	// Phase is Kubernetes' word, "Running".
	Phase string
	// WorkloadKind and Workload are its owner at the top as far as the pod tells: "Deployment", "trainer".
	WorkloadKind, Workload string
	Labels                 map[string]string
}

// heldPod is a pod that a listing had, with what was known of it then. It is remembered as long as listings
// have it: neither an outage nor the deletion of the object changes who holds a device.
type heldPod struct {
	// listed is the UID that the listing had, empty where it had none.
	listed string
	// facts are without a UID where nothing is known.
	facts podFacts
}

// is reports whether a pod may be the one of a UID that a listing has.
func (f *podFacts) is(listed string) bool {
	return f.UID != "" && (listed == "" || listed == f.UID || listed == f.mirror)
}

// Enrich is the listing with the API server's UIDs and the ends of pods in it; the one given is not modified. Where
// the listing has a UID, only a pod with that one is the listed one: another of its name is another pod. While
// the watch is not synced, or away, nothing new is said of pods without one: what was known of those that go on
// being listed stands. A pod that the API server does not have goes on holding what the kubelet lists.
func (w *PodWatch) Enrich(l sharing.Listing) sharing.Listing {
	w.mu.Lock()
	defer w.mu.Unlock()
	l.Allocations = slices.Clone(l.Allocations)
	held := make(map[podName][]heldPod, len(w.held))
	for i := range l.Allocations {
		a := &l.Allocations[i]
		name := podName{a.Holder.Namespace, a.Holder.Pod}
		at := slices.IndexFunc(held[name], func(h heldPod) bool { return h.listed == a.Holder.PodUID })
		if at < 0 {
			at = len(held[name])
			held[name] = append(held[name], heldPod{a.Holder.PodUID, w.known(name, a.Holder.PodUID)})
		}
		facts := &held[name][at].facts
		a.Holder.PodUID = cmp.Or(facts.UID, a.Holder.PodUID)
		a.Terminal = a.Terminal || facts.ended
	}
	w.held = held
	return l
}

// known is what can be said of a pod that a listing has; mu is held.
func (w *PodWatch) known(name podName, listed string) podFacts {
	facts := w.pods[name]
	fresh := w.state.Synced && w.state.Err == nil
	if facts.is(listed) && (fresh || listed != "") {
		return facts
	}
	remembered := w.held[name]
	for _, h := range remembered {
		if listed != "" && (h.listed == listed || h.facts.is(listed)) {
			return h.facts
		}
	}
	if listed == "" && len(remembered) == 1 {
		return remembered[0].facts
	}
	return podFacts{}
}

// Pods are those of the last listing that was enriched, as far as the API server told of them, by namespace and name.
func (w *PodWatch) Pods() []Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []Pod
	for _, pods := range w.held {
		for _, h := range pods {
			if h.facts.UID != "" {
				out = append(out, h.facts.Pod)
			}
		}
	}
	slices.SortFunc(out, func(a, b Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	return slices.CompactFunc(out, func(a, b Pod) bool { return a.Namespace == b.Namespace && a.Name == b.Name && a.UID == b.UID })
}
