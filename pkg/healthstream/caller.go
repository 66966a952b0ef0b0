// SPDX-License-Identifier: Apache-2.0

package healthstream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

// caller is who is at the other end of a connection, in the kernel's words and not in its own.
type caller struct {
	credentials.CommonAuthInfo
	conn net.Conn
	uid  uint32
	// pid is 0 where the process is in a pid namespace that this one does not see.
	pid int32
}

// AuthType names the way in which a caller is known.
func (caller) AuthType() string { return "unix" }

// String is who it is, for a record.
func (c caller) String() string { return fmt.Sprintf("uid %d pid %d", c.uid, c.pid) }

// drop ends the connection, whatever it is doing.
func (c caller) drop() {
	// Closing is all that there is to do; that it failed, its user is told.
	_ = c.conn.Close()
}

// callerOf is who makes the call; false for one that did not come over a callerCredentials.
func callerOf(ctx context.Context) (caller, bool) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return caller{}, false
	}
	c, ok := p.AuthInfo.(caller)
	return c, ok
}

// callerCredentials let in whoever the socket's mode lets in, and note who it is. They are a
// server's.
type callerCredentials struct{}

// ServerHandshake asks the kernel for the process that connected.
func (callerCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	unix, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, nil, fmt.Errorf("%T is no unix socket", conn)
	}
	raw, err := unix.SyscallConn()
	if err != nil {
		return nil, nil, fmt.Errorf("see who connected: %w", err)
	}
	var cred *syscall.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); err != nil {
		return nil, nil, fmt.Errorf("see who connected: %w", err)
	}
	if credErr != nil {
		return nil, nil, fmt.Errorf("see who connected: %w", credErr)
	}
	return conn, caller{
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
		conn:           conn, uid: cred.Uid, pid: cred.Pid,
	}, nil
}

// ClientHandshake is an error: clients need no credentials.
func (callerCredentials) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("these credentials are a server's")
}

// Info describes the credentials to gRPC.
func (callerCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "unix"}
}

// Clone is the same credentials, which have no state.
func (c callerCredentials) Clone() credentials.TransportCredentials { return c }

// OverrideServerName does nothing: a unix socket has no name to check.
func (callerCredentials) OverrideServerName(string) error { return nil }
