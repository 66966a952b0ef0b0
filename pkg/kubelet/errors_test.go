// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// wantKind checks what a caller and an operator can tell from an error.
func wantKind(t *testing.T, err error, kind, advice string) {
	t.Helper()
	var typed interface{ Kind() string }
	if !errors.As(err, &typed) {
		t.Fatalf("error %v has no kind, want %s", err, kind)
	}
	if typed.Kind() != kind {
		t.Errorf("kind %s of %q, want %s", typed.Kind(), err, kind)
	}
	if !strings.Contains(err.Error(), advice) {
		t.Errorf("%q does not advise %q", err, advice)
	}
}

func TestSocketThatCannotBeConnectedTo(t *testing.T) {
	for name, c := range map[string]struct {
		prepare      func(t *testing.T, socket string)
		kind, advice string
		is           error
	}{
		"missing":           {func(*testing.T, string) {}, KindSocketMissing, "mount its pod-resources directory (not the socket) at ", fs.ErrNotExist},
		"directory missing": {func(t *testing.T, s string) { must(t, os.Remove(filepath.Dir(s))) }, KindSocketMissing, "mount its pod-resources directory", fs.ErrNotExist},
		"parent is a file": {func(t *testing.T, s string) {
			must(t, os.Remove(filepath.Dir(s)))
			must(t, os.WriteFile(filepath.Dir(s), nil, 0o600))
		}, KindSocketMissing, "mount its pod-resources directory", syscall.ENOTDIR},
		"file":      {func(t *testing.T, s string) { must(t, os.WriteFile(s, nil, 0o600)) }, KindNotASocket, DefaultSocket, syscall.ECONNREFUSED},
		"directory": {func(t *testing.T, s string) { must(t, os.Mkdir(s, 0o700)) }, KindNotASocket, "mount the kubelet's pod-resources directory", syscall.ECONNREFUSED},
		"datagram socket": {func(t *testing.T, s string) {
			l, err := net.ListenPacket("unixgram", s)
			must(t, err)
			t.Cleanup(func() { must(t, l.Close()) })
		}, KindNotASocket, DefaultSocket, syscall.EPROTOTYPE},
		"nobody listens": {func(t *testing.T, s string) {
			l, err := net.Listen("unix", s)
			must(t, err)
			l.(*net.UnixListener).SetUnlinkOnClose(false)
			must(t, l.Close())
		}, KindUnavailable, "restarting", syscall.ECONNREFUSED},
		"forbidden": {func(t *testing.T, s string) {
			if os.Geteuid() == 0 {
				t.Skip("root is denied nothing")
			}
			l, err := net.Listen("unix", s)
			must(t, err)
			t.Cleanup(func() { must(t, l.Close()) })
			must(t, os.Chmod(s, 0))
		}, KindPermissionDenied, "run as root", fs.ErrPermission},
	} {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(shortDir(t), "d", "kubelet.sock")
			must(t, os.Mkdir(filepath.Dir(socket), 0o700))
			c.prepare(t, socket)
			_, err := newClient(t, socket, nil).List(withDeadline(t))
			wantKind(t, err, c.kind, c.advice)
			if !errors.Is(err, c.is) {
				t.Errorf("%v does not wrap %v", err, c.is)
			}
			if want := "list pod resources on " + socket + ": "; err == nil || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("%q does not begin with %q", err, want)
			}
		})
	}
}

func TestSocketThatAnswersNonsense(t *testing.T) {
	socket := filepath.Join(shortDir(t), "kubelet.sock")
	l, err := net.Listen("unix", socket)
	must(t, err)
	t.Cleanup(func() { must(t, l.Close()) })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	_, err = newClient(t, socket, nil).List(withDeadline(t))
	wantKind(t, err, KindUnavailable, "restarting")
}

func TestExplainDial(t *testing.T) {
	dial := func(errno syscall.Errno) error {
		return &net.OpError{Op: "dial", Net: "unix", Err: os.NewSyscallError("connect", errno)}
	}
	for name, c := range map[string]struct {
		err, stat error
		want      string
	}{
		"no write permission on the socket": {dial(syscall.EACCES), nil, KindPermissionDenied},
		"a security module says no":         {dial(syscall.EPERM), nil, KindPermissionDenied},
		"directory may not be searched":     {dial(syscall.EACCES), syscall.EACCES, KindPermissionDenied},
		"gone between dial and stat":        {dial(syscall.ECONNREFUSED), fs.ErrNotExist, KindSocketMissing},
		"backlog full":                      {dial(syscall.EAGAIN), nil, KindUnavailable},
		"out of file descriptors":           {dial(syscall.EMFILE), nil, KindError},
		"time is up":                        {&net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}, nil, KindTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			if got, _ := explainDial("/s/kubelet.sock", c.err, nil, c.stat); got != c.want {
				t.Errorf("kind %s, want %s", got, c.want)
			}
		})
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
