"""Requests of Ollama's own chat API.

Source: https://github.com/ollama/ollama/blob/main/docs/api.md#generate-a-chat-completion
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from typing import Any

from agentloop.errors import BadRequest
from agentloop.inference.config import LLMConfig
from agentloop.inference.wire_formats.body_entries import merged, refuse_twice
from agentloop.inference.wire_formats.call_arguments import arguments_object
from agentloop.inference.wire_formats.wire_format import EncodedRequest
from agentloop.values.encode_once import encode_each
from agentloop.values.inference_request import InferenceOptions, InferenceRequest
from agentloop.values.json_text import format_json
from agentloop.values.message import Message
from agentloop.values.parts import Audio, Document, Image, Reasoning
from agentloop.values.tool_call import ToolCall
from agentloop.values.tool_execution import ToolExchange
from agentloop.values.tool_spec import ToolSpec

NAME = "ollama"
PATH = "/api/chat"
THINKING = "thinking"
"""Under this key a thought tells that it is one of Ollama's, which goes back with the message that it came with."""
_THINK: Mapping[str, bool | str] = {
    "none": False,
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "max",
    "max": "max",
}


def encode_request(request: InferenceRequest, config: LLMConfig, *, stream: bool = False) -> EncodedRequest:
    """Spell a request: a join of segments, each encoded once.

    Names of tools stay as they are; Ollama takes any. Whether several calls may come in one answer is left to the model.

    Raises:
        BadRequest: when the request holds what Ollama cannot carry, or an option spells what the request does; names the
            part.
    """
    if request.tool_choice.kind not in {"auto", "none"} and request.tools:
        raise BadRequest(
            f"Ollama cannot carry the tool choice {request.tool_choice.kind!r}: no model of it can be made to call a tool; "
            "leave it at auto, or use a wire format that can"
        )
    messages = [text for text in encode_each(request.messages, NAME, _message) if text]
    if request.system_prompt:
        messages.insert(0, format_json({"role": "system", "content": request.system_prompt}))
    pieces = [b'{"model":', format_json(request.options.model or config.options.model or config.model)]
    spelled = {"model", "messages", "stream"}
    if request.tools and request.tool_choice.kind == "auto":
        spelled.add("tools")
        pieces += [b',"tools":[', b",".join(encode_each(request.tools, NAME, _tool)), b"]"]
    pieces += [b',"messages":[', b",".join(messages), b'],"stream":', b"true" if stream else b"false"]
    rest = _rest(request, config)
    refuse_twice(rest, spelled)
    pieces.append(b"," + format_json(rest)[1:] if rest else b"}")
    return EncodedRequest(PATH, b"".join(pieces))


def _rest(request: InferenceRequest, config: LLMConfig) -> dict[str, Any]:
    rest: dict[str, Any] = {}
    wanted = request.response_format
    if wanted is not None:
        rest["format"] = "json" if wanted.schema is None else wanted.schema
    for options in (config.options, request.options):
        spelled = {**(rest.get("options") or {}), **_options(options)}
        if spelled:
            rest["options"] = spelled
        if options.reasoning_effort is not None:
            rest["think"] = _THINK[options.reasoning_effort]
        rest = merged(rest, options.extra)
    return rest


def _options(options: InferenceOptions) -> dict[str, Any]:
    spelled = {
        "temperature": options.temperature,
        "top_p": options.top_p,
        "num_predict": options.max_tokens,
        "stop": list(options.stop) or None,
        "seed": options.seed,
    }
    return {name: value for name, value in spelled.items() if value is not None}


def _tool(spec: ToolSpec) -> bytes:
    function = {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
    return format_json({"type": "function", "function": function})


def _message(message: Message) -> bytes:
    if message.role == "assistant":
        return b",".join(map(format_json, _assistant(message)))
    return format_json({"role": message.role, "content": message.text, **_images(message.parts, "a message")})


def _assistant(message: Message) -> list[dict[str, Any]]:
    """Spell a message of the model's, and one with the result of each of its calls."""
    exchanges = message.exchanges
    thoughts = [part.text for part in message.parts if isinstance(part, Reasoning) and NAME in part.provider_data]
    spelled: dict[str, Any] = {"role": "assistant", "content": message.text}
    if any(thoughts):
        spelled[THINKING] = "".join(thoughts)
    spelled |= _images(message.parts, "a message")
    if exchanges:
        spelled["tool_calls"] = [_call(exchange.call) for exchange in exchanges]
    if not message.text and len(spelled) == len(("role", "content")):
        return []
    return [spelled, *map(_result, exchanges)]


def _call(call: ToolCall) -> dict[str, Any]:
    spelled = {"function": {"name": call.name, "arguments": arguments_object(call)}}
    return {"id": call.id, **spelled} if call.id else spelled


def _result(exchange: ToolExchange) -> dict[str, Any]:
    call, execution = exchange.call, exchange.execution
    spelled = {
        "role": "tool",
        "content": execution.text,
        "tool_name": call.name,
        **_images(execution.parts, f"the result of the tool {call.name!r}"),
    }
    return {**spelled, "tool_call_id": call.id} if call.id else spelled


def _images(parts: Iterable[object], where: str) -> dict[str, list[str]]:
    images = []
    for part in parts:
        if isinstance(part, Image) and part.data is not None:
            images.append(base64.b64encode(part.data).decode())
        elif isinstance(part, Image | Audio | Document):
            how = "by URL" if part.url else "by file id" if part.file_id else "by value"
            raise BadRequest(
                f"{where} holds {type(part).__name__} {how}, which Ollama cannot carry; pass pictures by value, or use a "
                "wire format that can"
            )
    return {"images": images} if images else {}
