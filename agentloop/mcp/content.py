"""Conversion between the protocol's JSON and our values: pure functions."""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from attrs import evolve

from agentloop.errors import InvalidDocument, NotJson
from agentloop.values.forms import form_text
from agentloop.values.json import format_json, freeze, parse_json, replace_lone_surrogates
from agentloop.values.labels import CLEAN, UNKNOWN, Label, Source, SourceKind
from agentloop.values.messages import Message
from agentloop.values.parts import Audio, Document, Image, Media, Text, detect_media_type
from agentloop.values.tool_calls import ContentPart, Effect, ToolResult

_NO_JSON = object()
_MAX_UNKNOWN = 100_000


def without_surrogates(data: Any) -> Any:
    """Return JSON data with U+FFFD for each lone surrogate: the SDK cannot write one, and its session ends.

    Raises:
        ValueError: for data that has no JSON form, such as NaN.
        TypeError: the same.
    """
    document = format_json(data)
    replaced = replace_lone_surrogates(document)
    return data if replaced is document else parse_json(replaced)


def parse_effect(annotations: Mapping[str, Any] | None) -> Effect:
    """Return the effect of a tool by its annotations; `Effect.EFFECT` unless they promise less."""
    # Only a literal true counts: a malformed hint must not make a call repeatable.
    hints = annotations or {}
    if hints.get("readOnlyHint") is True:
        return Effect.PURE
    return Effect.IDEMPOTENT if hints.get("idempotentHint") is True else Effect.EFFECT


def format_effect(effect: Effect) -> dict[str, bool]:
    """Return the annotations for an effect; the inverse of `parse_effect`."""
    return {"readOnlyHint": effect is Effect.PURE, "idempotentHint": effect is not Effect.EFFECT}


def parse_result(response: Mapping[str, Any]) -> ToolResult:
    """Convert the response to a call: its structured content is the value where there is any.

    The model receives the content as the server wrote it, and the structured content beside it. Servers repeat structured content as
    text for older clients; the model receives the text alone then.

    Args:
        response: a `CallToolResult`.
    """
    result = _parse_result(response)
    label = parse_label(response.get("_meta"))
    return evolve(result, label=label) if label.is_foreign else result


ORIGIN: Final = "agentloop/origin"
"""The member of `_meta` in which we name who else had a part in a result."""


def parse_label(meta: object) -> Label:
    """Return who else had a part in a result by the word of its server, which can only make it more foreign.

    Args:
        meta: the `_meta` of the result: our own member, or `ifc` with an `integrity` other than `trusted`.
    """
    if not isinstance(meta, Mapping):
        return CLEAN
    label, names, flow = CLEAN, meta.get(ORIGIN), meta.get("ifc")
    if names is not None:
        listed = names if isinstance(names, list | tuple) else ()
        label |= Label([Source(SourceKind.SERVER, name[:100]) for name in listed if isinstance(name, str)])
        label |= CLEAN if label.is_foreign else UNKNOWN
    if flow is not None and not (isinstance(flow, Mapping) and flow.get("integrity") == "trusted"):
        label |= UNKNOWN
    return label


def format_label(label: Label | None) -> dict[str, Any]:
    """Return the members of `_meta` that name who else had a part in a result; the inverse of `parse_label`."""
    return {ORIGIN: [str(source) for source in label.sources]} if label is not None and label.is_foreign else {}


def _parse_result(response: Mapping[str, Any]) -> ToolResult:
    parts = [*_parse_blocks(response.get("content") or ())]
    structured = response.get("structuredContent")
    if structured is None:
        return _result(parts)
    result = ToolResult(structured)  # frozen first: only JSON can be formatted
    written = format_json(result.value).decode()
    texts = [part.text for part in parts if isinstance(part, Text)]
    shown = parts if _repetitions(texts, structured) else [*parts, Text(written)]
    if all(isinstance(part, Text) for part in shown):
        text = _join_text(shown)
        return result if text == written else ToolResult(structured, (Text(text),))
    return ToolResult(structured, tuple(shown))


def _repetitions(texts: Sequence[str], structured: Any) -> frozenset[str]:
    """Return the texts that only repeat structured content."""
    values = [structured]
    # SDKs wrap a result that is no object in {"result": …}, and write each item of a list as a text of its own.
    if isinstance(structured, Mapping) and structured.keys() == {"result"}:
        values.append(structured["result"])
    parsed = [_parse_text(text) for text in texts]
    if any(isinstance(value, list | tuple) and value and [*value] in (parsed, texts) for value in values):
        return frozenset(texts)
    return frozenset(text for text, value in zip(texts, parsed, strict=True) if value in values or text in values)


def _parse_text(text: str) -> Any:
    try:
        return parse_json(text)
    except (InvalidDocument, ValueError, RecursionError):
        return _NO_JSON


def parse_error(response: Mapping[str, Any]) -> str:
    """Return the message of a response that is an error."""
    parts = [*_parse_blocks(response.get("content") or ())]
    text = "\n".join(part.text if isinstance(part, Text) else _name_media(part) for part in parts)
    structured = response.get("structuredContent")
    if structured is not None and not _repetitions(text.splitlines(), structured) | _repetitions([text], structured):
        return "\n".join(filter(None, [text, form_text(structured)]))
    if text:
        return text
    return "the tool reported an error without a message"


def parse_resource(response: Mapping[str, Any]) -> ToolResult:
    """Convert the response to `resources/read`."""
    contents = response.get("contents") or ()
    blocks = [{"type": "resource", "resource": content} for content in contents]
    return parse_result({"content": blocks, "_meta": response.get("_meta")})


def parse_prompt(response: Mapping[str, Any]) -> ToolResult:
    """Convert the response to `prompts/get`: its messages, each under its role."""
    parts: list[ContentPart] = []
    for message in response.get("messages") or ():
        parts.append(Text(f"{message.get('role', 'user')}:"))
        parts.extend(_parse_blocks([message.get("content") or {}]))
    label = parse_label(response.get("_meta"))
    return evolve(_result(parts), label=label) if label.is_foreign else _result(parts)


def format_blocks(result: ToolResult) -> list[dict[str, Any]]:
    """Convert a result to content blocks of the protocol; `parse_result` reads them."""
    if result.content is None:
        value = result.value
        text = value if isinstance(value, str) else replace_lone_surrogates(format_json(value)).decode()
        return [{"type": "text", "text": text}]
    return [_format_block(part) for part in result.content]


def format_contents(uri: str, result: Any, media_type: str) -> dict[str, Any]:
    """Convert what a resource returns to its content.

    Args:
        uri: the address of the resource.
        result: text, bytes, a part with text or data, or JSON data.
        media_type: the type of the data; empty for that of the result.

    Raises:
        NotJson: when it is none of these.
    """
    match result:
        case str() | Text():
            kind, text = "text/plain", result if isinstance(result, str) else result.text
            return {"uri": uri, "mimeType": media_type or kind, "text": text}
        case bytes():
            kind, data = "application/octet-stream", result
        case Media(data=bytes() as data):
            kind = result.media_type
        case _:
            text = format_json(freeze(result)).decode()
            return {"uri": uri, "mimeType": media_type or "application/json", "text": text}
    kind = media_type or kind
    if kind.startswith("text/") and (decoded := _decode(data)) is not None:
        return {"uri": uri, "mimeType": kind, "text": decoded}
    return {"uri": uri, "mimeType": kind, "blob": b64encode(data).decode()}


def _decode(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def format_messages(result: Any) -> list[dict[str, Any]]:
    """Convert what a prompt returns to messages of the protocol, which have one part each.

    Args:
        result: a text, a part, a message, or a list of these.

    Raises:
        NotJson: when it is none of these.
    """
    messages: list[dict[str, Any]] = []
    for item in result if isinstance(result, list | tuple) else [result]:
        message = (
            item
            if isinstance(item, Message)
            else Message.user(item)
            if isinstance(item, str | Text | Image | Audio | Document)
            else None
        )
        if message is None or message.role == "system":
            raise NotJson(
                f"a prompt returns texts, parts and messages of users and assistants, not {type(item).__name__}"
            )
        for part in message.parts:
            if not isinstance(part, Text | Media):
                raise NotJson(f"a message of a prompt has text and media, not {type(part).__name__}")
            messages.append({"role": message.role, "content": _format_block(part)})
    return messages


def _format_block(part: ContentPart) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if part.data is None:
        link = part.url or f"file-id:{part.file_id}"
        # A part without data is known to a provider by its URL or id only.
        return {"type": "resource_link", "uri": link, "name": part.name or link}
    data = b64encode(part.data).decode()
    if isinstance(part, Image | Audio):
        return {"type": "image" if isinstance(part, Image) else "audio", "data": data, "mimeType": part.media_type}
    resource = {"uri": f"document:{part.name}", "blob": data, "mimeType": part.media_type}
    return {"type": "resource", "resource": resource}


def _parse_blocks(blocks: Iterable[Any]) -> Iterable[ContentPart]:
    for block in blocks:
        match block:
            case {"type": "text", "text": str(text)}:
                yield Text(text)
            case {"type": "image" | "audio" as kind, "data": str(data)}:
                yield _parse_media(data, block.get("mimeType") or "", Image if kind == "image" else Audio)
            case {"type": "resource_link", "uri": str(uri)}:
                yield Text(_format_link(uri, block))
            case {"type": "resource", "resource": {"text": str(text)}}:
                yield Text(text)
            case {"type": "resource", "resource": {"blob": str(data)}}:
                resource = block["resource"]
                media_type = resource.get("mimeType") or "application/octet-stream"
                yield _parse_media(data, media_type, _media_class(media_type), str(resource.get("uri") or ""))
            case _:
                # A block of a later revision of the protocol is shown to the model as it is.
                yield Text(form_text(block, _MAX_UNKNOWN))


def _name_media(part: Media) -> str:
    return f"[{type(part).__name__.lower()} {part.media_type}, {len(part.data or b''):,} bytes]"


def _media_class(media_type: str) -> type[Image | Audio | Document]:
    main_type = media_type.partition("/")[0]
    return Image if main_type == "image" else Audio if main_type == "audio" else Document


def _parse_media(data: str, media_type: str, kind: type[Image | Audio | Document], name: str = "") -> ContentPart:
    try:
        raw = b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return Text(f"[{kind.__name__.lower()} that cannot be read: it is not base64]")
    # A server may leave the type out; the bytes then tell it, if they are of this kind.
    detected = "" if media_type else detect_media_type(raw)
    if detected and _media_class(detected) is not kind:
        detected = ""
    return kind(media_type=media_type or detected or "application/octet-stream", data=raw, name=name)


def _format_link(uri: str, block: Mapping[str, Any]) -> str:
    details = [block.get("title") or block.get("name"), block.get("mimeType"), block.get("description")]
    description = ", ".join(str(detail) for detail in details if detail)
    return f"[resource {uri}{f': {description}' if description else ''}]"


def _result(parts: Sequence[ContentPart]) -> ToolResult:
    if all(isinstance(part, Text) for part in parts):
        return ToolResult(_join_text(parts))
    return ToolResult([_describe(part) for part in parts], tuple(parts))


def _join_text(parts: Sequence[ContentPart]) -> str:
    return "\n".join(part.text for part in parts if isinstance(part, Text))


def _describe(part: ContentPart) -> dict[str, Any]:
    """Describe a part for the program; the data itself is in the content."""
    if isinstance(part, Media):
        return {"type": type(part).__name__.lower(), "media_type": part.media_type, "bytes": len(part.data or b"")}
    return {"type": "text", "text": part.text}
