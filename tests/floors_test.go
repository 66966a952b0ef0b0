// SPDX-License-Identifier: Apache-2.0

// Package tests has what belongs to no single package: the plan of the house and
// the tests of the finished programs.
package tests

import (
	"errors"
	"fmt"
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/gpumeter/gpumeter"

// A room is one package's place in the house.
type room struct {
	// floor: imports go down only, never sideways and never up.
	floor int
	// ours are the packages of this module it may import; anyBelow for all lower ones.
	ours []string
	// modules are the foreign modules or packages that may be used here; "C" is cgo.
	modules []string
	// testModules are those that only test files may use, beside what any test file may.
	testModules []string
	// pretend: it stands for a machine, so only test files and what lies in tests import it.
	pretend bool
	// generated: what protoc-gen-go writes there registers itself by init(), which is not ours to change.
	generated bool
	// suite: it is test code for several packages' tests, and may do what a test file may;
	// only test files import it. It stands beside what it tests.
	suite bool
}

const (
	anyBelow  = "*"
	floorCmd  = 5
	floorRoof = 6
)

// plan is the house. docs/architecture.md says the same to people, with the reasons.
func plan() map[string]room {
	cmdModules := []string{
		"github.com/oklog/run", "github.com/prometheus/client_golang", "github.com/prometheus/common",
		"github.com/prometheus/exporter-toolkit", "github.com/urfave/cli/v3", "golang.org/x/sys",
	}
	kubeletModules := []string{"google.golang.org/grpc", "google.golang.org/protobuf", "k8s.io/kubelet"}
	return map[string]room{
		"etc":               {floor: 0},
		"pkg/gpu":           {floor: 0},
		"pkg/gpu/gputest":   {floor: 0, ours: []string{"pkg/gpu"}, suite: true},
		"tests/dcgmsim":     {floor: 0, pretend: true},
		"tests/fakekubelet": {floor: 0, pretend: true, modules: kubeletModules},

		"pkg/health":  {floor: 1, ours: []string{"pkg/gpu"}},
		"pkg/sharing": {floor: 1, ours: []string{"pkg/gpu"}},

		"pkg/ledger":  {floor: 2, ours: []string{"pkg/gpu", "pkg/health", "pkg/sharing"}, modules: []string{"go.etcd.io/bbolt"}},
		"pkg/prices":  {floor: 2, modules: []string{"github.com/shopspring/decimal", "go.yaml.in/yaml/v3"}},
		"pkg/xidfile": {floor: 2, ours: []string{"pkg/health"}, modules: []string{"go.yaml.in/yaml/v3"}},

		"pkg/bill": {
			floor: 3, ours: []string{"pkg/gpu", "pkg/ledger", "pkg/prices", "pkg/sharing"},
			modules: []string{"github.com/shopspring/decimal"},
		},
		"pkg/promusage": {
			floor: 3, ours: []string{"pkg/gpu", "pkg/ledger", "pkg/sharing"},
			modules: []string{"github.com/prometheus/client_golang/api", "github.com/prometheus/common"},
		},

		"pkg/cluster": {
			floor: 3, ours: []string{"pkg/gpu", "pkg/sharing"},
			modules: []string{"k8s.io/api", "k8s.io/apimachinery", "k8s.io/client-go"},
		},
		"pkg/dcgm":                  {floor: 3, ours: []string{"pkg/gpu", "pkg/health"}, modules: []string{"C"}},
		"pkg/healthstream/healthv1": {floor: 3, generated: true, modules: []string{"google.golang.org/grpc", "google.golang.org/protobuf"}},
		"pkg/hpc":                   {floor: 3, ours: []string{"pkg/gpu", "pkg/sharing"}},
		"pkg/kubelet":               {floor: 3, ours: []string{"pkg/gpu", "pkg/sharing"}, modules: kubeletModules},
		"pkg/meter":                 {floor: 3, ours: []string{"pkg/gpu", "pkg/health", "pkg/ledger", "pkg/sharing"}},
		"pkg/nvml": {
			floor: 3, ours: []string{"pkg/gpu", "pkg/health"},
			modules: []string{"github.com/NVIDIA/go-nvml"}, testModules: []string{"github.com/google/uuid"},
		},
		"pkg/sim": {
			floor: 3, ours: []string{"pkg/gpu", "pkg/health", "pkg/sharing"},
			modules: append([]string{"go.yaml.in/yaml/v3"}, kubeletModules...),
		},

		"pkg/cdi": {
			floor: 3, ours: []string{"pkg/gpu"},
			modules: []string{
				"github.com/NVIDIA/go-nvlib", "github.com/NVIDIA/go-nvml", "github.com/NVIDIA/nvidia-container-toolkit",
				"github.com/opencontainers/runtime-spec", "github.com/sirupsen/logrus", "tags.cncf.io/container-device-interface",
			},
		},
		"pkg/mps": {floor: 3, ours: []string{"pkg/gpu", "pkg/health"}},

		"pkg/deviceplugin": {
			floor: 4, ours: []string{"pkg/gpu", "pkg/health", "pkg/sharing"},
			modules: append([]string{"github.com/fsnotify/fsnotify"}, kubeletModules...), testModules: []string{"k8s.io/apimachinery"},
		},
		"pkg/exporter": {
			floor: 4, ours: []string{"pkg/gpu", "pkg/health", "pkg/ledger", "pkg/meter", "pkg/sharing"},
			modules: []string{
				"github.com/klauspost/compress", "github.com/prometheus/client_golang", "github.com/prometheus/client_model",
				"github.com/prometheus/common", "github.com/prometheus/exporter-toolkit", "google.golang.org/protobuf",
			},
		},
		"pkg/healthstream": {
			floor: 4, ours: []string{"pkg/gpu", "pkg/health", "pkg/healthstream/healthv1"},
			modules: []string{"google.golang.org/grpc", "google.golang.org/protobuf"},
		},
		"pkg/report": {
			floor: 4, ours: []string{"pkg/bill", "pkg/gpu", "pkg/ledger", "pkg/prices", "pkg/sharing"},
			modules: []string{"github.com/shopspring/decimal"},
		},

		"cmd/gpumeter-exporter/app": {
			floor: floorCmd, ours: []string{anyBelow}, modules: cmdModules, testModules: []string{"go.yaml.in/yaml/v3"},
		},

		"cmd/gpumeter-device-plugin/app": {
			floor: floorCmd, ours: []string{anyBelow},
			modules: append([]string{"go.yaml.in/yaml/v3", "github.com/fsnotify/fsnotify"}, cmdModules...),
		},

		"cmd/gpumeter":               {floor: floorRoof, ours: []string{anyBelow}, modules: cmdModules},
		"cmd/gpumeter-device-plugin": {floor: floorRoof, ours: []string{anyBelow}, modules: cmdModules},
		"cmd/gpumeter-exporter":      {floor: floorRoof, ours: []string{anyBelow}, modules: cmdModules},
		"tests": {
			floor: floorRoof, ours: []string{anyBelow},
			modules: append([]string{
				"github.com/klauspost/compress", "github.com/prometheus/client_model", "go.yaml.in/yaml/v3",
			}, append(cmdModules, kubeletModules...)...),
		},
	}
}

// inTests are what any test file may use beside what its package may.
func inTests() room {
	return room{ours: []string{"etc"}, modules: []string{"github.com/google/go-cmp", "github.com/cpuguy83/go-md2man/v2", "pgregory.net/rapid"}}
}

// The rules, as they are told to whoever breaks one.
const (
	ruleUp        = "imports go down the floors, never up"
	ruleSideways  = "packages of one floor do not know each other; cmd introduces them"
	ruleOurs      = "the plan does not let this package import that one"
	ruleModule    = "third-party code stays in the room that the plan gives it"
	rulePlan      = "a package needs a place in the plan (tests/floors_test.go, docs/architecture.md)"
	ruleExit      = "below cmd nothing ends the process: return an error"
	ruleInit      = "no init(): work at import time has no error, no order and no off switch"
	ruleTesting   = "programs do not carry test code: only _test.go files import it"
	ruleSim       = "a pretend node is for cmd and tests only, so that no program meters one unasked"
	rulePretend   = "what stands for a machine is for _test.go files and for tests only"
	ruleSuite     = "a test suite is test code: only _test.go files import it"
	ruleUnparsed  = "every Go file can be parsed"
	ruleUnplanned = "the plan only allows what the floors allow"
)

// A violation is one broken rule at one place.
type violation struct {
	file string
	line int
	rule string
	what string
}

func (v violation) String() string {
	return fmt.Sprintf("%s:%d: %s: %s", v.file, v.line, v.what, v.rule)
}

// A house is a tree of sources and the plan they are held against.
type house struct {
	plan  map[string]room
	extra room
	files int
	found []violation
}

// inspect parses every Go file of the module in fsys. It looks at the sources and
// not at what the go command says about them, because the test cache takes no
// notice of what other programs read: a wrong import would pass from the cache.
func inspect(fsys fs.FS, plan map[string]room, extra room) (*house, error) {
	h := &house{plan: plan, extra: extra}
	h.checkPlan()
	err := fs.WalkDir(fsys, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			return skipDir(fsys, name)
		}
		if path.Ext(name) != ".go" {
			return nil
		}
		source, err := fs.ReadFile(fsys, name)
		if err != nil {
			return err
		}
		h.files++
		h.checkFile(name, source)
		return nil
	})
	return h, err
}

// skipDir leaves out what the go command leaves out of the module.
func skipDir(fsys fs.FS, name string) error {
	base := path.Base(name)
	switch {
	case name == ".":
		return nil
	case base == "testdata", base == "vendor", base[0] == '.', base[0] == '_':
		return fs.SkipDir
	}
	if _, err := fs.Stat(fsys, path.Join(name, "go.mod")); err == nil {
		return fs.SkipDir
	}
	return nil
}

// checkPlan holds the plan itself against the floors.
func (h *house) checkPlan() {
	for name, r := range h.plan {
		for _, to := range r.ours {
			target, ok := h.plan[to]
			beside := r.suite && !target.suite && target.floor == r.floor
			if to != anyBelow && (!ok || target.floor >= r.floor && !beside) {
				h.report("tests/floors_test.go", 1, ruleUnplanned, fmt.Sprintf("%s may import %s", name, to))
			}
		}
	}
}

func (h *house) checkFile(name string, source []byte) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		h.report(name, 1, ruleUnparsed, err.Error())
		return
	}
	dir := path.Dir(name)
	here, ok := h.plan[dir]
	if !ok {
		h.report(name, set.Position(file.Package).Line, rulePlan, "package "+dir)
		return
	}
	isTest := here.suite || strings.HasSuffix(name, "_test.go")
	for _, spec := range file.Imports {
		to, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue
		}
		if rule := h.judgeImport(here, dir, to, isTest); rule != "" {
			h.report(name, set.Position(spec.Pos()).Line, rule, dir+" imports "+to)
		}
	}
	if isGenerator(file) {
		return
	}
	if !here.generated || !ast.IsGenerated(file) {
		h.checkInit(name, set, file)
	}
	if !isTest && here.floor < floorCmd {
		h.checkExit(name, set, file)
	}
}

// isGenerator reports whether the file is a program of its own that the build
// ignores and go generate runs.
func isGenerator(file *ast.File) bool {
	for _, group := range file.Comments {
		if group.Pos() > file.Package {
			break
		}
		for _, comment := range group.List {
			expr, err := constraint.Parse(comment.Text)
			if err == nil && expr.String() == "ignore" {
				return file.Name.Name == "main"
			}
		}
	}
	return false
}

// judgeImport is the rule that package dir, living in room here, breaks by
// importing to, or "".
func (h *house) judgeImport(here room, dir, to string, isTest bool) string {
	ours, isOurs := strings.CutPrefix(to, module+"/")
	switch {
	case isOurs:
		return h.judgeOurs(here, dir, ours, isTest)
	case !isTest && (to == "testing" || strings.HasPrefix(to, "testing/") || to == "net/http/httptest"):
		return ruleTesting
	case to != "C" && !strings.Contains(strings.Split(to, "/")[0], "."):
		return ""
	case allowed(here.modules, to) || isTest && (allowed(h.extra.modules, to) || allowed(here.testModules, to)):
		return ""
	}
	return ruleModule
}

func (h *house) judgeOurs(here room, dir, to string, isTest bool) string {
	target, ok := h.plan[to]
	switch {
	case to == dir && isTest:
		return ""
	case !ok:
		return rulePlan
	case to == "pkg/sim" && here.floor < floorCmd:
		return ruleSim
	case target.suite && !isTest:
		return ruleSuite
	case target.pretend && !isTest && !strings.HasPrefix(dir, "tests/"):
		return rulePretend
	case target.floor > here.floor:
		return ruleUp
	case here.suite && !slices.Contains(here.ours, to):
		return ruleOurs
	case here.suite:
		return ""
	case isTest && (target.suite || target.pretend || slices.Contains(h.extra.ours, to)):
		return ""
	case target.floor == here.floor:
		return ruleSideways
	case slices.Contains(here.ours, to) || slices.Contains(here.ours, anyBelow):
		return ""
	}
	return ruleOurs
}

// allowed reports whether the import path is one of the modules or inside one.
func allowed(modules []string, to string) bool {
	return slices.ContainsFunc(modules, func(m string) bool {
		return to == m || strings.HasPrefix(to, m+"/")
	})
}

func (h *house) checkInit(name string, set *token.FileSet, file *ast.File) {
	for _, decl := range file.Decls {
		if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" {
			h.report(name, set.Position(f.Pos()).Line, ruleInit, "func init()")
		}
	}
}

// checkExit finds what ends the process. Names decide, not types: any Fatal is
// one, whoever's logger it belongs to, and os.Exit is one even as a mere value.
func (h *house) checkExit(name string, set *token.FileSet, file *ast.File) {
	ending := []string{"Fatal", "Fatalf", "Fatalln", "Panic", "Panicf", "Panicln"}
	ast.Inspect(file, func(node ast.Node) bool {
		switch n := node.(type) {
		case *ast.CallExpr:
			if id, ok := n.Fun.(*ast.Ident); ok && id.Name == "panic" {
				h.report(name, set.Position(n.Pos()).Line, ruleExit, "calls panic")
			}
		case *ast.SelectorExpr:
			of := types.ExprString(n.X)
			exits := n.Sel.Name == "Exit" && (of == importedAs(file, "os") || of == importedAs(file, "syscall"))
			if exits || slices.Contains(ending, n.Sel.Name) {
				h.report(name, set.Position(n.Pos()).Line, ruleExit, "uses "+of+"."+n.Sel.Name)
			}
		}
		return true
	})
}

// importedAs is the name under which the file knows a standard package, "" for none.
func importedAs(file *ast.File, pkg string) string {
	for _, spec := range file.Imports {
		if spec.Path.Value != strconv.Quote(pkg) {
			continue
		}
		if spec.Name != nil {
			return spec.Name.Name
		}
		return path.Base(pkg)
	}
	return ""
}

func (h *house) report(file string, line int, rule, what string) {
	h.found = append(h.found, violation{file: file, line: line, rule: rule, what: what})
}

// moduleRoot is the folder of go.mod, seen from the folder of the running test.
func moduleRoot(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		_, err := os.Stat(filepath.Join(dir, "go.mod"))
		if err == nil {
			return dir
		}
		if parent := filepath.Dir(dir); parent != dir && errors.Is(err, fs.ErrNotExist) {
			dir = parent
			continue
		}
		t.Fatalf("no go.mod above the test's folder: %v", err)
	}
}

func TestFloors(t *testing.T) {
	const fewest = 40 // a checker that walked the wrong tree would find nothing wrong
	h, err := inspect(os.DirFS(moduleRoot(t)), plan(), inTests())
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range h.found {
		t.Error(v)
	}
	if h.files < fewest {
		t.Errorf("saw %d Go files, want at least %d: was the right tree walked?", h.files, fewest)
	}
}
