# Every target sets up what it needs, in three steps: what running needs (requirements.txt), what audits need on top of
# that (requirements-audit.txt: Spark), everything (requirements-dev.txt). Each step is done once per content of its lock
# and of pyproject.toml; one that was interrupted is done again, over whatever it left.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
sum = $(shell cat $(1) pyproject.toml | cksum | cut -d' ' -f1)
RUN := $(VENV)/.setup-run-$(call sum,requirements.txt)
AUDIT := $(VENV)/.setup-audit-$(call sum,requirements-audit.txt)
ALL := $(VENV)/.setup-all-$(call sum,requirements-dev.txt)
# Images of containers often forbid bytecode: each of the thousand processes that the tests start then compiled every
# module anew (0.3 s of a node's 1.7), and each pytest all tests.
unexport PYTHONDONTWRITEBYTECODE
PIP_INSTALL := $(BIN)/pip install --disable-pip-version-check --quiet
# One pip at a time in one environment. An audit that starts meanwhile waits for this lock (app/audit/spark.py).
LOCKED := $(if $(shell command -v flock),flock --no-fork $(VENV)/.audit.lock)
# By another name: a line with $(MAKE) in it would run, and the demo with it, under `make -n`.
AGAIN := $(MAKE)
# Where the machine has it: the installation in the background ends with the demo that wanted it.
WITH_PARENT := $(if $(shell command -v setpriv),setpriv --pdeathsig TERM)

.PHONY: setup demo test prove lint types imports collect bench clean lock

setup: $(ALL)

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed; this is " + sys.version.split()[0] + ". Set PYTHON=…") if sys.version_info < (3, 11) else None'
	@echo "setup: creating $(VENV)"; $(PYTHON) -m venv $(VENV) || { echo "setup: the venv module is missing: apt-get install python3-venv"; exit 1; }

$(RUN): | $(BIN)/pip
	@echo "setup: installing what running needs (290 MB in $(VENV); the first time takes a minute or more)"
	@$(LOCKED) $(PIP_INSTALL) --require-hashes -r requirements.txt
	@$(PIP_INSTALL) --no-deps --no-build-isolation -e .
	@$(BIN)/pip check
	@rm -f $(VENV)/.setup-run-*; touch $@

$(AUDIT): $(RUN)
	@echo "setup: installing Spark for audits (PySpark is 456 MB)"
	@$(LOCKED) $(PIP_INSTALL) --require-hashes -r requirements-audit.txt
	@rm -f $(VENV)/.setup-audit-*; touch $@

$(ALL): | $(BIN)/pip
	@echo "setup: installing everything (PySpark alone is 456 MB; the first time takes some minutes)"
	@$(LOCKED) $(PIP_INSTALL) --require-hashes -r requirements-dev.txt
	@$(PIP_INSTALL) --no-deps --no-build-isolation -e .
	@$(BIN)/pip check
	@rm -f $(VENV)/.setup-*; touch $(RUN) $(AUDIT) $@
	@echo "setup: ready"

# The first page comes first: Spark is installed while it is looked at.
demo: $(RUN)
	@test -e $(AUDIT) || { echo "demo: Spark, for audits, is installed meanwhile (see $(VENV)/audit.log)"; \
	  $(WITH_PARENT) nice $(AGAIN) --no-print-directory $(AUDIT) >$(VENV)/audit.log 2>&1 & }; \
	exec $(BIN)/quorumscope demo $(ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest -q tests/unit/test_words.py

types: setup
	$(BIN)/mypy

imports: setup
	$(BIN)/lint-imports

# Compiles the tests once, for every pytest that follows, beside mypy, which has one core.
collect: setup
	@$(BIN)/python -m pytest --collect-only -qq tests >$(VENV)/collect.log || { cat $(VENV)/collect.log; exit 1; }

COMPUTED := tests/unit tests/scenarios tests/interop tests/fuzz tests/simulation
test: setup
	@$(MAKE) --no-print-directory -j2 -Otarget lint types imports collect
	$(BIN)/python -m tests.prepare
	@# What computes comes first. Three workers on two cores in both: a third of the time is waiting, for a process or a
	@# clock. What starts processes runs in the order of its files' names: the longest ones (Spark) come early.
	$(BIN)/python -m pytest -n 3 --dist loadfile -m "not long" --junitxml=$(VENV)/computed.xml $(COMPUTED)
	$(BIN)/python -m tests.postgresql --sqlite-results $(VENV)/computed.xml
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m "not long" $(addprefix --ignore=,$(COMPUTED))

# Every planted bug caught and its own worlds clean, 500 fixed seeds and 500 that the commit names, real nodes under real
# faults (docs/proof.md). ARGS: --quick for the planted bugs and the fixed seeds alone.
prove: setup
	$(BIN)/python -m tests.prepare
	$(BIN)/python -m tests.simulation.prove --seeds 500 --jobs 2 $(ARGS)

bench: setup
	$(BIN)/quorumscope bench append
	$(BIN)/quorumscope bench failover

# Re-pins all three, the larger ones first; leaves no registry address in them. Not after `setup`, which would miss what
# pyproject.toml names and no lock has yet.
COMPILE := $(BIN)/pip-compile -q --generate-hashes --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --strip-extras --allow-unsafe --no-header --build-deps-for editable
lock: | $(BIN)/pip
	@test -x $(BIN)/pip-compile || $(PIP_INSTALL) pip-tools
	$(COMPILE) --extra audit --extra dev -o requirements-dev.txt pyproject.toml
	$(COMPILE) --no-annotate --extra audit -c requirements-dev.txt -o requirements-audit.txt pyproject.toml
	$(COMPILE) --no-annotate -c requirements-dev.txt -o requirements.txt pyproject.toml
	@# pip-compile drops a marker that holds here; atheris has wheels for this one platform only.
	@sed -i 's/^atheris==\([0-9.]*\) \\$$/atheris==\1 ; platform_system == "Linux" and platform_machine == "x86_64" \\/' requirements-dev.txt

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build *.egg-info
