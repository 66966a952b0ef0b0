// SPDX-License-Identifier: Apache-2.0

// Package chart_test has the tests of the Helm chart, the plain manifests and the kustomize base: what they render to, whether the API
// knows it, and whether the programs take what they are told.
package chart_test

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/releaseutil"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// write has golden tests write what they would compare with.
var write = flag.Bool("write", false, "write golden files, manifests and the chart's copies anew")

const (
	top       = "../.."
	chartDir  = top + "/deployment/helm/gpumeter"
	namespace = "gpumeter"
	release   = "gpumeter"
	oldest    = "1.28.15"
	newest    = "1.37.2"
)

// rendering is what helm makes of the chart and some values.
type rendering struct {
	// text are the manifests in the order in which helm would apply them, without empty ones.
	text    string
	notes   string
	objects []unstructured.Unstructured
}

// setting is where the chart is rendered.
type setting struct {
	release, namespace string
	// kubernetes is the cluster's version, the newest if it is empty.
	kubernetes string
	// apis are what the cluster has beside Kubernetes' own.
	apis []string
	// cluster answers lookups, nil for nobody.
	cluster engine.ClientProvider
}

func openChart(t testing.TB) *chart.Chart {
	t.Helper()
	c, err := loader.Load(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func valuesOf(t testing.TB, text string) map[string]any {
	t.Helper()
	values, err := chartutil.ReadValues([]byte(text))
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return values
}

// renderIn renders the chart, as helm does: values are merged with the chart's and held to its schema.
func renderIn(t testing.TB, s setting, values map[string]any) (rendering, error) {
	t.Helper()
	c := openChart(t)
	version, err := chartutil.ParseKubeVersion("v" + cmp.Or(s.kubernetes, newest))
	if err != nil {
		t.Fatal(err)
	}
	caps := chartutil.DefaultCapabilities.Copy()
	caps.KubeVersion, caps.APIVersions = *version, append(caps.APIVersions, s.apis...)
	options := chartutil.ReleaseOptions{Name: s.release, Namespace: s.namespace, Revision: 1, IsInstall: true}
	all, err := chartutil.ToRenderValues(c, values, options, caps)
	if err != nil {
		return rendering{}, err
	}
	var files map[string]string
	if s.cluster != nil {
		files, err = engine.RenderWithClientProvider(c, all, s.cluster)
	} else {
		files, err = engine.Render(c, all)
	}
	if err != nil {
		return rendering{}, err
	}
	return sortedRendering(t, files)
}

func sortedRendering(t testing.TB, files map[string]string) (rendering, error) {
	t.Helper()
	var r rendering
	for name, text := range files {
		if strings.HasSuffix(name, "NOTES.txt") {
			r.notes = text
			delete(files, name)
		}
	}
	_, manifests, err := releaseutil.SortManifests(files, nil, releaseutil.InstallOrder)
	if err != nil {
		return rendering{}, fmt.Errorf("what was rendered is no YAML: %w", err)
	}
	var text strings.Builder
	for _, m := range manifests {
		text.WriteString("---\n" + strings.TrimSpace(m.Content) + "\n")
	}
	r.text = text.String()
	r.objects = parse(t, r.text)
	return r, nil
}

func render(t testing.TB, values map[string]any) rendering {
	t.Helper()
	r, err := renderIn(t, setting{release: release, namespace: namespace}, values)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// parse reads manifests; a key that is there twice is an error.
func parse(t testing.TB, text string) []unstructured.Unstructured {
	t.Helper()
	var out []unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096)
	for {
		var o unstructured.Unstructured
		err := decoder.Decode(&o)
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		if len(o.Object) > 0 {
			out = append(out, o)
		}
	}
}

// all are the objects of a kind.
func (r rendering) all(kind string) []unstructured.Unstructured {
	var out []unstructured.Unstructured
	for _, o := range r.objects {
		if o.GetKind() == kind {
			out = append(out, o)
		}
	}
	return out
}

// one is the only object of a kind.
func (r rendering) one(t testing.TB, kind string) unstructured.Unstructured {
	t.Helper()
	all := r.all(kind)
	if len(all) != 1 {
		t.Fatalf("%d objects of kind %s, want one", len(all), kind)
	}
	return all[0]
}

// at is a field of an object, nil where it is not there.
func at(o any, path ...string) any {
	for _, key := range path {
		m, ok := o.(map[string]any)
		if !ok {
			return nil
		}
		o = m[key]
	}
	return o
}

func mapAt(o any, path ...string) map[string]any {
	m, _ := at(o, path...).(map[string]any)
	return m
}

func listAt(o any, path ...string) []any {
	l, _ := at(o, path...).([]any)
	return l
}

func stringAt(o any, path ...string) string {
	s, _ := at(o, path...).(string)
	return s
}

// pod is the DaemonSet's pod.
func (r rendering) pod(t testing.TB) map[string]any {
	t.Helper()
	return mapAt(r.one(t, "DaemonSet").Object, "spec", "template")
}

// containers are the pod's, by name.
func (r rendering) containers(t testing.TB) map[string]map[string]any {
	t.Helper()
	out := map[string]map[string]any{}
	for _, c := range listAt(r.pod(t), "spec", "containers") {
		out[stringAt(c, "name")] = c.(map[string]any)
	}
	return out
}

func args(container map[string]any) []string {
	var out []string
	for _, a := range listAt(container, "args") {
		out = append(out, a.(string))
	}
	return out
}

// golden holds text to a file, or writes it.
func golden(t *testing.T, file, text string) {
	t.Helper()
	if *write {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v; `make update` writes it", err)
	}
	if !bytes.Equal(want, []byte(text)) {
		t.Errorf("%s is not what comes out now; look at what `make update` changes in it:\n%s", file, firstDifference(string(want), text))
	}
}

func firstDifference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range max(len(w), len(g)) {
		line := func(l []string) string {
			if i < len(l) {
				return l[i]
			}
			return "(the end)"
		}
		if line(w) != line(g) {
			return fmt.Sprintf("line %d was %q, is %q", i+1, line(w), line(g))
		}
	}
	return ""
}
