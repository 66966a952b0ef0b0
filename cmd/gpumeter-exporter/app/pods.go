// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/gpumeter/gpumeter/pkg/cluster"
	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// How far the API server is asked for the pods of the node.
const (
	// PodWatchAuto: where this is a pod with a service account, or a kubeconfig is given, and the node's name is known.
	PodWatchAuto = "auto"
	// PodWatchOn: it is an error where that cannot be.
	PodWatchOn = "on"
	// PodWatchOff: never; pods have the UIDs of the kubelet's checkpoint, and no labels.
	PodWatchOff = "off"
)

// syncPatience is how long the first listing waits for the API server, so that a pod has its UID from the start.
const syncPatience = 2 * time.Second

// podLister is the kubelet as it is asked here.
type podLister interface {
	List(ctx context.Context) (sharing.Listing, error)
	Kinds() []string
	Alarms() <-chan struct{}
	Run(ctx context.Context) error
}

// podMap says who holds which devices: the kubelet's word on devices, with the API server's on pods. It is a
// meter.Allocations with alarms and pods. Its methods are safe for concurrent use; Run may be called once.
type podMap struct {
	kubelet podLister
	// pods is nil where the API server is not asked.
	pods  *cluster.PodWatch
	alarm chan struct{}
}

func newPodMap(kubelet podLister, pods *cluster.PodWatch) *podMap {
	return &podMap{kubelet: kubelet, pods: pods, alarm: make(chan struct{}, 1)}
}

// watchPods makes the watch of a node's pods that mode asks for, and the client that it is made with; both are nil
// where there is to be none. Nothing is asked yet.
func watchPods(mode, kubeconfig, node string, log *slog.Logger) (*cluster.Client, *cluster.PodWatch, error) {
	if mode == PodWatchOff {
		return nil, nil, nil
	}
	var err error
	var client *cluster.Client
	switch {
	case node == "":
		err = errors.New("the node's name is not known: give it by --node-name, or by the environment variable NODE_NAME from spec.nodeName")
	case mode == PodWatchAuto && kubeconfig == "" && os.Getenv("KUBERNETES_SERVICE_HOST") == "":
		err = errors.New("this is no pod, and no kubeconfig is given")
	default:
		client, err = cluster.Connect(cluster.Config{Kubeconfig: kubeconfig, UserAgent: "gpumeter-exporter/" + Version()})
	}
	switch {
	case err == nil:
		pods := client.WatchPods(node, log)
		return client, pods, nil
	case mode == PodWatchAuto:
		log.Info("the API server is not asked for pods: UIDs are those of the kubelet's checkpoint, workloads and labels are not known", "because", err)
		return nil, nil, nil
	default:
		return nil, nil, fmt.Errorf("--kubernetes-pod-watch=%s: %w", mode, err)
	}
}

// Run looks for changes and follows the pods until ctx ends.
func (m *podMap) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ends := make(chan error, 2)
	running := 1
	go func() { ends <- m.kubelet.Run(ctx) }()
	var news <-chan struct{}
	if m.pods != nil {
		running++
		go func() { ends <- m.pods.Run(ctx) }()
		news = m.pods.Alarms()
	}
	var errs []error
	for running > 0 {
		select {
		case <-m.kubelet.Alarms():
			m.raise()
		case <-news:
			m.raise()
		case err := <-ends:
			running--
			errs = append(errs, err)
			cancel()
		}
	}
	return errors.Join(errs...)
}

func (m *podMap) raise() {
	select {
	case m.alarm <- struct{}{}:
	default:
	}
}

// List is the kubelet's listing with the UIDs and ends of pods that the API server tells of.
func (m *podMap) List(ctx context.Context) (sharing.Listing, error) {
	listing, err := m.kubelet.List(ctx)
	if err != nil || m.pods == nil {
		return listing, err
	}
	m.awaitPods(ctx)
	return m.pods.Enrich(listing), nil
}

// awaitPods gives the API server a moment to tell of the pods for the first time.
func (m *podMap) awaitPods(ctx context.Context) {
	state, changed := m.pods.Watch()
	if state.Synced || state.Err != nil {
		return
	}
	patience := syncPatience
	if deadline, ok := ctx.Deadline(); ok {
		patience = min(patience, time.Until(deadline)/2)
	}
	select {
	case <-changed:
	case <-time.After(patience):
	case <-ctx.Done():
	}
}

// Kinds are the words that errors of List are counted under.
func (m *podMap) Kinds() []string { return m.kubelet.Kinds() }

// Alarms gets something when the kubelet lists something else, or a pod of the last listing has ended or become known.
func (m *podMap) Alarms() <-chan struct{} { return m.alarm }

// Pods are those of the last listing that the API server told of.
func (m *podMap) Pods() []ledger.Pod {
	if m.pods == nil {
		return nil
	}
	known := m.pods.Pods()
	out := make([]ledger.Pod, len(known))
	for i, p := range known {
		out[i] = ledger.Pod{Namespace: p.Namespace, Name: p.Name, UID: p.UID, WorkloadKind: p.WorkloadKind, Workload: p.Workload, Labels: p.Labels}
	}
	return out
}
