# All a developer does with pyqd. `make help` lists the targets.
#
# The release build lies in the tree itself: pyqd/hot/*/*.so, so that .venv/bin/pyqd is the daemon of this checkout. The
# debug build lies in build/debug-tree, a copy of the sources kept fresh by scripts/build/debug_tree.py; it shares .venv and is
# put before the checkout by PYTHONPATH. So neither build disturbs the other, and both stay incremental.

SHELL := /bin/bash
PYTHON ?= python3
export PYTHON
# cython-lint looks for pycodestyle on the PATH, and tests must start the programs of .venv.
export PATH := $(CURDIR)/.venv/bin:$(PATH)

VENV := .venv
BIN := $(VENV)/bin
COMPILER := $(VENV)/.compiler
READY := $(VENV)/.ready
TOOLS := $(VENV)/.tools
SITE_TOOLS := $(VENV)/.site-tools
BUILT := build/release.built
BENCH_BUILT := build/bench.built
DEBUG_TREE := build/debug-tree
SPARK_CLASSES := build/spark/classes.made
TESTS_COMPILED := build/tests.compiled
DATA ?= data

PYX := $(wildcard pyx/*/*.pyx)
SOURCES := setup.py $(PYX) $(wildcard pyqd/hot/*/*.pxd)
BENCH_SOURCES := $(wildcard bench/*.pyx bench/*.pxd tests/support/*.pyx)
# A .pyx without its extension module, say after the .so was removed by hand, makes the build run whatever the stamp says.
NOT_BUILT := $(strip $(foreach source,$(PYX),$(if $(wildcard $(source:pyx/%.pyx=pyqd/hot/%).*.so),,absent)))
COUNT := $(words $(NOT_BUILT))
# A module takes Cython and the C compiler some 2 s of a core.
ALL_SECONDS = $(shell expr $(COUNT) '*' 2 / $$(nproc))
TO_COMPILE = $(if $(filter $(words $(PYX)),$(COUNT)),$(COUNT) modules ($(ALL_SECONDS) s),what has changed)
BUILD_LOG := build/compile.log
DIST_LOG := build/dist.log
# The client's pyproject.toml.
CLIENT := scripts/build/client

# Tests wait for daemons, disks and time-outs more than they compute: more processes than cores.
JOBS ?= $(shell expr 3 "*" $$(nproc))
# loadgroup: tests/spark runs in one process, and so in one Spark session; all other tests go to any free process.
IN_PARALLEL = -n $(JOBS) --dist loadgroup
# The suite starts the daemon hundreds of times, so compiled bytecode is kept even if the environment disables it.
export PYTHONDONTWRITEBYTECODE :=

# ARGS goes to the tool behind a target: make test ARGS="-k requeue", make run ARGS="-mem-queue-size=0".
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help env build run ready test test-fast debug test-debug simulate explore bench flame cpu-cost stalls lint pages fmt types cov annotate map site wheels dist check clean absent

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

env: $(TOOLS) ## the environment: .venv with everything that is needed to build, test and measure

build: $(READY) $(BUILT) $(BENCH_BUILT) ## environment and release build, in place; quick when nothing has changed

# Without the benchmarks and packages that only tests need. Packages are installed while the extensions are
# compiled.
run: ## start broker, lookup daemon and web admin on NSQ's ports of this machine, with data in ./data
	@$(MAKE) --no-print-directory --jobs=2 ready
	@exec $(BIN)/pyqd up --data-path=$(DATA) $(ARGS)

ready: $(READY) $(BUILT) ## all that `run` needs: packages and the release build, without the benchmarks
	@:

# Some tests with servers of their own need their share of the machine, which others may take for seconds. So a few that
# failed run once more, alone, and are named. Tests of lost messages are not repeated (PROOFS in tests/conftest.py).
test: ## build, then the whole test suite
	@$(MAKE) --no-print-directory --jobs=2 build $(SPARK_CLASSES) $(TESTS_COMPILED)
	$(BIN)/python -m pytest -v --durations=10 $(IN_PARALLEL) $(ARGS) || \
		$(BIN)/python -m pytest -v --last-failed --last-failed-no-failures=none --second-look $(ARGS)

# These compute and hardly wait, and each process looks through all tests first: as many processes as cores.
test-fast: JOBS := $(shell nproc)
# Their files lie in memory, if there is space: on a disk, removing those of an earlier run takes as long as the tests.
test-fast: IN_MEMORY = $(shell [ "$$(df --output=avail /dev/shm | tail -n 1)" -gt 4000000 ] && echo TMPDIR=/dev/shm)
test-fast: build $(TOOLS) ## the tests without slow, interop, browser and spark: about a minute
	$(IN_MEMORY) $(BIN)/python -m pytest -q -m "not slow and not interop and not browser and not spark" \
		--hypothesis-profile=quick -o tmp_path_retention_policy=failed $(IN_PARALLEL) $(ARGS)

debug: $(READY) ## debug build in build/debug-tree: invariants and indexes checked, warnings are errors
	$(BIN)/python scripts/build/debug_tree.py $(DEBUG_TREE)
	ln -sfn "$(CURDIR)/.venv" $(DEBUG_TREE)/.venv
	cd $(DEBUG_TREE) && PYQD_DEBUG=1 PYQD_WERROR=1 PYQD_BUILD_BENCH=1 "$(CURDIR)/$(BIN)/python" setup.py -q build_ext --inplace

test-debug: debug $(TOOLS) ## the tests on the debug build (tests of the repository itself aside)
	cd $(DEBUG_TREE) && PYTHONPATH="$(CURDIR)/$(DEBUG_TREE)" "$(CURDIR)/$(BIN)/python" -m pytest -q --ignore=tests/meta $(IN_PARALLEL) $(ARGS)

simulate: build $(TOOLS) ## seeded schedules of operations and faults against a model, until stopped; ARGS="--seed=1 --schedules=1000"
	$(BIN)/python -m tests.simulation $(ARGS)

# In CI the examples are the same in every run, so a rare one is never tried there.
explore: build $(TOOLS) ## the tests of properties with thousands of random examples
	$(BIN)/python -m pytest -q tests/property --hypothesis-profile=explore --timeout=3600 $(IN_PARALLEL) $(ARGS)

# NSQD, given to make or in the environment, reaches the benchmark by the environment.
bench: build $(TOOLS) ## benchmarks with real sizes, and tables; NSQD=path/to/nsqd sets an nsqd beside, in turn
	$(BIN)/python -m bench $(ARGS)

flame: build $(TOOLS) ## flame graph of the daemon under load: bench/results/flame.svg, stacks beside it
	scripts/flame.sh $(ARGS)

cpu-cost: build $(TOOLS) ## what a message costs the daemon; BASE=path/to/another/checkout sets that one beside, in turn
	$(BIN)/python -m bench.cost $(if $(BASE),--base="$(BASE)") $(ARGS)

stalls: build $(TOOLS) ## the longest time that the daemon does not answer, situation by situation
	$(BIN)/python -m bench stalls $(ARGS)

lint: $(READY) $(BUILT) $(VENV)/.with-lint ## ruff, cython-lint, links of the manual, and whether pages made from the code are current
	$(BIN)/ruff check .
	$(BIN)/cython-lint $(wildcard pyx pyqd/hot)
	@# Without the settings and fixtures of the tests, whose packages are many.
	$(BIN)/python -m pytest -q -c /dev/null --rootdir=. --noconftest --import-mode=importlib tests/meta/test_links.py
	$(BIN)/python -m scripts.pages --check

pages: build $(TOOLS) ## write the pages, man pages, pictures and catalogues made from the code; ARGS=--screenshots
	$(BIN)/python -m scripts.pages $(ARGS)

fmt: $(VENV)/.with-lint ## format the Python sources
	$(BIN)/ruff check --fix-only -q .
	$(BIN)/ruff format .

types: build $(TOOLS) ## mypy, strict; and the stubs of compiled modules, compared with the modules
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest --concise --ignore-disjoint-bases --mypy-config-file pyproject.toml \
		--ignore-unused-allowlist --allowlist scripts/build/stubtest-allowed.txt $(subst /,.,$(PYX:pyx/%.pyx=pyqd.hot.%))

cov: build $(TOOLS) ## coverage of the Python half: htmlcov/index.html
	$(BIN)/python -m pytest -q --cov --cov-report=term --cov-report=html $(ARGS)

annotate: $(COMPILER) ## where the compiled code still talks to Python: Cython's annotated HTML
	@PYQD_ANNOTATE=1 $(BIN)/python setup.py -q build_ext --inplace
	@ls build/cython/annotated/pyx/*/*.html

map: ## every module with the first line of its docstring, and its tests
	@$(PYTHON) scripts/pages/module_map.py

# Its pages are links in the layout of the repository, so that links from page to page hold in both.
site: $(SITE_TOOLS) ## web site of the manual, with search and the reference of the Python client: build/site/index.html
	@rm -rf build/pages && mkdir -p build/pages
	@ln -s $(addprefix "$(CURDIR)"/,README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md LICENSE docs bench scripts/site/reference scripts/site/site.css) build/pages/
	@echo 'site: reading the manual and the docstrings (20 s)'
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet --config-file scripts/site/mkdocs.yml
	@echo 'site: build/site/index.html; with its search: $(BIN)/python -m http.server --directory build/site'

wheels: $(VENV)/.with-dist ## wheels for every CPython from 3.10 to 3.14 on this machine, repaired by auditwheel and tried out, in dist/
	$(BIN)/python scripts/build/wheels.py $(ARGS)

dist: $(VENV)/.with-dist ## sdist, wheel and the client's wheel in dist/
	@echo 'dist: building the source distribution, and the wheel from it (two minutes); all that is said goes to $(DIST_LOG)'
	@mkdir -p build
	@$(BIN)/python -m build --no-isolation >$(DIST_LOG) 2>&1 || { tail -n 40 $(DIST_LOG); exit 1; }
	@$(BIN)/python -m pip wheel -q --no-deps --no-build-isolation -w dist $(CLIENT) >$(DIST_LOG) || { cat $(DIST_LOG); exit 1; }
	@ls -sh dist/*

check: lint types test ## all that must hold before a commit

clean: ## remove builds and caches; .venv and data stay
	rm -rf build dist *.egg-info htmlcov .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -f pyqd/hot/*.so pyqd/hot/*/*.so bench/*.so
	find pyqd spark tests bench scripts -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

$(COMPILER): pyproject.toml scripts/build/setup.sh
	@scripts/build/setup.sh --to-compile
	@touch $@

$(READY): $(COMPILER)
	@scripts/build/setup.sh
	@touch $@

$(TOOLS): $(READY)
	@scripts/build/setup.sh --for-tests
	@touch $@

# For targets that need one extra of pyproject.toml, and not Spark, Java, browsers and databases.
$(VENV)/.with-%: $(COMPILER)
	@scripts/build/setup.sh --with $*
	@touch $@

$(SITE_TOOLS): scripts/build/setup.sh
	@scripts/build/setup.sh --for-site
	@touch $@

$(BUILT): $(COMPILER) $(SOURCES) $(NOT_BUILT)
	@echo 'build: compiling $(TO_COMPILE)'
	@mkdir -p $(@D)
	@$(BIN)/python setup.py -q build_ext --inplace >$(BUILD_LOG) || { cat $(BUILD_LOG); exit 1; }
	@touch $@

# The same step with more modules; modules that are built already stay.
$(BENCH_BUILT): $(BUILT) $(BENCH_SOURCES)
	@echo 'build: compiling the benchmarks, if they have changed (5 s)'
	@PYQD_BUILD_BENCH=1 $(BIN)/python setup.py -q build_ext --inplace >$(BUILD_LOG) || { cat $(BUILD_LOG); exit 1; }
	@touch $@

# Spark's JVMs start in half the time with it, and the tests start dozens.
$(SPARK_CLASSES): $(TOOLS)
	@echo 'build: writing an archive of the classes that Spark loads, for its tests (30 s)'
	@mkdir -p $(@D)
	@$(BIN)/python -m tests.support.spark_java
	@touch $@

# pytest compiles each test with its assertions rewritten. Its processes begin together, and so each would compile all.
$(TESTS_COMPILED): $(TOOLS) $(BUILT) $(BENCH_BUILT)
	@echo 'build: compiling the tests (20 s)'
	@$(BIN)/python -m pytest -q --collect-only >build/tests.log || { tail -n 40 build/tests.log; exit 1; }
	@touch $@

absent:
