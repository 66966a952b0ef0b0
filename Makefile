# SPDX-License-Identifier: Apache-2.0

# `make` alone lists the targets. Tools are built by `go install` in the versions
# below when they are missing, into the user's cache, and are no part of go.mod.
GOLANGCI_LINT_VERSION := v2.15.0
PROMETHEUS_VERSION    := v0.316.0
GOVULNCHECK_VERSION   := v1.9.0
BENCHSTAT_VERSION     := v0.0.0-20260908200009-22c9c6c9d4da

TOOLS         := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/gpumeter/tools
GOLANGCI_LINT := $(TOOLS)/golangci-lint@$(GOLANGCI_LINT_VERSION)/golangci-lint
PROMTOOL      := $(TOOLS)/promtool@$(PROMETHEUS_VERSION)/promtool
PROMETHEUS    := $(TOOLS)/prometheus@$(PROMETHEUS_VERSION)/prometheus
GOVULNCHECK   := $(TOOLS)/govulncheck@$(GOVULNCHECK_VERSION)/govulncheck
BENCHSTAT     := $(TOOLS)/benchstat@$(BENCHSTAT_VERSION)/benchstat

VERSION  := $(or $(shell git describe --tags --always --dirty 2>/dev/null),unknown)
REVISION := $(or $(shell git rev-parse --verify --quiet HEAD 2>/dev/null),unknown)
BRANCH   := $(or $(shell git symbolic-ref --short --quiet HEAD 2>/dev/null),unknown)
IMAGE    ?= gpumeter-exporter:$(VERSION)

STAMP   := github.com/prometheus/common/version
LDFLAGS := -X $(STAMP).Version=$(VERSION) -X $(STAMP).Revision=$(REVISION) -X $(STAMP).Branch=$(BRANCH)

# The version is stamped by LDFLAGS; Go's own stamp fails in a tree that git
# does not trust, such as a mounted one.
GO := go
BUILDFLAGS := -trimpath -buildvcs=false

BENCH    ?= .
COUNT    ?= 1
FUZZTIME ?= 30s
ADDRESS  ?= 127.0.0.1:9400
ARGS     ?=
KUBELETS ?=

# Test tools too heavy for go.mod live in modules of their own.
TEST_MODULES := $(patsubst %/go.mod,%,$(wildcard tests/*/go.mod))

# By file, so that they can speak when the rest of the tree does not compile.
FLOORS := $(wildcard tests/floors_*test.go)

export CGO_CFLAGS := -g -O2 -Wno-deprecated-declarations

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

# Programs built here also run on older systems: deployment/glibc/stubs.sh says how. The
# resolver and the user database are Go's own, so that glibc's are not asked for either.
GLIBC   := 2.31
PORTABLE := -tags netgo,osusergo
STUBS   := bin/glibc
STUBBED := -extldflags "-L$(CURDIR)/$(STUBS) -l:libpthread.so.0 -l:libdl.so.2 -l:libc.so.6"

.PHONY: build
build: ## compile every command into bin/, to run on glibc 2.31 and newer
	@deployment/glibc/stubs.sh $(STUBS)
	$(GO) build $(BUILDFLAGS) $(PORTABLE) -ldflags '$(LDFLAGS) $(STUBBED)' -o bin/ ./cmd/...

.PHONY: test
test: ## run all tests with the race detector, in random order
	$(GO) test -race -shuffle=on ./...
	@for dir in $(TEST_MODULES); do (cd $$dir && $(GO) test -shuffle=on ./...) || exit 1; done

.PHONY: verify
verify: verify-fmt verify-vet verify-lint verify-floors verify-generated verify-metrics verify-rules verify-glibc verify-vuln ## run every check below, stop at the first that fails

.PHONY: verify-fmt
verify-fmt: ## check that gofmt would change nothing
	@unformatted=$$(find . -name '*.go' -not -path './.git/*' -print0 | xargs -0 gofmt -s -l) || exit 1; \
	if [ -n "$$unformatted" ]; then \
		echo "not formatted, run gofmt -s -w on:"; echo "$$unformatted"; exit 1; \
	fi

.PHONY: verify-vet
verify-vet: ## run go vet
	$(GO) vet ./...

.PHONY: verify-lint
verify-lint: $(GOLANGCI_LINT) ## run golangci-lint with .golangci.yml
	$(GOLANGCI_LINT) run ./...

.PHONY: verify-floors
verify-floors: ## check who imports what, and that nothing below cmd ends the process
	$(GO) test -count=1 $(FLOORS)

.PHONY: verify-generated
verify-generated: ## check that generated files are what `make update` makes
	tests/tools/verify-generated.sh

.PHONY: verify-glibc
verify-glibc: build ## check that the programs ask for no glibc newer than 2.31
	@deployment/glibc/check.sh $(GLIBC) bin/gpumeter*

.PHONY: verify-metrics
verify-metrics: $(PROMTOOL) ## run promtool over our own families in the golden pages
	tests/tools/verify-metrics.sh $(PROMTOOL)

.PHONY: verify-rules
verify-rules: $(PROMTOOL) ## run promtool over the rules for Prometheus and their tests
	$(PROMTOOL) check rules --lint=all --lint-fatal etc/prometheus/rules.yaml
	$(PROMTOOL) test rules etc/prometheus/rules_test.yaml

.PHONY: verify-vuln
verify-vuln: $(GOVULNCHECK) ## look for known vulnerabilities in what is called
	tests/tools/verify-vuln.sh $(GOVULNCHECK)

.PHONY: verify-hardware
verify-hardware: ## on a machine with NVIDIA GPUs, compare every default counter with nvidia-smi
	GPUMETER_HARDWARE=1 $(GO) test -count=1 -run TestAgainstRealGPUs -v ./pkg/nvml

.PHONY: update
update: ## make generated and golden files anew
	$(GO) generate ./...
	tests/tools/update-golden.sh

.PHONY: bench
bench: ## run the benchmarks: BENCH=regexp COUNT=10
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -count $(COUNT) ./pkg/...
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -count $(COUNT) -benchtime 100x ./tests
	$(GO) -C tests/prometheus test -run '^$$' -bench '$(BENCH)' -count $(COUNT) -benchtime 1x .
	@echo "docs/performance.md says what the numbers mean and how they were taken."

.PHONY: bench-plot
bench-plot: ## draw docs/performance.svg from an output of bench: NEW=new.txt
	$(GO) -C tests/plots run . $(CURDIR)/docs/performance.svg < $(NEW)

.PHONY: bench-compare
bench-compare: $(BENCHSTAT) ## compare two outputs of bench: OLD=old.txt NEW=new.txt
	$(BENCHSTAT) $(OLD) $(NEW)

.PHONY: fuzz
fuzz: ## run every fuzz test in turn, each for FUZZTIME=30s
	FUZZTIME=$(FUZZTIME) tests/tools/fuzz.sh

.PHONY: crash
crash: ## kill a writer of the ledger 300 times and fail or cut off every call of its disk, ten times as often as the tests do
	GPUMETER_CRASH_ROUNDS=10 $(GO) test -count=1 -timeout 30m -v ./pkg/ledger \
		-run 'TestABookThatIsKilled|TestWhateverCall|TestABookGoesOn'

.PHONY: demo
demo: ## serve a pretend node on ADDRESS=127.0.0.1:9400, further flags in ARGS
	$(GO) run ./cmd/gpumeter demo --address $(ADDRESS) $(ARGS)

.PHONY: e2e
e2e: build e2e-prometheus ## run a real Prometheus server and a real Kubernetes node over pretend GPUs under each kubelet, or KUBELETS=1.36,1.37
	GPUMETER_E2E_KUBELETS=$(KUBELETS) tests/e2e/run.sh bin bin/e2e

.PHONY: e2e-prometheus
e2e-prometheus: build $(PROMETHEUS) ## have a real Prometheus server scrape the demo node, and hold the report over it against the ledger
	GPUMETER_PROGRAM=$(CURDIR)/bin/gpumeter GPUMETER_PROMETHEUS=$(PROMETHEUS) \
		$(GO) -C tests/prometheus test -count=1 -run '^TestARealPrometheusServer' -v .

.PHONY: accuracy
accuracy: ## make docs/accuracy.md: what each way to measure is off by, over a simulated month; some minutes
	GPUMETER_ACCURACY=$(CURDIR)/docs $(GO) -C tests/prometheus test -count=1 -timeout 90m -run '^TestAccuracy$$' -v .

.PHONY: image
image: ## build the container image IMAGE with docker, podman or buildah
	tests/tools/image.sh $(IMAGE) $(VERSION) $(REVISION)

.PHONY: clean
clean: ## remove what build made
	rm -rf bin

INSTALL = CGO_ENABLED=0 GOFLAGS=-buildvcs=false GOBIN=$(@D) $(GO) install

$(GOLANGCI_LINT):
	$(INSTALL) github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT_VERSION)

$(PROMTOOL):
	$(INSTALL) github.com/prometheus/prometheus/cmd/promtool@$(PROMETHEUS_VERSION)

$(PROMETHEUS):
	$(INSTALL) github.com/prometheus/prometheus/cmd/prometheus@$(PROMETHEUS_VERSION)

$(GOVULNCHECK):
	$(INSTALL) golang.org/x/vuln/cmd/govulncheck@$(GOVULNCHECK_VERSION)

$(BENCHSTAT):
	$(INSTALL) golang.org/x/perf/cmd/benchstat@$(BENCHSTAT_VERSION)
