// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	// firstPause and longestPause are how long a watch waits before it asks again.
	firstPause   = 200 * time.Millisecond
	longestPause = 30 * time.Second
	// steady is for how long a watch must have stood to be followed by the next one at once.
	steady = 10 * time.Second
)

// keepFollowing calls follow, which lists and watches until the watch ends, again and again until ctx ends. fail is told of its errors.
// Whatever ends soon is asked for less and less often, also where it is no error: an API server that lets us list and not watch, or a
// proxy that cuts each watch at once, would else be asked several times a second by each node.
func keepFollowing(ctx context.Context, follow func(context.Context) error, fail func(error)) {
	pause := firstPause
	for ctx.Err() == nil {
		began := time.Now()
		err := follow(ctx)
		if ctx.Err() != nil {
			return
		}
		stood := time.Since(began) >= steady
		if stood {
			pause = firstPause
		}
		if err == nil && stood {
			continue
		}
		if err != nil {
			fail(err)
		}
		select {
		case <-time.After(pause + rand.N(pause)):
		case <-ctx.Done():
		}
		pause = min(2*pause, longestPause)
	}
}
