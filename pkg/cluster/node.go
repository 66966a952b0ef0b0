// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

// watchLimit is how long one watch lasts; then the node is listed anew, which heals what was missed.
const watchLimit = 10 * time.Minute

// errNoNode says that the API server has no node of the name.
var errNoNode = errors.New("there is no such node")

// NodeState is what is known of a node at one instant. It is never modified once made.
type NodeState struct {
	// Synced says that the API server has answered at least once; before that nothing is known.
	Synced bool
	// Exists says that there is such a node.
	Exists bool
	// Labels are the node's, the last known ones while the API server is away.
	Labels map[string]string
	// Err is why the state may be old, nil while the watch stands.
	Err error
}

// NodeWatch follows one node. Its methods are safe for concurrent use.
type NodeWatch struct {
	client *Client
	name   string
	log    *slog.Logger

	mu      sync.Mutex
	state   NodeState
	changed chan struct{}
}

// WatchNode follows the labels of a node, once it Runs. log is told of outages; nil is silent.
func (c *Client) WatchNode(name string, log *slog.Logger) *NodeWatch {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &NodeWatch{client: c, name: name, log: log, changed: make(chan struct{})}
}

// Watch is the present state, and a channel that closes when there may be a newer one.
func (w *NodeWatch) Watch() (NodeState, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state, w.changed
}

// Run follows the node until ctx ends, through whatever outages; it returns nil then.
func (w *NodeWatch) Run(ctx context.Context) error {
	keepFollowing(ctx, w.follow, w.fail)
	return nil
}

// follow lists the node and watches it until the watch ends, which is nil, or fails.
func (w *NodeWatch) follow(ctx context.Context) error {
	only := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, w.name).String()}
	nodes := w.client.meta.Resource(schema.GroupVersionResource{Version: "v1", Resource: "nodes"})

	bounded, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	found, err := nodes.List(bounded, only)
	if err != nil {
		return fmt.Errorf("list node %s: %w (get, list and watch of nodes must be allowed)", w.name, err)
	}
	w.set(found.Items)

	only.ResourceVersion = found.ResourceVersion
	seconds := int64(watchLimit / time.Second)
	only.TimeoutSeconds = &seconds
	stream, err := nodes.Watch(ctx, only)
	if err != nil {
		return fmt.Errorf("watch node %s: %w (get, list and watch of nodes must be allowed)", w.name, err)
	}
	defer stream.Stop()
	for event := range stream.ResultChan() {
		if err := w.hear(event); err != nil {
			return err
		}
	}
	return nil
}

// hear takes one event of a watch.
func (w *NodeWatch) hear(event watch.Event) error {
	if event.Type == watch.Error {
		if status, ok := event.Object.(*metav1.Status); ok && status.Code == 410 {
			// The version is too old to watch from: list anew, without a word.
			return nil
		}
		return fmt.Errorf("watch node %s: the API server says %v", w.name, event.Object)
	}
	node, ok := event.Object.(*metav1.PartialObjectMetadata)
	switch {
	case !ok || node.Name != w.name:
	case event.Type == watch.Deleted:
		w.set(nil)
	case event.Type == watch.Added, event.Type == watch.Modified:
		w.set([]metav1.PartialObjectMetadata{*node})
	}
	return nil
}

// set publishes what the API server answered. A node that is gone keeps its labels: who follows
// them must not change course because somebody deletes and makes anew a node object.
func (w *NodeWatch) set(found []metav1.PartialObjectMetadata) {
	w.mu.Lock()
	defer w.mu.Unlock()
	next := NodeState{Synced: true, Labels: w.state.Labels, Err: fmt.Errorf("node %s: %w (is the name right?)", w.name, errNoNode)}
	for _, node := range found {
		if node.Name == w.name {
			next = NodeState{Synced: true, Exists: true, Labels: node.Labels}
		}
	}
	if w.state.Err != nil && next.Err == nil {
		w.log.Info("the API server tells of the node again", "node", w.name)
	}
	if next.Synced == w.state.Synced && next.Exists == w.state.Exists && w.state.Err == nil && next.Err == nil && maps.Equal(next.Labels, w.state.Labels) {
		return
	}
	w.publish(next)
}

func (w *NodeWatch) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state.Err == nil || w.state.Err.Error() != err.Error() {
		w.log.Warn("the labels of the node cannot be followed; the last known ones hold", "node", w.name, "error", err)
	}
	next := w.state
	next.Err = err
	w.publish(next)
}

// publish makes a state the present one; mu is held.
func (w *NodeWatch) publish(next NodeState) {
	w.state = next
	close(w.changed)
	w.changed = make(chan struct{})
}
