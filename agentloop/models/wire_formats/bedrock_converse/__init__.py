"""The wire format `bedrock-converse`: the Converse API of Amazon Bedrock."""

from __future__ import annotations

from collections.abc import Mapping

from agentloop.models.config import LLMConfig
from agentloop.models.wire_formats.bedrock_converse.content import NAME
from agentloop.models.wire_formats.bedrock_converse.requests import encode_request
from agentloop.models.wire_formats.bedrock_converse.responses import ConverseStreamDecoder, decode_response
from agentloop.models.wire_formats.wire_format import EncodedRequest, StreamDecoder, WireFormat
from agentloop.values.inference import InferenceRequest, InferenceResponse
from agentloop.values.json import EMPTY_OBJECT


class BedrockConverse(WireFormat):
    """The Converse API of Amazon Bedrock."""

    @property
    def name(self) -> str:
        """`bedrock-converse`."""
        return NAME

    def encode_request(self, request: InferenceRequest, config: LLMConfig, *, stream: bool = False) -> EncodedRequest:
        """Encode a request.

        Raises:
            BadRequest: when Converse has no encoding for something in the request; names the part or the option.
        """
        return encode_request(request, config, stream=stream)

    def decode_response(self, status: int, headers: Mapping[str, str], body: bytes) -> InferenceResponse:
        """Decode a complete response.

        Raises:
            InferenceError: typed by status, error type and body.
        """
        return decode_response(status, headers, body)

    def stream_decoder(self, headers: Mapping[str, str] = EMPTY_OBJECT) -> StreamDecoder:
        """Return a decoder for one streamed response."""
        return ConverseStreamDecoder(decode_response, headers)
