# Every target makes its own environment in .venv, and does nothing about it when it is up to date.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
export HF_HUB_OFFLINE := 1

.PHONY: demo test test-all lint bench docs

demo: $(VENV)/ready
	$(RUN) examples/demo.py

test: $(VENV)/ready lint
	$(RUN) -m pytest -n 2

test-all: $(VENV)/ready lint
	$(RUN) -m pytest -n 2 -m ""

lint: $(VENV)/ready
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

bench: $(VENV)/ready
	$(VENV)/bin/torchvars benchmark

docs: $(VENV)/docs
	$(RUN) -m sphinx -W --keep-going -b html -d docs/_build/doctrees docs docs/_build/html

$(VENV)/ready: pyproject.toml constraints.txt $(wildcard src/torchvars/sparse/native/kernels/*)
	test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet -c constraints.txt -e ".[dev]"
	touch $@

$(VENV)/docs: $(VENV)/ready
	$(RUN) -m pip install --quiet -c constraints.txt -e ".[docs]"
	touch $@
