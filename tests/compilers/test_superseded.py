"""Results that later calls have made stale."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop import tool
from agentloop.compilers import SlidingWindow, TokenWindow, WholeConversation
from agentloop.compilers.retained import STUB, without_stale_results
from agentloop.contracts import CanCompileMessages, Tools
from agentloop.contracts.can_accept import CanAcceptTools
from agentloop.contracts.can_compile_messages import CanMarkEpoch
from agentloop.errors import ToolDefinitionError
from agentloop.values import AgentState, JsonObject, Message, ToolCall, ToolExecution, ToolStatus
from agentloop.values.serialization import to_json
from tests.compilers.conversations import NOW, asked, begins_with, bound, called, told

LONG = "what the file held, at length " * 20


@tool(supersedes="same arguments")
async def read(path: str) -> str:
    """Read."""
    return path


@tool(supersedes="same tool")
async def screenshot() -> str:
    """Look."""
    return "seen"


def _is_within(earlier: JsonObject, later: JsonObject) -> bool:
    """Say whether the earlier lines are among the later."""
    return bool(later["first"] <= earlier["first"] and earlier["last"] <= later["last"])


@tool(supersedes=_is_within)
async def lines(first: int, last: int) -> str:
    """Read lines."""
    return f"{first} to {last}"


@tool
async def search(path: str) -> str:
    """Search."""
    return path


TOOLS = Tools.of([read, screenshot, lines, search])


def told_of(*messages: Message) -> list[str]:
    """Return what a model is told of the results."""
    stubs = without_stale_results(messages, TOOLS)
    shown = [stubs.get(place, message) for place, message in enumerate(messages)]
    texts = [exchange.execution.text for message in shown for exchange in message.exchanges]
    return ["stale" if text == STUB else "fresh" for text in texts]


def test_the_same_arguments_supersede() -> None:
    """In whatever order they are written; other arguments and other tools do not."""
    messages = [called("read", LONG, path="a"), called("read", LONG, path="b"), called("search", LONG, path="a")]
    assert told_of(*messages, called("read", LONG, path="a")) == ["stale", "fresh", "fresh", "fresh"]
    assert told_of(called("lines", LONG, first=1, last=2), called("lines", LONG, last=2, first=1)) == ["stale", "fresh"]


def test_the_same_tool_supersedes() -> None:
    """Only the newest look is fresh."""
    assert told_of(*[called("screenshot", LONG)] * 3) == ["stale", "stale", "fresh"]


def test_a_function_of_both_calls_decides() -> None:
    """It is given the earlier and the later arguments."""
    messages = [called("lines", LONG, first=first, last=last) for first, last in ((2, 3), (5, 9), (1, 4))]
    assert told_of(*messages) == ["stale", "fresh", "fresh"]
    assert told_of(*reversed(messages)) == ["fresh", "fresh", "fresh"]


def test_a_call_that_failed_supersedes_nothing() -> None:
    """The older result is still the best there is; and an error is never stale."""
    call = ToolCall("1", "read").with_arguments({"path": "a"})
    failed = ToolExecution(id="e", key="k", call=call, status=ToolStatus.FAILED, started_at=NOW, ended_at=NOW)
    message = Message.of_response([call], [failed])
    assert told_of(called("read", LONG, path="a"), message) == ["fresh", "fresh"]
    assert told_of(message, called("read", LONG, path="a")) == ["fresh", "fresh"]


def test_a_result_shorter_than_the_notice_stays() -> None:
    """A notice is there to save room."""
    assert told_of(called("read", "ok", path="a"), called("read", "ok", path="a")) == ["fresh", "fresh"]


def test_calls_of_one_message_supersede_each_other_in_their_order() -> None:
    """The message stays whole: its other parts, its calls, its values."""
    one, other = called("read", LONG, path="a"), called("read", LONG, path="a")
    message = Message.assistant("thinking", *one.exchanges, *other.exchanges)
    stub = without_stale_results([message], TOOLS)[0]
    assert stub.text == "thinking"
    assert [exchange.call for exchange in stub.exchanges] == [exchange.call for exchange in message.exchanges]
    assert [exchange.execution.value for exchange in stub.exchanges] == [LONG, LONG]
    assert [exchange.execution.text for exchange in stub.exchanges] == [STUB, LONG]


def test_without_tools_that_say_so_nothing_is_stale() -> None:
    """No result is looked at."""
    assert without_stale_results([called("search", LONG, path="a")] * 3, TOOLS) == {}
    assert without_stale_results([called("read", LONG, path="a")] * 3, Tools.of([])) == {}


def with_tools(compiler: CanCompileMessages) -> CanCompileMessages:
    """Bind a compiler as a driver does."""
    assert isinstance(compiler, CanAcceptTools)
    return bound(compiler.with_tools(TOOLS))


def results(compiler: CanCompileMessages, state: AgentState) -> list[str]:
    """Return what the model is told of the results in a state."""
    return [exchange.execution.text for message in compiler.compile(state) for exchange in message.exchanges]


def test_stale_results_of_earlier_executions_are_replaced_when_another_begins() -> None:
    """Within an execution the first request goes on to be extended; the state keeps everything."""
    compiler = with_tools(WholeConversation())
    state = told(asked(AgentState.start(), "go"), *[called("read", LONG, path="a")] * 2, Message.assistant("done"))
    assert results(compiler, state) == [LONG, LONG]
    before = to_json(state)
    later = told(asked(state, "again"), called("read", LONG, path="a"))
    assert results(compiler, later) == [STUB, LONG, LONG]
    assert isinstance(compiler, CanMarkEpoch)
    assert compiler.epoch(later).superseded == 1
    assert compiler.epoch(later).reason == "another execution has begun"
    assert to_json(state) == before
    assert results(compiler, state.with_message("hurry")) == [LONG, LONG]


def test_a_budget_replaces_stale_results_before_it_drops_messages() -> None:
    """When the notices alone make enough room, nothing is dropped."""
    compiler = with_tools(TokenWindow(1000, keep=600))
    state = asked(AgentState.start(), "go")
    for _ in range(7):
        state = told(state, called("read", LONG, path="a"))
    assert results(compiler, state) == [STUB] * 6 + [LONG]
    assert isinstance(compiler, CanMarkEpoch)
    assert (compiler.epoch(state).superseded, compiler.epoch(state).dropped) == (6, 0)


paths = st.lists(st.sampled_from("abc"), min_size=1, max_size=25)


@given(paths, st.integers(3, 8))
def test_notices_come_when_an_epoch_begins_and_at_no_other_time(names: list[str], most: int) -> None:
    """Within an epoch requests extend each other (law 13), and notices stand only for results that are stale."""
    compiler = with_tools(SlidingWindow(most))
    plain = SlidingWindow(most).with_tools(TOOLS)
    assert isinstance(compiler, CanMarkEpoch)
    state = asked(AgentState.start(), "go")
    states = [state := told(state, called("read", f"{LONG}{place}", path=name)) for place, name in enumerate(names)]
    for before, after in pairwise(states):
        if compiler.epoch(before) == compiler.epoch(after):
            assert begins_with(compiler.compile(after), compiler.compile(before))
    for state in states:
        shown = compiler.compile(state)
        assert list(plain.compile(state)) == list(shown)
        newest = {exchange.call.arguments["path"]: exchange for one in shown for exchange in one.exchanges}
        assert all(exchange.execution.text != STUB for exchange in newest.values())


def test_an_unknown_rule_is_refused() -> None:
    """A misspelled one is told where the tool is defined."""
    with pytest.raises(ToolDefinitionError, match="'same arguments' or 'same tool'"):
        tool(supersedes="same argument")(search.function)  # type: ignore[call-overload]  # the misspelling
