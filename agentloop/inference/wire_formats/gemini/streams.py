"""Streams of generateContent, as server-sent events.

Source: https://ai.google.dev/api/generate-content#method:-models.streamgeneratecontent
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentloop.inference.wire_formats.gemini.answers import AnswerReader
from agentloop.inference.wire_formats.gemini.responses import has_failed
from agentloop.inference.wire_formats.stream_decoder import JsonEventDecoder, PlainDecoder
from agentloop.values.inference_delta import InferenceDelta
from agentloop.values.inference_response import InferenceResponse


class GeminiStreamDecoder(JsonEventDecoder):
    """Reads one streamed answer."""

    def __init__(self, plain: PlainDecoder, headers: Mapping[str, str]) -> None:
        super().__init__(plain, headers)
        self._reader = AnswerReader(self.builder)

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
