"""Checking a call against the tools that were offered, without executing it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from itertools import chain

from attrs import evolve

from agentloop.contracts.can_use_mode import ToolCallValidation
from agentloop.errors import InvalidArguments, MalformedArguments, ToolDefinitionError
from agentloop.tools.validation import validator_of
from agentloop.values.inference import InferenceRequest
from agentloop.values.messages import Message
from agentloop.values.parts import Text
from agentloop.values.tool_calls import ContentPart, ToolCall, ToolExchange, ToolSpec, parse_arguments
from agentloop.values.value import encode_each


def validate_call(call: ToolCall, tools: Sequence[ToolSpec]) -> ToolCallValidation:
    """Say whether a call names an offered tool, with arguments that satisfy its schema."""
    spec = next((spec for spec in tools if spec.name == call.name), None)
    if spec is None:
        return ToolCallValidation(is_valid=False, error_message=_unknown(call.name, tools))
    try:
        arguments = parse_arguments(call.arguments_json)
        validator_of(spec).validate(arguments)
    except (MalformedArguments, InvalidArguments, ToolDefinitionError) as error:
        return ToolCallValidation(is_valid=False, error_message=str(error))
    return ToolCallValidation(is_valid=True, arguments=arguments)


def _unknown(name: str, tools: Sequence[ToolSpec]) -> str:
    names = [spec.name for spec in tools]
    closest = get_close_matches(name, names, n=1)
    hint = f", did you mean {closest[0]!r}?" if closest else ""
    return f"there is no tool {name!r}{hint}; the tools are {', '.join(names) or 'none'}"


TellCalls = Callable[[Message], Sequence[Message]]
"""Turns an assistant's message that holds calls into messages without any: what the model said, then what it was told."""


def without_calls(request: InferenceRequest, mark: str, tell: TellCalls) -> InferenceRequest:
    """Return the request with its calls told as text; each message is translated once and kept with the message.

    Args:
        request: the request.
        mark: names the way of telling.
        tell: translates a message that holds calls; a pure function.
    """

    def translated(message: Message) -> Sequence[Message]:
        return tell(message) if message.exchanges else (message,)

    return evolve(request, messages=tuple(chain.from_iterable(encode_each(request.messages, mark, translated))))


def results_message(pieces: Sequence[tuple[str, ToolExchange]]) -> Message:
    """Make the message that tells results: for each exchange its text, and the media that its result holds.

    Args:
        pieces: each exchange, with the text by which its result is told.
    """
    content: list[str | ContentPart] = []
    for text, exchange in pieces:
        if content and isinstance(content[-1], str):
            content[-1] = f"{content[-1]}\n{text}"
        else:
            content.append(text)
        content.extend(part for part in exchange.execution.parts if not isinstance(part, Text))
    return Message.user(*content)
