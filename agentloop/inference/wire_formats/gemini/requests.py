"""Requests of generateContent.

Sources: https://ai.google.dev/api/generate-content, https://ai.google.dev/gemini-api/docs/function-calling,
https://ai.google.dev/gemini-api/docs/thought-signatures
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from agentloop.inference.config import LLMConfig
from agentloop.inference.wire_formats.fields import merged, refuse_twice, renamed, wire_name
from agentloop.inference.wire_formats.wire_format import EncodedRequest
from agentloop.values.inference import InferenceOptions, InferenceRequest, ResponseFormat, ToolChoice
from agentloop.values.json import format_json
from agentloop.values.messages import Message, Part
from agentloop.values.parts import Audio, Document, Image, ProviderPart, Reasoning, Text
from agentloop.values.tool_calls import ToolCall, ToolExchange, ToolExecution, ToolSpec, arguments_object
from agentloop.values.value import encode_each

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


_FINGERPRINT = "gemini"
_MODEL = b'{"role":"model","parts":['
_LEVELS = {
    "minimal": "MINIMAL",
    "low": "LOW",
    "medium": "MEDIUM",
    "high": "HIGH",
    "xhigh": "XHIGH",
    "max": "XHIGH",
}
"""The levels of thinking that are published; one of ours that is not among them goes to the closest."""


def encode_request(request: InferenceRequest, config: LLMConfig, *, stream: bool = False) -> EncodedRequest:
    """Spell a request: a join of segments, each encoded once.

    What Gemini has no word for is left to it: whether several calls may come in one answer, the name of a schema.

    Raises:
        BadRequest: when an option spells what the request does.
    """
    contents = _joined(encode_each(request.messages, _FINGERPRINT, contents_of))
    pieces = [b'{"contents":[', contents, b"]"]
    spelled = {"contents"}
    if request.tools:
        spelled.add("tools")
        declared = b",".join(encode_each(request.tools, _FINGERPRINT, _declaration))
        pieces[:0] = [b'{"tools":[{"functionDeclarations":[', declared, b"]}],"]
        pieces[3] = b'"contents":['
    if request.system_prompt:
        spelled.add("systemInstruction")
        pieces[:0] = [b'{"systemInstruction":', format_json({"parts": [{"text": request.system_prompt}]}), b","]
        pieces[3] = pieces[3][1:]
    rest = _rest(request, config)
    refuse_twice(rest, spelled)
    pieces.append(b"," + format_json(rest)[1:] if rest else b"}")
    path = _path(request.options.model or config.options.model or config.model, stream=stream)
    names = renamed((spec.name for spec in request.tools), begins_with_letter=True)
    return EncodedRequest(path, b"".join(pieces), tool_names=names)


def _joined(segments: list[tuple[bytes, bool]]) -> bytes:
    """Join contents; what the model said in several messages without a word between them is one content.

    Gemini refuses a call that does not follow a content of the user's.
    """
    pieces: list[bytes] = []
    after_model = False
    for contents, ends_with_model in segments:
        if after_model and contents.startswith(_MODEL):
            pieces[-1] = pieces[-1].removesuffix(b"]}")
            pieces.append(contents.removeprefix(_MODEL))
        elif contents:
            pieces.append(contents)
        after_model = ends_with_model if contents else after_model
    return b",".join(pieces)


@lru_cache
def _path(model: str, *, stream: bool) -> str:
    place = quote(model if "/" in model else f"models/{model}", safe="/:@-._~")
    return f"/{place}:streamGenerateContent?alt=sse" if stream else f"/{place}:generateContent"


def _rest(request: InferenceRequest, config: LLMConfig) -> dict[str, Any]:
    rest: dict[str, Any] = {}
    choice = _function_calling(request.tool_choice) if request.tools else None
    if choice is not None:
        rest["toolConfig"] = {"functionCallingConfig": choice}
    generation = {} if request.response_format is None else _response_format(request.response_format)
    for options in (config.options, request.options):
        generation.update(_generation(options))
        rest = merged(rest | ({"generationConfig": generation} if generation else {}), options.extra)
        generation = dict(rest.get("generationConfig") or {})
    return rest


def _generation(options: InferenceOptions) -> dict[str, Any]:
    spelled = {
        "temperature": options.temperature,
        "topP": options.top_p,
        "maxOutputTokens": options.max_tokens,
        "stopSequences": list(options.stop) or None,
        "seed": options.seed,
        "thinkingConfig": _thinking(options.reasoning_effort),
    }
    return {name: value for name, value in spelled.items() if value is not None}


def _thinking(effort: str | None) -> dict[str, Any] | None:
    if effort is None:
        return None
    return {"thinkingBudget": 0} if effort == "none" else {"thinkingLevel": _LEVELS[effort]}


def _response_format(wanted: ResponseFormat) -> dict[str, Any]:
    spelled: dict[str, Any] = {"responseMimeType": "application/json"}
    if wanted.schema is not None:
        spelled["responseJsonSchema"] = wanted.schema
    return spelled


def _function_calling(choice: ToolChoice) -> dict[str, Any] | None:
    if choice.kind == "auto":
        return None
    if choice.kind == "specific":
        return {"mode": "ANY", "allowedFunctionNames": [wire_name(choice.name, begins_with_letter=True)]}
    return {"mode": "ANY" if choice.kind == "required" else "NONE"}


def _declaration(spec: ToolSpec) -> bytes:
    name = wire_name(spec.name, begins_with_letter=True)
    return format_json({"name": name, "description": spec.description, "parametersJsonSchema": spec.parameters})
