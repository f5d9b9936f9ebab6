"""Messages as segments of bytes, each encoded once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from agentloop.errors import BadRequest
from agentloop.inference.wire_formats.anthropic_messages.blocks import (
    FORMAT,
    call_block,
    content_block,
    own_block,
    own_data,
    text_block,
    thinking_block,
)
from agentloop.inference.wire_formats.call_ids import turn_ids
from agentloop.inference.wire_formats.tool_names import wire_name
from agentloop.values.encode_once import encode_each
from agentloop.values.json_text import format_json
from agentloop.values.message import Message, Part
from agentloop.values.parts import Audio, Document, Image, ProviderPart, Reasoning, Text
from agentloop.values.tool_execution import ContentPart, ToolExchange

_IDS = f"{FORMAT} ids"
_THOUGHTS = frozenset({"thinking", "redacted_thinking"})


def encode_messages(messages: Sequence[Message]) -> list[bytes]:
    """Spell messages: one segment for each that holds something.

    An assistant's message becomes one of the assistant, with its blocks in the order of the parts, and one of the user with
    the results. Ids that an earlier turn has used are told apart by the place of the message, since the provider wants them
    unique within the whole conversation; that place does not change while the conversation grows.

    Raises:
        BadRequest: when a message holds what Messages cannot carry; names the part.
    """
    segments = encode_each(messages, FORMAT, _segment)
    seen: set[str] = set()
    for place, ids in enumerate(encode_each(messages, _IDS, wire_ids)):
        if not seen.isdisjoint(ids):
            others = _other_ids(ids, place, seen)
            segments[place] = messages[place].encoded((FORMAT, others), partial(_segment, ids=others))
            seen.update(others)
        seen.update(ids)
    return [segment for segment in segments if segment]


def wire_ids(message: Message) -> tuple[str, ...]:
    """Return the ids of a message's calls as the provider takes them, different from each other."""
    exchanges = message.exchanges
    return tuple(map(wire_name, turn_ids(exchanges))) if exchanges else ()


def _other_ids(ids: Sequence[str], place: int, seen: set[str]) -> tuple[str, ...]:
    others: list[str] = []
    for call_id in ids:
        other = call_id
        while other in seen or other in others or (other != call_id and other in ids):
            other = f"{other}_{place}"
        others.append(other)
    return tuple(others)


def _segment(message: Message, ids: Sequence[str] | None = None) -> bytes:
    if message.role == "assistant":
        spelled = _assistant(message, wire_ids(message) if ids is None else ids)
    else:
        content = [part for part in message.parts if isinstance(part, Text | Image | Audio | Document)]
        spelled = [_message(message.role, _blocks(content, f"a message of the {message.role}"))]
    return b",".join(format_json(one) for one in spelled if one["content"])


def _message(role: str, content: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"role": role, "content": content}


def _assistant(message: Message, ids: Sequence[str]) -> list[dict[str, Any]]:
    left = iter(ids)
    blocks: list[Mapping[str, Any]] = []
    results: list[Mapping[str, Any]] = []
    for part in message.parts:
        if isinstance(part, ToolExchange):
            call_id = next(left)
            blocks.append(call_block(part.call, call_id))
            results.append(_result(part, call_id))
        else:
            block = _said(part)
            if block is not None:
                blocks.append(block)
    while blocks and blocks[-1]["type"] in _THOUGHTS:  # the provider refuses a message that ends with thoughts
        blocks.pop()
    return [_message("assistant", blocks), _message("user", results)]


def _said(part: Part) -> Mapping[str, Any] | None:
    if isinstance(part, Text):
        return text_block(part)
    if isinstance(part, Reasoning):
        return thinking_block(part)
    if isinstance(part, ProviderPart):
        return own_block(part)
    raise BadRequest(
        f"Messages cannot carry {type(part).__name__} in a message of the assistant; leave it out, or use a wire format "
        "that can"
    )


def _result(exchange: ToolExchange, call_id: str) -> dict[str, Any]:
    execution = exchange.execution
    result: dict[str, Any] = {"type": "tool_result", "tool_use_id": call_id}
    content = _blocks(execution.parts, f"the result of the tool {execution.name!r}")
    if content:
        result["content"] = content
    if execution.has_error:
        result["is_error"] = True
        if not content:  # an error has to say something
            result["content"] = execution.error_message.strip() or execution.status.value
    family = own_data(exchange.call).get("toolset_name")
    return {**result, "toolset_name": family} if family else result


def _blocks(parts: Iterable[ContentPart], where: str) -> list[Mapping[str, Any]]:
    return [block for block in (content_block(part, where) for part in parts) if block is not None]
