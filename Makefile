# Everything a fresh machine needs is Python >= 3.11 with venv, make and git.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-compile -c constraints.txt

.PHONY: demo test test-slow lint bench reproduction closed-form comparison clean help

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
		case $$script in */_*) continue;; esac; \
		echo "== $$script"; $(BIN)/python $$script || exit 1; \
	done

reproduction: $(VENV)/.demo  ## the full run, about an hour; makes docs/reproduction.md, its figures and verdicts
	$(BIN)/quell reproduce all --out out/full
	cp out/full/reproduction.md docs/
	cp out/full/verdicts.json src/quell_paper/full_run.json
	grep -o 'figures/[^)]*' docs/reproduction.md | xargs -I{} cp out/full/{} docs/figures/

comparison: $(VENV)/.data  ## the tables and figures of docs/comparison.md, over an hour
	$(BIN)/python docs/make_comparison.py $(ARGS)

closed-form: $(VENV)/.data  ## the figure of docs/closed_form.md
	$(BIN)/python docs/make_closed_form.py

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
