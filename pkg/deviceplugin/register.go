// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// register tells the kubelet of a socket. The kubelet connects to it before it answers.
func register(ctx context.Context, kubelet, resource, socket string) error {
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", kubelet)
	}
	conn, err := grpc.NewClient("passthrough:///kubelet", grpc.WithContextDialer(dial),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
	if err != nil {
		return fmt.Errorf("register %s: %w", resource, err)
	}
	defer conn.Close()
	_, err = pluginapi.NewRegistrationClient(conn).Register(ctx, &pluginapi.RegisterRequest{
		Version:      pluginapi.Version,
		Endpoint:     filepath.Base(socket),
		ResourceName: resource,
		Options:      options(),
	})
	if err != nil {
		return fmt.Errorf("register %s at %s: %w", resource, kubelet, err)
	}
	return nil
}

// backoff is the time to the next attempt: twice the last one, within limits.
type backoff struct {
	least, most, next time.Duration
}

func (b *backoff) after() time.Duration {
	wait := max(b.least, min(b.next, b.most))
	b.next = 2 * wait
	return wait
}

func (b *backoff) reset() { b.next = 0 }
