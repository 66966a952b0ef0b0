// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

const (
	// envImages is the folder with the images that `make image` made, envChart that of the Helm
	// chart, envHelm the program helm.
	envImages = "GPUMETER_E2E_IMAGES"
	envChart  = "GPUMETER_E2E_CHART"
	envHelm   = "GPUMETER_E2E_HELM"

	// namespace is where the chart is installed.
	namespace = "gpumeter"
)

// imported has containerd take an image of `make image`, and is its name.
func (n *testNode) imported(variant string) string {
	n.t.Helper()
	found, err := filepath.Glob(filepath.Join(os.Getenv(envImages), "gpumeter-*-linux-"+runtime.GOARCH+".tar"))
	if err != nil {
		n.t.Fatal(err)
	}
	for _, file := range found {
		if strings.Contains(filepath.Base(file), "-operator-") != (variant != "") {
			continue
		}
		reference, err := referenceOf(file)
		if err != nil {
			n.t.Fatal(err)
		}
		out, err := exec.Command(n.cluster.program("ctr"), "--address", filepath.Join(work, "containerd.sock"), "--namespace", "k8s.io", "images", "import", file).CombinedOutput()
		if err != nil {
			n.t.Fatalf("import %s: %v: %s", file, err, out)
		}
		return reference
	}
	n.t.Fatalf("no image %q for %s in %s: run `make image`", variant, runtime.GOARCH, os.Getenv(envImages))
	return ""
}

// referenceOf is the image's name in an OCI archive.
func referenceOf(archive string) (string, error) {
	file, err := os.Open(archive)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }()
	for in := tar.NewReader(file); ; {
		header, err := in.Next()
		if err != nil {
			return "", fmt.Errorf("%s has no index.json: %w", archive, err)
		}
		if header.Name != "index.json" {
			continue
		}
		var index struct {
			Manifests []struct {
				Annotations map[string]string `json:"annotations"`
			} `json:"manifests"`
		}
		data, err := io.ReadAll(in)
		if err == nil {
			err = json.Unmarshal(data, &index)
		}
		if err != nil || len(index.Manifests) != 1 {
			return "", fmt.Errorf("%s has %d images, %w", archive, len(index.Manifests), err)
		}
		return index.Manifests[0].Annotations["io.containerd.image.name"], nil
	}
}

// kubectl runs kubectl as an administrator and is what it printed.
func (n *testNode) kubectl(stdin []byte, args ...string) (string, error) {
	command := exec.Command(n.cluster.program("kubectl"), append([]string{"--kubeconfig", filepath.Join(work, "credentials", kubeconfig("admin"))}, args...)...)
	command.Stdin = bytes.NewReader(stdin)
	var out, complaints bytes.Buffer
	command.Stdout, command.Stderr = &out, &complaints
	if err := command.Run(); err != nil {
		return "", fmt.Errorf("kubectl %s: %w: %s%s", strings.Join(args, " "), err, out.Bytes(), complaints.Bytes())
	}
	return out.String(), nil
}

func (n *testNode) must(out string, err error) string {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
	return out
}

// chartValues are for this node: the pretend libdcgm from a folder of the node, no network but the
// node's, an API server without a service address, and the ledger that the exporter had before.
func (n *testNode) chartValues(reference string) map[string]any {
	repository, tag, _ := strings.Cut(reference, ":")
	folder := filepath.Dir(n.cards.sim.Path)
	api := []any{env("KUBERNETES_SERVICE_HOST", "127.0.0.1"), env("KUBERNETES_SERVICE_PORT", "6443")}
	return map[string]any{
		"image":          map[string]any{"repository": repository, "tag": tag, "pullPolicy": "Never"},
		"clusterLookups": false, "affinity": map[string]any{}, "hostNetwork": true,
		"ledger": map[string]any{"hostPath": ledgerFolder},
		"exporter": map[string]any{
			"source": "dcgm", "collectInterval": interval.String(), "podUID": true, "extraEnv": api,
			"extraArgs":         []string{"--dcgm-library=" + n.cards.sim.Path, "--ledger-commit=1s"},
			"extraVolumeMounts": []any{mount("dcgm", folder)},
		},
		"devicePlugin": map[string]any{
			"source": "stream", "extraEnv": api,
			// Where NVIDIA's runtime would have given the container the device nodes.
			"extraArgs": []string{"--host-root=/driver-root"},
			"config":    map[string]any{"map": map[string]any{"shared": n.configText(byCDI)}},
		},
		"extraVolumes": []any{map[string]any{"name": "dcgm", "hostPath": map[string]any{"path": folder, "type": "Directory"}}},
	}
}

// shipped: what `make image` made, installed by the chart, takes over from the programs that ran on
// the node, with their ledger.
func (n *testNode) shipped() {
	n.t.Cleanup(n.explain)
	before := n.chargedNow("whole")
	n.cluster.stop(plugin)
	n.cluster.stop(exporter)
	n.cards.forget()
	manifests := n.render(n.chartValues(n.imported("")))
	n.must(n.kubectl(nil, "create", "namespace", namespace))
	n.must(n.kubectl(manifests, "apply", "--namespace", namespace, "-f", "-"))
	n.daemonSetIsReady()
	n.cluster.eventually(20*time.Second, "the chart's exporter answers", answers(exporterPage))
	n.offers(30*time.Second, "the node offers all of it", n.everything())
	n.bridged("whole", before)
	n.gets("chart", whole, "NVIDIA_VISIBLE_DEVICES=void")
	n.holds("chart", 20*interval, 1)
	n.chargedByUID("chart")
	n.confined()
}

// render is the chart with these values.
func (n *testNode) render(values map[string]any) []byte {
	n.t.Helper()
	text, err := json.Marshal(values)
	if err != nil {
		n.t.Fatal(err)
	}
	helm := exec.Command(os.Getenv(envHelm), "template", "gpumeter", os.Getenv(envChart), "--namespace", namespace, "--values", "-")
	var complaints bytes.Buffer
	helm.Stdin, helm.Stderr = bytes.NewReader(text), &complaints
	manifests, err := helm.Output()
	if err != nil {
		n.t.Fatalf("helm template: %v: %s", err, complaints.String())
	}
	n.toLogs("chart.yaml", manifests)
	return manifests
}

// explain leaves among the logs what the API server and the pods of the chart say.
func (n *testNode) explain() {
	for name, args := range map[string][]string{
		"pods.txt":              {"describe", "pods", "--namespace", namespace},
		"pods-exporter.log":     {"logs", "--namespace", namespace, "daemonset/gpumeter", "--container", "exporter"},
		"pods-plugin.log":       {"logs", "--namespace", namespace, "daemonset/gpumeter", "--container", "device-plugin"},
		"replaced-exporter.log": {"logs", "--namespace", namespace, "nvidia-dcgm-exporter"},
		"replaced-plugin.log":   {"logs", "--namespace", namespace, "nvidia-device-plugin-daemonset"},
	} {
		if said, err := n.kubectl(nil, args...); err == nil {
			n.toLogs(name, []byte(said))
		}
	}
}

// toLogs leaves text among the logs.
func (n *testNode) toLogs(name string, text []byte) {
	n.t.Helper()
	if err := os.WriteFile(filepath.Join(n.cluster.logs, name), text, 0o644); err != nil {
		n.t.Fatal(err)
	}
}

// daemonSetIsReady waits until every pod of it that there should be is ready and of the newest template.
func (n *testNode) daemonSetIsReady() {
	n.t.Helper()
	n.cluster.eventually(60*time.Second, "the chart's pods are ready", func() error {
		var set struct {
			Metadata struct {
				Generation int `json:"generation"`
			} `json:"metadata"`
			Status struct {
				Generation int `json:"observedGeneration"`
				Desired    int `json:"desiredNumberScheduled"`
				Updated    int `json:"updatedNumberScheduled"`
				Ready      int `json:"numberReady"`
			} `json:"status"`
		}
		if err := n.cluster.api.get("/apis/apps/v1/namespaces/"+namespace+"/daemonsets/gpumeter", &set); err != nil {
			return err
		}
		if s := set.Status; s.Generation != set.Metadata.Generation || s.Desired != 1 || s.Ready != 1 || s.Updated != 1 {
			return fmt.Errorf("the DaemonSet's status is %+v", s)
		}
		return nil
	})
}

func (n *testNode) chargedNow(name string) charge {
	n.t.Helper()
	c, err := charged(name)
	if err != nil {
		n.t.Fatal(err)
	}
	return c
}

// bridged: a pod that held its GPU before and holds it now is charged for the time between.
func (n *testNode) bridged(name string, before charge) {
	n.t.Helper()
	var after charge
	n.cluster.eventually(20*time.Second, "pod "+name+" goes on being charged", func() (err error) {
		if after, err = charged(name); err == nil && after.at.Sub(before.at) < 2*time.Second {
			err = errors.New("not yet")
		}
		return err
	})
	const clocks = 0.02
	span := after.at.Sub(before.at)
	n.t.Logf("pod %s is charged %.3f s in %v", name, after.seconds-before.seconds, span)
	if off := after.seconds - before.seconds - span.Seconds(); math.Abs(off) > clocks || before.uid != after.uid {
		n.t.Errorf("pod %s is charged %+v before and %+v after, %v s off", name, before, after, off)
	}
}

// confined: the pod of the chart has no more than the chart says, and that is enough.
func (n *testNode) confined() {
	n.t.Helper()
	for _, container := range []string{"exporter", "device-plugin"} {
		log := n.must(n.kubectl(nil, "logs", "--namespace", namespace, "daemonset/gpumeter", "--container", container))
		for line := range strings.Lines(log) {
			for _, word := range []string{"forbidden", "must be allowed", "cannot be saved", "read-only file system", "permission denied", "operation not permitted"} {
				if strings.Contains(strings.ToLower(line), word) {
					n.t.Errorf("%s says: %s", container, line)
					break
				}
			}
		}
		n.toLogs("chart-"+container+".log", []byte(log))
	}
	said := n.must(n.kubectl(nil, "exec", "--namespace", namespace, "daemonset/gpumeter", "--container", "exporter", "--",
		"/usr/bin/gpumeter", "verify", "--ledger", "/var/lib/gpumeter"))
	n.t.Logf("gpumeter verify in the container: %s", said)
	if said, err := n.kubectl(nil, "exec", "--namespace", namespace, "daemonset/gpumeter", "--container", "exporter", "--", "/bin/sh", "-c", "true"); err == nil {
		n.t.Errorf("there is a shell in the image: %s", said)
	}
}

// rollout: the pods are made anew, and nobody loses a second.
func (n *testNode) rollout() {
	before := n.chargedNow("chart")
	start := time.Now()
	n.must(n.kubectl(nil, "rollout", "restart", "--namespace", namespace, "daemonset/gpumeter"))
	n.daemonSetIsReady()
	n.cluster.eventually(20*time.Second, "the chart's exporter answers", answers(exporterPage))
	n.offers(30*time.Second, "the node offers all of it", n.everything())
	n.t.Logf("a rollout took %v", time.Since(start).Round(10*time.Millisecond))
	n.bridged("chart", before)
	n.delete("chart")
}
