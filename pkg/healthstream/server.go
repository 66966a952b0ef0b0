// SPDX-License-Identifier: Apache-2.0

package healthstream

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/healthstream/healthv1"
)

// DefaultSocket is where the exporter serves the stream.
const DefaultSocket = "/run/gpumeter/health.sock"

const (
	defaultHeartbeat = 5 * time.Second
	defaultSlowAfter = 10 * time.Second
	// maxMessage is the longest list that a client takes, maxRequest the longest request that
	// the server takes.
	maxMessage = 16 << 20
	maxRequest = 1 << 20
	// maxStreams is how many calls one connection can have at once.
	maxStreams = 64
	// lookEvery is how often each side looks whether the socket file is still the same.
	lookEvery = time.Second
)

// Source has the list that is served.
type Source interface {
	// Watch is the present list, nil before the first, and a channel that closes when there may
	// be a newer one.
	Watch() (*List, <-chan struct{})
}

// Operator takes the words of operators. Its errors are told to them.
type Operator interface {
	Clear(context.Context, health.Clearing) (health.Clearing, error)
}

// Facts takes all that a reporter knows now.
type Facts interface {
	Report(reporter string, facts []health.Fact)
}

// Witnesses takes withdrawing conditions that a reporter has heard itself; it may say them again.
type Witnesses interface {
	Witness(reporter string, seen []health.Condition)
}

// ServerConfig is what a Server needs. Only Source is necessary.
type ServerConfig struct {
	Source Source
	// Operator, Facts and Witnesses may be nil: then the server takes none.
	Operator  Operator
	Facts     Facts
	Witnesses Witnesses
	// Group is the socket's group, by name or number; empty leaves it as it is made.
	Group string
	// Heartbeat is the longest time between two messages, 5 s if it is 0.
	Heartbeat time.Duration
	// SlowAfter is how long a client may leave a message before it is dropped, 10 s if it is 0.
	SlowAfter time.Duration
	// Now is the wall clock, time.Now if it is nil.
	Now func() time.Time
	// Log gets what happens to the socket and to clients; nil for none.
	Log *slog.Logger
}

// ServerStats are a server's counts since it was made.
type ServerStats struct {
	// Clients are the streams that are open now.
	Clients int
	// Lists and Heartbeats are the messages that were sent.
	Lists, Heartbeats uint64
	// Dropped are the streams that were ended because their client did not take a message.
	Dropped uint64
}

// Server serves lists. It is safe for concurrent use.
type Server struct {
	cfg ServerConfig

	clients                    atomic.Int64
	lists, heartbeats, dropped atomic.Uint64

	mu sync.Mutex
	// message is what was made of a list.
	message *healthv1.WatchResponse
	of      *List
}

// NewServer makes a Server; Run serves.
func NewServer(cfg ServerConfig) *Server {
	if cfg.Heartbeat <= 0 {
		cfg.Heartbeat = defaultHeartbeat
	}
	if cfg.SlowAfter <= 0 {
		cfg.SlowAfter = defaultSlowAfter
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Server{cfg: cfg}
}

// Stats are the counts now.
func (s *Server) Stats() ServerStats {
	return ServerStats{
		Clients: int(s.clients.Load()), Lists: s.lists.Load(), Heartbeats: s.heartbeats.Load(), Dropped: s.dropped.Load(),
	}
}

// Run serves on the socket until ctx ends, and returns nil then; all its goroutines have ended.
// It makes the folder where there is none, and takes the place of a socket that nobody serves
// any more; one that somebody serves, and what is no socket, is an error. A socket file that
// somebody removes later is made again.
func (s *Server) Run(ctx context.Context, socket string) error {
	served := false
	for {
		err := s.serve(ctx, socket, &served)
		switch {
		case err == nil:
			return nil
		case !served:
			return fmt.Errorf("serve the health stream on %s: %w", socket, err)
		}
		s.cfg.Log.Warn("the health socket is gone; making it again", "socket", socket, "error", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(lookEvery):
		}
	}
}

// errRemoved says that the socket file is gone, so that nobody can connect any more.
var errRemoved = errors.New("the socket file is gone")

// serve serves until ctx ends or the socket file is gone.
func (s *Server) serve(ctx context.Context, socket string, served *bool) error {
	listener, made, err := listen(ctx, socket, s.cfg.Group)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	*served = true
	server := grpc.NewServer(
		grpc.Creds(callerCredentials{}),
		grpc.ConnectionTimeout(s.cfg.SlowAfter),
		grpc.MaxRecvMsgSize(maxRequest),
		grpc.MaxConcurrentStreams(maxStreams),
		// A client whose process stands still answers no ping.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: s.cfg.SlowAfter, Timeout: s.cfg.SlowAfter}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
	)
	healthv1.RegisterHealthServer(server, service{server: s})
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	s.cfg.Log.Info("serving the health stream", "socket", socket)

	err = s.guard(ctx, socket, made, done)
	server.Stop()
	return errors.Join(err, removeSame(socket, made))
}

// guard waits for the end of ctx, of the serving, or of the socket file.
func (s *Server) guard(ctx context.Context, socket string, made os.FileInfo, done <-chan error) error {
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	usurped := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-done:
			return err
		case <-look.C:
		}
		now, err := os.Lstat(socket)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return errRemoved
		case err == nil && !sameFile(made, now) && !usurped:
			s.cfg.Log.Error("another file has taken the place of the health socket: new clients do not reach this process", "socket", socket)
			usurped = true
		}
	}
}
