"""Content blocks of the Converse API and their conversion from and to the parts of messages and responses.

Source: https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_ContentBlock.html
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from typing import Any

from agentloop.errors import BadRequest
from agentloop.models.wire_formats.fields import arguments_json, text_of, wire_name
from agentloop.values.json import EMPTY_OBJECT, JsonObject, freeze_object
from agentloop.values.messages import ResponsePart
from agentloop.values.parts import Audio, Document, Image, ProviderPart, Reasoning, Text
from agentloop.values.tool_calls import ContentPart, ToolCall, arguments_object

NAME = "bedrock-converse"
BLOCK_KEY = "block"
"""The key in a text's provider data for a complete block, which is sent to this provider in place of the text."""
SERVER_CALL = "server_tool_use"
"""The type of a call that the provider runs itself."""
_SIGNATURE = "signature"
_S3 = "s3://"

_FORMATS: Mapping[str, tuple[str, str]] = {
    "image/png": ("image", "png"),
    "image/jpeg": ("image", "jpeg"),
    "image/jpg": ("image", "jpeg"),
    "image/gif": ("image", "gif"),
    "image/webp": ("image", "webp"),
    "application/pdf": ("document", "pdf"),
    "text/csv": ("document", "csv"),
    "text/html": ("document", "html"),
    "text/markdown": ("document", "md"),
    "application/json": ("document", "txt"),
    "application/xml": ("document", "txt"),
    "application/yaml": ("document", "txt"),
    "application/msword": ("document", "doc"),
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": ("document", "docx"),
    "application/vnd.ms-excel": ("document", "xls"),
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": ("document", "xlsx"),
    "video/mp4": ("video", "mp4"),
    "video/quicktime": ("video", "mov"),
    "video/x-matroska": ("video", "mkv"),
    "video/webm": ("video", "webm"),
    "video/x-flv": ("video", "flv"),
    "video/mpeg": ("video", "mpeg"),
    "video/x-ms-wmv": ("video", "wmv"),
    "video/3gpp": ("video", "three_gp"),
    "audio/mpeg": ("audio", "mp3"),
    "audio/mp3": ("audio", "mp3"),
    "audio/wav": ("audio", "wav"),
    "audio/x-wav": ("audio", "wav"),
    "audio/wave": ("audio", "wav"),
    "audio/vnd.wave": ("audio", "wav"),
    "audio/flac": ("audio", "flac"),
    "audio/x-flac": ("audio", "flac"),
    "audio/ogg": ("audio", "ogg"),
    "audio/opus": ("audio", "opus"),
    "audio/aac": ("audio", "aac"),
    "audio/mp4": ("audio", "mp4"),
    "audio/x-m4a": ("audio", "m4a"),
    "audio/webm": ("audio", "webm"),
}
"""The kind of the block and its format, by media type."""
_KINDS: Mapping[type[ContentPart], frozenset[str]] = {
    Image: frozenset({"image"}),
    Audio: frozenset({"audio"}),
    Document: frozenset({"document", "video"}),
}
"""The kinds of blocks that a part may become; a video is a `Document`."""


# --- responses -----------------------------------------------------------------------------------------------------


def part_of(block: Mapping[str, Any]) -> ResponsePart | None:
    """Return the part for a block of an assistant message, or None for an empty text.

    Raises:
        TypeError, AttributeError, KeyError: when the block does not have the expected structure.
    """
    if "text" in block:
        text = text_of(block["text"])
        return Text(text) if text else None
    if "toolUse" in block:
        call = block["toolUse"]
        # The provider runs its own tools; their calls and results are sent back to it and are nobody else's.
        if call.get("type") == SERVER_CALL:
            return ProviderPart(NAME, block)
        return ToolCall(text_of(call.get("toolUseId")), text_of(call.get("name")), arguments_json(call.get("input")))
    if "citationsContent" in block:
        cited = "".join(text_of(item.get("text")) for item in block["citationsContent"].get("content") or ())
        # Some models send citations apart from the text that they belong to.
        return Text(cited, provider_data={NAME: {BLOCK_KEY: block}}) if cited else ProviderPart(NAME, block)
    thought = block["reasoningContent"].get("reasoningText") if "reasoningContent" in block else None
    if thought is None:
        return ProviderPart(NAME, dict(block))
    return Reasoning(text_of(thought.get("text")), provider_data=_signature(thought.get(_SIGNATURE)))


def _signature(signature: object) -> JsonObject:
    return freeze_object({NAME: {_SIGNATURE: signature}}) if isinstance(signature, str) and signature else EMPTY_OBJECT


# --- requests ------------------------------------------------------------------------------------------------------


def text_block(part: Text) -> Mapping[str, Any] | None:
    """Return the block for a text, or None for a blank text, which the provider refuses."""
    block = _own_data(part.provider_data).get(BLOCK_KEY)
    if isinstance(block, dict):
        return block
    return {"text": part.text} if part.text.strip() else None


def reasoning_block(part: Reasoning) -> Mapping[str, Any] | None:
    """Return the block for reasoning, or None without a signature of this provider, which would refuse it."""
    signature = _own_data(part.provider_data).get(_SIGNATURE)
    if not isinstance(signature, str):
        return None
    return {"reasoningContent": {"reasoningText": {"text": part.text, _SIGNATURE: signature}}}


def call_block(call: ToolCall, call_id: str) -> Mapping[str, Any]:
    """Return the block for a call, with this id."""
    return {"toolUse": {"toolUseId": call_id, "name": wire_name(call.name), "input": arguments_object(call)}}


def opaque_block(part: ProviderPart) -> Mapping[str, Any] | None:
    """Return the block of a provider part, or None when it belongs to another provider."""
    return part.payload if part.wire_format == NAME and isinstance(part.payload, dict) else None


def _own_data(provider_data: Mapping[str, Any]) -> Mapping[str, Any]:
    data = provider_data.get(NAME)
    return data if isinstance(data, dict) else EMPTY_OBJECT


def content_block(part: ContentPart, container: str, name_of: Callable[[Document], str]) -> Mapping[str, Any] | None:
    """Return the block for content of a user or a tool; None for a blank text.

    Args:
        part: the part.
        container: what contains the part, for the error message.
        name_of: returns the name under which a document is sent.

    Raises:
        BadRequest: when Converse does not support the part.
    """
    if isinstance(part, Text):
        return text_block(part)
    # Every document takes its name, so that names and documents stay in step.
    name = name_of(part) if isinstance(part, Document) else ""
    media_type = _media_type(part)
    kind, media_format = _FORMATS.get(media_type, ("document", "txt") if media_type.startswith("text/") else ("", ""))
    if kind not in _KINDS[type(part)]:
        raise BadRequest(
            f"Converse does not support {type(part).__name__} of type {media_type or '(unknown)'}, which {container} "
            "contains; convert it to a type that Bedrock lists, or remove it"
        )
    block = {"format": media_format, "source": _source(part, container)}
    return {kind: {**block, "name": name} if kind == "document" else block}


def _source(part: Image | Audio | Document, container: str) -> dict[str, Any]:
    if part.data is not None:
        return {"bytes": base64.b64encode(part.data).decode()}
    if part.url is not None and part.url.startswith(_S3):
        return {"s3Location": {"uri": part.url}}
    how = "by file id" if part.url is None else "by a URL that is not s3://…"
    raise BadRequest(
        f"Converse does not support {type(part).__name__} {how}, which {container} contains; pass its data, or an s3:// URL"
    )


def _media_type(part: Image | Audio | Document) -> str:
    if part.media_type or part.url is None:
        return part.media_type.partition(";")[0].strip().lower()
    from mimetypes import guess_type  # noqa: PLC0415  # takes 3 ms to load

    return guess_type(part.url)[0] or ""


_REFUSED_CHARACTERS = re.compile(r"[^A-Za-z0-9\s()\[\]-]+")
_MAX_DOCUMENT_NAME = 150


def document_name(part: Document) -> str:
    """Return the name of a document in the characters that Converse accepts, without regard to other documents."""
    name = " ".join(_REFUSED_CHARACTERS.sub("-", part.name).split())
    return name[:_MAX_DOCUMENT_NAME].strip() or "document"
