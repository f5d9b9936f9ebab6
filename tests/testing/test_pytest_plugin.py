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


def test_the_plugin_loads_nothing_heavy() -> None:
    """Every test session of a program that has agentloop installed imports it."""
    code = "import agentloop.testing.pytest_plugin, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"hypothesis", "httpx", "attrs", "jsonschema"} & set(done.stdout.split())
