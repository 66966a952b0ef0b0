// SPDX-License-Identifier: Apache-2.0

package healthstream

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

const (
	// maxSocketPath is what the kernel takes.
	maxSocketPath = 107
	// socketMode lets in the user and the group of the socket.
	socketMode = 0o660
	folderMode = 0o755
)

// listen makes the socket with its folder, in the place of one that nobody serves any more. It
// returns the socket file as it made it. With a group, the socket belongs to that.
func listen(ctx context.Context, socket, group string) (*net.UnixListener, os.FileInfo, error) {
	if len(socket) > maxSocketPath {
		return nil, nil, fmt.Errorf("%s has %d bytes, a unix socket's path may have %d; choose a shorter one", socket, len(socket), maxSocketPath)
	}
	gid, err := groupID(group)
	if err != nil {
		return nil, nil, err
	}
	if err := os.MkdirAll(filepath.Dir(socket), folderMode); err != nil {
		return nil, nil, fmt.Errorf("make the socket's folder: %w", err)
	}
	if err := removeStale(ctx, socket); err != nil {
		return nil, nil, err
	}
	listener, err := bind(ctx, socket)
	if err != nil {
		return nil, nil, err
	}
	made, err := prepare(socket, gid)
	if err != nil {
		return nil, nil, errors.Join(err, listener.Close(), os.Remove(socket))
	}
	return listener, made, nil
}

// bind makes a socket that is open to nobody but its user and group from the start.
func bind(ctx context.Context, socket string) (*net.UnixListener, error) {
	opened, err := (&net.ListenConfig{Control: modeBeforeBind}).Listen(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	listener, ok := opened.(*net.UnixListener)
	if !ok {
		return nil, errors.Join(fmt.Errorf("%T is no unix listener", opened), opened.Close())
	}
	// By the path alone it would take away the socket of whoever came after us.
	listener.SetUnlinkOnClose(false)
	return listener, nil
}

// modeBeforeBind gives the socket its mode before it has a name, so that it is at no moment open
// to others, whatever the umask is.
func modeBeforeBind(_, _ string, raw syscall.RawConn) error {
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = syscall.Fchmod(int(fd), socketMode) }); err != nil {
		return err
	}
	return failed
}

// prepare gives the socket its group and what the umask took of its mode.
func prepare(socket string, gid int) (os.FileInfo, error) {
	if gid >= 0 {
		if err := os.Chown(socket, -1, gid); err != nil {
			return nil, fmt.Errorf("give the socket to group %d: %w", gid, err)
		}
	}
	if err := os.Chmod(socket, socketMode); err != nil {
		return nil, fmt.Errorf("set the socket's mode: %w", err)
	}
	return os.Lstat(socket)
}

// groupID is the number of a group given by name or number, -1 for none.
func groupID(group string) (int, error) {
	if group == "" {
		return -1, nil
	}
	if gid, err := strconv.ParseUint(group, 10, 31); err == nil {
		return int(gid), nil
	}
	found, err := user.LookupGroup(group)
	if err != nil {
		return 0, fmt.Errorf("the socket's group %q: %w (give the number of a group that this system does not know by name)", group, err)
	}
	return strconv.Atoi(found.Gid)
}

// removeStale takes away a socket that nobody answers on, and nothing else.
func removeStale(ctx context.Context, socket string) error {
	info, err := os.Lstat(socket)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("look at the old socket: %w", err)
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s exists and is not a socket; it is left alone, choose another path", socket)
	}
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "unix", socket)
	switch {
	case err == nil:
		_ = conn.Close()
		return fmt.Errorf("another process serves %s; stop it, or choose another path", socket)
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case !errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%s is a socket that may be in use: %w", socket, err)
	}
	return removeSame(socket, info)
}

// removeSame removes the file unless it is another one by now.
func removeSame(path string, was os.FileInfo) error {
	now, err := os.Lstat(path)
	if err == nil && sameFile(was, now) {
		err = os.Remove(path)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the socket: %w", err)
	}
	return nil
}

// sameFile also tells a file from a new one that was given the inode of the old one.
func sameFile(a, b os.FileInfo) bool {
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime())
}
