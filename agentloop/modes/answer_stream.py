"""Decisions while they are being written: what can be shown of the answer before all of it is there."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from attrs import evolve

from agentloop.contracts.can_use_mode import ModeStream
from agentloop.modes.react_reading import ACTION, ANSWER, INPUT, labels_in
from agentloop.values.inference import InferenceDelta, InferenceResponse, told_in_pieces

_SURE: Final = re.compile(r"\s*[^\s*_]")
_OTHER_NOTATION: Final = re.compile(r"[{\[<`|◁]")
_NOTATION: Final = re.compile(r"[\s*_#>]*(?:[{\[<`◁]|thought|action|observation|final answer)", re.IGNORECASE)
_LONGEST_LABEL: Final = 32


class AnswerSearch:
    """Looks for the place from which on a growing text is certainly the answer; by itself it never finds one."""

    def begins(self, text: str) -> int:  # noqa: ARG002  # a JSON object is known when it is whole
        """Return that place, or -1 as long as it is not known."""
        return -1


class LabelSearch(AnswerSearch):
    """Finds the answer behind `Final Answer:`, where nothing that may be a call stands before."""

    def __init__(self) -> None:
        """Begin a text."""
        self._line = 0
        self._hopeless = False

    def begins(self, text: str) -> int:
        """Return where the answer begins, or -1."""
        if self._hopeless:
            return -1
        for label in labels_in(text, start=self._line):
            if label.name in {ACTION, INPUT}:
                self._hopeless = True
                return -1
            if label.name == ANSWER:
                self._hopeless = _OTHER_NOTATION.search(text, 0, label.start) is not None
                found = _SURE.match(text, label.end)
                return found.end() - 1 if found is not None and not self._hopeless else -1
        self._line = max(self._line, text.rfind("\n") + 1)
        return -1


class PlainSearch(AnswerSearch):
    """Takes the whole text for the answer, unless it begins as a decision does."""

    def begins(self, text: str) -> int:
        """Return the beginning, once it is certain."""
        if _NOTATION.match(text):
            return -1
        return 0 if len(text.lstrip()) >= _LONGEST_LABEL else -1


def may_be_decision(text: str) -> bool:
    """Say whether a text that should be plain begins as a decision does."""
    return _NOTATION.match(text) is not None


class ReActStream(ModeStream):
    """Shows the answer from where it certainly is one; what else there is when all of it is there."""

    def __init__(self, search: Callable[[], AnswerSearch]) -> None:
        """Begin an answer.

        Args:
            search: makes what looks for the answer.
        """
        self._make = search
        self._begin(1)

    def _begin(self, attempt: int) -> None:
        self._attempt = attempt
        self._search = self._make()
        self._text = ""
        self._reasoning = ""
        self._from = -1
        self._shown = 0
        self._has_own_calls = False

    def feed(self, delta: InferenceDelta) -> list[InferenceDelta]:
        """Take a piece as the model wrote it, and return what is certain of it."""
        if delta.attempt != self._attempt:
            self._begin(delta.attempt)
        if delta.kind != "text":
            self._reasoning += delta.text if delta.kind == "reasoning" else ""
            self._has_own_calls = self._has_own_calls or delta.kind == "tool_call"
            return [delta]
        self._text += delta.text
        if self._from < 0:
            self._from = self._shown = self._search.begins(self._text)
        if self._from < 0:
            return []
        certain = len(self._text.rstrip())
        piece, self._shown = self._text[self._shown : certain], max(certain, self._shown)
        return [evolve(delta, text=piece)] if piece else []

    def close(self, response: InferenceResponse) -> list[InferenceDelta]:
        """Take the whole answer, translated, and return the pieces that were held back."""
        shown = self._text[self._from : self._shown] if self._from >= 0 else ""
        told: list[InferenceDelta] = []
        told += _rest("reasoning", response.reasoning, self._reasoning)
        told += _rest("text", response.text, shown)
        if not self._has_own_calls:
            told += told_in_pieces(response.with_parts(*response.tool_calls))
        return [delta.with_attempt(self._attempt) for delta in told]


def _rest(kind: str, whole: str, shown: str) -> list[InferenceDelta]:
    """Return what is missing of a text of which the beginning was shown."""
    if len(whole) <= len(shown) or not whole.startswith(shown):
        return []
    return [InferenceDelta("text" if kind == "text" else "reasoning", whole[len(shown) :])]
