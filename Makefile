# Every target sets up what it needs in .venv; nothing has to be installed first but Python and make.

PYTHON ?= python3
ARGS   ?=
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install -qq --disable-pip-version-check

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test test-all lint types check bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.installed-run ## run the demo and write its report to runs/demo
	$(BIN)/coterie run --config examples/demo.toml --out runs/demo --overwrite
	$(BIN)/coterie report runs/demo

test: $(VENV)/.installed-test ## run the tests that answer within minutes (ARGS="..." goes to pytest)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow" $(ARGS)

test-all: $(VENV)/.installed-test ## run every test there is, with coverage
	$(BIN)/python -m pytest -n 2 --dist worksteal --cov --cov-report=term $(ARGS)

lint: $(VENV)/.installed-dev ## check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev ## check types
	$(BIN)/mypy

check: lint types test ## lint, types and the quick tests

bench: $(VENV)/.installed-run ## run the benchmarks and name what became worse (ARGS="--keep" keeps the ratios)
	$(BIN)/python benchmarks/compare.py $(ARGS)

clean: ## remove the environment, caches and build outputs (runs/ stays)
	rm -rf $(VENV) build dist .coverage .coverage.* htmlcov .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || \
	  { echo "No '$(PYTHON)' found: install Python 3.11 or newer, or name one: make PYTHON=python3.12"; exit 1; } >&2
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Coterie needs Python 3.11 or newer, and '$(PYTHON)' is older: name another: make PYTHON=python3.12"; exit 1; } >&2
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "'$(PYTHON)' cannot make virtual environments: apt install python3-venv"; exit 1; } >&2
	$(PYTHON) -m venv --clear $(VENV)

# A stamp is older than pyproject.toml, and so made anew, only when the latter has changed.
$(VENV)/.installed-run: pyproject.toml | $(BIN)/python
	$(PIP) --editable .
	@touch $@

$(VENV)/.installed-test: pyproject.toml | $(BIN)/python
	$(PIP) --editable '.[test]'
	@touch $(VENV)/.installed-run $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	$(PIP) --editable '.[dev]'
	@touch $(VENV)/.installed-run $(VENV)/.installed-test $@
