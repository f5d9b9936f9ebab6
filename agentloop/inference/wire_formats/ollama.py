"""The wire format `ollama`."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from typing import Any

from agentloop.errors import BadRequest
from agentloop.inference.config import LLMConfig
from agentloop.inference.wire_formats.errors import read_whole_answer
from agentloop.inference.wire_formats.fields import merged, refuse_twice
from agentloop.inference.wire_formats.response_builder import ResponseBuilder
from agentloop.inference.wire_formats.stream_decoder import (
    Framing,
    JsonEventDecoder,
    JsonLines,
    PlainDecoder,
    StreamDecoder,
)
from agentloop.inference.wire_formats.wire_format import EncodedRequest, WireFormat
from agentloop.values.inference import (
    FinishReason,
    InferenceDelta,
    InferenceOptions,
    InferenceRequest,
    InferenceResponse,
    Usage,
)
from agentloop.values.json import EMPTY_OBJECT, format_json
from agentloop.values.messages import Message
from agentloop.values.parts import Audio, Document, Image, Reasoning
from agentloop.values.tool_calls import ToolCall, ToolExchange, ToolSpec, arguments_object
from agentloop.values.value import encode_each

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


_FINISH: Mapping[str, FinishReason] = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "tool_calls": FinishReason.TOOL_CALLS,
}
_MARK = {NAME: {THINKING: True}}


class OllamaAnswerReader:
    """Reads an answer.

    Args:
        builder: collects the parts.
    """

    def __init__(self, builder: ResponseBuilder) -> None:
        self._builder = builder
        self._keys = 0
        self._thought: int | None = None
        self._finish: str | None = None
        self._usage = Usage()
        self._model = ""
        self.has_ended: bool = False
        """Whether the answer says that it is done."""

    def take(self, data: Mapping[str, Any]) -> list[InferenceDelta]:
        """Take a line of the answer, or all of it."""
        self._model = self._model or _text(data.get("model"))
        found = self._take_message(data["message"])
        if data.get("done"):
            self.has_ended = True
            reason = data.get("done_reason")
            self._finish = reason if isinstance(reason, str) and reason else None
            self._usage = Usage(_count(data.get("prompt_eval_count")), _count(data.get("eval_count")))
        return found

    def response(self) -> InferenceResponse:
        """Return the whole answer."""
        return InferenceResponse(
            self._builder.parts(), self._finish_reason(), self._usage, self._model, "", self._finish
        )

    def _finish_reason(self) -> FinishReason:
        if self._builder.has_calls and self._finish in {None, "stop"}:
            return FinishReason.TOOL_CALLS
        return FinishReason.UNKNOWN if self._finish is None else _FINISH.get(self._finish, FinishReason.OTHER)

    def _take_message(self, message: Mapping[str, Any]) -> list[InferenceDelta]:
        found: list[InferenceDelta] = []
        thoughts, text = _text(message.get("thinking")), _text(message.get("content"))
        if thoughts:
            if self._thought is None:
                self._thought = self._next_key()
                found += self._builder.reasoning("", self._thought)
                self._builder.mark(self._thought, _MARK)
            found += self._builder.reasoning(thoughts, self._thought)
        if text:
            self._thought = None
            found += self._builder.text(text)
        for call in message.get("tool_calls") or ():
            self._thought = None
            found += self._take_call(call)
        return found

    def _take_call(self, call: Mapping[str, Any]) -> list[InferenceDelta]:
        function = call["function"]
        arguments = function.get("arguments")
        key = self._next_key()
        text = arguments if isinstance(arguments, str) else format_json(arguments or {}).decode()
        return [
            *self._builder.call(key, _text(call.get("id")), _text(function.get("name"))),
            *self._builder.arguments(key, text),
        ]

    def _next_key(self) -> int:
        self._keys += 1
        return self._keys


def _count(value: object) -> int | None:
    """Return a count of tokens; what cannot be one is unknown."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def decode_response(status: int, headers: Mapping[str, str], body: bytes) -> InferenceResponse:
    """Read an answer.

    Raises:
        InferenceError: typed by status and body.
    """
    return read_whole_answer(
        status, headers, body, failure=lambda data: data if has_failed(data) else None, read=_read, what="a chat answer"
    )


def _read(data: Any) -> InferenceResponse:
    reader = OllamaAnswerReader(ResponseBuilder())
    reader.take(data)
    return reader.response()


def has_failed(data: Any) -> bool:
    """Say whether this tells an error instead of an answer."""
    return isinstance(data, dict) and bool(data.get("error"))


class OllamaStreamDecoder(JsonEventDecoder):
    """Reads one streamed answer."""

    plain_begins_with = b"[<"
    """With what a body begins that is no stream: not with an object, since that is what a line is."""

    def __init__(self, plain: PlainDecoder, headers: Mapping[str, str]) -> None:
        super().__init__(plain, headers)
        self._reader = OllamaAnswerReader(self.builder)

    def framing(self) -> Framing:
        """Return what cuts the bytes into events: one of lines."""
        return JsonLines()

    def take(self, data: dict[str, Any], name: str) -> list[InferenceDelta]:
        """Take a line.

        Raises:
            InferenceError: for an error that the provider tells.
        """
        if has_failed(data) or name == "error":
            raise self.failed(data)
        return self._reader.take(data)

    def response(self) -> InferenceResponse:
        """Return the whole answer.

        Raises:
            InferenceError: when the answer does not say that it is done.
        """
        if not self._reader.has_ended:
            raise self.cut_short("it does not say that it is done")
        return self._reader.response()


class Ollama(WireFormat):
    """Ollama's own chat."""

    @property
    def name(self) -> str:
        """`ollama`."""
        return "ollama"

    def encode_request(self, request: InferenceRequest, config: LLMConfig, *, stream: bool = False) -> EncodedRequest:
        """Spell a request.

        Raises:
            BadRequest: when the request holds what Ollama cannot carry, or an option spells what the request does; names
                the part.
        """
        return encode_request(request, config, stream=stream)

    def decode_response(self, status: int, headers: Mapping[str, str], body: bytes) -> InferenceResponse:
        """Read an answer.

        Raises:
            InferenceError: typed by status and body.
        """
        return decode_response(status, headers, body)

    def stream_decoder(self, headers: Mapping[str, str] = EMPTY_OBJECT) -> StreamDecoder:
        """Return a reader of one streamed answer."""
        return OllamaStreamDecoder(decode_response, headers)
