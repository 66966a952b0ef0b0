// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpumeter/gpumeter/cmd/gpumeter-exporter/app"
)

// labelServer is a kubeconfig for an API server that has the node n1 with these labels; nil refuses everything.
func labelServer(t *testing.T, labels map[string]string) string {
	t.Helper()
	ended := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case labels == nil:
			w.WriteHeader(http.StatusForbidden)
			_ = json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no", "code": http.StatusForbidden})
		case r.URL.Query().Get("watch") != "":
			_ = http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
			case <-ended:
			}
		default:
			_ = json.NewEncoder(w).Encode(map[string]any{
				"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "metadata": map[string]any{"resourceVersion": "1"},
				"items": []any{map[string]any{"metadata": map[string]any{"name": "n1", "labels": labels}}},
			})
		}
	}))
	t.Cleanup(s.Close)
	t.Cleanup(func() { close(ended) })
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: " + s.URL + "}}]\n" +
		"contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestDoctorSaysWhatTheMIGManagerDoes(t *testing.T) {
	const label = "nvidia.com/mig.config.state"
	for name, c := range map[string]struct {
		labels map[string]string
		status status
		text   string
	}{
		"under way":  {map[string]string{label: "pending"}, statusInfo, "(" + label + "=pending): no GPU is called lost or stuck, and none recovers, until it has done so or 30m0s are over"},
		"failed":     {map[string]string{label: "failed"}, statusWarn, "could not divide the GPUs"},
		"over":       {map[string]string{label: "success"}, statusOK, "nothing is under way: " + label + "=success"},
		"no manager": {map[string]string{}, statusOK, "no MIG manager"},
		"forbidden":  {nil, statusInfo, "the node's labels are not known"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := app.Defaults()
			cfg.NodeName, cfg.Kubeconfig = "n1", labelServer(t, c.labels)
			d := &doctor{cfg: cfg}
			if !d.asksAPI() {
				t.Fatal("the API server is not asked")
			}
			found := d.checkNode(context.Background(), exam{}).findings
			if len(found) != 1 || found[0].Status != c.status || !strings.Contains(found[0].Text, c.text) {
				t.Errorf("%+v", found)
			}
		})
	}
}

func TestDoctorKnowsThatJudgingMayNeverBePaused(t *testing.T) {
	cfg := app.Defaults()
	cfg.NodeName, cfg.Kubeconfig = "n1", labelServer(t, map[string]string{"nvidia.com/mig.config.state": "rebooting"})
	cfg.Health.RepartitionLimit = 0
	found := (&doctor{cfg: cfg}).checkNode(context.Background(), exam{}).findings
	if len(found) != 1 || found[0].Status != statusInfo || !strings.Contains(found[0].Text, "=rebooting): GPUs are judged all the same") {
		t.Errorf("%+v", found)
	}
}

func TestDoctorAsksNoAPIServerThatTheExporterWouldNotAsk(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for name, change := range map[string]func(*app.Config){
		"no node":          func(c *app.Config) { c.Kubeconfig = "/k" },
		"no API server":    func(c *app.Config) { c.NodeName = "n1" },
		"it is not wanted": func(c *app.Config) { c.NodeName, c.Kubeconfig, c.PodWatch = "n1", "/k", app.PodWatchOff },
	} {
		cfg := app.Defaults()
		if change(&cfg); (&doctor{cfg: cfg}).asksAPI() {
			t.Errorf("%s: it is asked", name)
		}
	}
}
