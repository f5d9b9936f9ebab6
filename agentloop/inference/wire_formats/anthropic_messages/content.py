"""Blocks of content: what messages and answers of this wire format are made of, and the parts that they become.

Source: https://docs.anthropic.com/en/api/messages
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from agentloop.errors import BadRequest
from agentloop.inference.wire_formats.fields import wire_name
from agentloop.values.json import EMPTY_OBJECT, JsonObject, format_json, freeze_object
from agentloop.values.messages import ResponsePart
from agentloop.values.parts import Document, Image, ProviderPart, Reasoning, Text
from agentloop.values.tool_calls import ContentPart, ToolCall, arguments_object

FORMAT = "anthropic-messages"
WHOLE = "block"
"""The key of a text's provider data that holds a whole block, which goes to this provider in place of the text."""

_IMAGES: Mapping[str, str] = {
    "image/jpeg": "image/jpeg",
    "image/jpg": "image/jpeg",
    "image/png": "image/png",
    "image/gif": "image/gif",
    "image/webp": "image/webp",
}
_PDF = "application/pdf"
_TEXTS = frozenset({"application/json", "application/xml", "application/yaml"})
_NOTHING: tuple[object, ...] = (None, "", [], ())


def part_of(block: Mapping[str, Any]) -> ResponsePart | None:
    """Return the part that a block of an assistant becomes, or None when there is nothing in it.

    Raises:
        TypeError: when the block is not one; `AttributeError` and `KeyError` likewise.
    """
    kind = block["type"]
    if kind == "text":
        text, own = text_of(block.get("text")), _own(block, "text")
        return Text(text, provider_data=own) if text or own else None
    if kind == "thinking":
        thoughts, own = text_of(block.get("thinking")), _own(block, "thinking")
        return Reasoning(thoughts, provider_data=own) if thoughts or own else None
    if kind == "tool_use":
        own = _own(block, "id", "name", "input")
        return ToolCall(
            text_of(block.get("id")), text_of(block.get("name")), input_json(block.get("input")), provider_data=own
        )
    return ProviderPart(FORMAT, block)


def text_of(value: object) -> str:
    """Return a text, or an empty one for anything else."""
    return value if isinstance(value, str) else ""


def input_json(arguments: Any) -> str:
    """Return the input of a call as JSON text: as it came in pieces, or encoded where it came as an object."""
    if arguments is None:
        return "{}"
    return arguments if isinstance(arguments, str) else format_json(arguments).decode()


def own_data(part: Text | Reasoning | Image | Document | ToolCall) -> Mapping[str, Any]:
    """Return what this provider gave besides the neutral part, and wants back with it."""
    own = part.provider_data.get(FORMAT)
    return own if isinstance(own, dict) else EMPTY_OBJECT


def own_block(part: ProviderPart) -> Mapping[str, Any] | None:
    """Return the block that a provider part is, or None when it belongs to another provider."""
    held = part.payload
    if part.wire_format != FORMAT or not isinstance(held, dict) or not isinstance(held.get("type"), str):
        return None
    return held


def text_block(part: Text) -> Mapping[str, Any] | None:
    """Spell a text, or return None for a blank one, which the provider refuses."""
    own = own_data(part)
    whole = own.get(WHOLE)
    if isinstance(whole, dict):
        return whole
    return _with_own({"type": "text", "text": part.text}, own) if part.text.strip() else None


def thinking_block(part: Reasoning) -> Mapping[str, Any] | None:
    """Spell reasoning, or return None for what this provider has not signed, which it would refuse."""
    own = own_data(part)
    return _with_own({"type": "thinking", "thinking": part.text}, own) if own.get("signature") else None


def call_block(call: ToolCall, call_id: str) -> Mapping[str, Any]:
    """Spell a call under this id."""
    spelled = {"type": "tool_use", "id": call_id, "name": wire_name(call.name), "input": arguments_object(call)}
    return _with_own(spelled, own_data(call))


def content_block(part: ContentPart, where: str) -> Mapping[str, Any] | None:
    """Spell what a user or a tool puts before the model; None for a blank text.

    Args:
        part: the part.
        where: the place it stands in, for the error.

    Raises:
        BadRequest: when Messages cannot carry it.
    """
    if isinstance(part, Text):
        return text_block(part)
    if isinstance(part, Image):
        return _with_own({"type": "image", "source": _image_source(part, where)}, own_data(part))
    if isinstance(part, Document):
        spelled = {"type": "document", "source": _document_source(part, where)}
        if part.name:
            spelled["title"] = part.name
        return _with_own(spelled, own_data(part))
    raise BadRequest(f"Messages cannot carry Audio, which {where} holds; leave it out, or use a wire format that can")


def _own(block: Mapping[str, Any], *known: str) -> JsonObject:
    """Keep what a block holds besides what its neutral part says."""
    held = {name: value for name, value in block.items() if name not in {"type", *known} and value not in _NOTHING}
    return freeze_object({FORMAT: held}) if held else EMPTY_OBJECT


def _with_own(spelled: dict[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Add what the provider wants back; it cannot replace what the part itself says."""
    return {**spelled, **own, **spelled} if own else spelled


def _reference(part: Image | Document) -> dict[str, Any] | None:
    if part.url is not None:
        return {"type": "url", "url": part.url}
    return {"type": "file", "file_id": part.file_id} if part.file_id is not None else None


def _image_source(part: Image, where: str) -> dict[str, Any]:
    by_reference = _reference(part)
    if by_reference is not None:
        return by_reference
    media_type = _IMAGES.get(_bare(part.media_type))
    if media_type is None:
        raise BadRequest(
            f"Messages cannot carry Image of type {part.media_type}, which {where} holds; it takes JPEG, PNG, GIF and WebP"
        )
    return {"type": "base64", "media_type": media_type, "data": base64.b64encode(part.data or b"").decode()}


def _document_source(part: Document, where: str) -> dict[str, Any]:
    by_reference = _reference(part)
    if by_reference is not None:
        return by_reference
    media_type, data = _bare(part.media_type), part.data or b""
    if media_type == _PDF:
        return {"type": "base64", "media_type": _PDF, "data": base64.b64encode(data).decode()}
    try:
        if media_type.startswith("text/") or media_type in _TEXTS:
            return {"type": "text", "media_type": "text/plain", "data": data.decode()}
        why = "it takes PDF and text"
    except UnicodeDecodeError as error:
        why = f"its text has to be UTF-8 ({error.reason})"
    raise BadRequest(f"Messages cannot carry Document of type {part.media_type}, which {where} holds; {why}")


def _bare(media_type: str) -> str:
    return media_type.partition(";")[0].strip().lower()
