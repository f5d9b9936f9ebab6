"""The pytest plugin: its fixtures work in a test session of a program, and real exchanges are recorded and replayed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType

import pytest

from agentloop.errors import ConfigurationError
from agentloop.testing import EventBusKit
from agentloop.testing.kit_choice import kit_of
from tests.models.loopback import completion

PROGRAM = '''
import asyncio

import pytest

from agentloop import AgentLoop, ScriptedInference, ToolCall, tool
from agentloop.events import AgentExecutionCompleted


@tool(effect="pure", timeout=30)
async def slow() -> str:
    """Take an hour."""
    await asyncio.sleep(3600)
    return "done"


def test_fixtures(event_recorder, manual_clock, counting_ids, virtual_time, run_snapshot):
    loop = AgentLoop.for_model(ScriptedInference(ToolCall("1", "slow"), "late"), tools=[slow], ids=counting_ids)
    loop.wiretap(event_recorder)
    state = virtual_time(loop.execute("go"))
    event_recorder.only(AgentExecutionCompleted)
    assert state.execution_id == "execution_1"
    run_snapshot(state)
    manual_clock.advance(1)


@pytest.mark.parametrize("question", ["hello"])
def test_exchanges(http_exchanges, question):
    loop = AgentLoop.for_model("openai:loopback", base_url=URL, max_retries=0)
    assert loop.run_sync(question) == "the answer"
'''


class Provider(BaseHTTPRequestHandler):
    """Answers every request in the same way."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        body = completion("the answer")
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name of the base class
        """Log nothing."""


@contextmanager
def provider() -> Iterator[str]:
    """Run a provider, and yield its address."""
    with HTTPServer(("127.0.0.1", 0), Provider) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
            thread.join()


def session(folder: Path, *options: str, key: str = "") -> subprocess.CompletedProcess[str]:
    """Run the tests of a program, in a process of its own."""
    keys = {"OPENAI_API_KEY": key} if key else {}
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "pytest", "-p", "agentloop.testing.pytest_plugin", "-q", *options],
        cwd=folder,
        env={**environment, **keys, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )


def test_exchanges_and_snapshots_are_recorded_once_and_replayed(tmp_path: Path) -> None:
    """The first session records with a key, the second replays without a key, a server or a network."""
    with provider() as url:
        (tmp_path / "test_program.py").write_text(f"URL = {url!r}\n{PROGRAM}")
        unrecorded = session(tmp_path, "--replay", "-k", "fixtures or exchanges")
        recorded = session(tmp_path, "--record", key="sk-secret-1234567890")
    replayed = session(tmp_path, "--replay")
    assert "there is no snapshot" in unrecorded.stdout
    assert "there is no recording" in unrecorded.stdout
    assert recorded.returncode == 0, recorded.stdout
    assert replayed.returncode == 0, replayed.stdout
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.json"))
    assert files == ["recordings/test_program/test_exchanges_hello.json", "snapshots/test_program/test_fixtures.json"]
    assert "sk-secret" not in (tmp_path / files[0]).read_text()


def test_both_options_together_are_a_usage_error(tmp_path: Path) -> None:
    """A session either calls providers or does not."""
    ended = session(tmp_path, "--record", "--replay")
    assert ended.returncode == 4
    assert "give one of them" in ended.stderr


KITS = """
from agentloop.durable import MemoryJournal
from agentloop.events import EventBus
from agentloop.policies import MemoryStore
from agentloop.testing import EventBusKit, ListenerKit


class Forgetful(MemoryStore):
    async def update(self, namespace, key, now, transition):
        return await super().update(namespace, key, 0.0, transition)


def make_store() -> "MemoryStore":
    return MemoryStore()


def make_bus():
    return EventBus()


class Both(MemoryJournal):
    pass


bus_kit = EventBusKit(EventBus, examples=2)
an_object = MemoryStore()
"""


def test_the_laws_of_an_implementation_are_tests_of_their_own(tmp_path: Path) -> None:
    """Each law is an item with a name; a violation is shown alone, and no test of the folder is collected."""
    (tmp_path / "kits.py").write_text(KITS)
    (tmp_path / "test_others.py").write_text("def test_other():\n    assert False\n")
    names = ("Forgetful", "make_store", "bus_kit")
    options = [f"--agentloop-kit=kits:{name}" for name in names]
    ended = session(tmp_path, "-v", "-rf", "--agentloop-kit-examples", "25", "-k", "not 19", *options)
    assert "1 failed, 9 passed, 1 deselected" in ended.stdout, ended.stdout + ended.stderr
    assert "FAILED kits:Forgetful::StoreKit::test_law_36_updates" in ended.stdout
    assert "law 36 is violated: " in ended.stdout
    assert "docs/laws.md#law-36" in ended.stdout
    assert "store_kit.py" not in ended.stdout
    assert "test_other" not in ended.stdout


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("kits:Forgetfull", "", "there is no 'Forgetfull' in kits; did you mean 'Forgetful'?"),
        ("nothing:Store", "", "there is no module 'nothing'"),
        ("kits.Forgetful", "", "did you mean 'kits:Forgetful'?"),
        ("kits:make_bus", "", "kits:make_bus does not say what it returns"),
        ("kits:an_object", "", "is an object of the class MemoryStore, and a kit makes new ones"),
        ("kits:Both", "", "implements the contracts of accounts and journal: say which kit is meant"),
        ("kits:EventBusKit", "", "EventBusKit implements no contract that has a kit"),
        ("kits:make_bus", "buss", "no kit is for 'buss'"),
        ("kits:make_bus", "tool", "a ToolKit needs the arguments of calls"),
    ],
)
def test_a_wrong_name_says_what_to_do(monkeypatch: pytest.MonkeyPatch, name: str, kind: str, message: str) -> None:
    """The error names what is missing, or the closest name."""
    module = ModuleType("kits")
    exec(KITS, module.__dict__)  # the module of the test above
    monkeypatch.setitem(sys.modules, "kits", module)
    with pytest.raises(ConfigurationError) as raised:
        kit_of(name, kind)
    assert message in str(raised.value)


def test_a_kind_stands_for_a_missing_annotation() -> None:
    """A function without one is checked by the kit that is named; what has its own examples keeps them."""
    kit = kit_of("agentloop.events:EventBus", "bus", examples=7)
    assert isinstance(kit, EventBusKit)
    assert kit.examples == 7


def test_a_wrong_name_ends_the_session(tmp_path: Path) -> None:
    """It is a usage error, with one line."""
    ended = session(tmp_path, "--agentloop-kit", "nothing:Store")
    assert ended.returncode == 4
    assert "ERROR: --agentloop-kit nothing:Store: there is no module 'nothing'" in ended.stdout + ended.stderr


def test_the_plugin_loads_nothing_heavy() -> None:
    """Every test session of a program that has agentloop installed imports it."""
    code = "import agentloop.testing.pytest_plugin, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"hypothesis", "httpx", "attrs", "jsonschema"} & set(done.stdout.split())
