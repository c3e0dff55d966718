# Each target does all the set-up it needs, in .venv; `make` alone lists the targets.
# Variables: PYTHON=/path/to/python3.11  which Python makes .venv
#            ARGS="-k cell -x"           further arguments for pytest, or for the demo

PYTHON ?=
ARGS ?=
export PYTHON
# Tests start many processes: each would compile the modules anew, and each test process the tests.
unexport PYTHONDONTWRITEBYTECODE

CORES := $(shell nproc 2>/dev/null || getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
WORKERS := $(shell if [ $(CORES) -gt 4 ]; then echo 4; else echo $(CORES); fi)
# The test processes share the cores: without this each would start one torch thread per core.
TEST_THREADS := $(shell echo $$(($(CORES) / $(WORKERS))))

BIN := .venv/bin
PYTEST = OMP_NUM_THREADS=$${OMP_NUM_THREADS:-$(TEST_THREADS)} $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help setup demo test interpreter nightly every newest oldest cluster examples pages docs lint types format clean

help: ## list the targets
	@echo "usage: make TARGET"
	@sed -n 's/^\([a-z]*\):[^#]*## \(.*\)/  \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 12

demo: ## a minute and a half of molecular dynamics; pictures and a trajectory in demo/
	@./tools/setup.sh view
	@$(BIN)/torchmdx demo $(ARGS)

test: setup ## run the tests (not those that need a GPU, or run for minutes)
	$(PYTEST) -m "not gpu and not nightly and not interpreter" $(ARGS)
	@$(MAKE) --no-print-directory interpreter

# pytest exits with 5 if it selects no test.
interpreter: setup ## run the tests of GPU kernels under Triton's interpreter, on the CPU
	TRITON_INTERPRET=1 $(PYTEST) -m "interpreter and not nightly" $(ARGS) || [ $$? -eq 5 ]

nightly: setup ## run the tests that take long, those of GPU kernels under Triton's interpreter as well
	$(PYTEST) -m "nightly and not gpu and not interpreter" $(ARGS) || [ $$? -eq 5 ]
	TRITON_INTERPRET=1 $(PYTEST) -m "interpreter and nightly" $(ARGS) || [ $$? -eq 5 ]

every: setup ## run the tests of test and nightly, in two passes instead of four
	$(PYTEST) -m "not gpu and not interpreter" $(ARGS)
	TRITON_INTERPRET=1 $(PYTEST) -m "interpreter" $(ARGS)

newest: setup ## run a quick part of the tests with the newest dependencies, in build/newest
	./tools/test_versions.sh newest

oldest: setup ## run them with the oldest dependencies that pyproject.toml allows, in build/oldest
	./tools/test_versions.sh oldest

cluster: setup ## compile the radius search of torch-cluster (once) and run the tests that need it
	./tools/install_torch_cluster.sh
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-$(CORES)} $(BIN)/python -m pytest -m "not gpu and not nightly" -k cluster tests/neighbors $(ARGS)

# One thread: molecules of ten atoms are slower with more.
examples: setup ## run the numbered scripts of examples/, and the notebook
	@set -e; export OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1}; \
	for script in examples/[0-9]*.py; do echo "-- $$script"; $(BIN)/python "$$script"; done; \
	echo "-- examples/tour.ipynb"; $(BIN)/python tools/run_notebook.py examples/tour.ipynb

pages: setup ## check interactive pages in Chromium, without a window; screenshots in build/pages
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-$(CORES)} $(BIN)/python tools/check_pages.py

docs: setup ## build the documentation in build/docs, warnings being errors
	$(BIN)/python -m sphinx -W --keep-going -n -q -b html docs build/docs
	@echo "documentation: build/docs/index.html"

lint: setup ## check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup ## check static types
	$(BIN)/mypy

format: setup ## format the code and mend what ruff can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

setup: ## make .venv, or update it when pyproject.toml or constraints.txt changed
	@./tools/setup.sh

clean: ## remove .venv, caches and build products
	rm -rf .venv build dist out *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find torchmdx tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
