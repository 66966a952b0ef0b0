// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

func TestAnAPIServerIsNotAskedAllTheTime(t *testing.T) {
	refused := errors.New("watch is forbidden")
	for _, c := range []struct {
		name        string
		lasts       time.Duration
		err         error
		least, most int
	}{
		{"list works and watch does not", 0, refused, 80, 150},
		{"watches are cut at once", 0, nil, 80, 150},
		{"watches end as they should", watchLimit, nil, 6, 7},
		{"watches are cut after a while", time.Minute, refused, 58, 61},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				asked, failed := 0, 0
				keepFollowing(ctx, func(ctx context.Context) error {
					asked++
					select {
					case <-time.After(c.lasts):
					case <-ctx.Done():
					}
					return c.err
				}, func(error) { failed++ })
				if asked < c.least || asked > c.most {
					t.Errorf("it is asked %d times in an hour, want %d to %d", asked, c.least, c.most)
				}
				if told := failed > 0; told != (c.err != nil) {
					t.Errorf("%d failures are told of", failed)
				}
			})
		})
	}
}

func TestANodeThatMayBeListedAndNotWatchedIsKnown(t *testing.T) {
	s := newAPIServer(t)
	s.label("n1", map[string]string{"config": "a"})
	s.change(func() { s.unwatchable = http.StatusForbidden })
	w := follow(t, s.client(t))
	state := until(t, w, "in trouble", func(s NodeState) bool { return s.Synced && s.Err != nil })
	if state.Labels["config"] != "a" {
		t.Errorf("what may be known is not: %+v", state)
	}
}
