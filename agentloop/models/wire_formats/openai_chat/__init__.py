"""The wire format `openai-chat`: OpenAI's Chat Completions, which many other services implement."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy

from agentloop.models.config import LLMConfig
from agentloop.models.wire_formats.fields import RequestCache
from agentloop.models.wire_formats.openai_chat.requests import NAME, encode_request
from agentloop.models.wire_formats.openai_chat.responses import ChatStreamDecoder, decode_response
from agentloop.models.wire_formats.wire_format import EncodedRequest, StreamDecoder, WireFormat
from agentloop.values.inference import InferenceRequest, InferenceResponse
from agentloop.values.json import EMPTY_OBJECT


class OpenAIChat(WireFormat):
    """OpenAI's Chat Completions."""

    _cache: RequestCache | None = None  # of an execution

    @property
    def name(self) -> str:
        """`openai-chat`."""
        return NAME

    def for_execution(self) -> OpenAIChat:
        """Return a copy that keeps what it has encoded of the last request."""
        bound = copy(self)  # also of a subclass
        bound._cache = RequestCache()  # noqa: SLF001  # its own class
        return bound

    def encode_request(self, request: InferenceRequest, config: LLMConfig, *, stream: bool = False) -> EncodedRequest:
        """Encode a request.

        Raises:
            BadRequest: when Chat Completions has no encoding for a message; names the part.
        """
        return encode_request(request, config, stream=stream, cache=self._cache)

    def decode_response(self, status: int, headers: Mapping[str, str], body: bytes) -> InferenceResponse:
        """Decode a complete response.

        Raises:
            InferenceError: typed by status and body.
        """
        return decode_response(status, headers, body)

    def stream_decoder(self, headers: Mapping[str, str] = EMPTY_OBJECT) -> StreamDecoder:
        """Return a decoder for one streamed response."""
        return ChatStreamDecoder(decode_response, headers)
