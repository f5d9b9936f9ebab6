"""Decoding of responses of generateContent.

Source: https://ai.google.dev/api/generate-content#v1beta.GenerateContentResponse
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from attrs import define, evolve, field

from agentloop.models.wire_formats.decoding import BodyDecoder, JsonEventDecoder, decode_body, finish_reason, reason_of
from agentloop.models.wire_formats.errors import find_error, truncation_error
from agentloop.models.wire_formats.fields import count_of, finite_number_of, object_of, text_of
from agentloop.models.wire_formats.gemini.requests import NAME, SIGNATURE
from agentloop.models.wire_formats.response_builder import ResponseBuilder
from agentloop.values.inference import (
    MAX_TOP_LOGPROBS,
    FinishReason,
    InferenceDelta,
    InferenceResponse,
    TokenLogprob,
    Usage,
)
from agentloop.values.json import MAX_DEPTH, format_json, parse_json
from agentloop.values.messages import ResponsePart
from agentloop.values.parts import ProviderPart, Text


def decode_response(status: int, headers: Mapping[str, str], body: bytes) -> InferenceResponse:
    """Decode a complete response: an object, or the array of chunks that Gemini sends without `alt=sse`.

    Raises:
        InferenceError: typed by status and body.
    """

    def decode(data: Any) -> InferenceResponse:
        reader = GeminiReader()
        for chunk in _chunks(data):
            reader.process(chunk)
        if not reader.has_started or (isinstance(data, list) and not reader.has_ended):
            raise truncation_error("the response has no candidate, or an incomplete one", status, headers, body)
        return reader.response()

    return decode_body(status, headers, body, find_error=_find_error, decode=decode, expected="generated content")


def _chunks(data: Any) -> list[Any]:
    return data if isinstance(data, list) else [data]


def _find_error(data: Any) -> Any:
    return next(filter(None, map(find_error, _chunks(data))), None)


class GeminiStreamDecoder(JsonEventDecoder):
    """Decodes a streamed response."""

    def __init__(self, decode_body: BodyDecoder, headers: Mapping[str, str]) -> None:
        super().__init__(decode_body, headers)
        self._reader = GeminiReader()

    def process(self, data: dict[str, Any], name: str) -> list[InferenceDelta]:  # noqa: ARG002  # chunks have no names
        """Process one chunk."""
        return self._reader.process(data)

    def response(self) -> InferenceResponse:
        """Return the complete response.

        Raises:
            InferenceError: when the stream ended without a finish reason.
        """
        if not self._reader.has_ended:
            raise self.truncation_error("it contains no finish reason")
        return self._reader.response()


_SOURCES = ("groundingMetadata", "citationMetadata", "urlContextMetadata")
"""The entries of a candidate that name the sources of its text."""

_FINISH_REASONS: Mapping[str, FinishReason] = {
    "STOP": FinishReason.STOP,
    "MAX_TOKENS": FinishReason.LENGTH,
    "CONTINUATION": FinishReason.LENGTH,
    "FINISH_REASON_UNSPECIFIED": FinishReason.UNKNOWN,
    **dict.fromkeys(
        (
            "SAFETY",
            "LANGUAGE",
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


class GeminiReader:
    """Reads the chunks of a response; only the first candidate counts.

    Consecutive texts are joined into one part. A text or thought with a signature remains a part of its own, because Gemini
    expects the signature back with exactly the text that it signs.
    """

    def __init__(self) -> None:
        self.has_started: bool = False
        """Whether a candidate, or the reason for its absence, has arrived."""
        self._builder = ResponseBuilder()
        self._keys = 0
        self._open_call: _OpenCall | None = None
        # The calls of which more was announced and did not arrive. Some services do not report where a call ends.
        self._unfinished: list[int] = []
        self._is_after_signature = False
        self._finish: str | None = None
        self._block_reason: str | None = None
        self._usage: dict[str, Any] = {}
        self._logprobs: list[TokenLogprob] = []
        self._sources: dict[str, Any] = {}
        self._model = ""
        self._id = ""

    @property
    def has_ended(self) -> bool:
        """Whether a finish reason or a block reason has arrived."""
        return self._finish is not None or self._block_reason is not None

    def process(self, data: Mapping[str, Any]) -> list[InferenceDelta]:
        """Process one chunk, or a complete response.

        Raises:
            KeyError, TypeError, AttributeError, ValueError: when it does not have the expected structure.
        """
        self._model = self._model or text_of(data.get("modelVersion"))
        self._id = self._id or text_of(data.get("responseId"))
        # Every chunk contains the counts so far, so the last ones are complete.
        if isinstance(data.get("usageMetadata"), dict):
            self._usage = data["usageMetadata"]
        block_reason = text_of((data.get("promptFeedback") or {}).get("blockReason"))
        if block_reason:
            self.has_started, self._block_reason = True, block_reason
        deltas: list[InferenceDelta] = []
        for candidate in data.get("candidates") or ():
            # The index of the first candidate is zero or missing.
            if not candidate.get("index"):
                self.has_started = True
                deltas += self._process_candidate(candidate)
        return deltas

    def response(self) -> InferenceResponse:
        """Return the complete response."""
        self._end_call()
        reason, finish = self._finish or self._block_reason, self._finish_reason()
        if finish is not FinishReason.TOOL_CALLS:
            self._builder.reject(*self._unfinished)
            self._builder.reject_empty()
        parts = self._builder.parts(finish)
        if self._sources:
            parts = _with_sources(parts, self._sources)
        return InferenceResponse(
            parts, finish, _usage(self._usage), self._model, self._id, reason, logprobs=self._logprobs
        )

    def _finish_reason(self) -> FinishReason:
        has_calls = self._builder.has_calls
        if self._finish is None and self._block_reason:
            return FinishReason.CONTENT_FILTER
        reason = FinishReason.UNKNOWN
        if self._finish is not None:
            reason = finish_reason(self._finish, _FINISH_REASONS)
        # Gemini reports STOP for calls too.
        is_normal = reason in {FinishReason.STOP, FinishReason.UNKNOWN}
        return FinishReason.TOOL_CALLS if is_normal and has_calls else reason

    def _process_candidate(self, candidate: Mapping[str, Any]) -> list[InferenceDelta]:
        deltas: list[InferenceDelta] = []
        for part in (candidate.get("content") or {}).get("parts") or ():
            deltas += self._process_part(part)
        if candidate.get("logprobsResult"):
            self._logprobs += _logprobs(object_of(candidate["logprobsResult"]))
        # In a stream, the sources of the whole answer come with its last chunks.
        self._sources |= {name: candidate[name] for name in _SOURCES if candidate.get(name)}
        reason = reason_of(candidate.get("finishReason"))
        if reason:
            # A chunk behind the one that says that the generation failed does not make it whole.
            if not finish_reason(self._finish or "", _FINISH_REASONS).is_incomplete:
                self._finish = reason
            deltas += self._end_call()
        return deltas

    def _process_part(self, part: Mapping[str, Any]) -> list[InferenceDelta]:
        signature = part.get(SIGNATURE)
        provider_data = {NAME: {SIGNATURE: signature}} if isinstance(signature, str) and signature else {}
        if "functionCall" in part:
            return self._process_call(part["functionCall"] or {}, provider_data)
        if isinstance(part.get("text"), str):
            return self._process_text(part["text"], provider_data, is_thought=bool(part.get("thought")))
        deltas = self._end_call()
        if part:
            self._builder.opaque(ProviderPart(NAME, part))
        return deltas

    def _process_text(self, text: str, provider_data: Mapping[str, Any], *, is_thought: bool) -> list[InferenceDelta]:
        if not text and not provider_data:
            return []
        deltas = self._end_call()
        add = self._builder.reasoning if is_thought else self._builder.text
        # A key keeps a signed text, and the text after it, from being joined with the text before.
        if provider_data or self._is_after_signature:
            key = self._next_key()
            deltas += add(text, key)
            self._builder.mark(key, provider_data)
        else:
            deltas += add(text)
        self._is_after_signature = bool(provider_data)
        return deltas

    def _process_call(self, call: Mapping[str, Any], provider_data: Mapping[str, Any]) -> list[InferenceDelta]:
        call_id, name = text_of(call.get("id")), text_of(call.get("name"))
        deltas: list[InferenceDelta] = []
        # Fragments of a call need not repeat its id and name.
        if self._open_call is None or not self._open_call.is_continued_by(call_id, name):
            deltas += self._end_call()
            self._open_call = _OpenCall(self._next_key(), call_id, name)
            deltas += self._builder.call(self._open_call.key, call_id, name)
        self._builder.mark(self._open_call.key, provider_data)
        self._open_call.arguments.update(call.get("args") or {})
        for fragment in call.get("partialArgs") or ():
            self._open_call.arguments.add_fragment(fragment)
        if call.get("willContinue"):
            return deltas
        self._open_call.is_whole = not self._open_call.arguments.has_open_text
        return deltas + self._end_call()

    def _end_call(self) -> list[InferenceDelta]:
        if self._open_call is None:
            return []
        call, self._open_call = self._open_call, None
        if not call.is_whole:
            self._unfinished.append(call.key)
        return self._builder.arguments(call.key, format_json(call.arguments.build()).decode())

    def _next_key(self) -> int:
        self._keys += 1
        return self._keys


def _with_sources(parts: tuple[ResponsePart, ...], sources: Mapping[str, Any]) -> tuple[ResponsePart, ...]:
    """Return the parts with the sources of the answer in the provider data of its last text; they are not sent back."""
    for index in reversed(range(len(parts))):
        part = parts[index]
        if isinstance(part, Text):
            entries = {**object_of(part.provider_data.get(NAME)), **sources}
            return (*parts[:index], evolve(part, provider_data={NAME: entries}), *parts[index + 1 :])
    return parts


def _logprobs(result: Mapping[str, Any]) -> Iterator[TokenLogprob]:
    """Yield the chosen tokens with the candidates for their positions."""
    positions = result.get("topCandidates") or ()
    for index, chosen in enumerate(result.get("chosenCandidates") or ()):
        others = object_of(positions[index]).get("candidates") if index < len(positions) else ()
        top = [_logprob(other) for other in (others or ())[:MAX_TOP_LOGPROBS]]
        logprob = _logprob(chosen, tuple([other for other in top if other is not None]))
        if logprob is not None:
            yield logprob


def _logprob(candidate: Mapping[str, Any], top: tuple[TokenLogprob, ...] = ()) -> TokenLogprob | None:
    # A probability of one has the logarithm zero, which may be left out.
    token, logprob = candidate.get("token"), finite_number_of(candidate.get("logProbability", 0))
    return TokenLogprob(token, logprob, top=top) if isinstance(token, str) and logprob is not None else None


def _usage(usage: Mapping[str, Any]) -> Usage:
    """Return the token counts; Gemini excludes thoughts from the candidate tokens, and omits counts of zero."""
    counts = {name: count_of(value) for name, value in usage.items()}
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


# --- streamed arguments --------------------------------------------------------------------------------------------

_STEP = re.compile(
    r"""\.(?P<name>[^.\[\]]+)|\[(?P<index>[0-9]{1,9})\]|\['(?P<single>(?:[^'\\]|\\.)*)'\]|\["(?P<double>(?:[^"\\]|\\.)*)"\]"""
)
_VALUE_KEYS = ("numberValue", "boolValue")
_MAX_ERROR_PATH = 200


class PartialArguments:
    """Assembles the arguments of a call from fragments with JSON paths.

    A string may arrive in several consecutive fragments with the same path; any other value arrives complete.
    """

    __slots__ = ("_arguments", "_open_path", "_texts")

    def __init__(self) -> None:
        self._arguments: dict[str, Any] = {}
        self._open_path: str | None = None
        self._texts: list[str] = []

    def add_fragment(self, fragment: Mapping[str, Any]) -> None:
        """Add a fragment.

        Raises:
            ValueError: when its path is invalid, or does not fit the arguments so far.
            KeyError: when it has no path.
            TypeError: when its path is not a string.
        """
        path = fragment["jsonPath"]
        if not isinstance(path, str):
            raise TypeError("a path must be a string")
        # A fragment of another path ends the string, even if its end was not announced.
        if path != self._open_path:
            self._end_text()
        text = fragment.get("stringValue")
        if isinstance(text, str):
            self._open_path = path
            self._texts.append(text)
            if not fragment.get("willContinue"):
                self._end_text()
        elif "nullValue" in fragment:
            self._set(path, None)
        else:
            for key in _VALUE_KEYS:
                if key in fragment:
                    self._set(path, fragment[key])

    @property
    def has_open_text(self) -> bool:
        """Whether more of a string was announced."""
        return self._open_path is not None

    def update(self, arguments: Mapping[str, Any]) -> None:
        """Add complete arguments."""
        self._arguments.update(arguments)

    def build(self) -> dict[str, Any]:
        """Return the arguments."""
        self._end_text()
        return self._arguments

    def _end_text(self) -> None:
        if self._open_path is not None:
            path, text = self._open_path, "".join(self._texts)
            self._open_path, self._texts = None, []
            self._set(path, text)

    def _set(self, path: str, value: object) -> None:
        steps = _steps(path)
        container: Any = self._arguments
        for step, next_step in pairwise(steps):
            container = _child(container, step, [] if isinstance(next_step, int) else {})
        _child(container, steps[-1], None)
        container[steps[-1]] = value


def _child(container: Any, step: str | int, default: Any) -> Any:
    """Return the value at a step, which is set to the default if it is missing; arrays grow by one element at a time."""
    if isinstance(container, list) and isinstance(step, int):
        if step == len(container):
            container.append(default)
        if step < len(container):
            return container[step]
    if isinstance(container, dict) and isinstance(step, str):
        return container.setdefault(step, default)
    raise ValueError(f"the path step {step!r} does not fit the arguments")


def _steps(path: str) -> list[str | int]:
    """Parse a path such as `$.lines[0].text`."""
    steps: list[str | int] = []
    position = 1
    # Deeper arguments could not be stored as a value.
    while position < len(path) and len(steps) < MAX_DEPTH:
        match = _STEP.match(path, position)
        if match is None:
            break
        steps.append(_step(match))
        position = match.end()
    if path[:1] != "$" or position < len(path) or not steps:
        raise ValueError(f"the path {path[:_MAX_ERROR_PATH]!r} is invalid")
    return steps


def _step(match: re.Match[str]) -> str | int:
    if match["index"] is not None:
        return int(match["index"])
    if match["name"] is not None:
        return match["name"]
    quoted = match["double"]
    if quoted is None:  # convert the single-quoted form to JSON
        quoted = re.sub(r'\\\'|"', lambda quote: "'" if quote[0] == "\\'" else '\\"', match["single"])
    text = parse_json(f'"{quoted}"')
    assert isinstance(text, str)  # noqa: S101  # a quoted text
    return text


@define(eq=False)
class _OpenCall:
    """A call of which fragments may still arrive."""

    key: int
    id: str
    name: str
    arguments: PartialArguments = field(factory=PartialArguments)
    is_whole: bool = False

    def is_continued_by(self, call_id: str, name: str) -> bool:
        return call_id in {"", self.id} and name in {"", self.name}
