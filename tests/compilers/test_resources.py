"""Results that calls of other tools have made stale, because they are about the same resource."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from agentloop import AgentLoop, ScriptedInference, ToolCall, ToolCallingDriver, tool
from agentloop.compilers import TokenWindow
from agentloop.compilers.stale import STUB
from agentloop.contracts import CanCompileMessages
from agentloop.contracts.tool import ToolPolicy
from agentloop.contracts.tools import Tools
from agentloop.errors import ToolDefinitionError
from agentloop.toolkits.files import files
from agentloop.values import JsonObject, Message, ToolExecution, ToolStatus
from agentloop.values.estimates import message_tokens
from tests.compilers.conversations import NOW, call_message, stub_stale_results

LONG = "what the file held, at length " * 20


@tool(effect="pure", resource="file:{path}")
async def read(path: str) -> str:
    """Read."""
    return path


@tool(supersedes="same resource", resource="file:{path}")
async def write(path: str, text: str) -> str:
    """Write."""
    return path + text


def _both(arguments: JsonObject) -> Iterable[str]:
    return (f"file:{arguments['old']}", f"file:{arguments['new']}")


@tool(supersedes="same resource", resource=_both)
async def rename(old: str, new: str) -> str:
    """Rename."""
    return old + new


@tool(effect="pure", resource=lambda arguments: [f"file:{path}" for path in arguments["paths"]])
async def compare(paths: list[str]) -> str:
    """Compare."""
    return "".join(paths)


@tool(effect="pure")
async def search(path: str) -> str:
    """Search."""
    return path


@tool(effect="pure", supersedes="same resource", resource="page:{path}")
async def page(path: str) -> str:
    """Read a page."""
    return path


TOOLS = Tools.of([read, write, rename, compare, search, page])


def stale(*messages: Message) -> list[bool]:
    """Return for each result whether the model sees a notice in its place."""
    stubs = stub_stale_results(messages, TOOLS)
    shown = [stubs.get(index, message) for index, message in enumerate(messages)]
    return [exchange.execution.text == STUB for message in shown for exchange in message.exchanges]


def failed(message: Message) -> Message:
    """Return the message with its call failed."""
    call = message.exchanges[0].call
    execution = ToolExecution(id="e", key="k", call=call, status=ToolStatus.FAILED, started_at=NOW, ended_at=NOW)
    return Message.of_response([call], [execution])


def test_a_write_makes_reads_of_the_resource_stale() -> None:
    """Reads of other resources, and results of tools without a resource, stay."""
    messages = [call_message("read", LONG, path="a"), call_message("read", LONG, path="b")]
    messages += [call_message("search", LONG, path="a"), call_message("write", LONG, path="a", text="new")]
    assert stale(*messages) == [True, False, False, False]


def test_a_read_leaves_earlier_results_as_they_are() -> None:
    """A tool with a resource and without a rule supersedes nothing: its calls may read other parts."""
    assert stale(*[call_message("read", LONG, path="a")] * 3) == [False] * 3
    assert stale(call_message("write", LONG, path="a", text=""), call_message("read", LONG, path="a")) == [False] * 2


def test_a_failed_write_supersedes_nothing() -> None:
    """The read is still the newest that is known of the resource."""
    write_call = call_message("write", LONG, path="a", text="new")
    assert stale(call_message("read", LONG, path="a"), failed(write_call)) == [False, False]
    assert stale(failed(write_call), write_call) == [False, False]


def program(*inside: Message) -> Message:
    """Return the message of a program that has made these calls."""
    message = call_message("run_program", LONG, code="…")
    (exchange,) = message.exchanges
    inner = [each.execution for made in inside for each in made.exchanges]
    return Message.of_response([exchange.call], [evolve(exchange.execution, inner=inner)])


def test_a_program_that_writes_makes_reads_stale_and_one_that_reads_does_not() -> None:
    """The model has seen no result of the calls inside a program, so that what it has seen stays the newest until it is wrong."""
    read_call, write_call = call_message("read", LONG, path="a"), call_message("write", LONG, path="a", text="new")
    assert stale(read_call, program(write_call)) == [True, False]
    assert stale(call_message("read", LONG, path="b"), program(write_call)) == [False, False]
    assert stale(read_call, program(read_call)) == [False, False]
    assert stale(read_call, program(failed(write_call))) == [False, False]
    assert stale(program(write_call), read_call) == [False, False]
    page = call_message("page", LONG, path="a")
    assert stale(page, program(page)) == [False, False]
    assert stale(page, page) == [True, False]


def test_a_result_about_several_resources_is_stale_when_all_of_them_were_superseded() -> None:
    """What it says about the others is still the newest."""
    comparison = call_message("compare", LONG, paths=["a", "b"])
    write_a, write_b = (call_message("write", "ok", path=path, text="new") for path in "ab")
    assert stale(comparison, write_a)[0] is False
    assert stale(comparison, write_a, write_a)[0] is False
    assert stale(comparison, write_a, write_b)[0] is True
    assert stale(comparison, call_message("rename", "ok", old="a", new="b"))[0] is True


def test_a_name_with_an_argument_that_the_call_left_out_is_about_nothing() -> None:
    """It is not known what such a call is about."""
    assert ToolPolicy(resource="row:{table}/{id}").resources(JsonObject(table="users")) == frozenset()
    assert ToolPolicy(resource="row:{table}/{id}").resources(JsonObject(table="users", id=7)) == {"row:users/7"}
    assert ToolPolicy(resource="settings").resources(JsonObject()) == {"settings"}


@pytest.mark.parametrize("resource", ["{path", "{}", "{0}", "{path.parent}", "{path!r}", "{path:>10}", "{path[0]}"])
def test_a_name_that_would_compute_something_is_refused(resource: str) -> None:
    """Only whole arguments are put into the name of a resource."""
    with pytest.raises(ToolDefinitionError, match="name of a resource"):
        ToolPolicy(resource=resource)


def test_mistakes_in_a_definition_are_named() -> None:
    """A missing resource, an unknown argument and a function that returns no names."""
    with pytest.raises(ToolDefinitionError, match="has to name it"):
        ToolPolicy(supersedes="same resource")
    with pytest.raises(ToolDefinitionError, match=r"'pth'.*did you mean 'path'"):
        tool(resource="file:{pth}")(read.function)
    with pytest.raises(TypeError, match="returns names"):
        ToolPolicy(resource=lambda _: [1]).resources(JsonObject())  # type: ignore[arg-type]  # the mistake


# --- the relation -----------------------------------------------------------------------------------------------

paths = st.sampled_from("abc")
calls = st.one_of(
    paths.map(lambda path: call_message("read", LONG, path=path)),
    paths.map(lambda path: call_message("write", LONG, path=path, text="new")),
    paths.map(lambda path: failed(call_message("write", LONG, path=path, text="new"))),
    st.tuples(paths, paths).map(lambda both: call_message("rename", LONG, old=both[0], new=both[1])),
    st.lists(paths, max_size=3).map(lambda several: call_message("compare", LONG, paths=several)),
)


def supersedes(later: Message, earlier: Message) -> bool:
    """Return whether a call supersedes an earlier one, with no other call between them."""
    return stale(earlier, later)[0]


@given(calls, calls, calls)
def test_the_relation_is_irreflexive_and_transitive(first: Message, second: Message, third: Message) -> None:
    """No call makes its own result stale; what supersedes a superseding call supersedes what that has superseded."""
    assert stale(first) == [False]
    if supersedes(second, first) and supersedes(third, second):
        assert supersedes(third, first)


def resources_of(message: Message) -> frozenset[str]:
    """Return what the call of a message is about."""
    execution = message.exchanges[0].execution
    found = TOOLS.get(execution.name)
    assert found is not None
    return found.policy.resources(execution.arguments)


@given(st.lists(calls, max_size=20))
def test_the_newest_result_for_a_resource_is_shown_and_stale_results_stay_stale(messages: list[Message]) -> None:
    """More calls never make a stale result fresh again."""
    shown = stale(*messages)
    newest = {
        resource: index
        for index, message in enumerate(messages)
        if message.exchanges[0].execution.succeeded
        for resource in resources_of(message)
    }
    assert not any(shown[index] for index in newest.values())
    for length in range(len(messages)):
        before = stale(*messages[:length])
        assert all(after or not earlier for earlier, after in zip(before, shown, strict=False))


# --- in a loop --------------------------------------------------------------------------------------------------


def result_texts(messages: Sequence[Message]) -> list[str]:
    """Return the texts of the results in these messages."""
    return [exchange.execution.text for message in messages for exchange in message.exchanges]


@pytest.mark.parametrize("compiler", [None, TokenWindow(640, keep=600)])
def test_the_files_toolkit_saves_the_tokens_of_reads_before_a_write(
    compiler: CanCompileMessages | None, tmp_path: Path
) -> None:
    """Reads of a file that was written since are notices; other spellings of a path name the same file."""
    (tmp_path / "a.txt").write_text(LONG)
    (tmp_path / "b.txt").write_text(LONG)
    script: list[ToolCall | str] = [
        ToolCall("1", "read_file", '{"path": "a.txt"}'),
        ToolCall("2", "read_file", '{"path": "b.txt"}'),
        ToolCall("3", "edit_file", '{"path": "./a.txt", "old": "file", "new": "page", "all": true}'),
        ToolCall("4", "read_file", '{"path": "b.txt"}'),
        ToolCall("5", "write_file", '{"path": "x/../a.txt", "text": "no"}'),
        ToolCall("6", "read_file", '{"path": "a.txt"}'),
        "done",
    ]
    inference = ScriptedInference(*script)
    loop = AgentLoop(ToolCallingDriver(inference), [files(str(tmp_path))], compiler=compiler)
    state = loop.execute_sync("go").raise_for_status()
    assert result_texts(inference.requests[3].messages) == [STUB, LONG, "replaced 20 places in ./a.txt"]
    texts = result_texts(inference.requests[-1].messages)
    assert texts == [STUB, STUB, "replaced 20 places in ./a.txt", LONG, texts[4], LONG.replace("file", "page")]
    assert "leads upwards" in texts[4]  # the failed write has superseded nothing
    seen = sum(map(message_tokens, inference.requests[-1].messages))
    whole = sum(map(message_tokens, state.messages[:-1]))
    assert whole - seen > 2 * len(LONG) // 4 - 30
    assert result_texts(state.messages)[0] == LONG
