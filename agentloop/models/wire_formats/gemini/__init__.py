"""The wire format `gemini`: generateContent of the Gemini API and of Vertex AI."""

from __future__ import annotations

from collections.abc import Mapping

from agentloop.models.config import LLMConfig
from agentloop.models.wire_formats.gemini.requests import NAME, encode_request
from agentloop.models.wire_formats.gemini.responses import GeminiStreamDecoder, decode_response
from agentloop.models.wire_formats.wire_format import EncodedRequest, StreamDecoder, WireFormat
from agentloop.values.inference import InferenceRequest, InferenceResponse
from agentloop.values.json import EMPTY_OBJECT


class Gemini(WireFormat):
    """Gemini's generateContent."""

    @property
    def name(self) -> str:
        """`gemini`."""
        return NAME

    def encode_request(self, request: InferenceRequest, config: LLMConfig, *, stream: bool = False) -> EncodedRequest:
        """Encode a request.

        Raises:
            BadRequest: when Gemini does not support a document, or `options.extra` repeats an entry of the body; names it.
            UnsupportedOption: when Gemini has no equivalent of an option.
        """
        return encode_request(request, config, stream=stream)

    def decode_response(self, status: int, headers: Mapping[str, str], body: bytes) -> InferenceResponse:
        """Decode a complete response.

        Raises:
            InferenceError: typed by status and body.
        """
        return decode_response(status, headers, body)

    def stream_decoder(self, headers: Mapping[str, str] = EMPTY_OBJECT) -> StreamDecoder:
        """Return a decoder for one streamed response."""
        return GeminiStreamDecoder(decode_response, headers)
