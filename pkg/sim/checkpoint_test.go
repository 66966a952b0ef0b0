// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// What the checkpoint says of each device is what the node knows, at every moment at which the kubelet is asked.
func TestCheckpointTellsTheUIDOfEachDevice(t *testing.T) {
	file := filepath.Join(t.TempDir(), "checkpoint")
	n := newNode(t, "bad-day", Options{Speed: 600, Checkpoint: file})
	conn, err := grpc.NewClient("unix://"+serve(t, n), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	api := podresources.NewPodResourcesListerClient(conn)
	seen := 0
	eventually(t, "ten answers", func() bool {
		before := n.line.at(n.Elapsed())
		if _, err := api.List(t.Context(), &podresources.ListPodResourcesRequest{}); err != nil {
			return false
		}
		after := n.line.at(n.Elapsed())
		if before.state != after.state || before.round != after.round {
			return false
		}
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var got struct {
			Data struct {
				PodDeviceEntries []struct {
					PodUID, ContainerName, ResourceName string
					DeviceIDs                           map[string][]string
				}
				RegisteredDevices map[string][]string
			}
		}
		if err := json.Unmarshal(data, &got); err != nil {
			t.Fatal(err)
		}
		uids := map[string]string{}
		for _, e := range got.Data.PodDeviceEntries {
			for _, ids := range e.DeviceIDs {
				for _, id := range ids {
					uids[e.ContainerName+" "+e.ResourceName+" "+id] = e.PodUID
				}
			}
		}
		truth := 0
		for _, p := range after.state.active {
			for _, st := range p.seats {
				truth++
				key := p.spec.container + " " + p.spec.resource + " " + n.scenario.seatID(st.unit, st.replica)
				if uids[key] != p.uid(n.seed, after.round) {
					t.Fatalf("%s has UID %q, want %q", key, uids[key], p.uid(n.seed, after.round))
				}
			}
		}
		if truth != len(uids) || truth == 0 || len(got.Data.RegisteredDevices) == 0 {
			t.Fatalf("%d devices in the file, %d held, %d resources on record", len(uids), truth, len(got.Data.RegisteredDevices))
		}
		seen++
		return seen == 10
	})
}
