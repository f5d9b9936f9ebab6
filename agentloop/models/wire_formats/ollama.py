"""The wire format `ollama`: Ollama's native chat API.

Source: https://docs.ollama.com/api/chat
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from typing import Any

from agentloop.errors import BadRequest
from agentloop.models.config import LLMConfig
from agentloop.models.wire_formats.decoding import BodyDecoder, JsonEventDecoder, decode_body, finish_reason, reason_of
from agentloop.models.wire_formats.fields import (
    FormatTerms,
    count_of,
    merge_entries,
    message_content,
    model_of,
    read_logprobs,
    refuse_duplicates,
    sendable_parts,
    text_of,
)
from agentloop.models.wire_formats.framing import Framing, JsonLines
from agentloop.models.wire_formats.response_builder import ResponseBuilder
from agentloop.models.wire_formats.wire_format import EncodedRequest, StreamDecoder, WireFormat
from agentloop.values.inference import (
    FinishReason,
    InferenceDelta,
    InferenceOptions,
    InferenceRequest,
    InferenceResponse,
    TokenLogprob,
    Usage,
)
from agentloop.values.json import EMPTY_OBJECT, format_json
from agentloop.values.messages import Message
from agentloop.values.parts import Audio, Document, Image, Reasoning, Text
from agentloop.values.tool_calls import ContentPart, ToolCall, ToolExchange, ToolSpec, arguments_object
from agentloop.values.value import encode_each

NAME = "ollama"
PATH = "/api/chat"
_TERMS = FormatTerms(NAME, "Ollama")
_THINKING = "thinking"
_THINKING_DATA = {NAME: {_THINKING: True}}
"""The provider data of reasoning from Ollama, which is sent back with its message."""
_THINK: Mapping[str, bool | str] = {
    "none": False,
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "max",
    "max": "max",
}
"""The value of `think` for each reasoning effort."""


class Ollama(WireFormat):
    """Ollama's native chat API."""

    @property
    def name(self) -> str:
        """`ollama`."""
        return NAME

    def encode_request(self, request: InferenceRequest, config: LLMConfig, *, stream: bool = False) -> EncodedRequest:
        """Encode a request.

        Raises:
            BadRequest: when Ollama has no encoding for something in the request, or `options.extra` repeats an entry of the
                body; names the part.
        """
        return encode_request(request, config, stream=stream)

    def decode_response(self, status: int, headers: Mapping[str, str], body: bytes) -> InferenceResponse:
        """Decode a complete response.

        Raises:
            InferenceError: typed by status and body.
        """
        return decode_response(status, headers, body)

    def stream_decoder(self, headers: Mapping[str, str] = EMPTY_OBJECT) -> StreamDecoder:
        """Return a decoder for one streamed response."""
        return OllamaStreamDecoder(decode_response, headers)


# --- requests ------------------------------------------------------------------------------------------------------


def encode_request(request: InferenceRequest, config: LLMConfig, *, stream: bool = False) -> EncodedRequest:
    """Encode a request by joining segments, each of which is encoded once.

    Tool names are sent unchanged, since Ollama accepts any. A schema for the response is enforced whether or not it is `strict`.

    Raises:
        BadRequest: when Ollama has no encoding for something in the request, or `options.extra` repeats an entry of the body;
            names the part.
        UnsupportedOption: when Ollama has no equivalent of an option.
    """
    _refuse_options(request)
    messages = [segment for segment in encode_each(request.messages, NAME, _message) if segment]
    if request.system_prompt:
        messages.insert(0, format_json({"role": "system", "content": request.system_prompt}))
    segments = [b'{"model":', format_json(model_of(request, config))]
    encoded = {"model", "messages", "stream"}
    # For the choice "none" the tools are not sent, which has the same effect.
    tools = [*encode_each(request.tools, NAME, _tool), *map(format_json, _TERMS.hosted_tools(request, config))]
    if tools and request.tool_choice.kind == "auto":
        encoded.add("tools")
        segments += [b',"tools":[', b",".join(tools), b"]"]
    segments += [b',"messages":[', b",".join(messages), b'],"stream":', b"true" if stream else b"false"]
    entries = _entries(request, config)
    refuse_duplicates(entries, encoded)
    segments.append(b"," + format_json(entries)[1:] if entries else b"}")
    return EncodedRequest(PATH, b"".join(segments))


def _refuse_options(request: InferenceRequest) -> None:
    """Refuse the options that Ollama lacks.

    Raises:
        UnsupportedOption: names the option.
    """
    kind = request.tool_choice.kind
    if request.tool_choice.is_forced and request.tools:
        raise _TERMS.refuse(f"tool_choice={kind}", "use auto, since it cannot force a call")
    if request.parallel_tool_calls is False and request.tools:
        raise _TERMS.refuse("parallel_tool_calls=False", "remove it, or ask for one call at a time in the prompt")


def _entries(request: InferenceRequest, config: LLMConfig) -> dict[str, Any]:
    """Return the entries of the body besides model, tools, messages and stream."""
    entries: dict[str, Any] = {}
    response_format = request.response_format
    if response_format is not None:
        entries["format"] = "json" if response_format.schema is None else response_format.schema
    # Later sources override earlier ones, and extra entries override options.
    for source in (config.options, request.options):
        options = {**(entries.get("options") or {}), **_options(source)}
        if options:
            entries["options"] = options
        if source.reasoning_effort is not None:
            entries["think"] = _THINK[source.reasoning_effort]
        if source.logprobs or source.top_logprobs is not None:
            entries["logprobs"] = True
        if source.top_logprobs is not None:
            entries["top_logprobs"] = source.top_logprobs
        entries = merge_entries(entries, source.extra)
    return entries


def _options(options: InferenceOptions) -> dict[str, Any]:
    entries = {
        "temperature": options.temperature,
        "top_p": options.top_p,
        "num_predict": options.max_tokens,
        "stop": list(options.stop) or None,
        "seed": options.seed,
    }
    return {name: value for name, value in entries.items() if value is not None}


def _tool(spec: ToolSpec) -> bytes:
    function = {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
    return format_json({"type": "function", "function": function})


def _message(message: Message) -> bytes:
    if message.role == "assistant":
        return b",".join(map(format_json, _assistant(message)))
    parts = message_content(message, lambda part: _images((part,), "a message"))
    return format_json({"role": message.role, "content": _text_of(parts), **_images(parts, "a message")})


def _assistant(message: Message) -> list[dict[str, Any]]:
    """Return an assistant message and one tool message for each of its calls; nothing for an empty message."""
    exchanges = message.exchanges
    thoughts = [part.text for part in message.parts if isinstance(part, Reasoning) and NAME in part.provider_data]
    entries: dict[str, Any] = {}
    if any(thoughts):
        entries[_THINKING] = "".join(thoughts)
    entries |= _images(message.parts, "a message")
    if exchanges:
        entries["tool_calls"] = [_call(exchange.call) for exchange in exchanges]
    if not message.text and not entries:
        return []
    return [{"role": "assistant", "content": message.text, **entries}, *map(_result, exchanges)]


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"function": {"name": call.name, "arguments": arguments_object(call)}}
    return {"id": call.id, **function} if call.id else function


def _result(exchange: ToolExchange) -> dict[str, Any]:
    call = exchange.call
    parts = sendable_parts(exchange.execution.parts, lambda part: _images((part,), "a result"))
    message = {"role": "tool", "content": _text_of(parts), "tool_name": call.name, **_images(parts, "a result")}
    return {**message, "tool_call_id": call.id} if call.id else message


def _text_of(parts: Iterable[ContentPart]) -> str:
    return "".join([part.text for part in parts if isinstance(part, Text)])


def _images(parts: Iterable[object], container: str) -> dict[str, list[str]]:
    images = []
    for part in parts:
        if isinstance(part, Image) and part.data is not None:
            images.append(base64.b64encode(part.data).decode())
        elif isinstance(part, Image | Audio | Document):
            how = "by URL" if part.url else "by file id" if part.file_id else "by value"
            raise BadRequest(
                f"{container} contains {type(part).__name__} {how}, which Ollama does not support; pass images by value, or "
                "use a wire format that supports it"
            )
    return {"images": images} if images else {}


# --- responses -----------------------------------------------------------------------------------------------------

_FINISH_REASONS: Mapping[str, FinishReason] = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "tool_calls": FinishReason.TOOL_CALLS,
    # The model was only loaded into memory or removed from it, and has answered nothing.
    "load": FinishReason.ERROR,
    "unload": FinishReason.ERROR,
}


def decode_response(status: int, headers: Mapping[str, str], body: bytes) -> InferenceResponse:
    """Decode a complete response.

    Raises:
        InferenceError: typed by status and body.
    """

    def decode(data: Any) -> InferenceResponse:
        reader = OllamaReader()
        reader.process(data)
        return reader.response()

    return decode_body(status, headers, body, decode=decode, expected="a chat response")


class OllamaStreamDecoder(JsonEventDecoder):
    """Decodes a streamed response, which consists of lines of JSON."""

    whole_body_prefixes = b"[<"
    """Without `{`, with which every line starts."""

    def __init__(self, decode_body: BodyDecoder, headers: Mapping[str, str]) -> None:
        super().__init__(decode_body, headers)
        self._reader = OllamaReader()

    def framing(self) -> Framing:
        """Return a new reader of lines."""
        return JsonLines()

    def process(self, data: dict[str, Any], name: str) -> list[InferenceDelta]:  # noqa: ARG002  # lines have no names
        """Process one line."""
        deltas = self._reader.process(data)
        if self._reader.has_ended:
            self.mark_done()
        return deltas

    def response(self) -> InferenceResponse:
        """Return the complete response.

        Raises:
            InferenceError: when the stream ended without a line that says `done`.
        """
        if not self._reader.has_ended:
            raise self.truncation_error("no line says that it is done")
        return self._reader.response()


class OllamaReader:
    """Reads the lines of a response."""

    def __init__(self) -> None:
        self.has_ended: bool = False
        """Whether a line said `done`."""
        self._builder = ResponseBuilder()
        # Keys join the fragments of one reasoning part, and tell calls apart, which need not have ids.
        self._keys = 0
        self._reasoning_key: int | None = None
        self._finish: str | None = None
        self._usage = Usage()
        self._logprobs: list[TokenLogprob] = []
        self._model = ""

    def process(self, data: Mapping[str, Any]) -> list[InferenceDelta]:
        """Process one line, or a complete response.

        Raises:
            KeyError, TypeError, AttributeError: when it does not have the expected structure.
        """
        self._model = self._model or text_of(data.get("model"))
        self._logprobs += read_logprobs(data.get("logprobs"))
        deltas = self._process_message(data["message"])
        if data.get("done"):
            self.has_ended = True
            self._finish = reason_of(data.get("done_reason")) or None
            self._usage = Usage(count_of(data.get("prompt_eval_count")), count_of(data.get("eval_count")))
        return deltas

    def response(self) -> InferenceResponse:
        """Return the complete response."""
        reason = self._finish_reason()
        if reason.is_incomplete:
            self._builder.reject_empty()
        parts = self._builder.parts(reason)
        return InferenceResponse(parts, reason, self._usage, self._model, "", self._finish, logprobs=self._logprobs)

    def _finish_reason(self) -> FinishReason:
        # Ollama reports "stop" for calls too.
        if self._builder.has_calls and self._finish in {None, "stop"}:
            return FinishReason.TOOL_CALLS
        return finish_reason(self._finish or "", _FINISH_REASONS)

    def _process_message(self, message: Mapping[str, Any]) -> list[InferenceDelta]:
        deltas: list[InferenceDelta] = []
        thinking, text = text_of(message.get("thinking")), text_of(message.get("content"))
        if thinking:
            # The first fragment creates the part and marks it as reasoning of Ollama.
            if self._reasoning_key is None:
                self._reasoning_key = self._next_key()
                self._builder.reasoning("", self._reasoning_key)
                self._builder.mark(self._reasoning_key, _THINKING_DATA)
            deltas += self._builder.reasoning(thinking, self._reasoning_key)
        if text:
            self._reasoning_key = None
            deltas += self._builder.text(text)
        for call in message.get("tool_calls") or ():
            self._reasoning_key = None
            deltas += self._process_call(call)
        return deltas

    def _process_call(self, call: Mapping[str, Any]) -> list[InferenceDelta]:
        function = call["function"]
        arguments = function.get("arguments")
        key = self._next_key()
        # Ollama sends arguments as an object, but text is accepted too.
        text = arguments if isinstance(arguments, str) else format_json(arguments or {}).decode()
        return [
            *self._builder.call(key, text_of(call.get("id")), text_of(function.get("name"))),
            *self._builder.arguments(key, text),
        ]

    def _next_key(self) -> int:
        self._keys += 1
        return self._keys
