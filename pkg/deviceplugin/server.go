// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	// longestSocket is what the kernel takes as the path of a socket.
	longestSocket = 107
	// longestBase leaves room for a long folder: the kubelet may know it by a longer path.
	longestBase = 48
	// socketMode is for the kubelet alone. A stranger's stream would look like the kubelet's.
	socketMode = 0o600
	// longestMessage is what a request of the kubelet may have; with 60 000 ids it is above
	// gRPC's usual limit.
	longestMessage = 16 << 20
)

// server is one life of an endpoint: a socket, and whoever is connected to it. Each has a
// name of its own, because a kubelet takes a name that it knows for the old server's, and some
// drop the new connection when the old one ends.
type server struct {
	socket string
	id     fileID
	grpc   *grpc.Server
	// died is closed when the server does not accept any more.
	died chan struct{}
	// quit is closed to end the streams, each after the newest list.
	quit chan struct{}
	// offered says that the kubelet was told of it. Set by the endpoint's loop alone.
	offered bool

	mu      sync.Mutex
	open    int
	opened  uint64
	ended   time.Time
	streams sync.WaitGroup
}

// serve listens on a new socket in folder and answers with what register puts on the server.
func serve(ctx context.Context, folder, resource, prefix string, count *tally, register func(*server, *grpc.Server)) (*server, error) {
	listener, socket, err := listen(ctx, folder, resource, prefix, count)
	if err != nil {
		return nil, err
	}
	s := &server{
		socket: socket,
		id:     identify(socket),
		grpc:   grpc.NewServer(grpc.MaxRecvMsgSize(longestMessage)),
		died:   make(chan struct{}),
		quit:   make(chan struct{}),
	}
	register(s, s.grpc)
	go func() {
		defer close(s.died)
		_ = s.grpc.Serve(listener) // that it ended is all there is to know: it is started anew
	}()
	return s, nil
}

// listen finds the next name that nobody else serves.
func listen(ctx context.Context, folder, resource, prefix string, count *tally) (net.Listener, string, error) {
	const attempts = 32
	var socket string
	made := count.socketsMade()
	for n := made + 1; n <= made+attempts; n++ {
		socket = filepath.Join(folder, socketName(resource, prefix, n))
		if len(socket) > longestSocket {
			return nil, "", fmt.Errorf("serve %s: the path of its socket %s has more than %d bytes: use a kubelet folder with a shorter path",
				resource, socket, longestSocket)
		}
		if !isFree(ctx, socket) {
			continue
		}
		listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", socket)
		if errors.Is(err, os.ErrExist) {
			continue
		}
		if err != nil {
			return nil, "", fmt.Errorf("serve %s: %w (is this the device plugin folder of the kubelet?)", resource, err)
		}
		count.socketMade(n)
		if unix, ok := listener.(*net.UnixListener); ok {
			// The file may be another one by then.
			unix.SetUnlinkOnClose(false)
		}
		if err := os.Chmod(socket, socketMode); err != nil && !errors.Is(err, os.ErrNotExist) {
			_ = listener.Close()
			return nil, "", fmt.Errorf("serve %s: %w", resource, err)
		}
		return listener, socket, nil
	}
	return nil, "", fmt.Errorf("serve %s: %s and the %d names before it are served by somebody else: run one device plugin per resource",
		resource, socket, attempts-1)
}

// isFree removes the socket that a killed process left, and reports whether the name is free.
func isFree(ctx context.Context, socket string) bool {
	id := identify(socket)
	if id == (fileID{}) {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err == nil {
		_ = conn.Close()
		return false
	}
	removeIfSame(socket, id)
	return true
}

func removeIfSame(path string, id fileID) {
	if identify(path) == id {
		_ = os.Remove(path)
	}
}

// socketName is "nvidia-gpu.sock" for the first socket of nvidia.com/gpu, as NVIDIA's plugin
// has it, and "nvidia-gpu~2.sock" for the next one: a resource's name has no tilde.
func socketName(resource, prefix string, n int) string {
	name := resource
	if domain, rest, ok := strings.Cut(resource, "/"); ok && domain == "nvidia.com" {
		name = rest
	}
	name = prefix + "-" + strings.ReplaceAll(name, "/", "_")
	if len(name) > longestBase {
		sum := sha256.Sum256([]byte(resource))
		tail := "-" + hex.EncodeToString(sum[:4])
		name = name[:longestBase-len(tail)] + tail
	}
	if n > 1 {
		name = fmt.Sprintf("%s~%d", name, n)
	}
	return name + ".sock"
}

// alive says that the server accepts, on the file that it made.
func (s *server) alive() bool {
	select {
	case <-s.died:
		return false
	default:
		return s.id != fileID{} && identify(s.socket) == s.id
	}
}

// enter counts a stream in; false once the server ends.
func (s *server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.quit:
		return false
	default:
	}
	s.open++
	s.opened++
	s.streams.Add(1)
	return true
}

func (s *server) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open--
	s.ended = time.Now()
	s.streams.Done()
}

// state is how many streams are open, how many ever were, and when the last one ended.
func (s *server) state() (open int, opened uint64, ended time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open, s.opened, s.ended
}

// stop ends the streams after the newest list, lets calls finish, and removes the socket. What
// does not end within the grace is cut off. It reports whether there was a stream.
func (s *server) stop(grace time.Duration) bool {
	s.mu.Lock()
	had := s.open > 0
	close(s.quit)
	s.mu.Unlock()

	finished := make(chan struct{})
	go func() {
		defer close(finished)
		s.streams.Wait()
		s.grpc.GracefulStop()
	}()
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-finished:
	case <-timer.C:
		s.grpc.Stop()
		<-finished
	}
	<-s.died
	removeIfSame(s.socket, s.id)
	return had
}

// options are the same in the registration and in the answer to a kubelet that asks for them.
func options() *pluginapi.DevicePluginOptions {
	return &pluginapi.DevicePluginOptions{GetPreferredAllocationAvailable: true}
}
