// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// entry is a checkpoint entry of one id.
func entry(uid, container, id string) string {
	return fmt.Sprintf(`{"PodUID":%q,"ContainerName":%q,"ResourceName":"nvidia.com/gpu","DeviceIDs":{"0":[%q]},"AllocResp":"Cg=="}`, uid, container, id)
}

func checkpointOf(entries ...string) string {
	return `{"Data":{"PodDeviceEntries":[` + strings.Join(entries, ",") + `],"RegisteredDevices":{}},"Checksum":1}`
}

// replace puts a checkpoint in place as the kubelet does.
func replace(t testing.TB, path, content string) {
	t.Helper()
	tmp := path + ".tmp"
	must(t, os.WriteFile(tmp, []byte(content), 0o600))
	must(t, os.Rename(tmp, path))
}

func TestParseCheckpoint(t *testing.T) {
	key := deviceKey{"main", "nvidia.com/gpu", "GPU-a::0"}
	for name, c := range map[string]struct {
		text string
		want map[deviceKey]string
	}{
		"one pod":             {checkpointOf(entry("u1", "main", "GPU-a::0")), map[deviceKey]string{key: "u1"}},
		"same pod twice":      {checkpointOf(entry("u1", "main", "GPU-a::0"), entry("u1", "main", "GPU-a::0")), map[deviceKey]string{key: "u1"}},
		"two pods":            {checkpointOf(entry("u1", "main", "GPU-a::0"), entry("u2", "main", "GPU-a::0")), map[deviceKey]string{key: ""}},
		"two pods, one twice": {checkpointOf(entry("u1", "main", "GPU-a::0"), entry("u2", "main", "GPU-a::0"), entry("u2", "main", "GPU-a::0")), map[deviceKey]string{key: ""}},
		"two containers": {checkpointOf(entry("u1", "main", "GPU-a::0"), entry("u2", "init", "GPU-a::0")),
			map[deviceKey]string{key: "u1", {"init", "nvidia.com/gpu", "GPU-a::0"}: "u2"}},
		"id on two NUMA nodes": {checkpointOf(`{"PodUID":"u1","ContainerName":"main","ResourceName":"nvidia.com/gpu","DeviceIDs":{"0":["GPU-a::0"],"-1":["GPU-a::0"]}}`),
			map[deviceKey]string{key: "u1"}},
		"no UID":        {checkpointOf(entry("", "main", "GPU-a::0")), map[deviceKey]string{}},
		"null devices":  {checkpointOf(`{"PodUID":"u1","DeviceIDs":null}`), map[deviceKey]string{}},
		"empty kubelet": {`{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":3}`, map[deviceKey]string{}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseCheckpoint([]byte(c.text))
			if err != nil {
				t.Fatal(err)
			}
			if !maps.Equal(got.uids, c.want) {
				t.Errorf("got %v, want %v", got.uids, c.want)
			}
		})
	}
	for name, text := range map[string]string{
		"empty":               "",
		"half":                checkpointOf(entry("u1", "main", "GPU-a::0"))[:60],
		"trailing":            checkpointOf() + "{}",
		"not an object":       "[]",
		"no data":             `{"Checksum":1}`,
		"null":                "null",
		"a device for a list": `{"Data":{"RegisteredDevices":{"nvidia.com/gpu":"GPU-a"}}}`,
		"ids without a node":  `{"Data":{"PodDeviceEntries":[{"PodUID":"u1","DeviceIDs":["GPU-a"]}]}}`,
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := parseCheckpoint([]byte(text)); !errors.Is(err, errMalformed) {
				t.Errorf("got %v, %v, want malformed", got, err)
			}
		})
	}
}

// A checkpoint of no use costs the UIDs only, and is counted and logged once.
func TestCheckpointOfNoUse(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(t *testing.T, path string)
		reason  string
		level   string
		advice  string
	}{
		"absent":    {func(*testing.T, string) {}, SkippedCheckpointUnreadable, "INFO", "no device plugin has registered yet"},
		"directory": {func(t *testing.T, p string) { must(t, os.Mkdir(p, 0o700)) }, SkippedCheckpointUnreadable, "WARN", "is mounted and readable"},
		"pipe":      {func(t *testing.T, p string) { must(t, syscall.Mkfifo(p, 0o600)) }, SkippedCheckpointUnreadable, "WARN", "is mounted and readable"},
		"too large": {func(t *testing.T, p string) {
			must(t, os.WriteFile(p, nil, 0o600))
			must(t, os.Truncate(p, maxCheckpoint+1))
		}, SkippedCheckpointUnreadable, "WARN", "is mounted and readable"},
		"malformed": {func(t *testing.T, p string) { replace(t, p, "{") }, SkippedCheckpointMalformed, "WARN", "is the kubelet's device checkpoint"},
	} {
		t.Run(name, func(t *testing.T) {
			k := newKubelet(t, "list.json", "allocatable.json")
			path := filepath.Join(shortDir(t), "checkpoint")
			c.prepare(t, path)
			var book logBook
			client := newClient(t, k.socket, func(cfg *Config) {
				cfg.Checkpoint, cfg.Log = path, book.logger("lasted")
			})
			for range 3 {
				got, err := client.List(withDeadline(t))
				must(t, err)
				if len(got.Allocations) != 6 || got.Allocations[0].Holder.PodUID != "" || got.Registered != nil {
					t.Errorf("%d allocations, the first with UID %q", len(got.Allocations), got.Allocations[0].Holder.PodUID)
				}
				if diff := cmp.Diff(map[string]int{c.reason: 1}, got.Skipped); diff != "" {
					t.Errorf("skipped (-want +got):\n%s", diff)
				}
			}
			must(t, os.RemoveAll(path))
			replace(t, path, checkpointOf(entry("u1", "main", gpu0+"::0")))
			got, err := client.List(withDeadline(t))
			must(t, err)
			if uid := got.Allocations[0].Holder.PodUID; uid != "u1" || got.Skipped != nil {
				t.Errorf("after repair: UID %q, skipped %v", uid, got.Skipped)
			}
			lines := book.lines()
			if !strings.Contains(lines[0], c.advice) || !strings.Contains(lines[0], "pods go without UIDs") {
				t.Errorf("%q does not advise %q", lines[0], c.advice)
			}
			lines[0], _, _ = strings.Cut(lines[0], " err=")
			want := []string{
				`level=` + c.level + ` msg="kubelet device checkpoint lost" kind=` + c.reason,
				`level=INFO msg="kubelet device checkpoint back" kind=` + c.reason,
			}
			if diff := cmp.Diff(want, lines); diff != "" {
				t.Errorf("log (-want +got):\n%s", diff)
			}
		})
	}
}

func TestLeftoverOfADeadPodIsAmbiguous(t *testing.T) {
	k := newKubelet(t, "list.json", "")
	path := filepath.Join(shortDir(t), "checkpoint")
	replace(t, path, checkpointOf(
		entry("dead", "main", gpu0+"::0"), entry("chat", "main", gpu0+"::0"),
		entry("train", "main", gpu0+"::1"), entry("dead", "main", gpu0+"::3")))
	got, err := newClient(t, k.socket, func(cfg *Config) { cfg.Checkpoint = path }).List(withDeadline(t))
	must(t, err)
	uids := make(map[string]string)
	for _, a := range got.Allocations {
		uids[a.DeviceID] = a.Holder.PodUID
	}
	want := map[string]string{gpu0 + "::0": "", gpu0 + "::1": "train", gpu0 + "::2": "train", gpu1 + "::0": "", gpu1 + "::1": "", mig1 + "::1": ""}
	if diff := cmp.Diff(want, uids); diff != "" {
		t.Errorf("UIDs (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]int{SkippedCheckpointAmbiguous: 1}, got.Skipped); diff != "" {
		t.Errorf("skipped (-want +got):\n%s", diff)
	}
}

// A pod has one UID whatever its containers hold, and whichever device tells it.
func TestAPodHasOneUID(t *testing.T) {
	claim := &dynamic{ClaimNamespace: "n", ClaimName: "c", ClaimResources: []*claimed{
		{DriverName: DefaultDRADriver, PoolName: "node", DeviceName: "gpu-0"},
	}}
	p := &pod{Namespace: "n", Name: "p", Containers: []*container{
		{Name: "sidecar", DynamicResources: []*dynamic{claim}},
		{Name: "main", Devices: []*devices{gpus("GPU-a"), gpus("GPU-b")}, DynamicResources: []*dynamic{claim}},
		{Name: "plain"},
	}}
	for name, c := range map[string]struct {
		entries []string
		uid     string
		skipped map[string]int
	}{
		"one device tells": {[]string{entry("u1", "main", "GPU-b")}, "u1", nil},
		"a leftover on one": {[]string{entry("dead", "main", "GPU-a"), entry("u1", "main", "GPU-a"), entry("u1", "main", "GPU-b")},
			"u1", nil},
		"leftovers on both": {[]string{
			entry("dead", "main", "GPU-a"), entry("u1", "main", "GPU-a"), entry("dead", "main", "GPU-b"), entry("u1", "main", "GPU-b"),
		}, "", map[string]int{SkippedCheckpointAmbiguous: 2}},
		"contradiction":     {[]string{entry("u1", "main", "GPU-a"), entry("u2", "main", "GPU-b")}, "", map[string]int{SkippedCheckpointAmbiguous: 4}},
		"another container": {[]string{entry("u1", "plain", "GPU-a")}, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			uids, err := parseCheckpoint([]byte(checkpointOf(c.entries...)))
			must(t, err)
			other := one("n", "other", "main", gpus("GPU-c"))
			got := mergedWith(uids, p, other)
			if len(got.Allocations) != 5 {
				t.Fatalf("%d allocations, want 5", len(got.Allocations))
			}
			for _, a := range got.Allocations {
				want := c.uid
				if a.Holder.Pod == "other" {
					want = ""
				}
				if a.Holder.PodUID != want {
					t.Errorf("%s %s has UID %q, want %q", a.Holder.Container, a.DeviceID, a.Holder.PodUID, want)
				}
			}
			if diff := cmp.Diff(c.skipped, got.Skipped); diff != "" {
				t.Errorf("skipped (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCheckpointIsReadAgainOnlyWhenItChanged(t *testing.T) {
	path := filepath.Join(shortDir(t), "checkpoint")
	c := &checkpoint{path: path, notice: lossOf((&logBook{}).logger(), "checkpoint")}
	load := func() *record {
		t.Helper()
		index, reason := c.load()
		if reason != "" {
			t.Fatal(reason)
		}
		return index
	}
	old := time.Now().Add(-time.Hour)
	put := func(uid string) {
		replace(t, path, checkpointOf(entry(uid, "main", "GPU-a::0")))
		must(t, os.Chtimes(path, old, old))
	}
	uid := func(x *record) string {
		s, _ := x.uid("main", "nvidia.com/gpu", "GPU-a::0")
		return s
	}
	put("u1")
	first := load()
	if again := load(); again != first || uid(first) != "u1" {
		t.Errorf("an unchanged file was read again (%v)", uid(again))
	}
	put("u2")
	if got := uid(load()); got != "u2" {
		t.Errorf("another inode with the same size and time: UID %q", got)
	}
	rewrite := func(uid string, mtime time.Time) {
		must(t, os.WriteFile(path, []byte(checkpointOf(entry(uid, "main", "GPU-a::0"))), 0o600))
		must(t, os.Chtimes(path, mtime, mtime))
	}
	rewrite("u3", old.Add(time.Second))
	if got := uid(load()); got != "u3" {
		t.Errorf("the same inode and size with another time: UID %q", got)
	}
	rewrite("u44", old.Add(time.Second))
	if got := uid(load()); got != "u44" {
		t.Errorf("the same inode and time with another size: UID %q", got)
	}
}

// While the kubelet answers, a device may pass from one pod to another.
func TestCheckpointThatChangesDuringAList(t *testing.T) {
	for name, c := range map[string]struct {
		changes int64
		uid     string
		calls   int64
		skipped map[string]int
	}{
		"once":  {1, "u1", 2, nil},
		"twice": {2, "u2", 3, nil},
		"always": {100, "", 3, map[string]int{
			SkippedCheckpointUnsettled: 1,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			k := newKubelet(t, "list.json", "allocatable.json")
			path := filepath.Join(shortDir(t), "checkpoint")
			replace(t, path, checkpointOf(entry("u0", "main", gpu0+"::0")))
			k.hook = func(_ context.Context, method string) error {
				if n := k.calls.Load(); method == "List" && n <= c.changes {
					replace(t, path, checkpointOf(entry(fmt.Sprintf("u%d", n), "main", gpu0+"::0")))
				}
				return nil
			}
			got, err := newClient(t, k.socket, func(cfg *Config) { cfg.Checkpoint = path }).List(withDeadline(t))
			must(t, err)
			if uid := got.Allocations[0].Holder.PodUID; uid != c.uid {
				t.Errorf("UID %q, want %q", uid, c.uid)
			}
			if n := k.calls.Load(); n != c.calls {
				t.Errorf("%d requests, want %d", n, c.calls)
			}
			if diff := cmp.Diff(c.skipped, got.Skipped); diff != "" {
				t.Errorf("skipped (-want +got):\n%s", diff)
			}
		})
	}
}

// registered are what a client lists for a checkpoint.
func registered(t *testing.T, text string) sharing.Listing {
	t.Helper()
	path := filepath.Join(shortDir(t), "checkpoint")
	replace(t, path, text)
	got, err := newClient(t, newKubelet(t, "", "").socket, func(cfg *Config) { cfg.Checkpoint = path }).List(withDeadline(t))
	must(t, err)
	return got
}

// The kubelet keeps on record what a plugin registered, also while it is away and
// advertises nothing.
func TestRegisteredDevicesOfRealKubelets(t *testing.T) {
	const whole = "GPU-6d1c0b52-7f0e-4a3b-9c1e-2b7a55aa0003"
	ids := func(resource string, list ...string) (out []sharing.Advertised) {
		for _, id := range list {
			out = append(out, sharing.Advertised{Resource: resource, DeviceID: id})
		}
		return out
	}
	gpu := func(list ...string) []sharing.Advertised { return ids("nvidia.com/gpu", list...) }
	shared := func(list ...string) []sharing.Advertised { return ids("nvidia.com/gpu.shared", list...) }
	mig := func(list ...string) []sharing.Advertised { return ids("nvidia.com/mig-1g.10gb", list...) }
	for file, want := range map[string][]sharing.Advertised{
		"checkpoint_plugin-dead.json": slices.Concat(
			gpu(whole, gpu0+"::0", gpu0+"::1", gpu0+"::2", gpu0+"::3"),
			shared(gpu1+"::0", gpu1+"::1", gpu1+"::2"),
			mig(mig1+"::0", mig1+"::1")),
		"kubelet_internal_checkpoint.json": slices.Concat(
			gpu(gpu0+"::0", gpu0+"::1", gpu0+"::2", gpu0+"::3"),
			shared(gpu1+"::0", gpu1+"::1", gpu1+"::2"),
			mig(mig1+"::0", mig1+"::1")),
	} {
		t.Run(file, func(t *testing.T) {
			data, err := os.ReadFile(filepath.Join(captures, file))
			must(t, err)
			got := registered(t, string(data))
			if diff := cmp.Diff(want, got.Registered); diff != "" {
				t.Errorf("registered (-want +got):\n%s", diff)
			}
			if got.Advertised != nil || got.Skipped != nil {
				t.Errorf("advertised %v, skipped %v", got.Advertised, got.Skipped)
			}
		})
	}
}

func TestRegisteredDevicesThatCannotBeUsed(t *testing.T) {
	long := strings.Repeat("x", maxText+1)
	got := registered(t, `{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{
		"nvidia.com/b":["2","1","2",""],"example.com/nic":["","eth0"],"nvidia.com/none":null,"nvidia.com/a":["1","`+long+`"],"":["3"]}}}`)
	want := []sharing.Advertised{{Resource: "nvidia.com/a", DeviceID: "1"}, {Resource: "nvidia.com/b", DeviceID: "2"}, {Resource: "nvidia.com/b", DeviceID: "1"}}
	if diff := cmp.Diff(want, got.Registered); diff != "" {
		t.Errorf("registered (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]int{SkippedEmptyName: 1, SkippedEmptyID: 1, SkippedTooLong: 1}, got.Skipped); diff != "" {
		t.Errorf("skipped (-want +got):\n%s", diff)
	}
}

func FuzzCheckpoint(f *testing.F) {
	for _, name := range []string{"kubelet_internal_checkpoint.json", "checkpoint_plugin-dead.json"} {
		real, err := os.ReadFile(filepath.Join(captures, name))
		must(f, err)
		f.Add(real)
	}
	f.Add([]byte(`{"Data":{"RegisteredDevices":{"nvidia.com/gpu":["a","a","\u0000"],"":null}}}`))
	f.Add([]byte(checkpointOf(entry("u1", "main", "a"), entry("u2", "main", "a"))))
	f.Add([]byte(`{"Data":{"PodDeviceEntries":[{"PodUID":"u","DeviceIDs":{"0":["a"],"1":null}}]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		x, err := parseCheckpoint(data)
		if err != nil {
			if !errors.Is(err, errMalformed) || x != nil {
				t.Errorf("got %v, %v", x, err)
			}
			return
		}
		again, err := parseCheckpoint(data)
		if err != nil || !maps.Equal(x.uids, again.uids) {
			t.Errorf("one file, two meanings: %v and %v, %v", x.uids, again.uids, err)
		}
		same := func(a, b *devices) bool { return proto.Equal(a, b) }
		if !slices.EqualFunc(x.registered, again.registered, same) {
			t.Errorf("one file, two records: %v and %v", x.registered, again.registered)
		}
		m := merger{cfg: &Config{Resources: nvidia{}}}
		seen := make(map[sharing.Advertised]bool)
		for _, a := range m.ids(x.devices()) {
			if seen[a] || a.DeviceID == "" || !(nvidia{}).Match(a.Resource) {
				t.Errorf("registered %+v, seen before %v", a, seen[a])
			}
			seen[a] = true
		}
		for key := range x.uids {
			uid, ambiguous := x.uid(key.container, key.resource, key.id)
			if ambiguous != (uid == "") || len(uid) > maxText {
				t.Errorf("%v: UID %q, ambiguous %v", key, uid, ambiguous)
			}
		}
	})
}
