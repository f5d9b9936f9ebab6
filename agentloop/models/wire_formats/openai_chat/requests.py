"""Encoding of requests for Chat Completions.

Source: https://platform.openai.com/docs/api-reference/chat/create
"""

from __future__ import annotations

import base64
import hashlib
import string
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from agentloop.errors import BadRequest
from agentloop.models.config import LLMConfig
from agentloop.models.presets import Quirks
from agentloop.models.wire_formats.fields import (
    OPENAI_IMAGE_TYPES,
    FormatTerms,
    RequestCache,
    bare_media_type,
    describe_media,
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
from agentloop.values.json import EMPTY_OBJECT, format_json, replace_lone_surrogates
from agentloop.values.messages import Message
from agentloop.values.parts import Audio, Document, Image, Reasoning, Text
from agentloop.values.tool_calls import ContentPart, ToolCall, ToolExecution, ToolSpec, arguments_text
from agentloop.values.value import encode_each

NAME = "openai-chat"
PATH = "/chat/completions"
DETAILS = "reasoning_details"
"""The entry with the structured reasoning of routers, such as OpenRouter."""
EXTRA_CONTENT = "extra_content"
"""The entry of a call with data of the model that must come back with it, such as the signatures of Gemini."""
CUSTOM = "custom"
"""The type of a call whose arguments are free text, and the entry with its name and text."""
_DEFAULT_QUIRKS = Quirks()
_TERMS = FormatTerms(NAME, "Chat Completions")
_AUDIO_FORMATS = {"mpeg": "mp3", "wave": "wav", "vnd.wave": "wav"}
"""The names of audio formats that differ from the MIME subtype."""
_PDF = "application/pdf"
_AUDIO_NAMES = frozenset({"wav", "mp3"})
_ID_CHARACTERS = string.ascii_letters + string.digits
_RECEIVED = Message.assistant("OK.")
"""What the assistant says between results and a message of the user, for services that require a message there."""


def encode_request(
    request: InferenceRequest, config: LLMConfig, *, stream: bool = False, cache: RequestCache | None = None
) -> EncodedRequest:
    """Encode a request by joining segments, each of which is encoded once.

    Args:
        request: the request.
        config: the model and how to reach it.
        stream: whether to request a streamed response.
        cache: what was encoded of the last request of the same execution; None for a request of its own.

    Raises:
        BadRequest: when Chat Completions has no encoding for a message, or `options.extra` repeats an entry of the body;
            names the part.
        UnsupportedOption: when Chat Completions has no equivalent of an option.
    """
    cache = RequestCache() if cache is None else cache
    # Whatever `_encode_settings` reads; the quirks and the model are those of the configuration.
    key = (
        config,
        stream,
        request.system_prompt,
        request.tools,
        request.tool_choice,
        request.parallel_tool_calls,
        request.response_format,
        request.options,
    )
    sent = request.messages if config.quirks.user_after_results else _separated(request.messages)
    messages = cache.join(sent, _fingerprint(config.quirks), partial(encode_message, quirks=config.quirks))
    head, tail, names = cache.settings(key, partial(_encode_settings, request, config, stream=stream))
    separator = b"," if messages and request.system_prompt else b""
    return EncodedRequest.of_clean(PATH, b"".join([head, separator, messages, tail]), names)


def _encode_settings(
    request: InferenceRequest, config: LLMConfig, *, stream: bool
) -> tuple[bytes, bytes, Mapping[str, str]]:
    """Return what precedes the messages of a conversation in the body, what follows them, and the names of tools."""
    segments = [b'{"model":', format_json(model_of(request, config))]
    # Tools come before messages so that each body extends the previous one, which keeps provider-side caches valid.
    encoded = encode_each(request.tools, _fingerprint(config.quirks), _tool)
    tools = [*encoded, *map(format_json, _TERMS.hosted_tools(request, config))]
    if tools:
        segments += [b',"tools":[', b",".join(tools), b"]"]
    segments.append(b',"messages":[')
    if request.system_prompt:
        segments.append(format_json({"role": "system", "content": request.system_prompt}))
    entries = _entries(request, config, has_tools=bool(tools), stream=stream)
    refuse_duplicates(entries, {"model", "messages", "tools"} if tools else {"model", "messages"})
    tail = b"]," + format_json(entries)[1:] if entries else b"]}"
    names = encoded_names(spec.name for spec in request.tools)
    return replace_lone_surrogates(b"".join(segments)), replace_lone_surrogates(tail), names


@lru_cache
def _fingerprint(quirks: Quirks) -> str:
    return f"{NAME} {quirks}"


def _entries(request: InferenceRequest, config: LLMConfig, *, has_tools: bool, stream: bool) -> dict[str, Any]:
    """Return the entries of the body that follow model, tools and messages."""
    entries: dict[str, Any] = {}
    if stream:
        entries["stream"] = True
        if config.quirks.stream_usage:
            entries["stream_options"] = {"include_usage": True}
    if has_tools:
        choice = _tool_choice(request.tool_choice)
        if choice is not None:
            entries["tool_choice"] = choice
        if request.parallel_tool_calls is not None:
            entries["parallel_tool_calls"] = request.parallel_tool_calls
    if request.response_format is not None:
        entries["response_format"] = _response_format(request.response_format)
    # Later entries override earlier ones: the request, the options of the configuration, the options of the request.
    return {**entries, **_options(config.options, config.quirks), **_options(request.options, config.quirks)}


def _options(options: InferenceOptions, quirks: Quirks) -> dict[str, Any]:
    entries = {
        "temperature": options.temperature,
        "top_p": options.top_p,
        quirks.max_tokens_field: options.max_tokens,
        "stop": list(options.stop) or None,
        "seed": options.seed,
        "reasoning_effort": options.reasoning_effort,
        "logprobs": True if options.logprobs or options.top_logprobs is not None else None,
        "top_logprobs": options.top_logprobs,
    }
    return {**{name: value for name, value in entries.items() if value is not None}, **options.extra}


def _tool_choice(choice: ToolChoice) -> Any:
    if choice.kind == "auto":
        return None
    if choice.kind == "specific":
        return {"type": "function", "function": {"name": wire_name(choice.name)}}
    return choice.kind


def _response_format(response_format: ResponseFormat) -> dict[str, Any]:
    if response_format.schema is None:
        return {"type": "json_object"}
    name = wire_name(response_format.name)
    schema = {"name": name, "schema": response_format.schema, "strict": response_format.strict}
    return {"type": "json_schema", "json_schema": schema}


def _tool(spec: ToolSpec) -> bytes:
    parameters = complete_parameters(spec.parameters)
    function = {"name": wire_name(spec.name), "description": spec.description, "parameters": parameters}
    return format_json({"type": "function", "function": function})


def _separated(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return messages with one of the assistant between results and a message that is not the assistant's."""
    separated: list[Message] = []
    for message in messages:
        if message.role != "assistant" and separated and separated[-1].exchanges:
            separated.append(_RECEIVED)
        separated.append(message)
    return tuple(separated)


def encode_message(message: Message, quirks: Quirks = _DEFAULT_QUIRKS) -> bytes:
    """Encode a message as zero or more messages of Chat Completions, joined by commas.

    Raises:
        BadRequest: when Chat Completions has no encoding for a part; names it.
    """
    if message.role == "assistant":
        return b",".join(map(format_json, _assistant(message, quirks)))
    return format_json({"role": message.role, "content": _content(message_content(message, _portable_part))})


def _assistant(message: Message, quirks: Quirks) -> list[dict[str, Any]]:
    for part in message.parts:
        if isinstance(part, Image | Audio | Document):
            raise BadRequest(
                f"Chat Completions does not support {type(part).__name__} in an assistant message; remove it, or use a "
                "wire format that supports it"
            )
    exchanges = message.exchanges
    # The provider refuses an assistant message without content and calls.
    if not exchanges and not message.text:
        return []
    assistant: dict[str, Any] = {"role": "assistant", **_assistant_text(message)}
    if not exchanges:
        return [assistant]
    assistant |= _returned_reasoning(message, quirks.reasoning_field)
    # Results refer to calls by id, so that ids must be unique within the message.
    limited = [limited_call_id(id_, quirks.max_call_id_length) for id_ in unique_call_ids(exchanges)]
    ids = [_call_id(id_, quirks.call_id_length) for id_ in limited]
    assistant["tool_calls"] = [_call(exchange.call, id_) for exchange, id_ in zip(exchanges, ids, strict=True)]
    results: list[dict[str, Any]] = []
    media: list[ContentPart] = []
    for call_id, exchange in zip(ids, exchanges, strict=True):
        text, others = _result(exchange.execution)
        results.append({"role": "tool", "tool_call_id": call_id, "content": text})
        media += others
    if not media:
        return [assistant, *results]
    # Results contain text only, and no other message may stand between them, so media follow in a user message.
    received = [] if quirks.user_after_results else _assistant(_RECEIVED, quirks)
    return [assistant, *results, *received, {"role": "user", "content": _content(media)}]


@lru_cache(maxsize=4096)
def _call_id(call_id: str, length: int) -> str:
    """Return the id, or for a service that refuses it, one of this length that is derived from it; different ids stay different."""
    if not length or (len(call_id) == length and call_id.isascii() and call_id.isalnum()):
        return call_id
    number = int.from_bytes(hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).digest())
    base = len(_ID_CHARACTERS)
    return "".join([_ID_CHARACTERS[number // base**place % base] for place in range(length)])


def _returned_reasoning(message: Message, name: str) -> dict[str, Any]:
    """Return the reasoning of a message with calls, for a service that must get it back."""
    if not name:
        return {}
    thoughts = [part for part in message.parts if isinstance(part, Reasoning)]
    if name != DETAILS:
        # Also the message of another model, which did not think, needs the entry.
        return {name: "".join([part.text for part in thoughts])}
    # Only the service that wrote the details understands them.
    details = [detail for part in thoughts for detail in own_data(part).get(DETAILS) or ()]
    return {name: details} if details else {}


def own_data(part: Text | Reasoning | ToolCall) -> Mapping[str, Any]:
    """Return the provider data of this wire format in a part."""
    data = part.provider_data.get(NAME)
    return data if isinstance(data, dict) else EMPTY_OBJECT


def _call(call: ToolCall, call_id: str) -> dict[str, Any]:
    state = own_data(call)
    if state.get("type") == CUSTOM:
        return {"id": call_id, "type": CUSTOM, CUSTOM: {"name": wire_name(call.name), "input": call.arguments_json}}
    function = {"name": wire_name(call.name), "arguments": arguments_text(call)}
    extra = state.get(EXTRA_CONTENT)
    return {"id": call_id, "type": "function", "function": function, **({EXTRA_CONTENT: extra} if extra else {})}


def _assistant_text(message: Message) -> dict[str, Any]:
    """Encode the text of an assistant message; a refusal has an entry of its own."""
    texts = [part for part in message.parts if isinstance(part, Text)]
    # The only provider data of this format in a text marks refusals.
    refusals = [part.text for part in texts if NAME in part.provider_data]
    text = "".join(part.text for part in texts if NAME not in part.provider_data)
    return {"content": text or None, **({"refusal": "".join(refusals)} if refusals else {})}


def _result(execution: ToolExecution) -> tuple[str, list[ContentPart]]:
    """Return the text of a result, and its media with a heading for the user message that follows."""
    texts: list[str] = []
    media: list[ContentPart] = []
    for part in sendable_parts(execution.parts, _portable_part):
        if isinstance(part, Text):
            texts.append(part.text)
        else:
            texts.append(f"[{describe_media(part)}: in the next message of the user]")
            media.append(part)
    heading = [Text(f"From the result of the tool {execution.name}:")] if media else []
    return "".join(texts), [*heading, *media]


def _content(parts: list[ContentPart]) -> Any:
    # A string is understood by all services; some do not support a list of parts.
    if all(isinstance(part, Text) for part in parts):
        return "".join(part.text for part in parts if isinstance(part, Text))
    return [_part(part) for part in parts]


def _portable_part(part: Image | Audio | Document) -> dict[str, Any]:
    """Encode a medium of a type that OpenAI accepts.

    Other services accept more types. A user who sends one of them knows the service, but a tool does not.

    Raises:
        BadRequest: when Chat Completions has no encoding for it, or OpenAI refuses its type.
    """
    media_type = bare_media_type(part.media_type)
    if isinstance(part, Image):
        is_portable = media_type in OPENAI_IMAGE_TYPES
    elif isinstance(part, Audio):
        is_portable = _audio_name(part) in _AUDIO_NAMES
    else:
        is_portable = media_type == _PDF
    if part.data is not None and not is_portable:
        raise BadRequest(f"OpenAI does not support {type(part).__name__} of type {part.media_type}; convert it")
    return _part(part)


def _part(part: ContentPart) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if isinstance(part, Image) and part.file_id is None:
        return {"type": "image_url", "image_url": {"url": part.url or _data_url(part)}}
    if isinstance(part, Audio) and part.data is not None:
        audio = {"data": base64.b64encode(part.data).decode(), "format": _audio_name(part)}
        return {"type": "input_audio", "input_audio": audio}
    if isinstance(part, Document) and part.file_id is not None:
        return {"type": "file", "file": {"file_id": part.file_id}}
    if isinstance(part, Document) and part.data is not None:
        # The provider requires a file name.
        name = part.name or f"document.{_subtype(part.media_type)}"
        return {"type": "file", "file": {"file_data": _data_url(part), "filename": name}}
    how = "by URL" if part.url else "by file id" if part.file_id else "by value"
    raise BadRequest(f"Chat Completions does not support {type(part).__name__} {how}; pass it in another way")


def _audio_name(part: Audio) -> str:
    subtype = _subtype(part.media_type)
    return _AUDIO_FORMATS.get(subtype, subtype)


def _subtype(media_type: str) -> str:
    """Return `pdf` for `application/pdf`, `wav` for `audio/x-wav; codecs=1`."""
    return bare_media_type(media_type).rpartition("/")[2].removeprefix("x-")


def _data_url(part: Image | Audio | Document) -> str:
    return f"data:{part.media_type};base64,{base64.b64encode(part.data or b'').decode()}"
