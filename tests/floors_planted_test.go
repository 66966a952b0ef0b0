// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

// TestFloorsSeesWhatIsWrong plants one wrong at a time in a small house: a check
// that was never seen red may check nothing.
func TestFloorsSeesWhatIsWrong(t *testing.T) {
	tests := []struct {
		name   string
		file   string
		source string
		want   []string // "line rule"
	}{
		{"up to an exit", "pkg/kubelet/x.go", "package kubelet\n\nimport _ \"github.com/gpumeter/gpumeter/pkg/exporter\"\n", []string{"3 " + ruleUp}},
		{"up from the ground", "pkg/gpu/x.go", "package gpu\nimport _ \"github.com/gpumeter/gpumeter/pkg/meter\"\n", []string{"2 " + ruleUp}},
		{"up to cmd", "pkg/exporter/x.go", "package exporter\nimport _ \"github.com/gpumeter/gpumeter/cmd/gpumeter-exporter/app\"\n", []string{"2 " + ruleUp}},
		{"up in a test", "pkg/gpu/x_test.go", "package gpu\nimport _ \"github.com/gpumeter/gpumeter/pkg/sharing\"\n", []string{"2 " + ruleUp}},
		{"up behind a build tag", "pkg/gpu/x.go", "//go:build windows\n\npackage gpu\nimport _ \"github.com/gpumeter/gpumeter/pkg/meter\"\n", []string{"4 " + ruleUp}},
		{"sideways among entrances", "pkg/kubelet/x.go", "package kubelet\nimport _ \"github.com/gpumeter/gpumeter/pkg/dcgm\"\n", []string{"2 " + ruleSideways}},
		{"sideways to the meter", "pkg/dcgm/x.go", "package dcgm\nimport _ \"github.com/gpumeter/gpumeter/pkg/meter\"\n", []string{"2 " + ruleSideways}},
		{"sideways among exits", "pkg/report/x.go", "package report\nimport _ \"github.com/gpumeter/gpumeter/pkg/healthstream\"\n", []string{"2 " + ruleSideways}},
		{"down, but not planned", "pkg/report/x.go", "package report\nimport _ \"github.com/gpumeter/gpumeter/pkg/meter\"\n", []string{"2 " + ruleOurs}},
		{"an exit reads an entrance", "pkg/exporter/x.go", "package exporter\nimport _ \"github.com/gpumeter/gpumeter/pkg/kubelet\"\n", []string{"2 " + ruleOurs}},
		{"an exit reads the shipped files", "pkg/exporter/x.go", "package exporter\nimport _ \"github.com/gpumeter/gpumeter/etc\"\n", []string{"2 " + ruleOurs}},
		{"foreign code on the ground", "pkg/gpu/x.go", "package gpu\nimport \"google.golang.org/grpc\"\n", []string{"2 " + ruleModule}},
		{"foreign code in the wrong room", "pkg/exporter/x.go", "package exporter\nimport \"k8s.io/client-go/kubernetes\"\n", []string{"2 " + ruleModule}},
		{"foreign code that only looks alike", "pkg/kubelet/x.go", "package kubelet\nimport \"google.golang.org/grpcx\"\n", []string{"2 " + ruleModule}},
		{"foreign code in a test", "pkg/gpu/x_test.go", "package gpu\nimport \"github.com/stretchr/testify/assert\"\n", []string{"2 " + ruleModule}},
		{"test code in a program", "pkg/gpu/x.go", "package gpu\nimport \"github.com/google/go-cmp/cmp\"\n", []string{"2 " + ruleModule}},
		{"cgo in the wrong room", "pkg/nvml/x.go", "package nvml\nimport \"C\"\n", []string{"2 " + ruleModule}},
		{"a package nobody planned", "pkg/utils/x.go", "// Help.\npackage utils\n", []string{"2 " + rulePlan}},
		{"a package in a planned one", "pkg/gpu/deep/x.go", "package deep\n", []string{"1 " + rulePlan}},
		{"an import of what nobody planned", "pkg/meter/x.go", "package meter\nimport _ \"github.com/gpumeter/gpumeter/pkg/utils\"\n", []string{"2 " + rulePlan}},
		{"os.Exit", "pkg/meter/x.go", "package meter\nimport \"os\"\nfunc f() { os.Exit(1) }\n", []string{"3 " + ruleExit}},
		{"os.Exit under another name", "pkg/meter/x.go", "package meter\nimport sys \"os\"\nvar exit = sys.Exit\n", []string{"3 " + ruleExit}},
		{"syscall.Exit", "pkg/meter/x.go", "package meter\nimport \"syscall\"\nfunc f() { syscall.Exit(1) }\n", []string{"3 " + ruleExit}},
		{"log.Fatalf", "pkg/sim/x.go", "package sim\nimport \"log\"\nfunc f() { log.Fatalf(\"%d\", 1) }\n", []string{"3 " + ruleExit}},
		{"a logger's Fatal", "pkg/sim/x.go", "package sim\nfunc f(l interface{ Fatal(...any) }) { l.Fatal() }\n", []string{"2 " + ruleExit}},
		{"log.Panicln", "pkg/sim/x.go", "package sim\nimport \"log\"\nfunc f() { log.Panicln() }\n", []string{"3 " + ruleExit}},
		{"panic", "etc/x.go", "package etc\nfunc f() {\n\tpanic(\"no\")\n}\n", []string{"3 " + ruleExit}},
		{"init", "pkg/gpu/x.go", "package gpu\nfunc init() {}\n", []string{"2 " + ruleInit}},
		{"init in cmd", "cmd/gpumeter/x.go", "package main\nfunc init() { println() }\n", []string{"2 " + ruleInit}},
		{"init in a test", "pkg/gpu/x_test.go", "package gpu\nfunc init() {}\n", []string{"2 " + ruleInit}},
		{"testing", "pkg/sharing/x.go", "package sharing\nimport \"testing\"\n", []string{"2 " + ruleTesting}},
		{"testing in cmd", "cmd/gpumeter/x.go", "package main\nimport \"testing/fstest\"\n", []string{"2 " + ruleTesting}},
		{"httptest", "pkg/sim/x.go", "package sim\nimport \"net/http/httptest\"\n", []string{"2 " + ruleTesting}},
		{"the pretend node in an exit", "pkg/exporter/x.go", "package exporter\nimport _ \"github.com/gpumeter/gpumeter/pkg/sim\"\n", []string{"2 " + ruleSim}},
		{"the pretend node in a package's test", "pkg/meter/x_test.go", "package meter\nimport _ \"github.com/gpumeter/gpumeter/pkg/sim\"\n", []string{"2 " + ruleSim}},
		{"a test suite in a program", "pkg/sharing/x.go", "package sharing\nimport _ \"github.com/gpumeter/gpumeter/pkg/gpu/gputest\"\n", []string{"2 " + ruleSuite}},
		{"a test suite in a program of cmd", "cmd/gpumeter/x.go", "package main\nimport _ \"github.com/gpumeter/gpumeter/pkg/gpu/gputest\"\n", []string{"2 " + ruleSuite}},
		{"a test suite in a pretend machine", "tests/dcgmsim/x.go", "package dcgmsim\nimport _ \"github.com/gpumeter/gpumeter/pkg/gpu/gputest\"\n", []string{"2 " + ruleSuite}},
		{"a test suite reaches up", "pkg/gpu/gputest/x.go", "package gputest\nimport _ \"github.com/gpumeter/gpumeter/pkg/sharing\"\n", []string{"2 " + ruleUp}},
		{"a test suite knows a machine", "pkg/gpu/gputest/x.go", "package gputest\nimport _ \"github.com/gpumeter/gpumeter/tests/dcgmsim\"\n", []string{"2 " + ruleOurs}},
		{"a test suite's own test knows a machine", "pkg/gpu/gputest/x_test.go", "package gputest\nimport _ \"github.com/gpumeter/gpumeter/pkg/sim\"\n", []string{"2 " + ruleSim}},
		{"foreign code in a test suite", "pkg/gpu/gputest/x.go", "package gputest\nimport \"google.golang.org/grpc\"\n", []string{"2 " + ruleModule}},
		{"init in a test suite", "pkg/gpu/gputest/x.go", "package gputest\nfunc init() {}\n", []string{"2 " + ruleInit}},
		{"the ground imports its suite", "pkg/gpu/x.go", "package gpu\nimport _ \"github.com/gpumeter/gpumeter/pkg/gpu/gputest\"\n", []string{"2 " + ruleSuite}},
		{"a pretend libdcgm in the binding", "pkg/dcgm/x.go", "package dcgm\nimport _ \"github.com/gpumeter/gpumeter/tests/dcgmsim\"\n", []string{"2 " + rulePretend}},
		{"a pretend libdcgm in cmd", "cmd/gpumeter/x.go", "package main\nimport _ \"github.com/gpumeter/gpumeter/tests/dcgmsim\"\n", []string{"2 " + rulePretend}},
		{"a pretend libdcgm knows what it stands for", "tests/dcgmsim/x.go", "package dcgmsim\nimport _ \"github.com/gpumeter/gpumeter/pkg/dcgm\"\n", []string{"2 " + ruleUp}},
		{"testing in a pretend libdcgm", "tests/dcgmsim/x.go", "package dcgmsim\nimport \"testing\"\n", []string{"2 " + ruleTesting}},
		{"cgo in a pretend libdcgm", "tests/dcgmsim/x.go", "package dcgmsim\nimport \"C\"\n", []string{"2 " + ruleModule}},
		{"a test's module in the source beside it", "pkg/nvml/x.go", "package nvml\nimport \"github.com/google/uuid\"\n", []string{"2 " + ruleModule}},
		{"a test's module in another test", "pkg/dcgm/x_test.go", "package dcgm\nimport \"github.com/google/uuid\"\n", []string{"2 " + ruleModule}},
		{"NVML in the DCGM source", "pkg/dcgm/x.go", "package dcgm\nimport \"github.com/NVIDIA/go-nvml/pkg/nvml\"\n", []string{"2 " + ruleModule}},
		{"YAML in a program", "cmd/gpumeter-exporter/x.go", "package main\nimport \"go.yaml.in/yaml/v3\"\n", []string{"2 " + ruleModule}},
		{"a file that is not Go", "pkg/gpu/x.go", "package\n", []string{"1 " + ruleUnparsed}},
		{"two wrongs", "pkg/gpu/x.go", "package gpu\nimport \"testing\"\nfunc init() { panic(1) }\n", []string{"2 " + ruleTesting, "3 " + ruleInit, "3 " + ruleExit}},

		{"right: a test suite is test code", "pkg/gpu/gputest/x.go", "package gputest\nimport \"testing\"\nimport \"github.com/google/go-cmp/cmp\"\nimport _ \"github.com/gpumeter/gpumeter/pkg/gpu\"\nfunc Run(t *testing.T) { t.Fatal(cmp.Diff(1, 2)) }\n", nil},
		{"right: a test runs a suite", "pkg/nvml/x_test.go", "package nvml\nimport _ \"github.com/gpumeter/gpumeter/pkg/gpu/gputest\"\n", nil},
		{"right: a test on the ground runs a suite", "pkg/gpu/x_test.go", "package gpu_test\nimport _ \"github.com/gpumeter/gpumeter/pkg/gpu/gputest\"\n", nil},
		{"right: a test drives a pretend libdcgm", "pkg/dcgm/x_test.go", "package dcgm\nimport _ \"github.com/gpumeter/gpumeter/tests/dcgmsim\"\n", nil},
		{"right: cgo binds libdcgm", "pkg/dcgm/x.go", "package dcgm\nimport \"C\"\n", nil},
		{"right: a test's own module", "pkg/nvml/x_test.go", "package nvml\nimport \"github.com/google/uuid\"\nimport \"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh100\"\n", nil},
		{"right: the wiring reads a list in YAML", "cmd/gpumeter-exporter/app/x.go", "package app\nimport \"go.yaml.in/yaml/v3\"\n", nil},
		{"right: an exit reads the XID table", "pkg/exporter/x.go", "package exporter\nimport _ \"github.com/gpumeter/gpumeter/pkg/health\"\n", nil},
		{"right: down", "pkg/exporter/x.go", "package exporter\nimport _ \"github.com/gpumeter/gpumeter/pkg/meter\"\n", nil},
		{"right: cmd wires all", "cmd/gpumeter/x.go", "package main\nimport _ \"github.com/gpumeter/gpumeter/pkg/sim\"\nimport _ \"github.com/gpumeter/gpumeter/cmd/gpumeter-exporter/app\"\nimport \"os\"\nfunc main() { os.Exit(0) }\n", nil},
		{"right: a package of an allowed module", "pkg/kubelet/x.go", "package kubelet\nimport \"google.golang.org/grpc/credentials/insecure\"\n", nil},
		{"right: a module whose major version is part of its name", "cmd/gpumeter/x.go", "package main\nimport \"github.com/urfave/cli/v3\"\n", nil},
		{"right: test tools in a test", "pkg/gpu/x_test.go", "package gpu_test\nimport \"testing\"\nimport \"pgregory.net/rapid\"\nimport _ \"github.com/gpumeter/gpumeter/pkg/gpu\"\nfunc f(t *testing.T) { t.Fatal(); panic(1) }\n", nil},
		{"right: the shipped files in a test", "pkg/exporter/x_test.go", "package exporter\nimport _ \"github.com/gpumeter/gpumeter/etc\"\n", nil},
		{"right: a method called init", "pkg/gpu/x.go", "package gpu\ntype t struct{}\nfunc (t) init() {}\nfunc (t) Exit() {}\n", nil},
		{"right: a generator is a program", "pkg/gpu/x.go", "// X.\n\n//go:build ignore\n\npackage main\nimport \"os\"\nfunc main() { os.Exit(1) }\n", nil},
		{"right: test data is not code", "pkg/gpu/testdata/x.go", "package\n", nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			tree := fstest.MapFS{
				"pkg/meter/meter.go": {Data: []byte("package meter\nimport _ \"github.com/gpumeter/gpumeter/pkg/gpu\"\n")},
				test.file:            {Data: []byte(test.source)},
			}
			h, err := inspect(tree, plan(), inTests())
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, v := range h.found {
				if v.file != test.file {
					t.Errorf("a violation in %s, want it in %s", v.file, test.file)
				}
				got = append(got, fmt.Sprintf("%d %s", v.line, v.rule))
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("violations (-want +got):\n%s", diff)
			}
		})
	}
}

// TestFloorsSeesANestedModule: what has its own go.mod is a house of its own.
func TestFloorsSeesANestedModule(t *testing.T) {
	tree := fstest.MapFS{
		"go.mod":             {Data: []byte("module " + module + "\n")},
		"pkg/gpu/gpu.go":     {Data: []byte("package gpu\n")},
		"tests/parse/go.mod": {Data: []byte("module parse\n")},
		"tests/parse/x.go":   {Data: []byte("package parse\nimport \"github.com/prometheus/prometheus/model/textparse\"\n")},
	}
	h, err := inspect(tree, plan(), inTests())
	if err != nil {
		t.Fatal(err)
	}
	if len(h.found) != 0 || h.files != 1 {
		t.Errorf("saw %d files and %v, want pkg/gpu/gpu.go alone and nothing wrong", h.files, h.found)
	}
}

// TestFloorsOfThePlan: the plan cannot allow what the floors forbid.
func TestFloorsOfThePlan(t *testing.T) {
	bad := map[string]room{
		"pkg/a": {floor: 1, ours: []string{"pkg/b"}},
		"pkg/b": {floor: 1, ours: []string{"pkg/gone"}},

		"pkg/a/suite": {floor: 1, ours: []string{"pkg/a", "pkg/b/suite"}, suite: true},
		"pkg/b/suite": {floor: 1, suite: true},
	}
	h, err := inspect(fstest.MapFS{}, bad, room{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, v := range h.found {
		got = append(got, v.what)
	}
	slices.Sort(got)
	want := []string{
		"pkg/a may import pkg/b", "pkg/a/suite may import pkg/b/suite", "pkg/b may import pkg/gone",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("unplanned (-want +got):\n%s", diff)
	}
}

// TestFloorsAreDescribed: the page that people read has every room of the plan.
func TestFloorsAreDescribed(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(moduleRoot(t), "docs", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	for name := range plan() {
		if !strings.Contains(string(page), "`"+name+"`") {
			t.Errorf("docs/architecture.md does not describe `%s`", name)
		}
	}
}
