"""A summary of the beginning of a conversation, which stands in the metadata of the context."""

from __future__ import annotations

from typing import Final

from attrs import frozen

from agentloop.values.agent_state import AgentState
from agentloop.values.json_value import JsonObject
from agentloop.values.message import Message
from agentloop.values.value import Value

SUMMARY: Final = "agentloop.summary"
"""The key of the summary in the metadata of a context, and of the mark on the message that shows it."""

_INTRODUCTION = "Summary of the conversation so far:\n\n"


@frozen(eq=False, repr=False)
class Summary(Value):
    """What a model is shown in place of the first messages of a conversation. The messages stay in the state.

    Attributes:
        text: the summary.
        covers: how many messages it stands for, from the first.
        at: how many messages there were when it was made; it began an epoch there.
    """

    text: str
    covers: int
    at: int

    @classmethod
    def of(cls, state: AgentState) -> Summary | None:
        """Return the summary that a state holds; None also when its conversation has become shorter than the summary."""
        noted = state.context.metadata.get(SUMMARY)
        if not isinstance(noted, JsonObject):
            return None
        text, covers, at = noted.get("text"), noted.get("covers"), noted.get("at")
        if not (isinstance(text, str) and isinstance(covers, int) and isinstance(at, int)):
            return None
        return cls(text, covers, at) if 0 < covers <= at <= len(state.messages) else None

    def noted_in(self, state: AgentState) -> AgentState:
        """Return the state with this summary in place of an earlier one."""
        return state.with_metadata(**{SUMMARY: {"text": self.text, "covers": self.covers, "at": self.at}})

    @property
    def message(self) -> Message:
        """The message that shows it to a model."""
        return Message.user(_INTRODUCTION + self.text, metadata={SUMMARY: True})
