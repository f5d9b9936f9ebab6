"""The default compiler."""

from __future__ import annotations

from attrs import frozen

from agentloop.compilers.history import HistoryCompiler
from agentloop.values.message import Message


@frozen
class ConversationWithCurrentToolTrace(HistoryCompiler):
    """Shows the whole conversation, with the tool calls of the current execution and without those of earlier ones.

    Messages of earlier executions that hold tool exchanges are left out whole; questions and answers stay. A new epoch
    begins with each execution and with each summary, at no other time.
    """

    def of_history(self, history: tuple[Message, ...]) -> tuple[Message, ...]:
        """Return the messages of earlier executions that hold no tool exchanges."""
        return _without_trace(history)


def _without_trace(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    return tuple([message for message in messages if not message.exchanges])
