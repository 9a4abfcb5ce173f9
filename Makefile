# logscope: everything runs in a virtual environment of its own, ./.venv; nothing else is touched.
#
#   make demo    analyse a real log, print the answer, write out/report.html
#   make test    the whole suite            make lint   ruff and mypy
#   make bench   the benchmarks             make clean  remove what make made (not .venv: make distclean)
#   make fuzz    mutate real logs for MINUTES=5, look for what breaks

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
SAMPLE ?= samples/v1-under-pressure.log
JOBS   ?= auto
# pytest's own options, e.g. make test PYTEST_ARGS='-k report -x'
PYTEST_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo test lint format bench fuzz wheel readme man clean distclean

help:
	@sed -n 's/^#   //p' Makefile

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "logscope needs Python 3.10 or newer; $(PYTHON) is older or missing. Name another: make PYTHON=python3.12 …" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "$(PYTHON) cannot make virtual environments. On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Two stamps: the demo needs only what a user needs.
$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@ $(VENV)/.installed

demo: $(VENV)/.installed
	@mkdir -p out
	@$(BIN)/logscope analyze $(SAMPLE) --html out/report.html
	@echo; echo "The full report: out/report.html (one file, opens in any browser, needs no network)"

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(PYTEST_ARGS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.installed-dev
	@set -e; for script in benchmarks/bench_*.py; do \
	  [ -e "$$script" ] || { echo "no benchmarks/bench_*.py yet"; break; }; \
	  echo "== $$script"; $(BIN)/python "$$script"; done

# Finds go to out/fuzz. Only some targets: make fuzz FUZZ_ARGS='--targets state,fleet'; guided by coverage (atheris, from the extra
# `fuzz`): make fuzz FUZZ_ARGS=--coverage
MINUTES ?= 5
FUZZ_ARGS ?=
fuzz: $(VENV)/.installed-dev
	$(BIN)/python -m tests.fuzz.drive --minutes $(MINUTES) $(FUZZ_ARGS)

wheel: $(VENV)/.installed-dev
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

man: $(VENV)/.installed
	$(BIN)/python docs/make_man.py out/logscope.1

readme: $(VENV)/.installed-dev
	$(BIN)/python docs/refresh_readme.py

clean:
	rm -rf out build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find logscope parsers reference_engine tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)
