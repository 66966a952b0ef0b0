// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// status is the exit status that a statement ends with.
func status(s statement) int {
	// The ledger at hand is of last month: nothing is known of this one, and the report says so.
	if strings.Contains(s.text, "report --ledger") && !strings.Contains(s.text, "--month") {
		return 2
	}
	return 0
}

// TestEveryCommandOfThePages runs what can be run of all pages, and has real programs read the rest.
func TestEveryCommandOfThePages(t *testing.T) {
	var all []statement
	for _, p := range pages(t) {
		found, _ := p.blocks()
		for _, b := range found {
			if !shellBlock(b) {
				continue
			}
			list, err := statements(b)
			if err != nil {
				t.Errorf("%s:%d: the shell would not take this: %v\n%s", p.name, b.line, err, b.text)
			}
			all = append(all, list...)
		}
	}
	r := newRig(t)
	count := map[way]int{}
	for _, s := range all {
		w := wayOf(s)
		count[w]++
		t.Run(s.where(), func(t *testing.T) { r.check(t, s, w) })
	}
	for _, w := range slices.Sorted(maps.Keys(count)) {
		t.Logf("%4d %s", count[w], w)
	}
	if count[ran] < 15 || len(all) < 200 {
		t.Errorf("%d commands were found, %d of them to be run", len(all), count[ran])
	}
}

// check checks a statement in its way.
func (r *rig) check(t *testing.T, s statement, w way) {
	r.ownFiles(t, s.block.page)
	switch w {
	case setting, elsewhere:
	case target:
		for _, c := range s.calls {
			if c[0] == "make" {
				checkMake(t, c[1:])
			}
		}
	case rendered:
		r.render(t, s.call("helm"))
	case parsed:
		if s.call("kubectl") == nil {
			r.ask(t, s)
			return
		}
		r.read(t, s)
	case carried:
		r.read(t, s)
	case served:
		r.serve(t, s)
	case ran:
		r.try(t, s)
	default:
		t.Errorf("nobody has said how this is to be checked (ways_test.go): %s", s.text)
	}
}

// here is a command line with the places of a node and its dates replaced by those of the rig.
func (r *rig) here(text string) string {
	text = strings.NewReplacer(
		"/var/lib/gpumeter", r.ledger, "/run/gpumeter/health.sock", r.socket, "http://NODE:9400", "http://"+r.address,
		"127.0.0.1:9400", r.address, "localhost:9400", r.address, "2026-11", r.month, "90b1c2f3", r.row,
		"GPU-5f254f85-e708-4d24-bb15-7e20b2a941da", r.gpu, "http://prometheus:9090", dead127, "http://thanos:9090", dead127, "/tmp/", filepath.Join(r.dir, "tmp")+"/",
		"log-*.gml", filepath.Join(r.dir, "tmp", "node", "book")+"/log-*.gml",
	).Replace(text)
	return text
}

// try runs a statement.
func (r *rig) try(t *testing.T, s statement) {
	want, text := status(s), s.settings+"\n"+s.text
	var more []string
	if call := s.call("gpumeter"); call != nil && slices.Contains(call, "demo") {
		// One pretend node is there already.
		text, more = strings.Join(quoted(call), " ")+" --address "+free(t), []string{"GPUMETER_HEALTH_SOCKET="}
	}
	if out, code := r.run(t, r.here(text), more); code != want {
		t.Errorf("%s\nexit status %d, want %d\n%s", s.text, code, want, out)
	}
}

// ask runs a statement that needs a Prometheus, and there is none.
func (r *rig) ask(t *testing.T, s statement) {
	out, code := r.run(t, r.here(s.settings+"\n"+s.text), nil)
	if code != 1 || !strings.Contains(out, "connection refused") {
		t.Errorf("%s\nexit status %d, which should have come of the server\n%s", s.text, code, out)
	}
}

// refused is what kubectl says of a server that does not answer.
var refused = regexp.MustCompile(`(?i)connection refused|was refused`)

// read has kubectl read its words, and runs what it was to run in a container.
func (r *rig) read(t *testing.T, s statement) {
	if r.kubectl == "" {
		t.Skip("there is no kubectl; make e2e builds one")
	}
	log := filepath.Join(t.TempDir(), "kubectl")
	must(t, os.WriteFile(log, nil, 0o600))
	out, code := r.run(t, r.here(s.settings+"\n"+s.text), []string{"KUBECTL_SAID=" + log})
	said, err := os.ReadFile(log)
	must(t, err)
	if text := strings.TrimSpace(string(said)); !refused.MatchString(text) && !(text == "" && slices.Contains(s.call("kubectl"), "kustomize")) {
		t.Errorf("%s\nkubectl says: %s", s.text, text)
	}
	if want := status(s); wayOf(s) == carried && code != want {
		t.Errorf("%s\nexit status %d, want %d\n%s", s.text, code, want, out)
	}
}

// serve starts a program, asks it, and stops it.
func (r *rig) serve(t *testing.T, s statement) {
	address, tmp := free(t), t.TempDir()
	call := s.call(ours...)
	url := "http://" + address + "/livez"
	text := r.here(strings.Join(quoted(call), " "))
	var more []string
	switch path.Base(call[0]) {
	case "gpumeter":
		if call[1] == "demo" {
			text += " --month=false --address " + address
			more = []string{"GPUMETER_HEALTH_SOCKET="}
		} else {
			url = ""
		}
	case "gpumeter-exporter":
		text += " --address " + address + " --ledger-dir " + tmp + " --health-socket " + tmp + "/health.sock"
	case "gpumeter-device-plugin":
		must(t, os.MkdirAll(filepath.Join(tmp, "device-plugins"), 0o755))
		url = "http://" + address + "/healthz"
		text += " --address " + address + " --kubelet-dir " + tmp + " --state-dir " + tmp + " --cdi-dir " + tmp
	}
	service := r.start(t, text, more)
	service.wait(t, url)
	service.stop(t)
}

// render has helm read its words, and render the chart with the values that they give.
func (r *rig) render(t *testing.T, call []string) {
	if r.helm == "" {
		t.Skip("there is no helm; make e2e builds one")
	}
	line := fmt.Sprintf("%s --kube-apiserver %s", strings.Join(quoted(call), " "), dead127)
	out, code := r.run(t, strings.Replace(line, "helm ", r.helm+" ", 1), nil)
	if code == 0 || !refused.MatchString(out) {
		t.Errorf("%s\nexit status %d, which should have come of the server\n%s", line, code, out)
	}
	if call[1] != "install" && call[1] != "upgrade" {
		return
	}
	words := slices.Clone(call)
	words[1] = "template"
	words = slices.DeleteFunc(words, func(w string) bool {
		return slices.Contains([]string{"--install", "--reuse-values", "--reset-values", "--reset-then-reuse-values", "--wait", "--atomic"}, w)
	})
	line = strings.Join(quoted(words), " ")
	if out, code := r.run(t, strings.Replace(line, "helm ", r.helm+" ", 1), nil); code != 0 || !strings.Contains(out, "kind: DaemonSet") {
		t.Errorf("%s\nexit status %d\n%s", line, code, out)
	}
}

func quoted(words []string) []string {
	var out []string
	for _, w := range words {
		out = append(out, "'"+strings.ReplaceAll(w, "'", `'\''`)+"'")
	}
	out[0] = words[0]
	return out
}

// checkMake looks whether the Makefile has these targets and variables.
func checkMake(t *testing.T, words []string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, "Makefile"))
	must(t, err)
	makefile := "\n" + string(data)
	for _, w := range words {
		if name, _, ok := strings.Cut(w, "="); ok {
			if !strings.Contains(makefile, "$("+name+")") {
				t.Errorf("the Makefile knows no %s", name)
			}
		} else if !strings.Contains(makefile, "\n"+w+":") {
			t.Errorf("the Makefile has no target %s", w)
		}
	}
}

// TestWhatNobodyHasSaidIsRefused holds that a program that is not known, alone or in a pipe, has no way to be checked.
func TestWhatNobodyHasSaidIsRefused(t *testing.T) {
	for text, want := range map[string]way{
		"frobnicate --now": "", "gpumeter scenarios | frobnicate": "", "kubectl get pods | frobnicate": "",
		"gpumeter scenarios | head -n 1": ran, "gpumeter demo": served, "gpumeter demo --for 5s": ran, "gpumeter-exporter --help": ran,
		"gpumeter report --prometheus http://prometheus:9090": parsed, "kubectl -n x exec p -- gpumeter health": carried,
		"helm install gpumeter deployment/helm/gpumeter": rendered, "helm repo add nvidia https://example.com": elsewhere,
		"sudo gpumeter verify --ledger x": ran, "timeout 5 gpumeter-exporter --source=sim": served, "sudo reboot": elsewhere,
		"ssh $NODE nvidia-smi": elsewhere, "make image ARCHS=amd64": target, "NODE=...": setting,
	} {
		list, err := statements(block{page: &page{}, text: text})
		must(t, err)
		if got := wayOf(list[0]); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

// TestEveryBlockIsKnown holds that no command hides in a block that nobody looks into.
func TestEveryBlockIsKnown(t *testing.T) {
	for _, p := range pages(t) {
		found, _ := p.blocks()
		for _, b := range found {
			if b.lang != "" || shellBlock(b) || promql(b.text) == nil {
				continue
			}
			if !slices.ContainsFunc(texts, func(x text) bool { return x.page == p.name && strings.HasPrefix(b.firstLine(), x.begins) }) {
				t.Errorf("%s:%d: is this a command, a query, or what (ways_test.go)? %s", p.name, b.line, b.firstLine())
			}
		}
	}
}
