PYTHON ?= python3
PY     := .venv/bin/python
PEERS  := .venv-peers/bin/python
PIP    := -m pip --disable-pip-version-check -qq install -c constraints.txt

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test check docs bench bench-peers ratios tables clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: .venv/.installed-run ## watch a small federation learn with few labels
	@.venv/bin/tacit demo

test: check ## check, then run all tests
	@$(PY) -m pytest -n auto --dist loadfile --no-loadscope-reorder

check: .venv/.installed-dev ## lint, format and types
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy

docs: .venv/.installed-dev ## build the pages in docs/ as a site in site/
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict
	@echo "open site/index.html"

bench: .venv/.installed-run ## measure speed: rounds, growing numbers of clients, a FixMatch step, augmentation
	@$(PY) benchmarks/speed.py w1
	@$(PY) benchmarks/speed.py scale
	@$(PY) benchmarks/speed.py ssl
	@$(PY) benchmarks/speed.py fedmatch
	@$(PY) benchmarks/augment.py

bench-peers: .venv-peers/.installed ## the same workload on pfl-research and Flower, in a second environment
	@$(PEERS) benchmarks/speed.py w1 --peers

ratios: .venv/.installed-dev .venv-peers/.installed ## all of these and a round on Flower; fill the docs with what came out
	@$(PY) benchmarks/ratios.py

tables: .venv/.installed-dev ## fill the tables in the docs and of the command line from results and code
	@.venv/bin/tacit bench docs README.md docs
	@$(PY) -m scripts.option_table
	@$(PY) -m scripts.site_pages

clean: ## remove environments, caches and builds; runs/ stays
	@rm -rf .venv .venv-peers .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist site
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch comes first and alone: the constraint then decides which build is taken, and nothing after it changes that.
define environment
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "tacit needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	@echo "setting up $(1) (first time only, about a minute) …"
	@$(1)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(1)
	@$(1)/bin/python $(PIP) torch
endef

.venv/.installed-run: pyproject.toml constraints.txt
	$(call environment,.venv)
	@$(PY) $(PIP) -e .
	@touch $@

.venv/.installed-dev: pyproject.toml constraints.txt
	$(call environment,.venv)
	@$(PY) $(PIP) -e '.[dev,docs,flower,hf,mlflow,onnx,tensorboard]'
	@touch .venv/.installed-run $@

.venv-peers/.installed: pyproject.toml constraints.txt
	$(call environment,.venv-peers)
	@$(PEERS) $(PIP) 'pfl[pytorch]>=0.6' -e '.[flower]'
	@touch $@
