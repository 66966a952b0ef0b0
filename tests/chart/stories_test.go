// SPDX-License-Identifier: Apache-2.0

package chart_test

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/yannh/kubeconform/pkg/validator"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
)

// story is a file of values with what is told by it.
type story struct {
	name   string
	text   string
	values map[string]any
}

func stories(t testing.TB) []story {
	t.Helper()
	files, err := filepath.Glob("testdata/values/*.yaml")
	if err != nil || len(files) < 10 {
		t.Fatal(len(files), err)
	}
	var out []story
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, story{strings.TrimSuffix(filepath.Base(file), ".yaml"), string(data), valuesOf(t, string(data))})
	}
	return out
}

// eachStory runs a test for the rendering of every story.
func eachStory(t *testing.T, test func(t *testing.T, s story, r rendering)) {
	t.Helper()
	for _, s := range stories(t) {
		t.Run(s.name, func(t *testing.T) { test(t, s, render(t, s.values)) })
	}
}

func TestTheRendersAreWhatTheyWereGolden(t *testing.T) {
	eachStory(t, func(t *testing.T, s story, r rendering) {
		golden(t, filepath.Join("testdata/golden", s.name+".yaml"), abridged(r.text))
		golden(t, filepath.Join("testdata/golden", s.name+".notes.txt"), r.notes)
	})
}

// abridged leaves out what other tests hold to its source: dashboards and rules.
func abridged(text string) string {
	docs := strings.Split(text, "---\n")
	for i, doc := range docs {
		for _, cut := range []struct{ kind, key string }{{"kind: PrometheusRule\n", "\nspec:\n"}, {"grafana_dashboard:", "\ndata:\n"}} {
			if head, _, found := strings.Cut(doc, cut.key); found && strings.Contains(head, cut.kind) {
				docs[i] = head + cut.key + "  # left out\n"
			}
		}
	}
	return strings.Join(docs, "---\n")
}

// conforms holds manifests to the schemas of the API, strictly.
func conforms(t testing.TB, version, text string) {
	t.Helper()
	v, err := validator.New([]string{
		"testdata/schemas/{{ .NormalizedKubernetesVersion }}/{{ .ResourceKind }}{{ .KindSuffix }}.json",
		"testdata/schemas/prometheus-operator/{{ .ResourceKind }}{{ .KindSuffix }}.json",
	}, validator.Opts{Strict: true, KubernetesVersion: version})
	if err != nil {
		t.Fatal(err)
	}
	valid := 0
	for _, result := range v.Validate("rendered", io.NopCloser(strings.NewReader(text))) {
		switch result.Status {
		case validator.Valid:
			valid++
		case validator.Empty:
		default:
			sig, _ := result.Resource.Signature()
			t.Errorf("Kubernetes %s: %+v: %v %v", version, sig, result.Err, result.ValidationErrors)
		}
	}
	if valid == 0 {
		t.Errorf("Kubernetes %s: nothing was looked at", version)
	}
}

func TestTheAPIKnowsEveryKeyOfEveryRender(t *testing.T) {
	for _, version := range []string{oldest, newest} {
		for _, s := range stories(t) {
			t.Run(version+"/"+s.name, func(t *testing.T) {
				r, err := renderIn(t, setting{release: release, namespace: namespace, kubernetes: version}, s.values)
				if err != nil {
					t.Fatal(err)
				}
				conforms(t, version, r.text)
			})
		}
	}
}

func TestAKeyThatTheAPIDoesNotKnowIsSeen(t *testing.T) {
	r := render(t, nil)
	for _, planted := range []struct{ old, new string }{
		{"enableServiceLinks: false", "enableServiceLink: false"},
		{"terminationGracePeriodSeconds: 30", "terminationGracePeriodSeconds: soon"},
		{"apiVersion: apps/v1", "apiVersion: apps/v2"},
	} {
		text := strings.Replace(r.text, planted.old, planted.new, 1)
		if text == r.text {
			t.Fatalf("no %q to break", planted.old)
		}
		seen := &recorder{TB: t}
		conforms(seen, newest, text)
		if !seen.failed {
			t.Errorf("%q passes", planted.new)
		}
	}
}

// recorder is a test whose failure is only noted.
type recorder struct {
	testing.TB
	failed bool
}

func (r *recorder) Errorf(string, ...any) { r.failed = true }

func TestHelmLintHasNothingToSay(t *testing.T) {
	version, err := chartutil.ParseKubeVersion("v" + newest)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range stories(t) {
		t.Run(s.name, func(t *testing.T) {
			for _, m := range lint.AllWithKubeVersion(chartDir, s.values, namespace, version).Messages {
				if m.Severity > support.InfoSev {
					t.Error(m)
				}
			}
		})
	}
}
