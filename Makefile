# kvroute. `make help` lists the targets; `make demo` and `make test` do all the set-up themselves.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
export PATH := $(CURDIR)/build/go/bin:$(PATH):/usr/local/go/bin

PKG      := github.com/kvroute/kvroute/internal/cli
COMMIT   := $(shell git describe --always --dirty --exclude '*' 2>/dev/null)
VERSION  ?=
LDFLAGS  := -s -w -X $(PKG).linkCommit=$(COMMIT) -X $(PKG).linkVersion=$(VERSION)
BUILD    := go build -ldflags "$(LDFLAGS)"
FUZZTIME ?= 10s
FOR      ?= 30s
RACE     ?= ./...
BENCH    ?= .
COUNT    ?= 10
DEMO     := bin/kvroute sim --trace traces/mooncake/conversation_15min.jsonl.gz --workers 4 --capacity 5859 \
	--router-policy kv-aware --sweep kv-overlap-weight=0,0.25,0.5,1,2,4,20 --repeat 5
GOBENCH  := go test -short -run '^$$' -bench '$(BENCH)' -benchmem -count $(COUNT) ./...

# Tools, pinned; they come through the Go module proxy.
GOFUMPT     := go run mvdan.cc/gofumpt@v0.12.0
STATICCHECK := go run honnef.co/go/tools/cmd/staticcheck@v0.8.2
MISSPELL    := go run github.com/golangci/misspell/cmd/misspell@v0.8.0
BENCHSTAT   := go run golang.org/x/perf/cmd/benchstat@v0.0.0-20260908200009-22c9c6c9d4da

.DEFAULT_GOAL := help
.PHONY: help setup toolchain native parity build build-nocgo test test-all test-fit race lint fuzz golden screens quality bench bench-compare cover test-clients man demo demo-sim engines test-engines clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' Makefile

setup: toolchain native ## everything a build needs, installed where that is possible: Go, modules, the archive of native/

toolchain:
	@.ci/setup

native: ## build the tokenizers and templates (Rust) into build/native, unless that is done already
	@[[ $${CGO_ENABLED:-1} == 0 ]] || .ci/native

build: setup ## build bin/kvroute
	$(BUILD) -o bin/kvroute ./cmd/kvroute

build-nocgo: toolchain ## build everything without cgo, the program as bin/kvroute-nocgo
	CGO_ENABLED=0 go build ./... && CGO_ENABLED=0 $(BUILD) -o bin/kvroute-nocgo ./cmd/kvroute

test: setup ## all tests that need no big traces
	go test -short -timeout 10m ./...

test-all: setup ## all tests, with the big traces (KVROUTE_TRACES, default ../shared/traces)
	KVROUTE_REQUIRE_TRACES=1 go test -timeout 20m ./...

test-fit: setup ## the large grids of planted logs that fits are held to (some ten minutes)
	KVROUTE_LONG=1 go test -timeout 60m ./internal/fit

race: setup ## the tests of `make test` (of the packages RACE) under the race detector; needs a C compiler
	CGO_ENABLED=1 go test -short -race -timeout 30m $(RACE)

lint: setup ## go vet, staticcheck, gofumpt, spelling
	go mod tidy -diff && go vet ./... && go vet -tags clients,engines ./test/... && $(STATICCHECK) ./...
	@out=$$($(GOFUMPT) -l cmd internal test); [[ -z $$out ]] || { echo "not formatted (run gofumpt -w):"; echo "$$out"; exit 1; }
	git ls-files -z -- ':!*.gz' ':!*.zst' ':!*/testdata/fuzz/*' | xargs -0 $(MISSPELL) -error

fuzz: setup ## run every fuzz target for FUZZTIME (10s)
	@FUZZTIME=$(FUZZTIME) .ci/fuzz

parity: setup ## compare tokens and renders with Python's packages for real models (fetched into build/parity)
	@.ci/parity

golden: setup ## rewrite the golden files; read the diff before you commit it
	go test -short $$(grep -rl --include='*_test.go' 'flag.Bool("update"' ./internal | xargs -n1 dirname | sort -u) -update

screens: setup ## draw the screens of docs/watch.md and docs/watch.svg again, of a recorded session
	go test -short ./internal/tui -run 'TestScreensInDocs|TestMovingPicture' -update

quality: setup ## measure the default policy on all traces again, into docs/decision-quality.md (needs the big traces)
	KVROUTE_REQUIRE_TRACES=1 go test -timeout 60m ./internal/quality -update

bench: setup ## run the benchmarks matching BENCH (all) COUNT (10) times, into build/new.txt
	@mkdir -p build
	$(GOBENCH) | tee build/new.txt

bench-compare: setup ## compare the benchmarks matching BENCH with those of the commit REF=
	@: $${REF:?usage: make bench-compare REF=commit}; rm -rf build/ref; mkdir -p build/ref; git archive "$$REF" | tar -x -C build/ref
	(cd build/ref && $(GOBENCH)) > build/old.txt; $(GOBENCH) > build/new.txt; $(BENCHSTAT) build/old.txt build/new.txt

cover: setup ## test coverage, by function and in build/cover.html
	mkdir -p build && go test -short -coverpkg ./... -coverprofile build/cover.out ./... && go tool cover -html build/cover.out -o build/cover.html && go tool cover -func build/cover.out | tail -1

test-clients: setup ## hold serve to the official OpenAI clients, Python's and JavaScript's (fetched into build/clients)
	scripts/clients.sh && go test -tags clients -count 1 -timeout 10m ./test/clients

man: build ## write the man pages to man/
	bin/kvroute man --dir man

demo: build ## engines, router and traffic in one process, beside round robin, for FOR (30s; 0s: until ^C)
	@bin/kvroute demo --for $(FOR)

demo-sim: build ## sweep overlap weights over a bundled real trace, print the comparison, plot it in demo-out/
	@mkdir -p demo-out; for e in serial batch; do printf '\n== %s engine: %s --engine %s\n\n' $$e '$(DEMO)' $$e; \
		$(DEMO) --engine $$e --plot demo-out/$$e.svg --plot demo-out/$$e.html; done; printf '\nplots: '; ls demo-out/*

engines: ## install real vLLM and SGLang for the CPU into ~/.cache (some 9 GB; needs Python, gcc, npm), unless that is done already
	scripts/engines.sh install

test-engines: build ## hold serve to real engines (ENGINES_RUN=vllm-0.32.0 for one kind); takes minutes a kind
	ENGINES_BIN=$(CURDIR)/bin/kvroute ENGINES_REQUIRE=$${ENGINES_REQUIRE-1} go test -tags engines -count 1 -v -timeout 120m -run 'Test.*/$(ENGINES_RUN)' ./test/engines

clean: ## remove what was built (build/go, a Go that setup put there, included)
	rm -rf bin build man demo-out
