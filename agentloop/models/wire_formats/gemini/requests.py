"""Encoding of requests for generateContent.

Sources: https://ai.google.dev/api/generate-content, https://ai.google.dev/gemini-api/docs/function-calling,
https://ai.google.dev/gemini-api/docs/thought-signatures
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any
from urllib.parse import quote

from agentloop.errors import BadRequest
from agentloop.models.config import LLMConfig
from agentloop.models.model_capabilities import published_capabilities
from agentloop.models.wire_formats.fields import (
    FormatTerms,
    HostedForm,
    bare_media_type,
    describe_media,
    encoded_names,
    is_text_type,
    merge_entries,
    message_content,
    model_of,
    refuse_duplicates,
    sendable_parts,
    wire_name,
)
from agentloop.models.wire_formats.wire_format import EncodedRequest
from agentloop.values.inference import InferenceOptions, InferenceRequest, ResponseFormat, ToolChoice
from agentloop.values.json import format_json
from agentloop.values.messages import Message, Part
from agentloop.values.parts import Audio, Document, Image, ProviderPart, Reasoning, Text
from agentloop.values.tool_calls import ContentPart, ToolCall, ToolExchange, ToolExecution, ToolSpec, arguments_object
from agentloop.values.value import encode_each

NAME = "gemini"
SIGNATURE = "thoughtSignature"
_PLACEHOLDER_SIGNATURE = "skip_thought_signature_validator"
"""The signature that Gemini accepts for calls that have none, such as those of other models, and those read from text."""
_MODEL_PREFIX = b'{"role":"model","parts":['
_THINKING_LEVELS = {
    "minimal": "MINIMAL",
    "low": "LOW",
    "medium": "MEDIUM",
    "high": "HIGH",
    "xhigh": "XHIGH",
    "max": "XHIGH",
}
"""The closest published thinking level for each reasoning effort."""
_MEDIA_TYPES: Mapping[type[ContentPart], frozenset[str]] = {
    Image: frozenset({"image/png", "image/jpeg", "image/webp", "image/heic", "image/heif"}),
    Audio: frozenset(
        {"audio/wav", "audio/mp3", "audio/mpeg", "audio/aiff", "audio/aac", "audio/ogg", "audio/flac"},
    ),
    Document: frozenset(
        {
            "application/pdf",
            "video/mp4",
            "video/mpeg",
            "video/mpg",
            "video/mov",
            "video/quicktime",
            "video/avi",
            "video/x-flv",
            "video/webm",
            "video/wmv",
            "video/3gpp",
        },
    ),
}
"""The types of media that all models accept; text is sent as text."""
_TYPE_ALIASES = {
    "image/jpg": "image/jpeg",
    "audio/x-wav": "audio/wav",
    "audio/wave": "audio/wav",
    "audio/vnd.wave": "audio/wav",
    "audio/x-aiff": "audio/aiff",
    "audio/x-aac": "audio/aac",
    "audio/x-flac": "audio/flac",
}

_TERMS = FormatTerms(
    NAME,
    "Gemini",
    {
        "web_search": HostedForm({"googleSearch": {}}),
        "code_execution": HostedForm({"codeExecution": {}}),
        "file_search": HostedForm(
            {"fileSearch": {}},
            {"stores": "fileSearch.fileSearchStoreNames", "max_results": "fileSearch.topK"},
        ),
    },
)


def encode_request(request: InferenceRequest, config: LLMConfig, *, stream: bool = False) -> EncodedRequest:
    """Encode a request by joining segments, each of which is encoded once.

    The name of the schema of a response format is left out, and the schema is enforced whether or not it is `strict`.

    Raises:
        BadRequest: when Gemini does not support a document, or `options.extra` repeats an entry of the body; names it.
        UnsupportedOption: when Gemini has no equivalent of an option.
    """
    if request.parallel_tool_calls is False and request.tools:
        raise _TERMS.refuse("parallel_tool_calls=False", "remove it, or ask for one call at a time in the prompt")
    segments: list[bytes] = []
    encoded = {"contents"}
    if request.system_prompt:
        encoded.add("systemInstruction")
        system = format_json({"parts": [{"text": request.system_prompt}]})
        segments += [b'"systemInstruction":', system, b","]
    tools = _tools(request, config)
    if tools:
        encoded.add("tools")
        segments += [b'"tools":[', b",".join(tools), b"],"]
    model = model_of(request, config)
    is_signed = published_capabilities(config.provider, model, NAME).signed_calls
    contents = encode_each(request.messages, f"{NAME} signed={is_signed}", partial(_contents, is_signed=is_signed))
    segments += [b'"contents":[', _join_contents(contents), b"]"]
    entries = _entries(request, config)
    refuse_duplicates(entries, encoded)
    segments.append(b"," + format_json(entries)[1:] if entries else b"}")
    path = _path(model, stream=stream)
    names = encoded_names((spec.name for spec in request.tools), letter_first=True)
    return EncodedRequest(path, b"{" + b"".join(segments), tool_names=names)


@lru_cache
def _path(model: str, *, stream: bool) -> str:
    location = quote(model if "/" in model else f"models/{model}", safe="/:@-._~")
    return f"/{location}:streamGenerateContent?alt=sse" if stream else f"/{location}:generateContent"


# --- contents ------------------------------------------------------------------------------------------------------


def _join_contents(segments: list[tuple[bytes, bool]]) -> bytes:
    """Join encoded contents and merge consecutive contents of the model.

    Gemini refuses a call that does not directly follow a content of the user.
    """
    joined: list[bytes] = []
    ends_with_model = False
    for contents, is_model_last in segments:
        if ends_with_model and contents.startswith(_MODEL_PREFIX):
            joined[-1] = joined[-1].removesuffix(b"]}")
            joined.append(contents.removeprefix(_MODEL_PREFIX))
        elif contents:
            joined.append(contents)
        ends_with_model = is_model_last if contents else ends_with_model
    return b",".join(joined)


def _contents(message: Message, *, is_signed: bool) -> tuple[bytes, bool]:
    """Encode a message as zero to three contents: the message, the results of its calls, and the media of these results.

    Media follow in a content of the user, which all models accept: those before Gemini 3 refuse media in a result, all of them
    media by URL there, and none accepts a content with results and something else.

    A system message within the conversation becomes a content of the user, because Gemini supports system instructions at the
    beginning only.

    Args:
        message: the message.
        is_signed: whether the model refuses calls without a signature.

    Returns:
        The contents, joined by commas, and whether the last one has the role of the model.
    """
    if message.role != "assistant":
        parts = [part for part in map(_user_part, message_content(message, _portable_media)) if part]
        return _content("user", parts) if parts else b"", False
    parts = [part for part in map(_part, message.parts) if part]
    if not parts:
        return b"", False
    exchanges = message.exchanges
    if not exchanges:
        return _content("model", parts), True
    if is_signed:
        _add_placeholder_signature(parts)
    contents = [_content("model", parts), _content("user", [_result(exchange) for exchange in exchanges])]
    media = [part for exchange in exchanges for part in _result_media(exchange.execution)]
    if media:
        contents.append(_content("user", media))
    return b",".join(contents), False


def _content(role: str, parts: list[dict[str, Any]]) -> bytes:
    return format_json({"role": role, "parts": parts})


def _part(part: Part) -> Any:
    """Encode a part; None for one that Gemini refuses, such as an empty text, or that belongs to another provider."""
    if isinstance(part, Text):
        signature = _signature(part.provider_data)
        return {"text": part.text, **signature} if part.text or signature else None
    if isinstance(part, Reasoning):
        signature = _signature(part.provider_data)
        return {"text": part.text, "thought": True, **signature} if signature else None
    if isinstance(part, ToolExchange):
        return {"functionCall": _call(part.call), **_signature(part.call.provider_data)}
    if isinstance(part, ProviderPart):
        return part.payload if part.wire_format == NAME and isinstance(part.payload, Mapping) else None
    return {**_media(part), **_signature(part.provider_data)}


def _user_part(part: ContentPart) -> Any:
    # The types of images and audio that are accepted differ by model, those of documents do not.
    if isinstance(part, Document) and part.data is not None:
        _portable_media(part)
    return _part(part)


def _add_placeholder_signature(parts: list[dict[str, Any]]) -> None:
    """Add a placeholder signature to the first call of a message without signatures; only that one needs it."""
    if not any(SIGNATURE in part for part in parts):
        next(part for part in parts if "functionCall" in part)[SIGNATURE] = _PLACEHOLDER_SIGNATURE


def _signature(provider_data: Mapping[str, Any]) -> dict[str, Any]:
    entries = provider_data.get(NAME)
    signature = entries.get(SIGNATURE) if isinstance(entries, Mapping) else None
    return {SIGNATURE: signature} if isinstance(signature, str) else {}


def _call(call: ToolCall) -> dict[str, Any]:
    function_call = {"name": wire_name(call.name, letter_first=True), "args": arguments_object(call)}
    return {"id": call.id, **function_call} if call.id else function_call


def _result(exchange: ToolExchange) -> dict[str, Any]:
    call, execution = exchange.call, exchange.execution
    response: dict[str, Any] = {"id": call.id} if call.id else {}
    response["name"] = wire_name(call.name, letter_first=True)
    response["response"] = {"error" if execution.has_error else "result": _result_value(execution)}
    return {"functionResponse": response}


def _result_media(execution: ToolExecution) -> list[dict[str, Any]]:
    """Return the media of a result below a heading; nothing if it has none."""
    media = [_media(part) for part in _result_parts(execution) if not isinstance(part, Text)]
    return [{"text": f"From the result of the tool {execution.name}:"}, *media] if media else []


def _result_value(execution: ToolExecution) -> Any:
    """Return what the model sees: the value as JSON, or the text that replaces it or describes the error."""
    if execution.has_error or execution.content is None:
        return execution.text if execution.has_error else execution.value
    # A medium is announced at its place in the text; it follows in the next content.
    return "".join(
        [
            part.text if isinstance(part, Text) else f"[{describe_media(part)}: in the next message of the user]"
            for part in _result_parts(execution)
        ]
    )


def _result_parts(execution: ToolExecution) -> list[ContentPart]:
    return sendable_parts(execution.parts, _portable_media)


def _portable_media(part: Image | Audio | Document) -> dict[str, Any]:
    """Encode a medium of a type that all models accept.

    Raises:
        BadRequest: for another type.
    """
    bare, accepted = bare_media_type(_media_type(part)), _MEDIA_TYPES[type(part)]
    # The type of a reference may be unknown, and an uploaded file may be text.
    is_reference = part.data is None and (not bare or is_text_type(bare))
    if bare not in accepted and not is_reference:
        raise BadRequest(
            f"Gemini does not support {type(part).__name__} of type {part.media_type}; convert it to one of "
            f"{', '.join(sorted(accepted))}, or pass its text"
        )
    return _media(part)


def _media_type(part: Image | Audio | Document) -> str:
    return _TYPE_ALIASES.get(part.media_type.lower(), part.media_type)


def _media(part: Image | Audio | Document) -> dict[str, Any]:
    # Gemini names both URLs and uploaded files by URI.
    media_type = _media_type(part)
    if part.data is not None:
        return {"inlineData": {"mimeType": media_type, "data": base64.b64encode(part.data).decode()}}
    file_data = {"fileUri": part.url if part.url is not None else part.file_id}
    return {"fileData": {"mimeType": media_type, **file_data} if media_type else file_data}


# --- tools and options ---------------------------------------------------------------------------------------------


def _declaration(spec: ToolSpec) -> bytes:
    name = wire_name(spec.name, letter_first=True)
    return format_json({"name": name, "description": spec.description, "parametersJsonSchema": spec.parameters})


def _tools(request: InferenceRequest, config: LLMConfig) -> list[bytes]:
    hosted = [*map(format_json, _TERMS.hosted_tools(request, config))]
    if not request.tools:
        return hosted
    declarations = b",".join(encode_each(request.tools, NAME, _declaration))
    return [b'{"functionDeclarations":[' + declarations + b"]}", *hosted]


def _tool_config(request: InferenceRequest, config: LLMConfig) -> dict[str, Any]:
    calling_config = _function_calling_config(request.tool_choice) if request.tools else None
    entries: dict[str, Any] = {} if calling_config is None else {"functionCallingConfig": calling_config}
    # Gemini combines its own tools with functions only if it may send their calls, and get them back; Vertex refuses the entry.
    has_both = request.tools and (request.options.hosted_tools or config.options.hosted_tools)
    if has_both and config.quirks.server_tool_calls:
        entries["includeServerSideToolInvocations"] = True
    return entries


def _entries(request: InferenceRequest, config: LLMConfig) -> dict[str, Any]:
    """Return the entries of the body that follow system instruction, tools and contents."""
    tool_config = _tool_config(request, config)
    entries: dict[str, Any] = {"toolConfig": tool_config} if tool_config else {}
    generation = {} if request.response_format is None else _response_format(request.response_format)
    # Later sources override earlier ones: the configuration, its extra entries, the request, its extra entries.
    for options in (config.options, request.options):
        generation.update(_generation_config(options))
        entries = merge_entries(entries | ({"generationConfig": generation} if generation else {}), options.extra)
        generation = dict(entries.get("generationConfig") or {})
    return entries


def _generation_config(options: InferenceOptions) -> dict[str, Any]:
    entries = {
        "temperature": options.temperature,
        "topP": options.top_p,
        "maxOutputTokens": options.max_tokens,
        "stopSequences": list(options.stop) or None,
        "seed": options.seed,
        "thinkingConfig": _thinking_config(options.reasoning_effort),
        "responseLogprobs": True if options.logprobs or options.top_logprobs is not None else None,
        "logprobs": options.top_logprobs,
    }
    return {name: value for name, value in entries.items() if value is not None}


def _thinking_config(effort: str | None) -> dict[str, Any] | None:
    if effort is None:
        return None
    return {"thinkingBudget": 0} if effort == "none" else {"thinkingLevel": _THINKING_LEVELS[effort]}


def _response_format(response_format: ResponseFormat) -> dict[str, Any]:
    entries: dict[str, Any] = {"responseMimeType": "application/json"}
    if response_format.schema is not None:
        entries["responseJsonSchema"] = response_format.schema
    return entries


def _function_calling_config(choice: ToolChoice) -> dict[str, Any] | None:
    if choice.kind == "auto":
        return None
    if choice.kind == "specific":
        return {"mode": "ANY", "allowedFunctionNames": [wire_name(choice.name, letter_first=True)]}
    return {"mode": "ANY" if choice.kind == "required" else "NONE"}
