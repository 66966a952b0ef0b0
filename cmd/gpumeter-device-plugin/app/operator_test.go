// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"io"
	"log/slog"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// operator is what NVIDIA's GPU operator runs, by version.
type operator struct {
	Versions []struct {
		Version                 string
		Exporter, Plugin, Ready map[string]string
	}
	Manager, Init map[string]string
}

func theOperator(t *testing.T) operator {
	t.Helper()
	text, err := os.ReadFile("../../../tests/testdata/operator.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var o operator
	if err := yaml.Unmarshal(text, &o); err != nil || len(o.Versions) == 0 {
		t.Fatalf("%v, %d versions", err, len(o.Versions))
	}
	return o
}

// onSite is an environment whose folders are the site's.
func (s *site) onSite(environments ...map[string]string) map[string]string {
	out := map[string]string{}
	for _, env := range environments {
		for name, value := range env {
			for _, folder := range []string{"/config/", "/available-configs", "/driver-root"} {
				if strings.HasPrefix(value, folder) {
					value = s.dir + value
				}
			}
			out[name] = value
		}
	}
	return out
}

// labelledNode is an API server with the node n1, and a kubeconfig for it.
func (s *site) labelledNode(label string) (*nodeServer, string) {
	s.t.Helper()
	node := &nodeServer{changed: make(chan struct{}), label: label}
	api := httptest.NewServer(node)
	s.t.Cleanup(api.Close)
	return node, s.write("kubeconfig", "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: "+api.URL+"}}]\n"+
		"contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\n")
}

// manage runs the program as the operator's config-manager; stop ends it.
func (s *site) manage(env map[string]string) (done <-chan error, stop func()) {
	ctx, cancel := context.WithCancel(s.t.Context())
	ends := make(chan error, 1)
	go func() {
		ends <- CommandOf("/usr/bin/config-manager", environ(env), io.Discard, io.Discard).Run(ctx, []string{"config-manager"})
	}()
	return ends, cancel
}

// The operator's containers, as they are: the init container links the config, the plugin takes it, the label changes, the
// sidecar links another, and the plugin follows.
func TestTheGPUOperatorsContainersWork(t *testing.T) {
	o := theOperator(t)
	for _, version := range o.Versions {
		t.Run(version.Version, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			for _, folder := range []string{"config", "available-configs"} {
				if err := os.Mkdir(s.path(folder), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			s.write("available-configs/four", "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n")
			s.write("available-configs/eight", "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 8}]}}\n")
			node, kubeconfig := s.labelledNode("four")

			manager := s.onSite(o.Manager, map[string]string{"KUBECONFIG": kubeconfig})
			done, _ := s.manage(s.onSite(manager, o.Init))
			if err := <-done; err != nil {
				t.Fatalf("the init container: %v", err)
			}
			s.env = s.onSite(version.Plugin, version.Ready)
			p := s.start("--source=sim", "--sim-scenario=h100x8-exclusive")
			s.await("with the label four", has(gpus, 32, 32))

			done, stop := s.manage(manager)
			node.set("eight")
			s.await("with the label eight", has(gpus, 64, 64))
			node.set("nope")
			node.set("")
			s.await("without a label", has(gpus, 8, 8))
			p.metrics("gpumeter_device_plugin_config_last_reload_successful 1")
			stop()
			if err := <-done; err != nil {
				t.Errorf("the sidecar ended: %v", err)
			}
		})
	}
}

func TestTheConfigManagerSignalsTheProcessOfTheName(t *testing.T) {
	// Not SIGHUP, which is ignored below nohup.
	dir := t.TempDir()
	program := filepath.Join(dir, "a-device-plugin")
	if err := os.Symlink("/bin/sleep", program); err != nil {
		t.Fatal(err)
	}
	sleeper := exec.CommandContext(t.Context(), program, "100")
	if err := sleeper.Start(); err != nil {
		t.Skip("there is no sleep here:", err)
	}
	m := managerConfig{process: "a-device-plugin", signal: int(syscall.SIGUSR1), proc: "/proc"}
	if err := m.tell(); err != nil {
		t.Error(err)
	}
	err := sleeper.Wait()
	if status, ok := sleeper.ProcessState.Sys().(syscall.WaitStatus); err == nil || !ok || status.Signal() != syscall.SIGUSR1 {
		t.Errorf("it ended with %v", err)
	}
	if err := m.tell(); err == nil || !strings.Contains(err.Error(), "shareProcessNamespace") {
		t.Errorf("when it is gone: %v", err)
	}
}

func TestTheConfigManagerKeepsALinkThatWorks(t *testing.T) {
	s := newSite(t)
	if err := os.Mkdir(s.path("configs"), 0o700); err != nil {
		t.Fatal(err)
	}
	s.write("configs/four", "version: v1")
	node, kubeconfig := s.labelledNode("four")
	log := &syncBuffer{}
	c := defaults()
	c.kubeconfig, c.nodeName, c.configDir, c.fallbacks = kubeconfig, "n1", s.path("configs"), nil
	m := managerConfig{source: c, destination: s.path("config.yaml"), sendSignal: true, process: "nobody-of-this-name", signal: 1, proc: "/proc", pause: 10 * time.Millisecond}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.run(ctx, slog.New(slog.NewTextHandler(log, nil))) }()
	until := func(what string, good func() bool) {
		t.Helper()
		for limit := time.Now().Add(patience); !good(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(limit) {
				t.Fatalf("%s: %s", what, log)
			}
		}
	}
	link := func() string { to, _ := os.Readlink(m.destination); return to }
	until("the first link", func() bool { return link() == s.path("configs/four") })
	until("no process", func() bool { return strings.Contains(log.String(), "nobody was signalled") })
	node.set("five")
	until("a name that is not there", func() bool { return strings.Contains(log.String(), `no config \"five\"`) })
	if link() != s.path("configs/four") {
		t.Errorf("the link is %s", link())
	}
	s.write("configs/five", "version: v1")
	until("once the file is there", func() bool { return link() == s.path("configs/five") })
	if n := strings.Count(log.String(), "the config stays as it is"); n != 1 {
		t.Errorf("%d lines about one mistake", n)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestAConfigManagerThatIsToldTooLittleSaysWhatIsMissing(t *testing.T) {
	err := CommandOf("config-manager", environ(nil), io.Discard, io.Discard).Run(t.Context(), []string{"config-manager"})
	for _, flag := range []string{"--node-name", "--config-file-srcdir", "--config-file-dst"} {
		if err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("%s is not told: %v", flag, err)
		}
	}
	if cmd := CommandOf("/usr/bin/nvidia-device-plugin", environ(nil), io.Discard, io.Discard); cmd.Name != "gpumeter-device-plugin" {
		t.Errorf("by another name it is %s", cmd.Name)
	}
}
