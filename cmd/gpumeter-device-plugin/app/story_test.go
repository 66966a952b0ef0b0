// SPDX-License-Identifier: Apache-2.0

package app

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/healthstream"
	"github.com/gpumeter/gpumeter/tests/fakekubelet"
)

// listOfPlugin is an exporter's list of the devices that a plugin has, all of them healthy.
func (p *plugin) listOfPlugin() *healthstream.List {
	list := &healthstream.List{Epoch: "e", Source: "dcgm", Report: health.Report{Time: time.Now()}}
	for _, d := range p.director.status.Load().stock.plain() {
		list.Devices = append(list.Devices, healthstream.Device{Device: d})
		list.Report.Verdicts = append(list.Report.Verdicts, health.Verdict{Device: d.UUID, Card: d.Card(), Status: healthy, Since: list.Report.Time})
	}
	return list
}

// heir is the exporter's part that takes conditions over.
type heir struct {
	mu   sync.Mutex
	seen []health.Condition
	came chan struct{}
}

func (h *heir) Witness(_ string, seen []health.Condition) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.seen = seen; h.came != nil {
		close(h.came)
		h.came = nil
	}
}

// A fault that the plugin alone has heard of outlives the coming of an exporter, which takes it over; nothing
// else of the node moves meanwhile, whatever is done to the config.
func TestAnExporterThatComesLaterHealsNothingAndNothingElseMoves(t *testing.T) {
	s := newSite(t)
	file := s.write("config.yaml", fmt.Sprintf(sharedBy, 4))
	p := s.start("--source=sim", "--config-file", file, "--sim-scenario", s.write("story.yaml", story+"events: [{at: 2s, do: xid, gpu: 0, code: 79}]\n"))
	s.await("at first", func(k *fakekubelet.Kubelet) bool { return has(shared, 8, 8)(k) && has(small, 2, 2)(k) })
	s.await("after XID 79", has(shared, 8, 4))
	before, _ := s.kubelet.Resource(small)
	broken, _ := s.kubelet.Resource(shared)

	for _, bad := range []string{"", strings.Replace(fmt.Sprintf(sharedBy, 4), ": 4}", ": 20000000}", 1), fmt.Sprintf(sharedBy, 60_000)} {
		s.write("config.yaml", bad)
		p.metrics("gpumeter_device_plugin_config_last_reload_successful 0")
		s.write("config.yaml", fmt.Sprintf(sharedBy, 4))
		p.metrics("gpumeter_device_plugin_config_last_reload_successful 1")
	}

	taker := &heir{came: make(chan struct{})}
	came := taker.came
	exporter, _ := s.exportTo(p.listOfPlugin(), taker)
	p.metrics("gpumeter_device_plugin_monitor_up 1")
	select {
	case <-came:
	case <-time.After(patience):
		t.Fatal("the exporter was told of nothing")
	}
	taker.mu.Lock()
	seen := taker.seen
	taker.mu.Unlock()
	if len(seen) != 1 || seen[0].XID != 79 || seen[0].Last.IsZero() || seen[0].BootID == "" {
		t.Fatalf("handed over: %+v", seen)
	}
	taken := p.listOfPlugin()
	taken.Report.Verdicts[0].Status, taken.Report.Verdicts[0].Conditions = unhealthy, seen
	exporter.say(taken)
	p.metrics("gpumeter_device_plugin_list_version 2")
	if now, _ := s.kubelet.Resource(small); !reflect.DeepEqual(now, before) {
		t.Errorf("MIG devices were disturbed: %+v, before %+v", now, before)
	}
	if now, _ := s.kubelet.Resource(shared); !reflect.DeepEqual(now, broken) {
		t.Errorf("shared GPUs were disturbed: %+v, before %+v", now, broken)
	}

	over := p.listOfPlugin()
	over.Report.Ended = []health.Ending{{Subject: seen[0].Subject, Kind: seen[0].Kind, Ended: time.Now()}}
	exporter.say(over)
	s.await("after evidence that the exporter saw", has(shared, 8, 8))
}

func TestThePluginSaysThatThereIsNoKubelet(t *testing.T) {
	s := newSite(t)
	s.kubelet.Stop()
	p := s.start("--source=sim", "--mig-strategy=mixed", "--sim-scenario", s.write("story.yaml", story))
	why := "there is no " + s.path("device-plugins/kubelet.sock")
	limit := time.Now().Add(patience)
	for !strings.Contains(p.page("/readyz"), why) {
		if time.Now().After(limit) {
			t.Fatalf("/readyz: %s", p.page("/readyz"))
		}
		time.Sleep(20 * time.Millisecond)
	}
	if n := strings.Count(p.log.String(), "waiting for the kubelet"); n != 1 {
		t.Errorf("logged %d times", n)
	}
	if err := s.kubelet.Start(); err != nil {
		t.Fatal(err)
	}
	s.await("when it comes", has(gpus, 2, 2))
	p.metrics("gpumeter_device_plugin_ready 1")
}

func TestARestartWithoutTheAPIServerIsNoOtherConfig(t *testing.T) {
	s := newSite(t)
	if err := os.Mkdir(s.path("configs"), 0o700); err != nil {
		t.Fatal(err)
	}
	s.write("configs/default", "version: v1")
	s.write("configs/four", fmt.Sprintf(sharedBy, 4))
	m, _, err := openMemory(s.path("state"))
	if err != nil {
		t.Fatal(err)
	}
	if err := m.save(rememberedConfig{Name: filepath.Join(s.path("configs"), "four"), Data: []byte(fmt.Sprintf(sharedBy, 4))}); err != nil {
		t.Fatal(err)
	}
	kubeconfig := s.write("kubeconfig", "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: \"http://127.0.0.1:1\"}}]\n"+
		"contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\n")
	s.env["NODE_NAME"], s.env["CONFIG_FILE_SRCDIR"] = "n1", s.path("configs")
	p := s.start("--source=sim", "--sim-scenario", s.write("story.yaml", story), "--kubeconfig", kubeconfig)
	s.await("without the API server", has(shared, 8, 8))
	hash := mustEffective(t, nil, nil, fmt.Sprintf(sharedBy, 4)).hash
	p.metrics(fmt.Sprintf(`gpumeter_device_plugin_config_info{hash="%s",source="remembered"} 1`, hash))
}
