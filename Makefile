# make demo, make test and make check do all the set-up they need on a fresh machine.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
CORE := .venv/.core
GUIDE := .venv/.docs
AUDIT := .venv-audit
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# Real data for the tests: a folder with mnist, fashion-mnist, shakespeare. Without one they skip.
UNDRIFT_DATA ?= $(abspath $(firstword $(wildcard data ../data ../shared/data)))

.PHONY: help setup demo docs test test-deploy check format wheel hashes audit clean

help:  ## what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

setup: $(READY)  ## install the project and its tools into .venv

$(CORE): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) torch numpy
	$(PIP) -e .
	touch $@

$(READY): $(CORE)
	$(PIP) -e '.[dev]'
	touch $@

$(GUIDE): $(CORE)
	$(PIP) -e '.[docs]'
	touch $@

demo: $(CORE)  ## the papers' methods on synthetic(1,1): a live table, then a report
	$(BIN)/undrift demo

docs: $(GUIDE)  ## the guide, into site/: open site/index.html in a browser
	$(BIN)/python -m tools.pages.experiment_keys docs/experiment-keys.md
	$(BIN)/python -m tools.pages.commands docs/commands.md
	$(BIN)/undrift schema > docs/experiment.schema.json
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "The guide is in site/index.html: open it in a browser"

check: $(READY)  ## lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

test: export UNDRIFT_DATA := $(UNDRIFT_DATA)
test: check  ## the checks and all tests
	$(BIN)/python -m pytest -n 2 --dist loadgroup -q -m 'not deploy'

test-deploy: $(READY)  ## deployments on Flower with real servers and sites, over loopback
	$(BIN)/python -m pytest -n 2 -q -m deploy tests/test_deploy_*.py tests/test_examples.py tests/test_one_path.py

format: $(READY)  ## put the code in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

wheel: $(READY)  ## build the wheel into dist/
	$(BIN)/python -m build --wheel

hashes: $(CORE)  ## pin the packages of deployment and development with hashes, into requirements-*.txt
	$(BIN)/python -m tools.hashed_requirements flower requirements-flower.txt
	$(BIN)/python -m tools.hashed_requirements dev requirements-dev.txt

# pip-audit has an environment of its own, so that its packages do not change the project's.
audit:  ## look the pinned packages up in a database of known vulnerabilities; needs the internet
	@test -x $(AUDIT)/bin/pip-audit || { $(PYTHON) -m venv $(AUDIT) && \
	  $(AUDIT)/bin/python -m pip install --quiet --disable-pip-version-check pip-audit; }
	@$(AUDIT)/bin/python -m tools.audit requirements-flower.txt

clean:  ## remove what was made
	rm -rf .venv $(AUDIT) dist build site .pytest_cache .mypy_cache .ruff_cache .hypothesis
