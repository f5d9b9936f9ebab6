"""What the tests of the command line share: the command line in this process, and a model server on this machine."""

from __future__ import annotations

import io
import json
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from attrs import define, field, frozen

from agentloop.cli.main import main
from tests.limits import LONGEST

_SETTINGS_OF_THE_ONE_WHO_TESTS = (
    "OPENAI_API_KEY",
    "COLUMNS",
    "FORCE_COLOR",
    "NO_COLOR",
    "TTY_COMPATIBLE",
    "TTY_INTERACTIVE",
    *[name for scheme in ("http", "https", "all") for name in (f"{scheme}_proxy", f"{scheme}_proxy".upper())],
)


@pytest.fixture(autouse=True)
def _neutral_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _SETTINGS_OF_THE_ONE_WHO_TESTS:
        monkeypatch.delenv(name, raising=False)


@frozen
class Ended:
    """What came of a command."""

    code: object
    out: str
    err: str


@frozen
class CommandLine:
    """The command line, run in this process."""

    capsys: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch

    def __call__(self, *arguments: str, stdin: str = "") -> Ended:
        self.capsys.readouterr()
        self.monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        out, err = self.capsys.readouterr()
        return Ended(ended.value.code, out, err)


@pytest.fixture
def command_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """Return the command line."""
    return CommandLine(capsys, monkeypatch)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def at_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Return the command line with a person at a terminal, who types these lines."""

    def run(*arguments: str, typed: str) -> Ended:
        capsys.readouterr()
        shown = Terminal()
        monkeypatch.setattr(sys, "stdin", Terminal(typed))
        monkeypatch.setattr(sys, "stderr", shown)
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        return Ended(ended.value.code, capsys.readouterr().out, shown.getvalue())

    return run


@frozen
class _Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes
    is_held: bool = False


@define
class ModelServer:
    """A server of Chat Completions on this machine: gives its answers in order, the last one again and again."""

    base_url: str
    requests: list[Any] = field(factory=list)
    headers: list[Mapping[str, str]] = field(factory=list)
    asked: threading.Semaphore = field(factory=lambda: threading.Semaphore(0))
    released: threading.Event = field(factory=threading.Event)
    _answers: deque[_Answer] = field(factory=deque)

    def says(self, text: str) -> None:
        """Answer with a text."""
        self._completes({"role": "assistant", "content": text}, "stop")

    def calls(self, *calls: tuple[str, Mapping[str, object]]) -> None:
        """Answer with calls of tools."""
        spelled = [
            {"id": f"c{i}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
            for i, (name, arguments) in enumerate(calls)
        ]
        self._completes({"role": "assistant", "content": None, "tool_calls": spelled}, "tool_calls")

    def answers(self, status: int, body: str, **headers: str) -> None:
        """Answer with this status and body."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self._answers.append(_Answer(status, named, body.encode()))

    def holds(self) -> None:
        """Give no answer until the test is over."""
        self._answers.append(_Answer(200, {}, b"", is_held=True))

    def next_answer(self) -> _Answer:
        """Take the next answer, or the last one again."""
        return self._answers.popleft() if len(self._answers) > 1 else self._answers[0]

    def _completes(self, message: Mapping[str, object], finish: str) -> None:
        choice = {"index": 0, "message": message, "finish_reason": finish}
        usage = {"prompt_tokens": 20, "completion_tokens": 5}
        self.answers(200, json.dumps({"id": "r", "model": "m", "choices": [choice], "usage": usage}))


@pytest.fixture
def server() -> Iterator[ModelServer]:
    """Return a model server that is running."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            made.requests.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            made.headers.append(dict(self.headers.items()))
            made.asked.release()
            answer = made.next_answer()
            if answer.is_held:
                made.released.wait(LONGEST)
                self.close_connection = True
                return
            self.send_response(answer.status)
            for name, value in {**answer.headers, "content-length": str(len(answer.body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, *arguments: object) -> None:
            """Stay silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        made = ModelServer(f"http://127.0.0.1:{listening.server_port}/v1")
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.released.set()
        listening.shutdown()
        thread.join()
