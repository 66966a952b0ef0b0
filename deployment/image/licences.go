// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// moduleLicences adds the licence and notice of every Go module that is compiled into the programs, and
// of Go itself, since who gives a program away gives these away with it.
func (t tree) moduleLicences(ctx context.Context, root string, programs []string) error {
	modules := map[string]bool{}
	for _, program := range programs {
		info, err := buildinfo.ReadFile(program)
		if err != nil {
			return fmt.Errorf("read what %s is made of: %w", program, err)
		}
		for _, m := range info.Deps {
			if m.Replace != nil {
				m = m.Replace
			}
			modules[m.Path+"@"+m.Version] = true
		}
	}
	folders, err := moduleFolders(ctx, root, sorted(modules))
	if err != nil {
		return err
	}
	goRoot, err := output(ctx, "go", "-C", root, "env", "GOROOT")
	if err != nil {
		return fmt.Errorf("find Go's own licence: %w", err)
	}
	folders["go"] = strings.TrimSpace(string(goRoot))
	for _, module := range sorted(folders) {
		if err := t.licencesOf(module, folders[module]); err != nil {
			return err
		}
	}
	return nil
}

// licences writes them into a folder, for archives of the programs.
func licences(ctx context.Context, o options) error {
	t := tree{}
	if err := t.moduleLicences(ctx, o.root, o.binaries()); err != nil {
		return err
	}
	below := tree{}
	for name, f := range t {
		below[strings.TrimPrefix(name, "licenses/modules/")] = f
	}
	return below.write(o.out, o.time())
}

// moduleFolders are the modules' folders in Go's cache, by path@version.
func moduleFolders(ctx context.Context, root string, modules []string) (map[string]string, error) {
	said, err := output(ctx, "go", append([]string{"-C", root, "mod", "download", "-json"}, modules...)...)
	if err != nil {
		return nil, fmt.Errorf("find the modules that the programs are made of: %w", err)
	}
	folders := map[string]string{}
	for decoder := json.NewDecoder(bytes.NewReader(said)); decoder.More(); {
		var m struct{ Path, Version, Dir string }
		if err := decoder.Decode(&m); err != nil {
			return nil, fmt.Errorf("read go mod download's answer: %w", err)
		}
		folders[m.Path+"@"+m.Version] = m.Dir
	}
	return folders, nil
}

func (t tree) licencesOf(module, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("read the licence of %s: %w", module, err)
	}
	found := 0
	for _, entry := range entries {
		name := strings.ToUpper(entry.Name())
		if entry.IsDir() || (!strings.HasPrefix(name, "LICENSE") && !strings.HasPrefix(name, "LICENCE") && !strings.HasPrefix(name, "COPYING") && !strings.HasPrefix(name, "NOTICE")) {
			continue
		}
		if err := t.read(path.Join("licenses", "modules", module, entry.Name()), filepath.Join(dir, entry.Name())); err != nil {
			return err
		}
		found++
	}
	if found == 0 {
		return fmt.Errorf("module %s has no licence in %s", module, dir)
	}
	return nil
}
