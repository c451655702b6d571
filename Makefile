# The commands of this repository. `make` prints them. Everything is installed into .venv, nothing outside of it.
# ARGS goes to the command behind a target: make demo ARGS="--seconds 20", make test ARGS="tests/tune -x".

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-processes test-systems test-examples test-torch-suite test-mxnet soak release-check gpu-check check docs pictures bench

PYTHON ?= python3
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
MXNET_VENV := .venv-mxnet
CHECKED := src tests examples benchmarks docs/site

# The constraints hold for the build back end too; older pips read the first variable there, newer ones the second.
PIP := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 \
	$(BIN)/python -m pip install
# Installs hundreds of wheels in a fifth of pip's time. It does not read pip's settings: where it fails, pip takes its place.
UV := $(BIN)/uv pip install --python $(BIN)/python --constraints constraints.txt --build-constraints constraints.txt
TORCH := $(shell grep '^torch==' constraints.txt)

help: ## print the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 26

# Where Python is told to keep no bytecode, each of hundreds of interpreters would compile the library anew.
export PYTHONDONTWRITEBYTECODE :=

demo: $(VENV)/run.stamp ## install what is needed, then search LeNet's learning rate and batch size for a minute
	$(BIN)/fanwise demo $(ARGS)

# Three at a time, also on two cores: many tests wait for processes, clocks and cables, and each process more loads torch
# and compiles with JAX anew. tests/conftest.py says which files begin.
PYTEST := $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder
# Whole programs, which run for as long as readers wait for them. What they use is tested by `make test`.
PROGRAMS := tests/docs tests/examples tests/sources
# What needs more than processes: a Ray cluster, hosts with cables between them, SLURM and MPI, a browser. They mostly wait.
SYSTEM_PATTERNS := tests/board/test_in_a_browser.py tests/links/test_liveness.py tests/parallel/cluster \
	tests/parallel/launchers/test_launchers.py tests/pool/cluster tests/rpc/test_two_hosts.py
# What starts processes, stops and kills them, and waits for what becomes of the others.
PROCESS_PATTERNS := tests/benchmarks tests/cli tests/gpu_check tests/links/test_processes.py tests/parallel/data/test_loader.py \
	tests/parallel/gpus/test_captured.py tests/parallel/gpus/test_leases.py tests/parallel/gpus/test_stand_in.py \
	tests/parallel/processes tests/parallel/launchers tests/pool/processes tests/rpc/test_*processes.py $(foreach what, \
	first_calls group_tls sendable_values rpc_* spawn switch_interval worker_events,tests/rpc/test_$(what).py) \
	tests/tensor/test_tensor_processes.py \
	$(foreach what,background control notebooks search_function resume* trials_with_checkpoints tuner*,tests/tune/test_$(what).py)
# tests/arch/test_tiers.py checks that every pattern matches files.
SYSTEMS := $(wildcard $(SYSTEM_PATTERNS))
PROCESSES := $(wildcard $(PROCESS_PATTERNS))
# The folder as a whole: pytest loads the conftest of each folder that is named, torch among it, where it tests nothing.
TESTS := tests $(PROGRAMS:%=--ignore=%) $(PROCESSES:%=--ignore=%) $(SYSTEMS:%=--ignore=%)
test: $(VENV)/dev.stamp ## run the tests of the library, but for those below (5 minutes)
	$(PYTEST) $(if $(findstring tests/,$(ARGS)),,$(TESTS)) $(ARGS)

test-processes: $(VENV)/dev.stamp ## run the tests that start processes, kill them, and wait for the others (4 minutes)
	$(PYTEST) $(if $(findstring tests/,$(ARGS)),,$(PROCESSES) $(SYSTEMS:%=--ignore=%)) $(ARGS)

test-systems: $(VENV)/dev.stamp ## run the tests with a Ray cluster, several hosts, SLURM, MPI and a browser, as far as they are here (2 minutes)
	$(PYTEST) $(if $(findstring tests/,$(ARGS)),,$(SYSTEMS)) $(ARGS)

test-examples: $(VENV)/dev.stamp ## run every example, every code block of the documents, and the programs of the sources (4 minutes)
	$(PYTEST) $(if $(findstring tests/,$(ARGS)),,$(PROGRAMS)) $(ARGS)

test-torch-suite: $(VENV)/dev.stamp ## run torch's own RPC tests against fanwise.rpc (2 minutes; needs torch 2.13)
	$(BIN)/python tests/torch_suite/run.py --impl fanwise.rpc --groups generic,tensorpipe,faulty --tags core,compat \
		--retries 0 $(ARGS)

# MXNet is retired and needs an old numpy: an environment of its own. The other worker of its group lives in .venv.
test-mxnet: $(VENV)/dev.stamp $(MXNET_VENV)/stamp ## run the example of an engine and the book's programs on MXNet 1.9.1 (Python 3.11; 2 minutes the first time)
	PYTHONPATH=src $(MXNET_VENV)/bin/python examples/own_engine.py
	$(BIN)/python -m pytest tests/sources/test_mxnet.py $(ARGS)

soak: $(VENV)/dev.stamp ## run the long tests: hundreds of kills, long searches, thousands of examples (minutes)
	$(BIN)/python -m pytest -m "soak or hypothesis" --hypothesis-profile=soak -o faulthandler_timeout=1800 $(ARGS)

release-check: $(VENV)/dev.stamp ## build wheel and sdist into dist/, install the wheel alone, and run the README's lines (1 to 2 minutes)
	$(BIN)/python tests/release/release_check.py --python "$(PYTHON)" $(ARGS)

# An interpreter that has a torch with CUDA already, used as it is: make gpu-check GPU_PYTHON=python3
GPU_PYTHON ?=
gpu-check: $(if $(GPU_PYTHON),,$(VENV)/dev.stamp) ## run every test and benchmark that needs a GPU, and print one table (10 to 20 minutes)
	$(or $(GPU_PYTHON),$(BIN)/python) tests/gpu_check/gpu_check.py $(ARGS)

check: $(VENV)/dev.stamp ## lint, formatting, types
	$(BIN)/ruff check $(CHECKED)
	$(BIN)/ruff format --check $(CHECKED)
	$(BIN)/mypy

# The pages are written for the repository; docs/site/pages.py makes those of the site of them. A broken link is an error.
docs: $(VENV)/docs.stamp ## build the site of the documents into site/; open site/index.html (half a minute)
	$(BIN)/python docs/site/pages.py .site-pages
	$(BIN)/zensical build --strict --clean
	@! grep -rnoE '<(script|link|img)[^>]+(src|href)="?https?://[^" >]+' site --include='*.html' || \
		{ echo "a page loads something from elsewhere" >&2; exit 1; }

pictures: $(VENV)/dev.stamp ## draw the figures of docs/img (15 minutes on an idle machine)
	$(BIN)/python docs/site/pictures.py $(ARGS)

# Beside an older checkout: $(BIN)/python benchmarks/before_and_after.py ../before
bench: $(VENV)/dev.stamp ## measure, beside the peers, in environments that the scripts make (long)
	for script in $(filter-out benchmarks/before_and_after.py,$(wildcard benchmarks/*.py)); do echo "== $$script"; $(BIN)/python "$$script" $(ARGS); done

# A stamp says: installed as pyproject.toml and constraints.txt stand now. So the second `make demo` starts at once. Most
# modules are never imported: those that are keep their bytecode then, and the first demo begins half a minute sooner.
$(VENV)/run.stamp: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --no-compile $(TORCH)
	$(PIP) --no-compile -e '.[demo]'
	touch $@

$(VENV)/dev.stamp: $(VENV)/run.stamp
	$(PIP) uv
	$(UV) -e '.[dev]' || $(PIP) -e '.[dev]'
	touch $@

$(VENV)/docs.stamp: $(VENV)/run.stamp
	$(PIP) uv
	$(UV) -e '.[docs]' || $(PIP) -e '.[docs]'
	touch $@

$(BIN)/python:
	@command -v "$(PYTHON)" >/dev/null || { \
		echo "No '$(PYTHON)' here. Install Python 3.11 or newer, or name one: make demo PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "fanwise needs Python 3.11 or newer, '$(PYTHON)' is $$("$(PYTHON)" -V 2>&1)." \
			"Name another: make demo PYTHON=python3.11" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' || { \
		echo "'$(PYTHON)' cannot make virtual environments. On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	"$(PYTHON)" -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(MXNET_VENV)/stamp: tests/sources/mxnet_environment.txt
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { \
		echo "MXNet needs Python 3.11, '$(PYTHON)' is $$("$(PYTHON)" -V 2>&1). Name one: make test-mxnet PYTHON=python3.11" >&2; exit 1; }
	"$(PYTHON)" -m venv $(MXNET_VENV)
	$(MXNET_VENV)/bin/python -m pip install $(TORCH)
	$(MXNET_VENV)/bin/python -m pip install -r tests/sources/mxnet_environment.txt
	touch $@
