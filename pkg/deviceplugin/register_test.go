// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// absentMinded is a kubelet that takes a plugin, and may then say that it did not.
type absentMinded struct {
	pluginapi.UnimplementedRegistrationServer
	t   *testing.T
	dir string
	err error
}

func (k *absentMinded) Register(_ context.Context, req *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	conn, err := grpc.NewClient("passthrough:///plugin", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(k.dir, req.GetEndpoint()))
		}))
	if err != nil {
		return nil, err
	}
	k.t.Cleanup(func() { conn.Close() })
	stream, err := pluginapi.NewDevicePluginClient(conn).ListAndWatch(k.t.Context(), &pluginapi.Empty{})
	if err != nil {
		return nil, err
	}
	if _, err := stream.Recv(); err != nil {
		return nil, err
	}
	return &pluginapi.Empty{}, k.err
}

func TestWhoeverListensIsRegisteredWithWhateverItAnswered(t *testing.T) {
	for name, answer := range map[string]error{"well": nil, "an error": errors.New("it is late")} {
		t.Run(name, func(t *testing.T) {
			h := lonelyHost(t)
			h.kubelet = filepath.Join(h.folder, "kubelet.sock")
			server := grpc.NewServer()
			pluginapi.RegisterRegistrationServer(server, &absentMinded{t: t, dir: h.folder, err: answer})
			listener := listenAt(t, h.kubelet)
			go func() { _ = server.Serve(listener) }()
			defer server.Stop()

			e := newEndpoint(wholeGPU, h, newTally(wholeGPU), discard(), newList(seatsOf(gpuID(0), 1), nil, nil), NewAllocator(gpus(1), plain(), Resource{}, Names{}))
			l := &life{endpoint: e, retry: backoff{least: 1, most: time.Hour}}
			defer l.end(t.Context())
			l.meet()
			l.retry.next = time.Hour
			l.step(t.Context())
			if s := l.tally.stats(); !l.registered || s.Registrations != 1 || s.RegistrationFailures != 0 {
				t.Errorf("with a stream open it is registered=%t: %+v", l.registered, s)
			}
			if wait := l.retry.after(); wait != 1 {
				t.Errorf("after a success the next failure waits %s, want the least", wait)
			}
		})
	}
}
