"""What all modes share: validation of calls, and calls and results rendered as plain messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from itertools import chain

from attrs import evolve

from agentloop.contracts.can_use_mode import ToolCallValidation
from agentloop.errors import InvalidArguments, MalformedArguments, ToolDefinitionError
from agentloop.tools.validation import validator_of
from agentloop.values.inference import FinishReason, InferenceRequest
from agentloop.values.messages import Message
from agentloop.values.parts import Text
from agentloop.values.tool_calls import ContentPart, ToolCall, ToolExchange, ToolSpec, parse_arguments
from agentloop.values.value import encode_each


def validate_call(call: ToolCall, tools: Sequence[ToolSpec]) -> ToolCallValidation:
    """Check whether a call names an offered tool and its arguments satisfy the tool's schema; nothing is executed."""
    spec = next((spec for spec in tools if spec.name == call.name), None)
    # The messages name valid alternatives: they are sent to the model, which corrects its call.
    if spec is None:
        return ToolCallValidation(is_valid=False, error_message=_unknown_tool_message(call.name, tools))
    try:
        arguments = parse_arguments(call.arguments_json)
        validator_of(spec).validate(arguments)
    except (MalformedArguments, InvalidArguments, ToolDefinitionError) as error:
        return ToolCallValidation(is_valid=False, error_message=str(error))
    return ToolCallValidation(is_valid=True, arguments=arguments)


def _unknown_tool_message(name: str, tools: Sequence[ToolSpec]) -> str:
    names = [spec.name for spec in tools]
    closest = get_close_matches(name, names, n=1)
    hint = f", did you mean {closest[0]!r}?" if closest else ""
    return f"there is no tool {name!r}{hint}; the tools are {', '.join(names) or 'none'}"


MessageRenderer = Callable[[Message], Sequence[Message]]
"""Renders one message as plain messages: the calls of an assistant's message as text, their results as a user's message."""


def render_messages(request: InferenceRequest, fingerprint: str, render: MessageRenderer) -> InferenceRequest:
    """Return the request with its messages rendered. Each message is rendered once, and the result is cached with it.

    Args:
        request: the request.
        fingerprint: names the renderer in the cache.
        render: a pure function.
    """
    rendered = chain.from_iterable(encode_each(request.messages, fingerprint, render))
    return evolve(request, messages=tuple(rendered))


def results_message(results: Sequence[tuple[str, ToolExchange]]) -> Message:
    """Return the user's message with the results of calls: for each exchange its text, then the media of its result.

    Args:
        results: each exchange with the text of its result.
    """
    content: list[str | ContentPart] = []
    for text, exchange in results:
        # Adjacent texts are joined: only media separates them into parts.
        if content and isinstance(content[-1], str):
            content[-1] = f"{content[-1]}\n{text}"
        else:
            content.append(text)
        content.extend(part for part in exchange.execution.parts if not isinstance(part, Text))
    return Message.user(*content)


# A server that does not parse the text cannot know that it contains calls, and reports an ordinary end.
_REGULAR_ENDS = frozenset({FinishReason.STOP, FinishReason.UNKNOWN, FinishReason.OTHER})


def finish_with_calls(reason: FinishReason) -> FinishReason:
    """Return the finish reason of a response whose text contained calls; an irregular end, such as `LENGTH`, remains."""
    return FinishReason.TOOL_CALLS if reason in _REGULAR_ENDS else reason
