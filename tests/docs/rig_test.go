// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// dead is an address at which nobody answers.
const dead127 = "http://127.0.0.1:1"

// patience is for what takes a second on an idle machine.
const patience = 4 * time.Minute

// rig is a folder that looks like the repository, a pretend node that serves, and last month's ledger.
type rig struct {
	dir string
	// address is the pretend node's exporter, socket its health stream.
	address, socket string
	// ledger is that of a simulated month, month the month, row the id of a row of its bill.
	ledger, month, row string
	// gpu is the UUID of a GPU of the pretend node.
	gpu string
	// kubectl and helm are the real ones, or empty where they are not built.
	kubectl, helm string
}

// newRig builds the programs, unless GPUMETER_PROGRAMS names a folder with them, and starts the node.
func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{dir: t.TempDir()}
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	absolute, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != "bin" && !strings.HasPrefix(e.Name(), ".") {
			must(t, os.Symlink(filepath.Join(absolute, e.Name()), filepath.Join(r.dir, e.Name())))
		}
	}
	must(t, os.Mkdir(filepath.Join(r.dir, "tmp"), 0o755))
	r.programs(t, absolute)
	r.kubectl, r.helm = kubectl(), helm()
	r.node(t)
	r.bill(t)
	r.files(t)
	return r
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// programs puts our programs into bin, and a kubectl that asks nobody.
func (r *rig) programs(t *testing.T, repository string) {
	t.Helper()
	bin := filepath.Join(r.dir, "bin")
	must(t, os.Mkdir(bin, 0o755))
	if from := os.Getenv("GPUMETER_PROGRAMS"); from != "" {
		for _, name := range ours {
			must(t, os.Symlink(filepath.Join(from, name), filepath.Join(bin, name)))
		}
	} else {
		build := exec.Command("go", "build", "-buildvcs=false", "-o", bin+"/", "./cmd/...")
		build.Dir = repository
		build.Env = append(os.Environ(), "CGO_CFLAGS=-g -O2 -Wno-deprecated-declarations")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	must(t, os.WriteFile(filepath.Join(bin, "kubectl"), []byte(pretendKubectl), 0o755))
	must(t, os.WriteFile(filepath.Join(bin, "sudo"), []byte("#!/bin/sh\nexec \"$@\"\n"), 0o755))
}

// pretendKubectl has the real one read its words and fail to find a server. What a container was to run is then run here,
// and what the API server was to pass on is asked of the pretend node.
const pretendKubectl = `#!/bin/bash
"$REAL_KUBECTL" --server=` + dead127 + ` --request-timeout=5s "$@" > /dev/null 2>> "$KUBECTL_SAID" < /dev/null
while [ $# -gt 0 ]; do
	case $1 in
	--) shift; exec "$@" ;;
	*:9400/proxy/*) exec curl -sf "http://$NODE_ADDRESS/${1#*:9400/proxy/}" ;;
	esac
	shift
done
`

// newest is the last of the files that a pattern names, or "".
func newest(pattern string) string {
	cache, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	found, err := filepath.Glob(filepath.Join(cache, "gpumeter", pattern))
	if err != nil || len(found) == 0 {
		return ""
	}
	return found[len(found)-1]
}

func helm() string {
	if name := os.Getenv("GPUMETER_HELM"); name != "" {
		return name
	}
	return newest("tools/helm@*/helm")
}

func kubectl() string {
	if name := newest("e2e/*/kubectl"); name != "" {
		return name
	}
	name, err := exec.LookPath("kubectl")
	if err != nil {
		return ""
	}
	return name
}

// env is the environment of what is run, in which a pretend node is the only one.
func (r *rig) env(more ...string) []string {
	return append([]string{
		"PATH=" + filepath.Join(r.dir, "bin") + ":" + os.Getenv("PATH"), "HOME=" + filepath.Join(r.dir, "tmp"), "TMPDIR=" + filepath.Join(r.dir, "tmp"),
		"GPUMETER_SOURCE=sim", "GPUMETER_HEALTH_SOCKET=" + r.socket, "GPUMETER_LEDGER_DIR=" + filepath.Join(r.dir, "tmp", "charges"),
		"REAL_KUBECTL=" + r.kubectl, "NODE_ADDRESS=" + r.address,
		"NODE=gpu-node-1", "POD=pod/gpumeter-x7k2p", "UUID=" + r.gpu, "NAMESPACE=inference", "POD_NAME=chat-42psr", "LEDGER=3f1c", "PROMETHEUS=" + dead127,
	}, more...)
}

// free is an address that nobody listens on.
func free(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	return l.Addr().String()
}

// node starts the pretend node. It is stopped with the test.
func (r *rig) node(t *testing.T) {
	t.Helper()
	r.address, r.socket = free(t), filepath.Join(r.dir, "tmp", "health.sock")
	s := r.start(t, "gpumeter demo --month=false --ledger-dir "+filepath.Join(r.dir, "tmp", "node")+
		" --address "+r.address+" --health-socket "+r.socket, nil)
	t.Cleanup(func() { s.stop(t) })
	s.wait(t, "http://"+r.address+"/readyz")
	var health struct {
		Devices []struct {
			UUID string `json:"uuid"`
		} `json:"devices"`
	}
	must(t, json.Unmarshal(get(t, "http://"+r.address+"/api/v1/health"), &health))
	r.gpu = health.Devices[0].UUID
}

// bill makes the ledger of a month.
func (r *rig) bill(t *testing.T) {
	t.Helper()
	out, code := r.run(t, "gpumeter demo --for 1s --month --health-socket= --address "+free(t), nil)
	found, err := filepath.Glob(filepath.Join(r.dir, "tmp", "gpumeter-demo-*"))
	if code != 0 || err != nil || len(found) != 1 {
		t.Fatalf("the demo's month: exit status %d, %v %v\n%s", code, found, err, out)
	}
	r.ledger = found[0]
	var report struct {
		Rows []struct {
			ID string `json:"id"`
		} `json:"rows"`
	}
	out, code = r.run(t, "gpumeter report --month last --prices etc/prices.example.yaml --group-by namespace --format json --ledger "+r.ledger, nil)
	if err := json.Unmarshal([]byte(out), &report); err != nil || code != 0 || len(report.Rows) == 0 {
		t.Fatalf("the month's report: exit status %d, %v\n%s", code, err, out)
	}
	r.row = report.Rows[0].ID
	y, m, _ := time.Now().UTC().Date()
	r.month = time.Date(y, m-1, 1, 0, 0, 0, 0, time.UTC).Format("2006-01")
}

// run runs a command line and returns what it wrote, and its exit status.
func (r *rig) run(t *testing.T, text string, more []string) (string, int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-o", "pipefail", "-c", text)
	cmd.Dir, cmd.Env = r.dir, r.env(more...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%s: %v", text, err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// service is a program that runs until it is stopped.
type service struct {
	cmd  *exec.Cmd
	said *safe
	done chan error
}

// safe is a buffer that a program writes while a test reads.
type safe struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safe) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safe) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// start starts a command line of one program, in the place of a shell, so that a signal reaches it.
func (r *rig) start(t *testing.T, text string, more []string) *service {
	t.Helper()
	s := &service{cmd: exec.Command("bash", "-c", "exec "+text), said: &safe{}, done: make(chan error, 1)}
	s.cmd.Dir, s.cmd.Env, s.cmd.Stdout, s.cmd.Stderr = r.dir, r.env(more...), s.said, s.said
	must(t, s.cmd.Start())
	go func() { s.done <- s.cmd.Wait() }()
	return s
}

// wait waits until the program answers at an address; with none, until it has said something.
func (s *service) wait(t *testing.T, url string) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		select {
		case err := <-s.done:
			t.Fatalf("it ended by itself: %v\n%s", err, s.said)
		default:
		}
		if url == "" && s.said.String() != "" || url != "" && answers(url) {
			return
		}
	}
	_ = s.cmd.Process.Kill()
	t.Fatalf("no answer\n%s", s.said)
}

// stop ends the program as Ctrl-C does.
func (s *service) stop(t *testing.T) {
	t.Helper()
	must(t, s.cmd.Process.Signal(syscall.SIGINT))
	select {
	case err := <-s.done:
		if err != nil {
			t.Errorf("it ended with %v\n%s", err, s.said)
		}
	case <-time.After(patience):
		_ = s.cmd.Process.Kill()
		t.Errorf("it does not end at SIGINT\n%s", s.said)
	}
}

func answers(url string) bool {
	resp, err := http.Get(url)
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

func get(t *testing.T, url string) []byte {
	t.Helper()
	resp, err := http.Get(url)
	must(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	must(t, err)
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s\n%s", url, resp.Status, body)
	}
	return body
}
