// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// kubeletClient asks the kubelet itself.
type kubeletClient struct {
	lister podresources.PodResourcesListerClient
	// records is where answers are kept.
	records string
}

func newKubeletClient(t *testing.T, records string) *kubeletClient {
	t.Helper()
	connection, err := grpc.NewClient("unix://"+filepath.Join(kubeletRoot, "pod-resources", "kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	return &kubeletClient{podresources.NewPodResourcesListerClient(connection), records}
}

const kubeletPatience = 5 * time.Second

func (k *kubeletClient) list() (*podresources.ListPodResourcesResponse, error) {
	ctx, cancel := context.WithTimeout(context.Background(), kubeletPatience)
	defer cancel()
	return k.lister.List(ctx, &podresources.ListPodResourcesRequest{})
}

func (k *kubeletClient) allocatable() (*podresources.AllocatableResourcesResponse, error) {
	ctx, cancel := context.WithTimeout(context.Background(), kubeletPatience)
	defer cancel()
	return k.lister.GetAllocatableResources(ctx, &podresources.AllocatableResourcesRequest{})
}

// offered are the ids that the kubelet gives away, by resource, sorted.
func (k *kubeletClient) offered() (map[string][]string, error) {
	answer, err := k.allocatable()
	if err != nil {
		return nil, err
	}
	return ids(answer.GetDevices()), nil
}

// held are the ids that a pod has.
func (k *kubeletClient) held(pod string) (map[string][]string, error) {
	answer, err := k.list()
	if err != nil {
		return nil, err
	}
	for _, p := range answer.GetPodResources() {
		if p.GetName() == pod && len(p.GetContainers()) > 0 {
			return ids(p.GetContainers()[0].GetDevices()), nil
		}
	}
	return nil, fmt.Errorf("the kubelet does not list pod %s", pod)
}

func ids(devices []*podresources.ContainerDevices) map[string][]string {
	out := map[string][]string{}
	for _, d := range devices {
		name := d.GetResourceName()
		out[name] = append(out[name], d.GetDeviceIds()...)
	}
	for name := range out {
		slices.Sort(out[name])
		out[name] = slices.Compact(out[name])
	}
	return out
}

// record keeps what the kubelet and the API server say now, and our pages.
func (n *testNode) record(name string) {
	n.t.Helper()
	list, err := n.kubelet.list()
	if err != nil {
		n.t.Fatal(err)
	}
	n.keep("list_"+name, list)
	allocatable, err := n.kubelet.allocatable()
	if err != nil {
		n.t.Fatal(err)
	}
	n.keep("allocatable_"+name, allocatable)
	for file, path := range map[string]string{"node_" + name: nodePath, "pods_" + name: podsPath} {
		var text string
		if err := n.cluster.api.get(path, &text); err != nil {
			n.t.Fatal(err)
		}
		n.write(file, []byte(text))
	}
	checkpoint, err := os.ReadFile(filepath.Join(kubeletRoot, "device-plugins", "kubelet_internal_checkpoint"))
	if err != nil {
		n.t.Fatal(err)
	}
	n.write("checkpoint_"+name, checkpoint)
	for file, url := range map[string]string{"exporter_" + name: exporterPage, "plugin_" + name: pluginPage} {
		text, err := fetch(url)
		if err != nil {
			n.t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(n.kubelet.records, file+".prom"), text, 0o644); err != nil {
			n.t.Fatal(err)
		}
	}
}

func (n *testNode) keep(name string, m proto.Message) {
	n.t.Helper()
	data, err := protojson.Marshal(m)
	if err != nil {
		n.t.Fatal(err)
	}
	n.write(name, data)
}

// write keeps JSON in the form that the captured answers of the tests have.
func (n *testNode) write(name string, data []byte) {
	n.t.Helper()
	var pretty bytes.Buffer
	if err := json.Indent(&pretty, bytes.TrimSpace(data), "", "  "); err != nil {
		n.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(n.kubelet.records, name+".json"), append(pretty.Bytes(), '\n'), 0o644); err != nil {
		n.t.Fatal(err)
	}
}
