// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
	"unicode/utf8"
)

// What is kept of what an API server says is bounded: what is beyond could only be a mistake or malice.
const (
	// maxPods is several times what a kubelet can run.
	maxPods = 4096
	// maxName is longer than any name or UID that Kubernetes admits.
	maxName = 253
	// maxLabels, maxLabelKey and maxLabelValue are of one pod.
	maxLabels     = 64
	maxLabelKey   = 317
	maxLabelValue = 63
	// maxListBytes and maxEventBytes bound the text of one list and of one event; etcd admits 1.5 MB for a pod.
	maxListBytes  = 256 << 20
	maxEventBytes = 8 << 20
)

var errTooLong = errors.New("the answer is longer than any that could be")

// podName is what the kubelet and the API server both know a pod by.
type podName struct{ namespace, name string }

// podFacts are what is kept of a pod.
type podFacts struct {
	Pod
	// mirror is the kubelet's own UID of a static pod, for which the API server has another.
	mirror string
	// ended says that the phase is terminal and no container runs.
	ended bool
}

// podObject is the part of a v1 Pod that is read; the decoder drops the rest as it goes.
type podObject struct {
	Metadata podMetadata `json:"metadata"`
	Status   struct {
		Phase      string            `json:"phase"`
		Containers []containerStatus `json:"containerStatuses"`
		Init       []containerStatus `json:"initContainerStatuses"`
	} `json:"status"`
}

type podMetadata struct {
	Namespace       string            `json:"namespace"`
	Name            string            `json:"name"`
	UID             string            `json:"uid"`
	ResourceVersion string            `json:"resourceVersion"`
	Created         time.Time         `json:"creationTimestamp"`
	Labels          map[string]string `json:"labels"`
	Annotations     struct {
		Mirror string `json:"kubernetes.io/config.mirror"`
	} `json:"annotations"`
	Owners []owner `json:"ownerReferences"`
}

type owner struct {
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	Controller bool   `json:"controller"`
}

type containerStatus struct {
	State struct {
		Running *struct{} `json:"running"`
	} `json:"state"`
}

// The phases from which a pod never comes back.
const (
	phaseSucceeded = "Succeeded"
	phaseFailed    = "Failed"
)

// facts are what is kept; false where the pod has no usable name or UID.
func (o *podObject) facts() (podName, podFacts, bool) {
	m := &o.Metadata
	name := podName{m.Namespace, m.Name}
	for _, text := range []string{m.Namespace, m.Name, m.UID} {
		if text == "" || len(text) > maxName {
			return name, podFacts{}, false
		}
	}
	f := podFacts{Pod: Pod{Namespace: m.Namespace, Name: m.Name, UID: m.UID, Phase: o.Status.Phase, Labels: boundedLabels(m.Labels)}}
	f.WorkloadKind, f.Workload = m.workload()
	if len(m.Annotations.Mirror) <= maxName {
		f.mirror = m.Annotations.Mirror
	}
	f.ended = (f.Phase == phaseSucceeded || f.Phase == phaseFailed) && !o.running()
	return name, f, true
}

// running reports whether a container is said to run. A phase that contradicts it is not believed:
// whoever wrote it, the device is in use.
func (o *podObject) running() bool {
	for _, statuses := range [][]containerStatus{o.Status.Containers, o.Status.Init} {
		for _, s := range statuses {
			if s.State.Running != nil {
				return true
			}
		}
	}
	return false
}

// boundedLabels are the labels that Kubernetes would admit, as many as are kept.
func boundedLabels(labels map[string]string) map[string]string {
	if len(labels) > maxLabels {
		return nil
	}
	for key, value := range labels {
		if key == "" || len(key) > maxLabelKey || len(value) > maxLabelValue || !utf8.ValidString(key+value) {
			delete(labels, key)
		}
	}
	return labels
}

// readList reads a list of pods, one after the other, and its version.
func readList(r io.Reader) (version string, found map[podName]podFacts, dropped int, err error) {
	var list struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
		Items podItems `json:"items"`
	}
	list.Items.found = map[podName]podFacts{}
	if err := json.NewDecoder(&boundedReader{r, maxListBytes}).Decode(&list); err != nil {
		return "", nil, 0, fmt.Errorf("read the list: %w", err)
	}
	return list.Metadata.ResourceVersion, list.Items.found, list.Items.dropped, nil
}

// podItems are the pods of a list.
type podItems struct {
	found   map[podName]podFacts
	dropped int
}

// UnmarshalJSON reads the items.
func (items *podItems) UnmarshalJSON(text []byte) error {
	var objects []json.RawMessage
	if err := json.Unmarshal(text, &objects); err != nil {
		return err
	}
	for _, text := range objects {
		name, facts, ok := readPod(text)
		if !ok || len(items.found) >= maxPods {
			items.dropped++
			continue
		}
		items.found[name] = facts
	}
	return nil
}

// readPod reads one pod; false where it is of no use.
func readPod(text json.RawMessage) (podName, podFacts, bool) {
	var object podObject
	if err := json.Unmarshal(text, &object); err != nil {
		return podName{}, podFacts{}, false
	}
	return object.facts()
}

// podEvent is one event of a watch.
type podEvent struct {
	name     podName
	facts    podFacts
	deleted  bool
	unusable bool
}

// eventReader reads the events of a watch.
type eventReader struct {
	bounded *boundedReader
	decoder *json.Decoder
}

func newEventReader(r io.Reader) *eventReader {
	b := &boundedReader{r, maxEventBytes}
	return &eventReader{b, json.NewDecoder(b)}
}

// next is the next event about a pod. The error is io.EOF at the end, and errExpired where the watch cannot go on.
func (r *eventReader) next() (podEvent, error) {
	for {
		r.bounded.left = maxEventBytes
		var event struct {
			Type   string          `json:"type"`
			Object json.RawMessage `json:"object"`
		}
		if err := r.decoder.Decode(&event); err != nil {
			return podEvent{}, err
		}
		switch event.Type {
		case "ADDED", "MODIFIED", "DELETED":
			name, facts, ok := readPod(event.Object)
			return podEvent{name: name, facts: facts, deleted: event.Type == "DELETED", unusable: !ok}, nil
		case "ERROR":
			return podEvent{}, watchError(event.Object)
		}
	}
}

// watchError is what an API server says in a watch when it ends it.
func watchError(object json.RawMessage) error {
	var status struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	}
	if err := json.Unmarshal(object, &status); err != nil {
		return fmt.Errorf("read an error: %w", err)
	}
	if status.Code == 410 {
		return errExpired
	}
	const shown = 500
	return fmt.Errorf("the API server says %d %.*q", status.Code, shown, status.Message)
}

// boundedReader fails when more is read than is left.
type boundedReader struct {
	r    io.Reader
	left int
}

func (b *boundedReader) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errTooLong
	}
	n, err := b.r.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}
