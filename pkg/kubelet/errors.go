// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The kinds of Error.
const (
	// KindSocketMissing: there is nothing at the socket's path.
	KindSocketMissing = "socket_missing"
	// KindPermissionDenied: the socket may not be connected to.
	KindPermissionDenied = "permission_denied"
	// KindNotASocket: the path is something else, often a directory.
	KindNotASocket = "not_a_socket"
	// KindTimeout: the kubelet did not answer in time.
	KindTimeout = "timeout"
	// KindUnavailable: nobody listens, as while the kubelet restarts.
	KindUnavailable = "unavailable"
	// KindRateLimited: other clients used up what the kubelet admits.
	KindRateLimited = "rate_limited"
	// KindTooLarge: the answer is over the receive limit.
	KindTooLarge = "too_large"
	// KindUnimplemented: the kubelet does not have the call.
	KindUnimplemented = "unimplemented"
	// KindError is any other failure.
	KindError = "error"
)

// Error is a request to the kubelet that failed.
type Error struct {
	// Op is what was tried, "list pod resources", and Socket is where.
	Op, Socket string
	// Reason is one of the kinds.
	Reason string
	// Hint is what an operator can do, empty where there is nothing to say.
	Hint string
	// Err is the cause.
	Err error
}

// Error says what failed, on what, why, and what to do.
func (e *Error) Error() string {
	text := fmt.Sprintf("%s on %s: %v", e.Op, e.Socket, e.Err)
	if e.Hint != "" {
		text += "; " + e.Hint
	}
	return text
}

// Unwrap is the cause.
func (e *Error) Unwrap() error { return e.Err }

// Kind is a short word for a label, such as KindTimeout.
func (e *Error) Kind() string { return e.Reason }

// Kinds are the words that errors of List are counted under.
func (c *Client) Kinds() []string {
	return []string{
		KindSocketMissing, KindPermissionDenied, KindNotASocket, KindTimeout, KindUnavailable,
		KindRateLimited, KindTooLarge, KindUnimplemented, KindError,
	}
}

// failure explains an answer of gRPC.
func (c *Client) failure(ctx context.Context, op string, err error) *Error {
	s := status.Convert(err)
	e := &Error{Op: op, Socket: c.cfg.Socket, Reason: KindError, Err: errors.New(s.Message())}
	switch s.Code() {
	case codes.Unavailable:
		e.Reason = KindUnavailable
		e.Hint = restartHint(c.cfg.Socket)
	case codes.ResourceExhausted:
		// The kubelet's limiter and gRPC's size check share a code; only the text differs.
		if strings.Contains(s.Message(), "larger than max") {
			e.Reason = KindTooLarge
			e.Hint = "no node's kubelet has so much to say; see what it is that serves this socket"
			break
		}
		e.Reason = KindRateLimited
		e.Hint = "the kubelet admits 100 requests per second from all clients together; make the other clients of this socket ask less often"
	case codes.Unimplemented:
		e.Reason = KindUnimplemented
		e.Hint = "this needs a kubelet of 1.28 or newer that serves the PodResources v1 API"
	case codes.PermissionDenied:
		e.Reason = KindPermissionDenied
	}
	// Either end may notice first that time is up, each with its own code and text.
	switch end := ctx.Err(); {
	case s.Code() == codes.DeadlineExceeded, errors.Is(end, context.DeadlineExceeded):
		e.Reason, e.Hint = KindTimeout, timeoutHint
		e.Err = ended(context.DeadlineExceeded, s.Message())
	case end != nil:
		e.Reason, e.Hint = KindError, ""
		e.Err = ended(end, s.Message())
	}
	return e
}

// ended is the sentinel that callers look for, with what gRPC has to add.
func ended(sentinel error, text string) error {
	if text == sentinel.Error() {
		return sentinel
	}
	return fmt.Errorf("%w: %s", sentinel, text)
}

// dialFailure explains why the socket could not be connected to.
func (c *Client) dialFailure(op string, err error) *Error {
	info, statErr := os.Stat(c.cfg.Socket)
	e := &Error{Op: op, Socket: c.cfg.Socket, Err: err}
	e.Reason, e.Hint = explainDial(c.cfg.Socket, err, info, statErr)
	return e
}

// explainDial tells the kind and the hint from the dial's error and from what is
// at the path: connect(2) answers "connection refused" for a plain file and for a
// directory just as for a socket that nobody listens on.
func explainDial(socket string, err error, info fs.FileInfo, statErr error) (kind, hint string) {
	dir := filepath.Dir(socket)
	denied := errors.Is(err, fs.ErrPermission) || errors.Is(statErr, fs.ErrPermission)
	missing := errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(statErr, fs.ErrNotExist)
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return KindTimeout, timeoutHint
	case errors.Is(err, context.Canceled):
		return KindError, ""
	case denied:
		return KindPermissionDenied, "run as root or as a group that may write to the socket, and see that SELinux or AppArmor allows the connection"
	case missing:
		return KindSocketMissing, fmt.Sprintf("see that the kubelet runs, and mount its pod-resources directory (not the socket) at %s", dir)
	case info != nil && info.IsDir():
		return KindNotASocket, fmt.Sprintf("it is a directory, made where the socket itself was mounted before it existed; mount the kubelet's pod-resources directory at %s", dir)
	case info != nil && info.Mode().Type() != fs.ModeSocket, errors.Is(err, syscall.EPROTOTYPE):
		return KindNotASocket, "give the path of the kubelet's PodResources socket, usually " + DefaultSocket
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.EAGAIN):
		return KindUnavailable, restartHint(socket)
	}
	return KindError, ""
}

const timeoutHint = "see whether the kubelet is overloaded; a longer --collect-interval waits longer for it"

func restartHint(socket string) string {
	return fmt.Sprintf("the kubelet may be restarting; if it runs and this lasts, the socket was mounted instead of its directory: mount the kubelet's pod-resources directory at %s",
		filepath.Dir(socket))
}
