// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpumeter/gpumeter/tests/fakekubelet"
)

// kubeletFolder makes this test program the kubelet of the node in that folder, so that it can be killed like the others.
const kubeletFolder = "GPUMETER_SOAK_KUBELET"

func TestMain(m *testing.M) {
	dir := os.Getenv(kubeletFolder)
	if dir == "" {
		os.Exit(m.Run())
	}
	seed, err := strconv.ParseUint(os.Getenv(kubeletFolder+"_SEED"), 10, 64)
	if err == nil {
		err = runKubelet(dir, seed)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "kubelet:", err)
		os.Exit(1)
	}
}

const (
	// mostPods run at once, so that seats are full at times and free at others.
	mostPods = 24
	// admitted is about how often a pod comes or goes.
	admitted = 2500 * time.Millisecond
	// silence is how long a kubelet that has just started lists no pods, as before it has heard from its API server.
	silence = time.Second
	// ownPod and ownNamespace are the pod that the exporter takes itself for.
	ownPod, ownNamespace = "gpumeter-x7k2p", "gpu-system"
)

// heldPod is a pod that runs: it outlives the kubelet's process, as containers do.
type heldPod struct {
	Namespace, Name, UID, Container, Resource string
	IDs                                       []string
}

// diary is what the kubelet has done since the soak began, over its restarts.
type diary struct {
	Pods                                                                  []heldPod
	Started, Ended, Refused, Restarts, Registrations, FailedRegistrations int
}

// kubeletNode is the kubelet with its pods. Everything but the answers is done by one goroutine.
type kubeletNode struct {
	dir    string
	random *rand.Rand
	fake   *fakekubelet.Kubelet
	diary  diary
	// seen are the registrations that the diary has.
	seen   int
	lister *lister
}

// runKubelet is the process. SIGHUP is a restart of the kubelet in it, SIGTERM its end.
func runKubelet(dir string, seed uint64) error {
	k := &kubeletNode{dir: dir, fake: fakekubelet.New(fakekubelet.Config{Dir: filepath.Join(dir, "device-plugins")})}
	if err := k.recall(); err != nil {
		return err
	}
	k.random = rand.New(rand.NewPCG(seed, uint64(k.diary.Restarts)))
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGTERM)
	if err := k.start(); err != nil {
		return err
	}
	for {
		select {
		case s := <-signals:
			if s == syscall.SIGTERM {
				k.stop()
				return nil
			}
			k.stop()
			time.Sleep(time.Duration(k.random.Int64N(int64(3 * time.Second))))
			if err := k.start(); err != nil {
				return err
			}
		case <-time.After(time.Duration(k.random.Int64N(int64(2 * admitted)))):
			k.live()
		}
		if err := k.note(); err != nil {
			return err
		}
	}
}

func (k *kubeletNode) file(name string) string { return filepath.Join(k.dir, name) }

func (k *kubeletNode) recall() error {
	data, err := os.ReadFile(k.file("diary.json"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(data, &k.diary)
}

func (k *kubeletNode) start() error {
	k.diary.Restarts++
	if err := k.fake.Start(); err != nil {
		return err
	}
	socket := k.file("pod-resources/kubelet.sock")
	if err := errors.Join(os.MkdirAll(filepath.Dir(socket), 0o750), os.RemoveAll(socket)); err != nil {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	k.lister = &lister{kubelet: k.fake, server: grpc.NewServer(), speaks: time.Now().Add(silence)}
	k.lister.show(k.diary.Pods)
	podresources.RegisterPodResourcesListerServer(k.lister.server, k.lister)
	go func() { _ = k.lister.server.Serve(listener) }()
	return k.note()
}

func (k *kubeletNode) stop() {
	k.lister.server.Stop()
	k.fake.Kill()
}

// live starts a pod or ends one.
func (k *kubeletNode) live() {
	if n := len(k.diary.Pods); n > 0 && k.random.IntN(mostPods) < n {
		at := k.random.IntN(n)
		p := k.diary.Pods[at]
		k.diary.Pods = slices.Delete(slices.Clone(k.diary.Pods), at, at+1)
		k.fake.Free(p.UID)
		k.diary.Ended++
		return
	}
	resources := k.fake.Resources()
	if len(resources) == 0 {
		return
	}
	k.admit(resources[k.random.IntN(len(resources))])
}

// admit is a pod's start. The device manager of a process that was killed does not know what pods of before hold: it learns it when it would give
// that away.
func (k *kubeletNode) admit(resource string) {
	uid := fmt.Sprintf("%08x-50a6-4000-8000-%012x", k.random.Uint32(), k.diary.Started)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for range 64 {
		got, err := k.fake.Allocate(ctx, uid, resource, 1)
		if err != nil {
			k.diary.Refused++
			return
		}
		before := slices.IndexFunc(k.diary.Pods, func(p heldPod) bool {
			return p.Resource == resource && slices.Contains(p.IDs, got.IDs[0])
		})
		if before < 0 {
			k.diary.Started++
			team := []string{"ml-research", "inference", "search", "vision"}[k.random.IntN(4)]
			k.diary.Pods = append(slices.Clone(k.diary.Pods), heldPod{
				Namespace: team, Name: fmt.Sprintf("work-%d", k.diary.Started), UID: uid, Container: "main", Resource: resource, IDs: got.IDs,
			})
			return
		}
		// The fake gives everything of a holder back at once, so this one gets a name of its own.
		k.fake.Free(uid)
		uid = k.diary.Pods[before].UID
		if _, err := k.fake.Allocate(ctx, uid, resource, 1); err != nil {
			k.diary.Refused++
			return
		}
		uid = fmt.Sprintf("%08x-50a6-4000-8000-%012x", k.random.Uint32(), k.diary.Started)
	}
}

// note writes down what a kubelet keeps: first the checkpoint, then what is told.
func (k *kubeletNode) note() error {
	all := k.fake.Registrations()
	for _, r := range all[k.seen:] {
		k.diary.Registrations++
		if r.Err != nil {
			k.diary.FailedRegistrations++
		}
	}
	k.seen = len(all)
	type entry struct {
		PodUID, ContainerName, ResourceName string
		DeviceIDs                           map[string][]string
	}
	var checkpoint struct {
		Data struct {
			PodDeviceEntries  []entry
			RegisteredDevices map[string][]string
		}
		Checksum uint64
	}
	for _, p := range k.diary.Pods {
		checkpoint.Data.PodDeviceEntries = append(checkpoint.Data.PodDeviceEntries,
			entry{p.UID, p.Container, p.Resource, map[string][]string{"0": p.IDs}})
	}
	checkpoint.Data.RegisteredDevices = map[string][]string{}
	for _, name := range k.fake.Resources() {
		state, _ := k.fake.Resource(name)
		checkpoint.Data.RegisteredDevices[name] = slices.Sorted(maps.Keys(state.Devices))
	}
	if err := replaceJSON(k.file("device-plugins/kubelet_internal_checkpoint"), checkpoint); err != nil {
		return err
	}
	k.lister.show(k.diary.Pods)
	return replaceJSON(k.file("diary.json"), &k.diary)
}

func replaceJSON(name string, content any) error {
	data, err := json.Marshal(content)
	if err != nil {
		return err
	}
	return replaceFile(name, string(data))
}

// replaceFile gives a file new content that nobody sees half of.
func replaceFile(name, content string) error {
	if err := os.WriteFile(name+".next", []byte(content), 0o600); err != nil {
		return err
	}
	return os.Rename(name+".next", name)
}

// podUIDs are the pods as the kubelet's process writes them down.
func readDiary(dir string) (diary, error) {
	var d diary
	data, err := os.ReadFile(filepath.Join(dir, "diary.json"))
	if err == nil {
		err = json.Unmarshal(data, &d)
	}
	return d, err
}

// String is the diary in words.
func (d diary) String() string {
	return strings.Join([]string{
		fmt.Sprintf("%d pods started, %d ended, %d refused", d.Started, d.Ended, d.Refused),
		fmt.Sprintf("%d starts of the kubelet", d.Restarts),
		fmt.Sprintf("%d registrations of the device plugin, %d of them failed", d.Registrations, d.FailedRegistrations),
	}, "; ")
}
