// SPDX-License-Identifier: Apache-2.0

package healthstream

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gpumeter/gpumeter/pkg/health"
)

func TestTheSocketIsForItsUserAndGroupOnly(t *testing.T) {
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	socket := socketIn(t)
	gid := os.Getgid()
	if os.Getuid() == 0 {
		gid = 4242
	}
	serve(t, NewServer(ServerConfig{Source: newBoard(nil), Group: fmt.Sprint(gid)}), socket)
	info, err := os.Lstat(socket)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode() != os.ModeSocket|0o660 {
		t.Errorf("its mode is %v", info.Mode())
	}
	if got := info.Sys().(*syscall.Stat_t).Gid; int(got) != gid {
		t.Errorf("its group is %d, want %d", got, gid)
	}
}

func TestTheSocketHasItsModeBeforeItsName(t *testing.T) {
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	socket := filepath.Join(t.TempDir(), "s")
	l, err := bind(t.Context(), socket)
	if err != nil {
		t.Skipf("no socket here: %v", err)
	}
	defer l.Close()
	info, err := os.Lstat(socket)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != socketMode {
		t.Errorf("its mode is %v", info.Mode())
	}
}

// abandon leaves a socket file that nobody serves.
func abandon(t *testing.T, socket string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
}

func TestAStaleSocketIsReplaced(t *testing.T) {
	socket := socketIn(t)
	abandon(t, socket)
	serve(t, NewServer(ServerConfig{Source: newBoard(listAt("a", 1, health.Healthy))}), socket)
	waitState(t, follow(t, ClientConfig{Socket: socket}), "the first list", upAt("a", 1))
}

func TestWhatIsNotStaleIsLeftAlone(t *testing.T) {
	for _, tt := range []struct {
		name string
		make func(t *testing.T, socket string)
		cfg  ServerConfig
		want string
	}{
		{"a live socket", func(t *testing.T, socket string) {
			serve(t, NewServer(ServerConfig{Source: newBoard(nil)}), socket)
		}, ServerConfig{}, "another process serves"},
		{"a file", func(t *testing.T, socket string) {
			if err := errors.Join(os.MkdirAll(filepath.Dir(socket), 0o755), os.WriteFile(socket, []byte("precious"), 0o600)); err != nil {
				t.Fatal(err)
			}
		}, ServerConfig{}, "is not a socket"},
		{"a folder that is a file", func(t *testing.T, socket string) {
			if err := os.WriteFile(filepath.Dir(socket), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}, ServerConfig{}, "make the socket's folder"},
		{"a group that nobody knows", func(*testing.T, string) {}, ServerConfig{Group: "no-such-group"}, "no-such-group"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			socket := socketIn(t)
			tt.make(t, socket)
			before, _ := os.Lstat(socket)
			tt.cfg.Source = newBoard(nil)
			err := NewServer(tt.cfg).Run(t.Context(), socket)
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), socket) {
				t.Errorf("error %v, want one with %q", err, tt.want)
			}
			after, _ := os.Lstat(socket)
			if before != nil && (after == nil || !os.SameFile(before, after)) {
				t.Error("what was there is not there any more")
			}
		})
	}
}

func TestAPathThatIsTooLongIsSaidSo(t *testing.T) {
	long := "/tmp/" + strings.Repeat("x", 120)
	err := NewServer(ServerConfig{Source: newBoard(nil)}).Run(t.Context(), long)
	if err == nil || !strings.Contains(err.Error(), "107") {
		t.Errorf("error %v", err)
	}
}

func TestASocketThatSomebodyRemovesIsMadeAgain(t *testing.T) {
	socket, source := socketIn(t), newBoard(listAt("a", 1, health.Healthy))
	serve(t, NewServer(ServerConfig{Source: source}), socket)
	c := follow(t, ClientConfig{Socket: socket})
	waitState(t, c, "the first list", upAt("a", 1))
	if err := os.RemoveAll(filepath.Dir(socket)); err != nil {
		t.Fatal(err)
	}
	source.pin(listAt("a", 2, health.Unhealthy))
	waitState(t, c, "the change, over the open stream or a new one", upAt("a", 2))
	wait(t, "the new socket", func() error {
		_, err := NewClient(ClientConfig{Socket: socket}).List(t.Context())
		return err
	})
}

func TestTheSocketOfAnotherServerIsNotTakenAlong(t *testing.T) {
	socket := socketIn(t)
	var said journal
	first := serve(t, NewServer(ServerConfig{Source: newBoard(nil), Log: slog.New(slog.NewTextHandler(&said, nil))}), socket)
	// At once, so that there is no moment without one.
	other := socket + "2"
	abandon(t, other)
	if err := os.Rename(other, socket); err != nil {
		t.Fatal(err)
	}
	wait(t, "word of it", func() error {
		if !strings.Contains(said.String(), "taken the place") {
			return errors.New(said.String())
		}
		return nil
	})
	first.stop(t)
	if _, err := os.Lstat(socket); err != nil {
		t.Errorf("the other's socket: %v", err)
	}
}
