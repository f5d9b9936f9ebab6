"""Decoding of responses of the Converse API.

Sources: https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Converse.html,
https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_ConverseStream.html
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from functools import partial
from typing import Any

from attrs import define, evolve, field

from agentloop.errors import InferenceError
from agentloop.models.wire_formats.bedrock_converse.content import SERVER_CALL, part_of
from agentloop.models.wire_formats.decoding import BodyDecoder, JsonEventDecoder, decode_body, finish_reason, reason_of
from agentloop.models.wire_formats.errors import find_error, reported_error, request_id, status_error
from agentloop.models.wire_formats.fields import CUT_OFF, count_of, object_of, text_of
from agentloop.models.wire_formats.framing import DAMAGE, ERROR_TYPE, MAX_ENTRIES, AwsEventStream, Framing
from agentloop.values.inference import FinishReason, InferenceDelta, InferenceResponse, Usage
from agentloop.values.json import parse_json
from agentloop.values.messages import ResponsePart
from agentloop.values.tool_calls import ToolCall, arguments_object

_SUCCESS = range(200, 300)
_OK = 200
_FINISH_REASONS: Mapping[str, FinishReason] = {
    "end_turn": FinishReason.STOP,
    "stop_sequence": FinishReason.STOP,
    "tool_use": FinishReason.TOOL_CALLS,
    "max_tokens": FinishReason.LENGTH,
    "model_context_window_exceeded": FinishReason.LENGTH,
    "guardrail_intervened": FinishReason.CONTENT_FILTER,
    "content_filtered": FinishReason.CONTENT_FILTER,
    "malformed_model_output": FinishReason.ERROR,
    "malformed_tool_use": FinishReason.ERROR,
}
_STATUSES: Mapping[str, int] = {
    "accessdeniedexception": 403,
    "expiredtokenexception": 403,
    "internalserverexception": 500,
    "modelerrorexception": 424,
    "modelnotreadyexception": 503,
    "modelstreamerrorexception": 424,
    "modeltimeoutexception": 408,
    "resourcenotfoundexception": 404,
    "servicequotaexceededexception": 429,
    "serviceunavailableexception": 503,
    "throttlingexception": 429,
    "toomanyrequestsexception": 429,
    "unrecognizedclientexception": 403,
    "validationexception": 400,
}
"""The HTTP status that each type of error stands for, by its name in lower case."""


# --- errors --------------------------------------------------------------------------------------------------------


def _error_type(headers: Mapping[str, str], data: object) -> str:
    """Return the type of an error, such as `ThrottlingException`, from the headers or the body; empty without one.

    It may follow a namespace and a `#`, or precede a colon and a URL.
    """
    name = headers.get("x-amzn-errortype") or text_of(object_of(data).get(ERROR_TYPE))
    return name.partition(":")[0].rpartition("#")[2].strip()


def _http_error(status: int, headers: Mapping[str, str], body: bytes) -> InferenceError:
    try:
        data = parse_json(body, MAX_ENTRIES)
    except ValueError:
        data = None
    code = _error_type(headers, data)
    return status_error(status, headers, body, code=code, meaning=_STATUSES.get(code.lower()))


def _find_error(data: Any) -> dict[str, Any] | None:
    return data if isinstance(data, dict) and data.get(ERROR_TYPE) else find_error(data)


# --- complete responses --------------------------------------------------------------------------------------------


def decode_response(status: int, headers: Mapping[str, str], body: bytes) -> InferenceResponse:
    """Decode a complete response.

    Raises:
        InferenceError: typed by status, error type and body.
    """
    if status not in _SUCCESS:
        raise _http_error(status, headers, body)
    decode = partial(_response, headers=headers)
    return decode_body(status, headers, body, decode=decode, expected="a Converse response", find_error=_find_error)


def _response(data: Any, headers: Mapping[str, str]) -> InferenceResponse:
    """Decode a response; in one assembled from a stream, the inputs of calls are still JSON text."""
    blocks = data["output"]["message"]["content"] or ()
    parts: list[ResponsePart] = [part for part in map(part_of, blocks) if part is not None]
    reason = reason_of(data.get("stopReason"))
    finish = _finish_reason(reason, has_calls=any(isinstance(part, ToolCall) for part in parts))
    # The limit of tokens may have cut off the last block. An input that is an object does not show it, unlike JSON text.
    last, block = (parts[-1], blocks[len(blocks) - 1]) if parts else (None, {})
    if finish.is_incomplete and isinstance(last, ToolCall) and not isinstance(_input_of(block), str):
        parts[-1] = evolve(last, rejection=CUT_OFF)
    return InferenceResponse(
        parts,
        finish,
        _usage(data.get("usage")),
        _routed_model(data),
        request_id(headers) or "",
        reason or None,
    )


def _input_of(block: Mapping[str, Any]) -> object:
    return object_of(block.get("toolUse")).get("input")


def _finish_reason(reason: str, *, has_calls: bool) -> FinishReason:
    # Some models report "end_turn" although the message contains calls.
    if has_calls and reason in {"end_turn", ""}:
        return FinishReason.TOOL_CALLS
    return finish_reason(reason, _FINISH_REASONS)


def _usage(usage: Any) -> Usage:
    """Return the token counts; `inputTokens` excludes tokens read from or written to the cache."""
    if not isinstance(usage, dict):
        return Usage()
    uncached, output = count_of(usage.get("inputTokens")), count_of(usage.get("outputTokens"))
    cache_read, cache_write = count_of(usage.get("cacheReadInputTokens")), count_of(usage.get("cacheWriteInputTokens"))
    return Usage(
        None if uncached is None else uncached + (cache_read or 0) + (cache_write or 0), output, cache_read, cache_write
    )


def _routed_model(data: Mapping[str, Any]) -> str:
    """Return the model that a prompt router chose; other responses do not name the model."""
    return text_of(object_of(object_of(data.get("trace")).get("promptRouter")).get("invokedModelId"))


# --- streams -------------------------------------------------------------------------------------------------------


class ConverseStreamDecoder(JsonEventDecoder):
    """Decodes a streamed response, which is an AWS event stream."""

    def __init__(self, decode_body: BodyDecoder, headers: Mapping[str, str]) -> None:
        super().__init__(decode_body, headers)
        self._blocks: dict[object, _PartialBlock] = {}
        self._calls = 0
        self._end: dict[str, Any] | None = None
        self._metadata: dict[str, Any] = {}

    def framing(self) -> Framing:
        """Return a new reader of an AWS event stream."""
        return AwsEventStream()

    def find_error(self, data: Any) -> object:
        """Return the JSON value that reports an error in an event, or a false value when there is none."""
        return _find_error(data)

    def reported_error(self, data: Any) -> InferenceError:
        """Return the typed error for an exception in the stream."""
        entries = object_of(data)
        kind = _error_type({}, entries)
        if not kind:
            return super().reported_error(data)
        # The model's own status is closer to the cause than that of the stream.
        status = entries.get("originalStatusCode") or _STATUSES.get(kind.lower())
        message = text_of(entries.get("message")) or text_of(entries.get("originalMessage"))
        return reported_error({"message": message, "type": kind, "status": status}, _OK, self.headers)

    def process(self, data: dict[str, Any], name: str) -> list[InferenceDelta]:
        """Process one event; events of other types are ignored."""
        if name == DAMAGE:
            raise self.truncation_error(f"it is not a valid AWS event stream: {data['problem']}")
        if name == "contentBlockStart":
            return self._start(self._block(data), data["start"])
        if name == "contentBlockDelta":
            return self._extend(self._block(data), data["delta"])
        if name == "messageStop":
            self._end = data
        elif name == "metadata":
            self._metadata = data
            if self._end is not None:
                self.mark_done()
        return []

    def response(self) -> InferenceResponse:
        """Return the complete response.

        Raises:
            InferenceError: when the stream ended before the message did.
        """
        if self._end is None:
            raise self.truncation_error("the message is incomplete")
        content = [built for built in (block.build() for block in self._blocks.values()) if built]
        data = {
            **self._metadata,
            "output": {"message": {"content": content}},
            "stopReason": self._end.get("stopReason"),
        }
        return _response(data, self.headers)

    def _block(self, data: Mapping[str, Any]) -> _PartialBlock:
        # Blocks of text usually begin with their first fragment.
        return self._blocks.setdefault(data.get("contentBlockIndex"), _PartialBlock())

    def _start(self, block: _PartialBlock, start: Mapping[str, Any]) -> list[InferenceDelta]:
        block.start = dict(start)
        call = start.get("toolUse")
        if call is None or call.get("type") == SERVER_CALL:
            return []
        block.call_index = self._calls
        self._calls += 1
        call_id, name = text_of(call.get("toolUseId")), text_of(call.get("name"))
        return [InferenceDelta("tool_call", index=block.call_index, call_id=call_id, name=name)]

    def _extend(self, block: _PartialBlock, delta: Mapping[str, Any]) -> list[InferenceDelta]:
        if "text" in delta:
            return block.add("text", delta["text"], "text")
        if "toolUse" in delta:
            return block.add("input", delta["toolUse"].get("input"), "arguments" if block.call_index >= 0 else None)
        if "reasoningContent" in delta:
            thought = delta["reasoningContent"]
            return [
                *block.add("reasoning", thought.get("text"), "reasoning"),
                *block.add("signature", thought.get("signature")),
                *block.add("redacted", thought.get("redactedContent")),
            ]
        if "citation" in delta:
            block.citations.append(delta["citation"])
        elif "toolResult" in delta:
            block.results += delta["toolResult"]
        else:
            block.others.update(delta)
        return []


@define(eq=False)
class _PartialBlock:
    """A block of which fragments may still arrive.

    Attributes:
        start: the block as it started; empty when it began with a fragment.
        call_index: the 0-based index of the call among the calls of the response; -1 for other blocks.
        texts: the fragments of its texts, by what they are.
        citations: the citations that arrived.
        results: the content of a tool's result that arrived.
        others: fragments of blocks that are unknown today; a later one replaces an earlier one.
    """

    start: dict[str, Any] = field(factory=dict)
    call_index: int = -1
    texts: dict[str, list[str]] = field(factory=dict)
    citations: list[Any] = field(factory=list)
    results: list[Any] = field(factory=list)
    others: dict[str, Any] = field(factory=dict)

    def add(self, what: str, text: object, kind: Any = None) -> list[InferenceDelta]:
        """Add a fragment of a text, and return its delta if it is of a kind that has one."""
        if not isinstance(text, str):
            return []
        self.texts.setdefault(what, []).append(text)
        return [InferenceDelta(kind, text, max(self.call_index, 0))] if kind and text else []

    def build(self) -> dict[str, Any]:
        """Return the block as in a complete response, except that the input of a call remains JSON text; {} if empty."""
        texts = {what: "".join(fragments) for what, fragments in self.texts.items()}
        if "toolUse" in self.start:
            return {"toolUse": {**self.start["toolUse"], "input": self._input(texts.get("input", ""))}}
        if "toolResult" in self.start:
            return {"toolResult": {**self.start["toolResult"], "content": self.results}}
        if not texts.keys().isdisjoint({"reasoning", "signature", "redacted"}):
            return {"reasoningContent": self._reasoning(texts)}
        if self.citations:
            return {"citationsContent": {"content": [{"text": texts.get("text", "")}], "citations": self.citations}}
        if "text" in texts:
            return {"text": texts["text"]}
        blocks = {**self.start, **self.others}
        return {name: {**object_of(self.start.get(name)), **object_of(block)} for name, block in blocks.items()}

    def _reasoning(self, texts: Mapping[str, str]) -> dict[str, Any]:
        if "redacted" in texts:
            return {"redactedContent": _joined_base64(self.texts["redacted"])}
        signature = {"signature": texts["signature"]} if "signature" in texts else {}
        return {"reasoningText": {"text": texts.get("reasoning", ""), **signature}}

    def _input(self, text: str) -> Any:
        if not text:
            return {}
        # The input of a call remains text, so that it is stored exactly as the model wrote it.
        return text if self.call_index >= 0 else arguments_object(ToolCall("", "", text))


def _joined_base64(fragments: list[str]) -> str:
    if len(fragments) == 1:
        return fragments[0]
    return base64.b64encode(b"".join([base64.b64decode(fragment) for fragment in fragments])).decode()
