"""Conversations in the notations of the ReAct pattern: thoughts, calls, observations and answers as text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import field, frozen

from agentloop.drivers.modes.react_decision import further_values
from agentloop.drivers.modes.react_text_reading import ACTION, ANSWER, INPUT, OBSERVATION, THOUGHT, label_of
from agentloop.drivers.modes.told_calls import results_message
from agentloop.inference.wire_formats.call_arguments import arguments_object
from agentloop.values.json_text import format_json
from agentloop.values.message import Message, Part
from agentloop.values.parts import ProviderPart, Reasoning, Text
from agentloop.values.tool_execution import ToolExchange

AS_WRITTEN = "as_written"
"""The metadata of a message that the model is to see as it wrote it."""


@frozen
class Said:
    """What an assistant's message says, as a decision.

    Attributes:
        thought: what it thought.
        answer: what it answered.
        further: what it gave for further fields.
        exchanges: its calls with their outcomes.
        kept: what a decision does not hold: media, and what a provider wants back.
    """

    thought: str
    answer: str
    further: Mapping[str, Any] = field(factory=dict)
    exchanges: tuple[ToolExchange, ...] = ()
    kept: tuple[Part, ...] = ()


def tell_as_json(message: Message) -> Sequence[Message]:
    """Return a message with its decision as a JSON object, and a user's message with the observations after it."""
    return _told(message, _as_json)


def tell_as_text(message: Message) -> Sequence[Message]:
    """Return a message with its decision in labelled lines, and a user's message with the observations after it."""
    return _told(message, _as_text)


def _told(message: Message, write: Callable[[Said], str]) -> Sequence[Message]:
    if message.role != "assistant" or message.metadata.get(AS_WRITTEN):
        return (message,)
    said = _said(message)
    told = Message.assistant(*said.kept, write(said))
    if not said.exchanges:
        return (told,)
    several = len(said.exchanges) > 1
    return told, results_message(
        [
            (f"{OBSERVATION}{f' {number} ({one.call.name})' if several else ''}: {one.execution.text}", one)
            for number, one in enumerate(said.exchanges, 1)
        ]
    )


def _said(message: Message) -> Said:
    thoughts = [part.text for part in message.parts if isinstance(part, Reasoning) and not part.provider_data]
    text = message.text
    if message.exchanges:
        thoughts, text = [*thoughts, text], ""
    return Said(
        "\n\n".join([thought for thought in thoughts if thought]),
        text,
        further_values(message.parts),
        message.exchanges,
        tuple([part for part in message.parts if _is_kept(part)]),
    )


def _is_kept(part: Part) -> bool:
    if isinstance(part, Reasoning):
        return bool(part.provider_data)
    if isinstance(part, ProviderPart):
        return not further_values([part])
    return not isinstance(part, Text | ToolExchange)


def _as_json(said: Said) -> str:
    made: dict[str, Any] = {"thought": said.thought, **said.further}
    calls = [{"tool": one.call.name, "args": arguments_object(one.call)} for one in said.exchanges]
    if len(calls) == 1:
        made |= {"type": "tool", **calls[0]}
    elif calls:
        made |= {"type": "tool", "calls": calls}
    else:
        made |= {"type": "final", "answer": said.answer}
    return format_json(made).decode()


def _as_text(said: Said) -> str:
    lines = [f"{THOUGHT}: {said.thought}"] if said.thought else []
    lines += [f"{label_of(name)}: {_line(value)}" for name, value in said.further.items()]
    for one in said.exchanges:
        arguments = format_json(arguments_object(one.call)).decode()
        lines += [f"{ACTION}: {one.call.name}", f"{INPUT}: {arguments}"]
    if not said.exchanges:
        lines.append(f"{ANSWER}: {said.answer}")
    return "\n".join(lines)


def _line(value: Any) -> str:
    return value if isinstance(value, str) else format_json(value).decode()
