"""Import and export of conversations in the format of the Messages API."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any, TypeAlias

from agentloop.errors import InvalidDocument
from agentloop.models.wire_formats.anthropic_messages.content import BLOCK_KEY, NAME, part_of
from agentloop.models.wire_formats.anthropic_messages.requests import encode_messages
from agentloop.models.wire_formats.fields import text_of
from agentloop.models.wire_formats.imported_calls import UNKNOWN_TIME, ImportedCalls, UnansweredCalls
from agentloop.values.json import EMPTY_OBJECT, JsonObject, format_json, freeze_object, parse_json
from agentloop.values.messages import Message, ResponsePart
from agentloop.values.parts import Document, Image, Text
from agentloop.values.tool_calls import ContentPart, ErrorInfo, ToolCall, ToolStatus

_ROLES = frozenset({"user", "assistant", "system"})
_MEDIA_BLOCKS = frozenset({"image", "document"})

_Located: TypeAlias = tuple[str, Mapping[str, Any]]
"""A block with its path in the conversation."""


def import_messages(
    messages: Sequence[Mapping[str, Any]],
    *,
    system: str | Sequence[Mapping[str, Any]] | None = None,
    unanswered: UnansweredCalls = "refuse",
    at: datetime = UNKNOWN_TIME,
) -> tuple[str, tuple[Message, ...]]:
    """Import a conversation from the `messages` and the `system` of a request to the Messages API.

    Each call is paired by id with its result in the user messages that directly follow. Consecutive assistant messages are
    merged. Cache breakpoints are ignored, since they belong to a request. A block without a neutral form becomes a text with
    its JSON for other providers, and is sent to this provider unchanged.

    Args:
        messages: the messages.
        system: the system prompt, as text or as text blocks.
        unanswered: `refuse` to raise for a call without a result, `cancel` to import it as cancelled.
        at: the time of the executions, which the messages do not contain.

    Returns:
        The system prompt, which may be empty, and the messages.

    Raises:
        InvalidDocument: when an item is not a message or a block, when a result has no call, or when a call has no result;
            names the place.
    """
    importer = _Importer(ImportedCalls(unanswered, at))
    # The API treats consecutive messages of one role as one turn.
    for role, group in groupby(enumerate(messages), lambda numbered: _role(*numbered)):
        importer.add(role, list(group))
    importer.finish()
    return _system_text(system), tuple(importer.messages)


def export_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return a conversation as the `messages` of a request to the Messages API.

    Messages of the system have their own role, which not all models accept.

    Raises:
        BadRequest: when the Messages API has no encoding for something in a message; names the part.
    """
    exported = parse_json(b"[" + b",".join(encode_messages(messages)) + b"]")
    assert isinstance(exported, list)  # noqa: S101  # the brackets above make it one
    return exported


class _Importer:
    """Converts consecutive messages of one role at a time; an assistant turn is completed by the results after it."""

    def __init__(self, calls: ImportedCalls) -> None:
        self.messages: list[Message] = []
        self._calls = calls
        self._assistant_parts: list[tuple[str, ResponsePart]] = []

    def add(self, role: str, group: Sequence[tuple[int, Mapping[str, Any]]]) -> None:
        """Add consecutive messages of this role."""
        contents = [list(_blocks(message, f"messages[{number}]")) for number, message in group]
        if role == "assistant":
            parts = [(path, _assistant_part(block, path)) for blocks in contents for path, block in blocks]
            self._assistant_parts = [(path, part) for path, part in parts if part]
            return
        self._complete_turn([item for blocks in contents for item in blocks if item[1]["type"] == "tool_result"])
        for blocks in contents:
            content = [_content(block, path) for path, block in blocks if block["type"] != "tool_result"]
            if content and role == "system":
                self.messages.append(Message.system(*[part for part in content if isinstance(part, Text)]))
            elif content:
                self.messages.append(Message.user(*content))

    def finish(self) -> None:
        """Add the last assistant turn."""
        self._complete_turn([])

    def _complete_turn(self, results: Sequence[_Located]) -> None:
        """Add the open assistant turn, with these results of its calls."""
        by_id: dict[object, list[_Located]] = {}
        for path, result in results:
            by_id.setdefault(_call_id(result, path), []).append((path, result))
        executions = []
        for path, part in self._assistant_parts:
            # Ids may repeat within a turn; results are then paired in order.
            if isinstance(part, ToolCall):
                matching = by_id.get(part.id)
                if matching:
                    outcome = _outcome(*matching.pop(0))
                    executions.append(self._calls.create_execution(part, path, outcome))
                else:
                    executions.append(self._calls.create_cancelled(part, path))
        for path, result in (item for remaining in by_id.values() for item in remaining):
            raise InvalidDocument(
                f"{path} is the result of {result.get('tool_use_id')!r}, but the preceding message has no unanswered call "
                "with that id; remove it"
            )
        if self._assistant_parts:
            self.messages.append(Message.of_response([part for _, part in self._assistant_parts], executions))
        self._assistant_parts = []


def _outcome(path: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `ToolExecution` that a result determines."""
    content = result.get("content")
    parts = () if content is None else tuple([_content(block, where) for where, block in _blocks(result, path)])
    text = "".join([part.text for part in parts if isinstance(part, Text)])
    if result.get("is_error"):
        return {"status": ToolStatus.FAILED, "error": ErrorInfo("ToolFailed", text), "content": parts}
    return {"status": ToolStatus.SUCCEEDED, "value": text, "content": None if isinstance(content, str) else parts}


def _role(number: int, message: object) -> str:
    role = message.get("role") if isinstance(message, Mapping) else None
    if role not in _ROLES:
        raise InvalidDocument(
            f"messages[{number}] is not a message: its role must be user, assistant or system, not {role!r}"
        )
    return str(role)


def _system_text(system: str | Sequence[Mapping[str, Any]] | None) -> str:
    if system is None or isinstance(system, str):
        return system or ""
    return "\n\n".join([_text(block.get("text"), path) for path, block in _blocks({"content": system}, "system")])


def _blocks(container: Mapping[str, Any], path: str) -> Iterator[_Located]:
    """Yield the blocks of a message or a result with their paths; plain text counts as one block."""
    content = container.get("content")
    if isinstance(content, str):
        yield path, {"type": "text", "text": content}
        return
    if not isinstance(content, Iterable) or isinstance(content, Mapping | bytes):
        raise InvalidDocument(f"{path} has no content: it must be text or an array of blocks")
    for number, block in enumerate(content):
        block_path = f"{path}.content[{number}]"
        if not isinstance(block, Mapping) or not isinstance(block.get("type"), str):
            raise InvalidDocument(f"{block_path} is not a block: it must be an object with a type")
        # Cache breakpoints belong to the request, not to the conversation.
        yield block_path, {name: value for name, value in block.items() if name != "cache_control"}


def _assistant_part(block: Mapping[str, Any], path: str) -> ResponsePart | None:
    if block["type"] == "tool_use":
        _text(block.get("id"), f"{path}.id")
        _text(block.get("name"), f"{path}.name")
    if block["type"] == "tool_result":
        raise InvalidDocument(f"{path} is a result in an assistant message; it belongs in the user message after it")
    return part_of(block)


def _content(block: Mapping[str, Any], path: str) -> ContentPart:
    kind = block["type"]
    if kind == "text":
        return Text(_text(block.get("text"), f"{path}.text"), provider_data=_extra(block, "type", "text"))
    source = block.get("source")
    if kind in _MEDIA_BLOCKS and isinstance(source, Mapping):
        media = _media(source, f"{path}.source")
        if media is not None and kind == "image":
            return Image(**media, provider_data=_extra(block, "type", "source"))
        if media is not None:
            extra = _extra(block, "type", "source", "title")
            return Document(**media, name=text_of(block.get("title")), provider_data=extra)
    return Text(format_json(block).decode(), provider_data={NAME: {BLOCK_KEY: block}})


def _media(source: Mapping[str, Any], path: str) -> dict[str, Any] | None:
    """Return the fields of a media part for a source; None for a kind of source without a neutral form."""
    kind = source.get("type")
    if kind == "url":
        return {"url": _text(source.get("url"), f"{path}.url")}
    if kind == "file":
        return {"file_id": _text(source.get("file_id"), f"{path}.file_id")}
    if kind not in {"base64", "text"}:
        return None
    data, media_type = _text(source.get("data"), f"{path}.data"), source.get("media_type") or "text/plain"
    try:
        return {"data": data.encode() if kind == "text" else base64.b64decode(data), "media_type": str(media_type)}
    except ValueError as error:
        raise InvalidDocument(f"{path}.data is not Base64: {error}") from error


def _extra(block: Mapping[str, Any], *neutral: str) -> JsonObject:
    """Return, as provider data, the entries of a block except those that its neutral part contains."""
    extra = {name: value for name, value in block.items() if name not in neutral and value is not None}
    return freeze_object({NAME: extra}) if extra else EMPTY_OBJECT


def _call_id(result: Mapping[str, Any], path: str) -> str:
    return _text(result.get("tool_use_id"), f"{path}.tool_use_id")


def _text(value: object, path: str) -> str:
    if not isinstance(value, str):
        raise InvalidDocument(f"{path} must be text, not {type(value).__name__}")
    return value
