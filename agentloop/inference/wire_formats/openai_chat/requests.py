"""Requests of Chat Completions.

Source: https://platform.openai.com/docs/api-reference/chat/create
"""

from __future__ import annotations

import base64
from functools import lru_cache, partial
from typing import Any

from agentloop.errors import BadRequest
from agentloop.inference.config import LLMConfig
from agentloop.inference.presets import Quirks
from agentloop.inference.wire_formats.fields import renamed, turn_ids, wire_name
from agentloop.inference.wire_formats.wire_format import EncodedRequest
from agentloop.values.inference import InferenceOptions, InferenceRequest, ResponseFormat, ToolChoice
from agentloop.values.json import format_json
from agentloop.values.messages import Message
from agentloop.values.parts import Audio, Document, Image, Text
from agentloop.values.tool_calls import ContentPart, ToolExecution, ToolSpec, arguments_text
from agentloop.values.value import encode_each

PATH = "/chat/completions"
_PLAIN = Quirks()
_AUDIO = {"mpeg": "mp3", "wave": "wav", "vnd.wave": "wav"}
"""What Chat Completions calls kinds of sound whose MIME types say otherwise."""


def encode_request(request: InferenceRequest, config: LLMConfig, *, stream: bool = False) -> EncodedRequest:
    """Spell a request: a join of segments, each encoded once.

    Raises:
        BadRequest: when a message holds what Chat Completions cannot carry, or an option spells what the request does; names
            the part.
    """
    mark = _fingerprint(config.quirks)
    messages = [
        text for text in encode_each(request.messages, mark, partial(encode_message, quirks=config.quirks)) if text
    ]
    if request.system_prompt:
        messages.insert(0, format_json({"role": "system", "content": request.system_prompt}))
    model = format_json(request.options.model or config.options.model or config.model)
    pieces = [b'{"model":', model]
    if request.tools:
        pieces += [b',"tools":[', b",".join(encode_each(request.tools, mark, _tool)), b"]"]
    pieces += [b',"messages":[', b",".join(messages), b"]"]
    rest = format_json(_checked(_rest(request, config, stream=stream), request))
    pieces += [b"," + rest[1:]] if len(rest) > len(b"{}") else [b"}"]
    names = renamed(spec.name for spec in request.tools)
    return EncodedRequest(PATH, b"".join(pieces), tool_names=names)


@lru_cache
def _fingerprint(quirks: Quirks) -> str:
    return f"openai-chat {quirks}"


def _rest(request: InferenceRequest, config: LLMConfig, *, stream: bool) -> dict[str, Any]:
    rest: dict[str, Any] = {}
    if stream:
        rest["stream"] = True
        if config.quirks.stream_usage:
            rest["stream_options"] = {"include_usage": True}
    if request.tools:
        choice = _tool_choice(request.tool_choice)
        if choice is not None:
            rest["tool_choice"] = choice
        if request.parallel_tool_calls is not None:
            rest["parallel_tool_calls"] = request.parallel_tool_calls
    if request.response_format is not None:
        rest["response_format"] = _response_format(request.response_format)
    return {**rest, **_options(config.options, config.quirks), **_options(request.options, config.quirks)}


def _checked(rest: dict[str, Any], request: InferenceRequest) -> dict[str, Any]:
    """Refuse what would stand twice in the body; which of the two a service reads cannot be known."""
    twice = rest.keys() & ({"model", "messages", "tools"} if request.tools else {"model", "messages"})
    if twice:
        raise BadRequest(
            f"options.extra holds {', '.join(sorted(twice))}, which the request itself spells; leave it out there"
        )
    return rest


def _options(options: InferenceOptions, quirks: Quirks) -> dict[str, Any]:
    spelled = {
        "temperature": options.temperature,
        "top_p": options.top_p,
        quirks.max_tokens_field: options.max_tokens,
        "stop": list(options.stop) or None,
        "seed": options.seed,
        "reasoning_effort": options.reasoning_effort,
    }
    return {**{name: value for name, value in spelled.items() if value is not None}, **options.extra}


def _tool_choice(choice: ToolChoice) -> Any:
    if choice.kind == "auto":
        return None
    if choice.kind == "specific":
        return {"type": "function", "function": {"name": wire_name(choice.name)}}
    return choice.kind


def _response_format(wanted: ResponseFormat) -> dict[str, Any]:
    if wanted.schema is None:
        return {"type": "json_object"}
    described = {"name": wire_name(wanted.name), "schema": wanted.schema, "strict": wanted.strict}
    return {"type": "json_schema", "json_schema": described}


def _tool(spec: ToolSpec) -> bytes:
    function = {"name": wire_name(spec.name), "description": spec.description, "parameters": spec.parameters}
    return format_json({"type": "function", "function": function})


def encode_message(message: Message, quirks: Quirks = _PLAIN) -> bytes:  # noqa: ARG001  # every encoder of a message takes the quirks
    """Spell a message, as messages joined by commas; some messages are none.

    Raises:
        BadRequest: when it holds what Chat Completions cannot carry; names the part.
    """
    if message.role == "assistant":
        return b",".join(map(format_json, _assistant(message)))
    content = _content([part for part in message.parts if isinstance(part, Text | Image | Audio | Document)])
    return format_json({"role": message.role, "content": content})


def _assistant(message: Message) -> list[dict[str, Any]]:
    for part in message.parts:
        if isinstance(part, Image | Audio | Document):
            raise BadRequest(
                f"Chat Completions cannot carry {type(part).__name__} in a message of the assistant; leave it out, or use a "
                "wire format that can"
            )
    exchanges, text = message.exchanges, message.text
    if not exchanges and not text:
        return []
    spelled: dict[str, Any] = {"role": "assistant", **_said(message)}
    if not exchanges:
        return [spelled]
    ids = turn_ids(exchanges)
    spelled["tool_calls"] = [
        {
            "id": call_id,
            "type": "function",
            "function": {"name": wire_name(exchange.call.name), "arguments": arguments_text(exchange.call)},
        }
        for call_id, exchange in zip(ids, exchanges, strict=True)
    ]
    results = [
        {"role": "tool", "tool_call_id": call_id, "content": _result(exchange.execution)}
        for call_id, exchange in zip(ids, exchanges, strict=True)
    ]
    return [spelled, *results]


def _said(message: Message) -> dict[str, Any]:
    """Spell the text of an assistant; a refusal has a place of its own."""
    texts = [part for part in message.parts if isinstance(part, Text)]
    refused = [part.text for part in texts if "openai-chat" in part.provider_data]
    text = "".join(part.text for part in texts if "openai-chat" not in part.provider_data)
    return {"content": text or None, **({"refusal": "".join(refused)} if refused else {})}


def _result(execution: ToolExecution) -> str:
    for part in execution.parts:
        if not isinstance(part, Text):
            raise BadRequest(
                f"the result of the tool {execution.name!r} holds {type(part).__name__}, which Chat Completions cannot "
                "carry in a tool message; return text, or use a wire format that can"
            )
    return execution.text


def _content(parts: list[ContentPart]) -> Any:
    if all(isinstance(part, Text) for part in parts):
        return "".join(part.text for part in parts if isinstance(part, Text))
    return [_part(part) for part in parts]


def _part(part: ContentPart) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if isinstance(part, Image) and part.file_id is None:
        return {"type": "image_url", "image_url": {"url": part.url or _data_url(part)}}
    if isinstance(part, Audio) and part.data is not None:
        kind = _subtype(part.media_type)
        spelled = {"data": base64.b64encode(part.data).decode(), "format": _AUDIO.get(kind, kind)}
        return {"type": "input_audio", "input_audio": spelled}
    if isinstance(part, Document) and part.file_id is not None:
        return {"type": "file", "file": {"file_id": part.file_id}}
    if isinstance(part, Document) and part.data is not None:
        name = part.name or f"document.{_subtype(part.media_type)}"
        return {"type": "file", "file": {"file_data": _data_url(part), "filename": name}}
    how = "by URL" if part.url else "by file id" if part.file_id else "by value"
    raise BadRequest(f"Chat Completions cannot carry {type(part).__name__} {how}; pass it in another way")


def _subtype(media_type: str) -> str:
    """Return `pdf` of `application/pdf`, `wav` of `audio/x-wav; codecs=1`."""
    return media_type.partition(";")[0].strip().lower().rpartition("/")[2].removeprefix("x-")


def _data_url(part: Image | Audio | Document) -> str:
    return f"data:{part.media_type};base64,{base64.b64encode(part.data or b'').decode()}"
