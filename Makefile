# Everything a developer does here, by name. `make` alone lists the targets.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= $(firstword $(foreach name,python3.11 python3.12 python3.13 python3.14 python3,$(shell command -v $(name))))
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
WARM := $(VENV)/.warm
PYTEST_ARGS ?=
GPU_ARGS ?=
# Commands and tests start hundreds of processes: without kept byte code each compiles the sources again.
unexport PYTHONDONTWRITEBYTECODE
TEST_PROCESSES ?= 4
KAFKA_PORT ?= 0

.PHONY: help setup demo test test-quick test-slow test-images explore docs lint format bench gpu gpu-kit audit constraints image release kafka kafka-stop flink flink-stop clean

help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(WARM) ## Create .venv with everything; quick when nothing changed

# What pip says, as one line on a terminal and a line for every fifty packages elsewhere; what it complains about, in full.
SHOW_PIP = { n=0; while read -r word what; do case "$$word" in \
	Collecting) n=$$((n + 1)); if [ -t 1 ]; then printf '\r\033[K  %d: %s' $$n "$${what%%[ <>=!~;[]*}"; \
		elif ((n % 50 == 0)); then echo "  $$n packages looked at, $$SECONDS s"; fi;; \
	Installing) if [[ $$what == collected* ]]; then ! [ -t 1 ] || printf '\r\033[K'; echo "  unpacking $$n packages, $$SECONDS s …"; fi;; \
	ERROR:*|error:*|WARNING:*) echo "$$word $$what";; esac; done; }

# A virtual environment without a working pip is what an interrupted set-up leaves: made anew.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' \
		|| { echo "Freshet needs Python 3.11 to 3.14; found $$($(PYTHON) --version 2>&1). Say: make setup PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { rm -rf $(VENV); $(PYTHON) -m venv $(VENV); }
	@echo "Installing into $(VENV): about 200 packages, 6 GB, minutes the first time …"
	@$(BIN)/python -m pip install --progress-bar off --disable-pip-version-check -c constraints.txt -e '.[dev]' 2>&1 | $(SHOW_PIP)
	@touch $@

# Kernels are compiled once, side by side: minutes of processor time, which the first runs would need otherwise.
$(WARM): $(STAMP)
	@echo "Compiling kernels: the first time two to four minutes of processor time …"
	@$(BIN)/freshet-trainer warm --json >/dev/null 2> >(cat >&2) & trainer=$$!; \
		$(BIN)/freshet-stream warm --json >/dev/null 2> >(cat >&2); wait $$trainer
	@touch $@

demo: $(WARM) ## Watch the whole path for a few minutes: broker, stream, trainer, figures
	@$(BIN)/python deploy/demo/orchestrate.py

# Four, for two cores: tests wait for brokers and clocks half of their time. Each process has one thread of torch, or they spin
# against each other.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(TEST_PROCESSES) --dist worksteal

test: $(WARM) ## Run the tests, in four processes (PYTEST_ARGS="-k name" to choose, TEST_PROCESSES=0: in one)
	@$(PYTEST) -m "not slow and not lint" $(PYTEST_ARGS)

test-quick: $(WARM) ## Run a sample of the unit tests, in two minutes, without a broker
	@$(PYTEST) --quick -m "not slow and not lint and not integration" $(PYTEST_ARGS) tests/unit

test-slow: $(WARM) ## Run the slow tests: Flink, the demo, fresh installs, long runs on real graphs
	@$(PYTEST) -m slow $(PYTEST_ARGS)

test-images: $(WARM) ## Build both container images and run them against a broker, as root: gigabytes, and tens of minutes
	@TARGETS="stream trainer" OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow -s $(PYTEST_ARGS) tests/integration/test_images.py

explore: $(STAMP) ## Draw new examples for the property tests, for a minute (SEED=n: those that failed once)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/property -m hypothesis --hypothesis-profile=exploring \
		--hypothesis-seed=$(or $(SEED),$$RANDOM$$RANDOM) $(PYTEST_ARGS)

docs: $(STAMP) ## Build the site of the documentation into site/; a broken link or anchor fails
	@$(BIN)/python deploy/site/build.py

lint: $(STAMP) ## Check style, types, import rules, spelling, dead code and the documentation
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/codespell
	@$(BIN)/vulture
	@$(BIN)/pytest -q -m lint tests/unit/project
	@$(MAKE) --no-print-directory docs

format: $(STAMP) ## Put code into form and mend what can be mended mechanically
	@$(BIN)/ruff check --fix --quiet .
	@$(BIN)/ruff format .

# What scripts share, claims that other scripts have, parts of `make gpu`, and a matrix for `evaluate`.
NO_BENCH := benchmarks/harness.py benchmarks/claims.py benchmarks/node_streams.py benchmarks/snapshot_accuracy.py $(wildcard benchmarks/gpu*.py)

bench: $(STAMP) ## Run the benchmarks; each prints a table
	@for script in $(filter-out $(NO_BENCH),$(wildcard benchmarks/*.py)); do echo "== $$script"; $(BIN)/python "$$script"; done

gpu: $(STAMP) ## On a machine with a GPU: is the trainer right there, and how fast (GPU_ARGS="--device cpu --small": tries it)
	@$(BIN)/python benchmarks/gpu.py $(GPU_ARGS)

gpu-kit: $(STAMP) ## Lay what a machine with a GPU but without a network needs into .build/gpu
	@PYTHON=$(BIN)/python deploy/gpu/prepare.sh

audit: $(STAMP) ## Compare the pinned versions with advisories (ADVISORIES=FILE, in the form of OSV)
	@$(BIN)/python deploy/release/audit.py $(ADVISORIES)

constraints: $(STAMP) ## Write the newest versions into constraints.txt, and say what changed; then: make setup test
	@$(BIN)/python deploy/release/constraints.py

image: ## Build the two container images without a container engine, as root (TARGETS=stream; deploy/image/build.sh says more)
	@deploy/image/build.sh

release: $(STAMP) ## Make a release of the newest commit in dist/ (VERSION=0.1.0; RELEASE_ARGS=--wheels: to install it offline)
	@$(BIN)/python deploy/release/release.py "$(VERSION)" $(RELEASE_ARGS)

kafka: ## Start a fresh development broker; its host:port is the last line printed (KAFKA_PORT=9092: that port)
	@$(PYTHON) deploy/kafka/broker.py start --port $(KAFKA_PORT) --property auto.create.topics.enable=true

kafka-stop: ## Stop the development broker
	@$(PYTHON) deploy/kafka/broker.py stop

flink: ## Start Beam's job server with a Flink inside; its host:port (runner.job_server) is the last line printed
	@$(PYTHON) deploy/flink/job_server.py start

flink-stop: ## Stop the development job server
	@$(PYTHON) deploy/flink/job_server.py stop

clean: kafka-stop flink-stop ## Remove caches, build products and the demo's output (.venv stays)
	rm -rf deploy/kafka/target deploy/flink/target build dist site target .build demo-output gpu-output .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .numba_cache
	rm -f $(WARM)
	find . -path ./$(VENV) -prune -o -type d -name __pycache__ -exec rm -rf {} +
	find . -path ./$(VENV) -prune -o -type d -name '*.egg-info' -exec rm -rf {} +
