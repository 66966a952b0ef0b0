// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi/spec"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/specs-go"
)

// save writes the spec of a class, unless it is there already.
func (w *Writer) save(class string, common specs.ContainerEdits, devices []specs.Device) error {
	data, err := w.encode(class, common, devices)
	if err != nil {
		return fmt.Errorf("spec of %s/%s: %w", w.cfg.Vendor, class, err)
	}
	name := filepath.Join(w.cfg.Dir, cdi.GenerateSpecName(w.cfg.Vendor, class)+".json")
	if old, err := os.ReadFile(name); err == nil && bytes.Equal(old, data) {
		return nil
	}
	if err := os.MkdirAll(w.cfg.Dir, 0o755); err != nil {
		return fmt.Errorf("folder of the specs: %w", err)
	}
	if err := replace(name, data); err != nil {
		return fmt.Errorf("spec of %s/%s: %w", w.cfg.Vendor, class, err)
	}
	w.cfg.Log.Info("CDI spec written", "file", name, "devices", len(devices))
	return nil
}

func (w *Writer) encode(class string, common specs.ContainerEdits, devices []specs.Device) ([]byte, error) {
	made, err := spec.New(spec.WithVendor(w.cfg.Vendor), spec.WithClass(class), spec.WithDeviceSpecs(devices), spec.WithEdits(common))
	if err != nil {
		return nil, err
	}
	raw := made.Raw()
	// The lowest version that says all of it, so that an old runtime can read it.
	if raw.Version, err = specs.MinimumRequiredVersion(raw); err != nil {
		return nil, err
	}
	data, err := json.MarshalIndent(raw, "", "  ")
	if err != nil {
		return nil, err
	}
	return append(data, '\n'), nil
}

// replace puts the data where a runtime finds either the old or the new spec whole, after the
// CDI library has read it back and found it good.
func replace(name string, data []byte) (err error) {
	// A runtime takes no notice of names that do not end in .json or .yaml.
	file, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*.new")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(file.Name())
		}
	}()
	if err := fill(file, data); err != nil {
		return err
	}
	if _, err := cdi.ReadSpec(file.Name(), 0); err != nil {
		return fmt.Errorf("the CDI library refuses it: %w", err)
	}
	return os.Rename(file.Name(), name)
}

func fill(file *os.File, data []byte) error {
	_, err := file.Write(data)
	if err == nil {
		err = file.Chmod(0o644)
	}
	if err == nil {
		err = file.Sync()
	}
	if closed := file.Close(); err == nil {
		err = closed
	}
	return err
}
