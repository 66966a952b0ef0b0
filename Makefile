# SPDX-License-Identifier: Apache-2.0

# `make` alone lists the targets. Tools are built by `go install` in the versions
# below when they are missing, into the user's cache, and are no part of go.mod.
GOLANGCI_LINT_VERSION := v2.15.0
PROMETHEUS_VERSION    := v0.316.0
GOVULNCHECK_VERSION   := v1.9.0
BENCHSTAT_VERSION     := v0.0.0-20260908200009-22c9c6c9d4da
HELM_VERSION          := v3.22.0
SYFT_VERSION          := v1.57.1

TOOLS         := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/gpumeter/tools
GOLANGCI_LINT := $(TOOLS)/golangci-lint@$(GOLANGCI_LINT_VERSION)/golangci-lint
PROMTOOL      := $(TOOLS)/promtool@$(PROMETHEUS_VERSION)/promtool
PROMETHEUS    := $(TOOLS)/prometheus@$(PROMETHEUS_VERSION)/prometheus
GOVULNCHECK   := $(TOOLS)/govulncheck@$(GOVULNCHECK_VERSION)/govulncheck
BENCHSTAT     := $(TOOLS)/benchstat@$(BENCHSTAT_VERSION)/benchstat
HELM          := $(TOOLS)/helm@$(HELM_VERSION)/helm
SYFT          := $(TOOLS)/syft@$(SYFT_VERSION)/syft

VERSION  := $(or $(shell git describe --tags --always --dirty 2>/dev/null),unknown)
REVISION := $(or $(shell git rev-parse --verify --quiet HEAD 2>/dev/null),unknown)
BRANCH   := $(or $(shell git symbolic-ref --short --quiet HEAD 2>/dev/null),unknown)
# The time of the commit: what is released has no other, so that it can be made again.
SOURCE_DATE_EPOCH ?= $(or $(shell git log -1 --format=%ct 2>/dev/null),0)
IMAGE    ?= ghcr.io/gpumeter/gpumeter

STAMP   := github.com/prometheus/common/version
LDFLAGS := -X $(STAMP).Version=$(VERSION) -X $(STAMP).Revision=$(REVISION) -X $(STAMP).Branch=$(BRANCH)

# The version is stamped by LDFLAGS; Go's own stamp fails in a tree that git
# does not trust, such as a mounted one.
GO := go
BUILDFLAGS := -trimpath -buildvcs=false

BENCH    ?= .
COUNT    ?= 1
FUZZTIME ?= 1m
SOAK     ?= 1h
ADDRESS  ?= 127.0.0.1:9400
ARGS     ?=
SNAPSHOT ?=
KUBELETS ?=

# Test tools too heavy for go.mod live in modules of their own.
TEST_MODULES := $(patsubst %/go.mod,%,$(wildcard tests/*/go.mod deployment/*/go.mod dashboards/go.mod))

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

# What is released: for each architecture that Debian has a compiler for, without debug data
# and build ids, so that the same sources give the same bytes in any folder.
ARCH     ?= $(shell $(GO) env GOARCH)
CC_amd64 := x86_64-linux-gnu-gcc
CC_arm64 := aarch64-linux-gnu-gcc
CC_ARCH   = $(or $(CC_$(ARCH)),$(error no compiler is known for ARCH=$(ARCH), only for amd64 and arm64))
RELEASED := -s -w -buildid= -X $(STAMP).Version=$(VERSION) -X $(STAMP).Revision=$(REVISION)

.PHONY: programs
programs: ## compile every command for ARCH=amd64 or arm64 into bin/linux-ARCH, as it is released
	@CC=$(CC_ARCH) deployment/glibc/stubs.sh bin/glibc-$(ARCH)
	CGO_ENABLED=1 GOOS=linux GOARCH=$(ARCH) CC=$(CC_ARCH) $(GO) build $(BUILDFLAGS) $(PORTABLE) \
		-ldflags '$(RELEASED) $(subst $(STUBS),bin/glibc-$(ARCH),$(STUBBED))' -o bin/linux-$(ARCH)/ ./cmd/...

.PHONY: test
test: ## run all tests with the race detector, in random order
	$(GO) test -race -shuffle=on ./...
	@for dir in $(TEST_MODULES); do (cd $$dir && $(GO) test -shuffle=on ./...) || exit 1; done

.PHONY: verify
verify: verify-fmt verify-vet verify-lint verify-floors verify-generated verify-metrics verify-rules verify-dashboards verify-chart verify-glibc verify-vuln ## run the checks below that need neither images nor GPUs, stop at the first that fails

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
	$(PROMTOOL) check rules --lint=all --lint-fatal etc/prometheus/rules.yaml etc/prometheus/alerts.yaml cmd/gpumeter/testdata/price-rules.yaml
	$(PROMTOOL) test rules etc/prometheus/*_test.yaml cmd/gpumeter/testdata/price-rules_test.yaml

.PHONY: verify-dashboards
verify-dashboards: ## check that the dashboards' JSON, and the chart's copies of it, are what their Go makes
	$(GO) -C dashboards test ./...

.PHONY: verify-chart
verify-chart: ## lint the Helm chart, render it over a matrix of values, hold it to the API's schemas and the golden renders
	$(GO) -C tests/chart test ./...

.PHONY: verify-docs
verify-docs: build $(HELM) ## run the commands of README and docs, check links, flags, queries and worked examples; `make test` does too
	GPUMETER_PROGRAMS=$(CURDIR)/bin GPUMETER_HELM=$(HELM) $(GO) -C tests/docs test -count=1 -v .

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
	$(GO) -C dashboards run .
	$(GO) -C tests/chart test -count=1 -run Golden . -args -write

.PHONY: renderings
renderings: ## draw docs/dashboards/*.png from the dashboards' own queries over simulated nodes, and take docs/node-page.png
	$(GO) -C tests/dashboards test -count=1 -run TestRenderings -v . -args -write
	$(GO) -C tests/browser test -count=1 -run TestThePictureOfTheNodePage -v . -args -picture

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
fuzz: ## run every fuzz test in turn, each for FUZZTIME=1m
	FUZZTIME=$(FUZZTIME) tests/tools/fuzz.sh

.PHONY: soak
soak: build ## run exporter and device plugin under load, faults and kill -9 for SOAK=1h and print what came of it
	GPUMETER_SOAK=$(SOAK) GPUMETER_PROGRAMS=$(CURDIR)/bin $(GO) -C tests/soak test -count=1 -timeout 0 -v -run TestSoak .

.PHONY: crash
crash: ## kill a writer of the ledger 300 times and fail or cut off every call of its disk, ten times as often as the tests do
	GPUMETER_CRASH_ROUNDS=10 $(GO) test -count=1 -timeout 30m -v ./pkg/ledger \
		-run 'TestABookThatIsKilled|TestWhateverCall|TestABookGoesOn'

.PHONY: demo
demo: build ## serve a pretend node on ADDRESS=127.0.0.1:9400, further flags in ARGS
	bin/gpumeter demo --address $(ADDRESS) $(ARGS)

.PHONY: e2e
e2e: ARCHS = $(ARCH)
e2e: build verify-image $(HELM) e2e-prometheus ## run a real Prometheus server and a real Kubernetes node over pretend GPUs under each kubelet, or KUBELETS=1.36,1.37
	GPUMETER_E2E_KUBELETS=$(KUBELETS) GPUMETER_E2E_IMAGES=$(CURDIR)/bin/image GPUMETER_E2E_CHART=$(CURDIR)/deployment/helm/gpumeter \
		GPUMETER_E2E_HELM=$(HELM) tests/e2e/run.sh bin bin/e2e

.PHONY: e2e-prometheus
e2e-prometheus: build $(PROMETHEUS) ## have a real Prometheus server scrape the demo node, and hold the report over it against the ledger
	GPUMETER_PROGRAM=$(CURDIR)/bin/gpumeter GPUMETER_PROMETHEUS=$(PROMETHEUS) \
		$(GO) -C tests/prometheus test -count=1 -run '^TestARealPrometheusServer' -v .

.PHONY: accuracy
accuracy: ## make docs/accuracy.md: what each way to measure is off by, over a simulated month; some minutes
	GPUMETER_ACCURACY=$(CURDIR)/docs $(GO) -C tests/prometheus test -count=1 -timeout 90m -run '^TestAccuracy$$' -v .

# The architectures of images and releases; unless said, all that there is a compiler for here.
ARCHS ?=
SHIP   = MAKE='$(MAKE)' ARCHS='$(ARCHS)' VERSION='$(VERSION)' REVISION='$(REVISION)' SOURCE_DATE_EPOCH='$(SOURCE_DATE_EPOCH)' \
	IMAGE='$(IMAGE)' SYFT='$(SYFT)' SNAPSHOT='$(SNAPSHOT)'

.PHONY: image
image: ## assemble the container image in bin/image, an OCI archive for each of ARCHS="amd64 arm64"; needs no container engine
	@$(SHIP) tests/tools/image.sh

.PHONY: verify-image
verify-image: image ## look into the images of bin/image and run their programs in there
	GPUMETER_IMAGES="$$(ls $(CURDIR)/bin/image/*-linux-*.tar | tr '\n' ' ')" $(GO) -C deployment/image test -count=1 ./...

.PHONY: image-docker
image-docker: ## build the same image from the Dockerfile with docker, podman or buildah
	@$(SHIP) tests/tools/image-docker.sh

.PHONY: image-lock
image-lock: ## pin the newest Debian packages for the image
	$(GO) -C deployment/image run . lock -lock packages.lock

.PHONY: sbom
sbom: $(SYFT) image ## write what is in the images, as SPDX, beside them
	@$(SHIP) tests/tools/sbom.sh

.PHONY: deb
deb: ## make packages for Debian and Ubuntu in bin/deb, for each of ARCHS="amd64 arm64"
	@$(SHIP) tests/tools/packages.sh deb

.PHONY: rpm
rpm: ## make packages for RPM systems in bin/rpm, for each of ARCHS="amd64 arm64"
	@$(SHIP) tests/tools/packages.sh rpm

.PHONY: release
release: $(SYFT) ## make bin/release: archives, packages, images, SBOMs, checksums, notes; SNAPSHOT=1 for a tree without a tag
	@$(SHIP) tests/tools/release.sh

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

$(SYFT):
	$(INSTALL) github.com/anchore/syft/cmd/syft@$(SYFT_VERSION)

# Without it `helm template` takes the cluster for a Kubernetes 1.20, and refuses the chart.
$(HELM):
	$(INSTALL) -ldflags '-X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=37' helm.sh/helm/v3/cmd/helm@$(HELM_VERSION)
