// SPDX-License-Identifier: Apache-2.0

package dashboards

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/gpumeter/gpumeter/cmd/gpumeter-device-plugin/app"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/healthstream"
	"github.com/gpumeter/gpumeter/pkg/sim"
	"github.com/gpumeter/gpumeter/tests/fakekubelet"
)

// pluginScenario is the node of the device plugin, with config as below.
const pluginScenario = "h100x8-timeslice4-renamed"

const sharedConfig = `version: v1
sharing:
  timeSlicing:
    renameByDefault: true
    failRequestsGreaterThanOne: true
    resources:
    - {name: nvidia.com/gpu, replicas: 4}
`

// pluginPages runs the device plugin with a pretend kubelet, and is its page again and again: as it begins, after each of some pods, and
// after one that it refuses since it asks for two seats of one GPU.
func pluginPages(ctx context.Context, dir string) ([][]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	// The path of a socket must be short.
	dir, err := os.MkdirTemp(dir, "p")
	if err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(config, []byte(sharedConfig), 0o600); err != nil {
		return nil, err
	}
	kubelet := fakekubelet.New(fakekubelet.Config{Dir: filepath.Join(dir, "device-plugins")})
	if err := kubelet.Start(); err != nil {
		return nil, err
	}
	defer kubelet.Stop()
	address, err := freeAddress(ctx)
	if err != nil {
		return nil, err
	}
	verdicts, err := allHealthy(pluginScenario)
	if err != nil {
		return nil, err
	}
	socket := filepath.Join(dir, "h.sock")
	plugin, stop := context.WithCancel(ctx)
	done := make(chan error, 2)
	go func() {
		done <- healthstream.NewServer(healthstream.ServerConfig{Source: verdicts}).Run(plugin, socket)
	}()
	go func() {
		done <- app.Command(func(string) (string, bool) { return "", false }, io.Discard, io.Discard).Run(plugin, []string{
			"gpumeter-device-plugin", "--source", "sim", "--sim-scenario", pluginScenario, "--config-file", config, "--kubelet-dir", dir, "--state-dir", filepath.Join(dir, "state"),
			"--cdi-dir", filepath.Join(dir, "cdi"), "--health-socket", socket, "--address", address,
		})
	}()
	pages, err := allocate(ctx, kubelet, "http://"+address+"/metrics")
	stop()
	return pages, errors.Join(err, <-done, <-done)
}

// verdicts are what an exporter tells: always the same.
type verdicts healthstream.List

// Watch is the list.
func (v *verdicts) Watch() (list *healthstream.List, changed <-chan struct{}) {
	return (*healthstream.List)(v), nil
}

// allHealthy is a node of which everything is well.
func allHealthy(scenario string) (*verdicts, error) {
	sc, err := sim.LoadShipped(scenario)
	if err != nil {
		return nil, err
	}
	node, err := sim.NewNode(sc, sim.Options{})
	if err != nil {
		return nil, err
	}
	now := time.Now()
	v := &verdicts{Epoch: "e", Node: sc.Node, Source: "sim", Report: health.Report{Time: now, Version: 1}}
	for _, d := range node.ReadingAt(0, nil).Devices {
		v.Devices = append(v.Devices, healthstream.Device{Device: d})
		v.Report.Verdicts = append(v.Report.Verdicts, health.Verdict{Device: d.UUID, Card: d.Card(), Status: health.Healthy, Since: now})
	}
	return v, node.Close()
}

// allocate has the kubelet ask for seats, and reads the page after each.
func allocate(ctx context.Context, kubelet *fakekubelet.Kubelet, url string) ([][]byte, error) {
	const resource = "nvidia.com/gpu.shared"
	if err := kubelet.WaitFor(ctx, func(k *fakekubelet.Kubelet) bool { return k.Allocatable(resource) == 32 }); err != nil {
		return nil, fmt.Errorf("the device plugin tells of %v: %w", kubelet, err)
	}
	if err := hears(ctx, url); err != nil {
		return nil, err
	}
	var pages [][]byte
	for i := range 12 {
		page, err := fetch(ctx, url)
		if err != nil {
			return nil, err
		}
		pages = append(pages, page)
		if i == 8 {
			if _, err := kubelet.Allocate(ctx, "greedy", resource, 2); err == nil {
				return nil, errors.New("two seats were given to one container, against the config")
			}
			continue
		}
		if _, err := kubelet.Allocate(ctx, fmt.Sprintf("pod-%d", i), resource, 1); err != nil {
			return nil, err
		}
	}
	return pages, nil
}

// hears waits until the plugin hears an exporter.
func hears(ctx context.Context, url string) error {
	for {
		page, err := fetch(ctx, url)
		if err != nil {
			return err
		}
		if bytes.Contains(page, []byte("\ngpumeter_device_plugin_monitor_up 1\n")) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the device plugin hears no verdicts: %w", ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func fetch(ctx context.Context, url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "text/plain;version=0.0.4")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	return io.ReadAll(response.Body)
}

func freeAddress(ctx context.Context) (string, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}
