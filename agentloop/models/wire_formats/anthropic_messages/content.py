"""Content blocks of the Messages API and their conversion from and to the parts of messages and responses.

Source: https://docs.anthropic.com/en/api/messages
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from agentloop.errors import BadRequest
from agentloop.models.wire_formats.fields import arguments_json, bare_media_type, is_text_type, text_of, wire_name
from agentloop.values.json import EMPTY_OBJECT, JsonObject, freeze_object
from agentloop.values.messages import Message, ResponsePart
from agentloop.values.parts import Document, Image, ProviderPart, Reasoning, Text
from agentloop.values.tool_calls import ContentPart, ToolCall, arguments_object

NAME = "anthropic-messages"
BLOCK_KEY = "block"
"""The key in a text's provider data for a complete block, which is sent to this provider in place of the text."""
CONTAINER = "container"
"""The entry of a response with the container that its code ran in. In its parts, it is an opaque one without a block."""

_IMAGE_TYPES: Mapping[str, str] = {
    "image/jpeg": "image/jpeg",
    "image/jpg": "image/jpeg",
    "image/png": "image/png",
    "image/gif": "image/gif",
    "image/webp": "image/webp",
}
_PDF = "application/pdf"
# Entries without a value are not worth storing: the provider does not need them back.
_EMPTY_VALUES: tuple[object, ...] = (None, "", [], ())


def part_of(block: Mapping[str, Any]) -> ResponsePart | None:
    """Return the part for a block of an assistant message, or None for an empty block.

    Raises:
        TypeError, AttributeError, KeyError: when the block does not have the expected structure.
    """
    kind = block["type"]
    if kind == "text":
        # Citations, signatures and entries unknown today are sent back with the part.
        text, extra = text_of(block.get("text")), _provider_data(block, "type", "text")
        return Text(text, provider_data=extra) if text or extra else None
    if kind == "thinking":
        thinking, extra = text_of(block.get("thinking")), _provider_data(block, "type", "thinking")
        return Reasoning(thinking, provider_data=extra) if thinking or extra else None
    if kind == "tool_use":
        call_id, name = text_of(block.get("id")), text_of(block.get("name"))
        extra = _provider_data(block, "type", "id", "name", "input")
        return ToolCall(call_id, name, arguments_json(block.get("input")), provider_data=extra)
    return ProviderPart(NAME, block)


def _provider_data(block: Mapping[str, Any], *neutral: str) -> JsonObject:
    """Return, as provider data, the non-empty entries of a block except those that its neutral part contains."""
    extra = {name: value for name, value in block.items() if name not in neutral and value not in _EMPTY_VALUES}
    return freeze_object({NAME: extra}) if extra else EMPTY_OBJECT


def extra_entries(part: Text | Reasoning | Image | Document | ToolCall) -> Mapping[str, Any]:
    """Return the entries that this provider added to a part and expects back."""
    extra = part.provider_data.get(NAME)
    return extra if isinstance(extra, dict) else EMPTY_OBJECT


def opaque_block(part: ProviderPart) -> Mapping[str, Any] | None:
    """Return the block of a provider part, or None when it belongs to another provider."""
    block = part.payload
    if part.wire_format != NAME or not isinstance(block, dict) or not isinstance(block.get("type"), str):
        return None
    return block


def container_id(message: Message) -> object:
    """Return the id of the container that the code of a response ran in, or None."""
    own = [part.payload for part in message.parts if isinstance(part, ProviderPart) and part.wire_format == NAME]
    containers = [payload.get(CONTAINER) for payload in own if isinstance(payload, dict)]
    return next((container.get("id") for container in containers if isinstance(container, dict)), None)


def text_block(part: Text) -> Mapping[str, Any] | None:
    """Return the block for a text, or None for a blank text, which the provider refuses."""
    extra = extra_entries(part)
    block = extra.get(BLOCK_KEY)
    if isinstance(block, dict):
        return block
    return _with_extra({"type": "text", "text": part.text}, extra) if part.text.strip() else None


def thinking_block(part: Reasoning) -> Mapping[str, Any] | None:
    """Return the block for reasoning, or None without a signature of this provider, which would refuse it."""
    extra = extra_entries(part)
    return _with_extra({"type": "thinking", "thinking": part.text}, extra) if extra.get("signature") else None


def call_block(call: ToolCall, call_id: str) -> Mapping[str, Any]:
    """Return the block for a call, with this id."""
    block = {"type": "tool_use", "id": call_id, "name": wire_name(call.name), "input": arguments_object(call)}
    return _with_extra(block, extra_entries(call))


def content_block(part: ContentPart, container: str) -> Mapping[str, Any] | None:
    """Return the block for content of a user or a tool; None for a blank text.

    Args:
        part: the part.
        container: what contains the part, for the error message.

    Raises:
        BadRequest: when the Messages API does not support the part.
    """
    if isinstance(part, Text):
        return text_block(part)
    if isinstance(part, Image):
        return _with_extra({"type": "image", "source": _image_source(part, container)}, extra_entries(part))
    if isinstance(part, Document):
        block = {"type": "document", "source": _document_source(part, container)}
        if part.name:
            block["title"] = part.name
        return _with_extra(block, extra_entries(part))
    raise BadRequest(
        f"the Messages API does not support Audio, which {container} contains; remove it, or use a wire format that "
        "supports it"
    )


def _with_extra(block: dict[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    # The first copy of the block fixes the order of its entries, the second gives them precedence over the extra ones.
    return {**block, **extra, **block} if extra else block


def _reference(part: Image | Document) -> dict[str, Any] | None:
    if part.url is not None:
        return {"type": "url", "url": part.url}
    return {"type": "file", "file_id": part.file_id} if part.file_id is not None else None


def _image_source(part: Image, container: str) -> dict[str, Any]:
    reference = _reference(part)
    if reference is not None:
        return reference
    media_type = _IMAGE_TYPES.get(bare_media_type(part.media_type))
    if media_type is None:
        raise BadRequest(
            f"the Messages API does not support Image of type {part.media_type}, which {container} contains; it supports "
            "JPEG, PNG, GIF and WebP"
        )
    return {"type": "base64", "media_type": media_type, "data": base64.b64encode(part.data or b"").decode()}


def _document_source(part: Document, container: str) -> dict[str, Any]:
    reference = _reference(part)
    if reference is not None:
        return reference
    media_type, data = bare_media_type(part.media_type), part.data or b""
    # The provider supports two kinds of documents: PDF, and text of any type.
    if media_type == _PDF:
        return {"type": "base64", "media_type": _PDF, "data": base64.b64encode(data).decode()}
    try:
        if is_text_type(media_type):
            return {"type": "text", "media_type": "text/plain", "data": data.decode()}
        problem = "it supports PDF and text"
    except UnicodeDecodeError as error:
        problem = f"text must be UTF-8 ({error.reason})"
    raise BadRequest(
        f"the Messages API does not support Document of type {part.media_type}, which {container} contains; {problem}"
    )
