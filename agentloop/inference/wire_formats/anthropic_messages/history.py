"""Histories in the form of Messages, from elsewhere and for elsewhere."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from typing import Any, Literal, TypeAlias

from agentloop.errors import InvalidDocument
from agentloop.inference.wire_formats.anthropic_messages.content import FORMAT, WHOLE, part_of
from agentloop.inference.wire_formats.anthropic_messages.requests import encode_messages
from agentloop.values.json import EMPTY_OBJECT, JsonObject, format_json, freeze_object, parse_json
from agentloop.values.messages import Message, ResponsePart
from agentloop.values.parts import Document, Image, Text
from agentloop.values.tool_calls import ContentPart, ErrorInfo, ToolCall, ToolExecution, ToolStatus

Unanswered: TypeAlias = Literal["refuse", "cancel"]
"""What to do with a call that has no result."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BLOCKS_OF_MEDIA = frozenset({"image", "document"})


def import_messages(
    messages: Sequence[Mapping[str, Any]],
    *,
    system: str | Sequence[Mapping[str, Any]] | None = None,
    unanswered: Unanswered = "refuse",
    at: datetime = _EPOCH,
) -> tuple[str, tuple[Message, ...]]:
    """Read a conversation in the form of Messages, as its `messages` and `system` hold it.

    Each call is joined to its result in the messages of the user that follow directly, by id. Messages of the assistant that
    follow each other are one. Cache breakpoints are left out, since they belong to a request. A block that has no neutral
    form is kept as text that shows its JSON to other providers and goes back to this one as it was.

    Args:
        messages: the messages.
        system: the system prompt, as text or as blocks of text.
        unanswered: `refuse` a call without a result, or have it `cancel`led, so that the model is told.
        at: when the executions are said to have happened; the messages do not tell.

    Returns:
        The system prompt, empty when there is none, and the messages.

    Raises:
        InvalidDocument: when something is not a message or a block, a result answers no call, or a call has no result;
            names the place.
    """
    reader = _Reader(unanswered, at)
    for role, held in groupby(enumerate(messages), lambda numbered: _role(*numbered)):
        reader.read(role, list(held))
    reader.end()
    return _system(system), tuple(reader.messages)


def export_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return messages in the form of Messages, as they would stand in a request.

    Raises:
        BadRequest: when a message holds what Messages cannot carry; names the part.
    """
    exported = parse_json(b"[" + b",".join(encode_messages(messages)) + b"]")
    assert isinstance(exported, list)  # noqa: S101  # the brackets above make it one
    return exported


class _Reader:
    """Reads runs of messages of one role; what an assistant said waits for the results in the run that follows."""

    def __init__(self, unanswered: Unanswered, at: datetime) -> None:
        self.messages: list[Message] = []
        self._unanswered = unanswered
        self._at = at
        self._waiting: list[tuple[str, ResponsePart]] = []

    def read(self, role: str, run: Sequence[tuple[int, Mapping[str, Any]]]) -> None:
        """Read messages that follow each other and have this role."""
        if role == "assistant":
            blocks = [block for number, message in run for block in _blocks(message, f"messages[{number}]")]
            self._waiting = [(place, part) for place, block in blocks for part in [_said(block, place)] if part]
            return
        contents = [list(_blocks(message, f"messages[{number}]")) for number, message in run]
        self._join([held for blocks in contents for held in blocks if held[1]["type"] == "tool_result"])
        for blocks in contents:
            parts = [_content(block, place) for place, block in blocks if block["type"] != "tool_result"]
            if parts and role == "system":
                self.messages.append(Message.system(*[part for part in parts if isinstance(part, Text)]))
            elif parts:
                self.messages.append(Message.user(*parts))

    def end(self) -> None:
        """Take what the assistant said last."""
        self._join([])

    def _join(self, results: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        """Join the calls that wait to these results."""
        by_id: dict[object, list[tuple[str, Mapping[str, Any]]]] = {}
        for place, result in results:
            by_id.setdefault(_id(result, place), []).append((place, result))
        executions = [
            self._execution(part, place, by_id.get(part.id, []))
            for place, part in self._waiting
            if isinstance(part, ToolCall)
        ]
        for place, result in (held for left in by_id.values() for held in left):
            raise InvalidDocument(
                f"{place} is the result of {result.get('tool_use_id')!r}, which is no call of the message before that waits "
                "for one; leave it out"
            )
        if self._waiting:
            self.messages.append(Message.of_response([part for _, part in self._waiting], executions))
        self._waiting = []

    def _execution(self, call: ToolCall, place: str, results: list[tuple[str, Mapping[str, Any]]]) -> ToolExecution:
        """Make the execution of a call from the first result that is left for it."""
        execution = partial(ToolExecution.of, call, key=f"imported/{place}", id=f"imported/{place}", at=self._at)
        if results:
            where, result = results.pop(0)
            return execution(**_outcome(result, where))
        if self._unanswered == "refuse":
            raise InvalidDocument(
                f"{place} calls {call.name!r}, and no result of {call.id!r} follows; add one, or pass unanswered='cancel'"
            )
        error = ErrorInfo("Cancelled", "the call was not answered when the conversation was taken over")
        return execution(status=ToolStatus.CANCELLED, error=error, may_have_run=True)


def _outcome(result: Mapping[str, Any], place: str) -> dict[str, Any]:
    content = result.get("content")
    parts = () if content is None else tuple([_content(block, where) for where, block in _blocks(result, place)])
    text = "".join([part.text for part in parts if isinstance(part, Text)])
    if result.get("is_error"):
        return {"status": ToolStatus.FAILED, "error": ErrorInfo("ToolFailed", text), "content": parts}
    return {"status": ToolStatus.SUCCEEDED, "value": text, "content": None if isinstance(content, str) else parts}


def _role(number: int, message: object) -> str:
    role = message.get("role") if isinstance(message, Mapping) else None
    if role not in {"user", "assistant", "system"}:
        raise InvalidDocument(
            f"messages[{number}] is not a message: its role is user, assistant or system, not {role!r}"
        )
    return str(role)


def _system(system: str | Sequence[Mapping[str, Any]] | None) -> str:
    if system is None or isinstance(system, str):
        return system or ""
    texts = [_text(block.get("text"), where) for where, block in _blocks({"content": system}, "system")]
    return "\n\n".join(texts)


def _blocks(held: Mapping[str, Any], place: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Go through the blocks of a message or a result, with their places; a text alone is one block."""
    content = held.get("content")
    if isinstance(content, str):
        yield place, {"type": "text", "text": content}
        return
    if not isinstance(content, Iterable) or isinstance(content, Mapping | bytes):
        raise InvalidDocument(f"{place} has no content: it is text or an array of blocks")
    for number, block in enumerate(content):
        where = f"{place}.content[{number}]"
        if not isinstance(block, Mapping) or not isinstance(block.get("type"), str):
            raise InvalidDocument(f"{where} is not a block: an object with a type")
        yield where, {name: value for name, value in block.items() if name != "cache_control"}


def _said(block: Mapping[str, Any], place: str) -> ResponsePart | None:
    if block["type"] == "tool_use":
        _text(block.get("id"), f"{place}.id")
        _text(block.get("name"), f"{place}.name")
    if block["type"] == "tool_result":
        raise InvalidDocument(f"{place} is a result in a message of the assistant; it belongs to the user's after it")
    return part_of(block)


def _content(block: Mapping[str, Any], place: str) -> ContentPart:
    kind = block["type"]
    if kind == "text":
        known = {"type", "text"}
        return Text(_text(block.get("text"), f"{place}.text"), provider_data=_own(block, known))
    source = block.get("source")
    if kind in _BLOCKS_OF_MEDIA and isinstance(source, Mapping):
        given = _given(source, f"{place}.source")
        if given is not None and kind == "image":
            return Image(**given, provider_data=_own(block, {"type", "source"}))
        if given is not None:
            name = block.get("title")
            own = _own(block, {"type", "source", "title"})
            return Document(**given, name=name if isinstance(name, str) else "", provider_data=own)
    return Text(format_json(block).decode(), provider_data={FORMAT: {WHOLE: block}})


def _given(source: Mapping[str, Any], place: str) -> dict[str, Any] | None:
    """Read how content is given: by value or by reference; None for a way that has no neutral form."""
    kind = source.get("type")
    if kind == "url":
        return {"url": _text(source.get("url"), f"{place}.url")}
    if kind == "file":
        return {"file_id": _text(source.get("file_id"), f"{place}.file_id")}
    if kind not in {"base64", "text"}:
        return None
    data, media_type = _text(source.get("data"), f"{place}.data"), source.get("media_type") or "text/plain"
    try:
        return {"data": data.encode() if kind == "text" else base64.b64decode(data), "media_type": str(media_type)}
    except ValueError as error:
        raise InvalidDocument(f"{place}.data is not Base64: {error}") from error


def _own(block: Mapping[str, Any], known: set[str]) -> JsonObject:
    own = {name: value for name, value in block.items() if name not in known and value is not None}
    return freeze_object({FORMAT: own}) if own else EMPTY_OBJECT


def _id(result: Mapping[str, Any], place: str) -> str:
    return _text(result.get("tool_use_id"), f"{place}.tool_use_id")


def _text(value: object, place: str) -> str:
    if not isinstance(value, str):
        raise InvalidDocument(f"{place} is text, not {type(value).__name__}")
    return value
