# The workshop's commands. Each does its own set-up and is quick the second time.
#
#   make workshop   install, run the notebooks on two ranks, leave the results in out/
#   make test       install, run the tests
#   make test-all   the tests, with the slow ones
#   make lab        JupyterLab on the notebooks
#   make pair       write notebooks/*.ipynb from notebooks/text/*.py
#   make lint       ruff, and whether the notebooks agree with their texts
#   make constraints  pin in constraints.txt what .venv holds
#
# PYTHON=python3.11   the Python that .venv is made from
# TORCH_INDEX=URL     where torch comes from; the CPU build saves a large download (see README.md)

PYTHON ?= python3
TORCH_INDEX ?=
OUT ?= out
LAB_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
TORCH := $(shell grep '^torch==' constraints.txt)
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Stamps: newer than what they were installed from, or pip runs again.
WORKSHOP := $(VENV)/.installed-workshop
DEV := $(VENV)/.installed-dev

# In an activated environment the tools of .venv are on PATH; in these recipes too.
ACTIVE := PATH="$(CURDIR)/$(BIN):$$PATH"

.DEFAULT_GOAL := help
.PHONY: help workshop test test-all lab pair lint constraints

help:
	@sed -n 's/^#   make/make/p' Makefile

workshop: $(WORKSHOP)
	$(ACTIVE) $(BIN)/dskit notebooks --out $(OUT)

test: $(DEV)
	$(ACTIVE) $(BIN)/pytest

test-all: $(DEV)
	$(ACTIVE) $(BIN)/pytest -m ""

lab: $(WORKSHOP)
	$(ACTIVE) $(BIN)/jupyter lab $(LAB_ARGS) notebooks

pair: $(WORKSHOP)
	$(BIN)/dskit pair

lint: $(DEV)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/dskit pair --check

constraints: $(DEV)
	{ grep '^#' constraints.txt; $(PIP) freeze --all --exclude pip --exclude-editable | sed 's/+[a-z0-9.]*$$//'; } > $(VENV)/pins
	cp $(VENV)/pins constraints.txt

$(WORKSHOP): pyproject.toml constraints.txt | $(BIN)/pip
	$(call install,workshop)
	touch $@

$(DEV): pyproject.toml constraints.txt | $(BIN)/pip
	$(call install,workshop$(comma)dev)
	touch $@ $(WORKSHOP)

# pip, not python: a Debian without python3-venv leaves a .venv that has python and no pip.
$(BIN)/pip:
	$(PYTHON) -m venv $(VENV)

comma := ,

# torch goes first and alone, in exactly its pinned version: nothing later can then pull in another build.
# What it depends on comes with the rest, from the usual index, in the pinned versions.
define install
$(PIP) install --no-deps $(addprefix --index-url ,$(TORCH_INDEX)) $(TORCH)
$(PIP) install -c constraints.txt -e '.[$(1)]'
endef
