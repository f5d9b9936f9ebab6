"""Results that later calls have made stale."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop import tool
from agentloop.compilers import (
    ClearOldResults,
    ConversationWithCurrentToolTrace,
    SlidingWindow,
    TokenWindow,
    WholeConversation,
)
from agentloop.compilers.stale import STUB, StaleResults
from agentloop.contracts import CanCompileMessages
from agentloop.contracts.can_accept import CanAcceptTools
from agentloop.contracts.can_compile_messages import CanMarkEpoch
from agentloop.contracts.tools import Tools
from agentloop.errors import ToolDefinitionError
from agentloop.values import AgentState, JsonObject, Message, ToolCall, ToolExecution, ToolStatus
from agentloop.values.epochs import NO_EPOCH, Summary
from agentloop.values.estimates import message_tokens
from tests.compilers.conversations import (
    NOW,
    bind,
    call_message,
    extends,
    stub_stale_results,
    with_question,
    with_steps,
)

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
    """Return whether the later call reads all lines of the earlier one."""
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


def freshness(*messages: Message) -> list[str]:
    """Return for each result whether the model sees it, or a notice."""
    stubs = stub_stale_results(messages, TOOLS)
    shown = [stubs.get(index, message) for index, message in enumerate(messages)]
    texts = [exchange.execution.text for message in shown for exchange in message.exchanges]
    return ["stale" if text == STUB else "fresh" for text in texts]


def test_the_same_arguments_supersede() -> None:
    """Arguments are equal in any order; other arguments and other tools do not supersede."""
    messages = [
        call_message("read", LONG, path="a"),
        call_message("read", LONG, path="b"),
        call_message("search", LONG, path="a"),
    ]
    assert freshness(*messages, call_message("read", LONG, path="a")) == ["stale", "fresh", "fresh", "fresh"]
    assert freshness(call_message("lines", LONG, first=1, last=2), call_message("lines", LONG, last=2, first=1)) == [
        "stale",
        "fresh",
    ]


def test_the_same_tool_supersedes() -> None:
    """Only the newest result of the tool is fresh."""
    assert freshness(*[call_message("screenshot", LONG)] * 3) == ["stale", "stale", "fresh"]


def test_a_function_of_both_calls_decides() -> None:
    """The function receives the earlier and the later arguments."""
    messages = [call_message("lines", LONG, first=first, last=last) for first, last in ((2, 3), (5, 9), (1, 4))]
    assert freshness(*messages) == ["stale", "fresh", "fresh"]
    assert freshness(*reversed(messages)) == ["fresh", "fresh", "fresh"]


def test_a_call_that_failed_supersedes_nothing() -> None:
    """The older result stays, and an error is never stale."""
    call = ToolCall("1", "read").with_arguments({"path": "a"})
    failed = ToolExecution(id="e", key="k", call=call, status=ToolStatus.FAILED, started_at=NOW, ended_at=NOW)
    message = Message.of_response([call], [failed])
    assert freshness(call_message("read", LONG, path="a"), message) == ["fresh", "fresh"]
    assert freshness(message, call_message("read", LONG, path="a")) == ["fresh", "fresh"]


def test_a_result_shorter_than_the_notice_stays() -> None:
    """A notice would be longer than the result that it replaces."""
    assert freshness(call_message("read", "ok", path="a"), call_message("read", "ok", path="a")) == ["fresh", "fresh"]


def test_calls_of_one_message_supersede_each_other_in_their_order() -> None:
    """The message keeps its other parts, its calls and its values."""
    first, second = call_message("read", LONG, path="a"), call_message("read", LONG, path="a")
    message = Message.assistant("thinking", *first.exchanges, *second.exchanges)
    stub = stub_stale_results([message], TOOLS)[0]
    assert stub.text == "thinking"
    assert [exchange.call for exchange in stub.exchanges] == [exchange.call for exchange in message.exchanges]
    assert [exchange.execution.value for exchange in stub.exchanges] == [LONG, LONG]
    assert [exchange.execution.text for exchange in stub.exchanges] == [STUB, LONG]


def test_without_a_policy_nothing_is_stale() -> None:
    """Only results of tools whose policy says so are superseded."""
    assert stub_stale_results([call_message("search", LONG, path="a")] * 3, TOOLS) == {}
    assert stub_stale_results([call_message("read", LONG, path="a")] * 3, Tools.of([])) == {}


def bind_with_tools(compiler: CanCompileMessages) -> CanCompileMessages:
    """Bind a compiler as a driver does."""
    assert isinstance(compiler, CanAcceptTools)
    return bind(compiler.with_tools(TOOLS))


def results(compiler: CanCompileMessages, state: AgentState) -> list[str]:
    """Return the texts of the results that the model sees."""
    return [exchange.execution.text for message in compiler.compile(state) for exchange in message.exchanges]


@pytest.mark.parametrize("name", ["whole conversation", "current tool trace", "token window", "clear old results"])
def test_a_stale_result_is_replaced_in_the_next_request(name: str) -> None:
    """A new epoch says so, and counts the messages with notices; the state keeps all results."""
    compiler = bind_with_tools(COMPILERS[name])
    assert isinstance(compiler, CanMarkEpoch)
    state = with_steps(with_question(AgentState.start(), "go"), call_message("read", LONG, path="a"))
    assert (results(compiler, state), compiler.epoch(state)) == ([LONG], NO_EPOCH)
    state = with_steps(state, call_message("read", LONG, path="a"))
    assert results(compiler, state) == [STUB, LONG]
    epoch = compiler.epoch(state)
    assert (epoch.reason, epoch.dropped, epoch.kept, epoch.superseded) == (
        "a call has made earlier results stale",
        0,
        3,
        1,
    )
    state = with_steps(state, call_message("search", LONG, path="a"))
    assert (results(compiler, state), compiler.epoch(state)) == ([STUB, LONG, LONG], epoch)
    assert [exchange.execution.text for message in state.messages for exchange in message.exchanges] == [LONG] * 3


def test_stale_results_of_earlier_executions_stay_replaced() -> None:
    """An execution begins with the notices of the one before, so that its first request extends the last one."""
    compiler = bind_with_tools(WholeConversation())
    assert isinstance(compiler, CanMarkEpoch)
    state = with_steps(
        with_question(AgentState.start(), "go"), *[call_message("read", LONG, path="a")] * 2, Message.assistant("done")
    )
    later = with_question(state, "again")
    assert extends(compiler.compile(later), compiler.compile(state))
    assert (compiler.epoch(later).reason, compiler.epoch(later).superseded) == ("another execution has begun", 1)
    later = with_steps(later, call_message("read", LONG, path="a"))
    assert results(compiler, later) == [STUB, STUB, LONG]
    assert results(compiler, state.with_message("hurry")) == [STUB, LONG]


def test_notices_make_room_in_a_window() -> None:
    """While they leave enough of it, no message is dropped."""
    compiler = bind_with_tools(TokenWindow(1000, keep=600))
    state = with_question(AgentState.start(), "go")
    for _ in range(7):
        state = with_steps(state, call_message("read", LONG, path="a"))
    assert results(compiler, state) == [STUB] * 6 + [LONG]
    assert isinstance(compiler, CanMarkEpoch)
    assert (compiler.epoch(state).superseded, compiler.epoch(state).dropped) == (6, 0)


@pytest.mark.parametrize("exclude", ["read", "nothing"])
def test_stale_results_are_replaced_and_old_ones_are_cleared(exclude: str) -> None:
    """Stale ones also of excluded tools, and the newest ones; what an epoch has replaced stays as it is in the next ones."""
    size = message_tokens(call_message("search", LONG, path="x"))
    clearing = ClearOldResults(above=8 * size, keep=4, at_least=size // 2, exclude=exclude)
    compiler = bind_with_tools(clearing)
    assert isinstance(compiler, CanMarkEpoch)
    state = with_question(AgentState.start(), "go")
    seen: list[list[str]] = []
    for name, path in [
        ("read", "a"),
        ("search", "1"),
        ("read", "b"),
        ("search", "2"),
        ("read", "a"),
        ("read", "b"),
    ] * 3:
        state = with_steps(state, call_message(name, LONG, path=path))
        before, epoch = seen[-1] if seen else [], compiler.epoch(state)
        seen.append(results(compiler, state))
        if epoch == NO_EPOCH:
            assert seen[-1] == [LONG] * len(seen)
        elif seen[-1][:-1] != before:  # an epoch begins
            assert freshness(*state.messages) == ["stale" if text == STUB else "fresh" for text in seen[-1]]
        for former, now in zip(before, seen[-1], strict=False):
            assert now == STUB or former in {LONG, now}
    assert compiler.epoch(state).superseded == seen[-1].count(STUB) > 4
    assert compiler.epoch(state).cleared == sum(text.startswith("[cleared") for text in seen[-1]) > 1
    assert results(clearing.with_tools(TOOLS), state) == seen[-1]


_SIZE = message_tokens(call_message("search", LONG, path="x"))
COMPILERS: dict[str, CanCompileMessages] = {
    "whole conversation": WholeConversation(),
    "current tool trace": ConversationWithCurrentToolTrace(),
    "sliding window": SlidingWindow(6),
    "token window": TokenWindow(6 * _SIZE, keep=4 * _SIZE),
    "clear old results": ClearOldResults(above=6 * _SIZE, keep=2, at_least=_SIZE // 2),
    "clearing in a window": TokenWindow(9 * _SIZE, inner=ClearOldResults(above=5 * _SIZE, keep=2, at_least=1)),
    "a window in clearing": ClearOldResults(above=5 * _SIZE, keep=2, at_least=1, inner=SlidingWindow(9)),
    "a window in a window": TokenWindow(5 * _SIZE, inner=SlidingWindow(9)),
    "clearing of the current trace": ClearOldResults(
        above=5 * _SIZE, keep=2, at_least=1, inner=ConversationWithCurrentToolTrace()
    ),
}
"""The compilers of the package, and some of them in others."""


@pytest.mark.parametrize("name", COMPILERS)
@given(st.lists(st.sampled_from(["read a", "read b", "search x", "summary", "question"]), min_size=4, max_size=24))
def test_no_stale_result_is_ever_shown(name: str, events: list[str]) -> None:
    """Whatever happens, a call, a summary, a full window or another execution, the next request has notices for stale results."""
    compiler = bind_with_tools(COMPILERS[name])
    assert isinstance(compiler, CanMarkEpoch)
    state = with_question(AgentState.start(), "go")
    seen = [compiler.epoch(state)]
    for event in events:
        before = compiler.compile(state)
        match event.split():
            case ["summary"]:
                state = Summary("So far.", len(state.messages) // 2, len(state.messages)).save_to(state)
            case ["question"]:
                state = with_question(with_steps(state, Message.assistant("done")), "go on")
            case [tool_name, path]:
                state = with_steps(state, call_message(tool_name, LONG, path=path))
        shown, epoch = compiler.compile(state), compiler.epoch(state)
        assert freshness(*shown) == ["stale" if text == STUB else "fresh" for text in results(compiler, state)], event
        unbound = COMPILERS[name]
        assert isinstance(unbound, CanAcceptTools)
        assert list(unbound.with_tools(TOOLS).compile(state)) == list(shown)
        if event == "question":
            seen = [epoch]  # those of another execution
        elif epoch != seen[-1]:
            assert epoch not in seen
            seen.append(epoch)
        elif event != "summary":  # one of messages that all stay begins no epoch
            assert extends(shown, before)


@pytest.mark.parametrize("name", ["whole conversation", "current tool trace", "token window", "clear old results"])
def test_each_message_is_read_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often results become stale, a step reads the messages that it has added."""
    count, read = 0, StaleResults.read

    def counted(results: StaleResults, message: Message) -> list[int]:
        nonlocal count
        count += 1
        return read(results, message)

    monkeypatch.setattr(StaleResults, "read", counted)
    compiler = bind_with_tools(COMPILERS[name])
    assert isinstance(compiler, CanMarkEpoch)
    state = with_question(AgentState.start(), "go")
    for number in range(30):
        state = with_steps(state, call_message("read", LONG, path="ab"[number % 2]))
        compiler.compile(state)
        compiler.epoch(state)
    assert count == len(state.messages) == 31


path_lists = st.lists(st.sampled_from("abc"), min_size=1, max_size=25)


@given(path_lists, st.integers(3, 8))
def test_notices_appear_only_when_an_epoch_begins(paths: list[str], maximum: int) -> None:
    """Within an epoch requests extend each other (law 13), and notices replace only stale results."""
    compiler = bind_with_tools(SlidingWindow(maximum))
    unbound = SlidingWindow(maximum).with_tools(TOOLS)
    assert isinstance(compiler, CanMarkEpoch)
    state = with_question(AgentState.start(), "go")
    states = [
        state := with_steps(state, call_message("read", f"{LONG}{number}", path=path))
        for number, path in enumerate(paths)
    ]
    for before, after in pairwise(states):
        if compiler.epoch(before) == compiler.epoch(after):
            assert extends(compiler.compile(after), compiler.compile(before))
    for state in states:
        shown = compiler.compile(state)
        assert list(unbound.compile(state)) == list(shown)
        newest = {exchange.call.arguments["path"]: exchange for message in shown for exchange in message.exchanges}
        assert all(exchange.execution.text != STUB for exchange in newest.values())


def test_an_unknown_rule_is_refused() -> None:
    """A misspelled rule is an error where the tool is defined, with the valid rules."""
    with pytest.raises(ToolDefinitionError, match="'same arguments' or 'same tool'"):
        tool(supersedes="same argument")(search.function)  # type: ignore[call-overload]  # the misspelling
