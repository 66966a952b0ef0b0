// SPDX-License-Identifier: Apache-2.0

package prometheus

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/promusage"
)

// The programs that `make e2e-prometheus` names.
const (
	prometheusProgram = "GPUMETER_PROMETHEUS"
	gpumeterProgram   = "GPUMETER_PROGRAM"
)

// TestARealPrometheusServerBillsWhatTheLedgerBills has a Prometheus server scrape the demo node by two jobs, with the shipped
// rules loaded, kills the exporter once, and holds the report over the server against the node's ledger.
func TestARealPrometheusServerBillsWhatTheLedgerBills(t *testing.T) {
	server, program := os.Getenv(prometheusProgram), os.Getenv(gpumeterProgram)
	if server == "" || program == "" {
		t.Skipf("%s and %s name the programs; make e2e-prometheus builds both", prometheusProgram, gpumeterProgram)
	}
	node, api := freeAddress(t), freeAddress(t)
	dir, ledgers := t.TempDir(), t.TempDir()
	rules, err := filepath.Abs("../../etc/prometheus/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	kube := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		_, _ = io.WriteString(w, kubeStateMetrics)
	}))
	t.Cleanup(kube.Close)
	config := fmt.Sprintf(`global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 5s}
rule_files: [%q]
scrape_configs:
- {job_name: gpumeter, static_configs: [{targets: [%q], labels: {namespace: gpu-system, pod: exporter-1}}]}
- {job_name: again, scrape_interval: 3s, honor_labels: true, static_configs: [{targets: [%q]}]}
- {job_name: kube-state-metrics, static_configs: [{targets: ['%s'], labels: {namespace: monitoring}}]}
`, rules, node, node, kube.Listener.Addr())
	if err := os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	// At another speed its clock would be stepped back by the kill.
	demo := func(address, dir string) *exec.Cmd {
		return start(t, program, "demo", "--month=false", "--address", address, "--speed", "1", "--ledger-dir", dir)
	}
	begin := time.Now().Add(-time.Second).Truncate(time.Millisecond)
	first := demo(node, ledgers)
	// A second exporter of the node, with a ledger of its own, that nobody scrapes.
	rival := t.TempDir()
	stranger := demo(freeAddress(t), rival)
	start(t, server, "--config.file", filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path", filepath.Join(dir, "data"), "--web.listen-address", api)
	url := "http://" + api
	waitFor(t, "Prometheus", func() bool { return ok(url + "/-/ready") })
	waitFor(t, "the first commit", func() bool { return sequence(t, url) > 0 })
	time.Sleep(25 * time.Second)
	backup := filepath.Join(t.TempDir(), "backup")
	if err := os.CopyFS(backup, os.DirFS(ledgers)); err != nil {
		t.Fatal(err)
	}
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.Wait()
	before := sequence(t, url)
	second := demo(node, ledgers)
	waitFor(t, "a commit after the kill", func() bool { return sequence(t, url) > before })
	time.Sleep(15 * time.Second)
	// It is stopped before the end is read, so that no scrape is on its way.
	stop(t, stranger)
	stop(t, second)
	time.Sleep(2 * time.Second)
	end := time.Now().Truncate(time.Millisecond)

	if bad := unhealthyRules(t, url); len(bad) > 0 {
		t.Errorf("rules that fail: %v", bad)
	}
	s, err := promusage.New(promusage.Config{URL: url, Settle: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := s.Usage(t.Context(), ledger.Query{Boundaries: []time.Time{begin, end}})
	if err != nil {
		t.Fatal(err)
	}
	r, err := ledger.OpenReader(ledgers)
	if err != nil {
		t.Fatal(err)
	}
	n := theirs.Nodes[0]
	ours, err := r.Usage(t.Context(), ledger.Query{Boundaries: []time.Time{n.Created.Add(-time.Hour), n.Readings[1]}})
	if err != nil {
		t.Fatal(err)
	}
	got := cellsOf(theirs, 1)[0]
	disagree(t, "the server against the ledger", 0, got, cellsOf(ours, 1)[0])
	if len(theirs.Nodes) != 1 || len(theirs.Held) == 0 || len(got) < 8 {
		t.Errorf("%d nodes, %d rows held, %d numbers: too little to be the demo node", len(theirs.Nodes), len(theirs.Held), len(got))
	}
	v, err := s.Verify(t.Context(), begin, end, time.Second, nil)
	if err != nil || !v.OK() || v.Checked < 20 {
		t.Errorf("verify: %+v, %v", v, err)
	}
	t.Logf("%d numbers agree, %d readings of %d GPUs add up", len(got), v.Checked, v.GPUs)

	// A copy of the node's disk goes on by itself.
	clone := filepath.Join(t.TempDir(), "clone")
	if err := os.CopyFS(clone, os.DirFS(backup)); err != nil {
		t.Fatal(err)
	}
	third := demo(freeAddress(t), clone)
	// What is younger than the time that samples may be on their way is not read at the command line.
	time.Sleep(time.Until(end.Add(promusage.DefaultSettle + time.Second)))
	stop(t, third)
	tool := commandLine{t, program, []string{"--from", begin.Format(time.RFC3339Nano), "--to", end.Format(time.RFC3339Nano)}}
	tool.answers(url, ledgers, copies{backup, clone, rival}, n.LedgerID)
}

// kubeStateMetrics is a page of it, about what the demo node shows.
const kubeStateMetrics = `kube_namespace_labels{namespace="inference",label_team="answers"} 1
kube_namespace_labels{namespace="ml-research",label_team="science"} 1
kube_node_labels{node="gpu-node-1",label_zone="z1"} 1
`

// commandLine runs gpumeter for one period.
type commandLine struct {
	t       *testing.T
	program string
	period  []string
}

// run is what a command says and its exit code.
func (c commandLine) run(args ...string) (string, int) {
	c.t.Helper()
	out, err := exec.CommandContext(c.t.Context(), c.program, args...).CombinedOutput()
	exit, failed := errors.AsType[*exec.ExitError](err)
	if err != nil && !failed {
		c.t.Fatal(err)
	}
	if failed {
		return string(out), exit.ExitCode()
	}
	return string(out), 0
}

// copies are ledgers that are not to be counted beside the node's own: a backup of it, a copy that went on by itself, and that of a
// second exporter on the node.
type copies struct{ backup, clone, rival string }

// answers asks a server and a ledger all that can be asked of both.
func (c commandLine) answers(url, ledgers string, beside copies, id string) {
	c.t.Helper()
	const incomplete, unbalanced = 2, 3
	for _, tt := range []struct {
		name  string
		args  []string
		whole bool
		code  int
		says  []string
	}{
		{"reconcile", []string{"report", "--reconcile", "--prometheus", url, "--ledger", ledgers}, false, 0, []string{"They agree in every number", "inference", "TOTAL"}},
		{"reconcile beside an older copy", []string{"report", "--reconcile", "--prometheus", url, "--ledger", beside.backup, "--ledger", ledgers}, false, 0, []string{"They agree in every number", "copies of one ledger"}},
		{"reconcile with an older copy alone", []string{"report", "--reconcile", "--prometheus", url, "--ledger", beside.backup}, false, 0, []string{"DIFFERENCE", "read"}},
		{"report of a copy too", []string{"report", "--ledger", ledgers, "--ledger", beside.clone}, false, incomplete, []string{"INCOMPLETE", "ledger of its own"}},
		{"report of two exporters on a node", []string{"report", "--ledger", ledgers, "--ledger", beside.rival}, false, unbalanced, []string{"more than one ledger at the same time"}},
		{"report by labels", []string{"report", "--prometheus", url, "--kube-labels", "--group-by", "namespace-label:team,node-label:zone"}, false, 0, []string{"science", "answers", "z1"}},
		{"report of what nobody keeps", []string{"report", "--prometheus", url, "--lookback", "1s", "--rule-lookback", "1s"}, false, incomplete, []string{"INCOMPLETE"}},
		{"explain", []string{"explain", "--prometheus", url, "--namespace", "inference"}, false, 0, []string{"inference/chat-", "nvidia.com/gpu.shared"}},
		{"explain a row that is none", []string{"explain", "--prometheus", url, "nothing"}, false, 1, []string{"no such row"}},
		{"verify", []string{"verify", "--prometheus", url, "--step", "1s"}, false, 0, []string{"PROVEN"}},
		{"verify a time before", []string{"verify", "--prometheus", url, "--from", "-48h", "--to", "-24h"}, true, 1, []string{"no ledger of a GPU node"}},
		{"verify the ledger", []string{"verify", "--ledger", ledgers}, true, 0, []string{"PROVEN", id}},
	} {
		args := tt.args
		if !tt.whole {
			args = slices.Concat(args[:1], c.period, args[1:])
		}
		if out, code := c.run(args...); code != tt.code || !containsAll(out, tt.says) {
			c.t.Errorf("%s: exit code %d, want %d and %q:\n%s", tt.name, code, tt.code, tt.says, out)
		}
	}
}

func containsAll(text string, words []string) bool {
	return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(text, word) })
}

func freeAddress(t *testing.T) string {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// start runs a program until the test ends, and shows what it said if the test fails.
func start(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	var said bytes.Buffer
	c := exec.CommandContext(t.Context(), name, args...)
	c.Stdout, c.Stderr = &said, &said
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	c.WaitDelay = 10 * time.Second
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
		if t.Failed() {
			text := said.String()
			t.Logf("%s said:\n%s", filepath.Base(name), text[max(0, len(text)-4000):])
		}
	})
	return c
}

// stop ends a program in good order.
func stop(t *testing.T, c *exec.Cmd) {
	t.Helper()
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait()
}

func waitFor(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		if is() {
			return
		}
	}
	t.Fatalf("waited two minutes for %s", what)
}

func ok(url string) bool {
	r, err := http.Get(url)
	if err != nil {
		return false
	}
	_ = r.Body.Close()
	return r.StatusCode == http.StatusOK
}

// sequence is the ledger's as Prometheus has it; 0 for none.
func sequence(t *testing.T, url string) float64 {
	t.Helper()
	var a struct {
		Data struct{ Result []struct{ Value [2]any } }
	}
	if err := fetch(url+"/api/v1/query?query=max(gpumeter_ledger_sequence)", &a); err != nil || len(a.Data.Result) == 0 {
		return 0
	}
	var v float64
	_, _ = fmt.Sscan(fmt.Sprint(a.Data.Result[0].Value[1]), &v)
	return v
}

func unhealthyRules(t *testing.T, url string) []string {
	t.Helper()
	var a struct {
		Data struct {
			Groups []struct {
				Name  string
				Rules []struct{ Name, Health, LastError string }
			}
		}
	}
	if err := fetch(url+"/api/v1/rules", &a); err != nil {
		t.Fatal(err)
	}
	var bad []string
	rules := 0
	for _, g := range a.Data.Groups {
		for _, r := range g.Rules {
			rules++
			if strings.EqualFold(r.Health, "err") {
				bad = append(bad, r.Name+": "+r.LastError)
			}
		}
	}
	if rules == 0 {
		bad = append(bad, "none is loaded")
	}
	return bad
}

func fetch(url string, into any) error {
	r, err := http.Get(url)
	if err != nil {
		return err
	}
	defer func() { _ = r.Body.Close() }()
	if r.StatusCode != http.StatusOK {
		return errors.New(r.Status)
	}
	return json.NewDecoder(r.Body).Decode(into)
}
