# Needs make, python3 (3.11 or newer) and its venv module; everything else goes into .venv.
# The first call of a target sets .venv up, later calls are quick.

# The first of python3.11, python3 that is new enough and can make virtual environments.
PYTHON ?= $(shell for p in python3.11 python3; do \
	"$$p" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$p"; break; }; done)
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --quiet
CASE ?= all
RESULTS ?= bench/RESULTS.md
STEPS ?= 1000000
ROUNDS ?= 100000
# Processes that run the tests: four keep two cores busy, for tests wait for processes and clocks; WORKERS=0 runs them in one (for pdb).
WORKERS ?= 4
PARALLEL := -n $(WORKERS) --dist loadfile
SEED ?= 0
PROGRAMS ?= 5000
CASES ?= 10000
ONLY ?=
RUNS ?= 100
MINUTES ?= 60
TESTS ?= tests/integration/test_survival.py
INCLUDE ?= flowlet/checkpoint/*
SOURCES := netstack flowlet tests bench examples
# The tests start hundreds of processes; each would compile 170 modules again (0.3 s), whatever a container's image says.
unexport PYTHONDONTWRITEBYTECODE

# A virtual environment is bound to its folder: in a moved or copied checkout it is set up again.
ifneq ($(shell cat $(VENV)/location 2>/dev/null),$(CURDIR))
.PHONY: $(VENV)/installed
endif

.DEFAULT_GOAL := help
.PHONY: help run example-spark java postgres test lint types fmt test-long test-fast test-pythons test-uvloop test-spark-cluster stress cov cov-processes sim differential windows mutants attack chaos soak bench wheel audit clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(VENV)/installed  ## set up .venv and run the main job: count words on two TaskManagers (ARGS="--top 5 ...")
	@$(PY) examples/word_count.py $(ARGS)

example-spark: $(VENV)/installed-spark java  ## Spark pushes clicks into a flowlet job and checks its results (ARGS="--rows 1000000 ...")
	@PYTHONPATH=$(CURDIR) $(PY) -m examples.spark_clickstream $(ARGS)

# PostgreSQL refuses to run as root, so the tests start it as the user postgres that Debian's package makes.
postgres:  ## install PostgreSQL's server if it is missing: the tests of the database sink start one of their own
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || command -v initdb >/dev/null || { \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			echo "installing PostgreSQL (only needed once)"; apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends postgresql >/dev/null; \
		else echo "the tests need a PostgreSQL server; install it (Debian: sudo apt-get install postgresql)" >&2; exit 2; fi; }

# Mypy computes in one process for a minute or two: the tests begin beside it as soon as ruff has found nothing.
test: java postgres  ## lint, types and every test but the long ones
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=none types lint-and-tests

# Collecting once beforehand compiles the tests, 18 s of CPU, which each of the processes would do for itself.
.PHONY: lint-and-tests
lint-and-tests: lint
	$(PY) -m pytest --collect-only -qq -m "not long" $(ARGS) >/dev/null || true
	$(PY) -m pytest $(PARALLEL) --durations=20 --durations-min=5 -m "not long" $(ARGS)

lint: $(VENV)/installed-dev  ## ruff: rules and format, changes nothing
	$(PY) -m ruff check $(SOURCES)
	$(PY) -m ruff format --check $(SOURCES)

types: $(VENV)/installed-dev  ## mypy --strict on everything
	$(PY) -m mypy

fmt: $(VENV)/installed-dev  ## format the code and apply safe fixes
	$(PY) -m ruff format $(SOURCES)
	$(PY) -m ruff check --fix $(SOURCES)

test-long: java postgres  ## the tests that take long: processes that stand still, clients that are killed, Spark on a local cluster, benchmarks in small, samples of attacks
	$(PY) -m pytest $(PARALLEL) -m long $(ARGS)

test-fast: $(VENV)/installed-dev  ## while you write: the quick tests beside what has changed since main (at most a minute; of all of them if nothing has)
	@$(PY) -m tests.changed $(PARALLEL) $(ARGS)

test-pythons: $(VENV)/installed  ## the quick tests on every other Python found on PATH or under pyenv (ARGS=--newest: that one; ARGS='-m ""': all tests)
	@$(PY) -m tests.pythons $(PARALLEL) $(ARGS)

test-uvloop: $(VENV)/installed-dev  ## every test again, the asynchronous ones on uvloop
	$(PY) -m pytest $(PARALLEL) --uvloop $(ARGS)

test-spark-cluster: java  ## the tests of Spark that run on a local cluster: executors with a JVM of their own, tasks that are tried again
	$(PY) -m pytest tests/spark -k local-cluster $(ARGS)

stress: $(VENV)/installed-dev  ## threads that race: mailbox, cancel, gate, each ROUNDS=100000 times
	FLOWLET_STRESS=$(ROUNDS) $(PY) -m pytest -q -o faulthandler_timeout=0 --durations=0 --durations-min=1 \
		tests/flowlet/mailbox/test_task_mailbox_stress.py tests/flowlet/task/test_stream_task_stress.py tests/netstack/gate/test_gate_stress.py $(ARGS)

cov: $(VENV)/installed-dev  ## run the quick tests and list the lines and branches they miss
	$(PY) -m coverage run -m pytest -q -m "not slow" $(ARGS)
	$(PY) -m coverage report --show-missing --skip-covered

cov-processes: $(VENV)/installed-dev  ## what TaskManager processes run of flowlet/checkpoint while a job survives a kill (TESTS=..., INCLUDE=...)
	$(PY) -m coverage erase --rcfile=tests/processes.coveragerc
	$(PY) -m coverage run --rcfile=tests/processes.coveragerc -m pytest -q $(TESTS) $(ARGS)
	$(PY) -m coverage combine -q --rcfile=tests/processes.coveragerc
	$(PY) -m coverage report --rcfile=tests/processes.coveragerc --include='$(INCLUDE)'
	$(PY) -m coverage json -q --rcfile=tests/processes.coveragerc --include='$(INCLUDE)' -o .coverage.json
	$(PY) -m tests.function_coverage .coverage.json

sim: $(VENV)/installed-dev  ## simulate the network stack: make sim STEPS=1000000 SEED=0 (SEED=n STEPS=1 replays one world, ARGS=--trace prints it)
	@$(PY) -m tests.sim --steps $(STEPS) --seed $(SEED) $(ARGS)

differential: $(VENV)/installed-dev  ## random programs against a record-by-record interpreter: make differential PROGRAMS=5000 SEED=0
	@$(PY) -m tests.differential --programs $(PROGRAMS) --seed $(SEED) $(ARGS)

windows: $(VENV)/installed-dev  ## random windows against a plain interpreter: make windows CASES=10000 SEED=0
	@$(PY) -m tests.windows --cases $(CASES) --seed $(SEED) $(ARGS)

mutants: $(VENV)/installed-dev  ## put the historical bugs back in, one by one, and print which test notices each
	@$(PY) -m tests.mutants $(ARGS)

attack: $(VENV)/installed-dev  ## attack real clusters and print what became of each attack: make attack SEED=0 ONLY=misdeed (ten minutes)
	@$(PY) -m tests.attack --seed $(SEED) --only "$(ONLY)" $(ARGS)

chaos: $(VENV)/installed-dev  ## runs with faults on real processes: make chaos RUNS=100 SEED=0 (RUNS=1 SEED=n replays one; ten seconds each)
	@$(PY) -m tests.chaos --runs $(RUNS) --seed $(SEED) $(ARGS)

soak: $(VENV)/installed-dev  ## one job, a fault every 20 s, exact counts and flat memory at the end: make soak MINUTES=60 SEED=0
	@$(PY) -m tests.chaos.soak --minutes $(MINUTES) --seed $(SEED) $(ARGS)

bench: $(VENV)/installed-bench  ## run all benchmarks beside the peers that are installed and write bench/RESULTS.md; CASE=wordcount: that one
	@$(PY) -m bench $(CASE) --peers --markdown $(RESULTS) $(ARGS)

wheel: $(VENV)/installed-dev  ## build dist/*.whl and test it in an environment of its own
	$(PY) -m build --wheel --no-isolation --outdir dist
	$(PY) -m pytest -q tests/test_packaging.py

audit: $(VENV)/installed-audit  ## known advisories of what flowlet requires: 1: one has no sentence in docs/maintainers/dependencies.md; 2: no database answered
	@$(PY) -m tests.audit

clean:  ## remove everything that was generated, .venv too
	rm -rf $(VENV) .venv-* dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/installed: pyproject.toml
	@if [ -z "$(PYTHON)" ]; then echo "flowlet needs Python 3.11 or newer with venv (Debian: apt install python3 python3-venv)" >&2; exit 2; fi
	@echo "setting up $(VENV) with $(PYTHON) (only needed once)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --upgrade "pip>=25.1"  # the first version that knows --group
	@$(PIP) install --editable .
	@rm -f $(VENV)/installed-spark $(VENV)/installed-dev $(VENV)/installed-bench $(VENV)/installed-audit
	@printf '%s' "$(CURDIR)" > $(VENV)/location
	@touch $@

$(VENV)/installed-audit: $(VENV)/installed-dev
	@echo "adding pip-audit to $(VENV) (only needed once)"
	@$(PIP) install --editable . --group audit
	@touch $@

$(VENV)/installed-bench: $(VENV)/installed-dev
	@echo "adding what the benchmarks compare with to $(VENV) (only needed once)"
	@$(PIP) install --editable '.[bench]'
	@touch $@

.venv-flink/installed:  # Apache Flink as a peer of the benchmarks: Java and PyFlink (needs a JDK 17; some 1.5 GB)
	$(PYTHON) -m venv .venv-flink
	.venv-flink/bin/python -m pip --disable-pip-version-check --quiet install "apache-flink==2.3.*"
	@touch $@

.venv-bytewax/installed:  # Bytewax as a peer of the benchmarks
	$(PYTHON) -m venv .venv-bytewax
	.venv-bytewax/bin/python -m pip --disable-pip-version-check --quiet install "bytewax>=0.21"
	@touch $@

.PHONY: walks
walks: $(VENV)/installed-dev  ## draw the house in five walks: trace small jobs, and write docs/maintainers/five-walks.md
	$(PY) -m tests.house.walks

.PHONY: flink-wire
flink-wire: $(VENV)/installed-dev .venv-flink/installed  ## read partitions of Flink's own classes: sort-merge with LZ4, a barrier larger than a segment (needs a JDK 17)
	$(PY) -m pytest -q -s -m "" tests/flink

.PHONY: test-pyflink pyflink-api
test-pyflink: $(VENV)/installed-dev .venv-flink/installed  ## run programs for PyFlink in PyFlink and here, side by side (needs a JDK 17; ARGS="--write demo_word_count")
	@$(PY) -m tests.pyflink.side_by_side $(ARGS)

pyflink-api: $(VENV)/installed-dev .venv-flink/installed  ## compare our public names with the installed PyFlink's (ARGS=--write: also into docs/coming-from-pyflink.md)
	@$(PY) -m tests.pyflink.compare --installed $(ARGS)

.PHONY: bench-peers
bench-peers: $(VENV)/installed-bench .venv-flink/installed .venv-bytewax/installed  ## install what the benchmarks compare with: Flink, Bytewax

$(VENV)/installed-spark: $(VENV)/installed
	@echo "adding PySpark to $(VENV) (only needed once, 460 MB)"
	@$(PIP) install --editable '.[spark]'
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed-spark
	@echo "adding the development tools to $(VENV) (only needed once)"
	@$(PIP) install --editable '.[rocksdb,postgres]' --group dev
	@touch $@
