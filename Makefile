# Everything a fresh machine needs is Python >= 3.11 with venv, make and git.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-compile -c constraints.txt

.PHONY: demo test test-slow lint bench race reproduction closed-form comparison contract faults properties soak clean help

help:  ## what there is to make
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/'

demo: $(VENV)/.demo  ## set up and run the main job; figures land in out/
	$(BIN)/quell reproduce all --quick --out out

test: $(VENV)/.test  ## set up and run the tests
	$(BIN)/python -m pytest -n 2 $(ARGS)

test-slow: $(VENV)/.test  ## the long checks too
	$(BIN)/python -m pytest -n 2 -m "slow or not slow" $(ARGS)

lint: $(VENV)/.dev  ## format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

bench: $(VENV)/.data  ## the benchmarks, one after the other; JSON lands in out/
	@for script in benchmarks/*.py; do \
		case $$script in */_*|*/race.py) continue;; esac; \
		echo "== $$script"; $(BIN)/python $$script || exit 1; \
	done

race: $(VENV)/.data  ## docs/race.md, its figures and numbers, within 90 minutes; goes on where it stopped
	$(PIP) numpyro
	$(BIN)/python benchmarks/race.py $(ARGS)
	$(BIN)/python docs/make_race.py

reproduction: $(VENV)/.demo  ## the full run, about an hour; makes docs/reproduction.md, its figures and verdicts
	$(BIN)/quell reproduce all --out out/full
	cp out/full/reproduction.md docs/
	cp out/full/verdicts.json src/quell_paper/full_run.json
	grep -o 'figures/[^)]*' docs/reproduction.md | xargs -I{} cp out/full/{} docs/figures/

comparison: $(VENV)/.data  ## the tables and figures of docs/comparison.md, over an hour
	$(BIN)/python docs/make_comparison.py $(ARGS)

closed-form: $(VENV)/.data  ## the figure of docs/closed_form.md
	$(BIN)/python docs/make_closed_form.py

contract: $(VENV)/.test  ## docs/contract.md: every estimator is unbiased in every state, exactly
	$(BIN)/python docs/make_contract.py

faults: $(VENV)/.test  ## runs killed at random moments, full disks: docs/faults.md, about half an hour
	$(BIN)/python docs/make_faults.py kills $(ARGS)

properties: $(VENV)/.test  ## more than 10,000 cases of tests/test_properties.py: docs/faults.md
	$(BIN)/python docs/make_faults.py properties $(ARGS)

soak: $(VENV)/.test  ## an hour of fits, or ARGS="--minutes 5": docs/faults.md
	$(BIN)/python docs/make_faults.py soak $(ARGS)

clean:  ## remove what make made
	rm -rf $(VENV) out build dist .pytest_cache .ruff_cache .hypothesis

# One stamp per set of extras: installed again only when what it was made from has changed.
$(VENV)/.base: constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "quell needs Python >= 3.11: make PYTHON=python3.11 ..."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.demo: $(VENV)/.base
	$(PIP) -e '.[paper]'
	@touch $@

$(VENV)/.data: $(VENV)/.base
	$(PIP) -e '.[cli,data]'
	@touch $@

$(VENV)/.test: $(VENV)/.base
	$(PIP) -e '.[test]'
	@touch $@

$(VENV)/.dev: $(VENV)/.base
	$(PIP) -e '.[dev]'
	@touch $@
