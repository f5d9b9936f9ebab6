"""The default compiler: the conversation, with the tool trace of the current execution."""

from __future__ import annotations

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloop.compilers import ConversationWithCurrentToolTrace
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.testing.strategies import agent_states, agent_steps, messages
from agentloop.values.messages import Message
from agentloop.values.serialization import from_json, to_json
from agentloop.values.state import AgentState
from agentloop.values.steps import AgentStep
from agentloop.values.tool_calls import ToolCall, ToolExecution, ToolStatus
from tests.compilers.conversations import NOW, is_subsequence, with_steps

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
    second = with_steps(first.with_message("two").with_execution_started("2", NOW), TRACE)
    expected = [Message.user("one"), ANSWER, Message.user("two"), TRACE]
    assert list(create_compiler(bound=bound).compile(second)) == expected


@pytest.mark.parametrize("bound", [False, True])
def test_without_an_execution_all_messages_are_history(*, bound: bool) -> None:
    """A state that was imported with a tool trace is compiled without it."""
    state = AgentState.start("one").with_messages([Message.user("one"), TRACE, ANSWER])
    assert list(create_compiler(bound=bound).compile(state)) == [Message.user("one"), ANSWER]


@settings(max_examples=30)
@given(agent_states())
def test_compiling_is_pure(state: AgentState) -> None:
    """Equal states give equal messages, all of them messages of the state in its order; the state does not change."""
    before = to_json(state)
    compiled = list(ConversationWithCurrentToolTrace().compile(state))
    assert list(ConversationWithCurrentToolTrace().compile(from_json(before, AgentState))) == compiled
    assert is_subsequence(compiled, state.messages)
    assert to_json(state) == before


@settings(max_examples=30)
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
    assert shorter == [message for message in history if not message.exchanges]
    for step in steps:
        state = state.with_step(step).with_messages([*state.with_step(step).messages, *added])
        longer = list(unbound.compile(state))
        assert longer[: len(shorter)] == shorter
        assert longer[len(shorter) :] == [*([step.message] if step.message is not None else []), *added]
        assert list(bound.compile(state)) == longer
        shorter = longer


@settings(max_examples=30)
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
