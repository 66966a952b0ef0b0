// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// stage is what a stage of the Dockerfile says of the image that it ends in.
type stage struct {
	from                        string
	user, folder, entrypoint    string
	ports, env, copies, command []string
	labels                      map[string]string
}

// stages reads the Dockerfile by the names of its stages; the last one has none.
func stages(text string) map[string]*stage {
	out := map[string]*stage{}
	var now *stage
	text = strings.ReplaceAll(text, "\\\n", " ")
	quoted := regexp.MustCompile(`([\w.]+)=("[^"]*"|\S+)`)
	for line := range strings.Lines(text) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		rest = strings.TrimSpace(rest)
		switch word {
		case "FROM":
			fields := strings.Fields(rest)
			name := ""
			if i := slices.Index(fields, "AS"); i > 0 {
				name = fields[i+1]
			}
			now = &stage{from: fields[0], labels: map[string]string{}}
			if above, ok := out[fields[0]]; ok {
				inherited := *above
				inherited.from, inherited.copies = fields[0], slices.Clone(above.copies)
				now = &inherited
			}
			out[name] = now
		case "USER":
			now.user = rest
		case "WORKDIR":
			now.folder = rest
		case "ENTRYPOINT":
			now.entrypoint = rest
		case "EXPOSE":
			now.ports = append(now.ports, rest)
		case "ENV":
			now.env = append(now.env, strings.Fields(rest)...)
		case "COPY":
			now.copies = append(now.copies, rest)
		case "CMD":
			now.command = append(now.command, rest)
		case "LABEL":
			for _, m := range quoted.FindAllStringSubmatch(rest, -1) {
				now.labels[m[1]] = strings.Trim(m[2], `"`)
			}
		}
	}
	return out
}

func TestTheDockerfileMakesTheSameImage(t *testing.T) {
	text, err := os.ReadFile("../../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	all := stages(string(text))
	for name, o := range map[string]options{"gpumeter": {}, operator: {variant: operator}} {
		got := all[name]
		if got == nil {
			t.Fatalf("no stage %s", name)
		}
		o.version, o.revision = "${VERSION}", "${REVISION}"
		want := config(o)
		want.Labels["org.opencontainers.image.created"] = "${CREATED}"
		sameConfig(t, name, got, want)
		for _, c := range got.copies {
			if !strings.Contains(c, "--from=build ") {
				t.Errorf("stage %s copies %q: files of the image belong into deployment/image", name, c)
			}
		}
	}
	if all["gpumeter"].from != "scratch" || all[operator].from != "gpumeter" || all[""].from != "gpumeter" {
		t.Error("the stages do not build on one another")
	}
}

func sameConfig(t *testing.T, name string, got *stage, want v1.Config) {
	t.Helper()
	if got.user != want.User || got.folder != want.WorkingDir || got.entrypoint != `["`+strings.Join(want.Entrypoint, `", "`)+`"]` || len(got.command) != 0 {
		t.Errorf("stage %s starts %s %s as %s in %s, want %q as %s in %s", name, got.entrypoint, got.command, got.user, got.folder, want.Entrypoint, want.User, want.WorkingDir)
	}
	if !slices.Equal(got.env, want.Env) {
		t.Errorf("stage %s has the environment %q, want %q", name, got.env, want.Env)
	}
	for _, port := range got.ports {
		if _, ok := want.ExposedPorts[port+"/tcp"]; !ok || len(got.ports) != len(want.ExposedPorts) {
			t.Errorf("stage %s exposes %q, want %v", name, got.ports, want.ExposedPorts)
		}
	}
	if !maps.Equal(got.labels, want.Labels) {
		t.Errorf("stage %s has the labels\n%q, want\n%q", name, got.labels, want.Labels)
	}
}

func TestALabelSaysWhenTheImageWasCreated(t *testing.T) {
	if got := labels(options{created: 1796000000})["org.opencontainers.image.created"]; got != time.Unix(1796000000, 0).UTC().Format(time.RFC3339) {
		t.Error(got)
	}
}
