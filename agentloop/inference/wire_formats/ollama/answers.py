"""Answers of Ollama's own chat API, in one piece or line by line.

Source: https://github.com/ollama/ollama/blob/main/docs/api.md#generate-a-chat-completion
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentloop.inference.wire_formats.ollama.requests import NAME, THINKING
from agentloop.inference.wire_formats.response_builder import ResponseBuilder
from agentloop.values.inference_delta import InferenceDelta
from agentloop.values.inference_response import FinishReason, InferenceResponse
from agentloop.values.json_text import format_json
from agentloop.values.usage import Usage

_FINISH: Mapping[str, FinishReason] = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "tool_calls": FinishReason.TOOL_CALLS,
}
_MARK = {NAME: {THINKING: True}}


class AnswerReader:
    """Reads an answer.

    Args:
        builder: collects the parts.
    """

    def __init__(self, builder: ResponseBuilder) -> None:
        self._builder = builder
        self._keys = 0
        self._thought: int | None = None
        self._finish: str | None = None
        self._usage = Usage()
        self._model = ""
        self.has_ended: bool = False
        """Whether the answer says that it is done."""

    def take(self, data: Mapping[str, Any]) -> list[InferenceDelta]:
        """Take a line of the answer, or all of it."""
        self._model = self._model or _text(data.get("model"))
        found = self._take_message(data["message"])
        if data.get("done"):
            self.has_ended = True
            reason = data.get("done_reason")
            self._finish = reason if isinstance(reason, str) and reason else None
            self._usage = Usage(_count(data.get("prompt_eval_count")), _count(data.get("eval_count")))
        return found

    def response(self) -> InferenceResponse:
        """Return the whole answer."""
        return InferenceResponse(
            self._builder.parts(), self._finish_reason(), self._usage, self._model, "", self._finish
        )

    def _finish_reason(self) -> FinishReason:
        if self._builder.has_calls and self._finish in {None, "stop"}:
            return FinishReason.TOOL_CALLS
        return FinishReason.UNKNOWN if self._finish is None else _FINISH.get(self._finish, FinishReason.OTHER)

    def _take_message(self, message: Mapping[str, Any]) -> list[InferenceDelta]:
        found: list[InferenceDelta] = []
        thoughts, text = _text(message.get("thinking")), _text(message.get("content"))
        if thoughts:
            if self._thought is None:
                self._thought = self._next_key()
                found += self._builder.reasoning("", self._thought)
                self._builder.mark(self._thought, _MARK)
            found += self._builder.reasoning(thoughts, self._thought)
        if text:
            self._thought = None
            found += self._builder.text(text)
        for call in message.get("tool_calls") or ():
            self._thought = None
            found += self._take_call(call)
        return found

    def _take_call(self, call: Mapping[str, Any]) -> list[InferenceDelta]:
        function = call["function"]
        arguments = function.get("arguments")
        key = self._next_key()
        text = arguments if isinstance(arguments, str) else format_json(arguments or {}).decode()
        return [
            *self._builder.call(key, _text(call.get("id")), _text(function.get("name"))),
            *self._builder.arguments(key, text),
        ]

    def _next_key(self) -> int:
        self._keys += 1
        return self._keys


def _count(value: object) -> int | None:
    """Return a count of tokens; what cannot be one is unknown."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
