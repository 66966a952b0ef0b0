// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/healthstream"
)

const (
	wellGPU = gpu.UUID("GPU-00000000-0000-0000-0000-00000000000a")
	lostGPU = gpu.UUID("GPU-00000000-0000-0000-0000-00000000000b")
	cutGPU  = gpu.UUID("GPU-00000000-0000-0000-0000-00000000000c")
	partMIG = gpu.UUID("MIG-00000000-0000-0000-0000-00000000000d")
	goneGPU = gpu.UUID("GPU-00000000-0000-0000-0000-00000000000e")
)

var healthTime = time.Date(2026, 1, 2, 3, 4, 5, 6e6, time.UTC)

// ward is an exporter's side: the list that it serves, and the words that it takes.
type ward struct {
	mu      sync.Mutex
	list    *healthstream.List
	changed chan struct{}
}

func newWard(list *healthstream.List) *ward { return &ward{list: list, changed: make(chan struct{})} }

func (w *ward) Watch() (*healthstream.List, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.list, w.changed
}

func (w *ward) pin(list *healthstream.List) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.list = list
	close(w.changed)
	w.changed = make(chan struct{})
}

// Clear ends what an XID began, and shows it on the list a little later, as a tick does.
func (w *ward) Clear(_ context.Context, c health.Clearing) (health.Clearing, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	old, ok := w.list.Report.Verdict(c.Device)
	if !ok {
		return health.Clearing{}, fmt.Errorf("no device %s here", c.Device)
	}
	for _, condition := range old.Conditions {
		if condition.XID > 0 {
			c.Ended = append(c.Ended, condition)
		} else {
			c.Standing = append(c.Standing, condition)
		}
	}
	// The words of the caller are its own, and differ from run to run.
	c.By = "uid 0 pid 1" + c.By[strings.Index(c.By, ":"):]
	next := *w.list
	next.Report.Version++
	next.Report.Clearings = []health.Clearing{c}
	next.Report.Verdicts = nil
	for _, v := range w.list.Report.Verdicts {
		if v.Device == c.Device {
			v.Conditions = c.Standing
			if len(c.Standing) == 0 {
				v.Status, v.Reason = health.Healthy, ""
				if c.Device == goneGPU {
					continue
				}
			}
		}
		next.Report.Verdicts = append(next.Report.Verdicts, v)
	}
	time.AfterFunc(30*time.Millisecond, func() { w.pin(&next) })
	return c, nil
}

func whole(uuid gpu.UUID, index int) healthstream.Device {
	return healthstream.Device{Device: gpu.Device{
		UUID: uuid, Index: index, Minor: index, Model: "NVIDIA H100 80GB HBM3",
		GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance, InstanceEntity: gpu.NoInstance,
	}}
}

// healthList is a node on which most that can be is.
func healthList() *healthstream.List {
	part := whole(partMIG, 2)
	part.Parent, part.GPUInstance, part.ComputeInstance, part.Profile.Name = cutGPU, 9, 0, "1g.10gb"
	fell := health.Condition{
		Subject: health.WholeCard(lostGPU), Kind: health.XIDKind(79), Class: health.ClassNode, Since: healthTime, Last: healthTime.Add(time.Minute),
		Count: 2, XID: 79, Evidence: "XID 79: GPU has fallen off the bus",
	}
	gone := health.Condition{Subject: health.WholeCard(goneGPU), Kind: health.KindLost, Class: health.ClassHardware, Since: healthTime, Last: healthTime, Count: 1, Evidence: "the driver cannot reach it"}
	remap := health.Condition{
		Subject: health.WholeCard(cutGPU), Kind: health.KindRemapPending, Class: health.ClassWatch, Since: healthTime, Last: healthTime, Count: 1,
		Evidence: "a row remap is pending\x1b[2J\nfake 0 row", Recovery: "boot id changed", RecoveringSince: healthTime,
	}
	return &healthstream.List{
		Epoch: "life-1", Node: "gpu-node-1", Source: "sim",
		Devices: []healthstream.Device{whole(wellGPU, 0), whole(lostGPU, 1), whole(cutGPU, 2), part},
		Report: health.Report{
			Time: healthTime.Add(time.Hour), BootID: "boot-1", Version: 12,
			Verdicts: []health.Verdict{
				{Device: wellGPU, Card: wellGPU, Status: health.Healthy, Since: healthTime},
				{Device: lostGPU, Card: lostGPU, Status: health.Unhealthy, Since: healthTime, Reason: fell.Evidence, Conditions: []health.Condition{fell}},
				{Device: cutGPU, Card: cutGPU, Status: health.Healthy, Since: healthTime, Avoid: true, Reason: remap.Evidence, Conditions: []health.Condition{remap}},
				{Device: partMIG, Card: cutGPU, Status: health.Unknown, Avoid: true, Reason: remap.Evidence, Conditions: []health.Condition{remap}},
				{Device: goneGPU, Card: goneGPU, Status: health.Unhealthy, Since: healthTime, Reason: gone.Evidence, Conditions: []health.Condition{gone}},
			},
			Records:   []health.Record{{Device: wellGPU, Transitions: map[string]uint64{"healthy": 2, "unhealthy": 1}, Unhealthy: 90 * time.Second, Clearings: 1}},
			Clearings: []health.Clearing{{Device: wellGPU, Reason: "new riser", By: "uid 0 pid 7: alice", Time: healthTime, Ended: []health.Condition{fell}}},
		},
	}
}

// only is the list with the verdicts on some devices.
func only(devices ...gpu.UUID) *healthstream.List {
	list := healthList()
	var verdicts []health.Verdict
	for _, d := range devices {
		v, _ := list.Report.Verdict(d)
		verdicts = append(verdicts, v)
	}
	list.Report.Verdicts = verdicts
	return list
}

// exporterWith serves the ward until the test ends.
func exporterWith(t *testing.T, w *ward) (socket string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "gh")
	if err != nil {
		t.Fatal(err)
	}
	socket = filepath.Join(dir, "s")
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	s := healthstream.NewServer(healthstream.ServerConfig{Source: w, Operator: w, Now: func() time.Time { return healthTime }})
	go func() { ended <- s.Run(ctx, socket) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		os.RemoveAll(dir)
	})
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		// The file is there a moment before it can be connected to.
		if conn, err := net.Dial("unix", socket); err == nil {
			conn.Close()
			return socket
		}
	}
	t.Fatal("the server does not come up")
	return ""
}

// ask runs the program with arguments.
func ask(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	t.Setenv("SUDO_USER", "alice")
	var out, noise bytes.Buffer
	err := command(&out, &noise, func() time.Time { return evening().now }).Run(t.Context(), append([]string{"gpumeter"}, args...))
	code = exitCode(err, &noise)
	return out.String(), noise.String(), code
}

func TestHealthTableGolden(t *testing.T) {
	out, noise, code := ask(t, "health", "--socket", exporterWith(t, newWard(healthList())))
	golden(t, "health.txt", out)
	if code != exitUnhealthy || noise != "" {
		t.Errorf("exit code %d, and it says %q", code, noise)
	}
}

func TestHealthInJSONGolden(t *testing.T) {
	out, _, code := ask(t, "health", "--json", "--socket", exporterWith(t, newWard(healthList())))
	golden(t, "health.json", out)
	if code != exitUnhealthy {
		t.Errorf("exit code %d", code)
	}
}

func TestHealthEndsWithTheWorstVerdict(t *testing.T) {
	for _, tt := range []struct {
		name    string
		devices []gpu.UUID
		want    int
	}{
		{"all healthy, one to be avoided", []gpu.UUID{wellGPU, cutGPU}, 0},
		{"one unknown", []gpu.UUID{wellGPU, partMIG}, exitUnknown},
		{"one unhealthy", []gpu.UUID{wellGPU, partMIG, lostGPU}, exitUnhealthy},
		{"none at all", nil, exitUnknown},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, noise, code := ask(t, "health", "--socket", exporterWith(t, newWard(only(tt.devices...)))); code != tt.want {
				t.Errorf("exit code %d, want %d; it says %q", code, tt.want, noise)
			}
		})
	}
}

func TestHealthFindsTheSocketInTheEnvironment(t *testing.T) {
	t.Setenv("GPUMETER_HEALTH_SOCKET", exporterWith(t, newWard(only(wellGPU))))
	if out, noise, code := ask(t, "health"); code != 0 || !strings.Contains(out, string(wellGPU)) {
		t.Errorf("exit code %d: %q %q", code, out, noise)
	}
}

func TestHealthSaysWhatToDoWhereNobodyAnswers(t *testing.T) {
	dir := t.TempDir()
	stale := filepath.Join(dir, "stale")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	if err != nil {
		t.Skipf("no socket here: %v", err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	for _, tt := range []struct {
		name string
		args []string
		want []string
	}{
		{"no socket", []string{"health", "--socket", filepath.Join(dir, "none")}, []string{"no such file", "--socket", "kubectl exec"}},
		{"an exporter that has ended", []string{"health", "--socket", stale}, []string{"refused", "start it again"}},
		{"no verdicts yet", []string{"health", "--timeout", "50ms", "--socket", exporterWith(t, newWard(nil))}, []string{"/readyz"}},
		{"a clearing without a socket", []string{"health", "clear", "--socket", filepath.Join(dir, "none"), "--device", "GPU-1", "--reason", "r"}, []string{"no such file", "--socket"}},
		{"no device", []string{"health", "clear", "--reason", "r"}, []string{"--device is missing"}},
		{"no reason", []string{"health", "clear", "--device", "GPU-1", "--reason", " "}, []string{"--reason is missing"}},
		{"an argument", []string{"health", "GPU-1"}, []string{`"GPU-1" is no flag`}},
		{"a flag that is none", []string{"health", "--sockt", "x"}, []string{"sockt", "--help"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out, noise, code := ask(t, tt.args...)
			if code != 1 || out != "" {
				t.Errorf("exit code %d, output %q", code, out)
			}
			for _, want := range tt.want {
				if !strings.Contains(noise, want) {
					t.Errorf("it says %q, want %q", noise, want)
				}
			}
		})
	}
}

func TestAdviceIsForTheErrorThatItIsAbout(t *testing.T) {
	if got := advised(fmt.Errorf("connect: %w", os.ErrPermission)); !strings.Contains(got.Error(), "as root") || !errors.Is(got, os.ErrPermission) {
		t.Errorf("advice %v", got)
	}
	other := errors.New("other")
	if got := advised(other); got.Error() != other.Error() {
		t.Errorf("advice %v", got)
	}
}

func TestHealthClearGolden(t *testing.T) {
	socket := exporterWith(t, newWard(healthList()))
	out, noise, code := ask(t, "health", "clear", "--socket", socket, "--device", string(lostGPU), "--reason", "reseated the card")
	golden(t, "health-cleared.txt", out)
	if code != 0 || noise != "" {
		t.Errorf("exit code %d, and it says %q", code, noise)
	}
	out, noise, code = ask(t, "health", "clear", "--socket", socket, "--device", string(goneGPU), "--reason", "it is fine", "--by", "bob")
	golden(t, "health-standing.txt", out)
	if code != exitUnhealthy || noise != "" {
		t.Errorf("exit code %d, and it says %q", code, noise)
	}
}

func TestHealthClearInJSON(t *testing.T) {
	socket := exporterWith(t, newWard(healthList()))
	out, noise, code := ask(t, "health", "--json", "clear", "--socket", socket, "--device", string(cutGPU), "--reason", "r")
	var v healthView
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		t.Fatalf("%v in %q %q", err, out, noise)
	}
	if code != exitUnknown || len(v.Devices) != 2 || len(v.Clearings) != 1 || len(v.Clearings[0].Standing) != 1 {
		t.Errorf("exit code %d, document %+v", code, v)
	}
}

func TestHealthClearOfAHealthyDeviceSaysSo(t *testing.T) {
	out, noise, code := ask(t, "health", "clear", "--socket", exporterWith(t, newWard(healthList())), "--device", string(wellGPU), "--reason", "r")
	if code != 0 || !strings.Contains(out, "there was nothing to end") {
		t.Errorf("exit code %d: %q %q", code, out, noise)
	}
}

func TestAClearingThatChangesNoListIsNotWaitedForLong(t *testing.T) {
	client := healthstream.NewClient(healthstream.ClientConfig{Socket: exporterWith(t, newWard(healthList()))})
	list, err := listAfter(t.Context(), client, health.Clearing{Device: wellGPU, By: "nobody"})
	if err != nil || list.Report.Version != 12 {
		t.Errorf("list %+v, error %v", list, err)
	}
}

func TestHealthClearOfADeviceThatIsNotThere(t *testing.T) {
	_, noise, code := ask(t, "health", "clear", "--socket", exporterWith(t, newWard(healthList())), "--device", "GPU-9", "--reason", "r")
	if code != 1 || !strings.Contains(noise, "no device GPU-9 here") || strings.Contains(noise, "rpc") {
		t.Errorf("exit code %d: %q", code, noise)
	}
}

func TestTheOperatorIsWhoLoggedIn(t *testing.T) {
	for _, tt := range []struct {
		env  map[string]string
		want string
	}{
		{map[string]string{"SUDO_USER": "alice", "USER": "root"}, "alice"},
		{map[string]string{"USER": "root"}, "root"},
		{nil, ""},
	} {
		if got := operatorName(func(name string) string { return tt.env[name] }); got != tt.want {
			t.Errorf("with %v it is %q, want %q", tt.env, got, tt.want)
		}
	}
}

func TestHealthClearOfAGPUThatIsGoneForgetsIt(t *testing.T) {
	list := only(wellGPU, goneGPU)
	v := &list.Report.Verdicts[1]
	v.Conditions = []health.Condition{{Subject: health.WholeCard(goneGPU), Kind: health.XIDKind(79), Class: health.ClassNode, XID: 79, Evidence: "XID 79"}}
	socket := exporterWith(t, newWard(list))
	out, noise, code := ask(t, "health", "clear", "--socket", socket, "--device", string(goneGPU), "--reason", "sent back")
	if code != 0 || noise != "" || !strings.Contains(out, "ended: xid_79 (node)") || !strings.Contains(out, "not listed on this node any more") || strings.Contains(out, "no devices") {
		t.Errorf("ended with %d and %q:\n%s", code, noise, out)
	}
}

// Others are taken first while a device works; one that is withdrawn is not taken at all.
func TestHealthDoesNotSayToAvoidWhatIsWithdrawn(t *testing.T) {
	list := only(wellGPU, lostGPU)
	for i := range list.Report.Verdicts {
		list.Report.Verdicts[i].Avoid = true
	}
	out, _, _ := ask(t, "health", "--socket", exporterWith(t, newWard(list)))
	if strings.Contains(out, "unhealthy, avoid") || !strings.Contains(out, "healthy, avoid") {
		t.Errorf("it says\n%s", out)
	}
}
