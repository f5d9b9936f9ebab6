"""What servers answer, as values of ours: pure functions on the JSON of the protocol."""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentloop.values.json import format_json
from agentloop.values.parts import Audio, Document, Image, Media, Text
from agentloop.values.tool_calls import ContentPart, Effect, ToolResult


def effect_of(annotations: Mapping[str, Any] | None) -> Effect:
    """Return what a tool does to the world, as its server annotates it; an effect unless that says otherwise."""
    told = annotations or {}
    if told.get("readOnlyHint") is True:
        return Effect.PURE
    return Effect.IDEMPOTENT if told.get("idempotentHint") is True else Effect.EFFECT


def annotations_of(effect: Effect) -> dict[str, bool]:
    """Return the annotations that say this; what `effect_of` reads."""
    return {"readOnlyHint": effect is Effect.PURE, "idempotentHint": effect is not Effect.EFFECT}


def result_of(answer: Mapping[str, Any]) -> ToolResult:
    """Turn the answer to a call into a result: structured content where there is any, and what the model is shown.

    Args:
        answer: a `CallToolResult`.
    """
    parts = [*_parts(answer.get("content") or ())]
    structured = answer.get("structuredContent")
    only_text = all(isinstance(part, Text) for part in parts)
    if structured is not None:
        return ToolResult(structured, tuple(parts) if parts and not only_text else None)
    if only_text:
        return ToolResult(text_of(parts))
    return ToolResult([_described(part) for part in parts], tuple(parts))


def error_text(answer: Mapping[str, Any]) -> str:
    """Return what an answer that is an error says."""
    told = text_of([*_parts(answer.get("content") or ())])
    if told:
        return told
    structured = answer.get("structuredContent")
    return (
        format_json(structured).decode()
        if structured is not None
        else "the tool reported an error and did not say which"
    )


def resource_of(answer: Mapping[str, Any]) -> ToolResult:
    """Turn the answer to `resources/read` into a result."""
    return result_of({"content": [{"type": "resource", "resource": one} for one in answer.get("contents") or ()]})


def prompt_of(answer: Mapping[str, Any]) -> ToolResult:
    """Turn the answer to `prompts/get` into a result: its messages, each under its role."""
    messages = answer.get("messages") or ()
    parts: list[ContentPart] = []
    for message in messages:
        parts.append(Text(f"{message.get('role', 'user')}:"))
        parts.extend(_parts([message.get("content") or {}]))
    if all(isinstance(part, Text) for part in parts):
        return ToolResult(text_of(parts))
    return ToolResult([_described(part) for part in parts], tuple(parts))


def text_of(parts: Sequence[ContentPart]) -> str:
    """Return the text of parts, one under the other."""
    return "\n".join(part.text for part in parts if isinstance(part, Text))


def blocks_of(result: ToolResult) -> list[dict[str, Any]]:
    """Return a result of ours as blocks of the protocol; what `result_of` reads."""
    from base64 import b64encode  # noqa: PLC0415  # for servers only

    if result.content is None:
        value = result.value
        return [{"type": "text", "text": value if isinstance(value, str) else format_json(value).decode()}]
    blocks: list[dict[str, Any]] = []
    for part in result.content:
        if isinstance(part, Text):
            blocks.append({"type": "text", "text": part.text})
        elif part.data is None:
            link = part.url or f"file-id:{part.file_id}"
            blocks.append({"type": "resource_link", "uri": link, "name": part.name or link})
        elif isinstance(part, Image | Audio):
            kind = "image" if isinstance(part, Image) else "audio"
            blocks.append({"type": kind, "data": b64encode(part.data).decode(), "mimeType": part.media_type})
        else:
            held = {"uri": f"document:{part.name}", "blob": b64encode(part.data).decode(), "mimeType": part.media_type}
            blocks.append({"type": "resource", "resource": held})
    return blocks


def _parts(blocks: Iterable[Any]) -> Iterable[ContentPart]:
    for block in blocks:
        match block:
            case {"type": "text", "text": str(text)}:
                yield Text(text)
            case {"type": "image" | "audio" as kind, "data": str(data)}:
                yield _media(data, block.get("mimeType") or "", Image if kind == "image" else Audio)
            case {"type": "resource_link", "uri": str(uri)}:
                yield Text(_link(uri, block))
            case {"type": "resource", "resource": {"text": str(text)}}:
                yield Text(text)
            case {"type": "resource", "resource": {"blob": str(data)}}:
                held = block["resource"]
                kind = held.get("mimeType") or "application/octet-stream"
                yield _media(data, kind, _kind_of(kind), str(held.get("uri") or ""))
            case _:
                yield Text(format_json(block).decode())


def _kind_of(media_type: str) -> type[Image | Audio | Document]:
    main = media_type.partition("/")[0]
    return Image if main == "image" else Audio if main == "audio" else Document


def _media(data: str, media_type: str, kind: type[Image | Audio | Document], name: str = "") -> ContentPart:
    try:
        raw = b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return Text(f"[{kind.__name__.lower()} that cannot be read: it is not base64]")
    return kind(media_type=media_type or "application/octet-stream", data=raw, name=name)


def _link(uri: str, block: Mapping[str, Any]) -> str:
    told = [block.get("title") or block.get("name"), block.get("mimeType"), block.get("description")]
    about = ", ".join(str(one) for one in told if one)
    return f"[resource {uri}{f': {about}' if about else ''}]"


def _described(part: ContentPart) -> dict[str, Any]:
    """Describe a part for the program; what it holds stands in the content."""
    if isinstance(part, Media):
        return {"type": type(part).__name__.lower(), "media_type": part.media_type, "bytes": len(part.data or b"")}
    return {"type": "text", "text": part.text}
