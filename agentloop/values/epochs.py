"""Epochs of an execution, and the summary that stands in for the first messages of a conversation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from attrs import frozen

from agentloop.values.json import JsonObject, JsonValue
from agentloop.values.labels import UNKNOWN, Label, Source
from agentloop.values.messages import Message
from agentloop.values.state import AgentState
from agentloop.values.value import Value


@frozen(eq=False, repr=False)
class Epoch(Value):
    """A period of an execution in which each request to the model extends the one before (law 13).

    Attributes:
        reason: why it started; empty if nothing is left out.
        dropped: the number of messages of the conversation that were left out at its start.
        kept: the number of messages that the model saw at its start.
        superseded: how many of these have results that were replaced by a notice, because later calls made them stale.
        cleared: the number of old results that were replaced by a notice, to make room.
        parts: the epochs of the compilers that it is composed of; a new epoch of any of them is a new epoch of the whole.
    """

    reason: str = ""
    dropped: int = 0
    kept: int = 0
    superseded: int = 0
    cleared: int = 0
    parts: tuple[Epoch, ...] = ()


NO_EPOCH = Epoch()


def compose_epochs(epochs: Iterable[Epoch]) -> Epoch:
    """Return the epoch of a composed compiler: none while no part has one, or one that differs whenever a part differs."""
    parts = tuple(epochs)
    begun = [epoch for epoch in parts if epoch != NO_EPOCH]
    if not begun:
        return NO_EPOCH
    return Epoch(
        "; ".join([epoch.reason for epoch in begun]),
        sum([epoch.dropped for epoch in begun]),
        begun[-1].kept,
        sum([epoch.superseded for epoch in begun]),
        sum([epoch.cleared for epoch in begun]),
        parts,
    )


@frozen(eq=False, repr=False, kw_only=True)
class PrefixBreak(Value):
    """The first place where a request does not extend the one before it although no epoch has begun.

    Attributes:
        place: the segment of the request: `model`, `tools[2]`, `response format`, `system prompt` or `messages[5]`.
        writer: who wrote it: `interceptor`, `compiler`, `tools`, `prompt` (the system prompt in the state) or `driver`.
        name: the name of the interceptor; for `prompt` that of the interceptor that changed it, if one did; else empty.
        offset: the position in the segment, in bytes of UTF-8.
        before: the beginning of what was there.
        after: the beginning of what is there now; empty if the segment is missing.
        tokens: about how many tokens the provider cannot read from its cache because of it.
    """

    place: str
    writer: str
    name: str = ""
    offset: int = 0
    before: str = ""
    after: str = ""
    tokens: int = 0

    def __str__(self) -> str:
        by = f"{self.writer} {self.name}".rstrip()
        return (
            f"{self.place} at byte {self.offset}, written by {by}: {self.before!r} became {self.after!r}, "
            f"about {self.tokens:,} tokens"
        )


SUMMARY: Final = "agentloop.summary"
"""The owner of the summary among the extensions of a state, and the mark on the message that shows it."""

_INTRODUCTION = "Summary of the conversation so far:\n\n"


@frozen(eq=False, repr=False)
class Summary(Value):
    """A summary that a model sees in place of the first messages of a conversation. The messages stay in the state.

    Attributes:
        text: the summary.
        covers: the number of messages that it replaces, from the first.
        at: the length of the conversation when it was created; an epoch started there.
        label: who had a part in what it covers; None where that was not tracked.
    """

    text: str
    covers: int
    at: int
    label: Label | None = None

    @classmethod
    def of(cls, state: AgentState) -> Summary | None:
        """Return the summary in a state; None if there is none, or if the conversation was replaced by a shorter one."""
        stored = state.extension(SUMMARY)
        if not isinstance(stored, JsonObject):
            return None
        text, covers, at = stored.get("text"), stored.get("covers"), stored.get("at")
        if not (isinstance(text, str) and isinstance(covers, int) and isinstance(at, int)):
            return None
        # Users may replace the conversation; a summary of messages that are gone must not be shown.
        if not 0 < covers <= at <= len(state.messages):
            return None
        return cls(text, covers, at, _read_label(stored["label"]) if "label" in stored else None)

    @classmethod
    def forget_replaced(cls, state: AgentState) -> AgentState:
        """Return the state of a new execution, without a summary of messages that are gone.

        A conversation that was replaced by a shorter one, such as by its beginning and another question, grows again; then the
        summary must not stand in for its new messages.
        """
        is_replaced = SUMMARY in state.extensions and cls.of(state) is None
        return state.with_extension(SUMMARY, None) if is_replaced else state

    def save_to(self, state: AgentState) -> AgentState:
        """Return the state with this summary; it replaces an earlier one."""
        kept: dict[str, object] = {"text": self.text, "covers": self.covers, "at": self.at}
        if self.label is not None:
            kept["label"] = [[source.kind, source.name, source.key] for source in self.label.sources]
        return state.with_extension(SUMMARY, kept)

    @property
    def message(self) -> Message:
        """The user message that presents the summary to a model."""
        return Message.user(_INTRODUCTION + self.text, metadata={SUMMARY: True}, label=self.label)


def _read_label(stored: JsonValue) -> Label:
    try:
        return Label([Source(*map(str, source)) for source in stored])  # type: ignore[arg-type, union-attr]  # refused below
    except (TypeError, ValueError):
        return UNKNOWN
