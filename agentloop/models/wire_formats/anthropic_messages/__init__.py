"""The wire format `anthropic-messages`: Anthropic's Messages API, which some other services implement."""

from __future__ import annotations

from collections.abc import Mapping

from agentloop.models.config import LLMConfig
from agentloop.models.wire_formats.anthropic_messages.content import NAME
from agentloop.models.wire_formats.anthropic_messages.requests import encode_request
from agentloop.models.wire_formats.anthropic_messages.responses import MessageStreamDecoder, decode_response
from agentloop.models.wire_formats.wire_format import EncodedRequest, StreamDecoder, WireFormat
from agentloop.values.inference import InferenceRequest, InferenceResponse
from agentloop.values.json import EMPTY_OBJECT


class AnthropicMessages(WireFormat):
    """Anthropic's Messages API."""

    @property
    def name(self) -> str:
        """`anthropic-messages`."""
        return NAME

    def encode_request(self, request: InferenceRequest, config: LLMConfig, *, stream: bool = False) -> EncodedRequest:
        """Encode a request.

        Raises:
            BadRequest: when the Messages API has no encoding for something in the request; names the part.
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
        return MessageStreamDecoder(decode_response, headers)
