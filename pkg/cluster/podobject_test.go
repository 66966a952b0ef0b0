// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gpumeter/gpumeter/pkg/sharing"
)

func TestTheWorkloadOfAPod(t *testing.T) {
	created := time.Date(2026, 11, 30, 18, 0, 30, 0, time.UTC)
	minute := fmt.Sprint(created.Unix() / 60)
	for name, c := range map[string]struct {
		kind, owner string
		labels      map[string]string
		want        string
	}{
		"a Deployment":                     {"ReplicaSet", "chat-6d5f", map[string]string{"pod-template-hash": "6d5f"}, "Deployment chat"},
		"a Deployment with dashes":         {"ReplicaSet", "chat-v2-6d5f", map[string]string{"pod-template-hash": "6d5f"}, "Deployment chat-v2"},
		"a Rollout":                        {"ReplicaSet", "chat-77", map[string]string{"rollouts-pod-template-hash": "77"}, "Rollout chat"},
		"a ReplicaSet of its own":          {"ReplicaSet", "chat-6d5f", nil, "ReplicaSet chat-6d5f"},
		"a ReplicaSet with another's hash": {"ReplicaSet", "chat", map[string]string{"pod-template-hash": "6d5f"}, "ReplicaSet chat"},
		"a ReplicaSet that is only a hash": {"ReplicaSet", "-6d5f", map[string]string{"pod-template-hash": "6d5f"}, "ReplicaSet -6d5f"},
		"a Job":                            {"Job", "train", nil, "Job train"},
		"a CronJob":                        {"Job", "nightly-" + minute, nil, "CronJob nightly"},
		"a CronJob that was late":          {"Job", "nightly-" + fmt.Sprint(created.Add(-48*time.Hour).Unix()/60), nil, "CronJob nightly"},
		"a Job with a date in its name":    {"Job", "train-20261130", nil, "Job train-20261130"},
		"a Job with a number":              {"Job", "train-7", nil, "Job train-7"},
		"a Job that is only a number":      {"Job", "-" + minute, nil, "Job -" + minute},
		"a StatefulSet":                    {"StatefulSet", "db", nil, "StatefulSet db"},
		"a DaemonSet":                      {"DaemonSet", "agent", nil, "DaemonSet agent"},
		"somebody's own kind":              {"Workspace", "alice", nil, "Workspace alice"},
		"a static pod":                     {"Node", "n1", nil, "Pod p"},
		"nobody":                           {"", "", nil, "Pod p"},
		"a kind without a name":            {"Workspace", "", nil, " "},
	} {
		t.Run(name, func(t *testing.T) {
			m := podMetadata{Name: "p", Created: created, Labels: c.labels, Owners: []owner{{Kind: "ReplicaSet", Name: "not-the-controller"}, {Kind: c.kind, Name: c.owner, Controller: true}}}
			kind, workload := m.workload()
			if got := kind + " " + workload; got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestWhatIsKeptOfAPodIsBounded(t *testing.T) {
	if got := boundedLabels(map[string]string{"a": "1", "b": strings.Repeat("x", 64), strings.Repeat("k", 318): "", "": "1", "c": "\xff"}); !maps.Equal(got, map[string]string{"a": "1"}) {
		t.Errorf("labels %v", got)
	}
	many := map[string]string{}
	for i := range maxLabels + 1 {
		many[fmt.Sprint(i)] = ""
	}
	if got := boundedLabels(many); got != nil {
		t.Errorf("%d labels are kept", len(got))
	}
	var list bytes.Buffer
	list.WriteString(`{"metadata":{"resourceVersion":"7"},"items":[`)
	for i := range maxPods + 10 {
		if i > 0 {
			list.WriteByte(',')
		}
		fmt.Fprintf(&list, `{"metadata":{"namespace":"n","name":"p%d","uid":"u"}}`, i)
	}
	list.WriteString(`]}`)
	version, found, dropped, err := readList(&list)
	if err != nil || version != "7" || len(found) != maxPods || dropped != 10 {
		t.Errorf("version %q, %d pods, %d dropped, %v", version, len(found), dropped, err)
	}
}

// Whatever an API server says, and whenever it is away: Enrich says of each allocation of the listing whose it is and
// whether that pod has ended, changes nothing else, takes nobody for a pod of another UID, and ends nobody whose
// own phase is not terminal.
func TestWhateverAnAPIServerSaysTheKubeletsWordStands(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := (&Client{}).WatchPods("n1", nil)
		// What was ever said of a UID: whether it ended, and its mirror.
		ended, mirror := map[string]bool{}, map[string]string{}
		facts := rapid.Custom(func(t *rapid.T) podFacts {
			f := podFacts{Pod: Pod{Namespace: "n", Name: rapid.SampledFrom([]string{"p", "q"}).Draw(t, "name"), UID: rapid.SampledFrom([]string{"u1", "u2", "u3"}).Draw(t, "uid")}}
			f.mirror = map[string]string{"u3": "hash"}[f.UID]
			f.ended = rapid.Bool().Draw(t, "ended")
			ended[f.UID] = ended[f.UID] || f.ended
			mirror[f.mirror] = f.UID
			return f
		})
		t.Repeat(map[string]func(*rapid.T){
			"list": func(t *rapid.T) {
				found := map[podName]podFacts{}
				for _, f := range rapid.SliceOfN(facts, 0, 2).Draw(t, "pods") {
					found[podName{"n", f.Name}] = f
				}
				w.set(found, 0)
			},
			"event": func(t *rapid.T) {
				f := facts.Draw(t, "pod")
				w.hear(podEvent{name: podName{"n", f.Name}, facts: f, deleted: rapid.Bool().Draw(t, "deleted")})
			},
			"outage": func(*rapid.T) { w.fail(errTooLong) },
			"enrich": func(t *rapid.T) {
				var in sharing.Listing
				for _, name := range rapid.SliceOfN(rapid.SampledFrom([]string{"p", "q", "r"}), 0, 4).Draw(t, "listed") {
					uid := rapid.SampledFrom([]string{"", "", "u1", "u2", "hash"}).Draw(t, "listed uid")
					in.Allocations = append(in.Allocations, listed([2]string{"n/" + name, uid}).Allocations...)
				}
				before := slices.Clone(in.Allocations)
				out := w.Enrich(in)
				if !slices.Equal(before, in.Allocations) {
					t.Fatal("the listing that was given has changed")
				}
				if len(out.Allocations) != len(before) {
					t.Fatalf("%d allocations of %d", len(out.Allocations), len(before))
				}
				for i, a := range out.Allocations {
					was := before[i]
					uid := a.Holder.PodUID
					if was.Holder.PodUID != "" && uid != was.Holder.PodUID && mirror[was.Holder.PodUID] != uid {
						t.Fatalf("%v became %v", was, a)
					}
					if a.Terminal && !ended[uid] {
						t.Fatalf("%v has ended, which nobody said", a)
					}
					a.Holder.PodUID, a.Terminal = was.Holder.PodUID, was.Terminal
					if a != was {
						t.Fatalf("%v became %v", was, a)
					}
				}
			},
		})
	})
}

func TestWhatIsReadOfAnAPIServerIsBounded(t *testing.T) {
	long := strings.Repeat("x", maxEventBytes)
	if _, err := newEventReader(strings.NewReader(`{"type":"ADDED","object":"` + long)).next(); !errors.Is(err, errTooLong) {
		t.Errorf("one long event: %v", err)
	}
	// The bound is that of one event, not of the watch.
	event := `{"type":"BOOKMARK","object":"` + long[:maxEventBytes/3] + `"}`
	end := `{"type":"DELETED","object":{"metadata":{"namespace":"n","name":"p","uid":"u"}}}`
	if got, err := newEventReader(strings.NewReader(strings.Repeat(event, 7) + end)).next(); err != nil || !got.deleted {
		t.Errorf("after many events: %+v, %v", got, err)
	}
}

func FuzzReadList(f *testing.F) {
	good, err := json.Marshal(obj{"metadata": obj{"resourceVersion": "7"}, "items": []obj{aPod("n/p", "u1", "Running", mirrors("h"), runningStill, ownedBy("Job", "j-29384520"))}})
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{string(good), `{}`, `{"items":null}`, `{"items":[null]}`, `{"items":[{"metadata":{"labels":{"a":null}}}]}`, `[`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		_, found, _, err := readList(bytes.NewReader(text))
		if err != nil {
			return
		}
		for name, facts := range found {
			if name.name == "" || facts.UID == "" || len(facts.Labels) > maxLabels || facts.Name != name.name {
				t.Fatalf("%v: %+v", name, facts)
			}
		}
	})
}

func FuzzReadEvents(f *testing.F) {
	good, err := json.Marshal(obj{"type": "ADDED", "object": aPod("n/p", "u1", "Running")})
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{string(good), string(good) + string(good), `{"type":"BOOKMARK","object":{}}`, `{"type":"ERROR","object":{"code":410}}`, `{"type":"ERROR"}`, `{"type":"ADDED"}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		events := newEventReader(bytes.NewReader(text))
		for {
			event, err := events.next()
			if err != nil {
				return
			}
			if !event.unusable && (event.name.name == "" || event.facts.UID == "") {
				t.Fatalf("%+v", event)
			}
		}
	})
}
