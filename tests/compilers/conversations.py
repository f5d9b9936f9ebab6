"""Conversations for the tests of compilers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from agentloop.contracts import CanCompileMessages, ExecutionScope
from agentloop.contracts.can_accept import CanAcceptExecutionScope
from agentloop.testing.strategies import agent_steps, messages
from agentloop.values import AgentState, Message, ToolCall, ToolExecution, ToolStatus
from agentloop.values.steps import AgentStep

NOW = datetime(2024, 1, 1, tzinfo=UTC)


def bound(compiler: CanCompileMessages) -> CanCompileMessages:
    """Bind a compiler to an execution, as a driver does."""
    assert isinstance(compiler, CanAcceptExecutionScope)
    return compiler.with_execution_scope(ExecutionScope())


def called(name: str, result: object, **arguments: object) -> Message:
    """Make the message of a step that called one tool."""
    call = ToolCall("1", name).with_arguments(arguments)
    execution = ToolExecution(
        id="e", key="k", call=call, status=ToolStatus.SUCCEEDED, value=result, started_at=NOW, ended_at=NOW
    )
    return Message.of_response([call], [execution])


def told(state: AgentState, *conversation: Message) -> AgentState:
    """Take a step for each message."""
    for number, message in enumerate(conversation, state.step_count + 1):
        state = state.with_step(AgentStep(id="s", number=number, message=message, started_at=NOW, ended_at=NOW))
    return state


def asked(state: AgentState, question: str) -> AgentState:
    """Begin an execution with a question."""
    return state.with_message(question).with_execution_started(f"run-{state.execution_count + 1}", NOW)


@st.composite
def growing_states(draw: DrawFn, *, most: int = 12) -> list[AgentState]:
    """The states of one execution on its way, from its beginning: by each some messages longer."""
    history = draw(st.lists(messages(), max_size=5))
    state = asked(AgentState.start().with_messages(history), "go")
    states = [state]
    for _ in range(draw(st.integers(0, most))):
        added = draw(st.lists(messages().filter(lambda message: message.role != "assistant"), max_size=1))
        state = state.with_step(draw(agent_steps(number=state.step_count + 1, may_suspend=False)))
        state = state.with_messages([*state.messages, *added])
        states.append(state)
    return states


def is_subsequence(some: Iterable[Message], whole: Iterable[Message]) -> bool:
    """Say whether these very messages stand in that conversation, in this order."""
    left = iter(whole)
    return all(any(message is one for one in left) for message in some)


def begins_with(longer: Sequence[Message], shorter: Sequence[Message]) -> bool:
    """Say whether a conversation goes on from another one."""
    return list(longer[: len(shorter)]) == list(shorter)


def last_question(messages: Sequence[Message]) -> Message | None:
    """Return the last message that is the user's."""
    return next((message for message in reversed(messages) if message.role == "user"), None)
