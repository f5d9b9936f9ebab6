"""Streaming of answers whose calls a server may have left in the text: prose passes, and the rest waits until it is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from attrs import evolve

from agentloop.contracts.can_use_mode import ModeStream
from agentloop.values.inference import InferenceDelta, InferenceResponse
from agentloop.values.tool_calls import ToolSpec

# Behind the first words of an answer: a tag, an object or a list of objects, a block, or a label of a notation.
_CALL_START: Final = re.compile(r"[<{✿◁｜‖]|\|[DG]SML|\[(?=[A-Z{]|\Z)|`{3}|[Aa]ction\b|to=|call:|>>>|assistant")
_FIRST_WORD: Final = re.compile(r"\s*([^\W\d_][\w.-]*)(?=[\s,.;!?'-])")
_LAST_WORD: Final = re.compile(r"[\w.-]{1,200}\Z")


class ReadingStream(ModeStream):
    """Passes the text of an answer through another stream from where a call may begin; until then, the text passes at once.

    Most texts are prose, which need not be read while they arrive.
    """

    def __init__(self, open_reader: Callable[[], ModeStream], native: ModeStream, tools: Sequence[ToolSpec]) -> None:
        """Create a stream.

        Args:
            open_reader: opens the stream that reads text.
            native: the stream that all deltas pass last.
            tools: the offered tools.
        """
        self._open_reader = open_reader
        self._native = native
        self._names = tuple([spec.name for spec in tools])
        self._reader: ModeStream | None = None
        self._passed: list[str] = []
        # A word at the end that may become a call in Python syntax.
        self._word = ""
        # The characters that the reader has yet to give again, since they have passed.
        self._repeated = 0

    def feed(self, delta: InferenceDelta) -> list[InferenceDelta]:
        """Return what is certain."""
        if self._reader is None and delta.kind == "text":
            text = self._word + delta.text
            if _CALL_START.search(text) is None and (self._passed or self._begins_as_prose(text)):
                return self._pass_on(delta, text)
            self._reader, self._word = self._open_reader(), ""
            passed = "".join(self._passed)
            self._repeated = len(passed)
            delta = evolve(delta, text=passed + text)
        pieces = [delta] if self._reader is None else self._without_repeated(self._reader.feed(delta))
        return [item for piece in pieces for item in self._native.feed(piece)]

    def close(self, response: InferenceResponse) -> list[InferenceDelta]:
        """Return the deltas that were held back."""
        held = [InferenceDelta("text", self._word)] if self._word else []
        if self._reader is not None:
            held = self._without_repeated(self._reader.close(response))
        return [*held, *self._native.close(response)]

    def _begins_as_prose(self, text: str) -> bool:
        """Whether an answer begins with a word that is no name of a tool."""
        word = _FIRST_WORD.match(text)
        return word is not None and not any(name in word[1] for name in self._names)

    def _pass_on(self, delta: InferenceDelta, text: str) -> list[InferenceDelta]:
        last = _LAST_WORD.search(text[-_MAX_WORD:])
        self._word = last[0] if last is not None and last[0] in self._names else ""
        piece = text[: len(text) - len(self._word)]
        self._passed.append(piece)
        return self._native.feed(delta if piece == delta.text else evolve(delta, text=piece)) if piece else []

    def _without_repeated(self, deltas: Sequence[InferenceDelta]) -> list[InferenceDelta]:
        """Return the deltas without the text that has passed before."""
        new: list[InferenceDelta] = []
        for delta in deltas:
            skipped = min(self._repeated, len(delta.text)) if delta.kind == "text" else 0
            self._repeated -= skipped
            if skipped < len(delta.text) or delta.kind != "text":
                new.append(evolve(delta, text=delta.text[skipped:]) if skipped else delta)
        return new


_MAX_WORD: Final = 201
