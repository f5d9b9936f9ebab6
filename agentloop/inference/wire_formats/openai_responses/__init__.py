"""OpenAI's Responses API, used without state on the provider's side."""

from __future__ import annotations

from collections.abc import Mapping

from agentloop.inference.config import LLMConfig
from agentloop.inference.wire_formats.openai_responses.requests import NAME, encode_request
from agentloop.inference.wire_formats.openai_responses.responses import ResponsesStreamDecoder, decode_response
from agentloop.inference.wire_formats.stream_decoder import StreamDecoder
from agentloop.inference.wire_formats.wire_format import EncodedRequest, WireFormat
from agentloop.values.inference import InferenceRequest, InferenceResponse
from agentloop.values.json import EMPTY_OBJECT


class OpenAIResponses(WireFormat):
    """OpenAI's Responses API."""

    @property
    def name(self) -> str:
        """`openai-responses`."""
        return NAME

    def encode_request(self, request: InferenceRequest, config: LLMConfig, *, stream: bool = False) -> EncodedRequest:
        """Spell a request.

        Raises:
            BadRequest: when a message or an option is what the Responses API cannot carry; names it.
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
        return ResponsesStreamDecoder(decode_response, headers)
