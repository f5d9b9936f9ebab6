"""Responses of Chat Completions, read with tolerance for the many services that speak it.

Source: https://platform.openai.com/docs/api-reference/chat/object
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentloop.inference.wire_formats.errors import read_whole_answer
from agentloop.inference.wire_formats.fields import arguments_json, count_of, object_of, text_of
from agentloop.inference.wire_formats.stream_decoder import JsonEventDecoder, PlainDecoder
from agentloop.values.inference import FinishReason, InferenceDelta, InferenceResponse, Usage
from agentloop.values.messages import ResponsePart
from agentloop.values.parts import Reasoning, Text
from agentloop.values.tool_calls import ToolCall

_FINISH: Mapping[str, FinishReason] = {
    "stop": FinishReason.STOP,
    "end_turn": FinishReason.STOP,
    "eos": FinishReason.STOP,
    "stop_sequence": FinishReason.STOP,
    "tool_calls": FinishReason.TOOL_CALLS,
    "tool_call": FinishReason.TOOL_CALLS,
    "function_call": FinishReason.TOOL_CALLS,
    "tool_use": FinishReason.TOOL_CALLS,
    "length": FinishReason.LENGTH,
    "max_tokens": FinishReason.LENGTH,
    "model_length": FinishReason.LENGTH,
    "content_filter": FinishReason.CONTENT_FILTER,
    "safety": FinishReason.CONTENT_FILTER,
    "refusal": FinishReason.CONTENT_FILTER,
    "error": FinishReason.ERROR,
}
REFUSAL: Mapping[str, Any] = {"openai-chat": {"type": "refusal"}}
"""What marks a text that came as a refusal."""


def decode_response(status: int, headers: Mapping[str, str], body: bytes) -> InferenceResponse:
    """Read an answer.

    Raises:
        InferenceError: typed by status and body.
    """
    return read_whole_answer(status, headers, body, failure=failure_in, read=_response, what="a chat completion")


def failure_in(data: Any) -> dict[str, Any] | None:
    """Find what tells an error: the answer itself, when it has no choices, or a choice of it, where a router puts it."""
    if not isinstance(data, dict):
        return None
    choices = data.get("choices")
    held = choices[0] if isinstance(choices, list) and choices else data
    return held if isinstance(held, dict) and held.get("error") else None


def _response(data: Any) -> InferenceResponse:
    choice = data["choices"][0]
    message = choice.get("message") or choice.get("delta") or {}
    reason, parts = choice.get("finish_reason"), message_parts(message)
    return InferenceResponse(
        parts,
        finish_reason(
            reason,
            has_calls=any(isinstance(part, ToolCall) for part in parts),
            refused=bool(message.get("refusal")),
        ),
        usage_of(data.get("usage")),
        text_of(data.get("model")),
        text_of(data.get("id")),
        reason if isinstance(reason, str) else None,
    )


def message_parts(message: Mapping[str, Any]) -> tuple[ResponsePart, ...]:
    """Read reasoning, text and calls of an assistant's message, in that order; a refusal is text."""
    parts: list[ResponsePart] = []
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(reasoning, str) and reasoning:
        parts.append(Reasoning(reasoning))
    parts.extend(content_parts(message.get("content")))
    refusal = message.get("refusal")
    if isinstance(refusal, str) and refusal and not any(isinstance(part, Text) for part in parts):
        parts.append(Text(refusal, provider_data=REFUSAL))
    calls = message.get("tool_calls") or ()
    parts.extend(_call(call) for call in ([calls] if isinstance(calls, dict) else calls))
    return tuple(parts)


def finish_reason(reason: object, *, has_calls: bool, refused: bool = False) -> FinishReason:
    """Translate a finish reason to common words; calls and refusals count as such whatever a service says of them."""
    word = reason.lower() if isinstance(reason, str) else ""
    if has_calls and word in {"stop", ""}:
        return FinishReason.TOOL_CALLS
    if refused and word in {"stop", ""}:
        return FinishReason.CONTENT_FILTER
    return _FINISH.get(word, FinishReason.OTHER) if word else FinishReason.UNKNOWN


def usage_of(usage: Any) -> Usage:
    """Read token counts; what a service does not report stays unknown."""
    if not isinstance(usage, dict):
        return Usage()
    read, written = object_of(usage.get("prompt_tokens_details")), object_of(usage.get("completion_tokens_details"))
    cached = (read.get("cached_tokens"), usage.get("prompt_cache_hit_tokens"), usage.get("cached_tokens"))
    return Usage(
        count_of(usage.get("prompt_tokens")),
        count_of(usage.get("completion_tokens")),
        next((count for count in map(count_of, cached) if count is not None), None),
        count_of(read.get("cache_write_tokens")),
        count_of(written.get("reasoning_tokens")),
    )


def content_parts(content: Any) -> list[Text | Reasoning]:
    """Read the content of a message, as text or as a list of pieces."""
    if isinstance(content, str):
        return [Text(content)] if content else []
    found: list[Text | Reasoning] = []
    for part in [content] if isinstance(content, dict) else content or ():
        text = part if isinstance(part, str) else part.get("text") or part.get("refusal")
        if isinstance(text, str) and text:
            found.append(Text(text))
        elif isinstance(part, dict) and part.get("thinking"):
            found.append(Reasoning(_thoughts(part["thinking"])))
    return found


def _thoughts(thinking: Any) -> str:
    return thinking if isinstance(thinking, str) else "".join(text_of(piece.get("text")) for piece in thinking)


def _call(call: Mapping[str, Any]) -> ToolCall:
    function = call.get("function") or call
    call_id = call.get("id")
    return ToolCall(
        str(call_id) if isinstance(call_id, int) else text_of(call_id),
        text_of(function.get("name")),
        arguments_json(function.get("arguments")),
    )


class ChatStreamDecoder(JsonEventDecoder):
    """Reads one streamed chat completion: the first of its choices."""

    def __init__(self, plain: PlainDecoder, headers: Mapping[str, str]) -> None:
        super().__init__(plain, headers)
        self._model = ""
        self._id = ""
        self._finish: str | None = None
        self._usage: Any = None
        self._refused = False
        self._has_choices = False
        self._places: dict[object, int] = {}
        """How many calls have begun at an index; a service may send each call whole at index 0."""

    def take(self, data: dict[str, Any], name: str) -> list[InferenceDelta]:
        """Take a chunk.

        Raises:
            InferenceError: for an error that the provider tells.
        """
        failed = failure_in(data)
        if failed or name == "error":
            raise self.failed(failed or data)
        self._model = self._model or text_of(data.get("model"))
        self._id = self._id or text_of(data.get("id"))
        self._count(data)
        found: list[InferenceDelta] = []
        for choice in data.get("choices") or ():
            if not choice.get("index"):
                self._has_choices = True
                found += self._take_choice(choice)
        return found

    def response(self) -> InferenceResponse:
        """Return the whole answer.

        Raises:
            InferenceError: when no piece of an answer came.
        """
        if not self._has_choices:
            raise self.cut_short("no piece of an answer came")
        reason = finish_reason(self._finish, has_calls=self.builder.has_calls, refused=self._refused)
        return InferenceResponse(
            self.builder.parts(), reason, usage_of(self._usage), self._model, self._id, self._finish
        )

    def _count(self, data: dict[str, Any]) -> None:
        """Note token counts: of the last chunk that has any, in the places where services put them."""
        for held in (data, data.get("x_groq"), *(data.get("choices") or ())[:1]):
            if held and held.get("usage"):
                self._usage = held["usage"]

    def _take_choice(self, choice: dict[str, Any]) -> list[InferenceDelta]:
        if isinstance(choice.get("finish_reason"), str):
            self._finish = choice["finish_reason"] or self._finish
        delta = choice.get("delta") or choice.get("message") or {}
        found: list[InferenceDelta] = []
        reasoning = delta.get("reasoning_content") or delta.get("reasoning")
        if isinstance(reasoning, str):
            found += self.builder.reasoning(reasoning)
        content = delta.get("content")
        if isinstance(content, str):
            found += self.builder.text(content)
        elif content:
            for part in content_parts(content):
                found += (self.builder.reasoning if isinstance(part, Reasoning) else self.builder.text)(part.text)
        refusal = delta.get("refusal")
        if isinstance(refusal, str) and refusal:
            self._refused = True
            found += self.builder.text(refusal, "refusal")
            self.builder.mark("refusal", REFUSAL)
        calls = delta.get("tool_calls") or ()
        for call in [calls] if isinstance(calls, dict) else calls:
            found += self._take_call(call, call.get("index"))
        return found

    def _take_call(self, call: dict[str, Any], index: object) -> list[InferenceDelta]:
        """Take a piece of a call.

        Pieces with one index are one call, unless another id comes: then a new one begins. Pieces without an index go on with
        the last call, unless they bring an id or a name of their own.
        """
        function = call.get("function") or {}
        call_id, name = _id_of(call), text_of(function.get("name"))
        place = self._places.get(index, -1)
        if place < 0 or self._is_another((index, place), index, call_id, name):
            self._places[index] = place = place + 1
            found = self.builder.call((index, place), call_id, name)
        else:
            self.builder.name_call((index, place), call_id, name)
            found = []
        key = (index, place)
        arguments = function.get("arguments")
        return found if arguments is None else found + self.builder.arguments(key, arguments_json(arguments))

    def _is_another(self, key: tuple[object, int], index: object, call_id: str, name: str) -> bool:
        begun = self.builder.call_id(key)
        if index is None:
            return bool(name or call_id) and (not call_id or call_id != begun)
        return bool(call_id and begun and call_id != begun)


def _id_of(call: Mapping[str, Any]) -> str:
    call_id = call.get("id")
    return str(call_id) if isinstance(call_id, int) else text_of(call_id)
