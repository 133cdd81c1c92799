# make demo   a decision from the embedded model: light install in .venv, no torch
# make test   the whole test suite in .venv-test, with every extra
# make lint   ruff, formatting and types
# make bench  speed and memory, side by side with other implementations; writes results under benchmarks/
# make results  what docs/results says, measured again

PYTHON ?= python3
LIGHT := .venv/bin/python
FULL := .venv-test/bin/python
PIP_FLAGS ?= --quiet --disable-pip-version-check
WORKERS ?= 2
# The official JavaScript clients, for the server's tests where node is installed.
NODE_CLIENTS := $(if $(shell command -v npm),tests/server/node/node_modules/done)
export OMP_NUM_THREADS ?= 1

.PHONY: demo test test-ray lint bench results wheel clean
.DEFAULT_GOAL := demo

demo: .venv/done
	.venv/bin/dicast decide examples/support_ticket.json --table

test: .venv-test/done $(NODE_CLIENTS)
	$(FULL) -m pytest -n $(WORKERS) $(PYTEST_FLAGS)

# Ray aborts where its processes do not start within seconds, so its tests want a machine that does nothing else.
test-ray: .venv-test/done
	$(FULL) -m pytest -m ray tests/scale

lint: .venv-test/done
	$(FULL) -m ruff check .
	$(FULL) -m ruff format --check .
	$(FULL) -m mypy

wheel: .venv/done
	$(LIGHT) -m pip wheel $(PIP_FLAGS) --no-deps --wheel-dir dist .

bench: .venv-test/done
	$(FULL) -m pip install $(PIP_FLAGS) -c constraints.txt sparrow-decider
	$(FULL) -m benchmarks.run

results: .venv-test/done
	$(FULL) -m docs.results

clean:
	rm -rf .venv .venv-test build dist

# The sources are prerequisites, so that the installed package is never older than they are.
.venv/done: pyproject.toml $(shell find src/dicast -type f -not -name '*.pyc' -not -path '*/.*')
	test -x $(LIGHT) || $(PYTHON) -m venv .venv
	$(LIGHT) -m pip install $(PIP_FLAGS) -c constraints.txt .
	touch $@

tests/server/node/node_modules/done: tests/server/node/package-lock.json
	npm ci --prefix tests/server/node --silent --no-audit --no-fund
	touch $@

.venv-test/done: pyproject.toml constraints.txt
	test -x $(FULL) || $(PYTHON) -m venv .venv-test
	$(FULL) -m pip install $(PIP_FLAGS) -c constraints.txt -e '.[all,dev]'
	touch $@
