"""Histories in the form of Chat Completions, from elsewhere and for elsewhere."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal, TypeAlias

from agentloop.errors import InvalidDocument
from agentloop.inference.wire_formats.openai_chat.requests import encode_message
from agentloop.inference.wire_formats.openai_chat.responses import message_parts
from agentloop.values.json import parse_json
from agentloop.values.messages import Message
from agentloop.values.parts import Audio, Document, Image, Text
from agentloop.values.tool_calls import ContentPart, ErrorInfo, ToolCall, ToolExecution, ToolStatus

Unanswered: TypeAlias = Literal["refuse", "cancel"]
"""What to do with a call that has no result."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SYSTEM = frozenset({"system", "developer"})
_RESULTS = frozenset({"tool", "function"})
_ROLES = _SYSTEM | _RESULTS | {"user", "assistant"}
_SOUNDS = {"mp3": "audio/mpeg"}

_Numbered: TypeAlias = tuple[int, Mapping[str, Any]]


def import_messages(
    messages: Sequence[Mapping[str, Any]], *, unanswered: Unanswered = "refuse", at: datetime = _EPOCH
) -> tuple[str, tuple[Message, ...]]:
    """Read a conversation in the form of Chat Completions, as its `messages` hold it.

    Each call is joined to its result in the tool messages that follow directly, by id; ids may come again in later turns. A
    result counts as a success, since this form does not tell. The participants' names and cache marks are left out.

    Args:
        messages: the messages.
        unanswered: `refuse` a call without a result, or have it `cancel`led, so that the model is told.
        at: when the executions are said to have happened; the messages do not tell.

    Returns:
        The system prompt, which is the first message if that is the system's or the developer's, else empty; and the other
        messages.

    Raises:
        InvalidDocument: when something is not a message or has no neutral form, a result answers no call, or a call has no
            result; names the place.
    """
    numbered: list[_Numbered] = [(number, _checked(number, message)) for number, message in enumerate(messages)]
    system_prompt = ""
    if numbered and numbered[0][1]["role"] in _SYSTEM:
        system_prompt, numbered = _text_of(numbered[0][1], "messages[0]"), numbered[1:]
    return system_prompt, tuple(_turns(numbered, unanswered, at))


def export_messages(messages: Sequence[Message], system_prompt: str = "") -> list[dict[str, Any]]:
    """Return a conversation in the form of Chat Completions, as it would stand in a request.

    Raises:
        BadRequest: when a message holds what Chat Completions cannot carry; names the part.
    """
    spelled = [text for text in map(encode_message, messages) if text]
    exported = parse_json(b"[" + b",".join(spelled) + b"]")
    assert isinstance(exported, list)  # noqa: S101  # the brackets above make it one
    return [{"role": "system", "content": system_prompt}, *exported] if system_prompt else exported


def _checked(number: int, message: object) -> Mapping[str, Any]:
    role = message.get("role") if isinstance(message, Mapping) else None
    if not isinstance(message, Mapping) or role not in _ROLES:
        raise InvalidDocument(f"messages[{number}] is not a message: its role is one of {sorted(_ROLES)}, not {role!r}")
    return message


def _turns(numbered: Sequence[_Numbered], unanswered: Unanswered, at: datetime) -> Iterator[Message]:
    """Go through messages of ours: one for each message, and its results, of theirs."""
    place = 0
    while place < len(numbered):
        number, message = numbered[place]
        where = f"messages[{number}]"
        place += 1
        if message["role"] == "assistant":
            end = place
            while end < len(numbered) and numbered[end][1]["role"] in _RESULTS:
                end += 1
            yield _answer(message, where, _Results(numbered[place:end], unanswered, at))
            place = end
        elif message["role"] in _RESULTS:
            raise InvalidDocument(f"{where} is a result, and no message with calls stands before it; leave it out")
        elif message["role"] == "user":
            yield Message.user(*_content(message, where))
        else:
            yield Message.system(_text_of(message, where))


class _Results:
    """The results that follow one message of the assistant."""

    def __init__(self, results: Sequence[_Numbered], unanswered: Unanswered, at: datetime) -> None:
        self._unanswered = unanswered
        self._at = at
        self._left: dict[object, list[_Numbered]] = {}
        for number, message in results:
            self._left.setdefault(_answers(message), []).append((number, message))

    def of(self, call: ToolCall, where: str) -> ToolExecution:
        """Make the execution of a call from the first result that is left for it."""
        waiting = self._left.get(call.id) or (self._left.get(("function", call.name)) if not call.id else None)
        execution = partial(ToolExecution.of, call, key=f"imported/{where}", id=f"imported/{where}", at=self._at)
        if waiting:
            number, message = waiting.pop(0)
            parts = tuple(_content(message, f"messages[{number}]"))
            text = "".join([part.text for part in parts if isinstance(part, Text)])
            is_text = all(isinstance(part, Text) for part in parts)
            return execution(ToolStatus.SUCCEEDED, value=text, content=None if is_text else parts)
        if self._unanswered == "refuse":
            raise InvalidDocument(
                f"{where} calls {call.name!r}, and no result of {call.id!r} follows; add one, or pass unanswered='cancel'"
            )
        error = ErrorInfo("Cancelled", "the call was not answered when the conversation was taken over")
        return execution(ToolStatus.CANCELLED, error=error, may_have_run=True)

    def end(self) -> None:
        """Refuse what is left."""
        for number, message in (held for waiting in self._left.values() for held in waiting):
            raise InvalidDocument(
                f"messages[{number}] is the result of {message.get('tool_call_id')!r}, which is no call of the message before "
                "that waits for one; leave it out"
            )


def _answers(message: Mapping[str, Any]) -> object:
    """Return which call a result answers: one of this id, or of this name in the older form."""
    if message["role"] == "function":
        return "function", message.get("name")
    call_id = message.get("tool_call_id")
    return call_id if isinstance(call_id, str) else ""


def _answer(message: Mapping[str, Any], where: str, results: _Results) -> Message:
    older = message.get("function_call")
    if isinstance(older, Mapping) and not message.get("tool_calls"):
        message = {**message, "tool_calls": [{"function": older}]}
    try:
        parts = message_parts(message)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InvalidDocument(f"{where} has not the shape of a message of the assistant") from error
    _refuse_unread(message.get("content"), where)
    calls = [part for part in parts if isinstance(part, ToolCall)]
    executions = [results.of(call, f"{where}.tool_calls[{index}]") for index, call in enumerate(calls)]
    results.end()
    return Message.of_response(parts, executions)


def _refuse_unread(content: object, where: str) -> None:
    """Refuse a part of an answer that would be lost.

    Raises:
        InvalidDocument: for a part that is of no kind which an assistant's message has here.
    """
    for number, part in enumerate(content if isinstance(content, list | tuple) else ()):
        if isinstance(part, Mapping) and not part.keys() & {"text", "refusal", "thinking"}:
            raise InvalidDocument(
                f"{where}.content[{number}] is of type {part.get('type')!r}, which is not read in a message of the "
                "assistant; leave it out, or read the conversation in its own form"
            )


def _text_of(message: Mapping[str, Any], where: str) -> str:
    parts = list(_content(message, where))
    for part in parts:
        if not isinstance(part, Text):
            raise InvalidDocument(f"{where} is of the system and holds {type(part).__name__}; it can hold text only")
    return "".join([part.text for part in parts if isinstance(part, Text)])


def _content(message: Mapping[str, Any], where: str) -> Iterator[ContentPart]:
    content = message.get("content")
    if content is None or isinstance(content, str):
        yield Text(content or "")
        return
    if not isinstance(content, Sequence):
        raise InvalidDocument(f"{where} has no content: it is text or an array of parts")
    for number, part in enumerate(content):
        place = f"{where}.content[{number}]"
        if not isinstance(part, Mapping):
            raise InvalidDocument(f"{place} is not a part: an object with a type")
        yield _part(part, place)


def _part(part: Mapping[str, Any], where: str) -> ContentPart:
    kind = part.get("type")
    held = part.get(kind) if isinstance(kind, str) else None
    if kind == "text" and isinstance(held, str):
        return Text(held)
    if isinstance(held, Mapping):
        if kind == "image_url" and isinstance(held.get("url"), str):
            return _picture(held["url"], where)
        if kind == "input_audio" and isinstance(held.get("data"), str):
            sound = str(held.get("format"))
            return Audio(media_type=_SOUNDS.get(sound, f"audio/{sound}"), data=_bytes(held["data"], where))
        if kind == "file":
            return _file(held, where)
    raise InvalidDocument(f"{where} is of type {kind!r}, which has no neutral form, or not of its shape; leave it out")


def _picture(url: str, where: str) -> Image:
    if not url.startswith("data:"):
        return Image(url=url)
    media_type, data = _data_url(url, where)
    return Image(media_type=media_type, data=data)


def _file(held: Mapping[str, Any], where: str) -> Document:
    name = held.get("filename")
    name = name if isinstance(name, str) else ""
    if isinstance(held.get("file_id"), str):
        return Document(file_id=held["file_id"], name=name)
    data = held.get("file_data")
    if not isinstance(data, str):
        raise InvalidDocument(f"{where} is a file without file_id and file_data")
    if not data.startswith("data:"):
        return Document(media_type="application/octet-stream", data=_bytes(data, where), name=name)
    media_type, content = _data_url(data, where)
    return Document(media_type=media_type, data=content, name=name)


def _data_url(url: str, where: str) -> tuple[str, bytes]:
    head, comma, data = url.removeprefix("data:").partition(",")
    media_type, marked, _ = head.rpartition(";base64")
    if not comma or not marked:
        raise InvalidDocument(f"{where} is a data URL that is not Base64; encode it")
    return media_type or "text/plain", _bytes(data, where)


def _bytes(data: str, where: str) -> bytes:
    try:
        return base64.b64decode("".join(data.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidDocument(f"{where} is not Base64: {error}") from error
