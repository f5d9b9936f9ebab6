"""A piece of a model's answer while it is still being written."""

from __future__ import annotations

from typing import Literal

from attrs import evolve, frozen

from agentloop.values.value import Value


@frozen(eq=False, repr=False)
class InferenceDelta(Value):
    """A provisional piece of an answer; the response that follows is final.

    Attributes:
        kind: `text`, `reasoning`, `tool_call` (a call begins) or `arguments` (more of its arguments).
        text: the new piece: of text, of reasoning or of a call's arguments as JSON text.
        index: which call of this answer, from 0; for `tool_call` and `arguments`.
        call_id: the call's id, for `tool_call`; may be empty.
        name: the tool's name, for `tool_call`.
        attempt: which attempt of this inference it belongs to, from 1; the pieces of an attempt that is retried are void.
    """

    kind: Literal["text", "reasoning", "tool_call", "arguments"]
    text: str = ""
    index: int = 0
    call_id: str = ""
    name: str = ""
    attempt: int = 1

    def with_attempt(self, attempt: int) -> InferenceDelta:
        """Return the piece as belonging to this attempt."""
        return self if attempt == self.attempt else evolve(self, attempt=attempt)
