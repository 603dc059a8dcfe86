# Every target works on its own; `make` alone builds. The continuous run is .ci/run.

export CGO_ENABLED := 0

GO        ?= go
FUZZTIME  ?= 20s
BENCHARGS ?=
TOOLS_MOD := tools/go.mod tools/go.sum

.PHONY: build test lint e2e fuzz bench tools clean

# The go command knows best what is stale, so bin/signalbox is no file target.
build:
	$(GO) build -o bin/signalbox ./cmd/signalbox

test:
	$(GO) test ./...

lint: bin/golangci-lint
	bin/golangci-lint run ./...

# Needs the sqlite3 shell on PATH; the stock nats CLI is built here.
e2e: bin/nats
	PATH="$(CURDIR)/bin:$$PATH" $(GO) test -tags e2e -count=1 -timeout 25m ./e2e/...

# The go command fuzzes one function of one package at a time.
fuzz:
	@set -e; \
	grep -rn --include='*_test.go' -E '^func Fuzz[A-Za-z0-9_]*\(' . | \
	sed -E 's|^(.*)/[^/]+:[0-9]+:func (Fuzz[A-Za-z0-9_]*)\(.*|\1 \2|' | \
	while read -r dir name; do \
		echo "== $$dir $$name"; \
		$(GO) test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) "$$dir"; \
	done

bench: build
	bin/signalbox bench $(BENCHARGS)

tools: bin/nats bin/golangci-lint

# tools/ is a module of its own, so that no linter decides the product's versions.
bin/nats: $(TOOLS_MOD)
	$(GO) -C tools build -o ../bin/nats github.com/nats-io/natscli/nats
	@touch $@

bin/golangci-lint: $(TOOLS_MOD)
	$(GO) -C tools build -o ../bin/golangci-lint github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	@touch $@

clean:
	rm -rf bin
	$(GO) clean -testcache
