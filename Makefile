# Instar: `make demo` runs the main job, `make test` passes the tests. Everything else hangs off `setup`.
SHELL := /bin/bash
PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13; do command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-done
ARGS ?=

.PHONY: setup up down demo test test-fast lint gate bench lock clean

setup: $(STAMP)

$(STAMP): pyproject.toml requirements.lock tools/setup.sh
	@PYTHON="$(PYTHON)" VENV="$(VENV)" bash tools/setup.sh
	@touch $@

up: setup
	$(BIN)/instar up

down: setup
	$(BIN)/instar down

demo: setup
	@$(BIN)/instar demo $(ARGS)

test: setup
	$(BIN)/python -m pytest -q -n 2 --dist worksteal $(ARGS)

test-fast: setup
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not slow" $(ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/pyright

gate: setup
	$(BIN)/python -m benchmarks.gate $(ARGS)

bench: setup
	$(BIN)/python -m benchmarks.run $(ARGS)

# Resolves requirements.lock anew from pyproject.toml. torch is left out: setup installs it first.
lock: setup
	bash tools/lock.sh

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
