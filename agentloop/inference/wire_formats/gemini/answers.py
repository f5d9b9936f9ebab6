"""Answers of generateContent, in one piece or in several: `GenerateContentResponse`, chunk by chunk.

Sources: https://ai.google.dev/api/generate-content#v1beta.GenerateContentResponse and the types of `google-genai`
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from attrs import define, field

from agentloop.inference.wire_formats.gemini.contents import NAME, SIGNATURE
from agentloop.inference.wire_formats.gemini.partial_arguments import PartialArguments
from agentloop.inference.wire_formats.response_builder import ResponseBuilder
from agentloop.values.inference_delta import InferenceDelta
from agentloop.values.inference_response import FinishReason, InferenceResponse
from agentloop.values.json_text import format_json
from agentloop.values.parts import ProviderPart
from agentloop.values.usage import Usage

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


class AnswerReader:
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
