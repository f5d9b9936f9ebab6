"""Import and export of conversations in the format of Chat Completions."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias

from agentloop.errors import InvalidDocument
from agentloop.models.wire_formats.decoding import SHAPE_ERRORS
from agentloop.models.wire_formats.fields import text_of
from agentloop.models.wire_formats.imported_calls import UNKNOWN_TIME, ImportedCalls, UnansweredCalls
from agentloop.models.wire_formats.openai_chat.requests import encode_message
from agentloop.models.wire_formats.openai_chat.responses import message_parts
from agentloop.values.json import parse_json
from agentloop.values.messages import Message
from agentloop.values.parts import Audio, Document, Image, Text, find_url_problem
from agentloop.values.tool_calls import ContentPart, ToolCall, ToolExecution, ToolStatus

_SYSTEM_ROLES = frozenset({"system", "developer"})
_RESULT_ROLES = frozenset({"tool", "function"})
_ROLES = _SYSTEM_ROLES | _RESULT_ROLES | {"user", "assistant"}
_AUDIO_TYPES = {"mp3": "audio/mpeg"}

_Numbered: TypeAlias = tuple[int, Mapping[str, Any]]
"""A message with its index in the conversation."""


def import_messages(
    messages: Sequence[Mapping[str, Any]],
    *,
    unanswered: UnansweredCalls = "refuse",
    at: datetime = UNKNOWN_TIME,
) -> tuple[str, tuple[Message, ...]]:
    """Import a conversation from the `messages` of a Chat Completions request.

    Each call is paired by id with its result in the tool messages that directly follow; ids may repeat in later turns. Every
    result is imported as a success, since the format does not mark errors. The names of participants and cache marks are
    ignored.

    Args:
        messages: the messages.
        unanswered: `refuse` to raise for a call without a result, `cancel` to import it as cancelled.
        at: the time of the executions, which the messages do not contain.

    Returns:
        The system prompt and the other messages. The system prompt is the first message if its role is system or developer,
        and otherwise empty.

    Raises:
        InvalidDocument: when an item is not a message or has no neutral form, when a result has no call, or when a call has
            no result; names the place.
    """
    numbered: list[_Numbered] = [(number, _check_message(number, message)) for number, message in enumerate(messages)]
    system_prompt = ""
    if numbered and numbered[0][1]["role"] in _SYSTEM_ROLES:
        system_prompt, numbered = _system_text(numbered[0][1], "messages[0]"), numbered[1:]
    return system_prompt, tuple(_convert_messages(numbered, ImportedCalls(unanswered, at)))


def export_messages(messages: Sequence[Message], system_prompt: str = "") -> list[dict[str, Any]]:
    """Return a conversation as the `messages` of a Chat Completions request.

    Raises:
        BadRequest: when Chat Completions has no encoding for a message; names the part.
    """
    segments = [segment for segment in map(encode_message, messages) if segment]
    exported = parse_json(b"[" + b",".join(segments) + b"]")
    assert isinstance(exported, list)  # noqa: S101  # the brackets above make it one
    return [{"role": "system", "content": system_prompt}, *exported] if system_prompt else exported


def _check_message(number: int, message: object) -> Mapping[str, Any]:
    role = message.get("role") if isinstance(message, Mapping) else None
    if not isinstance(message, Mapping) or role not in _ROLES:
        raise InvalidDocument(
            f"messages[{number}] is not a message: its role must be one of {sorted(_ROLES)}, not {role!r}"
        )
    return message


def _convert_messages(numbered: Sequence[_Numbered], calls: ImportedCalls) -> Iterator[Message]:
    """Yield one neutral message per message; an assistant message includes the results that follow it."""
    position = 0
    while position < len(numbered):
        number, message = numbered[position]
        path = f"messages[{number}]"
        position += 1
        if message["role"] == "assistant":
            end = position
            # Results may have any order, so all that follow are collected before calls are paired.
            while end < len(numbered) and numbered[end][1]["role"] in _RESULT_ROLES:
                end += 1
            yield _assistant(message, path, _Results(numbered[position:end], calls))
            position = end
        elif message["role"] in _RESULT_ROLES:
            raise InvalidDocument(f"{path} is a result without a preceding message with calls; remove it")
        elif message["role"] == "user":
            yield Message.user(*_content(message, path))
        else:
            yield Message.system(_system_text(message, path))


class _Results:
    """The results that follow one assistant message, by the id of their call."""

    def __init__(self, results: Sequence[_Numbered], calls: ImportedCalls) -> None:
        self._calls = calls
        self._remaining: dict[object, list[_Numbered]] = {}
        for number, message in results:
            self._remaining.setdefault(_call_reference(message), []).append((number, message))

    def execution(self, call: ToolCall, path: str) -> ToolExecution:
        """Return the execution of a call, with its first remaining result."""
        # The deprecated function messages have no ids and are paired by the name of the tool.
        results = self._remaining.get(call.id) or (
            self._remaining.get(("function", call.name)) if not call.id else None
        )
        if not results:
            return self._calls.create_cancelled(call, path)
        number, message = results.pop(0)
        parts = tuple(_content(message, f"messages[{number}]"))
        text = "".join([part.text for part in parts if isinstance(part, Text)])
        # Text is the value of the result; media are content for the model.
        content = None if all(isinstance(part, Text) for part in parts) else parts
        return self._calls.create_execution(
            call, path, {"status": ToolStatus.SUCCEEDED, "value": text, "content": content}
        )

    def refuse_remaining(self) -> None:
        """Refuse results without a call.

        Raises:
            InvalidDocument: when a result remains.
        """
        for number, message in (result for results in self._remaining.values() for result in results):
            raise InvalidDocument(
                f"messages[{number}] is the result of {message.get('tool_call_id')!r}, but the preceding message has no "
                "unanswered call with that id; remove it"
            )


def _call_reference(message: Mapping[str, Any]) -> object:
    """Return the id of the call that a result belongs to, or the name of the tool in the deprecated function messages."""
    if message["role"] == "function":
        return "function", text_of(message.get("name"))
    return text_of(message.get("tool_call_id"))


def _assistant(message: Mapping[str, Any], path: str, results: _Results) -> Message:
    function_call = message.get("function_call")
    if isinstance(function_call, Mapping) and not message.get("tool_calls"):  # the deprecated form of a call
        message = {**message, "tool_calls": [{"function": function_call}]}
    try:
        parts = message_parts(message)
    except SHAPE_ERRORS as error:
        raise InvalidDocument(f"{path} does not have the structure of an assistant message") from error
    _refuse_unknown_content(message.get("content"), path)
    calls = [part for part in parts if isinstance(part, ToolCall)]
    executions = [results.execution(call, f"{path}.tool_calls[{index}]") for index, call in enumerate(calls)]
    results.refuse_remaining()
    return Message.of_response(parts, executions)


def _refuse_unknown_content(content: object, path: str) -> None:
    """Refuse content that `message_parts` ignores, so that nothing is lost silently.

    Raises:
        InvalidDocument: for an item of an unknown type.
    """
    for number, item in enumerate(content if isinstance(content, list | tuple) else ()):
        if isinstance(item, Mapping) and not item.keys() & {"text", "refusal", "thinking"}:
            raise InvalidDocument(
                f"{path}.content[{number}] has the type {item.get('type')!r}, which is not supported in an assistant "
                "message; remove it, or import the conversation in its original format"
            )


def _system_text(message: Mapping[str, Any], path: str) -> str:
    parts = list(_content(message, path))
    for part in parts:
        if not isinstance(part, Text):
            raise InvalidDocument(f"{path} is a system message with {type(part).__name__}; it may contain text only")
    return "".join([part.text for part in parts if isinstance(part, Text)])


def _content(message: Mapping[str, Any], path: str) -> Iterator[ContentPart]:
    content = message.get("content")
    if content is None or isinstance(content, str):
        yield Text(content or "")
        return
    if not isinstance(content, Sequence):
        raise InvalidDocument(f"{path} has no content: it must be text or an array of parts")
    for number, item in enumerate(content):
        item_path = f"{path}.content[{number}]"
        if not isinstance(item, Mapping):
            raise InvalidDocument(f"{item_path} is not a part: it must be an object with a type")
        yield _part(item, item_path)


def _part(item: Mapping[str, Any], path: str) -> ContentPart:
    kind = item.get("type")
    value = item.get(kind) if isinstance(kind, str) else None
    if kind == "text" and isinstance(value, str):
        return Text(value)
    if isinstance(value, Mapping):
        if kind == "image_url" and isinstance(value.get("url"), str):
            return _image(value["url"], path)
        if kind == "input_audio" and isinstance(value.get("data"), str):
            audio_format = str(value.get("format"))
            media_type = _AUDIO_TYPES.get(audio_format, f"audio/{audio_format}")
            return Audio(media_type=media_type, data=_decode_base64(value["data"], path))
        if kind == "file":
            return _document(value, path)
    raise InvalidDocument(
        f"{path} has the type {kind!r}, which has no neutral form, or not the structure of that type; remove it"
    )


def _image(url: str, path: str) -> Image:
    if not url.startswith("data:"):
        if problem := find_url_problem(url):
            raise InvalidDocument(f"{path}: {problem}")
        return Image(url=url)
    media_type, data = _decode_data_url(url, path)
    return Image(media_type=media_type, data=data)


def _document(file: Mapping[str, Any], path: str) -> Document:
    name = text_of(file.get("filename"))
    if isinstance(file.get("file_id"), str):
        return Document(file_id=file["file_id"], name=name)
    data = file.get("file_data")
    if not isinstance(data, str):
        raise InvalidDocument(f"{path} is a file without file_id and file_data")
    if not data.startswith("data:"):
        return Document(media_type="application/octet-stream", data=_decode_base64(data, path), name=name)
    media_type, content = _decode_data_url(data, path)
    return Document(media_type=media_type, data=content, name=name)


def _decode_data_url(url: str, path: str) -> tuple[str, bytes]:
    """Return the media type and the data of a data URL."""
    head, comma, data = url.removeprefix("data:").partition(",")
    media_type, encoding, _ = head.rpartition(";base64")
    if not comma or not encoding:
        raise InvalidDocument(f"{path} is a data URL that is not Base64; encode it")
    return media_type or "text/plain", _decode_base64(data, path)


def _decode_base64(data: str, path: str) -> bytes:
    try:
        return base64.b64decode("".join(data.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidDocument(f"{path} is not Base64: {error}") from error
