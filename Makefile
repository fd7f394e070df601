# Two commands matter: `make run` and `make test`. Both set up everything they need.

VENV := .venv
PYTHON := $(VENV)/bin/python
STAMP := $(VENV)/.installed
SOURCES := core text engine rpc capacity kv_transfer worker router prefill_worker decode_worker services sim baton bench tests

.DEFAULT_GOAL := help
.PHONY: help install run test shared-tests check lint types format proto bench soak clean

help:
	@echo "make run      set up, start the fleet on the default model, answer a sample question, serve until Ctrl-C"
	@echo "make test     set up, run every check and every test"
	@echo "make check    format, lint, types, stubs and house rules"
	@echo "make install  only set up .venv, the models included"
	@echo "make bench    measure; make soak: the long tests; make proto: regenerate stubs"

install: $(STAMP)

$(STAMP): pyproject.toml deploy/install.sh
	@deploy/install.sh $(VENV)

run: install
	@exec $(VENV)/bin/baton up $(ARGS)

check: lint types

lint: install
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/ruff check .
	@$(PYTHON) -m pytest tests/test_tidy.py tests/test_protos.py

types: install
	@$(VENV)/bin/mypy

# Tests of tests/e2e, which are about whole fleets at their full pace, have the machine to themselves; the others
# share its cores, a file at a time in the order of tests/conftest.py, and with mypy, which uses one of them.
# pytest ends with 5 where nothing of a half is left to run, as ARGS may have it.
test: lint
	@$(MAKE) --no-print-directory --jobs 2 types shared-tests
	@$(PYTHON) -m pytest tests/e2e --durations 15 $(ARGS) || [ $$? = $(if $(ARGS),5,0) ]

shared-tests: install
	@$(PYTHON) -m pytest tests --ignore tests/e2e --numprocesses auto --dist loadfile --no-loadscope-reorder --durations 15 $(ARGS) || [ $$? = $(if $(ARGS),5,0) ]

format: install
	@$(VENV)/bin/ruff format .
	@$(VENV)/bin/ruff check --fix .

proto: install
	@PYTHON=$(PYTHON) proto/generate.sh

bench: install
	@$(PYTHON) -m bench.engine $(ARGS)

soak: install
	@BATON_SOAK=1 $(PYTHON) -m pytest tests -m soak $(ARGS)

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
