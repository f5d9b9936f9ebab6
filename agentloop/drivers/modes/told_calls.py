"""Conversations for models that have no tool API: calls and their results as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

from attrs import evolve

from agentloop.values.encode_once import encode_each
from agentloop.values.inference_request import InferenceRequest
from agentloop.values.message import Message
from agentloop.values.parts import Text
from agentloop.values.tool_execution import ContentPart, ToolExchange

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
