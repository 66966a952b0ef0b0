// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
	"pgregory.net/rapid"

	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// restarting is a kubelet that can be restarted, its client, and the client's log.
type restarting struct {
	*memoryKubelet
	t      *testing.T
	client *Client
	book   logBook
}

// newRestarting begins with a real kubelet's answer of ten ids of seven pods, the exporter's
// own pod being one of them where own names one.
func newRestarting(t *testing.T, own string, edit func(*Config)) *restarting {
	r := &restarting{memoryKubelet: newMemoryKubelet(t, "list_before-restart.json", ""), t: t}
	r.client = newClient(t, "/kubelet.sock", func(cfg *Config) {
		cfg.PodName, cfg.Log = own, r.book.logger("effect")
		if edit != nil {
			edit(cfg)
		}
	})
	r.client.dial = r.dial
	r.want(10, 0)
	return r
}

// want lists, and counts the allocations and those of them that were kept.
func (r *restarting) want(n, kept int) sharing.Listing {
	r.t.Helper()
	got, err := r.client.List(r.t.Context())
	must(r.t, err)
	if len(got.Allocations) != n || got.Skipped[SkippedStarting] != kept {
		r.t.Errorf("%d allocations, %d of them kept; want %d, %d", len(got.Allocations), got.Skipped[SkippedStarting], n, kept)
	}
	return got
}

func (r *restarting) wantLog(want ...string) {
	r.t.Helper()
	if diff := cmp.Diff(strings.Join(want, "\n"), strings.Join(r.book.lines(), "\n")); diff != "" {
		r.t.Errorf("log (-want +got):\n%s", diff)
	}
}

// sorted are allocations in an order of their own, so that two can be compared.
func sorted(list []sharing.Allocation) []sharing.Allocation {
	return slices.SortedFunc(slices.Values(list), func(a, b sharing.Allocation) int {
		return strings.Compare(a.Holder.Pod+"/"+a.DeviceID, b.Holder.Pod+"/"+b.DeviceID)
	})
}

func TestRealKubeletsRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRestarting(t, "s1", nil)
		before := sorted(r.want(10, 0).Allocations)
		r.restart()
		for _, step := range []struct {
			file string
			wait time.Duration
			kept int
		}{
			{"list_after-restart_0ms.json", 300 * time.Millisecond, 10},
			{"list_after-restart_300ms.json", 700 * time.Millisecond, 9},
			{"list_after-restart_1000ms.json", time.Second, 0},
			{"list_after-restart_1000ms.json", time.Second, 0},
		} {
			r.answers(step.file, "")
			got := r.want(10, step.kept)
			if diff := cmp.Diff(before, sorted(got.Allocations)); diff != "" {
				t.Errorf("%s: allocations (-before +after):\n%s", step.file, diff)
			}
			time.Sleep(step.wait)
		}
		r.wantLog(
			`level=INFO msg="kubelet has just started" kept=10 of=10 limit=5m0s`,
			`level=INFO msg="kubelet lists its pods again" lasted=1s`,
		)
	})
}

// A kubelet that cannot reach the API server lists the static pods for as long as that
// lasts, and all containers run on.
func TestRealKubeletWithoutAPIServer(t *testing.T) {
	const begun = `level=INFO msg="kubelet has just started" kept=9 of=10 limit=`
	for name, c := range map[string]struct {
		own    string
		edit   func(*Config)
		lasts  time.Duration
		ending string
	}{
		"own pod known": {"g2", nil, 5 * time.Minute,
			begun + "5m0s\n" + `level=WARN msg="kubelet still lists fewer pods than before its start" lasted=5m0s ended=9`},
		"another limit": {"g2", func(cfg *Config) { cfg.StartingLimit = time.Hour }, time.Hour,
			begun + "1h0m0s\n" + `level=WARN msg="kubelet still lists fewer pods than before its start" lasted=1h0m0s ended=9`},
		"in its namespace": {"g2", func(cfg *Config) { cfg.PodNamespace = "default" }, 5 * time.Minute,
			begun + "5m0s\n" + `level=WARN msg="kubelet still lists fewer pods than before its start" lasted=5m0s ended=9`},
		"not in its namespace": {"g2", func(cfg *Config) { cfg.PodNamespace = "other" }, 10 * time.Second,
			begun + "10s\n" + `level=WARN msg="kubelet still lists fewer pods than before its start" lasted=10s ended=9`},
		"own pod never listed": {"gpumeter", nil, 10 * time.Second,
			begun + "10s\n" + `level=WARN msg="kubelet still lists fewer pods than before its start" lasted=10s ended=9`},
		"not a pod": {"", nil, 10 * time.Second,
			begun + "10s\n" + `level=WARN msg="kubelet still lists fewer pods than before its start" lasted=10s ended=9`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRestarting(t, c.own, c.edit)
				r.restart()
				r.answers("list_no-apiserver.json", "allocatable_no-apiserver.json")
				for began := time.Now(); time.Since(began) < c.lasts; time.Sleep(c.lasts / 20) {
					if got := r.want(10, 9); len(got.Advertised) != 10 {
						t.Errorf("%d ids advertised, want all 10", len(got.Advertised))
					}
				}
				r.want(1, 0)
				r.wantLog(c.ending)
				r.answers("list_after-restart_1000ms.json", "")
				r.want(10, 0)
			})
		})
	}
}

// What has ended is gone as soon as the kubelet is known to have heard of its pods.
func TestOwnPodEndsTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRestarting(t, "g2", nil)
		all := r.list.PodResources
		own := func(p *podresources.PodResources) bool { return p.GetName() == "g2" }
		r.restart()
		r.list.PodResources = all[:2]
		r.want(10, 8)
		time.Sleep(time.Second)
		r.list.PodResources = slices.DeleteFunc(slices.Clone(all), func(p *podresources.PodResources) bool { return !own(p) })
		// The other pods may follow within a moment.
		r.want(8, 5)
		time.Sleep(ownPodSettle)
		r.want(3, 0)
		r.list.PodResources = all
		r.want(10, 0)

		// Once it has all been listed on a connection, a pod that ends is gone at once.
		r.list.PodResources = all[:2]
		got := r.want(2, 0)
		if got.Skipped != nil {
			t.Errorf("skipped %v", got.Skipped)
		}
		r.wantLog(
			`level=INFO msg="kubelet has just started" kept=8 of=10 limit=5m0s`,
			`level=INFO msg="kubelet lists its pods again" lasted=2s ended=5`,
		)
	})
}

// An own pod that is new to the client tells nothing yet: it could be a static pod.
func TestOwnPodMustHaveBeenListedBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRestarting(t, "late", nil)
		all := r.list.PodResources
		r.restart()
		r.list.PodResources = []*pod{one("default", "late", "main")}
		r.want(10, 10)
		time.Sleep(9 * time.Second)
		r.want(10, 10)
		time.Sleep(time.Second)
		r.want(0, 0)
		r.list.PodResources = append(slices.Clone(all), one("default", "late", "main"))
		r.want(10, 0)

		// Now it is known.
		r.restart()
		r.list.PodResources = nil
		r.want(10, 10)
		time.Sleep(20 * time.Second)
		r.want(10, 10)
		time.Sleep(4 * time.Minute)
		r.want(10, 10)
		r.list.PodResources = []*pod{one("default", "late", "main")}
		r.want(10, 10)
		time.Sleep(ownPodSettle)
		r.want(0, 0)

		// And it stays known, though the last answer believed was without it.
		r.list.PodResources = all
		r.want(10, 0)
		r.restart()
		r.list.PodResources = nil
		r.want(10, 10)
		time.Sleep(20 * time.Second)
		r.want(10, 10)
	})
}

// The new kubelet's word on a device or a pod outweighs what is remembered.
func TestNewAnswerOutweighsMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRestarting(t, "s2", nil)
		static := func(ids ...*devices) *pod { return one("kube-system", "static", "main", ids...) }
		r.restart()
		r.list.PodResources = []*pod{
			static(&devices{ResourceName: "nvidia.com/other", DeviceIds: []string{gpu0 + "::0"}}),
			one("default", "whole", "main", gpus("GPU-6d1c0b52-7f0e-4a3b-9c1e-2b7a55aa0003")),
		}
		got := r.want(10, 8)
		for _, a := range got.Allocations {
			if a.DeviceID == gpu0+"::0" && a.Holder.Pod != "static" {
				t.Errorf("%s still has what the kubelet gave to another", a.Holder.Pod)
			}
		}
		// What it gave away does not come back when it is free again, and a pod that it has
		// listed and lists no more has ended.
		r.list.PodResources = []*pod{static()}
		r.want(8, 8)

		// The kubelet breaks down again before it was through.
		time.Sleep(4 * time.Minute)
		r.restart()
		r.want(8, 8)
		time.Sleep(4 * time.Minute)
		r.want(8, 8)
		time.Sleep(time.Minute)
		r.want(0, 0)
	})
}

// Pods that share a claim have its device together, so one of them does not take it
// from the others.
func TestClaimIsSharedWhileStarting(t *testing.T) {
	a := sharing.Allocation{Holder: sharing.Holder{Namespace: "n", Pod: "a", Container: "c"}, Resource: DefaultDRADriver, DeviceID: "node/gpu-0", Claim: "n/one"}
	b, other := a, a
	b.Holder.Pod, other.Holder.Pod, other.Claim = "b", "other", "n/two"
	if got := missing([]sharing.Allocation{a, b}, []sharing.Allocation{a}); len(got) != 1 || got[0] != b {
		t.Errorf("missing %v, want the other pod of the claim", got)
	}
	known := b
	known.Holder.PodUID = "u1"
	for _, c := range [][2]sharing.Allocation{{b, known}, {known, b}} {
		if got := missing(c[:1], c[1:]); got != nil {
			t.Errorf("missing %v, want nobody: a pod is the same with and without its UID", got)
		}
	}
	if got := missing([]sharing.Allocation{a, b}, []sharing.Allocation{other}); got != nil {
		t.Errorf("missing %v although the device is of another claim now", got)
	}
}

// A holder stays the same one through a restart, whatever the checkpoint is good for then.
func TestRestartKeepsPodUIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(shortDir(t), "checkpoint")
		data, err := os.ReadFile(filepath.Join(captures, "checkpoint_before-restart.json"))
		must(t, err)
		replace(t, path, string(data))
		r := newRestarting(t, "s1", func(cfg *Config) { cfg.Checkpoint = path })
		before := sorted(r.want(10, 0).Allocations)
		if slices.ContainsFunc(before, func(a sharing.Allocation) bool { return a.Holder.PodUID == "" }) {
			t.Fatalf("not all UIDs are known: %v", before)
		}
		r.restart()
		replace(t, path, "{")
		for _, step := range []struct {
			file string
			kept int
		}{{"list_after-restart_0ms.json", 10}, {"list_after-restart_300ms.json", 9}, {"list_after-restart_300ms.json", 9}, {"list_after-restart_1000ms.json", 0}} {
			r.answers(step.file, "")
			got := r.want(10, step.kept)
			if diff := cmp.Diff(before, sorted(got.Allocations)); diff != "" {
				t.Errorf("%s: allocations (-before +after):\n%s", step.file, diff)
			}
		}
	})
}

// A pod that was made anew under its name is another holder, and that is not hidden.
func TestRestartDoesNotHideANewUID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old, renewed := held("n/p-0/main", "u1", "nvidia.com/gpu", "GPU-a"), held("n/p-0/main", "u2", "nvidia.com/gpu", "GPU-a")
		s := &starting{limit: time.Minute, notice: lossOf((&logBook{}).logger(), "kubelet")}
		s.complete([]sharing.Allocation{old}, false)
		s.connect()
		got, kept := s.complete([]sharing.Allocation{renewed}, false)
		if kept != 0 || len(got) != 1 || got[0] != renewed {
			t.Errorf("got %v, %d kept; want the new holder alone", got, kept)
		}
	})
}

// While a kubelet starts nobody loses a device but to somebody else, nothing is listed
// twice, and what is listed is what the kubelet says, followed by what is kept.
func TestNobodyLosesADeviceByARestart(t *testing.T) {
	var log logBook
	rapid.Check(t, func(t *rapid.T) {
		answer := rapid.Custom(func(t *rapid.T) []sharing.Allocation {
			var out []sharing.Allocation
			for _, id := range []string{"GPU-a", "GPU-b::0", "GPU-b::1", "MIG-c"} {
				if pod := rapid.SampledFrom([]string{"", "p", "q", "r"}).Draw(t, id); pod != "" {
					out = append(out, held("n/"+pod+"/main", rapid.SampledFrom([]string{"", "uid-" + pod}).Draw(t, "uid"), "nvidia.com/gpu", id))
				}
			}
			return out
		})
		s := &starting{limit: time.Hour, notice: lossOf(log.logger(), "kubelet")}
		before, _ := s.complete(answer.Draw(t, "before"), false)
		for range rapid.IntRange(1, 3).Draw(t, "restarts") {
			s.connect()
			now := answer.Draw(t, "now")
			got, kept := s.complete(slices.Clone(now), false)
			holders := make(map[string]string)
			for i, a := range got {
				if i < len(now) && identity(a) != identity(now[i]) || (i >= len(now)) != (i >= len(got)-kept) {
					t.Fatalf("allocation %d of %v is not of the answer %v", i, got, now)
				}
				if holders[a.DeviceID] != "" {
					t.Fatalf("%s is listed twice: %v", a.DeviceID, got)
				}
				holders[a.DeviceID] = a.Holder.Pod
			}
			for _, a := range before {
				if holders[a.DeviceID] == "" {
					t.Fatalf("%v lost its device to nobody: %v", a, got)
				}
				if i := slices.IndexFunc(got, func(g sharing.Allocation) bool { return identity(g) == identity(a) }); i >= 0 && a.Holder.PodUID != "" && got[i].Holder.PodUID != a.Holder.PodUID {
					t.Fatalf("%v lost its UID: %v", a, got[i])
				}
			}
			before = got
		}
	})
}
