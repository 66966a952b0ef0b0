// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"maps"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/cmd/gpumeter-exporter/app"
)

// TestSharesStandWhileACardIsWithdrawn: no version of the kubelet lists what it does not give away,
// and that must not look like fewer replicas to those who still hold one.
func TestSharesStandWhileACardIsWithdrawn(t *testing.T) {
	folders, err := filepath.Glob(filepath.Join("testdata", "kubelet-*"))
	if err != nil || len(folders) < 3 {
		t.Fatalf("records of %d kubelets: %v", len(folders), err)
	}
	const slice = 15.0 / 112
	running := map[string]float64{
		"default/whole": 1, "0001-free": 1,
		"default/shared-a": 1. / 4, "default/shared-b": 1. / 4, "0002-unrequested": 2. / 4,
		"default/slice": slice, "0003-free": 1 - slice,
	}
	eight := maps.Clone(running)
	maps.Copy(eight, map[string]float64{
		"default/shared-a": 1. / 8, "default/shared-b": 1. / 8, "default/shared-d": 1. / 8, "0002-unrequested": 5. / 8,
	})
	for _, folder := range folders {
		folder = filepath.Base(folder)
		t.Run(folder, func(t *testing.T) {
			t.Parallel()
			kubelet := &recorded{}
			kubelet.sayFrom(t, folder, "list_running.json", "allocatable_running.json")
			socket := kubelet.serve(t)
			url := exporterOn(t, func(c *app.Config) {
				c.Scenario = filepath.Join("testdata", "kubelet-1.37.2", "broken-card.yaml")
				c.KubeletSocket, c.KubeletSet = socket, true
				c.Checkpoint = filepath.Join("testdata", folder, "checkpoint_running.json")
			})
			for _, step := range []struct {
				name string
				want map[string]float64
			}{
				{"running", running}, {"card-broken", running}, {"card-back", running}, {"eight-replicas", eight},
			} {
				kubelet.sayFrom(t, folder, "list_"+step.name+".json", "allocatable_"+step.name+".json")
				stand(t, url, step.name, step.want)
			}
		})
	}
}

// stand waits until the shares are those wanted, and looks again some ticks later.
func stand(t *testing.T, url, name string, want map[string]float64) {
	t.Helper()
	const patience, pause, ticks = 15 * time.Second, 50 * time.Millisecond, 250 * time.Millisecond
	var got map[string]float64
	for end := time.Now().Add(patience); ; time.Sleep(pause) {
		page := scrape(t, url)
		got = shares(page)
		difference := differ(want, got)
		if difference == "" {
			if err := addsUp(page, 4); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%s: %s\ngot %v", name, difference, got)
		}
	}
	time.Sleep(ticks)
	if difference := differ(want, shares(scrape(t, url))); difference != "" {
		t.Fatalf("%s, some ticks later: %s", name, difference)
	}
}
