"""Streams of Ollama's own chat API: one JSON object a line.

Source: https://github.com/ollama/ollama/blob/main/docs/api.md#streaming-responses
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentloop.inference.wire_formats.ollama.answers import AnswerReader
from agentloop.inference.wire_formats.ollama.responses import has_failed
from agentloop.inference.wire_formats.stream_decoder import Framing, JsonEventDecoder, JsonLines, PlainDecoder
from agentloop.values.inference_delta import InferenceDelta
from agentloop.values.inference_response import InferenceResponse


class OllamaStreamDecoder(JsonEventDecoder):
    """Reads one streamed answer."""

    plain_begins_with = b"[<"
    """With what a body begins that is no stream: not with an object, since that is what a line is."""

    def __init__(self, plain: PlainDecoder, headers: Mapping[str, str]) -> None:
        super().__init__(plain, headers)
        self._reader = AnswerReader(self.builder)

    def framing(self) -> Framing:
        """Return what cuts the bytes into events: one of lines."""
        return JsonLines()

    def take(self, data: dict[str, Any], name: str) -> list[InferenceDelta]:
        """Take a line.

        Raises:
            InferenceError: for an error that the provider tells.
        """
        if has_failed(data) or name == "error":
            raise self.failed(data)
        return self._reader.take(data)

    def response(self) -> InferenceResponse:
        """Return the whole answer.

        Raises:
            InferenceError: when the answer does not say that it is done.
        """
        if not self._reader.has_ended:
            raise self.cut_short("it does not say that it is done")
        return self._reader.response()
