"""A stretch of an execution in which each request to the model only extends the one before."""

from __future__ import annotations

from typing import Final

from attrs import frozen

from agentloop.values.json import JsonObject
from agentloop.values.messages import Message
from agentloop.values.state import AgentState
from agentloop.values.value import Value


@frozen(eq=False, repr=False)
class Epoch(Value):
    """A stretch of an execution in which each request to the model only extends the one before.

    Attributes:
        reason: why it began; empty when nothing is left out.
        dropped: how many messages of the conversation were left out when it began.
        kept: how many messages the model was shown when it began.
        superseded: how many of these have results that were replaced by a notice, because later calls made them stale.
    """

    reason: str = ""
    dropped: int = 0
    kept: int = 0
    superseded: int = 0


NO_EPOCH = Epoch()


SUMMARY: Final = "agentloop.summary"
"""The owner of the summary among the extensions of a state, and the mark on the message that shows it."""

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
        noted = state.extension(SUMMARY)
        if not isinstance(noted, JsonObject):
            return None
        text, covers, at = noted.get("text"), noted.get("covers"), noted.get("at")
        if not (isinstance(text, str) and isinstance(covers, int) and isinstance(at, int)):
            return None
        return cls(text, covers, at) if 0 < covers <= at <= len(state.messages) else None

    def save_to(self, state: AgentState) -> AgentState:
        """Return the state with this summary in place of an earlier one."""
        return state.with_extension(SUMMARY, {"text": self.text, "covers": self.covers, "at": self.at})

    @property
    def message(self) -> Message:
        """The message that shows it to a model."""
        return Message.user(_INTRODUCTION + self.text, metadata={SUMMARY: True})
