"""The default compiler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from attrs import field, frozen

from agentloop.contracts.can_accept import CanAcceptExecutionScope
from agentloop.contracts.can_compile_messages import CanCompileMessages
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.values.agent_state import AgentState
from agentloop.values.message import Message


class _Kept:
    """The compiled history of one execution."""

    __slots__ = ("compiled", "history")

    def __init__(self) -> None:
        self.history: tuple[Message, ...] = ()
        self.compiled: tuple[Message, ...] = ()


@frozen
class ConversationWithCurrentToolTrace(CanCompileMessages, CanAcceptExecutionScope):
    """Shows the whole conversation, with the tool calls of the current execution and without those of earlier ones.

    Messages of earlier executions that hold tool exchanges are left out whole; questions and answers stay. A new epoch
    begins with each execution, at no other time.
    """

    _kept: _Kept | None = field(default=None, repr=False, eq=False)

    def with_execution_scope(self, scope: ExecutionScope) -> Self:  # noqa: ARG002  # only the lifetime is needed
        """Return a copy that keeps what it compiled of the history for the length of one execution."""
        return type(self)(_Kept())

    def compile(self, state: AgentState) -> Sequence[Message]:
        """Return the conversation without the tool trace of earlier executions."""
        length = state.execution.history_length if state.execution is not None else len(state.messages)
        messages = state.messages
        history = messages[:length]
        kept = self._kept
        if kept is None:
            compiled = _without_trace(history)
        else:
            if kept.history != history:  # the same objects in a row of any length: compared by identity first
                kept.history, kept.compiled = history, _without_trace(history)
            compiled = kept.compiled
        return compiled + messages[length:]


def _without_trace(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    return tuple([message for message in messages if not message.exchanges])
