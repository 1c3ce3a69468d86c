# `make help` lists what there is to do.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

GO ?= go
# The header of NVML, which the node agent is built with, warns of its own functions.
export CGO_CFLAGS ?= -O2 -g -Wno-deprecated-declarations
TOOL := $(GO) tool -modfile=go.tools.mod
# Most packages run in parallel; those that start a control plane take both cores.
TESTFLAGS ?= -race -shuffle=on
E2E := ./test/e2e/... ./test/lab/...
UNIT = $$($(GO) list ./... | grep -v -e /test/e2e -e /test/lab -e /test/bench -e /test/demo)

.PHONY: help
help: ## List the targets.
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## Four 64-GPU gangs on a real control plane with room for two; ARGS=--keep leaves it running.
	$(GO) run ./test/demo $(ARGS)

.PHONY: test
test: deps lint test-unit test-e2e ## Everything: lint, unit tests, and the tests on a real control plane.

.PHONY: test-fast
test-fast: deps ## What runs in under two minutes: unit tests without the race detector.
	$(GO) test -short -shuffle=on $(UNIT)

.PHONY: test-unit
test-unit: deps ## Unit and property tests.
	$(GO) test $(TESTFLAGS) $(UNIT)

.PHONY: test-e2e
test-e2e: deps lab ## Tests on a real control plane.
	$(GO) test $(TESTFLAGS) -timeout 40m -p 1 $(E2E)

.PHONY: lab
lab: ## Build the real control plane's binaries into the user's cache (once).
	$(GO) run ./test/lab/cmd/lab build

.PHONY: bench
bench: ## Benchmarks of the planner and the agent: ns and allocations.
	$(GO) test -run '^$$' -bench . -benchmem ./topology ./gang ./nodeagent

.PHONY: bench-e2e
bench-e2e: lab ## Throughput on 1,000 nodes: plain scheduler, native gangs, Lockstep, side by side.
	$(GO) run ./test/bench $(ARGS)

.PHONY: bench-topology
bench-topology: lab ## How close gangs land, and on which links: plain scheduler, packing, native gangs, Lockstep.
	$(GO) run ./test/bench/topology $(ARGS)

.PHONY: fuzz
fuzz: ## Fuzz everything that parses, FUZZTIME each (default 20s).
	@for target in $$(grep -rHoE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' . | sed 's/:func /:/'); do \
		dir=$$(dirname $${target%%:*}); name=$${target##*:}; \
		echo "$$dir $$name"; $(GO) test -run '^$$' -fuzz "^$$name$$" -fuzztime $${FUZZTIME:-20s} $$dir; \
	done

.PHONY: lint
lint: ## Lint, and check the formatting and what is generated.
	$(TOOL) golangci-lint run
	@tmp=$$(mktemp -d) && trap 'rm -rf "$$tmp"' EXIT && \
	$(TOOL) controller-gen object output:object:dir="$$tmp" crd output:crd:dir="$$tmp" paths=./api/... && \
	diff api/v1alpha1/zz_generated.deepcopy.go "$$tmp"/zz_generated.deepcopy.go && \
	for file in "$$tmp"/*.yaml; do diff deploy/manifests/"$${file##*/}" "$$file"; done || \
	{ echo "generated files are old: run make generate"; exit 1; }

.PHONY: fmt
fmt: ## Format.
	$(TOOL) golangci-lint fmt

.PHONY: build
build: ## Build the binaries into bin/.
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags='-s -w' -o bin/ ./cmd/extender
	CGO_ENABLED=1 $(GO) build -trimpath -ldflags='-s -w' -o bin/ ./cmd/nodeagent

.PHONY: image
image: ## Build the container images.
	docker build --target extender -t lockstep .
	docker build --target nodeagent -t lockstep-nodeagent .

.PHONY: generate
generate: ## Generate the CRD and the deep copies from api/.
	$(TOOL) controller-gen object paths=./api/... crd output:crd:dir=deploy/manifests

.PHONY: deps
deps:
	@command -v redis-server >/dev/null || { \
		echo "redis-server is missing: installing it"; \
		sudo=; [ "$$(id -u)" = 0 ] || sudo=sudo; \
		$$sudo apt-get update -qq && $$sudo apt-get install -y -qq redis-server >/dev/null; }
