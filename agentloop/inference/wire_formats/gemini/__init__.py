"""Gemini's generateContent, of the Gemini API and of Vertex AI."""

from __future__ import annotations

from collections.abc import Mapping

from agentloop.inference.config import LLMConfig
from agentloop.inference.wire_formats.gemini.requests import encode_request
from agentloop.inference.wire_formats.gemini.responses import GeminiStreamDecoder, decode_response
from agentloop.inference.wire_formats.stream_decoder import StreamDecoder
from agentloop.inference.wire_formats.wire_format import EncodedRequest, WireFormat
from agentloop.values.inference import InferenceRequest, InferenceResponse
from agentloop.values.json import EMPTY_OBJECT


class Gemini(WireFormat):
    """Gemini's generateContent."""

    @property
    def name(self) -> str:
        """`gemini`."""
        return "gemini"

    def encode_request(self, request: InferenceRequest, config: LLMConfig, *, stream: bool = False) -> EncodedRequest:
        """Spell a request.

        Raises:
            BadRequest: when an option spells what the request does.
        """
        return encode_request(request, config, stream=stream)

    def decode_response(self, status: int, headers: Mapping[str, str], body: bytes) -> InferenceResponse:
        """Read an answer.

        Raises:
            InferenceError: typed by status and body.
        """
        return decode_response(status, headers, body)

    def stream_decoder(self, headers: Mapping[str, str] = EMPTY_OBJECT) -> StreamDecoder:
        """Return a reader of one streamed answer."""
        return GeminiStreamDecoder(decode_response, headers)
