// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// wants fails the test unless the pods of a listing have these UIDs at last.
func wants(t *testing.T, w *PodWatch, pods [][2]string, want ...string) {
	t.Helper()
	limit := time.After(20 * time.Second)
	for {
		_, changed := w.Watch()
		got := uids(w.Enrich(listed(pods...)))
		if slices.Equal(got, want) {
			return
		}
		select {
		case <-changed:
		case <-limit:
			t.Fatalf("UIDs %q, want %q", got, want)
		}
	}
}

// quiet takes the alarm that there may be.
func quiet(w *PodWatch) {
	select {
	case <-w.Alarms():
	default:
	}
}

func alarmed(t *testing.T, w *PodWatch) {
	t.Helper()
	select {
	case <-w.Alarms():
	case <-time.After(20 * time.Second):
		t.Fatal("no alarm")
	}
}

func TestOnlyThePodsOfTheNodeAreAskedFor(t *testing.T) {
	s := newPodServer(t)
	s.put(aPod("team-a/train", "u1", "Running"))
	w := followPods(t, s)
	wants(t, w, [][2]string{{"team-a/train", ""}}, "u1")
	s.breaks(0)
	s.put(aPod("team-a/train", "u2", "Running"))
	wants(t, w, [][2]string{{"team-a/train", ""}}, "u2")
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, asked := range s.seen {
		if asked != "/api/v1/pods?spec.nodeName=n1" {
			t.Errorf("asked for %s", asked)
		}
	}
}

func TestAPodIsKnownByWhatTheAPIServerSays(t *testing.T) {
	s := newPodServer(t)
	s.put(
		aPod("team-a/chat-6d5f-x2x9q", "u1", "Running", labelled(map[string]string{"app": "chat", "pod-template-hash": "6d5f"}), ownedBy("ReplicaSet", "chat-6d5f")),
		aPod("team-b/lonely", "u2", "Pending"),
		aPod("team-b/not-listed", "u3", "Running"),
	)
	w := followPods(t, s)
	wants(t, w, [][2]string{{"team-b/lonely", "u2"}, {"team-a/chat-6d5f-x2x9q", ""}, {"team-b/lonely", "u2"}, {"team-c/unknown", ""}}, "u2", "u1", "u2", "")
	want := []Pod{
		{Namespace: "team-a", Name: "chat-6d5f-x2x9q", UID: "u1", Phase: "Running", WorkloadKind: "Deployment", Workload: "chat", Labels: map[string]string{"app": "chat", "pod-template-hash": "6d5f"}},
		{Namespace: "team-b", Name: "lonely", UID: "u2", Phase: "Pending", WorkloadKind: "Pod", Workload: "lonely"},
	}
	if diff := cmp.Diff(want, w.Pods()); diff != "" {
		t.Errorf("pods (-want +got):\n%s", diff)
	}
}

// A pod's name is one in its namespace only (opencost #4041).
func TestPodsOfOneNameInTwoNamespacesAreTwo(t *testing.T) {
	s := newPodServer(t)
	s.put(aPod("team-a/database-0", "ua", "Running"), aPod("team-b/database-0", "ub", "Succeeded"))
	w := followPods(t, s)
	wants(t, w, [][2]string{{"team-a/database-0", ""}, {"team-b/database-0", ""}}, "ua", "ub+")
}

// Kubelets list pods that have ended (kubernetes #119423, #132020); those that wait for an image hold their device
// (opencost #1590).
func TestWhoHasEndedIsTerminalAndWhoWaitsIsNot(t *testing.T) {
	s := newPodServer(t)
	s.put(aPod("n/waits", "u1", "Pending"), aPod("n/runs", "u2", "Running"), aPod("n/odd", "u3", "Unknown"),
		aPod("n/done", "u4", "Succeeded"), aPod("n/broke", "u5", "Failed"))
	w := followPods(t, s)
	pods := [][2]string{{"n/waits", ""}, {"n/runs", ""}, {"n/odd", ""}, {"n/done", ""}, {"n/broke", "u5"}}
	wants(t, w, pods, "u1", "u2", "u3", "u4+", "u5+")
	quiet(w)
	s.put(aPod("n/runs", "u2", "Succeeded"))
	alarmed(t, w)
	wants(t, w, pods, "u1", "u2+", "u3", "u4+", "u5+")
	// Its object goes, and the kubelet still lists it.
	s.remove("n/runs")
	untilPods(t, w, "without it", func(s PodState) bool { return s.Pods == 4 })
	wants(t, w, pods, "u1", "u2+", "u3", "u4+", "u5+")
}

func TestATerminalPhaseIsNotBelievedWhileAContainerRuns(t *testing.T) {
	s := newPodServer(t)
	s.put(aPod("n/p", "u1", "Failed", runningStill))
	w := followPods(t, s)
	wants(t, w, [][2]string{{"n/p", ""}}, "u1")
	s.put(aPod("n/p", "u1", "Failed"))
	wants(t, w, [][2]string{{"n/p", ""}}, "u1+")
}

// The kubelet knows whom it gave the device to: what the API server says of another pod of that name does not
// concern it.
func TestAPodMadeAnewUnderItsNameIsAnother(t *testing.T) {
	s := newPodServer(t)
	s.put(aPod("n/train-0", "new", "Failed", labelled(map[string]string{"app": "x"})))
	w := followPods(t, s)
	untilPods(t, w, "synced", synced)
	wants(t, w, [][2]string{{"n/train-0", "old"}}, "old")
	if got := w.Pods(); len(got) != 0 {
		t.Errorf("the facts of another pod are told: %v", got)
	}
	wants(t, w, [][2]string{{"n/train-0", "new"}}, "new+")
	wants(t, w, [][2]string{{"n/train-0", "old"}, {"n/train-0", "new"}}, "old", "new+")
}

// The end of the old pod may be told of after the beginning of the new one.
func TestTheEndOfTheOldPodIsNotThatOfTheNew(t *testing.T) {
	s := newPodServer(t)
	s.put(aPod("n/p-0", "old", "Running"))
	w := followPods(t, s)
	wants(t, w, [][2]string{{"n/p-0", ""}}, "old")
	quiet(w)
	s.do(func() {
		gone := s.pods["n/p-0"]
		s.pods["n/p-0"] = aPod("n/p-0", "new", "Running")
		s.log = append(s.log, obj{"type": "ADDED", "object": s.pods["n/p-0"]}, obj{"type": "DELETED", "object": gone})
	})
	alarmed(t, w)
	s.put(aPod("n/marker", "u9", "Running"))
	untilPods(t, w, "with both", func(s PodState) bool { return s.Pods == 2 })
	wants(t, w, [][2]string{{"n/p-0", ""}}, "new")
}

// A static pod has one UID at the kubelet, in its checkpoint, and another at the API server, by which everybody
// else knows it.
func TestAStaticPodHasTheAPIServersUID(t *testing.T) {
	s := newPodServer(t)
	s.put(aPod("kube-system/exporter-n1", "api", "Running", mirrors("hash"), ownedBy("Node", "n1")))
	w := followPods(t, s)
	wants(t, w, [][2]string{{"kube-system/exporter-n1", "hash"}}, "api")
	if got := w.Pods(); got[0].WorkloadKind != "Pod" || got[0].Workload != "exporter-n1" {
		t.Errorf("its workload is %s %s", got[0].WorkloadKind, got[0].Workload)
	}
	// It stays so when the API server is away.
	s.breaks(http.StatusServiceUnavailable)
	untilPods(t, w, "in trouble", troubled)
	wants(t, w, [][2]string{{"kube-system/exporter-n1", "hash"}}, "api")
}

func TestBeforeTheAPIServerAnswersNothingIsSaid(t *testing.T) {
	s := newPodServer(t)
	s.put(aPod("n/p", "u1", "Succeeded"))
	s.breaks(http.StatusForbidden)
	w := followPods(t, s)
	untilPods(t, w, "refused", troubled)
	state, _ := w.Watch()
	if state.Synced || !strings.Contains(state.Err.Error(), "must be allowed") || !strings.Contains(state.Err.Error(), "not today") {
		t.Errorf("state %+v", state)
	}
	wants(t, w, [][2]string{{"n/p", ""}, {"n/q", "u7"}}, "", "u7")
	s.breaks(0)
	alarmed(t, w)
	wants(t, w, [][2]string{{"n/p", ""}, {"n/q", "u7"}}, "u1+", "u7")
}

// While the API server is away, pods that go on holding their devices stay who they are, and nobody is taken for
// one that had the name before.
func TestAnOutageChangesNobody(t *testing.T) {
	s := newPodServer(t)
	s.put(aPod("n/a", "ua", "Running"), aPod("n/b", "ub", "Succeeded"), aPod("n/c", "uc", "Running"), aPod("n/d", "ud", "Pending"))
	w := followPods(t, s)
	wants(t, w, [][2]string{{"n/a", ""}, {"n/b", ""}, {"n/c", ""}}, "ua", "ub+", "uc")
	s.breaks(http.StatusServiceUnavailable)
	untilPods(t, w, "in trouble", troubled)
	wants(t, w, [][2]string{{"n/a", ""}, {"n/b", ""}}, "ua", "ub+")
	wants(t, w, [][2]string{{"n/a", ""}, {"n/b", ""}, {"n/c", ""}, {"n/d", "ud"}}, "ua", "ub+", "", "ud")
	if got := w.Pods(); len(got) != 3 {
		t.Errorf("pods %v, want those of a, b and d", got)
	}
	s.put(aPod("n/c", "uc2", "Running"))
	s.breaks(0)
	wants(t, w, [][2]string{{"n/a", ""}, {"n/b", ""}, {"n/c", ""}, {"n/d", "ud"}}, "ua", "ub+", "uc2", "ud")
}

// A checkpoint that cannot be read for a while does not make a pod another.
func TestAPodStaysItselfWithoutTheKubeletsUID(t *testing.T) {
	s := newPodServer(t)
	s.put(aPod("n/p", "u1", "Running", mirrors("hash")))
	w := followPods(t, s)
	wants(t, w, [][2]string{{"n/p", "hash"}}, "u1")
	s.breaks(http.StatusServiceUnavailable)
	untilPods(t, w, "in trouble", troubled)
	wants(t, w, [][2]string{{"n/p", ""}}, "u1")
	wants(t, w, [][2]string{{"n/p", "hash"}}, "u1")
	wants(t, w, [][2]string{{"n/p", "u1"}}, "u1")
}

func TestAnObjectThatIsGoneFreesNoDevice(t *testing.T) {
	s := newPodServer(t)
	s.put(aPod("n/p", "u1", "Running"), aPod("n/static", "api", "Running", mirrors("hash")))
	w := followPods(t, s)
	wants(t, w, [][2]string{{"n/p", ""}, {"n/static", "hash"}}, "u1", "api")
	s.remove("n/p")
	s.remove("n/static")
	untilPods(t, w, "without it", func(s PodState) bool { return s.Pods == 0 })
	wants(t, w, [][2]string{{"n/p", ""}, {"n/static", "hash"}}, "u1", "api")
	wants(t, w, [][2]string{{"n/p", "u1"}, {"n/static", "hash"}}, "u1", "api")
	if got := w.Pods(); len(got) != 2 || got[0].UID != "u1" {
		t.Errorf("pods %v", got)
	}
}

func TestAnOldVersionIsTakenUpAnewWithoutAWord(t *testing.T) {
	s := newPodServer(t)
	s.raw = `{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}` + "\n"
	s.put(aPod("n/p", "u1", "Running"))
	var logged bytes.Buffer
	t.Cleanup(func() {
		if logged.Len() > 0 {
			t.Errorf("an old version is told as a trouble: %s", &logged)
		}
	})
	w := followPodsTelling(t, s, slog.New(slog.NewTextHandler(&logged, nil)))
	wants(t, w, [][2]string{{"n/p", ""}}, "u1")
	s.put(aPod("n/p", "u2", "Running"))
	wants(t, w, [][2]string{{"n/p", ""}}, "u2")
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lists < 2 {
		t.Errorf("listed %d times", s.lists)
	}
}

// What an API server says in the wrong form costs that, and an outage at most: who holds what is the kubelet's word.
func TestAnAPIServerThatSpeaksNonsenseStopsNothing(t *testing.T) {
	for name, raw := range map[string]string{
		"no JSON":           "<html>it works!</html>",
		"half an event":     `{"type":"MODIFIED","object":{"metadata":{"name":"p"`,
		"an error of its":   `{"type":"ERROR","object":{"code":500,"message":"` + strings.Repeat("x", 5000) + `"}}`,
		"an endless string": `{"type":"MODIFIED","object":{"metadata":{"name":"` + strings.Repeat("x", maxEventBytes+1),
	} {
		t.Run(name, func(t *testing.T) {
			s := newPodServer(t)
			s.put(aPod("n/p", "u1", "Running"))
			w := followPods(t, s)
			wants(t, w, [][2]string{{"n/p", ""}}, "u1")
			s.do(func() {
				s.raw = raw
				close(s.cut)
				s.cut = make(chan struct{})
			})
			untilPods(t, w, "in trouble", troubled)
			if state, _ := w.Watch(); len(state.Err.Error()) > 2000 {
				t.Errorf("an error of %d bytes", len(state.Err.Error()))
			}
			wants(t, w, [][2]string{{"n/p", ""}}, "u1")
			s.put(aPod("n/p", "u1", "Succeeded"))
			wants(t, w, [][2]string{{"n/p", ""}}, "u1+")
		})
	}
	t.Run("pods of no use", func(t *testing.T) {
		s := newPodServer(t)
		s.put(aPod("n/", "u0", "Running"), aPod("n/p", "u1", "Running"), aPod("n/q", "", "Running"), aPod("n/r", strings.Repeat("u", 300), "Running"))
		w := followPods(t, s)
		wants(t, w, [][2]string{{"n/p", ""}, {"n/q", ""}}, "u1", "")
		s.put(aPod("n/q", "", "Succeeded"), aPod("n/p", "u1", "Running", func(p obj) { p["status"] = "fine" }))
		untilPods(t, w, "with five dropped", func(s PodState) bool { return s.Pods == 1 && s.Dropped == 5 && s.Err == nil })
	})
}

func TestAnOutageIsLoggedOnce(t *testing.T) {
	s := newPodServer(t)
	var logged bytes.Buffer
	w := connect(t, s.URL).WatchPods("n1", slog.New(slog.NewTextHandler(&logged, nil)))
	for range 3 {
		w.fail(errTooLong)
	}
	w.set(nil, 0)
	if lines := strings.Count(logged.String(), "\n"); lines != 2 || !strings.Contains(logged.String(), "again") {
		t.Errorf("log:\n%s", logged.String())
	}
}
