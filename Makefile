# Two commands from a clean checkout: `make demo` trains a small model and gets right answers from it, `make test` runs
# the tests. Both use one .venv, made from requirements.lock (hashes, no index host).
#
#   PYTHON=python3.12 make test        another interpreter (3.11 or newer)
#   TORCH_INDEX=URL make demo          take torch from this index instead of the lock: a CPU wheel is 0.2 GB where the
#                                      locked CUDA build needs 4.8 GB. This one package is then installed without a hash.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PYTEST := $(BIN)/python -m pytest
REPORTS ?= .cache/reports
# Two workers; ranks and threads inside a test are bounded by the tests themselves.
WORKERS ?= 2
PLAIN  := not slow and not cluster and not image and not npu

.PHONY: demo test lint unit test-slow test-cluster test-image test-npu format lock venv clean help

help:            ## Show what there is to make.
	@grep -hE '^[a-z-]+: .*##|^[a-z-]+:  +##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

venv: $(STAMP)   ## Make .venv from the lock.

$(STAMP): requirements.lock pyproject.toml dev/install.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}: PYTHON=python3.12 make …")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python dev/install.py
	@touch $@

demo: $(STAMP)   ## Train a small model on this computer and check its answers.
	$(BIN)/nanochat-npu submit tiny --backend local --follow --rerun --yes
	@echo 'The command nanochat-npu is in $(BIN): . $(BIN)/activate'

test: lint unit  ## Lint, types, import contracts and all tests but the slow ones.

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports importlinter.ini

unit: $(STAMP)
	@mkdir -p $(REPORTS)
	$(PYTEST) -q -n $(WORKERS) --dist loadgroup -m "$(PLAIN)" --junitxml $(REPORTS)/unit.xml

test-slow: $(STAMP)     ## Convergence beside upstream's curve, 12 and 24 ranks, the browser.
	@mkdir -p $(REPORTS)
	$(PYTEST) -q -n $(WORKERS) --dist loadgroup -m slow --timeout 1800 --junitxml $(REPORTS)/slow.xml

test-cluster: $(STAMP)  ## A real API server with fake 910B nodes (needs Go the first time).
	@mkdir -p $(REPORTS)
	$(PYTEST) -q -m cluster --timeout 900 --junitxml $(REPORTS)/cluster.xml

test-image: $(STAMP)    ## Build the image for real with buildah (needs root and Debian's buildah).
	@mkdir -p $(REPORTS)
	$(PYTEST) -q -m image --timeout 1800 --junitxml $(REPORTS)/image.xml

test-npu: $(STAMP)      ## On a machine with NPUs.
	$(PYTEST) -q -m npu

format: $(STAMP) ## Sort imports and fix what ruff can fix.
	$(BIN)/ruff check --fix .

lock:            ## Make requirements.lock anew (needs uv).
	uv pip compile pyproject.toml --all-extras --group test --group lint --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-annotate -c constraints.txt -o requirements.lock

clean:
	rm -rf $(VENV) .cache .pytest_cache .mypy_cache .ruff_cache
