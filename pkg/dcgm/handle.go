// SPDX-License-Identifier: Apache-2.0

package dcgm

// #include "binding.h"
import "C"

import (
	"fmt"
	"sync"
)

// handle is one engine: the embedded one, or a connection to another process's. Its calls
// may be made from several goroutines at once. A call cannot be cancelled and may never
// come back; it then keeps its thread and what it was given, and nothing else waits for it.
type handle struct {
	library  *library
	id       C.uint64_t
	embedded bool
	// local says that the engine is on this host, and its clock ours.
	local bool

	// mu guards what follows and is never held during a call into DCGM.
	mu     sync.Mutex
	calls  int
	closed bool
}

// enter begins a call; each success is followed by leave.
func (h *handle) enter(call string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return fmt.Errorf("%s: %w", call, errClosed)
	}
	h.calls++
	return nil
}

// leave ends a call. The last call out of a closed handle lets go of the engine; there is
// nobody left to be told how that went.
func (h *handle) leave() {
	h.mu.Lock()
	h.calls--
	last := h.closed && h.calls == 0
	h.mu.Unlock()
	if last {
		_ = h.release()
	}
}

// do makes one call on the engine.
func (h *handle) do(call, on string, f func(*C.struct_library, C.uint64_t) C.int32_t) error {
	err := h.enter(call)
	if err != nil {
		return err
	}
	defer h.leave()
	return h.library.failure(call, on, f(h.library.functions, h.id))
}

// close stops the embedded engine or disconnects from the other. Calls that begin after it
// fail. Where calls are still in DCGM, what they use is not freed under them: close returns
// at once with errInFlight, and the last of them to come back lets go of the engine. If one
// never does, the engine or connection stays for as long as the process, with its groups.
// A second close does nothing. The library stays loaded.
func (h *handle) close() error {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return nil
	}
	h.closed = true
	calls := h.calls
	h.mu.Unlock()
	if calls > 0 {
		return fmt.Errorf("letting go of DCGM: %d %w; it is let go of when they do", calls, errInFlight)
	}
	return h.release()
}

func (h *handle) release() error {
	l := h.library
	if !h.embedded {
		return l.failure("dcgmDisconnect", "", C.call_disconnect(l.functions, h.id))
	}
	select {
	case l.starting <- struct{}{}:
	default:
		// Whoever starts the engine now has it from here on.
		return nil
	}
	defer func() { <-l.starting }()
	if l.owner != h {
		return nil
	}
	l.owner = nil
	return l.failure("dcgmStopEmbedded", "", C.call_stop_embedded(l.functions, h.id))
}
