// SPDX-License-Identifier: Apache-2.0

package app

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gpumeter/gpumeter/pkg/healthstream"
)

const (
	heldFile   = "device-plugin-stream.json"
	heldFormat = 1
	// heldLimit is more than the list of any node has.
	heldLimit = 16 << 20
)

// heldList keeps the health stream's last list on disk: a plugin that restarts while the exporter
// is away must neither heal a GPU nor forget it.
type heldList struct {
	path string
	// epoch and version are those of what is saved.
	epoch   string
	version uint64
}

type heldDocument struct {
	Format int
	List   *healthstream.List
}

// openHeld reads what was saved, nil for nothing. The error is for the log.
func openHeld(dir string) (*heldList, *healthstream.List, error) {
	h := &heldList{path: filepath.Join(dir, heldFile)}
	info, err := os.Stat(h.path)
	if errors.Is(err, fs.ErrNotExist) {
		return h, nil, nil
	}
	if err != nil {
		return h, nil, fmt.Errorf("last list of the health stream: %w", err)
	}
	if info.Size() > heldLimit {
		return h, nil, fmt.Errorf("last list of the health stream: %s has %d bytes, and is not read", h.path, info.Size())
	}
	data, err := os.ReadFile(h.path)
	if err != nil {
		return h, nil, fmt.Errorf("last list of the health stream: %w", err)
	}
	list, err := decodeHeld(data)
	if err != nil {
		return h, nil, fmt.Errorf("last list of the health stream: %s: %w (it is written anew with the next list)", h.path, err)
	}
	h.epoch, h.version = list.Epoch, list.Report.Version
	return h, list, nil
}

func decodeHeld(data []byte) (*healthstream.List, error) {
	var d heldDocument
	if err := json.Unmarshal(data, &d); err != nil {
		return nil, err
	}
	if d.Format != heldFormat || d.List == nil {
		return nil, fmt.Errorf("format %d is not the one that this version writes, %d", d.Format, heldFormat)
	}
	return d.List, nil
}

// save writes a list, unless it is the one that is there.
func (h *heldList) save(list *healthstream.List) error {
	if list.Epoch == h.epoch && list.Report.Version == h.version {
		return nil
	}
	data, err := json.Marshal(heldDocument{heldFormat, list})
	if err != nil {
		return fmt.Errorf("last list of the health stream: %w", err)
	}
	if err := replaceFile(h.path, data); err != nil {
		return fmt.Errorf("last list of the health stream: %w", err)
	}
	h.epoch, h.version = list.Epoch, list.Report.Version
	return nil
}

// replaceFile writes a file that is, after a crash, either the old one or the new one.
func replaceFile(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
