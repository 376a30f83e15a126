# Two commands do all the set-up on a fresh Linux machine with Python 3.11+ and a C++ compiler:
#   make demo    the whole way on a real model      make test    the tests
# Both make their own virtual environment in .venv and can be run again cheaply.

SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
PYTHON ?= python3
VENV   := .venv
OPS    := test
# The build of torch depends on the machine, so it has no check sum in constraints.txt.
TORCH  := 2.13.0
BIN    := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Launchers, ninja and shellcheck of the environment come first: another ninja would build every op
# of DeepSpeed again, as its log has another version.
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: help test test-all unit lint docs demo bench ops system clean

help:  ## show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(VENV)/.installed: pyproject.toml constraints.txt
	@echo "== virtual environment in $(VENV): torch, deepspeed, transformers, test tools (minutes the first time)"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-deps --require-hashes -r constraints.txt
	$(BIN)/pip install --quiet torch==$(TORCH)
	$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	$(BIN)/python -m compileall -q dsforge  # an editable install is not compiled ahead
	touch $@

system:
	@scripts/system.sh

ops: $(VENV)/.installed system
	@echo "== C++ ops of DeepSpeed (built once, kept in the user's cache)"
	@$(BIN)/python scripts/ops.py $(OPS) 2>&1 | grep --line-buffered '^ops:'

# Launches have the machine to themselves; the others share it between two processes. Both parts run
# whatever becomes of the first: a failed launch must not hide what else is broken. `make test` tries the
# same inputs of each property whenever it runs on the same code, as a commit is good or it is not;
# `make test-all` and pytest by itself look for new ones.
define run-tests
@failed=0; \
echo "== tests that launch ranks"; \
$(BIN)/python -m pytest -m "launch$(1)" $(2) || failed=1; \
echo "== all other tests"; \
$(BIN)/python -m pytest -m "not launch$(1)" $(2) -n 2 --dist loadfile || failed=1; \
exit $$failed
endef

test: ops  ## everything but the slow tests
	$(call run-tests, and not slow,--hypothesis-profile=ci)

test-all: OPS := all
test-all: ops  ## the slow tests too, NVMe offload among them
	$(call run-tests)

unit: $(VENV)/.installed  ## the fast tests, no torch
	$(BIN)/python -m pytest tests/unit -n 2 --dist loadfile

lint: $(VENV)/.installed docs  ## ruff, formatting, types, the documentation with strict links
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.installed  ## the documentation as a site in build/site, every link checked
	$(BIN)/python scripts/site.py

demo: OPS := demo
demo: ops  ## SmolLM2 on this machine: gen, ZeRO-2 launch, ZeRO-2 against ZeRO-3
	examples/demo.sh

bench: $(VENV)/.installed  ## wall time of `dsforge gen`
	$(BIN)/python benchmarks/gen_time.py

clean:  ## remove the environment and caches of this folder
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build demo
