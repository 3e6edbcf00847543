# Every target is a command that a newcomer may run on a fresh clone. `.ci/run` uses the same ones.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
export BREAKEVEN_DATA_DIR ?= .breakeven

.DEFAULT_GOAL := help
.PHONY: help setup model browser charts run demo test test-fast verify test-vllm bench docs lint format types layers check

help: ## Show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[engine,dev]'
	touch $@

setup: $(STAMP) model ## Create .venv with everything and fetch the model

model: $(STAMP)
	$(BIN)/breakeven models fetch

browser: $(STAMP) ## Find or install a Chromium for the browser tests
	$(BIN)/python -m tests.browser

VENDOR := gateway/ops/static/vendor
charts: ## Renew the chart library that the page serves, from the npm package pinned there
	cd $(VENDOR) && npm ci --ignore-scripts --no-audit --no-fund && cp node_modules/uplot/dist/uPlot.iife.min.js uPlot.js
	cd $(VENDOR) && cp node_modules/uplot/dist/uPlot.min.css uPlot.css && cp node_modules/uplot/LICENSE . && rm -r node_modules

run: setup ## Serve on http://127.0.0.1:8000 with embedded Redis, SQLite and model
	$(BIN)/breakeven serve

demo: $(STAMP) ## Send a mixed workload to the running server and show what speculation gained and cost
	$(BIN)/breakeven demo

# One torch thread each: two would fight for two cores. Three processes, as tests of servers often wait. Files in their
# order: those of whole servers, few tests but long ones, come first, so that no process is left with them at the end.
# What Python compiles is kept, whatever the environment says: some fifty processes are started.
test: setup browser ## All tests but the long ones (≤ 6 minutes on two cores)
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder

test-fast: $(STAMP) ## The quick subset (≤ 2 minutes)
	$(BIN)/python -m pytest -q tests/unit tests/repo -m 'not slow and not verify and not gpu and not model'

verify: setup browser ## The long matrices, fuzz and big data; results go to benchmarks/results/
	$(BIN)/python -m pytest -q -m verify --timeout 3600

.venv-vllm/.installed: tests/vllm/requirements.txt
	test -x .venv-vllm/bin/python || $(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r tests/vllm/requirements.txt
	touch $@

test-vllm: setup .venv-vllm/.installed ## The gateway before real vLLM servers on the CPU (minutes; 3 GB of downloads at first)
	$(BIN)/python -m pytest -q -m vllm --timeout 1800 tests/vllm

bench: setup ## Measure; tables and JSON go to benchmarks/results/
	$(BIN)/python -m benchmarks

docs: $(STAMP) browser ## Renew the module list and, from the gateway that runs, the pictures
	$(BIN)/python -m tests.repo.modules --write
	$(BIN)/python -m tests.e2e.pictures

lint: $(STAMP) ## ruff: rules and format
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

format: $(STAMP) ## Let ruff rewrite
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

types: $(STAMP) ## mypy, strict
	$(BIN)/mypy

layers: $(STAMP) ## import-linter
	$(BIN)/lint-imports

check: lint types layers test-fast ## What pre-commit runs
