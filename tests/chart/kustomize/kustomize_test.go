// SPDX-License-Identifier: Apache-2.0

// Package kustomize_test holds the kustomize base and its overlays to what the chart renders. It is a program of its own: kustomize
// brings Go's plugins, and with them in it a test program cannot leave NVML's functions to be found later.
package kustomize_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

func TestTheOverlaysAreWhatTheChartRenders(t *testing.T) {
	for folder, golden := range map[string]string{
		"base": "defaults", "overlays/exporter-only": "exporter-only", "overlays/sim": "sim",
	} {
		t.Run(folder, func(t *testing.T) {
			resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), "../../../deployment/kustomize/"+folder)
			if err != nil {
				t.Fatal(err)
			}
			got, err := resources.AsYaml()
			if err != nil {
				t.Fatal(err)
			}
			want, err := os.ReadFile("../testdata/golden/" + golden + ".yaml")
			if err != nil {
				t.Fatal(err)
			}
			objects := unordered(t, got)
			standard := "privileged"
			if folder == "overlays/sim" {
				standard = "restricted"
			}
			if !strings.Contains(fmt.Sprint(objects["Namespace/gpumeter"]), "pod-security.kubernetes.io/enforce:"+standard) {
				t.Errorf("the namespace does not permit what is %s: %v", standard, objects["Namespace/gpumeter"])
			}
			delete(objects, "Namespace/gpumeter")
			if diff := cmp.Diff(unordered(t, want), objects); diff != "" {
				t.Errorf("the chart's (-) and kustomize's (+) differ:\n%s", diff)
			}
		})
	}
}

// unordered reads objects in a form in which order is none of the matter, without the labels that helm alone has.
func unordered(t *testing.T, text []byte) map[string]any {
	t.Helper()
	out := map[string]any{}
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		var o map[string]any
		if err := decoder.Decode(&o); errors.Is(err, io.EOF) {
			return out
		} else if err != nil {
			t.Fatal(err)
		}
		if len(o) == 0 {
			continue
		}
		normalise(o)
		out[o["kind"].(string)+"/"+o["metadata"].(map[string]any)["name"].(string)] = o
	}
}

func normalise(value any) {
	switch v := value.(type) {
	case map[string]any:
		delete(v, "helm.sh/chart")
		delete(v, "app.kubernetes.io/managed-by")
		for _, field := range v {
			normalise(field)
		}
	case []any:
		slices.SortFunc(v, func(a, b any) int { return strings.Compare(name(a), name(b)) })
		for _, element := range v {
			normalise(element)
		}
	}
}

// name is what an element of a list is told by, empty where the list's order counts.
func name(element any) string {
	m, _ := element.(map[string]any)
	s, _ := m["name"].(string)
	path, _ := m["mountPath"].(string)
	return s + path
}
