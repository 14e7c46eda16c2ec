# `make run` and `make test` set everything up themselves in a fresh clone.
VENV := .venv
PYTHON ?= python3
BIN := $(VENV)/bin
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: run test bench lint clean
.DEFAULT_GOAL := run

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@

run: $(VENV)/.ready  ## Start gpudash; without a display it runs in the terminal and leaves a picture.
	GPUDASH_HOME=$(CURDIR)/build $(BIN)/gpudash

test: $(VENV)/.ready  ## Every test that this machine can run.
	$(BIN)/python -m pytest

bench: $(VENV)/.ready  ## The speed budgets, each beside its yardstick.
	$(BIN)/python -m pip install --quiet --no-deps vramtop
	$(BIN)/python -m tests.benchmarks

lint: $(VENV)/.ready  ## Style, types and the boundaries between rooms.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf build dist $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
