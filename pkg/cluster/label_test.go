// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// applyServer answers server-side apply of labels of nodes, as an API server does: owners has who has which label.
type applyServer struct {
	labels, owners map[string]string
	forbidden      bool
	// seen is the last request.
	seen *http.Request
}

func (s *applyServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.seen = r
	w.Header().Set("Content-Type", "application/json")
	refuse := func(code int, reason, message string) {
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": message, "code": code})
	}
	body, err := io.ReadAll(r.Body)
	var object struct {
		APIVersion, Kind string
		Metadata         struct {
			Name   string
			Labels map[string]string
		}
	}
	if err == nil {
		err = json.Unmarshal(body, &object)
	}
	manager := r.URL.Query().Get("fieldManager")
	switch {
	case s.forbidden:
		refuse(http.StatusForbidden, "Forbidden", "nodes \"n1\" is forbidden")
		return
	case err != nil || object.Kind != "Node" || object.APIVersion != "v1" || object.Metadata.Name != "n1":
		refuse(http.StatusBadRequest, "BadRequest", string(body))
		return
	}
	for name, value := range object.Metadata.Labels {
		if owner := s.owners[name]; owner != "" && owner != manager && s.labels[name] != value {
			refuse(http.StatusConflict, "Conflict", "conflict with "+strings.ReplaceAll(owner, " ", "-")+": .metadata.labels."+name)
			return
		}
	}
	for name, owner := range s.owners {
		if _, still := object.Metadata.Labels[name]; owner == manager && !still {
			delete(s.labels, name)
			delete(s.owners, name)
		}
	}
	for name, value := range object.Metadata.Labels {
		s.labels[name] = value
		if s.owners[name] == "" {
			s.owners[name] = manager
		}
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": map[string]any{"name": "n1", "labels": s.labels}})
}

func TestLabelsOfTheManagerAreReplacedAndNobodyElses(t *testing.T) {
	s := &applyServer{labels: map[string]string{"mine/before": "x", "a/b": "others"}, owners: map[string]string{"a/b": "kubelet"}}
	api := httptest.NewServer(s)
	t.Cleanup(api.Close)
	client := (&apiServer{Server: api}).client(t)
	label := func(labels map[string]string) error { return client.LabelNode(t.Context(), "n1", "us", labels) }
	if err := label(map[string]string{"n/count": "8", "n/old": "1"}); err != nil {
		t.Fatal(err)
	}
	if err := label(map[string]string{"n/count": "7"}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"mine/before": "x", "a/b": "others", "n/count": "7"}, s.labels); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	q := s.seen.URL.Query()
	if s.seen.Method != http.MethodPatch || s.seen.URL.Path != "/api/v1/nodes/n1" || s.seen.Header.Get("Content-Type") != "application/apply-patch+yaml" || q.Get("fieldManager") != "us" || q.Get("force") != "" {
		t.Errorf("%s %s %v", s.seen.Method, s.seen.URL, s.seen.Header)
	}
	err := label(map[string]string{"n/count": "7", "a/b": "ours"})
	if err == nil || !strings.Contains(err.Error(), "somebody else has these labels") || !strings.Contains(err.Error(), "kubelet") || s.labels["a/b"] != "others" {
		t.Errorf("somebody else's label: %v, %v", err, s.labels)
	}
	s.forbidden = true
	if err := label(map[string]string{"n/count": "6"}); err == nil || !strings.Contains(err.Error(), "patch of nodes must be allowed") {
		t.Errorf("without the right: %v", err)
	}
}
