# Two commands are all a newcomer needs: `make demo` and `make test`. Everything they need is set up on the way.

SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
RUNS := $(VENV)/.runs
STAMP := $(VENV)/.installed
SITE := $(VENV)/.site
PYTHON ?= $(shell command -v python3.11 || command -v python3)

PREFIX ?= /opt/elasticctl
DESTDIR ?=
EXTRAS ?=

# Tests start thousands of processes, each of which would compile the product anew. Images of containers often set this.
unexport PYTHONDONTWRITEBYTECODE

TESTS := 8,000 tests: 9 to 15 minutes on two cores, several times as long on a busy machine. The first half minute collects them.
# Idle processes take tests from the one that has most left. A process that dies fails its test and is replaced (with
# `--dist loadfile` the run would hang at its end). A hang in C code, where no signal is handled, ends with its traceback.
PYTEST := $(BIN)/pytest -n 3 --dist worksteal -o faulthandler_timeout=1000 -o faulthandler_exit_on_timeout=true

CLUSTER_TESTS := 390 tests with real processes: 30 to 45 minutes on two cores, longer on a busy machine.

.PHONY: help setup install uninstall demo about-test about-test-cluster test test-cluster test-survival hunt check bench-resize bench-runtime bench-stragglers bench-simulator bench-control bench-failover bench-serving bench-transient bench-deadlines bench-gpu bench-sharded bench-hybrid bench-policies bench-tails bench-forecasts conformance papers verify-bits verify-scripts verify-stops verify-processors verify-corpus verify-alarms verify-heavy world crash-anywhere fuzz hosts-hour soak torment promises planted model-check site format clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 22

setup: $(RUNS)  ## make .venv with elasticctl and PyTorch in it (a second run takes no time; tests and checks add their tools)

$(RUNS): pyproject.toml constraints.txt scripts/setup
	@scripts/setup "$(PYTHON)" "$(VENV)" run
	@touch $(RUNS)

$(STAMP): pyproject.toml constraints.txt scripts/setup | $(RUNS)
	@scripts/setup "$(PYTHON)" "$(VENV)" develop
	@touch $(STAMP)

install:  ## for all users of this machine, with systemd units (PREFIX=/opt/elasticctl DESTDIR= EXTRAS=worker: with PyTorch, for servers)
	@PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" EXTRAS="$(EXTRAS)" PYTHON="$(if $(filter file,$(origin PYTHON)),,$(PYTHON))" \
		scripts/install install

uninstall:  ## take that away again; configuration, state and logs stay (PREFIX= DESTDIR=)
	@PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" scripts/install uninstall

demo: $(RUNS)  ## three jobs share a cluster of two servers on this machine: a minute and more, after the installation
	@$(BIN)/python -m examples.demo

about-test:
	@$(if $(ARGS),:,echo "$(TESTS)")

about-test-cluster:
	@$(if $(ARGS),:,echo "$(CLUSTER_TESTS)")

test: about-test $(STAMP)  ## the tests, one of them with a cluster of real processes: 9 to 15 minutes on two cores (ARGS: for pytest)
	@$(PYTEST) -m "not cluster and not campaign" $(ARGS)

test-cluster: about-test-cluster $(STAMP)  ## longer ones with real processes: kills at any point, trainings of all kinds, the demo (ARGS: for pytest)
	@$(PYTEST) -m "cluster and not campaign" $(ARGS)

test-survival: $(STAMP)  ## as root: controllers, stores and hosts that fail, upgrades, users and quotas under running jobs: forty minutes (ARGS: for pytest)
	@$(BIN)/pytest -v -m campaign tests/cluster/test_failover.py tests/cluster/test_moved_store.py tests/cluster/test_crash_anywhere.py tests/cluster/test_framework_starts.py tests/cluster/test_policy_switch.py tests/store/test_etcd_failures.py tests/hosts/test_upgrade.py tests/hosts/test_soak.py tests/hosts/test_quotas.py tests/hosts/test_two_users.py tests/hosts/test_containers.py tests/hosts/test_training_network.py tests/hosts/test_etcd_lines.py $(ARGS)

hunt: $(STAMP)  ## the property tests with new examples, again and again until one fails (ARGS: for pytest)
	@files=$$(grep -rlE '@given|RuleBased' tests); while $(BIN)/pytest -q -x --hypothesis-profile=hunt $$files $(ARGS); do :; done; false

check: $(STAMP)  ## formatting, lint, import rules, types
	@$(BIN)/ruff format --check --quiet . || { echo "run: make format"; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/mypy

bench-resize: $(STAMP)  ## the pauses of ten out- and ten in-scalings, and of a lost worker
	@$(BIN)/python -m benchmarks.resize

bench-runtime: $(STAMP)  ## what elasticity costs, beside DDP, torchrun and stop-and-resume (ARGS=--quick: a few minutes)
	@$(BIN)/python -m benchmarks.runtime $(ARGS)

bench-stragglers: $(STAMP)  ## slow workers and slow links, beside doing nothing, EDL and the ideal: a quarter of an hour (ARGS=--quick: two minutes)
	@$(BIN)/python -m benchmarks.runtime --only stragglers $(ARGS)

bench-simulator: $(STAMP)  ## how fast simulations and decisions are, beside other simulators (ARGS=--quick: a minute)
	@$(BIN)/python -m benchmarks.simulator $(ARGS)

bench-control: $(STAMP)  ## what one controller bears: a thousand agents, 110,000 jobs (ARGS=--quick: a minute)
	@$(BIN)/python -m benchmarks.control $(ARGS)

bench-failover: $(STAMP)  ## a standby leads after the leader's death: ten kills, six minutes (ARGS=--quick: two)
	@$(BIN)/python -m benchmarks.failover $(ARGS)

bench-serving: $(STAMP)  ## GPUs lent to serving over a day while jobs train: ten minutes (ARGS=--quick: two)
	@$(BIN)/python -m benchmarks.serving $(ARGS)

bench-transient: $(STAMP)  ## GPUs that come and go beside four kept ones, and stop-and-resume: 100 minutes (ARGS=--quick: ten)
	@$(BIN)/python -m benchmarks.transient $(ARGS)

bench-deadlines: $(STAMP)  ## deadlines promised and kept on a real cluster over a day: ten minutes (ARGS=--quick: three)
	@$(BIN)/python -m benchmarks.deadlines $(ARGS)

bench-sharded: $(STAMP)  ## a divided optimizer state beside replicas and PyTorch's ZeroRedundancyOptimizer: five minutes
	@$(BIN)/python -m benchmarks.sharded $(ARGS)

bench-gpu: $(STAMP)  ## the runtime on this machine's GPUs (ARGS="--device cpu --quick" tries it without)
	@$(BIN)/python -m benchmarks.gpu $(ARGS)

bench-hybrid: $(STAMP)  ## accuracy with batches that grow, beside fixed ones: ten minutes (ARGS=--quick: two)
	@$(BIN)/python -m benchmarks.hybrid $(ARGS)

bench-policies: $(STAMP)  ## our policy beside AFS on Philly's clusters (ARGS="--cluster e13805": a minute)
	@$(BIN)/python -m benchmarks.policies $(ARGS)

bench-tails: $(STAMP)  ## average JCT against its 99th percentile, by `tail`, beside AFS, SRPT and Gittins: ten minutes
	@$(BIN)/python -m benchmarks.tails $(ARGS)

bench-forecasts: $(STAMP)  ## how often waiting jobs start when explain says: an hour (ARGS="--cluster e13805 --samples 20": minutes)
	@$(BIN)/python -m benchmarks.forecasts $(ARGS)

conformance: $(STAMP)  ## the simulator against a real cluster, with the same jobs: a quarter of an hour (ARGS=--quick: 5 minutes)
	@$(BIN)/python -m benchmarks.conformance $(ARGS)

papers: $(STAMP)  ## the published results of AFS, EDL and Elan beside ours: docs/reports/papers.md (ARGS=--quick: two small traces)
	@$(BIN)/python -m benchmarks.papers $(ARGS)

verify-bits: $(STAMP)  ## random histories of joins, leaves, migrations and kills: no bit of the result may differ
	@$(BIN)/python -m verification.bits $(ARGS)

verify-processors: $(STAMP)  ## operators on emulated processors (qemu-user): equal bits under `determinism: heterogeneous`, and only there
	@$(BIN)/python -m verification.processors

verify-stops: $(STAMP)  ## pause, resume, cancel, submit --resume on a real cluster: the model must have the SHA-256 of an undisturbed one
	@$(BIN)/python -m verification.stops $(ARGS)

verify-scripts: $(STAMP)  ## one job in each framework, alone and through resizes, kills and preemptions: a table (ARGS=--quick: a minute)
	@$(BIN)/python -m verification.scripts $(ARGS)

verify-corpus: $(STAMP)  ## small scripts in the manner of public training code, alone, resized and preempted: equal, or named (ARGS="--story preempted --jobs 2")
	@$(BIN)/python -m verification.corpus $(ARGS)

verify-alarms: $(STAMP)  ## 100,000 steps of scripts that are elastic, each step checked: no alarm (ARGS="--steps 2000")
	@nice $(BIN)/python -m verification.corpus.alarms $(ARGS)

verify-heavy: $(STAMP)  ## real workers with a state of 2 GB, and with steps of two minutes: a quarter of an hour, 16 GB of memory
	@$(BIN)/pytest -v -m campaign tests/cluster/test_heavy.py $(ARGS)

world: $(STAMP)  ## a whole cluster in one process: 500 random histories with thirty faults each (ARGS="--seeds 100000": a campaign)
	@$(BIN)/python -m verification.world $(ARGS)

crash-anywhere: $(STAMP)  ## the same with few jobs, again and again: each write of a controller or an agent fails once (ARGS="--store etcd --twice 3")
	@$(BIN)/python -m verification.world.crash_anywhere $(ARGS)

fuzz: $(STAMP)  ## ten million spoiled frames at a running controller and agent: a quarter of an hour (ARGS=--quick: half a minute)
	@$(BIN)/python -m verification.fuzz $(ARGS)

hosts-hour: $(STAMP)  ## as root: an hour of three hosts (namespaces) with two users, recorded in out/hour (ARGS="--minutes 3 --seed 2")
	@$(BIN)/python -m verification.hosts.hour $(ARGS)

soak: $(STAMP)  ## as root: faults without end on hosts that are namespaces, and what was lost: docs/reports/soak.md (ARGS="--minutes 10 --seed 2")
	@$(BIN)/python -m verification.soak $(ARGS)

torment: soak  # the former name

promises: $(STAMP)  ## deadlines under 10,000 random workloads and settings: no admitted job may be late (ARGS="--workloads 500")
	@$(BIN)/python -m verification.promises $(ARGS)

planted: $(STAMP)  ## plant bugs into copies of the product: each must be found by the simulated cluster (ARGS="--only NAME")
	@$(BIN)/python -m verification.world.planted $(ARGS)

mutants: $(STAMP)  ## change the pure machines in small ways: do tests and the world notice? docs/reports/mutants.md (ARGS="--only session")
	@$(BIN)/python -m verification.mutants $(ARGS)

model-check:  ## search the model of the membership protocol exhaustively, with spin (ARGS=--quick: a minute and a half)
	@$(PYTHON) scripts/model-check $(ARGS)

$(SITE): pyproject.toml constraints.txt | $(RUNS)
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable '.[docs]'
	@touch $(SITE)

site: $(SITE)  ## the pages and the API reference as a site: out/site/index.html (130 MB more in .venv)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "out/site/index.html"

format: $(STAMP)  ## let ruff lay the code out
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

clean:  ## remove the environment and what was built
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache out build dist src/*.egg-info
