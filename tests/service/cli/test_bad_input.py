"""Bad input, as one table: the outcome for a program, the message for the model, and the exit code of `agentloop run`.

Each row runs twice against a real server: through the library and through the command line.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from agentloop import AgentLoop, AgentState, HttpInference, Interceptor, LLMConfig, ToolCallingDriver
from agentloop.contracts import CanUseTools
from agentloop.errors import ConfigurationError, ToolDefinitionError
from agentloop.interception import at
from agentloop.service.cli.sources import load_tools
from agentloop.values.points import BeforeStep
from agentloop.values.policies import RetryPolicy
from tests.limits import LONGEST
from tests.service.cli.conftest import CommandLine, ModelServer

GOOD_TOOLS = '''
from agentloop import AgentState, tool

@tool
def add(a: int, b: int, state: AgentState) -> int:
    """Add two numbers."""
    return a + b
'''

Server = Callable[[ModelServer], None]


@frozen
class Row:
    """One kind of bad input.

    Attributes:
        name: what is wrong.
        outcome: an exception type, or the status of the execution.
        code: the exit code of `agentloop run`.
        serve: programs the server; by default it answers the question at once.
        message: a part of the last message of the second request; empty when there is none.
        error: a part of the execution's error.
        tools: the tools file.
        model: the model string.
        key: the key in the environment.
        url: an address instead of the server's.
        options: options of the command.
        call_count: the number of recorded tool calls.
    """

    name: str
    outcome: type[Exception] | str
    code: int
    serve: Server | None = None
    message: str = ""
    error: str = ""
    tools: str = GOOD_TOOLS
    model: str = "openai:any"
    key: str = "a-key"
    url: str = ""
    options: tuple[str, ...] = ()
    call_count: int = 0


def answer(status: int, body: str = "{}", **headers: str) -> Server:
    return lambda server: server.answers(status, body, **headers)


def error_body(message: str) -> str:
    return json.dumps({"error": {"message": message, "type": "invalid_request_error"}})


def call(name: str, arguments: str) -> Server:
    """Let the model make one call with these raw arguments, then answer."""

    def serve(server: ModelServer) -> None:
        entry = {"id": "c0", "type": "function", "function": {"name": name, "arguments": arguments}}
        message = {"role": "assistant", "content": None, "tool_calls": [entry]}
        server.answers(200, json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}))
        server.says("sorry")

    return serve


def after_one_call(then: Server) -> Server:
    """Let the model make one valid call before the bad response."""

    def serve(server: ModelServer) -> None:
        server.calls(("add", {"a": 1, "b": 2}))
        then(server)

    return serve


def a_tool(body: str, *, returns: str = "str", options: str = "") -> str:
    return f'''
from agentloop import tool
from tests.service.cli.test_bad_input import RELEASED

@tool{options}
def work() -> {returns}:
    """Do the work."""
    {body}
'''


RELEASED = threading.Event()
"""Releases a tool that hangs, at the end of its test."""

ROWS = [
    Row("an unknown provider", ConfigurationError, 2, model="openia:gpt"),
    Row("a model string without a provider", ConfigurationError, 2, model="gpt-5"),
    Row("a missing key", ConfigurationError, 2, key="", url="default"),
    Row("an address without a server", "failed", 1, url="http://127.0.0.1:9/v1", error="no connection to"),
    Row("HTTP 401", "failed", 1, answer(401, error_body("bad key")), error="HTTP 401: bad key"),
    Row("HTTP 404", "failed", 1, answer(404, error_body("no such model")), error="HTTP 404: no such model"),
    Row("HTTP 429", "failed", 1, answer(429, error_body("slow down"), retry_after="0"), error="HTTP 429: slow down"),
    Row("HTTP 500", "failed", 1, answer(500, "oops", retry_after="0"), error="HTTP 500"),
    Row("a body that is not JSON", "failed", 1, answer(200, "<html><title>Hi</title>"), error="not JSON"),
    Row(
        "JSON of the wrong structure",
        "failed",
        1,
        answer(200, '{"answer": 42}'),
        error="structure of a chat completion",
    ),
    Row(
        "HTTP 500 after a successful step",
        "failed",
        1,
        after_one_call(answer(500, "oops", retry_after="0")),
        error="HTTP 500",
        call_count=1,
    ),
    Row("an unknown tool", "completed", 0, call("ad", '{"a": 1, "b": 2}'), "did you mean 'add'?", call_count=1),
    Row("arguments that are not JSON", "completed", 0, call("add", "a=1"), "not valid JSON", call_count=1),
    Row(
        "arguments that are not an object",
        "completed",
        0,
        call("add", "[1, 2]"),
        "a JSON array, not an object",
        call_count=1,
    ),
    Row("truncated arguments", "completed", 0, call("add", '{"a": 1, "b"'), "are cut off", call_count=1),
    Row(
        "arguments that violate the schema",
        "completed",
        0,
        call("add", '{"a": 1, "b": "two"}'),
        "at $.b: 'two' is not",
        call_count=1,
    ),
    Row("a missing argument", "completed", 0, call("add", '{"a": 1}'), "'b' is a required property", call_count=1),
    Row(
        "an argument for an injected parameter",
        "completed",
        0,
        call("add", '{"a": 1, "b": 2, "state": {}}'),
        "'state' was unexpected",
        call_count=1,
    ),
    Row(
        "a tool that raises",
        "completed",
        0,
        call("work", ""),
        "ValueError: out of order",
        tools=a_tool('raise ValueError("out of order")'),
        call_count=1,
    ),
    Row(
        "a tool that hangs",
        "completed",
        0,
        call("work", ""),
        "did not end within 0.05 seconds",
        tools=a_tool("RELEASED.wait(); return 'late'", options="(timeout=0.05)"),
        call_count=1,
    ),
    Row(
        "a result that is not JSON",
        "completed",
        0,
        call("work", ""),
        "<object object>",
        tools=a_tool("return object()", returns="object"),
        call_count=1,
    ),
    Row(
        "a result that violates the return type",
        "completed",
        0,
        call("work", ""),
        "declares to return list[int]",
        tools=a_tool("return [1, 'two']", returns="list[int]"),
        call_count=1,
    ),
    Row(
        "a result of 50 MB",
        "completed",
        0,
        call("work", ""),
        "[cut here: 100,000 of 50,000,000 bytes are shown]",
        tools=a_tool("return 'x' * 50_000_000"),
        call_count=1,
    ),
    Row(
        "two tools with one name",
        ToolDefinitionError,
        2,
        tools=GOOD_TOOLS + "\nadd_again = tool(name='add')(add.function)\n",
    ),
    Row("a tool without docstring", ToolDefinitionError, 2, tools=GOOD_TOOLS.replace('"""Add two numbers."""', "pass")),
    Row("a tool without hints", ToolDefinitionError, 2, tools=GOOD_TOOLS.replace("a: int", "a")),
    Row("a tool with *args", ToolDefinitionError, 2, tools=GOOD_TOOLS.replace("a: int", "*a: int")),
    Row(
        "a plain function among the tools",
        ConfigurationError,
        2,
        tools=GOOD_TOOLS + "\nTOOLS = [add, len]\n",
        options=(":TOOLS",),
    ),
]


@pytest.fixture
def tools_file(tmp_path: Path) -> Iterator[Path]:
    """Return a path for the tools file; a tool that hangs is released at the end."""
    RELEASED.clear()
    yield tmp_path / "bad_input_tools.py"
    RELEASED.set()
    for thread in [thread for thread in threading.enumerate() if thread.name == "agentloop-tool"]:
        thread.join(LONGEST)


def run_in_library(row: Row, server: ModelServer, place: str) -> AgentState:
    url = {"": server.base_url, "default": None}.get(row.url, row.url)
    config = LLMConfig.parse(row.model, base_url=url, environment={"OPENAI_API_KEY": row.key})
    config = config.with_settings(retry=RetryPolicy(initial_wait=0))
    return AgentLoop(ToolCallingDriver(HttpInference(config)), load_tools([place])).execute_sync("What is 1 + 2?")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_library_reports_bad_input_and_loses_no_work(row: Row, server: ModelServer, tools_file: Path) -> None:
    """A mistake of the program raises, anything else is in the state, and the model sees what it can correct."""
    (row.serve or (lambda server: server.says("3")))(server)
    tools_file.write_text(row.tools)
    place = str(tools_file) + "".join(row.options)
    if not isinstance(row.outcome, str):
        with pytest.raises(Exception, match=r"\w") as caught:
            run_in_library(row, server, place)
        assert isinstance(caught.value, row.outcome) or isinstance(caught.value.__cause__, row.outcome)
        return
    state = run_in_library(row, server, place)
    assert state.status.value == row.outcome
    assert row.error in "".join(error.message for error in state.errors)
    assert sum(len(step.executions) for step in state.steps) == row.call_count
    if row.message:
        assert row.message in server.requests[1]["messages"][-1]["content"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_command_exits_with_the_right_code(
    row: Row, server: ModelServer, tools_file: Path, command_line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exit code is that of the table, and the error is printed without a traceback."""
    (row.serve or (lambda server: server.says("3")))(server)
    tools_file.write_text(row.tools)
    if row.key:
        monkeypatch.setenv("OPENAI_API_KEY", row.key)
    arguments = ["run", "What is 1 + 2?", "--model", row.model, "--tools", str(tools_file) + "".join(row.options)]
    arguments += ["--approve", "all"]
    if row.url != "default":
        arguments += ["--base-url", row.url or server.base_url]
    result = command_line(*arguments)
    assert result.code == row.code, result.err
    assert "Traceback" not in result.err
    if row.code:
        assert result.err.strip()
        assert row.key not in result.err or not row.key


class ReturnsNone(Interceptor):
    """Forgets to return its point."""

    def before_step(self, point: BeforeStep) -> BeforeStep:
        return None  # type: ignore[return-value]  # the mistake under test


class WithoutAStep(CanUseTools):
    """Returns its argument without a new step."""

    async def use_tools(self, state: AgentState) -> AgentState:
        return state


def raising(_: Any) -> Any:
    raise ValueError("no luck")


@pytest.mark.parametrize(
    ("change", "status", "error"),
    [
        (lambda loop: loop.wiretap(raising) and loop, "completed", ""),
        (lambda loop: loop.with_interceptors(at("before_step", raising)), "failed", "raising failed at before_step"),
        (lambda loop: loop.with_interceptors(ReturnsNone()), "failed", "ReturnsNone returned None at before_step"),
        (lambda loop: loop.replace(driver=WithoutAStep()), "failed", "WithoutAStep returned a state with 0 steps"),
    ],
    ids=["a listener that raises", "an interceptor that raises", "an interceptor that returns None", "no step"],
)
def test_bad_parts_of_a_program_are_named(
    change: Callable[[AgentLoop], AgentLoop], status: str, error: str, server: ModelServer
) -> None:
    """A failing listener has no effect; an interceptor or a driver that breaks its contract fails the execution by name."""
    server.says("3")
    config = LLMConfig.parse("openai:any", base_url=server.base_url)
    state = change(AgentLoop(ToolCallingDriver(HttpInference(config)))).execute_sync("What is 1 + 2?")
    assert state.status.value == status
    assert error in "".join(info.message for info in state.errors)
