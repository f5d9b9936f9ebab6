"""The default compiler: the conversation, with the tool trace of the current execution."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

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

NOW = datetime(2024, 1, 1, tzinfo=UTC)
CALL = ToolCall("1", "find")
FOUND = ToolExecution(id="e", key="k", call=CALL, status=ToolStatus.SUCCEEDED, started_at=NOW, ended_at=NOW)
TRACE = Message.of_response([CALL], [FOUND])
ANSWER = Message.assistant("done")


def compiler(*, kept: bool) -> ConversationWithCurrentToolTrace:
    """Return a compiler, bound to an execution so that it keeps what it compiled, or not."""
    plain = ConversationWithCurrentToolTrace()
    return plain.with_execution_scope(ExecutionScope()) if kept else plain


def after(state: AgentState, *conversation: Message) -> AgentState:
    """Take a step for each message."""
    for number, message in enumerate(conversation, state.step_count + 1):
        state = state.with_step(AgentStep(id="s", number=number, message=message, started_at=NOW, ended_at=NOW))
    return state


@pytest.mark.parametrize("kept", [False, True])
def test_tools_of_this_execution_are_shown_and_those_of_earlier_ones_are_not(*, kept: bool) -> None:
    """Questions and answers stay; a message with exchanges goes whole when its execution is over."""
    first = after(AgentState.start("one").with_execution_started("1", NOW), TRACE, ANSWER)
    assert list(compiler(kept=kept).compile(first)) == [Message.user("one"), TRACE, ANSWER]
    second = after(first.with_message("two").with_execution_started("2", NOW), TRACE)
    expected = [Message.user("one"), ANSWER, Message.user("two"), TRACE]
    assert list(compiler(kept=kept).compile(second)) == expected


@pytest.mark.parametrize("kept", [False, True])
def test_before_an_execution_all_is_history(*, kept: bool) -> None:
    """A state that was imported with a trace is compiled without it."""
    state = AgentState.start("one").with_messages([Message.user("one"), TRACE, ANSWER])
    assert list(compiler(kept=kept).compile(state)) == [Message.user("one"), ANSWER]


@settings(max_examples=30)
@given(agent_states())
def test_compiling_is_pure(state: AgentState) -> None:
    """Equal states give equal messages, each of them one of the state's, in its order; the state is as before."""
    before = to_json(state)
    made = list(ConversationWithCurrentToolTrace().compile(state))
    assert list(ConversationWithCurrentToolTrace().compile(from_json(before, AgentState))) == made
    assert is_subsequence(made, state.messages)
    assert to_json(state) == before


def is_subsequence(some: Iterable[Message], whole: Iterable[Message]) -> bool:
    """Say whether these very messages stand in that conversation, in this order."""
    left = iter(whole)
    return all(any(message is one for one in left) for message in some)


@settings(max_examples=30)
@given(
    st.lists(messages(), max_size=4),
    st.lists(agent_steps(may_suspend=False), min_size=1, max_size=3),
    st.lists(messages(), max_size=2),
)
def test_what_is_compiled_after_a_step_begins_with_what_was_compiled_before(
    history: list[Message], steps: list[AgentStep], added: list[Message]
) -> None:
    """Within an execution there is one epoch (law 13), whoever adds messages, and the whole trace of it is seen."""
    state = AgentState.start().with_messages(history).with_execution_started("run", NOW)
    bound, plain = compiler(kept=True), compiler(kept=False)
    made = list(plain.compile(state))
    assert made == [message for message in history if not message.exchanges]
    for step in steps:
        state = state.with_step(step).with_messages([*state.with_step(step).messages, *added])
        longer = list(plain.compile(state))
        assert longer[: len(made)] == made
        assert longer[len(made) :] == [*([step.message] if step.message is not None else []), *added]
        assert list(bound.compile(state)) == longer
        made = longer


@settings(max_examples=30)
@given(st.lists(agent_states(), min_size=1, max_size=4))
def test_a_compiler_that_keeps_gives_what_one_that_does_not_gives(states: list[AgentState]) -> None:
    """Also when states of several agents and executions come to it in turn, and again."""
    bound = compiler(kept=True)
    for state in [*states, *states]:
        assert list(bound.compile(state)) == list(compiler(kept=False).compile(state))


def test_a_history_that_an_interceptor_changed_is_compiled_anew() -> None:
    """What was kept of another history is not given."""
    bound = compiler(kept=True)
    state = AgentState.start("one").with_execution_started("run", NOW)
    assert list(bound.compile(state)) == [Message.user("one")]
    redacted = after(state.with_messages([Message.user("[redacted]")]), TRACE)
    assert list(bound.compile(redacted)) == [Message.user("[redacted]"), TRACE]
    assert list(bound.compile(state)) == [Message.user("one")]


def test_a_conversation_shorter_than_its_history_is_all_history() -> None:
    """An interceptor may have dropped messages."""
    state = AgentState.start("one").with_messages([Message.user("a"), TRACE, ANSWER]).with_execution_started("run", NOW)
    shorter = state.with_messages([TRACE, ANSWER])
    assert list(compiler(kept=False).compile(shorter)) == [ANSWER]


def test_binding_makes_a_copy_with_a_memory_of_its_own() -> None:
    """The compiler that is bound is not changed, and two executions share nothing."""
    plain = ConversationWithCurrentToolTrace()
    one, other = plain.with_execution_scope(ExecutionScope()), plain.with_execution_scope(ExecutionScope())
    state = AgentState.start("one")
    one.compile(state)
    assert plain == ConversationWithCurrentToolTrace()
    assert one._kept is not other._kept
    assert list(other.compile(state)) == [Message.user("one")]


def test_a_history_is_compiled_once_for_an_execution() -> None:
    """The kept part is the same object from step to step, whatever the length of the run (law 20)."""
    bound = compiler(kept=True)
    state = AgentState.start("one").with_messages([TRACE] * 50).with_execution_started("run", NOW)
    bound.compile(state)
    kept = bound._kept
    assert kept is not None
    first = kept.view
    for _ in range(5):
        state = after(state, TRACE)
        bound.compile(state)
    assert kept.view is first
    bound.compile(evolve(state, context=state.context.with_messages([ANSWER])))
    assert kept.view is not first
