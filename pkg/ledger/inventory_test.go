// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// divided is an inventory of one card with so many replicas.
func divided(replicas int) sharing.Inventory {
	devices := []gpu.Device{{UUID: "GPU-a", Minor: 3, GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance}}
	var list []sharing.Advertised
	for i := range replicas {
		list = append(list, sharing.Advertised{Resource: "nvidia.com/gpu.shared", DeviceID: fmt.Sprintf("GPU-a::%d", i)})
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return sharing.Inventory{Devices: devices, Seats: sharing.Seats{}.Observe(at, sharing.NewIndex(devices), list)}
}

func TestTheInventoryThatIsSavedIsThereAfterARestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gpumeter")
	v, got, errs := OpenInventory(dir, "inventory")
	if len(errs) > 0 || !got.Equal(sharing.Inventory{}) {
		t.Fatalf("a first start: %+v, %v", got, errs)
	}
	for _, replicas := range []int{4, 8} {
		if err := v.Save(divided(replicas)); err != nil {
			t.Fatal(err)
		}
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	v, got, errs = OpenInventory(dir, "inventory")
	defer v.Close()
	if len(errs) > 0 || !got.Equal(divided(8)) || got.Seats.Of("GPU-a") != 8 || got.Devices[0].Minor != 3 {
		t.Errorf("after a restart: %+v, %v", got, errs)
	}
}

// Conditions and inventory lie in one folder, and neither is taken for the other.
func TestAFileOfAnotherKindIsPutAside(t *testing.T) {
	dir := t.TempDir()
	c, _, _ := OpenConditions(dir, "file")
	if err := c.Save(broken(t, 0)); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	v, got, errs := OpenInventory(dir, "file")
	defer v.Close()
	if len(errs) != 1 || !strings.Contains(errs[0].Error(), "how many replicas") || !got.Equal(sharing.Inventory{}) {
		t.Errorf("%+v, %v", got, errs)
	}
	if err := v.Save(divided(4)); err != nil {
		t.Error(err)
	}
	aside, _ := filepath.Glob(filepath.Join(dir, "file.corrupt-*"))
	if len(aside) != 1 {
		t.Fatalf("put aside: %v", aside)
	}
	if data, err := os.ReadFile(aside[0]); err != nil || !strings.HasPrefix(string(data), conditionsWord) {
		t.Errorf("%.40q, %v", data, err)
	}
}
