"""Compilers of the conversation: the whole of it, or without the tool calls of earlier executions."""

from __future__ import annotations

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloop.compilers import ConversationWithCurrentToolTrace
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.testing.strategies import messages
from agentloop.values.messages import Message
from agentloop.values.serialization import from_json, to_json
from agentloop.values.state import AgentState
from agentloop.values.steps import AgentStep, ExecutionStatus
from agentloop.values.tool_calls import ToolCall, ToolExecution, ToolStatus
from tests.compilers.conversations import NOW, is_subsequence, with_steps
from tests.generated import examples
from tests.strategies import agent_states, agent_steps

CALL = ToolCall("1", "find")
EXECUTION = ToolExecution(id="e", key="k", call=CALL, status=ToolStatus.SUCCEEDED, started_at=NOW, ended_at=NOW)
TRACE = Message.of_response([CALL], [EXECUTION])
ANSWER = Message.assistant("done")


def create_compiler(*, bound: bool) -> ConversationWithCurrentToolTrace:
    """Return a compiler; a bound one caches what it has compiled."""
    compiler = ConversationWithCurrentToolTrace()
    return compiler.with_execution_scope(ExecutionScope()) if bound else compiler


@pytest.mark.parametrize("bound", [False, True])
def test_the_tool_calls_of_earlier_executions_are_left_out(*, bound: bool) -> None:
    """Questions and answers stay; a message with tool calls is left out when its execution is over."""
    first = with_steps(AgentState.start("one").with_execution_started("1", NOW), TRACE, ANSWER)
    assert list(create_compiler(bound=bound).compile(first)) == [Message.user("one"), TRACE, ANSWER]
    ended = first.with_status(ExecutionStatus.COMPLETED, NOW)
    second = with_steps(ended.with_message("two").with_execution_started("2", NOW), TRACE)
    expected = [Message.user("one"), ANSWER, Message.user("two"), TRACE]
    assert list(create_compiler(bound=bound).compile(second)) == expected


def executed(key: str) -> Message:
    """Return a message with a call of this key."""
    return Message.of_response([CALL], [evolve(EXECUTION, key=key)])


@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize("status", [ExecutionStatus.FAILED, ExecutionStatus.STOPPED, ExecutionStatus.IN_PROGRESS])
@pytest.mark.parametrize("last", [(), (ANSWER,)], ids=["no answer", "an answer"])
def test_the_tool_calls_of_an_execution_that_did_not_complete_are_shown(
    status: ExecutionStatus, last: tuple[Message, ...], *, bound: bool
) -> None:
    """They stay in all later executions, also if its last message is a text, and after the state was stored."""
    first, second, third = executed("1/1/0"), executed("2/1/0"), executed("3/1/0")
    state = with_steps(AgentState.start("one").with_execution_started("1", NOW), first, *last).with_status(status, NOW)
    assert state.with_execution_started("2", NOW).unfinished_executions == ("1",)
    state = with_steps(state.with_message("go on").with_execution_started("2", NOW), second, ANSWER)
    state = from_json(to_json(state.with_status(ExecutionStatus.COMPLETED, NOW)), AgentState)
    state = with_steps(state.with_message("three").with_execution_started("3", NOW), third)
    shown = [Message.user("one"), first, *last, Message.user("go on"), ANSWER, Message.user("three"), third]
    assert list(create_compiler(bound=bound).compile(state)) == shown


def test_an_imported_trace_without_an_answer_is_shown() -> None:
    """Where no execution is known, calls that an answer follows are left out, whoever wrote in between; others stay."""
    answered, unanswered = executed("a/1/0"), executed("b/1/0")
    history = [Message.user("one"), answered, Message.user("also"), executed("a/2/0"), ANSWER, unanswered]
    state = AgentState.start().with_messages([*history, Message.user("go on")])
    shown = [Message.user("one"), Message.user("also"), ANSWER, unanswered, Message.user("go on")]
    assert list(create_compiler(bound=False).compile(state)) == shown


@pytest.mark.parametrize("bound", [False, True])
def test_without_an_execution_all_messages_are_history(*, bound: bool) -> None:
    """A state that was imported with a tool trace is compiled without it."""
    state = AgentState.start("one").with_messages([Message.user("one"), TRACE, ANSWER])
    assert list(create_compiler(bound=bound).compile(state)) == [Message.user("one"), ANSWER]


@settings(max_examples=examples(30))
@given(agent_states())
def test_compiling_is_pure(state: AgentState) -> None:
    """Equal states give equal messages, all of them messages of the state in its order; the state does not change."""
    before = to_json(state)
    compiled = list(ConversationWithCurrentToolTrace().compile(state))
    assert list(ConversationWithCurrentToolTrace().compile(from_json(before, AgentState))) == compiled
    assert is_subsequence(compiled, state.messages)
    assert to_json(state) == before


@settings(max_examples=examples(30))
@given(
    st.lists(messages(), max_size=4),
    st.lists(agent_steps(may_suspend=False), min_size=1, max_size=3),
    st.lists(messages(), max_size=2),
)
def test_each_step_extends_what_was_compiled_before(
    history: list[Message], steps: list[AgentStep], added: list[Message]
) -> None:
    """An execution is one epoch (law 13), whoever adds messages, and its whole trace is shown."""
    state = AgentState.start().with_messages(history).with_execution_started("run", NOW)
    bound, unbound = create_compiler(bound=True), create_compiler(bound=False)
    shorter = list(unbound.compile(state))
    assert [m for m in shorter if not m.exchanges] == [m for m in history if not m.exchanges]
    assert is_subsequence(shorter, history)
    for step in steps:
        state = state.with_step(step).with_messages([*state.with_step(step).messages, *added])
        longer = list(unbound.compile(state))
        assert longer[: len(shorter)] == shorter
        assert longer[len(shorter) :] == [*([step.message] if step.message is not None else []), *added]
        assert list(bound.compile(state)) == longer
        shorter = longer


@settings(max_examples=examples(30))
@given(st.lists(agent_states(), min_size=1, max_size=4))
def test_the_cache_does_not_change_the_result(states: list[AgentState]) -> None:
    """A bound and an unbound compiler agree, also when states of several agents and executions alternate."""
    bound = create_compiler(bound=True)
    for state in [*states, *states]:
        assert list(bound.compile(state)) == list(create_compiler(bound=False).compile(state))


def test_a_changed_history_is_compiled_again() -> None:
    """When an interceptor changes the history, the cached result is not used."""
    bound = create_compiler(bound=True)
    state = AgentState.start("one").with_execution_started("run", NOW)
    assert list(bound.compile(state)) == [Message.user("one")]
    redacted = with_steps(state.with_messages([Message.user("[redacted]")]), TRACE)
    assert list(bound.compile(redacted)) == [Message.user("[redacted]"), TRACE]
    assert list(bound.compile(state)) == [Message.user("one")]


def test_a_conversation_shorter_than_its_history_is_all_history() -> None:
    """An interceptor may have removed messages."""
    state = AgentState.start("one").with_messages([Message.user("a"), TRACE, ANSWER]).with_execution_started("run", NOW)
    shorter = state.with_messages([TRACE, ANSWER])
    assert list(create_compiler(bound=False).compile(shorter)) == [ANSWER]


def test_each_binding_has_a_cache_of_its_own() -> None:
    """Binding does not change the compiler, and two executions share nothing."""
    unbound = ConversationWithCurrentToolTrace()
    first, second = unbound.with_execution_scope(ExecutionScope()), unbound.with_execution_scope(ExecutionScope())
    state = AgentState.start("one")
    first.compile(state)
    assert unbound == ConversationWithCurrentToolTrace()
    assert first._cache is not second._cache
    assert list(second.compile(state)) == [Message.user("one")]


def test_a_history_is_compiled_once_for_an_execution() -> None:
    """The compiled history is the same object from step to step, whatever the length of the run (law 20)."""
    bound = create_compiler(bound=True)
    state = AgentState.start("one").with_messages([TRACE] * 50).with_execution_started("run", NOW)
    bound.compile(state)
    cache = bound._cache
    assert cache is not None
    first = cache.compiled
    for _ in range(5):
        state = with_steps(state, TRACE)
        bound.compile(state)
    assert cache.compiled is first
    bound.compile(evolve(state, context=state.context.with_messages([ANSWER])))
    assert cache.compiled is not first
