// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"
)

// sampleEvery is how often it is looked what our programs hold.
const sampleEvery = time.Second

// watch samples until ctx ends.
func (n *node) watch(ctx context.Context) {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	goroutines := 0
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if i%5 == 0 {
			goroutines = n.goroutines(ctx)
		}
		exporter := holds(n.exporter)
		exporter.goroutines = goroutines
		n.book.sampled(sample{exporter: exporter, plugin: holds(n.plugin)})
	}
}

// goroutines are the exporter's, by its own profile; 0 where it does not answer.
func (n *node) goroutines(ctx context.Context) int {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.exporterAt+"/debug/pprof/goroutine?debug=1", http.NoBody)
	if err != nil {
		return 0
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	var count int
	if _, err := fmt.Fscanf(resp.Body, "goroutine profile: total %d", &count); err != nil {
		return 0
	}
	return count
}

// holds is what a process holds, by /proc.
func holds(p *program) held {
	pid, life, _ := p.now()
	h := held{life: life}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return held{}
	}
	for line := range strings.Lines(string(status)) {
		var n int
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &n); err == nil {
			h.rss = float64(n) / 1024
		}
		if _, err := fmt.Sscanf(line, "Threads: %d", &n); err == nil {
			h.threads = n
		}
	}
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil || h.rss == 0 {
		return held{}
	}
	h.descriptors = len(files)
	return h
}
