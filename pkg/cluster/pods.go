// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/rest"
)

const (
	podsPath = "/api/v1/pods"
	// podsLimit is how long a list of a node's pods may take.
	podsLimit = 30 * time.Second
)

// errExpired says that a watch cannot go on from where it was: the pods are to be listed anew, without a word.
var errExpired = errors.New("the version to watch from is too old")

// PodState is how a PodWatch fares. It is never modified once made.
type PodState struct {
	// Synced says that the API server has told of the pods at least once; before that nothing is known.
	Synced bool
	// Pods are how many it tells of now. Dropped counts those that could not be used, since the last complete list.
	Pods, Dropped int
	// Err is why what is known may be old, nil while the watch stands.
	Err error
}

// PodWatch follows the pods of one node: their UIDs, phases, labels and owners. Its methods are safe for
// concurrent use.
//
// It asks for pods with the node's name as a field selector. RBAC knows no field selectors, so that the permission to do
// so is one to read every pod; of what the API server answers it keeps a few fields, and of no other node.
type PodWatch struct {
	core rest.Interface
	node string
	log  *slog.Logger

	alarm chan struct{}

	mu      sync.Mutex
	state   PodState
	changed chan struct{}
	pods    map[podName]podFacts
	// held are the pods of the last listing that was enriched.
	held map[podName][]heldPod
}

// WatchPods follows the pods of a node, once it Runs. log is told of outages; nil is silent.
func (c *Client) WatchPods(node string, log *slog.Logger) *PodWatch {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &PodWatch{
		core: c.core, node: node, log: log, alarm: make(chan struct{}, 1), changed: make(chan struct{}),
		pods: map[podName]podFacts{}, held: map[podName][]heldPod{},
	}
}

// Watch is the present state, and a channel that closes when there may be a newer one.
func (w *PodWatch) Watch() (PodState, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state, w.changed
}

// Alarms gets something when there is news of a pod in the last listing that was enriched: its end, or who it is. The
// channel has room for one, is the same at each call, and is never closed.
func (w *PodWatch) Alarms() <-chan struct{} { return w.alarm }

// Run follows the pods until ctx ends, through whatever outages; it returns nil then.
func (w *PodWatch) Run(ctx context.Context) error {
	keepFollowing(ctx, w.follow, w.fail)
	return nil
}

// follow lists the pods and watches them until the watch ends, which is nil, or fails.
func (w *PodWatch) follow(ctx context.Context) error {
	version, err := w.list(ctx)
	if err != nil {
		return fmt.Errorf("list the pods of node %s: %w (get, list and watch of pods must be allowed)", w.node, err)
	}
	// Not all nodes' watches end at once.
	seconds := int(watchLimit/time.Second)/2 + rand.N(int(watchLimit/time.Second)/2)
	stream, err := w.request().
		Param("watch", "true").Param("resourceVersion", version).Param("timeoutSeconds", strconv.Itoa(seconds)).
		Stream(ctx)
	if err == nil {
		err = w.read(stream)
	}
	if errors.Is(err, errExpired) || err == nil {
		return nil
	}
	return fmt.Errorf("watch the pods of node %s: %w (get, list and watch of pods must be allowed)", w.node, err)
}

func (w *PodWatch) request() *rest.Request {
	return w.core.Get().AbsPath(podsPath).
		Param("fieldSelector", fields.OneTermEqualSelector("spec.nodeName", w.node).String())
}

// list takes in the node's pods as the API server's cache has them: asking for the very latest is a search through
// all pods of the cluster on older servers. The watch brings what the cache lacks.
func (w *PodWatch) list(ctx context.Context) (version string, err error) {
	bounded, cancel := context.WithTimeout(ctx, podsLimit)
	defer cancel()
	stream, err := w.request().Param("resourceVersion", "0").Stream(bounded)
	if err != nil {
		return "", err
	}
	defer closing(stream, &err)
	version, found, dropped, err := readList(stream)
	if err != nil {
		return "", err
	}
	w.set(found, dropped)
	return version, nil
}

// read takes in the events of a watch until it ends.
func (w *PodWatch) read(stream io.ReadCloser) (err error) {
	defer closing(stream, &err)
	events := newEventReader(stream)
	for {
		event, err := events.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		w.hear(event)
	}
}

func closing(c io.Closer, err *error) {
	if failed := c.Close(); *err == nil {
		*err = failed
	}
}

// set takes in a complete list.
func (w *PodWatch) set(found map[podName]podFacts, dropped int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state.Err != nil {
		w.log.Info("the API server tells of the node's pods again", "node", w.node)
	}
	before := w.pods
	w.pods = found
	for name := range w.held {
		w.news(before[name], found[name])
	}
	w.publish(PodState{Synced: true, Pods: len(found), Dropped: dropped})
}

// hear takes in one event.
func (w *PodWatch) hear(e podEvent) {
	w.mu.Lock()
	defer w.mu.Unlock()
	next := w.state
	before := w.pods[e.name]
	switch {
	case e.unusable:
		next.Dropped++
	case e.deleted:
		// A later pod of that name may have been told of first.
		if before.UID != e.facts.UID {
			return
		}
		delete(w.pods, e.name)
	case before.UID == "" && len(w.pods) >= maxPods:
		next.Dropped++
	default:
		w.pods[e.name] = e.facts
		if _, held := w.held[e.name]; held {
			w.news(before, e.facts)
		}
	}
	next.Pods = len(w.pods)
	w.publish(next)
}

// news raises the alarm where a pod that holds something is another than it was, or has ended; mu is held.
func (w *PodWatch) news(before, now podFacts) {
	if now.UID == "" || before.UID == now.UID && before.ended == now.ended {
		return
	}
	select {
	case w.alarm <- struct{}{}:
	default:
	}
}

func (w *PodWatch) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state.Err == nil || w.state.Err.Error() != err.Error() {
		w.log.Warn("the pods of the node cannot be followed; what is known of those that hold GPUs stands", "node", w.node, "error", err)
	}
	next := w.state
	next.Err = err
	w.publish(next)
}

// publish makes a state the present one; mu is held.
func (w *PodWatch) publish(next PodState) {
	w.state = next
	close(w.changed)
	w.changed = make(chan struct{})
}
