# `make help` lists what there is to do.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

GO ?= go
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
bench: ## Benchmarks of the planner: ns and allocations.
	$(GO) test -run '^$$' -bench . -benchmem ./topology ./gang

.PHONY: bench-e2e
bench-e2e: lab ## Throughput on 1,000 nodes: plain scheduler, native gangs, Lockstep, side by side.
	$(GO) run ./test/bench $(ARGS)

.PHONY: fuzz
fuzz: ## Fuzz everything that parses, FUZZTIME each (default 20s).
	@for target in $$(grep -rHoE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' . | sed 's/:func /:/'); do \
		dir=$$(dirname $${target%%:*}); name=$${target##*:}; \
		echo "$$dir $$name"; $(GO) test -run '^$$' -fuzz "^$$name$$" -fuzztime $${FUZZTIME:-20s} $$dir; \
	done

.PHONY: lint
lint: ## Lint, and check the formatting.
	$(TOOL) golangci-lint run

.PHONY: fmt
fmt: ## Format.
	$(TOOL) golangci-lint fmt

.PHONY: build
build: ## Build the binaries into bin/.
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags='-s -w' -o bin/ ./cmd/...

.PHONY: image
image: ## Build the container image.
	docker build -t lockstep .

.PHONY: deps
deps:
	@command -v redis-server >/dev/null || { \
		echo "redis-server is missing: installing it"; \
		sudo=; [ "$$(id -u)" = 0 ] || sudo=sudo; \
		$$sudo apt-get update -qq && $$sudo apt-get install -y -qq redis-server >/dev/null; }
