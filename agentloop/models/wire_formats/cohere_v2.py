"""The wire format `cohere-v2`: version 2 of Cohere's chat API.

Source: https://docs.cohere.com/v2/reference/chat
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from typing import Any

from attrs import define, field

from agentloop.errors import BadRequest
from agentloop.models.config import LLMConfig
from agentloop.models.wire_formats.decoding import BodyDecoder, JsonEventDecoder, decode_body, finish_reason, reason_of
from agentloop.models.wire_formats.errors import find_error
from agentloop.models.wire_formats.fields import (
    FormatTerms,
    arguments_json,
    count_of,
    describe_media,
    encoded_names,
    merge_entries,
    message_content,
    model_of,
    object_of,
    refuse_duplicates,
    sendable_parts,
    text_of,
    unique_call_ids,
    wire_name,
)
from agentloop.models.wire_formats.wire_format import EncodedRequest, StreamDecoder, WireFormat
from agentloop.values.inference import (
    FinishReason,
    InferenceDelta,
    InferenceOptions,
    InferenceRequest,
    InferenceResponse,
    ReasoningEffort,
    Usage,
)
from agentloop.values.json import EMPTY_OBJECT, JsonObject, format_json, freeze_object
from agentloop.values.messages import Message, ResponsePart
from agentloop.values.parts import Audio, Document, Image, ProviderPart, Reasoning, Text
from agentloop.values.tool_calls import ContentPart, ToolCall, ToolExecution, ToolSpec, arguments_text
from agentloop.values.value import encode_each

NAME = "cohere-v2"
_TERMS = FormatTerms(NAME, "Cohere")
PATH = "/v2/chat"
_PLAN, _THINKING = "tool_plan", "thinking"
_ENTRY, _CITATIONS = "entry", "citations"
"""The keys in provider data: the entry that a reasoning came from, and the citations of a text or a reasoning."""
_TOKEN_BUDGETS: Mapping[ReasoningEffort, int] = {"minimal": 512, "low": 1024, "medium": 4096}
"""The tokens to think with, for the efforts that limit them; Cohere has no levels."""


class CohereV2(WireFormat):
    """Version 2 of Cohere's chat API."""

    @property
    def name(self) -> str:
        """`cohere-v2`."""
        return NAME

    def encode_request(self, request: InferenceRequest, config: LLMConfig, *, stream: bool = False) -> EncodedRequest:
        """Encode a request.

        Raises:
            BadRequest: when Cohere has no encoding for something in the request, or `options.extra` repeats an entry of the
                body; names the part or the option.
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
        return CohereStreamDecoder(decode_response, headers)


# --- requests ------------------------------------------------------------------------------------------------------


def encode_request(request: InferenceRequest, config: LLMConfig, *, stream: bool = False) -> EncodedRequest:
    """Encode a request by joining segments, each of which is encoded once.

    Translations, for what Cohere expresses in another way:

    - It cannot require a call of one tool among several, so that a specific tool choice offers that tool only.
    - It has no levels of reasoning effort. `none` disables thinking, `minimal`, `low` and `medium` limit its tokens to 512, 1,024
      and 4,096, and the efforts above leave the limit to the model.
    - It caches prompts on its own, which makes `cache_prompt` unnecessary, and always enforces the schema of a response format.

    Raises:
        BadRequest: when Cohere has no encoding for something in the request, or `options.extra` repeats an entry of the body;
            names the part.
        UnsupportedOption: when Cohere has no equivalent of an option.
    """
    _TERMS.refuse_options(request, config, "logprobs", "top_logprobs")
    if request.parallel_tool_calls is False and request.tools:
        raise _TERMS.refuse("parallel_tool_calls=False", "remove it, or ask for one call at a time in the prompt")
    messages = [segment for segment in encode_each(request.messages, NAME, _message) if segment]
    if request.system_prompt:
        messages.insert(0, format_json({"role": "system", "content": request.system_prompt}))
    segments = [b'{"model":', format_json(model_of(request, config))]
    encoded = {"model", "messages", "stream"}
    offered = [
        spec
        for spec in request.tools
        if request.tool_choice.kind != "specific" or spec.name == request.tool_choice.name
    ]
    tools = [*encode_each(offered, NAME, _tool), *map(format_json, _TERMS.hosted_tools(request, config))]
    if tools:
        encoded.add("tools")
        segments += [b',"tools":[', b",".join(tools), b"]"]
    segments += [b',"messages":[', b",".join(messages), b'],"stream":', b"true" if stream else b"false"]
    entries = _entries(request, config, has_tools=bool(tools))
    refuse_duplicates(entries, encoded)
    segments.append(b"," + format_json(entries)[1:] if entries else b"}")
    names = encoded_names((spec.name for spec in offered), letter_first=True, has_dashes=False)
    return EncodedRequest(PATH, b"".join(segments), tool_names=names)


def _entries(request: InferenceRequest, config: LLMConfig, *, has_tools: bool) -> dict[str, Any]:
    """Return the entries of the body besides model, tools, messages and stream."""
    entries: dict[str, Any] = {}
    if has_tools and request.tool_choice.kind != "auto":
        entries["tool_choice"] = "NONE" if request.tool_choice.kind == "none" else "REQUIRED"
    response_format = request.response_format
    if response_format is not None:
        schema = {} if response_format.schema is None else {"json_schema": response_format.schema}
        entries["response_format"] = {"type": "json_object", **schema}
    # Later sources override earlier ones, and extra entries override options.
    for options in (config.options, request.options):
        entries = merge_entries({**entries, **_options(options)}, options.extra)
    return entries


def _options(options: InferenceOptions) -> dict[str, Any]:
    entries = {
        "temperature": options.temperature,
        "p": options.top_p,
        "max_tokens": options.max_tokens,
        "stop_sequences": list(options.stop) or None,
        "seed": options.seed,
        "thinking": _thinking(options.reasoning_effort),
    }
    return {name: value for name, value in entries.items() if value is not None}


def _thinking(effort: ReasoningEffort | None) -> dict[str, Any] | None:
    if effort is None:
        return None
    if effort == "none":
        return {"type": "disabled"}
    budget = _TOKEN_BUDGETS.get(effort)
    return {"type": "enabled", **({} if budget is None else {"token_budget": budget})}


def _tool(spec: ToolSpec) -> bytes:
    description = {"description": spec.description} if spec.description else {}
    function = {"name": _tool_name(spec.name), **description, "parameters": {"type": "object", **spec.parameters}}
    return format_json({"type": "function", "function": function})


def _tool_name(name: str) -> str:
    # Cohere documents names of letters, digits and underscores that do not start with a digit.
    return wire_name(name, letter_first=True, has_dashes=False)


def _message(message: Message) -> bytes:
    """Encode a message as zero or more messages of Cohere, joined by commas."""
    if message.role == "assistant":
        return b",".join(map(format_json, _assistant(message)))
    content = message_content(message, lambda part: _content([part], "a message"))
    return format_json({"role": message.role, "content": _content(content, "a message")})


def _assistant(message: Message) -> list[dict[str, Any]]:
    exchanges = message.exchanges
    ids = unique_call_ids(exchanges)
    entries: dict[str, Any] = {}
    plan = "".join(part.text for part in message.parts if isinstance(part, Reasoning) and _entry_of(part) == _PLAN)
    # A plan belongs to calls.
    if plan and exchanges:
        entries["tool_plan"] = plan
    content = [item for item in map(_assistant_item, message.parts) if item is not None]
    if content:
        entries["content"] = content
    if exchanges:
        entries["tool_calls"] = [_call(exchange.call, id_) for exchange, id_ in zip(exchanges, ids, strict=True)]
    citations = [
        citation for part in message.parts if isinstance(part, Text | Reasoning) for citation in _citations(part)
    ]
    if citations and entries:
        entries["citations"] = citations
    if not entries:
        return []
    results: list[dict[str, Any]] = []
    media: list[ContentPart] = []
    for exchange, call_id in zip(exchanges, ids, strict=True):
        text, others = _result(exchange.execution)
        results.append({"role": "tool", "tool_call_id": call_id, "content": text})
        media += others
    # Results contain text only, so that pictures follow in a message of the user.
    shown = [{"role": "user", "content": _content(media, "a result")}] if media else []
    return [{"role": "assistant", **entries}, *results, *shown]


def _assistant_item(part: object) -> dict[str, Any] | None:
    """Return the content item for a part of an assistant message; None for one that is sent elsewhere or not at all."""
    if isinstance(part, Text):
        return {"type": "text", "text": part.text} if part.text else None
    if isinstance(part, Reasoning):
        return {"type": "thinking", "thinking": part.text} if _entry_of(part) == _THINKING else None
    if isinstance(part, ProviderPart):
        return part.payload if part.wire_format == NAME and isinstance(part.payload, dict) else None
    if isinstance(part, Image | Audio | Document):
        raise BadRequest(
            f"Cohere does not support {type(part).__name__} in an assistant message; remove it, or use a wire format that "
            "supports it"
        )
    return None


def _own_data(part: Text | Reasoning) -> Mapping[str, Any]:
    data = part.provider_data.get(NAME)
    return data if isinstance(data, dict) else EMPTY_OBJECT


def _entry_of(part: Reasoning) -> object:
    return _own_data(part).get(_ENTRY)


def _citations(part: Text | Reasoning) -> Iterable[Any]:
    citations = _own_data(part).get(_CITATIONS)
    return citations if isinstance(citations, tuple) else ()


def _call(call: ToolCall, call_id: str) -> dict[str, Any]:
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": _tool_name(call.name), "arguments": arguments_text(call)},
    }


def _result(execution: ToolExecution) -> tuple[str, list[ContentPart]]:
    """Return the text of a result, and its pictures with a heading for the message of the user that follows."""
    texts: list[str] = []
    media: list[ContentPart] = []
    for part in sendable_parts(execution.parts, lambda medium: _item(medium, "a result")):
        if isinstance(part, Text):
            texts.append(part.text)
        else:
            texts.append(f"[{describe_media(part)}: in the next message of the user]")
            media.append(part)
    heading = [Text(f"From the result of the tool {execution.name}:")] if media else []
    return "".join(texts) or execution.status.value, [*heading, *media]


def _content(parts: list[ContentPart], container: str) -> Any:
    if all(isinstance(part, Text) for part in parts):
        return "".join(part.text for part in parts if isinstance(part, Text))
    return [_item(part, container) for part in parts]


def _item(part: ContentPart, container: str) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if isinstance(part, Image) and part.file_id is None:
        data = f"data:{part.media_type};base64,{base64.b64encode(part.data or b'').decode()}"
        return {"type": "image_url", "image_url": {"url": part.url or data}}
    how = "by URL" if part.url else "by file id" if part.file_id else "by value"
    raise BadRequest(
        f"{container} contains {type(part).__name__} {how}, which Cohere does not support; pass images by value or URL and "
        "documents as text, or use a wire format that supports it"
    )


# --- responses -----------------------------------------------------------------------------------------------------

_FINISH_REASONS: Mapping[str, FinishReason] = {
    "COMPLETE": FinishReason.STOP,
    "STOP_SEQUENCE": FinishReason.STOP,
    "MAX_TOKENS": FinishReason.LENGTH,
    "TOOL_CALL": FinishReason.TOOL_CALLS,
    "ERROR": FinishReason.ERROR,
    "ERROR_LIMIT": FinishReason.LENGTH,
    "ERROR_TOXIC": FinishReason.CONTENT_FILTER,
    "TIMEOUT": FinishReason.ERROR,
}
_CITED_ENTRIES: Mapping[str, str] = {"PLAN": _PLAN, "THINKING_CONTENT": _THINKING}
"""The entry of the message that a citation belongs to, by its type; others belong to texts."""


def decode_response(status: int, headers: Mapping[str, str], body: bytes) -> InferenceResponse:
    """Decode a complete response.

    Raises:
        InferenceError: typed by status and body.
    """
    return decode_body(status, headers, body, decode=_response, expected="a chat response")


def _response(data: Any) -> InferenceResponse:
    message, reason = data["message"], reason_of(data.get("finish_reason"))
    calls = message.get("tool_calls") or ()
    finish = _finish_reason(reason, has_calls=bool(calls))
    parts: list[ResponsePart] = []
    plan = text_of(message.get("tool_plan"))
    citations = _Citations(message.get("citations") or ())
    if plan:
        parts.append(Reasoning(plan, provider_data=_data(_PLAN, citations.take(_PLAN, None))))
    content = message.get("content") or ()
    for index, item in enumerate([{"type": "text", "text": content}] if isinstance(content, str) else content):
        part = _content_part(item, index, citations)
        parts += [] if part is None else [part]
    # The limit of tokens may have cut off the arguments before their first character.
    missing = "" if finish.is_incomplete else "{}"
    parts += [_tool_call(call, missing) for call in calls]
    return InferenceResponse(parts, finish, _usage(data.get("usage")), "", text_of(data.get("id")), reason or None)


def _content_part(item: Mapping[str, Any], index: int, citations: _Citations) -> ResponsePart | None:
    kind = item["type"]
    if kind == "text":
        text, cited = text_of(item.get("text")), citations.take("text", index)
        return Text(text, provider_data=_data(None, cited)) if text or cited else None
    if kind == _THINKING:
        return Reasoning(
            text_of(item.get("thinking")), provider_data=_data(_THINKING, citations.take(_THINKING, index))
        )
    return ProviderPart(NAME, item)


class _Citations:
    """The citations of a message, by the part that they belong to.

    Raises:
        TypeError, AttributeError: when they do not have the expected structure.
    """

    def __init__(self, citations: Iterable[Mapping[str, Any]]) -> None:
        self._by_part: dict[tuple[str, object], list[Mapping[str, Any]]] = {}
        for citation in citations:
            entry = _CITED_ENTRIES.get(text_of(citation.get("type")), "text")
            index = None if entry == _PLAN else count_of(citation.get("content_index"))
            self._by_part.setdefault((entry, index), []).append(citation)

    def take(self, entry: str, index: int | None) -> list[Mapping[str, Any]]:
        """Remove and return the citations of a part; those without an index belong to the first part of their kind."""
        without_index = self._by_part.pop((entry, None), [])
        return without_index + (self._by_part.pop((entry, index), []) if index is not None else [])


def _data(entry: str | None, citations: list[Mapping[str, Any]]) -> JsonObject:
    data: dict[str, Any] = {} if entry is None else {_ENTRY: entry}
    if citations:
        data[_CITATIONS] = citations
    return freeze_object({NAME: data}) if data else EMPTY_OBJECT


def _tool_call(call: Mapping[str, Any], missing: str) -> ToolCall:
    function = call.get("function") or {}
    arguments = arguments_json(function.get("arguments") or None, missing=missing)
    return ToolCall(text_of(call.get("id")), text_of(function.get("name")), arguments)


def _finish_reason(reason: str, *, has_calls: bool) -> FinishReason:
    if has_calls and reason in {"COMPLETE", ""}:
        return FinishReason.TOOL_CALLS
    return finish_reason(reason, _FINISH_REASONS)


def _usage(usage: Any) -> Usage:
    """Return the token counts; those that Cohere bills, which exclude its own prompts, if it reports no others."""
    if not isinstance(usage, dict):
        return Usage()
    counts = object_of(usage.get("tokens")) or object_of(usage.get("billed_units"))
    return Usage(
        count_of(counts.get("input_tokens")),
        count_of(counts.get("output_tokens")),
        count_of(usage.get("cached_tokens")),
    )


class CohereStreamDecoder(JsonEventDecoder):
    """Decodes a streamed response, whose events assemble a message."""

    def __init__(self, decode_body: BodyDecoder, headers: Mapping[str, str]) -> None:
        super().__init__(decode_body, headers)
        self._id = ""
        self._plan: list[str] = []
        # The items as they started and the fragments of their texts, and the calls, by their indexes.
        self._items: dict[object, tuple[dict[str, Any], dict[str, list[str]]]] = {}
        self._calls: dict[object, _PartialCall] = {}
        self._citations: list[Any] = []
        self._end: dict[str, Any] | None = None

    def find_error(self, data: Any) -> object:
        """Return the JSON value that reports an error; the last event has it in its delta."""
        delta = data.get("delta")
        return (delta if isinstance(delta, dict) and delta.get("error") else None) or find_error(data)

    def process(self, data: dict[str, Any], name: str) -> list[InferenceDelta]:
        """Process one event; events of other types are ignored."""
        kind = data.get("type") or name
        delta = data.get("delta") or {}
        if kind == "message-end":
            self._end = delta
            self.mark_done()
            return []
        if kind == "message-start":
            self._id = text_of(data.get("id"))
        message = delta.get("message") or {} if isinstance(delta, dict) else {}
        if kind == "tool-plan-delta":
            return self._extend_plan(text_of(message.get("tool_plan")))
        if kind == "content-start":
            self._items[data.get("index")] = ({**message["content"]}, {})
        if kind in {"content-start", "content-delta"}:
            return self._extend_item(data.get("index"), message["content"])
        if kind == "tool-call-start":
            return self._start_call(data.get("index"), message["tool_calls"])
        if kind == "tool-call-delta":
            return self._extend_call(data.get("index"), message["tool_calls"])
        if kind == "citation-start":
            self._citations.append(message["citations"])
        return []

    def response(self) -> InferenceResponse:
        """Return the complete response.

        Raises:
            InferenceError: when the stream ended before the message did.
        """
        if self._end is None:
            raise self.truncation_error("the message is incomplete")
        items = [
            {**item, **{name: "".join(texts) for name, texts in fragments.items()}}
            for item, fragments in self._items.values()
        ]
        message = {
            "tool_plan": "".join(self._plan),
            "content": items,
            "tool_calls": [call.build() for call in self._calls.values()],
            "citations": self._citations,
        }
        return _response({**self._end, "id": self._id, "message": message})

    def _extend_plan(self, text: str) -> list[InferenceDelta]:
        self._plan.append(text)
        return [InferenceDelta("reasoning", text)] if text else []

    def _extend_item(self, index: object, content: Mapping[str, Any]) -> list[InferenceDelta]:
        item, fragments = self._items.setdefault(index, ({}, {}))
        deltas: list[InferenceDelta] = []
        for name in ("text", _THINKING):
            text = text_of(content.get(name))
            if text:
                # An item that did not start is of the kind of its first fragment.
                item.setdefault("type", name)
                fragments.setdefault(name, []).append(text)
                deltas.append(InferenceDelta("text" if name == "text" else "reasoning", text))
        return deltas

    def _start_call(self, index: object, call: Mapping[str, Any]) -> list[InferenceDelta]:
        if index in self._calls:
            return self._extend_call(index, call)
        self._calls[index] = _PartialCall(len(self._calls), call)
        name = text_of((call.get("function") or {}).get("name"))
        start = InferenceDelta("tool_call", index=len(self._calls) - 1, call_id=text_of(call.get("id")), name=name)
        return [start, *self._extend_call(index, call)]

    def _extend_call(self, index: object, call: Mapping[str, Any]) -> list[InferenceDelta]:
        # An unknown index raises KeyError, which the template converts to InvalidResponse.
        partial_call, text = self._calls[index], text_of((call.get("function") or {}).get("arguments"))
        if not text:
            return []
        partial_call.arguments.append(text)
        return [InferenceDelta("arguments", text, partial_call.number)]


@define(eq=False)
class _PartialCall:
    """A call of which arguments may still arrive.

    Attributes:
        number: its 0-based index among the calls of the response.
        start: the call as it started.
        arguments: the fragments of its arguments.
    """

    number: int
    start: Mapping[str, Any]
    arguments: list[str] = field(factory=list)

    def build(self) -> dict[str, Any]:
        """Return the call as in a complete response."""
        function = {**(self.start.get("function") or {}), "arguments": "".join(self.arguments)}
        return {**self.start, "function": function}
