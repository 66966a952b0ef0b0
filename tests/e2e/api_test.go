// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// api is the API server as an administrator sees it.
type api struct {
	client http.Client
}

func newAPI(t *testing.T, credentials string) *api {
	t.Helper()
	authority, err := os.ReadFile(filepath.Join(credentials, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(authority) {
		t.Fatal("the authority's certificate cannot be read")
	}
	return &api{http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}}
}

// The parts of objects that are looked at.
type (
	meta struct {
		Name            string `json:"name"`
		UID             string `json:"uid"`
		ResourceVersion string `json:"resourceVersion"`
	}
	node struct {
		Metadata meta `json:"metadata"`
		Status   struct {
			Capacity    map[string]string `json:"capacity"`
			Allocatable map[string]string `json:"allocatable"`
			Conditions  []struct {
				Type   string `json:"type"`
				Status string `json:"status"`
			} `json:"conditions"`
		} `json:"status"`
	}
	pod struct {
		Metadata meta `json:"metadata"`
		Status   struct {
			Phase             string            `json:"phase"`
			Reason            string            `json:"reason"`
			Message           string            `json:"message"`
			ContainerStatuses []containerStatus `json:"containerStatuses"`
		} `json:"status"`
	}
	containerStatus struct {
		Name      string `json:"name"`
		Ready     bool   `json:"ready"`
		Allocated []struct {
			Name      string `json:"name"`
			Resources []struct {
				ID     string `json:"resourceID"`
				Health string `json:"health"`
			} `json:"resources"`
		} `json:"allocatedResourcesStatus"`
	}
)

const (
	nodePath = "/api/v1/nodes/" + nodeName
	podsPath = "/api/v1/namespaces/default/pods"
)

func (a *api) do(ctx context.Context, method, path string, body any) (*http.Response, error) {
	var text io.Reader = http.NoBody
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		text = bytes.NewReader(data)
	}
	request, err := http.NewRequestWithContext(ctx, method, server+path, text)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+token("admin"))
	request.Header.Set("Content-Type", "application/json")
	response, err := a.client.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode/100 != 2 {
		said, err := io.ReadAll(io.LimitReader(response.Body, 2000))
		return nil, errors.Join(fmt.Errorf("%s %s: %s: %s", method, path, response.Status, said), err, response.Body.Close())
	}
	return response, nil
}

// call reads the answer into a *string or, as JSON, into anything else; nil throws it away.
func (a *api) call(method, path string, body, into any) error {
	const patience = 10 * time.Second
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	response, err := a.do(ctx, method, path, body)
	if err != nil {
		return err
	}
	data, err := io.ReadAll(response.Body)
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return err
	}
	switch into := into.(type) {
	case nil:
		return nil
	case *string:
		*into = string(data)
		return nil
	default:
		return json.Unmarshal(data, into)
	}
}

func (a *api) get(path string, into any) error { return a.call(http.MethodGet, path, nil, into) }

// seen is what the node said of its devices at some time.
type seen struct {
	at                    time.Time
	capacity, allocatable map[string]int
}

// nodeWatch follows the node's status, and misses no state of it.
type nodeWatch struct {
	mu  sync.Mutex
	all []seen
}

// follow watches until the test ends; a watch that breaks off is taken up where it was.
func (a *api) follow(t *testing.T) *nodeWatch {
	t.Helper()
	w := &nodeWatch{}
	done := make(chan struct{})
	ctx := t.Context()
	go func() {
		defer close(done)
		version := ""
		for ctx.Err() == nil {
			version = a.watchFrom(ctx, version, w.add)
		}
	}()
	t.Cleanup(func() { <-done })
	return w
}

func (a *api) watchFrom(ctx context.Context, version string, add func(node)) string {
	response, err := a.do(ctx, http.MethodGet, "/api/v1/nodes?watch=1&fieldSelector=metadata.name="+nodeName+"&resourceVersion="+version, nil)
	if err != nil {
		return version
	}
	defer func() { _ = response.Body.Close() }()
	decoder := json.NewDecoder(response.Body)
	for {
		var event struct {
			Type   string
			Object node
		}
		if err := decoder.Decode(&event); err != nil || event.Type == "ERROR" {
			return version
		}
		version = event.Object.Metadata.ResourceVersion
		add(event.Object)
	}
}

func (w *nodeWatch) add(n node) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, seen{time.Now(), devices(n.Status.Capacity), devices(n.Status.Allocatable)})
}

func devices(resources map[string]string) map[string]int {
	out := map[string]int{}
	for name, quantity := range resources {
		if n, err := strconv.Atoi(quantity); err == nil && strings.HasPrefix(name, "nvidia.com/") {
			out[name] = n
		}
	}
	return out
}

// now is the last state, empty before the first.
func (w *nodeWatch) now() seen {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.all) == 0 {
		return seen{}
	}
	return w.all[len(w.all)-1]
}

// since are the states from a time on, with the one that stood then.
func (w *nodeWatch) since(start time.Time) []seen {
	w.mu.Lock()
	defer w.mu.Unlock()
	from := 0
	for i, s := range w.all {
		if !s.at.After(start) {
			from = i
		}
	}
	return append([]seen{}, w.all[from:]...)
}
