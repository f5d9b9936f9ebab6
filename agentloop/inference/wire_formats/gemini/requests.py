"""Requests of generateContent.

Sources: https://ai.google.dev/api/generate-content, https://ai.google.dev/gemini-api/docs/function-calling,
https://ai.google.dev/gemini-api/docs/thought-signatures
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any
from urllib.parse import quote

from agentloop.inference.config import LLMConfig
from agentloop.inference.wire_formats.body_entries import merged, refuse_twice
from agentloop.inference.wire_formats.gemini.contents import contents_of
from agentloop.inference.wire_formats.tool_names import renamed, wire_name
from agentloop.inference.wire_formats.wire_format import EncodedRequest
from agentloop.values.encode_once import encode_each
from agentloop.values.inference_request import InferenceOptions, InferenceRequest, ResponseFormat, ToolChoice
from agentloop.values.json_text import format_json
from agentloop.values.tool_spec import ToolSpec

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
