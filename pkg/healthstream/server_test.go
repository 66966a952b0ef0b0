// SPDX-License-Identifier: Apache-2.0

package healthstream

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/healthstream/healthv1"
)

func TestAClientGetsTheWholeListOnEachChange(t *testing.T) {
	socket, source := socketIn(t), newBoard(listAt("a", 1, health.Healthy))
	serve(t, NewServer(ServerConfig{Source: source}), socket)
	c := follow(t, ClientConfig{Socket: socket})

	first := waitState(t, c, "the first list", upAt("a", 1))
	if d := statusOf(&first.List.List, sick); d != health.Healthy {
		t.Errorf("at first it is %v", d)
	}
	source.pin(listAt("a", 2, health.Unhealthy))
	second := waitState(t, c, "the change", upAt("a", 2))
	if len(second.List.Devices) != 2 || len(second.List.Report.Verdicts) != 2 || statusOf(&second.List.List, sick) != health.Unhealthy {
		t.Errorf("after the change it has %+v", second.List)
	}
	if statusOf(&first.List.List, sick) != health.Healthy {
		t.Error("the first list was modified")
	}
}

func TestAnotherEpochIsAnotherListWhateverItsVersion(t *testing.T) {
	socket, source := socketIn(t), newBoard(listAt("a", 1, health.Healthy))
	serve(t, NewServer(ServerConfig{Source: source}), socket)
	c := follow(t, ClientConfig{Socket: socket})
	waitState(t, c, "the first list", upAt("a", 1))
	source.pin(listAt("b", 1, health.Unhealthy))
	waitState(t, c, "the other epoch", upAt("b", 1))
}

func TestWhatHasNoNewVersionIsNotSentAgain(t *testing.T) {
	socket, source := socketIn(t), newBoard(listAt("a", 1, health.Healthy))
	s := NewServer(ServerConfig{Source: source, Heartbeat: 10 * time.Millisecond})
	serve(t, s, socket)
	c := follow(t, ClientConfig{Socket: socket, SilentAfter: patience})
	waitState(t, c, "the first list", upAt("a", 1))
	for range 10 {
		source.pin(listAt("a", 1, health.Healthy))
	}
	wait(t, "heartbeats", func() error {
		if n := s.Stats().Heartbeats; n < 3 {
			return fmt.Errorf("%d heartbeats", n)
		}
		return nil
	})
	if got := s.Stats(); got.Lists != 1 || got.Clients != 1 || got.Dropped != 0 {
		t.Errorf("stats %+v", got)
	}
}

func TestAHeartbeatRenewsTheListWithoutWakingAnyone(t *testing.T) {
	source := newBoard(listAt("a", 1, health.Healthy))
	socket := socketIn(t)
	serve(t, NewServer(ServerConfig{Source: source, Heartbeat: 10 * time.Millisecond}), socket)
	c := follow(t, ClientConfig{Socket: socket, SilentAfter: patience})
	before := waitState(t, c, "the first list", upAt("a", 1))
	_, changed := c.Watch()

	later := listAt("a", 1, health.Healthy)
	later.Report.Time = later.Report.Time.Add(time.Hour)
	source.pin(later)
	wait(t, "the heartbeat's time", func() error {
		state, _ := c.Watch()
		if !state.List.Report.Time.Equal(later.Report.Time) || !state.List.At.After(before.List.At) {
			return fmt.Errorf("the list is of %v and came at %v", state.List.Report.Time, state.List.At)
		}
		return nil
	})
	select {
	case <-changed:
		t.Error("a heartbeat woke who waits for a change")
	default:
	}
}

func TestAClientHearsThatThereIsNoListYet(t *testing.T) {
	socket, source := socketIn(t), newBoard(nil)
	serve(t, NewServer(ServerConfig{Source: source, Heartbeat: 10 * time.Millisecond}), socket)
	c := follow(t, ClientConfig{Socket: socket, SilentAfter: patience})
	state := waitState(t, c, "word of it", func(s ClientState) bool { return errors.Is(s.Err, errNoList) })
	if state.Up || state.List != nil {
		t.Errorf("it has %s", described(state))
	}
	source.pin(listAt("a", 1, health.Unhealthy))
	if state = waitState(t, c, "the first list", upAt("a", 1)); state.Err != nil || state.Reconnects != 0 {
		t.Errorf("it has %s", described(state))
	}
}

func TestAHundredClientsGetTheNewestList(t *testing.T) {
	const clients, last = 100, 50
	socket, source := socketIn(t), newBoard(listAt("a", 0, health.Healthy))
	s := NewServer(ServerConfig{Source: source})
	serve(t, s, socket)
	var all []*Client
	for range clients {
		all = append(all, follow(t, ClientConfig{Socket: socket}))
	}
	for v := range uint64(last) {
		source.pin(listAt("a", v+1, health.Unhealthy))
	}
	for _, c := range all {
		waitState(t, c, "the last list", upAt("a", last))
	}
	if got := s.Stats(); got.Clients != clients || got.Dropped != 0 {
		t.Errorf("stats %+v", got)
	}
}

// fat is a list that fills what a connection holds in flight.
func fat(version uint64) *List {
	list := listAt("a", version, health.Healthy)
	list.Devices[0].Model = strings.Repeat("x", 1<<20)
	return list
}

func TestASlowClientIsDroppedAndTheOthersGoOn(t *testing.T) {
	const slowAfter = 500 * time.Millisecond
	socket, source := socketIn(t), newBoard(fat(1))
	s := NewServer(ServerConfig{Source: source, SlowAfter: slowAfter})
	serve(t, s, socket)
	fast := follow(t, ClientConfig{Socket: socket})
	waitState(t, fast, "the first list", upAt("a", 1))

	// It opens a stream and then takes nothing from it.
	w, err := NewClient(ClientConfig{Socket: socket}).dial()
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	stalled, err := w.api.Watch(t.Context(), &healthv1.WatchRequest{})
	if err != nil {
		t.Fatal(err)
	}
	wait(t, "the second client", func() error {
		if n := s.Stats().Clients; n != 2 {
			return fmt.Errorf("%d clients", n)
		}
		return nil
	})
	version := uint64(1)
	wait(t, "the drop", func() error {
		version++
		source.pin(fat(version))
		waitState(t, fast, "the newest list", upAt("a", version))
		if got := s.Stats(); got.Dropped != 1 || got.Clients != 1 {
			return fmt.Errorf("stats %+v", got)
		}
		return nil
	})
	if state, _ := fast.Watch(); state.Reconnects != 0 {
		t.Errorf("the fast client lost its stream: %s", described(state))
	}
	for range 10 {
		if _, err = stalled.Recv(); err != nil {
			return
		}
	}
	t.Error("the slow client's stream goes on")
}

func TestTheServerLeavesNothingBehind(t *testing.T) {
	before := runtime.NumGoroutine()
	socket, source := socketIn(t), newBoard(listAt("a", 1, health.Healthy))
	r := serve(t, NewServer(ServerConfig{Source: source}), socket)
	var clients []*running
	for range 10 {
		c := NewClient(ClientConfig{Socket: socket})
		clients = append(clients, run(c.Run))
		waitState(t, c, "the first list", upAt("a", 1))
	}
	r.stop(t)
	if _, err := os.Lstat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
	for _, c := range clients {
		c.stop(t)
	}
	wait(t, "the goroutines to end", func() error {
		if n := runtime.NumGoroutine(); n > before {
			return fmt.Errorf("%d goroutines, %d before", n, before)
		}
		return nil
	})
}

func TestAnOperatorsWordIsHandedOnWithWhoSaidIt(t *testing.T) {
	socket, operator := socketIn(t), new(desk)
	at := time.Unix(1_800_000_000, 0).UTC()
	serve(t, NewServer(ServerConfig{Source: newBoard(nil), Operator: operator, Now: func() time.Time { return at }}), socket)
	c := NewClient(ClientConfig{Socket: socket})
	got, err := c.Clear(t.Context(), sick, " replaced the riser ", "alice")
	if err != nil {
		t.Fatal(err)
	}
	by := fmt.Sprintf("uid %d pid %d: alice", os.Getuid(), os.Getpid())
	if got.Device != sick || got.By != by || got.Reason != "replaced the riser" || !got.Time.Equal(at) ||
		len(got.Ended) != 1 || got.Ended[0].Kind != health.XIDKind(79) {
		t.Errorf("it came back as %+v", got)
	}
	if len(operator.words) != 1 || operator.words[0].By != by {
		t.Errorf("the operator heard %+v", operator.words)
	}
}

func TestAWordThatMakesNoSenseIsRefusedWithWhatToDo(t *testing.T) {
	long := strings.Repeat("x", maxWords+1)
	for _, tt := range []struct {
		name, reason, by, want string
		device                 gpu.UUID
		operator               Operator
	}{
		{name: "no device", reason: "r", operator: new(desk), want: "no device"},
		{name: "no reason", device: sick, reason: " \n", operator: new(desk), want: "no reason"},
		{name: "a long reason", device: sick, reason: long, operator: new(desk), want: "be shorter"},
		{name: "a long name", device: sick, reason: "r", by: long, operator: new(desk), want: "be shorter"},
		{name: "the operator's own refusal", device: sick, reason: "r", operator: &desk{refuse: errRefused}, want: errRefused.Error()},
		{name: "the operator gives up", device: sick, reason: "r", operator: &desk{refuse: context.Canceled}, want: "canceled"},
		{name: "nobody takes words", device: sick, reason: "r", want: "takes no words"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			socket := socketIn(t)
			serve(t, NewServer(ServerConfig{Source: newBoard(nil), Operator: tt.operator}), socket)
			_, err := NewClient(ClientConfig{Socket: socket}).Clear(t.Context(), tt.device, tt.reason, tt.by)
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "rpc error") {
				t.Errorf("error %v, want one with %q", err, tt.want)
			}
			if d, ok := tt.operator.(*desk); ok && len(d.words) > 0 {
				t.Errorf("the operator heard %+v", d.words)
			}
		})
	}
}

func TestABadFactCostsItselfOnly(t *testing.T) {
	socket, taker := socketIn(t), new(desk)
	serve(t, NewServer(ServerConfig{Source: newBoard(nil), Facts: taker}), socket)
	c := NewClient(ClientConfig{Socket: socket})
	good := health.Fact{GPU: sick, Kind: health.KindMPSDown, Class: health.ClassReset, Text: "the daemon died"}
	bad := []health.Fact{
		{Kind: good.Kind, Class: good.Class},
		{GPU: "MIG-1", Kind: good.Kind, Class: good.Class},
		{GPU: sick, Kind: "Mps Down", Class: good.Class},
		{GPU: sick, Kind: health.Kind(strings.Repeat("a", maxKind+1)), Class: good.Class},
		{GPU: sick, Kind: good.Kind},
		{GPU: sick, Kind: good.Kind, Class: good.Class, Text: strings.Repeat("x", maxWords+1)},
	}
	err := c.ReportFacts(t.Context(), "plugin", append(bad, good))
	if err == nil || strings.Count(err.Error(), "refuses") != len(bad) {
		t.Errorf("error %v, want one line for each of %d", err, len(bad))
	}
	if got := taker.reported("plugin"); len(got) != 1 || got[0] != good {
		t.Errorf("reported: %+v", got)
	}
	if err := c.ReportFacts(t.Context(), "plugin", nil); err != nil {
		t.Error(err)
	}
	if got := taker.reported("plugin"); len(got) != 0 {
		t.Errorf("after it was taken back: %+v", got)
	}
}

func TestAReportWithoutAReporterOrEndIsRefused(t *testing.T) {
	socket, taker := socketIn(t), new(desk)
	serve(t, NewServer(ServerConfig{Source: newBoard(nil), Facts: taker}), socket)
	c := NewClient(ClientConfig{Socket: socket})
	for _, tt := range []struct {
		reporter string
		facts    int
		want     string
	}{{"", 1, "name"}, {strings.Repeat("x", maxWords+1), 1, "name"}, {"plugin", maxFacts + 1, "facts"}} {
		if err := c.ReportFacts(t.Context(), tt.reporter, make([]health.Fact, tt.facts)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%d facts of %.10q: error %v", tt.facts, tt.reporter, err)
		}
	}
	if len(taker.reports) > 0 {
		t.Errorf("reported: %v", taker.reports)
	}
	deaf := socketIn(t)
	serve(t, NewServer(ServerConfig{Source: newBoard(nil)}), deaf)
	if err := NewClient(ClientConfig{Socket: deaf}).ReportFacts(t.Context(), "plugin", nil); err == nil || !strings.Contains(err.Error(), "takes no facts") {
		t.Errorf("error %v", err)
	}
}

func TestManyCallersAtOnce(t *testing.T) {
	socket, d := socketIn(t), new(desk)
	source := newBoard(listAt("a", 1, health.Healthy))
	s := NewServer(ServerConfig{Source: source, Operator: d, Facts: d})
	serve(t, s, socket)
	var group sync.WaitGroup
	for i := range 20 {
		group.Go(func() {
			c := NewClient(ClientConfig{Socket: socket})
			_, listed := c.List(t.Context())
			_, cleared := c.Clear(t.Context(), sick, "because", "")
			told := c.ReportFacts(t.Context(), fmt.Sprint(i), nil)
			if err := errors.Join(listed, cleared, told); err != nil {
				t.Error(err)
			}
			source.pin(listAt("a", uint64(i), health.Healthy))
			s.Stats()
		})
	}
	group.Wait()
	if len(d.words) != 20 || len(d.reports) != 20 {
		t.Errorf("%d words and %d reports, want 20 of each", len(d.words), len(d.reports))
	}
}
