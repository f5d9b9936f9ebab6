"""OpenAI's Chat Completions, and the many services that speak it."""

from __future__ import annotations

from collections.abc import Mapping

from agentloop.inference.config import LLMConfig
from agentloop.inference.wire_formats.openai_chat.requests import encode_request
from agentloop.inference.wire_formats.openai_chat.responses import ChatStreamDecoder, decode_response
from agentloop.inference.wire_formats.stream_decoder import StreamDecoder
from agentloop.inference.wire_formats.wire_format import EncodedRequest, WireFormat
from agentloop.values.inference import InferenceRequest, InferenceResponse
from agentloop.values.json import EMPTY_OBJECT


class OpenAIChat(WireFormat):
    """OpenAI's Chat Completions."""

    @property
    def name(self) -> str:
        """`openai-chat`."""
        return "openai-chat"

    def encode_request(self, request: InferenceRequest, config: LLMConfig, *, stream: bool = False) -> EncodedRequest:
        """Spell a request.

        Raises:
            BadRequest: when a message holds what Chat Completions cannot carry; names the part.
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
        return ChatStreamDecoder(decode_response, headers)
