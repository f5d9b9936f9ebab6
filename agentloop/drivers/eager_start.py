"""Finds the calls of a streamed answer as soon as they are complete, and starts them."""

from __future__ import annotations

import re
from typing import Final

from agentloop.contracts.can_execute_tool_calls import EagerCalls
from agentloop.values.inference import InferenceDelta
from agentloop.values.tool_calls import ToolCall


class EagerStart:
    """Starts the calls of one streamed answer.

    Args:
        calls: starts them; when an attempt of the inference is repeated, they are discarded.
    """

    __slots__ = ("_attempt", "_calls", "_is_over", "_reader")

    def __init__(self, calls: EagerCalls) -> None:
        self._calls = calls
        self._attempt = 0
        self._is_over = False
        self._reader = CallReader()

    def feed(self, delta: InferenceDelta) -> None:
        """Read the next delta of the stream, and start the calls that it completes."""
        if delta.attempt != self._attempt:
            # The deltas of a failed attempt are void, and so is what was started because of them.
            if self._attempt:
                self._calls.discard()
            self._attempt, self._is_over, self._reader = delta.attempt, False, CallReader()
        if not self._is_over and delta.kind in _CALL_DELTAS:
            self._is_over = not all(map(self._calls.start, self._reader.feed(delta)))


_CALL_DELTAS: Final = frozenset({"tool_call", "arguments"})


class CallReader:
    """Joins deltas to calls. Pure, and linear in the length of the stream.

    A call is complete when the brackets of its arguments are closed, or when it has none and the next call begins. Whether the
    arguments are valid is for others to find out, and so is whether the final answer has the same call.
    """

    __slots__ = ("_calls", "_returned")

    def __init__(self) -> None:
        self._calls: list[_OpenCall] = []
        self._returned = 0

    def feed(self, delta: InferenceDelta) -> list[ToolCall]:
        """Return the calls that a delta completes, in call order: none before all calls in front of it."""
        if delta.kind == "tool_call":
            if self._calls:
                self._calls[-1].close_empty()
            # A gap is a call that is held back; a repetition belongs to another stream. No call matches either.
            if delta.index == len(self._calls):
                self._calls.append(_OpenCall(delta.call_id, delta.name))
        elif delta.index < len(self._calls):
            self._calls[delta.index].add(delta.arguments)
        complete: list[ToolCall] = []
        while self._returned < len(self._calls) and self._calls[self._returned].is_complete:
            complete.append(self._calls[self._returned].build())
            self._returned += 1
        return complete


_OUTSIDE: Final = re.compile(r'["{}\[\]]')
_IN_TEXT: Final = re.compile(r'["\\]')


class _OpenCall:
    """A call of which arguments may still arrive."""

    __slots__ = ("_call_id", "_depth", "_in_text", "_is_escaped", "_name", "_texts", "is_complete")

    def __init__(self, call_id: str, name: str) -> None:
        self._call_id = call_id
        self._name = name
        self._texts: list[str] = []
        self._depth = 0
        self._in_text = False
        self._is_escaped = False
        self.is_complete: bool = False

    def add(self, text: str) -> None:
        """Add a fragment of the arguments."""
        if text and not self.is_complete:
            self._texts.append(text)
            self._scan(text)

    def close_empty(self) -> None:
        """Complete the call if it has no arguments so far."""
        if not "".join(self._texts).strip():
            self._texts, self.is_complete = ["{}"], True

    def build(self) -> ToolCall:
        """Return the call."""
        return ToolCall(self._call_id, self._name, "".join(self._texts))

    def _scan(self, text: str) -> None:
        position = 0
        if self._is_escaped:
            position, self._is_escaped = 1, False
        while match := (_IN_TEXT if self._in_text else _OUTSIDE).search(text, position):
            position = match.end()
            match match[0]:
                case '"':
                    self._in_text = not self._in_text
                case "\\":
                    # The character after it may be in the next fragment.
                    self._is_escaped = position == len(text)
                    position += 1
                case "{" | "[":
                    self._depth += 1
                case _:
                    self._depth -= 1
                    # What may follow makes the arguments invalid, or another call than that of the final answer.
                    self.is_complete = self.is_complete or self._depth <= 0
