// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// bound are the methods that the binding has for the library and what is in it.
func bound() map[string]bool {
	names := make(map[string]bool)
	for _, of := range []reflect.Type{
		reflect.TypeFor[nvml.Interface](), reflect.TypeFor[nvml.Device](), reflect.TypeFor[nvml.EventSet](),
		reflect.TypeFor[nvml.GpmSample](), reflect.TypeFor[nvml.GpuInstance](),
	} {
		for method := range of.Methods() {
			names[method.Name] = true
		}
	}
	return names
}

// spoken are the binding's methods that the package speaks of.
func spoken(t *testing.T) map[string]bool {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	names, all := make(map[string]bool), bound()
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		tree, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(tree, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok && all[s.Sel.Name] {
				names[s.Sel.Name] = true
			}
			return true
		})
	}
	return names
}

// A meter looks. It turns no monitor on, resets no counter and changes no mode.
func TestNothingOfAGPUIsChanged(t *testing.T) {
	looks := regexp.MustCompile(`^(Device|System)?Get[A-Z]|^Init$|^Shutdown$|` +
		// Of the calling process only: its ears, and the memory for its samples.
		`^EventSetCreate$|^RegisterEvents$|^Wait$|^Free$|^GpmSampleAlloc$|^Get$|^MigGet$|^GpmMetricsGet$|^GpmQueryDeviceSupport$|` +
		// It compares checksums.
		`^ValidateInforom$`)
	names := spoken(t)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if !looks.MatchString(name) {
			t.Errorf("the package calls %s", name)
		}
	}
	if len(names) < 60 || !names["GetPowerUsage"] || !names["MigGet"] {
		t.Errorf("only %d calls were found", len(names))
	}
}
