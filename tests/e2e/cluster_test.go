// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// nodeName is also the node's address: with an address for a name the kubelet needs no route.
const nodeName = "127.0.0.1"

// cluster is a Kubernetes of one node.
type cluster struct {
	*processes

	bin, minor string
	api        *api
}

func (c *cluster) program(name string) string { return filepath.Join(c.bin, name) }

// startCluster brings up everything but the kubelet, and what the kubelet needs.
func startCluster(t *testing.T, p *processes, bin, minor string) *cluster {
	t.Helper()
	c := &cluster{processes: p, bin: bin, minor: minor}
	credentials := filepath.Join(work, "credentials")
	if err := writeCredentials(credentials); err != nil {
		t.Fatal(err)
	}
	if c.api = newAPI(t, credentials); c.api == nil {
		t.Fatal("no client of the API server")
	}
	c.startContainerd()
	c.startControlPlane(credentials)
	return c
}

func (c *cluster) startContainerd() {
	c.t.Helper()
	runc, err := exec.LookPath("runc")
	if err != nil {
		c.t.Fatal(err)
	}
	for path, text := range map[string]string{
		"containerd.toml":            fmt.Sprintf(containerdConfig, runc),
		"cni/conf/10-alone.conflist": `{"cniVersion": "1.0.0", "name": "alone", "plugins": [{"type": "alone"}]}`,
		"cni/bin/alone":              cniPlugin,
		"kubelet.yaml":               kubeletConfig + gates(c.minor),
	} {
		path = filepath.Join(work, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			c.t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			c.t.Fatal(err)
		}
	}
	c.start("containerd", c.program("containerd"), "--config", filepath.Join(work, "containerd.toml"))
	for reference, entrypoint := range map[string][]string{
		pauseImage: {"/bin/sleep", "86400"},
		shellImage: {"/bin/sh"},
	} {
		file := filepath.Join(work, "image.tar")
		if err := writeImage(file, reference, entrypoint...); err != nil {
			c.t.Fatal(err)
		}
		c.eventually(20*time.Second, "containerd has "+reference, func() error {
			command := exec.Command(c.program("ctr"), "--address", filepath.Join(work, "containerd.sock"), "--namespace", "k8s.io", "images", "import", file)
			if said, err := command.CombinedOutput(); err != nil {
				return fmt.Errorf("%w: %s", err, said)
			}
			return nil
		})
	}
}

func (c *cluster) startControlPlane(credentials string) {
	c.t.Helper()
	in := func(name string) string { return filepath.Join(credentials, name) }
	const etcd = "http://127.0.0.1:2379"
	c.start("etcd", c.program("etcd"), "--data-dir", filepath.Join(work, "etcd"), "--unsafe-no-fsync",
		"--listen-client-urls", etcd, "--advertise-client-urls", etcd, "--listen-peer-urls", "http://127.0.0.1:2380")
	c.start("kube-apiserver", c.program("kube-apiserver"), "--etcd-servers", etcd,
		"--bind-address", nodeName, "--advertise-address", nodeName, "--endpoint-reconciler-type", "none", "--service-cluster-ip-range", "10.96.0.0/24",
		"--tls-cert-file", in("server.crt"), "--tls-private-key-file", in("server.key"),
		"--service-account-issuer", server, "--service-account-key-file", in("accounts.key"), "--service-account-signing-key-file", in("accounts.key"),
		"--token-auth-file", in("tokens.csv"), "--authorization-mode", "Node,RBAC", "--enable-admission-plugins", "NodeRestriction",
		"--kubelet-preferred-address-types", "InternalIP", "--allow-privileged")
	c.eventually(90*time.Second, "the API server is ready", func() error { return c.api.get("/readyz", nil) })
	for name, further := range map[string][]string{
		"kube-scheduler":          nil,
		"kube-controller-manager": {"--use-service-account-credentials", "--service-account-private-key-file", in("accounts.key"), "--root-ca-file", in("ca.crt")},
	} {
		as := in(kubeconfig("system:" + name))
		c.start(name, append([]string{
			c.program(name), "--kubeconfig", as, "--authentication-kubeconfig", as, "--authorization-kubeconfig", as,
			"--bind-address", nodeName, "--leader-elect=false",
		}, further...)...)
	}
}

// startKubelet waits until the kubelet says that it is healthy.
func (c *cluster) startKubelet() {
	c.t.Helper()
	c.start("kubelet", c.program("kubelet-"+c.minor), "--config", filepath.Join(work, "kubelet.yaml"),
		"--kubeconfig", filepath.Join(work, "credentials", kubeconfig("system:node:"+nodeName)),
		"--root-dir", kubeletRoot, "--cert-dir", filepath.Join(work, "kubelet-certificates"), "--hostname-override", nodeName, "--v", "2")
	c.eventually(60*time.Second, "the kubelet is healthy", answers("http://127.0.0.1:10248/healthz"))
}

// fetch is a page; one that is not there is an error.
func fetch(url string) ([]byte, error) {
	response, err := http.Get(url)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(response.Body)
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", url, response.Status)
	}
	return text, nil
}

// answers is a condition: the page is there.
func answers(url string) func() error {
	return func() error {
		_, err := fetch(url)
		return err
	}
}

// containerdConfig keeps to the work folder. Root may lack the capability to lower a process'
// OOM score, on which runc fails.
const containerdConfig = `version = 3
root = '/run/e2e/containerd/root'
state = '/run/e2e/containerd/state'
disabled_plugins = ['io.containerd.nri.v1.nri', 'io.containerd.snapshotter.v1.blockfile', 'io.containerd.snapshotter.v1.erofs', 'io.containerd.differ.v1.erofs']

[grpc]
  address = '/run/e2e/containerd.sock'

[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = '` + pauseImage + `'

[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  disable_apparmor = true

[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ['/run/e2e/cni/bin']
  conf_dir = '/run/e2e/cni/conf'
  use_internal_loopback = true

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = 'io.containerd.runc.v2'
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
    BinaryName = '%s'
    SystemdCgroup = false
`

// cniPlugin leaves a pod alone with its loopback device.
const cniPlugin = `#!/bin/sh
case "$CNI_COMMAND" in
VERSION) echo '{"cniVersion": "1.0.0", "supportedVersions": ["0.4.0", "1.0.0"]}' ;;
ADD) echo '{"cniVersion": "1.0.0", "interfaces": [{"name": "'"$CNI_IFNAME"'", "sandbox": "'"$CNI_NETNS"'"}], "ips": [{"address": "127.0.0.1/8", "interface": 0}]}' ;;
esac
`

// gates switches on what the version has, but not by default.
func gates(minor string) string {
	if minor == "1.35" {
		return "featureGates: {ResourceHealthStatus: true}\n"
	}
	return ""
}

// kubeletConfig lets the node's status follow at once, so that what is measured is the plugin.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: 127.0.0.1
healthzBindAddress: 127.0.0.1
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
containerRuntimeEndpoint: unix:///run/e2e/containerd.sock
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
makeIPTablesUtilChains: false
enableControllerAttachDetach: false
evictionHard: {memory.available: 50Mi, nodefs.available: 1%, nodefs.inodesFree: 1%, imagefs.available: 1%}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
nodeStatusUpdateFrequency: 250ms
nodeStatusReportFrequency: 10s
resolvConf: ""
oomScoreAdj: 0
podLogsDir: /run/e2e/pod-logs
`
