"""Conversations for the tests of compilers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from agentloop.compilers.stale import StaleResults
from agentloop.contracts import CanCompileMessages, ExecutionScope
from agentloop.contracts.can_accept import CanAcceptExecutionScope
from agentloop.contracts.tools import Tools
from agentloop.testing.strategies import messages
from agentloop.values import AgentState, Message, ToolCall, ToolExecution, ToolStatus
from agentloop.values.steps import AgentStep
from tests.strategies import agent_steps

NOW = datetime(2024, 1, 1, tzinfo=UTC)


def bind(compiler: CanCompileMessages) -> CanCompileMessages:
    """Bind a compiler to an execution, as a driver does."""
    assert isinstance(compiler, CanAcceptExecutionScope)
    return compiler.with_execution_scope(ExecutionScope())


def call_message(name: str, result: object, **arguments: object) -> Message:
    """Return the message of a step with one tool call."""
    call = ToolCall("1", name).with_arguments(arguments)
    execution = ToolExecution(
        id="e", key="k", call=call, status=ToolStatus.SUCCEEDED, value=result, started_at=NOW, ended_at=NOW
    )
    return Message.of_response([call], [execution])


def stub_stale_results(messages: Sequence[Message], tools: Tools) -> dict[int, Message]:
    """Return the messages with notices in place of stale results, by index."""
    results = StaleResults.of(tools)
    shown = tuple(messages) if results is None else results.read_all(messages)
    return {
        index: stub for index, (stub, message) in enumerate(zip(shown, messages, strict=True)) if stub is not message
    }


def with_steps(state: AgentState, *conversation: Message) -> AgentState:
    """Return the state with a step for each message."""
    for number, message in enumerate(conversation, state.step_count + 1):
        state = state.with_step(AgentStep(id="s", number=number, message=message, started_at=NOW, ended_at=NOW))
    return state


def with_question(state: AgentState, question: str) -> AgentState:
    """Return the state with an execution that begins with a question."""
    return state.with_message(question).with_execution_started(f"run-{state.execution_count + 1}", NOW)


@st.composite
def growing_states(draw: DrawFn, *, max_steps: int = 12) -> list[AgentState]:
    """Generate the successive states of one execution from its beginning, each some messages longer."""
    history = draw(st.lists(messages(), max_size=5))
    state = with_question(AgentState.start().with_messages(history), "go")
    states = [state]
    for _ in range(draw(st.integers(0, max_steps))):
        added = draw(st.lists(messages().filter(lambda message: message.role != "assistant"), max_size=1))
        state = state.with_step(draw(agent_steps(number=state.step_count + 1, may_suspend=False)))
        state = state.with_messages([*state.messages, *added])
        states.append(state)
    return states


def is_subsequence(selected: Iterable[Message], whole: Iterable[Message]) -> bool:
    """Return whether the same message objects are in the whole conversation, in this order."""
    rest = iter(whole)
    return all(any(message is candidate for candidate in rest) for message in selected)


def extends(longer: Sequence[Message], shorter: Sequence[Message]) -> bool:
    """Return whether a conversation begins with all messages of another one."""
    return list(longer[: len(shorter)]) == list(shorter)


def last_question(messages: Sequence[Message]) -> Message | None:
    """Return the last message of the user."""
    return next((message for message in reversed(messages) if message.role == "user"), None)
