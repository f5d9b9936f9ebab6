"""The wire format `openai-responses`: OpenAI's Responses API, used without state on the provider's side."""

from __future__ import annotations

from collections.abc import Mapping

from agentloop.models.config import LLMConfig
from agentloop.models.wire_formats.openai_responses.requests import NAME, encode_request
from agentloop.models.wire_formats.openai_responses.responses import ResponsesStreamDecoder, decode_response
from agentloop.models.wire_formats.wire_format import EncodedRequest, StreamDecoder, WireFormat
from agentloop.values.inference import InferenceRequest, InferenceResponse
from agentloop.values.json import EMPTY_OBJECT


class OpenAIResponses(WireFormat):
    """OpenAI's Responses API."""

    @property
    def name(self) -> str:
        """`openai-responses`."""
        return NAME

    def encode_request(self, request: InferenceRequest, config: LLMConfig, *, stream: bool = False) -> EncodedRequest:
        """Encode a request.

        Raises:
            BadRequest: when the Responses API has no encoding for a message or an option; names it.
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
        return ResponsesStreamDecoder(decode_response, headers)
