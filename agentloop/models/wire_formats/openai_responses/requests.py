"""Encoding of requests for the Responses API.

The conversation is stored on our side: requests set `store: false` and contain all of it, unless `options.extra` overrides
`store`.

Source: https://platform.openai.com/docs/api-reference/responses/create
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from agentloop.errors import BadRequest
from agentloop.models.config import LLMConfig
from agentloop.models.wire_formats.fields import (
    OPENAI_IMAGE_TYPES,
    FormatTerms,
    HostedForm,
    bare_media_type,
    encoded_names,
    limited_call_id,
    message_content,
    model_of,
    refuse_duplicates,
    sendable_parts,
    unique_call_ids,
    wire_name,
)
from agentloop.models.wire_formats.schemas import complete_parameters
from agentloop.models.wire_formats.wire_format import EncodedRequest
from agentloop.values.inference import InferenceOptions, InferenceRequest, ResponseFormat, ToolChoice
from agentloop.values.json import EMPTY_OBJECT, format_json
from agentloop.values.messages import Message, Part
from agentloop.values.parts import Audio, Document, Image, ProviderPart, Reasoning, Text
from agentloop.values.tool_calls import ContentPart, ToolExchange, ToolSpec, arguments_text
from agentloop.values.value import encode_each

NAME = "openai-responses"
PATH = "/responses"
CUSTOM_CALL = "custom_tool_call"
"""The type of a call whose arguments are free text."""
_OFFICE = "application/vnd.openxmlformats-officedocument"
_DOCUMENT_TYPES = frozenset(
    {
        "application/pdf",
        "application/json",
        "application/rtf",
        "application/msword",
        "application/vnd.ms-excel",
        "application/vnd.ms-powerpoint",
        "application/vnd.oasis.opendocument.text",
        f"{_OFFICE}.wordprocessingml.document",
        f"{_OFFICE}.spreadsheetml.sheet",
        f"{_OFFICE}.presentationml.presentation",
    }
)
_MAX_CALL_ID = 64
_ENCRYPTED_REASONING = "reasoning.encrypted_content"
_LOGPROBS = "message.output_text.logprobs"
_TERMS = FormatTerms(
    NAME,
    "the Responses API",
    {
        "web_search": HostedForm({"type": "web_search"}, {"allowed_domains": "filters.allowed_domains"}),
        "code_execution": HostedForm({"type": "code_interpreter", "container": {"type": "auto"}}),
        "file_search": HostedForm(
            {"type": "file_search"}, {"stores": "vector_store_ids", "max_results": "max_num_results"}
        ),
    },
)


def encode_request(request: InferenceRequest, config: LLMConfig, *, stream: bool = False) -> EncodedRequest:
    """Encode a request by joining segments, each of which is encoded once.

    The entries of `options.extra` are added to the body: `text` and `reasoning` are merged with those of the request, and the
    items of `tools` (the provider's own tools) and `include` are appended.

    Raises:
        BadRequest: when the Responses API has no encoding for a message, or `options.extra` repeats an entry of the body; names
            it.
        UnsupportedOption: when the Responses API has no equivalent of an option.
    """
    _TERMS.refuse_options(request, config, "stop", "seed")
    entries = _entries(request, config, stream=stream)
    hosted = map(format_json, [*_TERMS.hosted_tools(request, config), *entries.pop("tools", ())])
    tools = [*encode_each(request.tools, NAME, _tool), *hosted]
    # The provider refuses both options without tools.
    if not tools:
        entries.pop("tool_choice", None)
        entries.pop("parallel_tool_calls", None)
    # `options.extra` may enable storage, which changes the encoding of messages.
    is_stored = entries["store"] is True
    encode = partial(encode_message, is_stored=is_stored)
    items = [segment for segment in encode_each(request.messages, f"{NAME} stored={is_stored}", encode) if segment]
    segments = [b'{"model":', format_json(model_of(request, config))]
    if request.system_prompt:
        segments += [b',"instructions":', format_json(request.system_prompt)]
    if tools:
        segments += [b',"tools":[', b",".join(tools), b"]"]
    segments += [b',"input":[', b",".join(items), b"],", format_json(entries)[1:]]
    return EncodedRequest(PATH, b"".join(segments), tool_names=encoded_names(spec.name for spec in request.tools))


# --- input items ---------------------------------------------------------------------------------------------------


def encode_message(message: Message, *, is_stored: bool) -> bytes:
    """Encode a message as zero or more input items, joined by commas.

    Args:
        message: the message.
        is_stored: whether the provider stores its responses, so that the id of an item is sufficient.

    Raises:
        BadRequest: when the Responses API does not support a part; names it.
    """
    if message.role == "assistant":
        return b",".join(map(format_json, _assistant(message, is_stored=is_stored)))
    parts = message_content(message, _portable_part)
    return format_json({"type": "message", "role": message.role, "content": _content(parts, "a message")})


def _assistant(message: Message, *, is_stored: bool) -> list[dict[str, Any]]:
    """Return the items of a response in their original order, followed by the outputs of its calls."""
    call_ids = iter([limited_call_id(id_, _MAX_CALL_ID) for id_ in unique_call_ids(message.exchanges)])
    answered_ids = _answered_ids(message.parts)
    items: list[dict[str, Any]] = []
    outputs: list[dict[str, Any]] = []
    for part in message.parts:
        if isinstance(part, Text):
            _add_text(items, part)
        elif isinstance(part, Reasoning):
            _add_reasoning(items, part, is_stored=is_stored)
        elif isinstance(part, ToolExchange):
            call_id = next(call_ids)
            items.append(_call(part, call_id))
            outputs.append(_output(part, call_id))
        elif isinstance(part, ProviderPart):
            _add_opaque(items, part, answered_ids)
        else:
            raise BadRequest(
                f"the Responses API does not support {type(part).__name__} in an assistant message; remove it, or use a wire "
                "format that supports it"
            )
    _drop_trailing_reasoning(items)
    return [*items, *outputs]


def provider_state(provider_data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the entries of this wire format in the provider data of a part."""
    state = provider_data.get(NAME)
    return state if isinstance(state, dict) else EMPTY_OBJECT


def _add_text(items: list[dict[str, Any]], part: Text) -> None:
    """Add a text to the message item that it came in, or as a new item."""
    state = provider_state(part.provider_data)
    item = state.get("item")
    if not isinstance(item, dict) or not item.get("id"):
        # The text of another provider, or one that an interceptor replaced.
        if part.text:
            items.append({"type": "message", "role": "assistant", "content": part.text})
        return
    output = _output_text(part.text, state.get("content"))
    # Consecutive texts of one message item are its contents; the provider refuses an item id that occurs twice.
    contents = items[-1].get("content") if items and items[-1].get("id") == item["id"] else None
    if isinstance(contents, list):
        contents.append(output)
    else:
        items.append({"status": "completed", **item, "type": "message", "role": "assistant", "content": [output]})


def _output_text(text: str, content: object) -> dict[str, Any]:
    content = content if isinstance(content, dict) else EMPTY_OBJECT
    if content.get("type") == "refusal":
        return {"type": "refusal", "refusal": text}
    return {"type": "output_text", "text": text, "annotations": content.get("annotations") or []}


def _add_reasoning(items: list[dict[str, Any]], part: Reasoning, *, is_stored: bool) -> None:
    """Add reasoning of this wire format unchanged; without stored responses it needs more than an id."""
    item = provider_state(part.provider_data)
    if item.get("id") and (is_stored or item.get("encrypted_content") or item.get("content")):
        items.append({"summary": [], **item, "type": "reasoning"})


def _add_opaque(items: list[dict[str, Any]], part: ProviderPart, answered_ids: frozenset[object]) -> None:
    """Add an item of this wire format unchanged, except a call without an output, which the provider refuses."""
    item = part.payload
    # Items of other providers mean nothing to this one.
    if part.wire_format != NAME or not isinstance(item, dict):
        return
    if _needs_output(item) and item.get("call_id") not in answered_ids:
        _drop_trailing_reasoning(items)
    else:
        items.append(item)


def _needs_output(item: Mapping[str, Any]) -> bool:
    """Return whether an item is a call whose output the client provides."""
    return str(item.get("type")).endswith("_call") and bool(item.get("call_id"))


def _answered_ids(parts: Iterable[Part]) -> frozenset[object]:
    """Return the ids of the calls whose output the provider included."""
    payloads = [part.payload for part in parts if isinstance(part, ProviderPart)]
    return frozenset(
        item.get("call_id") or item.get("id")
        for item in payloads
        if isinstance(item, dict) and str(item.get("type")).endswith("_output")
    )


def _drop_trailing_reasoning(items: list[dict[str, Any]]) -> None:
    # The provider refuses reasoning that is not followed by another item of the response.
    while items and items[-1].get("type") == "reasoning":
        items.pop()


def _call(exchange: ToolExchange, call_id: str) -> dict[str, Any]:
    call = exchange.call
    state, name = provider_state(call.provider_data), wire_name(call.name)
    if state.get("type") == CUSTOM_CALL:
        return {**state, "type": CUSTOM_CALL, "call_id": call_id, "name": name, "input": call.arguments_json}
    return {**state, "type": "function_call", "call_id": call_id, "name": name, "arguments": arguments_text(call)}


def _output(exchange: ToolExchange, call_id: str) -> dict[str, Any]:
    state = provider_state(exchange.call.provider_data)
    kind = f"{CUSTOM_CALL}_output" if state.get("type") == CUSTOM_CALL else "function_call_output"
    content = _content(sendable_parts(exchange.execution.parts, _portable_part), "a result")
    output = {"type": kind, "call_id": call_id, "output": content}
    return {**output, "caller": state["caller"]} if state.get("caller") else output


def _content(parts: Iterable[ContentPart], container: str) -> Any:
    parts = tuple(parts)
    if all(isinstance(part, Text) for part in parts):
        return "".join(part.text for part in parts if isinstance(part, Text))
    return [_part(part, container) for part in parts]


def _portable_part(part: Image | Audio | Document) -> dict[str, Any]:
    """Encode a medium of a type that OpenAI accepts; other services, and files of users, may have further ones.

    Raises:
        BadRequest: for another type.
    """
    media_type = bare_media_type(part.media_type)
    types = OPENAI_IMAGE_TYPES if isinstance(part, Image) else _DOCUMENT_TYPES
    is_text = isinstance(part, Document) and media_type.startswith("text/")
    if part.data is not None and media_type not in types and not is_text:
        raise BadRequest(f"OpenAI does not support {type(part).__name__} of type {part.media_type}; convert it")
    return _part(part, "a result")


def _part(part: ContentPart, container: str) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"type": "input_text", "text": part.text}
    if isinstance(part, Audio):
        raise BadRequest(
            f"{container} contains Audio, which the Responses API does not support; use a wire format that supports it"
        )
    item: dict[str, Any] = (
        {"type": "input_image", "detail": "auto"} if isinstance(part, Image) else {"type": "input_file"}
    )
    if part.file_id is not None:
        item["file_id"] = part.file_id
    elif isinstance(part, Image):
        item["image_url"] = part.url or _data_url(part)
    elif part.url is not None:
        item["file_url"] = part.url
    else:
        subtype = part.media_type.partition(";")[0].strip().rpartition("/")[2]
        item["filename"] = part.name or f"document.{subtype}"
        item["file_data"] = _data_url(part)
    return item


def _data_url(part: Image | Document) -> str:
    return f"data:{part.media_type};base64,{base64.b64encode(part.data or b'').decode()}"


# --- tools and options ---------------------------------------------------------------------------------------------


def _tool(spec: ToolSpec) -> bytes:
    # Strict mode refuses most schemas, and the arguments are validated before a tool runs in any case.
    return format_json(
        {
            "type": "function",
            "name": wire_name(spec.name),
            "description": spec.description,
            "parameters": complete_parameters(spec.parameters),
            "strict": False,
        }
    )


def _entries(request: InferenceRequest, config: LLMConfig, *, stream: bool) -> dict[str, Any]:
    """Return the entries of the body besides model, instructions and input; `tools` are those of `options.extra`."""
    entries: dict[str, Any] = {"store": False}
    if request.tool_choice.kind != "auto":
        entries["tool_choice"] = _tool_choice(request.tool_choice)
    if request.parallel_tool_calls is not None:
        entries["parallel_tool_calls"] = request.parallel_tool_calls
    if request.response_format is not None:
        entries["text"] = {"format": _text_format(request.response_format)}
    for options in (config.options, request.options):
        entries = _merge(_merge(entries, _options(options)), _check_extra(options.extra, request))
    if stream:
        entries["stream"] = True
    # Models without reasoning refuse a request for encrypted reasoning.
    if entries["store"] is not True and _is_reasoning_enabled(entries.get("reasoning")):
        entries = _merge({"include": [_ENCRYPTED_REASONING]}, entries)
    return entries


def _options(options: InferenceOptions) -> dict[str, Any]:
    effort = options.reasoning_effort
    has_logprobs = options.logprobs or options.top_logprobs is not None
    entries = {
        "temperature": options.temperature,
        "top_p": options.top_p,
        "max_output_tokens": options.max_tokens,
        "reasoning": {"effort": effort} if effort else None,
        "include": [_LOGPROBS] if has_logprobs else None,
        "top_logprobs": options.top_logprobs,
    }
    return {name: value for name, value in entries.items() if value is not None}


def _check_extra(extra: Mapping[str, Any], request: InferenceRequest) -> Mapping[str, Any]:
    refuse_duplicates(extra, ["model", "input", "stream", *(["instructions"] if request.system_prompt else [])])
    for name in ("tools", "include"):
        if not isinstance(extra.get(name, ()), list | tuple):
            raise BadRequest(f"{name!r} in options.extra must be a list")
    return extra


def _merge(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of both, where the second overrides the first; some objects are merged, some lists concatenated."""
    merged = dict(first)
    for name, value in second.items():
        current = merged.get(name)
        if name in {"text", "reasoning"} and isinstance(current, dict) and isinstance(value, dict):
            merged[name] = {**current, **value}
        elif name in {"tools", "include"} and current:
            merged[name] = [*current, *(item for item in value if item not in current)]
        else:
            merged[name] = value
    return merged


def _is_reasoning_enabled(reasoning: object) -> bool:
    return isinstance(reasoning, dict) and reasoning.get("effort") != "none"


def _tool_choice(choice: ToolChoice) -> Any:
    return {"type": "function", "name": wire_name(choice.name)} if choice.kind == "specific" else choice.kind


def _text_format(response_format: ResponseFormat) -> dict[str, Any]:
    if response_format.schema is None:
        return {"type": "json_object"}
    return {
        "type": "json_schema",
        "name": wire_name(response_format.name),
        "schema": response_format.schema,
        "strict": response_format.strict,
    }
