// SPDX-License-Identifier: Apache-2.0

package app

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// onANodeWithoutKubernetes is the configuration of a node of eight whole GPUs whose jobs stand in a folder.
func onANodeWithoutKubernetes(jobs string) Config {
	c := simulated()
	c.Kubernetes, c.JobFolder, c.Scenario = false, jobs, "h100x8-exclusive"
	return c
}

func TestJobsOfABatchSchedulerHoldGPUsWhereThereIsNoKubernetes(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"0": "4711 account=physics\n", "1": "4712\n4713\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// What is no file says nothing of who has its GPU, and nothing of the others.
	if err := os.Mkdir(filepath.Join(dir, "2"), 0o755); err != nil {
		t.Fatal(err)
	}
	a := start(t, onANodeWithoutKubernetes(dir))
	page := eventually(t, a.url+"/metrics", `gpumeter_namespace_gpu_seconds_total{namespace="physics",resource="gres/gpu",mode="exclusive"`)
	for _, want := range []string{
		`resource="gres/gpu",mode="exclusive",namespace="physics",pod="4711"} 1` + "\n",
		`gpumeter_skipped_allocations{reason="unusable_file"} 1` + "\n",
		`namespace="physics",pod="4711",hpc_job="4711"}`,
		`hpc_job="4712"}`,
		`hpc_job="4713"}`,
		`reason="free"} 1` + "\n",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if n := strings.Count(page, `reason="unattributed"} 1`+"\n"); n != 2 {
		t.Errorf("of %d GPUs nobody knows who has how much, want the one of two jobs and the one of the folder", n)
	}
	if err := os.Remove(filepath.Join(dir, "0")); err != nil {
		t.Fatal(err)
	}
	for range 200 {
		time.Sleep(20 * time.Millisecond)
		if _, page = get(t, http.DefaultClient, a.url+"/metrics"); !strings.Contains(page, `gpumeter_allocation_share{`) {
			return
		}
	}
	t.Error("a job that has ended holds its GPU still")
}
