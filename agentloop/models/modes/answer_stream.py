"""Streaming of answers that are written in a notation: its text is emitted as soon as it certainly is the answer."""

from __future__ import annotations

import re
from typing import Final

from attrs import evolve

from agentloop.contracts.can_use_mode import ModeStream
from agentloop.models.modes.react_reading import ACTION, ANSWER, INPUT, find_labels
from agentloop.models.text_calls.text_buffer import TextBuffer
from agentloop.values.inference import InferenceDelta, InferenceRequest, InferenceResponse, iter_deltas


class AnswerSearch:
    """Searches growing text for the position from which it is certainly the answer.

    This class never finds one, for notations such as a JSON object that can be read only as a whole.
    """

    def find(self, text: str) -> int:  # noqa: ARG002  # for searches that look at it
        """Return the position, or -1 while it is unknown.

        Args:
            text: the text so far; it extends the text of the previous call.
        """
        return -1


class LabelSearch(AnswerSearch):
    """Finds the answer behind `Final Answer:` unless something that may be a call precedes it."""

    def __init__(self) -> None:
        self._line_start = 0
        self._is_hopeless = False

    def find(self, text: str) -> int:
        """Return the position behind the label, or -1."""
        if self._is_hopeless:
            return -1
        for label in find_labels(text, start=self._line_start):
            # The text contains a call, so the complete text decides what is shown.
            if label.name in {ACTION, INPUT}:
                self._is_hopeless = True
                return -1
            if label.name == ANSWER:
                self._is_hopeless = _CALL_CHARACTER.search(text, 0, label.start) is not None
                content = _CONTENT_START.match(text, label.end)
                return content.end() - 1 if content is not None and not self._is_hopeless else -1
        # Labels are at the beginnings of lines, so complete lines and the rest of a long one need not be searched again.
        self._line_start = max(self._line_start, text.rfind("\n", self._line_start) + 1)
        if len(text) - self._line_start > _MAX_LABELED_LENGTH:
            self._line_start = len(text)
        return -1


# Longer than any label with its marks and spaces.
_MAX_LABELED_LENGTH: Final = 1_000
# A call in another notation may begin with one of these.
_CALL_CHARACTER: Final = re.compile(r"[{\[<`|◁]")
# White space and emphasis may still belong to the label.
_CONTENT_START: Final = re.compile(r"\s*[^\s*_]")


class PlainSearch(AnswerSearch):
    """Treats the whole text as the answer unless it begins as a notation does."""

    def find(self, text: str) -> int:
        """Return 0 once that is certain, or -1."""
        # With each piece of the text, only its beginning is looked at again.
        start = text[:_MAX_LABELED_LENGTH]
        if begins_notation(start):
            return -1
        return 0 if len(start.lstrip()) >= _MAX_LABEL_LENGTH or len(text) > _MAX_LABELED_LENGTH else -1


_NOTATION_START: Final = re.compile(r"[\s*_#>]*(?:[{\[<`◁]|thought|action|observation|final answer)", re.IGNORECASE)
# No label is longer: a text of this length that does not begin with one is plain.
_MAX_LABEL_LENGTH: Final = 32


def begins_notation(text: str) -> bool:
    """Whether a text that should be plain begins as a notation does."""
    return _NOTATION_START.match(text) is not None


def may_continue_notation(request: InferenceRequest) -> bool:
    """Whether a model that is asked for a plain answer has written in a notation before and may continue to do so."""
    return request.response_format is None and any(message.role == "assistant" for message in request.messages)


class AnswerStream(ModeStream):
    """Emits the answer's text from the position where it certainly begins, and everything else when it is complete."""

    def __init__(self, search: AnswerSearch) -> None:
        """Create a stream.

        Args:
            search: finds where the answer begins.
        """
        self._search = search
        self._text = TextBuffer()
        self._reasoning = TextBuffer()
        self._answer_start = -1
        self._emitted = 0
        self._has_native_calls = False

    def feed(self, delta: InferenceDelta) -> list[InferenceDelta]:
        """Process a delta of the model; return what is certain."""
        if delta.kind != "text":
            self._reasoning.append(delta.text if delta.kind == "reasoning" else "")
            self._has_native_calls = self._has_native_calls or delta.kind == "tool_call"
            return [delta]
        self._text.append(delta.text)
        if self._answer_start < 0:
            self._answer_start = self._emitted = self._search.find(self._text.text)
        if self._answer_start < 0:
            return []
        # White space at the end is held back, since the final answer is stripped.
        if not delta.text.strip():
            return []
        piece = self._text.text[self._emitted :].rstrip()
        self._emitted += len(piece)
        return [evolve(delta, text=piece)] if piece else []

    def close(self, response: InferenceResponse) -> list[InferenceDelta]:
        """Return the deltas of the complete response that were not emitted yet."""
        emitted = self._text.text[self._answer_start : self._emitted] if self._answer_start >= 0 else ""
        deltas: list[InferenceDelta] = []
        if rest := _missing_rest(response.reasoning, self._reasoning.text):
            deltas.append(InferenceDelta("reasoning", rest))
        if rest := _missing_rest(response.text, emitted):
            deltas.append(InferenceDelta("text", rest))
        # Deltas of calls that the provider parsed were passed through.
        if not self._has_native_calls:
            deltas += iter_deltas(response.with_parts(response.tool_calls))
        return deltas


def _missing_rest(text: str, emitted: str) -> str:
    """Return what follows the emitted part of a text; empty if the text begins otherwise."""
    return text[len(emitted) :] if text.startswith(emitted) else ""
