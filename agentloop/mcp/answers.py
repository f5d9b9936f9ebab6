"""Answers of servers in the form of the protocol: the SDK refuses a whole answer for one imperfect part, after the call ran."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve

from agentloop.values.forms import form_text, shorten
from agentloop.values.parts import Text
from agentloop.values.tool_calls import ToolResult

_OURS = "agentloop.answer"
"""The member of an answer's `_meta` that carries what the SDK would refuse; a server's own member of this name is dropped."""
_MAX_NOTES = 5
_MAX_PART = 100_000
_INTERNAL_ERROR = -32603
_OTHER_ANSWERS = frozenset({"task", "inputRequests", "requestState"})
"""The members of answers to a call that are no result yet."""


def readable_answer(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to a call in a form that the SDK reads, with all that the server said.

    A part that is not of the protocol becomes a text with its JSON. What the SDK has no place for, and what is wrong with the
    form, is in `_meta`, from which `take_rest` takes it.
    """
    has_result = not result.keys().isdisjoint(("content", "structuredContent", "isError"))
    if not has_result and (result.keys() & _OTHER_ANSWERS or result.get("resultType", "complete") != "complete"):
        return dict(result)
    notes: list[str] = []
    answer: dict[str, Any] = {"content": _read_content(result.get("content"), notes)}
    if (is_error := _read_flag(result.get("isError"), notes)) is not None:
        answer["isError"] = is_error
    structured, rest = result.get("structuredContent"), {}
    if structured is None and not answer["content"]:
        structured = {key: value for key, value in result.items() if key not in _KNOWN} or None
        if structured is not None:
            notes.append("it has neither content nor structured content")
    if isinstance(structured, Mapping):
        answer["structuredContent"] = dict(structured)
    elif structured is not None:
        rest["structured"] = structured
    if notes:
        rest["notes"] = notes[:_MAX_NOTES]
    meta = result.get("_meta")
    own = {key: value for key, value in meta.items() if key != _OURS} if isinstance(meta, Mapping) else {}
    if own or rest:
        answer["_meta"] = {**own, **({_OURS: rest} if rest else {})}
    if isinstance(kind := result.get("resultType"), str):
        answer["resultType"] = kind
    return answer


_KNOWN = frozenset({"content", "structuredContent", "isError", "_meta", "resultType"})


def take_rest(response: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return an answer that the SDK has read with what it had no place for, and what is wrong with its form."""
    meta = response.get("_meta")
    rest = meta.get(_OURS) if isinstance(meta, Mapping) else None
    if not isinstance(rest, Mapping):
        return dict(response), []
    answer = dict(response)
    if "structured" in rest:
        answer["structuredContent"] = rest["structured"]
    return answer, list(rest.get("notes", ()))


def with_notes(result: ToolResult, notes: Sequence[str]) -> ToolResult:
    """Return a result with what is wrong with its form, for the model; the value stays as it is."""
    if not notes:
        return result
    shown = result.content if result.content is not None else (Text(form_text(result.value, _MAX_PART)),)
    return evolve(result, content=(*shown, Text(f"\n{format_notes(notes)}")))


def format_notes(notes: Sequence[str]) -> str:
    """Return what is wrong with the form of an answer, as a text."""
    return f"[The call ran. The form of its answer is wrong: {'; '.join(notes)}]" if notes else ""


def _read_flag(value: Any, notes: list[str]) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    notes.append(f"isError is {form_text([value], 100)[1:-1]}, which is neither true nor false")
    return value == 1 or (isinstance(value, str) and value.strip().lower() == "true")


def _read_content(content: Any, notes: list[str]) -> list[dict[str, Any]]:
    if content is None:
        return []
    if not isinstance(content, list | tuple):
        notes.append("its content is not a list")
        content = [content]
    return [_read_block(block, notes) for block in content]


def _read_block(block: Any, notes: list[str]) -> dict[str, Any]:
    """Return a block of content with the members that are read here; as a text with its JSON where the protocol has no such block."""
    if isinstance(block, str):
        notes.append("a part of its content is a bare text")
        return _text(block)
    read = _known_block(block)
    if read is not None:
        return read
    kind = block.get("type") if isinstance(block, Mapping) else None
    notes.append(f"a part of its content is no {_SHOWN_KINDS}, and shown as JSON (type {form_text(kind, 100)})")
    return _text(form_text(block, _MAX_PART))


_SHOWN_KINDS = "valid text, image, audio, resource or link to a resource"


_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:\S")


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _known_block(block: Any) -> dict[str, Any] | None:
    match block:
        case {"type": "text", "text": str(text)}:
            return _text(text)
        case {"type": "image" | "audio" as kind, "data": str(data)}:
            # Without a type of the media, the bytes tell it.
            media_type = block.get("mimeType")
            return {"type": kind, "data": data, "mimeType": media_type if isinstance(media_type, str) else ""}
        case {"type": "resource_link", "uri": str(uri)} if _URI.match(uri):
            details = {
                key: block[key] for key in ("title", "description", "mimeType") if isinstance(block.get(key), str)
            }
            name = block.get("name")
            return {"type": "resource_link", "uri": uri, "name": name if isinstance(name, str) else uri, **details}
        case {"type": "resource", "resource": {"text": str(text)} as resource}:
            return {"type": "resource", "resource": {**_resource(resource), "text": text}}
        case {"type": "resource", "resource": {"blob": str(data)} as resource}:
            return {"type": "resource", "resource": {**_resource(resource), "blob": data}}
    return None


def _resource(resource: Mapping[str, Any]) -> dict[str, Any]:
    uri, media_type = resource.get("uri"), resource.get("mimeType")
    return {
        "uri": uri if isinstance(uri, str) and _URI.match(uri) else "resource:unnamed",
        **({"mimeType": media_type} if isinstance(media_type, str) else {}),
    }


# --- messages ---------------------------------------------------------------------------------------------------------


def readable_response(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message with an answer in the form of the protocol: a result is an object, and an error has a code and a message."""
    if "method" in document or "id" not in document:
        return document
    error, response = document.get("error"), {key: document[key] for key in ("jsonrpc", "id") if key in document}
    if error is not None:
        return {**response, "error": _read_error(error)}
    if "result" not in document:
        return document
    result = document["result"]
    if isinstance(result, Mapping):
        return {**response, "result": result}
    content = [] if result is None else [_text(form_text(result, _MAX_PART))]
    return {**response, "result": {"content": content}}


def _read_error(error: Any) -> Any:
    code = error.get("code") if isinstance(error, Mapping) else None
    message = error.get("message") if isinstance(error, Mapping) else error
    if isinstance(code, int) and not isinstance(code, bool) and isinstance(message, str):
        return error
    rest = {"data": error["data"]} if isinstance(error, Mapping) and "data" in error else {}
    text = message if isinstance(message, str) else form_text(error)
    return {"code": code if isinstance(code, int) else _INTERNAL_ERROR, "message": text, **rest}


def describe_error(message: str, data: Any, maximum: int) -> str:
    """Return the message of an error of the protocol, with the data that the server sent beside it."""
    details = "" if data is None else f" ({form_text(data, maximum)})"
    return shorten(message, maximum) + details
