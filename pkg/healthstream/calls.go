// SPDX-License-Identifier: Apache-2.0

package healthstream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/healthstream/healthv1"
)

// List is the server's present list. It waits for the first one until ctx ends.
func (c *Client) List(ctx context.Context) (*List, error) {
	// The stream ends with its context.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w, err := c.dial()
	if err != nil {
		return nil, err
	}
	defer w.close()
	stream, err := w.api.Watch(ctx, &healthv1.WatchRequest{})
	if err != nil {
		return nil, w.explain(ctx, err)
	}
	waiting := false
	for {
		message, err := stream.Recv()
		if err != nil {
			err = w.explain(ctx, err)
			if waiting {
				err = fmt.Errorf("%w: %w", errNoList, err)
			}
			return nil, err
		}
		if n := message.GetHealth(); n != nil {
			return decode(n), nil
		}
		waiting = true
	}
}

// Clear tells the server an operator's word: reason is why the device is good, by who says so.
// It returns what the word ended. The server puts the user and process of this one before by.
func (c *Client) Clear(ctx context.Context, device gpu.UUID, reason, by string) (health.Clearing, error) {
	w, err := c.dial()
	if err != nil {
		return health.Clearing{}, err
	}
	defer w.close()
	answer, err := w.api.Clear(ctx, &healthv1.ClearRequest{Device: text(string(device)), Reason: text(reason), By: text(by)})
	if err != nil {
		return health.Clearing{}, w.explain(ctx, err)
	}
	return decodeClearing(answer.GetClearing()), nil
}

// ReportFacts tells the server all that the reporter knows now, in the place of what it said
// before. A server that restarted has forgotten it: report again when the list's epoch changes.
// The error names the facts that the server refused; it has taken the others.
func (c *Client) ReportFacts(ctx context.Context, reporter string, facts []health.Fact) error {
	w, err := c.dial()
	if err != nil {
		return err
	}
	defer w.close()
	answer, err := w.api.ReportFacts(ctx, &healthv1.ReportFactsRequest{Reporter: text(reporter), Facts: each(facts, encodeFact)})
	if err != nil {
		return fmt.Errorf("report facts: %w", w.explain(ctx, err))
	}
	var refused []error
	for _, why := range answer.GetRefused() {
		refused = append(refused, fmt.Errorf("report facts: the server refuses %s", why))
	}
	return errors.Join(refused...)
}

// HandOver tells the server of what the reporter heard the driver say itself and the list does not
// show. It may be repeated until the list shows it, as a condition or as one that has ended. The error names what
// the server refused; it has taken the rest.
func (c *Client) HandOver(ctx context.Context, reporter string, seen []health.Condition) error {
	w, err := c.dial()
	if err != nil {
		return err
	}
	defer w.close()
	answer, err := w.api.HandOver(ctx, &healthv1.HandOverRequest{Reporter: text(reporter), Conditions: each(seen, encodeCondition)})
	if err != nil {
		return fmt.Errorf("hand over conditions: %w", w.explain(ctx, err))
	}
	var refused []error
	for _, why := range answer.GetRefused() {
		refused = append(refused, fmt.Errorf("hand over conditions: the server refuses %s", why))
	}
	return errors.Join(refused...)
}

// wire is one connection to a server.
type wire struct {
	socket string
	conn   *grpc.ClientConn
	api    healthv1.HealthClient

	mu sync.Mutex
	// failed is why it could not connect, which gRPC tells only in words.
	failed error
}

// dial makes a connection, which connects with its first call.
func (c *Client) dial() (*wire, error) {
	w := &wire{socket: c.cfg.Socket}
	var err error
	// The path goes to the dialer by itself: as part of the target it would have to survive
	// being parsed as a URL.
	w.conn, err = grpc.NewClient("passthrough:///localhost",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(w.connect),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.WaitForReady(false)),
		grpc.WithNoProxy(),
		grpc.WithUserAgent("gpumeter"),
	)
	if err != nil {
		return nil, fmt.Errorf("make a grpc client for %s: %w", w.socket, err)
	}
	w.api = healthv1.NewHealthClient(w.conn)
	return w, nil
}

func (w *wire) connect(ctx context.Context, _ string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", w.socket)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failed = err
	return conn, err
}

func (w *wire) close() {
	// It fails only where it was closed before.
	_ = w.conn.Close()
}

// explain is a call's error in words for people. It wraps the one of connecting, which may be
// fs.ErrNotExist or fs.ErrPermission, or that of ctx.
func (w *wire) explain(ctx context.Context, err error) error {
	w.mu.Lock()
	failed := w.failed
	w.mu.Unlock()
	s := status.Convert(err)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("wait for the health stream on %s: %w", w.socket, context.Cause(ctx))
	case s.Code() == codes.DeadlineExceeded:
		// The server knows of the deadline, too, and may be the first to see it pass.
		return fmt.Errorf("wait for the health stream on %s: %w", w.socket, context.DeadlineExceeded)
	case failed != nil && s.Code() == codes.Unavailable:
		return fmt.Errorf("connect to the health stream: %w", failed)
	case s.Code() == codes.Unavailable:
		return fmt.Errorf("the health stream on %s was lost: %s", w.socket, s.Message())
	default:
		return errors.New(s.Message())
	}
}
