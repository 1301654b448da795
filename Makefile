# `make test` and `make bench` do all set-up on a fresh machine: Python 3.10 or newer with venv, and
# a C++20 compiler, are all they ask for.
#   VENV=DIR      the virtual environment's place; it is reused when it is there
#   PYTHON=EXE    the interpreter it is made from
#   PYTEST="..."  more arguments for pytest, BENCH="..." for the benchmark, COMPAT="2.11 ..." versions
PYTHON ?= python3
VENV ?= .venv
PYTEST ?=
BENCH ?=
COMPAT ?=

# Absolute, and first on PATH, so that cmake and ninja are the environment's own.
venv := $(abspath $(VENV))
export PATH := $(venv)/bin:$(PATH)
python := $(venv)/bin/python
ready := $(venv)/gpumem_alloc.source
presets := asan-ubsan tsan audit

.PHONY: help test bench module cpp pytest compat check format tidy docs sanitize dist clean force
help:
	@echo "make test      everything: set-up, C++ tests, Python tests"
	@echo "make bench     the main measurement, on the GPU or by replay; ends in a table and a PNG"
	@echo "make compat    the bridge against every torch to be had, about 0.5 GB each"
	@echo "make check     formatting, lint, types, generated docs    (make format repairs)"
	@echo "make sanitize  C++ tests under asan-ubsan, tsan (those with threads) and audit"
	@echo "make tidy      clang-tidy    make docs  generated tables    make dist  sdist and wheel"

test: cpp pytest

bench: module
	$(python) -m gpumem_alloc bench --install --pictures benchmarks/out $(BENCH)

# The environment is made anew when its requirements change, or when it serves another checkout.
ifneq ($(shell cat $(ready) 2>/dev/null),$(CURDIR))
$(ready): force
endif
$(ready): pyproject.toml tools/bootstrap.py
	$(PYTHON) tools/bootstrap.py $(venv) test bench

module: $(ready)
	CMAKE_ARGS="-DGMA_WERROR=ON $(CMAKE_ARGS)" $(python) setup.py --quiet build_ext --inplace

cpp: $(ready)
	cmake --preset dev
	cmake --build --preset dev
	ctest --preset dev

# Tests on a card watch its memory, so they run one by one.
processes := $(if $(wildcard /dev/nvidiactl /dev/dxg),0,auto)
pytest: module
	GMA_OFFLINE=$${GMA_OFFLINE:-$$(cat $(venv)/gpumem_alloc.offline)} $(python) -m pytest -n $(processes) --dist worksteal $(PYTEST)

compat: module
	$(python) tools/compat.py $(COMPAT)

sanitize: $(ready)
	set -e; for preset in $(presets); do \
	    cmake --preset $$preset; cmake --build --preset $$preset; ctest --preset $$preset; done

# The linters' environment: the same one, with the extra `dev`.
linters := $(venv)/gpumem_alloc.linters
$(linters): $(ready)
	$(python) -m pip install --quiet $$($(python) tools/bootstrap.py --list dev)
	touch $@

ours := $(shell find csrc tests -name '*.h' -o -name '*.cpp' -o -name '*.cu' | grep -v third_party)
check: $(linters)
	clang-format --dry-run --Werror $(ours)
	$(python) -m ruff format --check .
	$(python) -m ruff check .
	$(python) -m mypy
	$(python) tools/generate_docs.py --check

format: $(linters)
	clang-format -i $(ours)
	$(python) -m ruff format .
	$(python) -m ruff check --fix .

tidy: $(linters) cpp
	clang-tidy -p build/dev --quiet $(filter csrc/base/% csrc/driver/% csrc/core/% csrc/replay/%,$(filter %.cpp,$(ours)))

docs:
	$(PYTHON) tools/generate_docs.py

dist: $(linters)
	$(python) -m build --outdir dist .

clean:
	rm -rf build dist gpumem_alloc/*.so *.egg-info
