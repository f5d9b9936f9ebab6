"""Whole answers of generateContent.

Source: https://ai.google.dev/api/generate-content#v1beta.GenerateContentResponse
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from attrs import define, field

from agentloop.inference.wire_formats.errors import not_an_answer, read_whole_answer
from agentloop.inference.wire_formats.gemini.requests import NAME, SIGNATURE
from agentloop.inference.wire_formats.response_builder import ResponseBuilder
from agentloop.inference.wire_formats.stream_decoder import JsonEventDecoder, PlainDecoder
from agentloop.values.inference import FinishReason, InferenceDelta, InferenceResponse, Usage
from agentloop.values.json import MOST_LEVELS, format_json, parse_json
from agentloop.values.parts import ProviderPart

_STEP = re.compile(
    r"""\.(?P<name>[^.\[\]]+)|\[(?P<index>[0-9]{1,9})\]|\['(?P<single>(?:[^'\\]|\\.)*)'\]|\["(?P<double>(?:[^"\\]|\\.)*)"\]"""
)
_VALUES = ("numberValue", "boolValue")


class PartialArguments:
    """Puts the fragments of a call's arguments together.

    A text may come in several fragments, one after the other under the same path; any other value comes whole.
    """

    __slots__ = ("_open", "_pieces", "_whole")

    def __init__(self) -> None:
        self._whole: dict[str, Any] = {}
        self._open: str | None = None
        self._pieces: list[str] = []

    def take(self, fragment: Mapping[str, Any]) -> None:
        """Take a fragment.

        Raises:
            ValueError: when its path leads nowhere.
            KeyError: when it has none.
            TypeError: when its path is no text.
        """
        path = fragment["jsonPath"]
        if not isinstance(path, str):
            raise TypeError("a path is a text")
        if path != self._open:
            self._settle()
        text = fragment.get("stringValue")
        if isinstance(text, str):
            self._open = path
            self._pieces.append(text)
            if not fragment.get("willContinue"):
                self._settle()
        elif "nullValue" in fragment:
            self._put(path, None)
        else:
            for name in _VALUES:
                if name in fragment:
                    self._put(path, fragment[name])

    def add(self, arguments: Mapping[str, Any]) -> None:
        """Take arguments that came whole."""
        self._whole.update(arguments)

    def finished(self) -> dict[str, Any]:
        """Return the arguments."""
        self._settle()
        return self._whole

    def _settle(self) -> None:
        if self._open is not None:
            path, text = self._open, "".join(self._pieces)
            self._open, self._pieces = None, []
            self._put(path, text)

    def _put(self, path: str, value: object) -> None:
        steps = _steps(path)
        held: Any = self._whole
        for step, following in pairwise(steps):
            held = _entered(held, step, [] if isinstance(following, int) else {})
        _entered(held, steps[-1], None)
        held[steps[-1]] = value


def _entered(held: Any, step: str | int, fresh: Any) -> Any:
    """Return what stands at a step, put there when nothing does; the elements of an array come in order."""
    if isinstance(held, list) and isinstance(step, int):
        if step == len(held):
            held.append(fresh)
        if step < len(held):
            return held[step]
    if isinstance(held, dict) and isinstance(step, str):
        return held.setdefault(step, fresh)
    raise ValueError(f"the path to {step!r} leads nowhere")


def _steps(path: str) -> list[str | int]:
    """Read a path such as `$.lines[0].text`."""
    steps: list[str | int] = []
    place = 1
    while place < len(path) and len(steps) < MOST_LEVELS:
        found = _STEP.match(path, place)
        if found is None:
            break
        steps.append(_step(found))
        place = found.end()
    if path[:1] != "$" or place < len(path) or not steps:
        raise ValueError(f"the path {path[:200]!r} leads nowhere")
    return steps


def _step(found: re.Match[str]) -> str | int:
    if found["index"] is not None:
        return int(found["index"])
    if found["name"] is not None:
        return found["name"]
    quoted = found["double"]
    if quoted is None:
        quoted = re.sub(r'\\\'|"', lambda mark: "'" if mark[0] == "\\'" else '\\"', found["single"])
    text = parse_json(f'"{quoted}"')
    assert isinstance(text, str)  # noqa: S101  # a quoted text
    return text


_FINISH: Mapping[str, FinishReason] = {
    "STOP": FinishReason.STOP,
    "MAX_TOKENS": FinishReason.LENGTH,
    "CONTINUATION": FinishReason.LENGTH,
    "FINISH_REASON_UNSPECIFIED": FinishReason.UNKNOWN,
    **dict.fromkeys(
        (
            "SAFETY",
            "RECITATION",
            "BLOCKLIST",
            "PROHIBITED_CONTENT",
            "SPII",
            "IMAGE_SAFETY",
            "IMAGE_PROHIBITED_CONTENT",
            "IMAGE_RECITATION",
            "ESCALATION",
            "PUP_LIMITED_DISABLED",
            "MODEL_ARMOR",
        ),
        FinishReason.CONTENT_FILTER,
    ),
    **dict.fromkeys(
        (
            "MALFORMED_FUNCTION_CALL",
            "UNEXPECTED_TOOL_CALL",
            "TOO_MANY_TOOL_CALLS",
            "MISSING_THOUGHT_SIGNATURE",
            "MALFORMED_RESPONSE",
        ),
        FinishReason.ERROR,
    ),
}


@define(eq=False)
class _OpenCall:
    """A call of which more is to come."""

    key: int
    id: str
    name: str
    arguments: PartialArguments = field(factory=PartialArguments)

    def goes_on_with(self, call_id: str, name: str) -> bool:
        return call_id in {"", self.id} and name in {"", self.name}


class GeminiAnswerReader:
    """Reads an answer, of which the first candidate counts.

    Texts that follow each other are one part; a text or thought with a signature is a part of its own, since Gemini wants it
    back with exactly what it signed.

    Args:
        builder: collects the parts.
    """

    def __init__(self, builder: ResponseBuilder) -> None:
        self._builder = builder
        self._keys = 0
        self._open: _OpenCall | None = None
        self._after_signed = False
        self._finish: str | None = None
        self._blocked: str | None = None
        self._usage: dict[str, Any] = {}
        self._model = ""
        self._id = ""
        self.has_begun: bool = False
        """Whether a candidate came, or the reason why none does."""

    @property
    def has_ended(self) -> bool:
        """Whether the reason came for which the model stopped, or did not begin."""
        return self._finish is not None or self._blocked is not None

    def take(self, data: Mapping[str, Any]) -> list[InferenceDelta]:
        """Take a chunk of the answer, or all of it."""
        self._model = self._model or _text(data.get("modelVersion"))
        self._id = self._id or _text(data.get("responseId"))
        if isinstance(data.get("usageMetadata"), dict):
            self._usage = data["usageMetadata"]
        reason = _text((data.get("promptFeedback") or {}).get("blockReason"))
        if reason:
            self.has_begun, self._blocked = True, reason
        found: list[InferenceDelta] = []
        for candidate in data.get("candidates") or ():
            if not candidate.get("index"):
                self.has_begun = True
                found += self._take_candidate(candidate)
        return found

    def end(self) -> list[InferenceDelta]:
        """Finish the call that is still open."""
        if self._open is None:
            return []
        call, self._open = self._open, None
        return self._builder.arguments(call.key, format_json(call.arguments.finished()).decode())

    def response(self) -> InferenceResponse:
        """Return the whole answer."""
        self.end()
        reason = self._finish or self._blocked
        return InferenceResponse(
            self._builder.parts(), self._finish_reason(), _usage_of(self._usage), self._model, self._id, reason
        )

    def _finish_reason(self) -> FinishReason:
        if self._finish is None:
            return FinishReason.CONTENT_FILTER if self._blocked else self._unsaid()
        meant = _FINISH.get(self._finish, FinishReason.OTHER)
        return self._unsaid() if meant is FinishReason.UNKNOWN else self._called(meant)

    def _unsaid(self) -> FinishReason:
        return FinishReason.TOOL_CALLS if self._builder.has_calls else FinishReason.UNKNOWN

    def _called(self, meant: FinishReason) -> FinishReason:
        return FinishReason.TOOL_CALLS if meant is FinishReason.STOP and self._builder.has_calls else meant

    def _take_candidate(self, candidate: Mapping[str, Any]) -> list[InferenceDelta]:
        found: list[InferenceDelta] = []
        for part in (candidate.get("content") or {}).get("parts") or ():
            found += self._take_part(part)
        reason = candidate.get("finishReason")
        if isinstance(reason, str) and reason:
            self._finish = reason
            found += self.end()
        return found

    def _take_part(self, part: Mapping[str, Any]) -> list[InferenceDelta]:
        signature = part.get(SIGNATURE)
        signed = {NAME: {SIGNATURE: signature}} if isinstance(signature, str) and signature else {}
        if "functionCall" in part:
            return self._take_call(part["functionCall"] or {}, signed)
        if isinstance(part.get("text"), str):
            return self._take_text(part["text"], signed, is_thought=bool(part.get("thought")))
        found = self.end()
        if part:
            self._builder.opaque(ProviderPart(NAME, part))
        return found

    def _take_text(self, text: str, signed: Mapping[str, Any], *, is_thought: bool) -> list[InferenceDelta]:
        if not text and not signed:
            return []
        found = self.end()
        say = self._builder.reasoning if is_thought else self._builder.text
        if signed or self._after_signed:
            key = self._next_key()
            found += say(text, key)
            self._builder.mark(key, signed)
        else:
            found += say(text)
        self._after_signed = bool(signed)
        return found

    def _take_call(self, call: Mapping[str, Any], signed: Mapping[str, Any]) -> list[InferenceDelta]:
        call_id, name = _text(call.get("id")), _text(call.get("name"))
        found: list[InferenceDelta] = []
        if self._open is None or not self._open.goes_on_with(call_id, name):
            found += self.end()
            self._open = _OpenCall(self._next_key(), call_id, name)
            found += self._builder.call(self._open.key, call_id, name)
        self._builder.mark(self._open.key, signed)
        self._open.arguments.add(call.get("args") or {})
        for fragment in call.get("partialArgs") or ():
            self._open.arguments.take(fragment)
        return found if call.get("willContinue") else found + self.end()

    def _next_key(self) -> int:
        self._keys += 1
        return self._keys


def _usage_of(usage: Mapping[str, Any]) -> Usage:
    """Read token counts; Gemini counts thoughts beside the rest of the output, and leaves out what is zero."""
    counts = {name: _count(value) for name, value in usage.items()}
    return Usage(
        _sum(counts.get("promptTokenCount"), counts.get("toolUsePromptTokenCount")),
        _sum(counts.get("candidatesTokenCount"), counts.get("thoughtsTokenCount")),
        counts.get("cachedContentTokenCount"),
        None,
        counts.get("thoughtsTokenCount"),
    )


def _sum(*counts: int | None) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _count(value: object) -> int | None:
    """Return a count of tokens; what cannot be one is unknown."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf:
        return int(value)
    return None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def decode_response(status: int, headers: Mapping[str, str], body: bytes) -> InferenceResponse:
    """Read an answer: an object, or the array of chunks that a stream is when it is not asked for as events.

    Raises:
        InferenceError: typed by status and body.
    """

    def read(data: Any) -> InferenceResponse:
        reader = _read(_chunks(data))
        if not reader.has_begun or (isinstance(data, list) and not reader.has_ended):
            raise not_an_answer("the answer holds no candidate, or ends before it does", status, headers, body)
        return reader.response()

    return read_whole_answer(status, headers, body, failure=_failure, read=read, what="generated content")


def has_failed(data: Any) -> bool:
    """Say whether this tells an error instead of an answer."""
    return isinstance(data, dict) and bool(data.get("error")) and not data.get("candidates")


def _chunks(data: Any) -> list[Any]:
    return data if isinstance(data, list) else [data]


def _failure(data: Any) -> Any:
    return next((chunk for chunk in _chunks(data) if has_failed(chunk)), None)


def _read(chunks: list[Any]) -> GeminiAnswerReader:
    reader = GeminiAnswerReader(ResponseBuilder())
    for chunk in chunks:
        reader.take(chunk)
    return reader


class GeminiStreamDecoder(JsonEventDecoder):
    """Reads one streamed answer."""

    def __init__(self, plain: PlainDecoder, headers: Mapping[str, str]) -> None:
        super().__init__(plain, headers)
        self._reader = GeminiAnswerReader(self.builder)

    def take(self, data: dict[str, Any], name: str) -> list[InferenceDelta]:
        """Take a chunk.

        Raises:
            InferenceError: for an error that the provider tells.
        """
        if has_failed(data) or name == "error":
            raise self.failed(data)
        return self._reader.take(data)

    def response(self) -> InferenceResponse:
        """Return the whole answer.

        Raises:
            InferenceError: when the model had not stopped.
        """
        if not self._reader.has_ended:
            raise self.cut_short("the model had not stopped")
        return self._reader.response()
