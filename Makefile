# eager-cost: `make help` lists the targets.
PYTHON ?= python3
VENV ?= .venv
ENGINE_VENV ?= .venv-engine
RESULTS ?= results/enforce_eager
OUT ?= out/gpu-bundle
BIN := $(VENV)/bin
# The engine's packages are resolved as they were on this day, so that the list can be made again.
ENGINE_DATE := 2026-06-25
LOCK := $(BIN)/uv pip compile --generate-hashes --no-emit-index-url --no-annotate --upgrade -q --custom-compile-command "make lock"

.DEFAULT_GOAL := help
.PHONY: help venv demo report check provenance test test-torture torture test-engine test-container test-browser lock gpu-bundle clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | column -t -s '|'

venv: $(VENV)/.ready ## the project's own environment in .venv
$(VENV)/.ready: requirements/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; name one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --require-hashes --only-binary=:all: -r requirements/dev.txt
	$(BIN)/python -m pip install -q --no-deps --no-build-isolation -e .
	@touch $@

demo: venv ## a small campaign on the stand-in engine and its report (no GPU; SIMULATED figures), in out/demo
	CAMPAIGN_STANDIN_SPEED=50 $(BIN)/campaign run --config examples/demo.toml --suite published,mechanism --results out/demo/results || \
	  { code=$$?; [ $$code -ne 2 ] || echo "next: or begin anew with: rm -r out/demo; make demo" >&2; exit $$code; }
	$(BIN)/campaign load out/demo/results --database out/demo/results.duckdb
	$(BIN)/campaign report --database out/demo/results.duckdb --out out/demo/report

report: venv ## the report on the measured data that ships in results/, in out/report (offline)
	mkdir -p out
	$(BIN)/campaign load $(RESULTS) --database out/results.duckdb
	$(BIN)/campaign report --database out/results.duckdb --out out/report

check: venv ## the published study's claims judged on that data; fails when one differs from what the data declares
	mkdir -p out
	$(BIN)/campaign load $(RESULTS) --database out/results.duckdb
	$(BIN)/campaign check --database out/results.duckdb

provenance: report ## the same, and its PROVENANCE.md and FINDINGS.md in place of those here
	cp out/report/PROVENANCE.md out/report/FINDINGS.md .

test: venv ## ruff, mypy --strict and the tests
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -m "not engine and not container and not browser and not torture"

test-torture: venv ## faults at random moments of 20 small campaigns in real processes (five minutes, ended after ten)
	timeout --kill-after=10 600 $(BIN)/python -m pytest -m torture tests/test_torture.py

torture: test-torture ## the same, and 200 whole campaigns of 40 runs on played engines (half an hour on two cores)
	$(BIN)/python -m tests.torture --seeds 200

test-engine: venv ## the same path on the real vLLM 0.23.0, CPU build, in .venv-engine (3 GB of downloads, 6 GB of disk)
	tools/install_cpu_engine.sh $(ENGINE_VENV) $(BIN)/uv
	CAMPAIGN_ENGINE_PYTHON=$(abspath $(ENGINE_VENV))/bin/python $(BIN)/python -m pytest -m engine tests/engine

test-container: venv ## images, compose file and container launcher on a private Docker engine (Debian or Ubuntu, root; 3 GB of disk)
	$(BIN)/python -m pytest -rs -m container tests/container

test-browser: venv ## the report in Chromium: axe-core finds nothing, nothing is fetched, it prints (skipped, in capitals, without Chromium)
	$(BIN)/python -m pip install -q --require-hashes --only-binary=:all: -r requirements/browser.txt
	$(BIN)/python -m pytest -rs -m browser tests/browser

lock: venv ## resolve the five lists of requirements/ again
	$(LOCK) --universal --fork-strategy fewest --python-version 3.11 pyproject.toml -o requirements/run.txt
	$(LOCK) --universal --fork-strategy fewest --python-version 3.11 -c requirements/run.txt pyproject.toml requirements/dev.in -o requirements/dev.txt
	$(LOCK) --universal --fork-strategy fewest --python-version 3.11 -c requirements/dev.txt requirements/browser.in -o requirements/browser.txt
	$(LOCK) --python-version 3.12 --python-platform x86_64-manylinux_2_39 --exclude-newer $(ENGINE_DATE) \
	  requirements/engine.in -o requirements/engine.txt
	$(LOCK) --python-version 3.11 --python-platform x86_64-manylinux_2_36 --exclude-newer $(ENGINE_DATE) \
	  --override requirements/engine-cpu-overrides.txt -c requirements/engine.txt \
	  requirements/engine-cpu.in -o requirements/engine-cpu.txt

gpu-bundle: venv ## runner, engine, models and source for a GPU host without network: make gpu-bundle OUT=DIR
	tools/gpu-host/pack.sh $(OUT) $(BIN)/uv

clean: ## remove environments, caches and out/ (results/ stays)
	rm -rf $(VENV) $(ENGINE_VENV) out build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
