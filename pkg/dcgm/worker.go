// SPDX-License-Identifier: Apache-2.0

package dcgm

import "time"

// worker does jobs one at a time on a goroutine of its own. A call into libdcgm can hang
// and cannot be cancelled: then the worker stays behind with it, gets no further job, and
// everybody else goes on. So a worker holds one thread at most, however long it hangs.
//
// Its methods are for one goroutine at a time.
type worker[J, A any] struct {
	jobs    chan J
	answers chan A
	// since is when the job under way was begun, zero while there is none.
	since time.Time
}

// newWorker starts the goroutine; end is what it does last, and may be nil.
func newWorker[J, A any](do func(J) A, end func()) *worker[J, A] {
	// Neither side ever waits to hand something over: there is one job at most.
	w := &worker[J, A]{jobs: make(chan J, 1), answers: make(chan A, 1)}
	go func() {
		for job := range w.jobs {
			w.answers <- do(job)
		}
		if end != nil {
			end()
		}
	}()
	return w
}

// busy reports whether a job is under way whose answer was not taken.
func (w *worker[J, A]) busy() bool { return !w.since.IsZero() }

// begin hands over a job; the worker must not be busy.
func (w *worker[J, A]) begin(job J) {
	w.since = time.Now()
	w.jobs <- job
}

// take is the answer to the job under way, if it comes before expired closes.
func (w *worker[J, A]) take(expired <-chan struct{}) (A, bool) {
	if a, ok := w.late(); ok {
		return a, true
	}
	select {
	case a := <-w.answers:
		w.since = time.Time{}
		return a, true
	case <-expired:
		var none A
		return none, false
	}
}

// late is the answer to the job under way, if it has come by now.
func (w *worker[J, A]) late() (A, bool) {
	select {
	case a := <-w.answers:
		w.since = time.Time{}
		return a, true
	default:
		var none A
		return none, false
	}
}

// end lets the goroutine go once it is done with its job. No job may be begun afterwards.
func (w *worker[J, A]) end() { close(w.jobs) }
