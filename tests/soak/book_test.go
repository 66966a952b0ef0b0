// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// book is what is written down about a soak. It is safe for concurrent use.
type book struct {
	began time.Time
	// log is told of violations at once.
	log func(...any)

	mu         sync.Mutex
	happened   []happened
	violations []string
	// more counts the violations that are not in the list.
	more    int
	clients []*tally
	samples []sample
}

// happened is something that was done, and when.
type happened struct {
	at         time.Duration
	verb, text string
	// until is when a program that was ended runs again, else at.
	until time.Duration
}

// sample is what our processes hold at a moment.
type sample struct {
	at               time.Duration
	exporter, plugin held
	pages            int
}

// held is what a process holds. The zero held is a process that is not there.
type held struct {
	life                             int
	rss                              float64 // MiB
	descriptors, threads, goroutines int
}

// tally is what one client got.
type tally struct {
	name                   string
	valid, refused, failed int
	bytes                  int64
	last                   time.Duration
	gap                    time.Duration
	gapFrom, gapTo         time.Duration
	slowest                time.Duration
}

func newBook(log func(...any)) *book { return &book{began: time.Now(), log: log} }

func (b *book) now() time.Duration { return time.Since(b.began) }

// mostViolations bounds the report of a soak in which everything is wrong.
const mostViolations = 200

func (b *book) violation(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.violations) == mostViolations {
		b.more++
		return
	}
	v := fmt.Sprintf("%8.1fs  ", b.now().Seconds()) + fmt.Sprintf(format, args...)
	b.violations = append(b.violations, v)
	b.log("VIOLATION", v)
}

func (b *book) happen(from time.Duration, verb, text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.happened = append(b.happened, happened{from, verb, text, b.now()})
}

func (b *book) client(name string) *tally {
	t := &tally{name: name}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.clients = append(b.clients, t)
	return t
}

// served notes a valid page.
func (b *book) served(t *tally, size int, took time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	if gap := now - t.last; gap > t.gap {
		t.gap, t.gapFrom, t.gapTo = gap, t.last, now
	}
	t.last, t.valid, t.bytes, t.slowest = now, t.valid+1, t.bytes+int64(size), max(t.slowest, took)
}

// refused notes an answer that says that there is no page yet, failed that there was no answer.
func (b *book) refused(t *tally) { b.mu.Lock(); defer b.mu.Unlock(); t.refused++ }
func (b *book) failed(t *tally)  { b.mu.Lock(); defer b.mu.Unlock(); t.failed++ }

func (b *book) sampled(s sample) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s.at = b.now()
	for _, c := range b.clients {
		s.pages += c.valid
	}
	b.samples = append(b.samples, s)
}

// why says what ended a program between two moments, in the order in which it happened; empty for nothing.
func (b *book) why(verbs []string, from, to time.Duration) string {
	var out []string
	for _, h := range b.happened {
		if h.until >= from && h.at <= to && slices.Contains(verbs, h.verb) {
			out = append(out, h.verb)
		}
	}
	return strings.Join(out, ", ")
}
