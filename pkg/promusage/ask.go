// SPDX-License-Identifier: Apache-2.0

package promusage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	promapi "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
)

// errTooMuch is a server's refusal to answer at once what it may answer in parts.
var errTooMuch = errors.New("the server's limit on a query is reached")

// asker asks one report's questions, and keeps what the server warned of.
type asker struct {
	*Source
	slots chan struct{}
	// whole is how many ledgers there are in all: so many need not be named. 0 where they always must.
	whole int

	mu       sync.Mutex
	warnings map[string]bool
}

func newAsker(s *Source) *asker {
	return &asker{Source: s, slots: make(chan struct{}, s.cfg.Parallel), warnings: map[string]bool{}}
}

// attempts are how often a query is tried where the server is away for a moment.
const attempts = 3

// ask runs one request with its deadline, again where it may help.
func (a *asker) ask(ctx context.Context, what string, request func(context.Context) (promapi.Warnings, error)) error {
	select {
	case a.slots <- struct{}{}:
		defer func() { <-a.slots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	for attempt := 1; ; attempt++ {
		limited, cancel := context.WithTimeout(ctx, a.cfg.Timeout)
		warnings, err := request(limited)
		expired := limited.Err() != nil
		cancel()
		a.warn(warnings)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("ask %s: %w", a.cfg.URL, ctx.Err())
		case expired || isTooMuch(err):
			return fmt.Errorf("ask %s for %.200s: %w: %s", a.cfg.URL, what, errTooMuch, detail(err))
		case attempt == attempts || !isPassing(err):
			return fmt.Errorf("ask %s for %.200s: %s%w", a.cfg.URL, what, advice(err), err)
		}
		select {
		case <-time.After(time.Duration(attempt) * 500 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (a *asker) warn(warnings promapi.Warnings) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, w := range warnings {
		a.warnings[w] = true
	}
}

// warned are the server's warnings, in order.
func (a *asker) warned() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := make([]string, 0, len(a.warnings))
	for w := range a.warnings {
		all = append(all, w)
	}
	slices.Sort(all)
	return all
}

// isTooMuch knows the refusals of Prometheus (samples, timeout, points), Thanos and Mimir (series, chunks, bytes).
func isTooMuch(err error) bool {
	var refused *promapi.Error
	if !errors.As(err, &refused) {
		return false
	}
	text := strings.ToLower(refused.Msg + " " + refused.Detail)
	return refused.Type == promapi.ErrTimeout || strings.Contains(text, "too many samples") ||
		strings.Contains(text, "maximum resolution") || strings.Contains(text, "timed out") ||
		strings.Contains(text, "exceed") && (strings.Contains(text, "limit") || strings.Contains(text, "maximum") || strings.Contains(text, "max"))
}

// isPassing says that the same request may be answered in a moment.
func isPassing(err error) bool {
	var refused *promapi.Error
	if !errors.As(err, &refused) {
		return true
	}
	return refused.Type == promapi.ErrServer || strings.Contains(refused.Msg, "429")
}

func detail(err error) string {
	if refused, ok := errors.AsType[*promapi.Error](err); ok {
		return strings.TrimSpace(refused.Msg + " " + refused.Detail)
	}
	return err.Error()
}

// advice says what to do about the errors that people meet first.
func advice(err error) string {
	text := detail(err)
	switch {
	case strings.Contains(text, "401") || strings.Contains(text, "403"):
		return "it wants credentials or a tenant, or refuses those given: "
	case strings.Contains(text, "404"):
		return "there is no Prometheus API under that URL; it must be the prefix of /api/v1: "
	}
	return ""
}

func (a *asker) instant(ctx context.Context, query string, at time.Time) (model.Vector, error) {
	value, err := a.evaluate(ctx, query, at)
	if err != nil {
		return nil, err
	}
	vector, ok := value.(model.Vector)
	if !ok {
		return nil, fmt.Errorf("ask %s for %.200s: the answer is a %s and no vector", a.cfg.URL, query, value.Type())
	}
	return vector, nil
}

// samples are those in the time that a range selector names.
func (a *asker) samples(ctx context.Context, query string, at time.Time) (model.Matrix, error) {
	value, err := a.evaluate(ctx, query, at)
	if err != nil {
		return nil, err
	}
	matrix, ok := value.(model.Matrix)
	if !ok {
		return nil, fmt.Errorf("ask %s for %.200s: the answer is a %s and no matrix", a.cfg.URL, query, value.Type())
	}
	return matrix, nil
}

func (a *asker) evaluate(ctx context.Context, query string, at time.Time) (model.Value, error) {
	var value model.Value
	err := a.ask(ctx, query, func(ctx context.Context) (warnings promapi.Warnings, err error) {
		value, warnings, _, err = a.api.Query(ctx, query, at)
		return warnings, err
	})
	return value, err
}

// spread evaluates a query at from, from+step and so on up to to.
func (a *asker) spread(ctx context.Context, query string, from, to time.Time, step time.Duration) (model.Matrix, error) {
	var value model.Value
	err := a.ask(ctx, query, func(ctx context.Context) (warnings promapi.Warnings, err error) {
		value, warnings, _, err = a.api.QueryRange(ctx, query, promapi.Range{Start: from, End: to, Step: step})
		return warnings, err
	})
	if err != nil {
		return nil, err
	}
	matrix, ok := value.(model.Matrix)
	if !ok {
		return nil, fmt.Errorf("ask %s for %.200s: the answer is a %s and no matrix", a.cfg.URL, query, value.Type())
	}
	return matrix, nil
}
