"""Streams of Chat Completions, read with tolerance for the many services that speak it.

Source: https://platform.openai.com/docs/api-reference/chat-streaming
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentloop.inference.wire_formats.openai_chat.responses import (
    REFUSAL,
    arguments_json,
    content_parts,
    failure_in,
    finish_reason,
    text_of,
    usage_of,
)
from agentloop.inference.wire_formats.stream_decoder import JsonEventDecoder, PlainDecoder
from agentloop.values.inference_delta import InferenceDelta
from agentloop.values.inference_response import InferenceResponse
from agentloop.values.parts import Reasoning


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
