"""Messages as contents of generateContent.

Source: https://ai.google.dev/api/caching#Content
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from agentloop.inference.wire_formats.call_arguments import arguments_object
from agentloop.inference.wire_formats.tool_names import wire_name
from agentloop.values.json_text import format_json
from agentloop.values.message import Message, Part
from agentloop.values.parts import Audio, Document, Image, ProviderPart, Reasoning, Text
from agentloop.values.tool_call import ToolCall
from agentloop.values.tool_execution import ToolExchange, ToolExecution

NAME = "gemini"
SIGNATURE = "thoughtSignature"
_NO_SIGNATURE = "skip_thought_signature_validator"
"""What Gemini takes for the signature of a call that another model made; some models refuse a call without any."""


def contents_of(message: Message) -> tuple[bytes, bool]:
    """Spell a message: as a content of the user's, or as one of the model's and one with the results of its calls.

    A system message amid the conversation is said by the user, since Gemini knows system words at the beginning only. A
    message of which nothing is left is left out.

    Returns:
        The contents, and whether the last of them is the model's.
    """
    said = [part for part in map(_said, message.parts) if part]
    if not said:
        return b"", False
    if message.role != "assistant":
        return _content("user", said), False
    results = [_result(exchange) for exchange in message.exchanges]
    if not results:
        return _content("model", said), True
    _sign_foreign(said)
    return _content("model", said) + b"," + _content("user", results), False


def _content(role: str, parts: list[dict[str, Any]]) -> bytes:
    return format_json({"role": role, "parts": parts})


def _said(part: Part) -> Any:
    """Spell a part; None for one that Gemini refuses, such as an empty text, or that another provider wrote."""
    if isinstance(part, Text):
        signed = _signed(part.provider_data)
        return {"text": part.text, **signed} if part.text or signed else None
    if isinstance(part, Reasoning):
        signed = _signed(part.provider_data)
        return {"text": part.text, "thought": True, **signed} if signed else None
    if isinstance(part, ToolExchange):
        return {"functionCall": _call(part.call), **_signed(part.call.provider_data)}
    if isinstance(part, ProviderPart):
        return part.payload if part.wire_format == NAME and isinstance(part.payload, Mapping) else None
    return {**_media(part), **_signed(part.provider_data)}


def _sign_foreign(said: list[dict[str, Any]]) -> None:
    """Sign the first call of another provider's message: unsigned, with an id, which Gemini gives only where it signs."""
    first = next(part for part in said if "functionCall" in part)
    if "id" in first["functionCall"] and not any(SIGNATURE in part for part in said):
        first[SIGNATURE] = _NO_SIGNATURE


def _signed(provider_data: Mapping[str, Any]) -> dict[str, Any]:
    held = provider_data.get(NAME)
    signature = held.get(SIGNATURE) if isinstance(held, Mapping) else None
    return {SIGNATURE: signature} if isinstance(signature, str) else {}


def _call(call: ToolCall) -> dict[str, Any]:
    spelled = {"name": wire_name(call.name, begins_with_letter=True), "args": arguments_object(call)}
    return {"id": call.id, **spelled} if call.id else spelled


def _result(exchange: ToolExchange) -> dict[str, Any]:
    call, execution = exchange.call, exchange.execution
    spelled: dict[str, Any] = {
        "name": wire_name(call.name, begins_with_letter=True),
        "response": {"error" if execution.has_error else "result": _shown(execution)},
    }
    if call.id:
        spelled = {"id": call.id, **spelled}
    media = [_media(part) for part in execution.parts if not isinstance(part, Text)]
    if media:
        spelled["parts"] = media
    return {"functionResponse": spelled}


def _shown(execution: ToolExecution) -> Any:
    """Return what the model is shown: the value as JSON, or the text that stands for it or tells the error."""
    return execution.text if execution.has_error or execution.content is not None else execution.value


def _media(part: Image | Audio | Document) -> dict[str, Any]:
    if part.data is not None:
        return {"inlineData": {"mimeType": part.media_type, "data": base64.b64encode(part.data).decode()}}
    spelled = {"fileUri": part.url if part.url is not None else part.file_id}
    return {"fileData": {"mimeType": part.media_type, **spelled} if part.media_type else spelled}
