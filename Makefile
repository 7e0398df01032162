# Every target sets up what it needs: `make setup` is idempotent and runs only when the pinned requirements changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-$(shell cat requirements.txt pyproject.toml | cksum | cut -d' ' -f1)

.PHONY: setup demo test prove lint types imports bench clean lock

setup: $(STAMP)

$(STAMP): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed; this is " + sys.version.split()[0] + ". Set PYTHON=…") if sys.version_info < (3, 11) else None'
	@test -x $(BIN)/pip || { echo "setup: creating $(VENV)"; $(PYTHON) -m venv $(VENV) || { echo "setup: the venv module is missing: apt-get install python3-venv"; exit 1; }; }
	@echo "setup: installing pinned packages (PySpark alone is 456 MB; the first time takes some minutes)"
	@$(BIN)/pip install --disable-pip-version-check --require-hashes -r requirements.txt
	@$(BIN)/pip install --disable-pip-version-check --no-deps --no-build-isolation -e . >$(VENV)/install.log 2>&1 || { cat $(VENV)/install.log; exit 1; }
	@$(BIN)/pip check
	@rm -f $(VENV)/.setup-*; touch $@
	@echo "setup: ready"

demo: setup
	@$(BIN)/quorumscope demo $(ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

imports: setup
	$(BIN)/lint-imports

test: setup lint types imports
	$(BIN)/python -m tests.prepare
	$(BIN)/python -m pytest

# Every planted bug caught, 500 seeds of the simulator with full coverage, real nodes under real faults (docs/proof.md).
prove: setup
	$(BIN)/python -m tests.simulation.prove --seeds 500 --jobs 2 $(ARGS)

bench: setup
	$(BIN)/quorumscope bench append
	$(BIN)/quorumscope bench failover

# Re-pins requirements.txt; leaves no registry address in it.
lock: setup
	$(BIN)/pip-compile -q --generate-hashes --extra dev --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --strip-extras --allow-unsafe --no-header -o requirements.txt pyproject.toml
	@# pip-compile drops a marker that holds here; atheris has wheels for this one platform only.
	@sed -i 's/^atheris==\([0-9.]*\) \\$$/atheris==\1 ; platform_system == "Linux" and platform_machine == "x86_64" \\/' requirements.txt

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build *.egg-info
