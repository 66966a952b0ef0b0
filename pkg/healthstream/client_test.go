// SPDX-License-Identifier: Apache-2.0

package healthstream

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/healthstream/healthv1"
)

func TestTheLastListStandsWhileTheServerIsAway(t *testing.T) {
	socket := socketIn(t)
	first := serve(t, NewServer(ServerConfig{Source: newBoard(listAt("a", 7, health.Unhealthy))}), socket)
	c := follow(t, ClientConfig{Socket: socket})
	up := waitState(t, c, "the first list", upAt("a", 7))

	first.stop(t)
	down := waitState(t, c, "the loss", func(s ClientState) bool { return !s.Up && errors.Is(s.Err, fs.ErrNotExist) })
	if down.List == nil || statusOf(&down.List.List, sick) != health.Unhealthy || down.Since.Before(up.Since) {
		t.Errorf("while the server is away it has %s", described(down))
	}

	// The new life counts its versions from the beginning.
	serve(t, NewServer(ServerConfig{Source: newBoard(listAt("b", 1, health.Healthy))}), socket)
	back := waitState(t, c, "the new epoch", upAt("b", 1))
	if back.Reconnects != 1 || back.Err != nil || statusOf(&back.List.List, sick) != health.Healthy {
		t.Errorf("after the restart it has %s", described(back))
	}
}

func TestAClientThatIsThereFirstFindsTheServer(t *testing.T) {
	socket := socketIn(t)
	c := follow(t, ClientConfig{Socket: socket})
	state := waitState(t, c, "the error", func(s ClientState) bool { return s.Err != nil })
	if state.Up || state.List != nil || !errors.Is(state.Err, fs.ErrNotExist) || !strings.Contains(state.Err.Error(), socket) {
		t.Errorf("without a server it has %s", described(state))
	}
	serve(t, NewServer(ServerConfig{Source: newBoard(listAt("a", 1, health.Healthy))}), socket)
	if state = waitState(t, c, "the first list", upAt("a", 1)); state.Reconnects != 0 {
		t.Errorf("the first connection is %d reconnects", state.Reconnects)
	}
}

func TestANewSocketFileEndsThePause(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	c := NewClient(ClientConfig{Socket: socket, MinBackoff: time.Millisecond})
	for _, before := range []string{"no file", "another file"} {
		seen := c.socketFile()
		go func() {
			time.Sleep(5 * time.Millisecond)
			err := os.WriteFile(socket+".new", nil, 0o600)
			if err := errors.Join(err, os.Rename(socket+".new", socket)); err != nil {
				t.Error(err)
			}
		}()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		if !c.pause(ctx, time.Hour, seen) {
			t.Errorf("where there was %s, the new one ended nothing", before)
		}
		cancel()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if c.pause(ctx, time.Hour, c.socketFile()) {
		t.Error("the same file ended the pause")
	}
}

// script is a server that sends what it is told and then says nothing.
type script struct {
	healthv1.UnimplementedHealthServer
	messages []*healthv1.WatchResponse
}

func (s script) Watch(_ *healthv1.WatchRequest, stream grpc.ServerStreamingServer[healthv1.WatchResponse]) error {
	for _, m := range s.messages {
		if err := stream.Send(m); err != nil {
			return err
		}
	}
	<-stream.Context().Done()
	return nil
}

// play serves a script until the test ends.
func play(t *testing.T, messages ...*healthv1.WatchResponse) (socket string) {
	t.Helper()
	socket = socketIn(t)
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	healthv1.RegisterHealthServer(s, script{messages: messages})
	go func() {
		if err := s.Serve(l); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(s.Stop)
	return socket
}

func listed(l *List) *healthv1.WatchResponse {
	return &healthv1.WatchResponse{Message: &healthv1.WatchResponse_Health{Health: encode(l)}}
}

func TestASilentStreamIsLostAndOpenedAnew(t *testing.T) {
	socket := play(t, listed(listAt("a", 1, health.Unhealthy)))
	c := follow(t, ClientConfig{Socket: socket, SilentAfter: 50 * time.Millisecond})
	state := waitState(t, c, "the loss", func(s ClientState) bool { return errors.Is(s.Err, errSilent) })
	if state.Up || state.List == nil || statusOf(&state.List.List, sick) != health.Unhealthy {
		t.Errorf("in the silence it has %s", described(state))
	}
	waitState(t, c, "another stream", func(s ClientState) bool { return s.Up && s.Reconnects > 0 })
}

func TestSilenceGoesByTheHeartbeatThatTheServerAnnounces(t *testing.T) {
	for _, tt := range []struct {
		configured, announced, want time.Duration
	}{
		{0, 5 * time.Second, 15 * time.Second},
		{0, time.Millisecond, minSilence},
		{0, -time.Hour, minSilence},
		{0, 1<<63 - 1, maxSilence},
		{time.Millisecond, time.Hour, time.Millisecond},
	} {
		c := NewClient(ClientConfig{SilentAfter: tt.configured})
		if got := c.silence(tt.announced); got != tt.want {
			t.Errorf("configured %v, announced %v: silent after %v, want %v", tt.configured, tt.announced, got, tt.want)
		}
	}
}

func TestAStreamWithAShortHeartbeatIsLostSoon(t *testing.T) {
	first := listed(listAt("a", 1, health.Healthy))
	first.HeartbeatInterval = durationpb.New(time.Millisecond)
	c := follow(t, ClientConfig{Socket: play(t, first)})
	waitState(t, c, "the loss", func(s ClientState) bool { return errors.Is(s.Err, errSilent) })
}

func TestAServerOfTomorrowIsUnderstoodAsFarAsItGoes(t *testing.T) {
	strange := new(healthv1.WatchResponse)
	unknown := protowire.AppendString(protowire.AppendTag(nil, 900, protowire.BytesType), "news")
	strange.ProtoReflect().SetUnknown(unknown)
	list := listed(listAt("a", 2, health.Unhealthy))
	list.GetHealth().ProtoReflect().SetUnknown(unknown)
	c := follow(t, ClientConfig{Socket: play(t, strange, list, strange)})
	waitState(t, c, "the list", upAt("a", 2))
}

func TestAHeartbeatOfAnotherListChangesNoTime(t *testing.T) {
	list := listAt("a", 2, health.Healthy)
	other := &healthv1.WatchResponse{Message: &healthv1.WatchResponse_Heartbeat{Heartbeat: &healthv1.Heartbeat{
		Epoch: "a", Version: 1, Evaluated: instant(list.Report.Time.Add(time.Hour)),
	}}}
	marker := listAt("a", 3, health.Healthy)
	c := follow(t, ClientConfig{Socket: play(t, listed(list), other, listed(marker))})
	waitState(t, c, "the marker", upAt("a", 3))

	c = NewClient(ClientConfig{})
	c.take(list)
	c.beat(other.GetHeartbeat(), true)
	if state, _ := c.Watch(); !state.List.Report.Time.Equal(list.Report.Time) {
		t.Errorf("the list is of %v", state.List.Report.Time)
	}
}

func TestOneListWaitsForTheFirst(t *testing.T) {
	socket, source := socketIn(t), newBoard(nil)
	serve(t, NewServer(ServerConfig{Source: source, Heartbeat: 5 * time.Millisecond}), socket)
	c := NewClient(ClientConfig{Socket: socket})

	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := c.List(ctx); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, errNoList) {
		t.Errorf("before the first list: error %v", err)
	}
	time.AfterFunc(20*time.Millisecond, func() { source.pin(listAt("a", 1, health.Unhealthy)) })
	list, err := c.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if list.Epoch != "a" || statusOf(list, sick) != health.Unhealthy {
		t.Errorf("list %+v", list)
	}
}

func TestCallsSayWhyNobodyAnswers(t *testing.T) {
	gone := socketIn(t)
	stale := socketIn(t)
	abandon(t, stale)
	for _, tt := range []struct {
		socket string
		want   func(error) bool
	}{
		{gone, func(err error) bool { return errors.Is(err, fs.ErrNotExist) }},
		{stale, func(err error) bool { return strings.Contains(err.Error(), "connection refused") }},
	} {
		c := NewClient(ClientConfig{Socket: tt.socket})
		_, listed := c.List(t.Context())
		_, cleared := c.Clear(t.Context(), sick, "r", "")
		told := c.ReportFacts(t.Context(), "r", nil)
		for _, err := range []error{listed, cleared, told} {
			if err == nil || !tt.want(err) || !strings.Contains(err.Error(), tt.socket) || strings.Contains(err.Error(), "rpc error") {
				t.Errorf("error %v", err)
			}
		}
	}
}

func TestAServerOfSomethingElseIsSaidSo(t *testing.T) {
	socket := socketIn(t)
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	go func() {
		if err := s.Serve(l); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(s.Stop)
	if _, err := NewClient(ClientConfig{Socket: socket}).List(t.Context()); err == nil || !strings.Contains(err.Error(), "gpumeter.health.v1.Health") {
		t.Errorf("error %v", err)
	}
}

func TestAFullFlightOfVersionsEndsWithTheNewest(t *testing.T) {
	socket, source := socketIn(t), newBoard(listAt("a", 0, health.Healthy))
	s := NewServer(ServerConfig{Source: source})
	serve(t, s, socket)
	c := follow(t, ClientConfig{Socket: socket})
	waitState(t, c, "the first list", upAt("a", 0))
	const last = 2000
	for v := range uint64(last) {
		source.pin(listAt("a", v+1, health.Unhealthy))
	}
	waitState(t, c, "the newest list", upAt("a", last))
	if n := s.Stats().Lists; n > last+1 {
		t.Errorf("%d lists were sent for %d changes", n, last)
	}
}
