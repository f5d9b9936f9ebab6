"""A conversation as plain text."""

from __future__ import annotations

from collections.abc import Iterable

from agentloop.values.message import Message, Part
from agentloop.values.parts import Media, ProviderPart, Reasoning, Text
from agentloop.values.tool_execution import ContentPart, ToolExchange


def transcript(messages: Iterable[Message]) -> str:
    """Write messages down as text: who said what, which tools were called and what came of it.

    Reasoning is left out, and of media only their kind is told.
    """
    return "\n\n".join(f"{message.role}:\n{_said(message)}" for message in messages)


def _said(message: Message) -> str:
    return "\n".join(text for part in message.parts if (text := _text(part)))


def _text(part: Part) -> str:
    match part:
        case Reasoning() | ProviderPart():
            return ""
        case ToolExchange(call, execution):
            told = " ".join(map(_content, execution.parts))
            return f"[called {call.name} with {call.arguments_json or '{}'}; {execution.status.value}: {told}]"
        case _:
            return _content(part)


def _content(part: ContentPart) -> str:
    if isinstance(part, Text):
        return part.text
    assert isinstance(part, Media)  # noqa: S101  # there is no other content
    return f"[{type(part).__name__.lower()} {part.name or part.url or part.media_type}]"
