// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpumeter/gpumeter/pkg/sharing"
)

func TestRealKubeletsAnswers(t *testing.T) {
	const (
		gpu    = "nvidia.com/gpu"
		shared = "nvidia.com/gpu.shared"
		mig    = "nvidia.com/mig-1g.10gb"

		chatUID     = "7e4e24ba-eb91-4386-bd4a-57ada2e94ade"
		embedUID    = "495d2d6b-5b97-4a81-bd1d-0a9177a18354"
		smallUID    = "73796055-c278-4d30-b60a-bb16aac31b30"
		notebookUID = "5799759c-ee24-4d1c-9b5c-a6c20f12aa5d"
		trainUID    = "b77ce930-1a16-4b7f-8cb8-ec3f436a831e"
	)
	chat := held("inference/chat-7f9c4d-x2x/main", chatUID, gpu, gpu0+"::0")
	embed := held("inference/embed-0/main", embedUID, shared, gpu1+"::0")
	small := held("inference/small/main", smallUID, mig, mig1+"::1")
	notebook := held("ml-research/notebook/main", notebookUID, shared, gpu1+"::1")
	train1 := held("ml-research/train-0/main", trainUID, gpu, gpu0+"::1")
	train2 := held("ml-research/train-0/main", trainUID, gpu, gpu0+"::2")
	dra := func(pod, claim, device string) sharing.Allocation {
		a := held("default/"+pod+"/main", "", "gpu.e2e.example", "127.0.0.1/"+device)
		a.Claim = "default/" + claim
		return a
	}
	ids := func(resource, device string, seats ...int) (out []sharing.Advertised) {
		for _, n := range seats {
			out = append(out, sharing.Advertised{Resource: resource, DeviceID: fmt.Sprintf("%s::%d", device, n)})
		}
		return out
	}

	onRecord := slices.Concat(ids(gpu, gpu0, 0, 1, 2, 3), ids(shared, gpu1, 0, 1, 2), ids(mig, mig1, 0, 1))

	for name, c := range map[string]struct {
		list, allocatable string
		want              sharing.Listing
	}{
		"time-slicing and MIG": {"list.json", "allocatable.json", sharing.Listing{
			Time: moment, Pods: 5, Containers: 10,
			Allocations: []sharing.Allocation{chat, embed, notebook, small, train2, train1},
			Advertised:  slices.Concat(ids(shared, gpu1, 0, 1, 2), ids(gpu, gpu0, 0, 1, 2, 3), ids(mig, mig1, 0, 1)),
		}},
		"one replica unhealthy": {"list.json", "allocatable_one-replica-unhealthy.json", sharing.Listing{
			Time: moment, Pods: 5, Containers: 10,
			Allocations: []sharing.Allocation{chat, embed, notebook, small, train2, train1},
			Advertised:  slices.Concat(ids(gpu, gpu0, 1, 2, 3), ids(mig, mig1, 0, 1), ids(shared, gpu1, 0, 1, 2)),
		}},
		"plugin stopped: pods keep what is no longer advertised": {"list_plugin-stopped.json", "allocatable_plugin-stopped.json", sharing.Listing{
			Time: moment, Pods: 5, Containers: 10,
			Allocations: []sharing.Allocation{embed, notebook, small, train1, train2, chat},
			Advertised:  slices.Concat(ids(mig, mig1, 0, 1), ids(shared, gpu1, 1, 2, 0)),
		}},
		"a pod deleted": {"list_after-delete.json", "", sharing.Listing{
			Time: moment, Pods: 4, Containers: 8,
			Allocations: []sharing.Allocation{train2, train1, embed, notebook, small},
		}},
		"DRA claims": {"list_dra.json", "", sharing.Listing{
			Time: moment, Pods: 6, Containers: 10,
			Allocations: []sharing.Allocation{
				dra("dra2", "dra2-g-jbb8n", "gpu-1"), train1, train2, dra("dra1", "claim1", "gpu-0"), embed, notebook, small,
			},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			k := newKubelet(t, c.list, c.allocatable)
			client := newClient(t, k.socket, func(cfg *Config) {
				cfg.DRADrivers = []string{"gpu.e2e.example"}
				cfg.Checkpoint = filepath.Join(captures, "kubelet_internal_checkpoint.json")
			})
			got, err := client.List(withDeadline(t))
			if err != nil {
				t.Fatal(err)
			}
			c.want.Registered = onRecord
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("listing (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDRADriversAreChosen(t *testing.T) {
	k := newKubelet(t, "list_dra.json", "")
	got, err := newClient(t, k.socket, nil).List(withDeadline(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range got.Allocations {
		if a.Claim != "" {
			t.Errorf("a claim of driver %q is listed although only %s was asked for", a.Resource, DefaultDRADriver)
		}
	}
	if len(got.Allocations) != 5 {
		t.Errorf("got %d allocations, want 5", len(got.Allocations))
	}
}

func TestAnswerOverGRPCsDefaultLimit(t *testing.T) {
	k := newKubelet(t, "", "")
	pod := &podresources.PodResources{Name: "p", Namespace: "n"}
	for i := range 50 {
		c := &podresources.ContainerResources{Name: fmt.Sprintf("c%d", i)}
		for j := range 1000 {
			id := fmt.Sprintf("GPU-%0100d::%d", i, j)
			c.Devices = append(c.Devices, &podresources.ContainerDevices{ResourceName: "nvidia.com/gpu", DeviceIds: []string{id}})
		}
		pod.Containers = append(pod.Containers, c)
	}
	k.list.PodResources = append(k.list.PodResources, pod)

	got, err := newClient(t, k.socket, nil).List(withDeadline(t))
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Allocations) != 50_000 {
		t.Errorf("got %d allocations, want 50000", len(got.Allocations))
	}

	small := newClient(t, k.socket, func(cfg *Config) { cfg.MaxReceiveBytes = 4 << 20 })
	_, err = small.List(withDeadline(t))
	wantKind(t, err, KindTooLarge, "vs. 4194304); no node's kubelet has so much to say")
}

func TestHangingKubeletTimesOut(t *testing.T) {
	k := newKubelet(t, "list.json", "allocatable.json")
	k.hook = func(ctx context.Context, _ string) error {
		<-ctx.Done()
		return ctx.Err()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err := newClient(t, k.socket, nil).List(ctx)
	wantKind(t, err, KindTimeout, "overloaded; a longer --collect-interval waits longer")
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v does not wrap context.DeadlineExceeded", err)
	}

	ownLimit := newClient(t, k.socket, func(cfg *Config) { cfg.Timeout = 50 * time.Millisecond })
	_, err = ownLimit.List(context.Background())
	wantKind(t, err, KindTimeout, "overloaded")
}

func TestAllocatableMayFailAlone(t *testing.T) {
	for name, answer := range map[string]error{
		"unimplemented": status.Error(codes.Unimplemented, "no such method"),
		"rate limited":  status.Error(codes.ResourceExhausted, "rejected by rate limit"),
		"feature off":   errors.New("PodResources API GetAllocatableResources disabled"),
	} {
		t.Run(name, func(t *testing.T) {
			k := newKubelet(t, "list.json", "allocatable.json")
			k.hook = func(_ context.Context, method string) error {
				if method == "List" {
					return nil
				}
				return answer
			}
			var book logBook
			client := newClient(t, k.socket, func(cfg *Config) {
				cfg.Log = book.logger("err", "kind")
			})
			for range 2 {
				got, err := client.List(withDeadline(t))
				if err != nil {
					t.Fatal(err)
				}
				if len(got.Allocations) != 6 || got.Advertised != nil {
					t.Errorf("got %d allocations and %d advertised, want 6 and none", len(got.Allocations), len(got.Advertised))
				}
				if diff := cmp.Diff(map[string]int{SkippedAllocatableUnavailable: 1}, got.Skipped); diff != "" {
					t.Errorf("skipped (-want +got):\n%s", diff)
				}
			}
			want := []string{`level=WARN msg="kubelet allocatable resources lost"`}
			if diff := cmp.Diff(want, book.lines()); diff != "" {
				t.Errorf("log (-want +got):\n%s", diff)
			}
		})
	}
}

func TestOldKubeletWithoutTheAPI(t *testing.T) {
	k := newKubelet(t, "", "")
	k.hook = func(context.Context, string) error {
		return status.Error(codes.Unimplemented, "unknown service v1.PodResourcesLister")
	}
	_, err := newClient(t, k.socket, nil).List(withDeadline(t))
	wantKind(t, err, KindUnimplemented, "1.28 or newer")
}

// A kubelet that hangs over the allocatable resources leaves the caller the time
// to take the listing.
func TestHangingAllocatableLeavesTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newMemoryKubelet(t, "list.json", "allocatable.json")
		k.hook = func(ctx context.Context, method string) error {
			if method == "List" {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		}
		client := newClient(t, "/kubelet.sock", nil)
		client.dial = k.dial
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
		defer cancel()
		begun := time.Now()
		got, err := client.List(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begun); took != 2*time.Second || ctx.Err() != nil {
			t.Errorf("the list took %v of 4s (%v)", took, ctx.Err())
		}
		if len(got.Allocations) != 6 || got.Advertised != nil || got.Skipped[SkippedAllocatableUnavailable] != 1 {
			t.Errorf("%d allocations, %d advertised, skipped %v", len(got.Allocations), len(got.Advertised), got.Skipped)
		}
	})
}

func TestCallerGivingUpIsNotALoss(t *testing.T) {
	for _, method := range []string{"List", "GetAllocatableResources"} {
		t.Run(method, func(t *testing.T) {
			k := newKubelet(t, "list.json", "")
			ctx, cancel := context.WithCancel(context.Background())
			k.hook = func(ctx context.Context, m string) error {
				if m != method {
					return nil
				}
				cancel()
				<-ctx.Done()
				return ctx.Err()
			}
			var book logBook
			_, err := newClient(t, k.socket, func(cfg *Config) { cfg.Log = book.logger() }).List(ctx)
			if method == "List" && !errors.Is(err, context.Canceled) {
				t.Errorf("got %v, want context.Canceled", err)
			}
			if got := book.lines(); got[0] != "" {
				t.Errorf("logged %q", got)
			}
		})
	}
}

// The caller has the error and logs it; a second line would say the same.
func TestFailedListIsLeftToTheCaller(t *testing.T) {
	k := newKubelet(t, "list.json", "allocatable.json")
	var book logBook
	client := newClient(t, k.socket, func(cfg *Config) { cfg.Log = book.logger() })
	k.stop()
	for range 3 {
		_, err := client.List(withDeadline(t))
		wantKind(t, err, KindSocketMissing, "see that the kubelet runs")
	}
	k.start()
	_, err := client.List(withDeadline(t))
	must(t, err)
	if got := book.lines(); got[0] != "" {
		t.Errorf("logged %q", got)
	}
}

func TestNewChecksWithoutTouchingTheSocket(t *testing.T) {
	if _, err := New(Config{}); err == nil {
		t.Error("a client without resources was made")
	}
	if _, err := New(Config{Resources: nvidia{}, Socket: "/" + strings.Repeat("a", maxSocketPath)}); err == nil {
		t.Error("a client of a path that no socket can have was made")
	}
	c, err := New(Config{Resources: nvidia{}})
	if err != nil {
		t.Fatal(err)
	}
	if c.starting.limit != 5*time.Minute {
		t.Errorf("a starting kubelet is added to for %v", c.starting.limit)
	}
	if c.cfg.Socket != DefaultSocket || len(c.cfg.DRADrivers) != 1 || c.cfg.DRADrivers[0] != DefaultDRADriver {
		t.Errorf("defaults: socket %q, drivers %q", c.cfg.Socket, c.cfg.DRADrivers)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if _, err := c.List(withDeadline(t)); err == nil {
		t.Error("a closed client listed")
	}
}

// BenchmarkList is of a full node: 110 pods, 8 GPUs as 10 replicas each.
func BenchmarkList(b *testing.B) {
	k := newKubelet(b, "", "")
	for i := range 110 {
		c := &podresources.ContainerResources{Name: "main"}
		if i < 80 {
			d := &podresources.ContainerDevices{ResourceName: "nvidia.com/gpu", DeviceIds: []string{fmt.Sprintf("%s-%d::%d", gpu0, i/10, i%10)}}
			c.Devices = append(c.Devices, d)
			k.allocatable.Devices = append(k.allocatable.Devices, d)
		}
		k.list.PodResources = append(k.list.PodResources, &podresources.PodResources{
			Name: fmt.Sprintf("pod-%d", i), Namespace: "n", Containers: []*podresources.ContainerResources{c},
		})
	}
	client := newClient(b, k.socket, func(cfg *Config) {
		cfg.Checkpoint = filepath.Join(captures, "kubelet_internal_checkpoint.json")
	})
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := client.List(ctx); err != nil {
			b.Fatal(err)
		}
	}
}
