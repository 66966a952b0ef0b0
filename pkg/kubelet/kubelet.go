// SPDX-License-Identifier: Apache-2.0

// Package kubelet asks the kubelet who holds which device: the PodResources v1
// API over its unix socket, and the device manager's checkpoint for the pod UIDs
// that the API leaves out.
//
// Everything the kubelet says is foreign text. What cannot be used is counted in
// the listing by reason, and the rest of the answer stands.
package kubelet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// The places where a kubelet with the standard root directory keeps its files,
// and the name of NVIDIA's DRA driver for GPUs.
const (
	DefaultSocket     = "/var/lib/kubelet/pod-resources/kubelet.sock"
	DefaultCheckpoint = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
	DefaultDRADriver  = "gpu.nvidia.com"
)

const (
	defaultTimeout    = 10 * time.Second
	defaultMaxReceive = 64 << 20

	// maxSocketPath is the room in the kernel's sockaddr_un, less the final zero.
	maxSocketPath = 107

	// The kubelet admits 100 requests/s in bursts of 10 from all its clients
	// together: 20+40+80+160 ms outlasts a burst of others.
	rateLimitTries = 5
	rateLimitDelay = 20 * time.Millisecond

	// reconnectWait bounds the wait for a listener that a dial has just found.
	// reconnectTries are several, because the loss of one connection and the failure
	// of a dial begun before the listener came can each cost a request.
	reconnectWait  = 300 * time.Millisecond
	reconnectTries = 3
	// settleTries bounds the repetitions when the checkpoint changes under a List.
	settleTries = 3
	// startupGrace and defaultStartingLimit are how long after a connection the allocations
	// that an answer lacks are kept. A kubelet that reaches its API server has its pods within
	// seconds of the connection; only by the own pod can it be told from one that does not.
	startupGrace         = 10 * time.Second
	defaultStartingLimit = 5 * time.Minute
	// ownPodSettle is how long the own pod must have been listed for the others to be
	// taken as listed too.
	ownPodSettle = time.Second
)

const opList = "list pod resources"

// Matcher says whether an extended resource, such as "nvidia.com/gpu", is one
// that gets metered. It must be safe for concurrent use.
type Matcher interface {
	Match(resource string) bool
}

// Config is what a Client needs to know. Only Resources is required.
type Config struct {
	// Socket is the path of the PodResources socket; empty is DefaultSocket.
	Socket string
	// Resources picks the extended resources to list.
	Resources Matcher
	// DRADrivers are the drivers whose devices to list; nil is DefaultDRADriver
	// alone, an empty list is none.
	DRADrivers []string
	// Checkpoint is the path of the kubelet's device checkpoint; empty is none, and
	// no allocation then has a pod UID.
	Checkpoint string
	// PodName and PodNamespace are the pod that this process runs in, by which a kubelet that
	// has just started shows that it has heard from the API server. An empty name is none or
	// not known, an empty namespace is any.
	PodName, PodNamespace string
	// StartingLimit is how long after a new connection allocations are kept that the kubelet
	// does not list, where it had listed the own pod and does not list that either; 0 is 5 min.
	StartingLimit time.Duration
	// Poll is how often Run looks for changes; 0 is never.
	Poll time.Duration
	// Timeout bounds one List; 0 is 10 s. An earlier deadline of the caller wins.
	Timeout time.Duration
	// MaxReceiveBytes bounds one answer of the kubelet; 0 is 64 MiB.
	MaxReceiveBytes int
	// Now is the wall clock that stamps listings; nil is time.Now.
	Now func() time.Time
	// Log takes a line per change of the kubelet's state; nil is none.
	Log *slog.Logger
}

// Client lists a node's allocations over one kept connection. It is safe for
// concurrent use.
type Client struct {
	cfg        Config
	conn       *grpc.ClientConn
	api        podresources.PodResourcesListerClient
	checkpoint *checkpoint
	// dial connects to the socket.
	dial func(context.Context) (net.Conn, error)

	allocatable *notice
	starting    *starting
	change      *change
}

// New makes a Client without touching the socket: a kubelet that is away is an
// error of List, and List finds it when it comes.
func New(cfg Config) (*Client, error) {
	if cfg.Resources == nil {
		return nil, errors.New("kubelet client: no resources to match; give Config.Resources")
	}
	if cfg.Socket == "" {
		cfg.Socket = DefaultSocket
	}
	if len(cfg.Socket) > maxSocketPath {
		return nil, fmt.Errorf("kubelet socket path %q has %d bytes, a unix socket's may have %d; mount its directory at a shorter path",
			cfg.Socket, len(cfg.Socket), maxSocketPath)
	}
	if cfg.DRADrivers == nil {
		cfg.DRADrivers = []string{DefaultDRADriver}
	}
	cfg.DRADrivers = slices.Clone(cfg.DRADrivers)
	if cfg.Timeout <= 0 {
		cfg.Timeout = defaultTimeout
	}
	if cfg.StartingLimit <= 0 {
		cfg.StartingLimit = defaultStartingLimit
	}
	if cfg.MaxReceiveBytes <= 0 {
		cfg.MaxReceiveBytes = defaultMaxReceive
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	c := &Client{
		cfg:         cfg,
		change:      newChange(),
		allocatable: lossOf(cfg.Log, "kubelet allocatable resources"),
		checkpoint:  &checkpoint{path: cfg.Checkpoint, notice: lossOf(cfg.Log, "kubelet device checkpoint")},
		starting: &starting{
			podName: cfg.PodName, podNamespace: cfg.PodNamespace, limit: cfg.StartingLimit,
			notice: &notice{log: cfg.Log, begins: "kubelet has just started", ends: "kubelet lists its pods again"},
		},
	}
	c.dial = func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", cfg.Socket)
	}
	var err error
	// The path goes to the dialer by itself: as part of the target it would have to
	// survive being parsed as a URL.
	c.conn, err = grpc.NewClient("passthrough:///localhost",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(c.connect),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 5 * time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(cfg.MaxReceiveBytes), grpc.WaitForReady(false)),
		grpc.WithNoProxy(),
		grpc.WithUserAgent("gpumeter"),
	)
	if err != nil {
		return nil, fmt.Errorf("make a grpc client for %s: %w", cfg.Socket, err)
	}
	c.api = podresources.NewPodResourcesListerClient(c.conn)
	return c, nil
}

// Close ends the connection; List fails from then on.
func (c *Client) Close() error {
	if err := c.conn.Close(); err != nil {
		return fmt.Errorf("close the connection to %s: %w", c.cfg.Socket, err)
	}
	return nil
}

// List asks the kubelet for the pods' devices and for the devices it could hand
// out. Its error is an *Error. When only the second answer is missing, the listing
// stands without Advertised; when only the checkpoint is, without pod UIDs and
// Registered. A kubelet that has just started lists its pods bit by bit; until it is
// through, the listing keeps the allocations of before. All are counted in Skipped.
func (c *Client) List(parent context.Context) (sharing.Listing, error) {
	ctx, cancel := context.WithTimeout(parent, c.cfg.Timeout)
	defer cancel()
	defer c.change.begin()()

	pods, record, trouble, err := c.settled(ctx)
	if err != nil {
		return sharing.Listing{}, err
	}
	m := merger{cfg: &c.cfg, record: record, seen: make(map[sharing.Allocation]struct{})}
	for _, pod := range pods.GetPodResources() {
		m.pod(pod)
	}
	if trouble != "" {
		m.skip(trouble, 1)
	}
	c.change.answered(m.out.Allocations)
	all, kept := c.starting.complete(m.out.Allocations, c.starting.own(pods.GetPodResources()))
	m.out.Allocations = all
	if kept > 0 {
		m.skip(SkippedStarting, kept)
	}
	m.out.Registered = m.ids(record.devices())
	c.advertised(ctx, &m)
	m.out.Time = c.cfg.Now()
	return m.out, nil
}

// connect dials for gRPC.
func (c *Client) connect(ctx context.Context, _ string) (net.Conn, error) {
	conn, err := c.dial(ctx)
	if err == nil {
		c.starting.connect()
	}
	return conn, err
}

// settled is an answer about pods, and the checkpoint that was in force while the
// kubelet gave it. A device id can pass from one pod to the next between the two,
// so a checkpoint that differs before and after makes both be read again, and one
// that never rests is not used. The reason is why there is none.
func (c *Client) settled(ctx context.Context) (*podresources.ListPodResourcesResponse, *record, string, *Error) {
	for tries := 1; ; tries++ {
		before, _ := c.checkpoint.load()
		pods, err := call(ctx, c, opList, func(ctx context.Context) (*podresources.ListPodResourcesResponse, error) {
			return c.api.List(ctx, &podresources.ListPodResourcesRequest{})
		})
		if err != nil {
			return nil, nil, "", err
		}
		after, trouble := c.checkpoint.load()
		switch {
		case before == after:
			return pods, after, trouble, nil
		case tries == settleTries:
			return pods, nil, SkippedCheckpointUnsettled, nil
		}
	}
}

// advertised adds what the kubelet could hand out. It may use half of the time
// that is left, so that a kubelet which hangs here does not cost the listing.
func (c *Client) advertised(parent context.Context, m *merger) {
	deadline, _ := parent.Deadline()
	ctx, cancel := context.WithTimeout(parent, time.Until(deadline)/2)
	defer cancel()
	answer, err := call(ctx, c, "get allocatable resources", func(ctx context.Context) (*podresources.AllocatableResourcesResponse, error) {
		return c.api.GetAllocatableResources(ctx, &podresources.AllocatableResourcesRequest{})
	})
	if err != nil {
		m.skip(SkippedAllocatableUnavailable, 1)
		// A caller that gave up says nothing about the kubelet.
		if !errors.Is(parent.Err(), context.Canceled) {
			c.allocatable.lost(slog.LevelWarn, err.Kind(), "err", err)
		}
		return
	}
	c.allocatable.back()
	m.out.Advertised = m.ids(answer.GetDevices())
}

// call makes one request, again within ctx when the kubelet's rate limit refused
// it or when the connection was lost to a kubelet that is back.
func call[T any](ctx context.Context, c *Client, op string, rpc func(context.Context) (T, error)) (T, *Error) {
	delay := rateLimitDelay
	for tries, reconnects := 1, 0; ; {
		answer, err := rpc(ctx)
		if err == nil {
			return answer, nil
		}
		failure := c.failure(ctx, op, err)
		switch {
		case failure.Reason == KindRateLimited && tries < rateLimitTries && sleep(ctx, delay):
			tries++
			delay *= 2
		case failure.Reason == KindUnavailable && reconnects < reconnectTries:
			reconnects++
			if err := c.reconnect(ctx); err != nil {
				var none T
				return none, c.dialFailure(op, err)
			}
		default:
			var none T
			return none, failure
		}
	}
}

// reconnect dials the socket by itself, because gRPC keeps the cause of a failed
// dial to itself and stays with an old failure until its backoff ends. When
// somebody listens, gRPC is made to try at once.
func (c *Client) reconnect(ctx context.Context) error {
	probe, err := c.dial(ctx)
	if err != nil {
		return err
	}
	if err := probe.Close(); err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, reconnectWait)
	defer cancel()
	for state := c.conn.GetState(); state != connectivity.Ready; state = c.conn.GetState() {
		switch state {
		case connectivity.Idle:
			c.conn.Connect()
		case connectivity.TransientFailure:
			c.conn.ResetConnectBackoff()
		}
		if !c.conn.WaitForStateChange(wait, state) {
			break
		}
	}
	return nil
}

// sleep reports whether d passed before ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
