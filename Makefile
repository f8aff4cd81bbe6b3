# Every target makes its own environment in .venv, and does nothing about it when it is up to date.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
export HF_HUB_OFFLINE := 1

.PHONY: demo test test-all test-web lint bench docs web

demo: $(VENV)/ready
	$(RUN) examples/demo.py

test: $(VENV)/ready lint
	$(RUN) -m pytest -n 2

test-all: $(VENV)/ready lint
	$(RUN) -m pytest -n 2 -m "not browser"

# The explorer in a real browser: skipped, with the reason, where there is no Chromium (CHROMIUM=/path/to/it).
test-web: $(VENV)/web
	$(RUN) -m pytest -n 0 -rs -m browser tests/explorer

lint: $(VENV)/ready
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/basedpyright --pythonpath $(RUN)

bench: $(VENV)/ready
	$(VENV)/bin/torchvars benchmark

docs: $(VENV)/docs
	$(RUN) -m sphinx -W --keep-going -b html -d docs/_build/doctrees docs docs/_build/html

# Builds the page of the explorer. Node and npm are needed for this alone: the built page is part of the repository.
web: $(VENV)/web web/node_modules/ready
	$(RUN) web/draw_samples.py
	$(RUN) web/assets.py
	cd web && npm run check && npm run build

web/node_modules/ready: web/package.json web/package-lock.json
	cd web && npm ci --ignore-scripts --no-audit --no-fund
	touch $@

$(VENV)/ready: pyproject.toml constraints.txt $(wildcard src/torchvars/sparse/native/kernels/*)
	test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet -c constraints.txt -e ".[dev]"
	touch $@

$(VENV)/docs: $(VENV)/ready
	$(RUN) -m pip install --quiet -c constraints.txt -e ".[docs]"
	touch $@

$(VENV)/web: $(VENV)/ready
	$(RUN) -m pip install --quiet -c constraints.txt -e ".[web]"
	touch $@
