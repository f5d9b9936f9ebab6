"""The compiler that leaves nothing out."""

from __future__ import annotations

from attrs import frozen

from agentloop.compilers.history import HistoryCompiler
from agentloop.values.message import Message


@frozen
class WholeConversation(HistoryCompiler):
    """Shows every message of the conversation, the tool calls of earlier executions included.

    Requests extend each other also from one execution to the next, unless a result has become stale or the beginning of
    the conversation was summarised.
    """

    def of_history(self, history: tuple[Message, ...]) -> tuple[Message, ...]:
        """Return all messages of earlier executions."""
        return history
