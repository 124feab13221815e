# Nothing needs installing by hand: every target sets up .venv first (Python >= 3.11 and make are enough).
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt
OPTIONAL := cluster export figures milvus runtimes serve

.PHONY: demo test test-core test-city test-all test-matrix check format docs clean chromium

# One environment, filled in steps; each step leaves a file .venv/ready-*. A step that was interrupted leaves none and is
# repeated by the next make.
.venv/ready-torch: constraints.txt
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv
	$(INSTALL) torch==2.13.0
	touch $@

.venv/ready-demo: EXTRAS := plot
.venv/ready-core: EXTRAS := test
.venv/ready-dev: EXTRAS := dev,lite
.venv/ready-docs: EXTRAS := docs
.venv/ready-demo .venv/ready-core .venv/ready-dev .venv/ready-docs: .venv/ready-torch pyproject.toml constraints.txt
	$(INSTALL) --editable ".[$(EXTRAS)]"
	touch $@

# A Milvus server for its tests, which run where it has a wheel; elsewhere they are skipped, saying so.
MACHINE := $(shell uname -s)-$(shell uname -m)
.venv/ready-milvus: .venv/ready-dev
	$(INSTALL) --no-deps milvus
	touch $@

# passive: threads that spin while they wait made it take five times as long on a busy machine
demo: .venv/ready-demo     ## the main job, end to end
	OMP_WAIT_POLICY=passive $(BIN)/python examples/demo.py

# The page is tested in a real browser; where none can be installed those tests are skipped, saying so.
chromium:
	@command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-liberation >/dev/null; } \
		|| echo "chromium is not here and could not be installed: the page is not tested"

test: .venv/ready-dev chromium ## the default tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not gpu"

test-city: .venv/ready-dev ## the default tests that draw the synthetic city, alone
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "city and not slow and not gpu"

# Extras are not installed for it: the folders of what needs them are left out, single tests are skipped, saying so.
test-core: .venv/ready-core ## the default tests of the core, without extras and without the drawn city
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not gpu and not city" $(patsubst %,--ignore=tests/%,$(OPTIONAL))

test-all: .venv/ready-dev $(if $(filter Linux-x86_64,$(MACHINE)),.venv/ready-milvus) chromium ## also the slow, gpu and data-hungry ones
	$(BIN)/python -m pytest --hypothesis-profile=new

# ROWS=float32,bfloat16 runs these rows alone.
test-matrix: .venv/ready-dev ## the tests that run models, under eight settings of processor and machine
	$(BIN)/python -m benchmarks.test_matrix $(if $(ROWS),--only $(ROWS))

check: .venv/ready-dev       ## lint, format, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/ready-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/ready-docs     ## the documentation as a site: site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

clean:
	rm -rf .venv build dist site .mypy_cache .ruff_cache .pytest_cache
