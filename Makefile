# Everything here works from a fresh clone: the first target that needs the environment makes it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CORPUS ?= ../shared/corpus
MCP_SERVERS := $(addprefix @modelcontextprotocol/server-,everything@2026 filesystem@2026 memory@2026) \
	@modelcontextprotocol/conformance@0.2.0-alpha.12 node@22

.PHONY: demo demo-shop demo-durable test test-lowest bench soak kill-test corpus fuzz lock package clean

demo: $(VENV)/ready
	$(BIN)/agentloop demo --yes

# The longer examples: a support agent with every feature, and a run that survives kill -9.
demo-shop: $(VENV)/ready
	$(BIN)/python examples/shop_demo.py

demo-durable: $(VENV)/ready
	$(BIN)/python examples/durable_demo.py

test: $(VENV)/ready
	$(BIN)/ruff format --check agentloop tests benchmarks examples
	$(BIN)/ruff check agentloop tests benchmarks examples
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	PATH="$(CURDIR)/$(BIN):$$PATH" pyright --verifytypes agentloop --ignoreexternal > $(VENV)/types.txt || { cat $(VENV)/types.txt; false; }
	$(BIN)/python -m pytest

# The tests with the oldest version of every dependency that pyproject.toml allows.
test-lowest: $(VENV)/lowest
	PATH="$(CURDIR)/$(VENV)-lowest/bin:$$PATH" python -m pytest

bench: $(VENV)/plain
	$(VENV)-plain/bin/python benchmarks/overhead.py
	$(VENV)-plain/bin/python benchmarks/import_time.py
	$(VENV)-plain/bin/python benchmarks/text_formats.py
	$(VENV)-plain/bin/python benchmarks/streaming.py
	$(VENV)-plain/bin/python benchmarks/eager_start.py
	$(VENV)-plain/bin/python benchmarks/resilience.py
	$(VENV)-plain/bin/python benchmarks/journal.py

# Runs in processes that are killed at every moment, gone on with by others; the table says what became of their effects.
kill-test: $(VENV)/ready
	$(BIN)/python -m tests.durability.kill_table

# Conversations whose drivers, executors, interceptors, listeners and tools raise, lie and are cancelled; prints what broke.
SOAK_STEPS ?= 1000000
soak: $(VENV)/ready
	$(BIN)/python -m tests.soak.long_run --steps $(SOAK_STEPS)

# Hostile shapes of text for everything that reads or shows text of others; fails if one takes too long.
fuzz: $(VENV)/ready
	$(BIN)/python -m tests.fuzz.shapes

# The judge of recorded exchanges, conversations, texts and schemas, wherever CORPUS names them.
corpus: $(VENV)/ready
	$(BIN)/python $(CORPUS)/../judge/judge.py $(CORPUS) tests/corpus/adapter.py
	$(BIN)/python -m tests.corpus.grades $(CORPUS)

$(VENV)/ready: pyproject.toml requirements-dev.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --require-hashes --requirement requirements-dev.txt
	$(BIN)/python -m pip install --quiet --no-deps --editable .
	if ! command -v bwrap > /dev/null && command -v apt-get > /dev/null && [ "$$(id -u)" = 0 ]; then \
		{ apt-get update --quiet --quiet && apt-get install --quiet --quiet --yes --no-install-recommends bubblewrap busybox-static; } || \
		echo 'bubblewrap cannot be installed: tests of sandboxes are skipped'; fi
	if command -v npm > /dev/null; then \
		npm install --prefix $(VENV)/npm --no-audit --no-fund --loglevel error $(MCP_SERVERS); \
	else echo 'npm is not here: tests with MCP servers for node are skipped'; fi
	touch $@

# The benchmarks run without extras: what is measured is the plain installation.
$(VENV)/plain: pyproject.toml
	$(PYTHON) -m venv $(VENV)-plain
	$(VENV)-plain/bin/python -m pip install --quiet --upgrade pip
	$(VENV)-plain/bin/python -m pip install --quiet --editable .
	mkdir -p $(VENV)
	touch $@

$(VENV)/lowest: pyproject.toml $(VENV)/ready
	$(PYTHON) -m venv $(VENV)-lowest
	$(BIN)/uv pip compile --quiet pyproject.toml --all-extras --resolution lowest-direct --output-file $(VENV)/lowest.txt
	$(BIN)/uv pip install --quiet --python $(VENV)-lowest/bin/python --editable '.[cli,pydantic,testing]' --group dev \
		--constraints $(VENV)/lowest.txt
	touch $@

# The versions of development, with hashes; written anew after a change of pyproject.toml, or to upgrade.
lock:
	uv pip compile --quiet pyproject.toml --all-extras --group dev --universal --python-version 3.11 --generate-hashes \
		--no-header --upgrade --output-file requirements-dev.txt

# The wheel and the source distribution, and what an index says of them.
package: $(VENV)/ready
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist
	$(BIN)/twine check --strict dist/*

clean:
	rm -rf $(VENV) $(VENV)-plain $(VENV)-lowest build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
