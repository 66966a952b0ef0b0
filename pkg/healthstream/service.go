// SPDX-License-Identifier: Apache-2.0

package healthstream

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/healthstream/healthv1"
)

const (
	// maxWords is how long a reason, a name or a fact's text may be, in bytes.
	maxWords = 1024
	// maxFacts is how many facts one reporter may have, maxKind how long a kind may be.
	maxFacts = 1024
	maxKind  = 64
)

// service answers the calls of a Server.
type service struct {
	healthv1.UnimplementedHealthServer
	server *Server
}

// position is which list a client has; the zero position is none.
type position struct {
	sent    bool
	epoch   string
	version uint64
}

// Watch serves one client. There is no queue: while a message is on its way changes pile up in
// the source, and the next message has them all.
func (v service) Watch(_ *healthv1.WatchRequest, stream grpc.ServerStreamingServer[healthv1.WatchResponse]) error {
	s := v.server
	s.clients.Add(1)
	defer s.clients.Add(-1)
	heartbeat := time.NewTicker(s.cfg.Heartbeat)
	defer heartbeat.Stop()
	var has position
	due := false
	for {
		list, changed := s.cfg.Source.Watch()
		newest := has
		if list != nil {
			newest = position{true, list.Epoch, list.Report.Version}
		}
		switch {
		case newest != has:
			if err := s.send(stream, s.encoded(list), &s.lists); err != nil {
				return err
			}
			has = newest
			heartbeat.Reset(s.cfg.Heartbeat)
		case due:
			if err := s.send(stream, s.beat(list), &s.heartbeats); err != nil {
				return err
			}
		}
		due = false
		select {
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		case <-changed:
		case <-heartbeat.C:
			due = true
		}
	}
}

// send waits for the client no longer than it may take: then its connection is closed, which
// also lets go of what was written and not taken.
func (s *Server) send(stream grpc.ServerStreamingServer[healthv1.WatchResponse], message *healthv1.WatchResponse, count *atomic.Uint64) error {
	client, ok := callerOf(stream.Context())
	if !ok {
		return status.Error(codes.Internal, "a client that came over no socket of this server")
	}
	slow := time.AfterFunc(s.cfg.SlowAfter, func() {
		s.dropped.Add(1)
		s.cfg.Log.Warn("dropping a client of the health stream that takes no message", "client", client.String(), "waited", s.cfg.SlowAfter)
		client.drop()
	})
	defer slow.Stop()
	if err := stream.Send(message); err != nil {
		return err
	}
	count.Add(1)
	return nil
}

// encoded is the message with the list, made once for all clients.
func (s *Server) encoded(list *List) *healthv1.WatchResponse {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of != list {
		s.of, s.message = list, &healthv1.WatchResponse{
			Message:           &healthv1.WatchResponse_Health{Health: encode(list)},
			HeartbeatInterval: durationpb.New(s.cfg.Heartbeat),
		}
	}
	return s.message
}

// beat is a heartbeat while the list, which may be nil, is the present one.
func (s *Server) beat(list *List) *healthv1.WatchResponse {
	beat := &healthv1.Heartbeat{Time: instant(s.cfg.Now())}
	if list != nil {
		beat.Epoch, beat.Version, beat.Evaluated = text(list.Epoch), list.Report.Version, instant(list.Report.Time)
	}
	return &healthv1.WatchResponse{
		Message:           &healthv1.WatchResponse_Heartbeat{Heartbeat: beat},
		HeartbeatInterval: durationpb.New(s.cfg.Heartbeat),
	}
}

// Clear hands an operator's word on, with who said it.
func (v service) Clear(ctx context.Context, r *healthv1.ClearRequest) (*healthv1.ClearResponse, error) {
	s := v.server
	if s.cfg.Operator == nil {
		return nil, status.Error(codes.Unimplemented, "this server takes no words of operators")
	}
	reason := strings.TrimSpace(r.GetReason())
	switch {
	case r.GetDevice() == "":
		return nil, status.Error(codes.InvalidArgument, "no device: give the UUID of a GPU or of a MIG device")
	case reason == "":
		return nil, status.Error(codes.InvalidArgument, "no reason: say why the device is good, for the record")
	case len(reason) > maxWords || len(r.GetBy()) > maxWords:
		return nil, status.Errorf(codes.InvalidArgument, "a reason or a name of more than %d bytes: be shorter", maxWords)
	}
	client, ok := callerOf(ctx)
	if !ok {
		return nil, status.Error(codes.Internal, "a client that came over no socket of this server")
	}
	by := client.String()
	if words := strings.TrimSpace(r.GetBy()); words != "" {
		by += ": " + words
	}
	done, err := s.cfg.Operator.Clear(ctx, health.Clearing{Device: gpu.UUID(r.GetDevice()), Reason: reason, By: by, Time: s.cfg.Now()})
	if err != nil {
		return nil, refusal(err)
	}
	return &healthv1.ClearResponse{Clearing: encodeClearing(done)}, nil
}

// refusal is an operator's error on the wire.
func refusal(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return status.Error(status.FromContextError(err).Code(), text(err.Error()))
	}
	return status.Error(codes.FailedPrecondition, text(err.Error()))
}

// ReportFacts hands on what a reporter knows. A fact that makes no sense costs itself only.
func (v service) ReportFacts(_ context.Context, r *healthv1.ReportFactsRequest) (*healthv1.ReportFactsResponse, error) {
	s := v.server
	switch n := len(r.GetFacts()); {
	case s.cfg.Facts == nil:
		return nil, status.Error(codes.Unimplemented, "this server takes no facts")
	case r.GetReporter() == "" || len(r.GetReporter()) > maxWords:
		return nil, status.Errorf(codes.InvalidArgument, "a reporter's name has 1 to %d bytes, not %d", maxWords, len(r.GetReporter()))
	case n > maxFacts:
		return nil, status.Errorf(codes.InvalidArgument, "%d facts: one reporter may have %d", n, maxFacts)
	}
	var facts []health.Fact
	var answer healthv1.ReportFactsResponse
	for i, f := range r.GetFacts() {
		fact := decodeFact(f)
		if err := validate(fact); err != nil {
			answer.Refused = append(answer.Refused, fmt.Sprintf("fact %d (%q on %q): %v", i+1, f.GetKind(), f.GetGpu(), err))
			continue
		}
		facts = append(facts, fact)
	}
	s.cfg.Facts.Report(r.GetReporter(), facts)
	return &answer, nil
}

// validate says what is wrong with a fact: its kind becomes a label.
func validate(f health.Fact) error {
	strange := func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '_' }
	switch {
	case f.GPU == "":
		return errors.New("it names no GPU")
	case f.GPU.IsMIG():
		return errors.New("it names a MIG device (give its GPU)")
	case f.Kind == "" || len(f.Kind) > maxKind || strings.ContainsFunc(string(f.Kind), strange):
		return fmt.Errorf("a kind has 1 to %d lower-case letters, digits and underscores", maxKind)
	case f.Class == 0:
		return fmt.Errorf("its class is none of %v", health.Classes())
	case len(f.Text) > maxWords:
		return fmt.Errorf("its text has more than %d bytes", maxWords)
	}
	return nil
}
