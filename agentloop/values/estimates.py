"""Estimates of the tokens of messages and requests, from their length in bytes."""

from __future__ import annotations

from attrs import define

from agentloop.values.inference import InferenceRequest
from agentloop.values.json import format_json
from agentloop.values.messages import Message, ResponsePart
from agentloop.values.parts import Image, Media, ProviderPart, Reasoning, Text
from agentloop.values.reprs import ShownByField
from agentloop.values.tool_calls import ToolCall, ToolExchange, ToolSpec

BYTES_PER_TOKEN = 4
"""The approximate bytes of English text or JSON per token, in the vocabularies of current models."""
MIN_BYTES_PER_TOKEN = 3
"""The same for dense text such as numeric JSON. Reservations use it, since they must not be too small."""
TOKENS_PER_MESSAGE = 8
"""The approximate tokens of roles and separators."""
_IMAGE_BYTES = 1_600 * BYTES_PER_TOKEN  # providers count pixels, and scale images down to about 1,600 tokens


def length(text: str) -> int:
    """Return the length of a text in bytes."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def message_length(message: Message) -> int:
    """Return the approximate length of a message in bytes, as a model reads it."""
    return sum(map(part_length, message.parts))


def part_length(part: object) -> int:
    """Return the approximate length of a part in bytes; images count with a fixed length."""
    match part:
        case Text(text) | Reasoning(text):
            size = length(text)
        case ToolExchange():
            size = call_length(part.call) + length(part.execution.text) + _media_length(part)
        case ToolCall():
            size = call_length(part)
        case Media(data=bytes() as data) if not isinstance(part, Image):
            size = len(data)
        case Media():
            size = _IMAGE_BYTES
        case ProviderPart():
            size = len(format_json(part.payload))
        case _:
            size = 0
    return size


def _media_length(exchange: ToolExchange) -> int:
    """Return the length of the media that a tool returned, which count like those of a user."""
    return sum([part_length(part) for part in exchange.execution.content or () if isinstance(part, Media)])


def call_length(call: ToolCall) -> int:
    """Return the length of a call's name and arguments in bytes."""
    return length(call.name) + length(call.arguments_json)


def tools_length(tools: tuple[ToolSpec, ...]) -> int:
    """Return the approximate length of the tool definitions in bytes."""
    return sum(len(spec.name) + length(spec.description) + len(format_json(spec.parameters)) for spec in tools)


def parts_length(parts: tuple[ResponsePart, ...]) -> int:
    """Return the approximate length of the parts of a response in bytes."""
    return sum(map(part_length, parts))


@define(eq=False, repr=False)
class RequestSize(ShownByField):
    """Estimates the size of the requests of one execution. It measures only messages that the last request did not have."""

    _messages: tuple[Message, ...] = ()
    _bytes: int = 0
    _tools: tuple[ToolSpec, ...] = ()
    _tools_bytes: int = 0

    def tokens(self, request: InferenceRequest) -> int:
        """Return the estimated tokens of a request; rather too many than too few."""
        known = len(self._messages)
        # A history that was compiled anew does not extend the measured one; its last measured message differs then.
        if known and (len(request.messages) < known or request.messages[known - 1] is not self._messages[-1]):
            known, self._bytes = 0, 0
        self._bytes += sum(map(message_length, request.messages[known:]))
        self._messages = request.messages
        if request.tools is not self._tools:
            self._tools, self._tools_bytes = request.tools, tools_length(request.tools)
        schema = request.response_format.schema if request.response_format is not None else None
        schema_bytes = len(format_json(schema)) if schema is not None else 0
        size = self._bytes + self._tools_bytes + length(request.system_prompt) + schema_bytes
        return -(-size // MIN_BYTES_PER_TOKEN) + TOKENS_PER_MESSAGE * (len(request.messages) + 1)


def message_tokens(message: Message) -> int:
    """Return the estimated tokens of one message."""
    return TOKENS_PER_MESSAGE + -(-message_length(message) // BYTES_PER_TOKEN)
