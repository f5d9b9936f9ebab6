"""Fixtures for the command line: it runs in this process, against a model server on this machine."""

from __future__ import annotations

import io
import json
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from attrs import define, field, frozen
from shop import scripted_model
from shop.scripts import COMPLAINT

from agentloop.service.cli.main import main
from tests.limits import LONGEST

_CLEARED_VARIABLES = (
    "OPENAI_API_KEY",
    "AGENTLOOP_MODEL",
    "AGENTLOOP_JOURNAL",
    "COLUMNS",
    "FORCE_COLOR",
    "NO_COLOR",
    "TTY_COMPATIBLE",
    "TTY_INTERACTIVE",
    *[name for scheme in ("http", "https", "all") for name in (f"{scheme}_proxy", f"{scheme}_proxy".upper())],
)


@pytest.fixture(autouse=True)
def neutral_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Unset the variables that change what a command prints or where it connects, and use empty folders of a user."""
    for name in _CLEARED_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))


@frozen
class CommandResult:
    """The exit code and the output of a command."""

    code: object
    out: str
    err: str


Program: TypeAlias = Callable[[Sequence[str]], object]
"""Runs a command line with these arguments, and raises SystemExit."""


@frozen
class CommandLine:
    """A command line, run in this process without a terminal."""

    capsys: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch
    program: Program = main

    def __call__(self, *arguments: str, stdin: str = "") -> CommandResult:
        self.capsys.readouterr()
        self.monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as exit_info:
            self.program(arguments)
        out, err = self.capsys.readouterr()
        return CommandResult(exit_info.value.code, out, err)


@pytest.fixture
def command_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """Return the command line `agentloop`."""
    return CommandLine(capsys, monkeypatch)


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@frozen
class TerminalCommandLine:
    """A command line, run in this process with a person at a terminal."""

    capsys: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch
    program: Program = main

    def __call__(self, *arguments: str, typed: str) -> CommandResult:
        self.capsys.readouterr()
        screen = Terminal()
        self.monkeypatch.setattr(sys, "stdin", Terminal(typed))
        self.monkeypatch.setattr(sys, "stderr", screen)
        with pytest.raises(SystemExit) as exit_info:
            self.program(arguments)
        return CommandResult(exit_info.value.code, self.capsys.readouterr().out, screen.getvalue())


@pytest.fixture
def at_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> TerminalCommandLine:
    """Return the command line `agentloop` with a person at a terminal, who types the lines of `typed`."""
    return TerminalCommandLine(capsys, monkeypatch)


Respond: TypeAlias = Callable[[str, bytes], tuple[int, Mapping[str, str], bytes]]
"""Maps the path and the body of a request to a status, headers and a body."""


@frozen
class _Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes
    is_held: bool = False


@define
class ModelServer:
    """A Chat Completions server on this machine: sends its responses in order, and repeats the last one.

    Attributes:
        base_url: its address.
        requests: the bodies of the requests so far.
        headers: the headers of the requests so far.
        respond: computes each response instead, if set.
        request_received: released once per request.
        released: ends the responses that are held.
    """

    base_url: str
    requests: list[Any] = field(factory=list)
    headers: list[Mapping[str, str]] = field(factory=list)
    respond: Respond | None = None
    request_received: threading.Semaphore = field(factory=lambda: threading.Semaphore(0))
    released: threading.Event = field(factory=threading.Event)
    _answers: deque[_Answer] = field(factory=deque)

    def says(self, text: str) -> None:
        """Respond with a text."""
        self._completes({"role": "assistant", "content": text}, "stop")

    def calls(self, *calls: tuple[str, Mapping[str, object]]) -> None:
        """Respond with tool calls."""
        entries = [
            {"id": f"c{i}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
            for i, (name, arguments) in enumerate(calls)
        ]
        self._completes({"role": "assistant", "content": None, "tool_calls": entries}, "tool_calls")

    def answers(self, status: int, body: str, **headers: str) -> None:
        """Respond with this status, body and headers; underscores in header names stand for hyphens."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self._answers.append(_Answer(status, named, body.encode()))

    def holds(self) -> None:
        """Send no response before the end of the test."""
        self._answers.append(_Answer(200, {}, b"", is_held=True))

    def next_answer(self) -> _Answer:
        """Remove and return the next response; the last one stays."""
        return self._answers.popleft() if len(self._answers) > 1 else self._answers[0]

    def answer_to(self, path: str, body: bytes) -> _Answer:
        """Return the response to a request."""
        return self.next_answer() if self.respond is None else _Answer(*self.respond(path, body))

    def _completes(self, message: Mapping[str, object], finish: str) -> None:
        choice = {"index": 0, "message": message, "finish_reason": finish}
        usage = {"prompt_tokens": 20, "completion_tokens": 5}
        self.answers(200, json.dumps({"id": "r", "model": "m", "choices": [choice], "usage": usage}))


@pytest.fixture
def server() -> Iterator[ModelServer]:
    """Return a running model server."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            model_server.requests.append(json.loads(body))
            model_server.headers.append(dict(self.headers.items()))
            model_server.request_received.release()
            answer = model_server.answer_to(self.path, body)
            if answer.is_held:
                model_server.released.wait(LONGEST)
                self.close_connection = True
                return
            self.send_response(answer.status)
            for name, value in {**answer.headers, "content-length": str(len(answer.body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, *arguments: object) -> None:
            """Write no log."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http_server:
        model_server = ModelServer(f"http://127.0.0.1:{http_server.server_port}/v1")
        thread = threading.Thread(target=http_server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield model_server
        model_server.released.set()
        http_server.shutdown()
        thread.join()


SHOP_TOOLS = '''
from agentloop import tool

NAMES = ("number", "item", "cents", "status")
ORDERS = [
    dict(zip(NAMES, values))
    for values in [(1002, "telescope", 24900, "sent"), (1009, "desk lamp", 8900, "delivered"), (1015, "box", 1850, "packed")]
]


@tool(effect="pure")
def find_customer(name: str) -> dict[str, int | str]:
    """Find a customer by name."""
    return {"id": 1, "name": name, "email": "ada@example.org"}


@tool(effect="pure")
def track_order(number: int) -> dict[str, int | str]:
    """Report where an order is."""
    orders = [order for order in ORDERS if order["number"] == number]
    if not orders:
        raise LookupError(f"there is no order {number}; the closest number is 1015")
    return orders[0]


@tool(effect="pure")
def list_orders(customer_id: int) -> list[dict[str, int | str]]:
    """List all orders of a customer."""
    return ORDERS


@tool
def refund(order_number: int, cents: int) -> str:
    """Pay money back for an order."""
    raise PermissionError("refunds need a person")


@tool
def open_ticket(customer_id: int, subject: str) -> str:
    """Open a ticket for a colleague."""
    return "ticket 1 is open"


@tool
def give_voucher(customer_id: int, cents: int) -> str:
    """Give a customer a voucher."""
    return f"voucher 1 over {cents / 100:.2f} is yours"
'''


@pytest.fixture
def shop_run(server: ModelServer, tmp_path: Path) -> list[str]:
    """Return the arguments of a run whose model follows the script of the example shop, in any mode."""
    server.respond = scripted_model.respond
    path = tmp_path / "shop_tools.py"
    path.write_text(SHOP_TOOLS, encoding="utf-8")
    model = ["--model", "ollama:scripted", "--base-url", server.base_url]
    return ["run", COMPLAINT.question, *model, "--tools", str(path), "--approve", "all"]
