"""How long requests and messages are, for estimates of tokens."""

from __future__ import annotations

from attrs import define

from agentloop.values.inference import InferenceRequest
from agentloop.values.json import format_json
from agentloop.values.messages import Message, ResponsePart
from agentloop.values.parts import Image, Media, ProviderPart, Reasoning, Text
from agentloop.values.tool_calls import ToolCall, ToolExchange, ToolSpec

BYTES_PER_TOKEN = 4
"""About how many bytes of English text or JSON make one token, in the vocabularies that providers use today."""
MIN_BYTES_PER_TOKEN = 3
"""The same for dense text such as JSON of numbers: what is set aside must be enough."""
TOKENS_PER_MESSAGE = 8
"""What roles and separators cost, about."""
_IMAGE_BYTES = 1_600 * BYTES_PER_TOKEN
"""An image counts by its size in pixels; about 1,600 tokens is the most that providers make of one that they scale."""


def length(text: str) -> int:
    """Return the bytes of a text."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def message_length(message: Message) -> int:
    """Return about how many bytes of text a model reads of a message."""
    return sum(map(part_length, message.parts))


def part_length(part: object) -> int:
    """Return about how many bytes of text a part counts for."""
    match part:
        case Text(text) | Reasoning(text):
            size = length(text)
        case ToolExchange():
            size = call_length(part.call) + length(part.execution.text)
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


def call_length(call: ToolCall) -> int:
    """Return the bytes of a call's name and arguments."""
    return length(call.name) + length(call.arguments_json)


def tools_length(tools: tuple[ToolSpec, ...]) -> int:
    """Return the bytes of what a model is told about the tools."""
    return sum(len(spec.name) + length(spec.description) + len(format_json(spec.parameters)) for spec in tools)


def parts_length(parts: tuple[ResponsePart, ...]) -> int:
    """Return about how many bytes an answer has."""
    return sum(map(part_length, parts))


@define(eq=False)
class RequestSize:
    """Measures the requests of one execution, looking at new messages only."""

    _messages: tuple[Message, ...] = ()
    _bytes: int = 0
    _tools: tuple[ToolSpec, ...] = ()
    _tools_bytes: int = 0

    def tokens(self, request: InferenceRequest) -> int:
        """Return about how many tokens a request has, rather too many than too few."""
        known = len(self._messages)
        if known and (len(request.messages) < known or request.messages[known - 1] is not self._messages[-1]):
            known, self._bytes = 0, 0
        self._bytes += sum(map(message_length, request.messages[known:]))
        self._messages = request.messages
        if request.tools is not self._tools:
            self._tools, self._tools_bytes = request.tools, tools_length(request.tools)
        form = request.response_format
        schema = len(format_json(form.schema)) if form is not None and form.schema is not None else 0
        size = self._bytes + self._tools_bytes + length(request.system_prompt) + schema
        return -(-size // MIN_BYTES_PER_TOKEN) + TOKENS_PER_MESSAGE * (len(request.messages) + 1)


def message_tokens(message: Message) -> int:
    """Estimate the tokens of one message by its length; media that a tool returned count like a user's."""
    size = message_length(message)
    for part in message.parts:
        if isinstance(part, ToolExchange):
            size += sum(part_length(one) for one in part.execution.content or () if isinstance(one, Media))
    return TOKENS_PER_MESSAGE + -(-size // BYTES_PER_TOKEN)
