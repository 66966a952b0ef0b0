// SPDX-License-Identifier: Apache-2.0

package app

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

const (
	rememberedFile   = "device-plugin-config.json"
	rememberedFormat = 1
)

// memory keeps the config that the node's label chose: a plugin that restarts while the API server is
// away must not go over to the config of a node without a label, under pods that hold what the other gave.
type memory struct{ path string }

type rememberedConfig struct {
	Format int
	// Name is the file's, empty for no config; Nothing says that it is the null device.
	Name    string
	Nothing bool `json:",omitempty"`
	// Hash names what it came to; it is for people.
	Hash string
	Data []byte
}

// openMemory reads what was kept, nil for nothing. The error is for the log.
func openMemory(dir string) (*memory, *configRead, error) {
	m := &memory{path: filepath.Join(dir, rememberedFile)}
	data, err := os.ReadFile(m.path)
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil, nil
	}
	if err != nil {
		return m, nil, fmt.Errorf("config of before: %w", err)
	}
	r, err := decodeRemembered(data)
	if err != nil {
		return m, nil, fmt.Errorf("config of before: %s: %w (it is written anew with the next config)", m.path, err)
	}
	return m, r, nil
}

func decodeRemembered(data []byte) (*configRead, error) {
	var d rememberedConfig
	if err := json.Unmarshal(data, &d); err != nil {
		return nil, err
	}
	if d.Format != rememberedFormat {
		return nil, fmt.Errorf("format %d is not the one that this version writes, %d", d.Format, rememberedFormat)
	}
	return &configRead{name: d.Name, from: fromMemory, data: d.Data, nothing: d.Nothing}, nil
}

// save keeps a config that was taken.
func (m *memory) save(c rememberedConfig) error {
	c.Format = rememberedFormat
	data, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("the config for a restart: %w", err)
	}
	if err := replaceFile(m.path, data); err != nil {
		return fmt.Errorf("the config for a restart: %w", err)
	}
	return nil
}
