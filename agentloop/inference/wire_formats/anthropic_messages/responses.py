"""Responses of Messages.

Source: https://docs.anthropic.com/en/api/messages
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from attrs import define, field

from agentloop.inference.wire_formats.anthropic_messages.content import input_json, part_of, text_of
from agentloop.inference.wire_formats.errors import read_whole_answer
from agentloop.inference.wire_formats.stream_decoder import JsonEventDecoder, PlainDecoder
from agentloop.values.inference import FinishReason, InferenceDelta, InferenceResponse, Usage
from agentloop.values.messages import ResponsePart
from agentloop.values.tool_calls import ToolCall, arguments_object

_FINISH: Mapping[str, FinishReason] = {
    "end_turn": FinishReason.STOP,
    "stop_sequence": FinishReason.STOP,
    "tool_use": FinishReason.TOOL_CALLS,
    "max_tokens": FinishReason.LENGTH,
    "model_context_window_exceeded": FinishReason.LENGTH,
    "refusal": FinishReason.CONTENT_FILTER,
}


def decode_response(status: int, headers: Mapping[str, str], body: bytes) -> InferenceResponse:
    """Read an answer.

    Raises:
        InferenceError: typed by status and body.
    """
    return read_whole_answer(
        status,
        headers,
        body,
        failure=lambda data: data if tells_error(data) else None,
        read=response_of,
        what="a message",
    )


def tells_error(data: Any) -> bool:
    """Say whether this is an error instead of a message."""
    return isinstance(data, dict) and "content" not in data and (data.get("type") == "error" or bool(data.get("error")))


def response_of(message: Mapping[str, Any]) -> InferenceResponse:
    """Read a message; of a streamed one, the inputs of calls may still be the text that came.

    Raises:
        TypeError: when it has not the shape of one; `AttributeError`, `KeyError` and `ValueError` likewise.
    """
    content, reason = message["content"], message.get("stop_reason")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content or ()
    parts: list[ResponsePart] = [part for part in map(part_of, blocks) if part is not None]
    return InferenceResponse(
        parts,
        _finish_reason(reason, has_calls=any(isinstance(part, ToolCall) for part in parts)),
        _usage(message.get("usage")),
        text_of(message.get("model")),
        text_of(message.get("id")),
        reason if isinstance(reason, str) else None,
    )


def _finish_reason(reason: object, *, has_calls: bool) -> FinishReason:
    """Translate a stop reason to common words; calls count as such whatever a service says of them."""
    word = text_of(reason)
    if has_calls and word in {"end_turn", ""}:
        return FinishReason.TOOL_CALLS
    return _FINISH.get(word, FinishReason.OTHER) if word else FinishReason.UNKNOWN


def _usage(usage: Any) -> Usage:
    """Read token counts; the provider counts what its cache read and wrote beside the input, not in it."""
    if not isinstance(usage, dict):
        return Usage()
    details = usage.get("output_tokens_details")
    fresh, output = _count(usage.get("input_tokens")), _count(usage.get("output_tokens"))
    read, written = _count(usage.get("cache_read_input_tokens")), _count(usage.get("cache_creation_input_tokens"))
    return Usage(
        None if fresh is None else fresh + (read or 0) + (written or 0),
        output,
        read,
        written,
        _count(details.get("thinking_tokens")) if isinstance(details, dict) else None,
    )


def _count(value: object) -> int | None:
    """Return a count of tokens; what cannot be one is unknown."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf:
        return int(value)
    return None


_CALL = "tool_use"


@define(eq=False)
class _Block:
    """A block in the making.

    Attributes:
        begun: the block as it began.
        call: which call of the answer it is, from 0; -1 when it is none.
        texts: the pieces of its fields that grow.
        inputs: the pieces of its input.
        citations: what came for its citations.
        fields: what replaces fields of its beginning.
    """

    begun: Mapping[str, Any]
    call: int = -1
    texts: dict[str, list[str]] = field(factory=dict)
    inputs: list[str] = field(factory=list)
    citations: list[Any] = field(factory=list)
    fields: dict[str, Any] = field(factory=dict)

    def grow(self, name: str, text: str) -> None:
        """Take a piece of a field."""
        pieces = self.texts.get(name)
        if pieces is None:
            pieces = self.texts[name] = [text_of(self.begun.get(name))]
        pieces.append(text)

    def finished(self) -> dict[str, Any]:
        """Return the block as it would have come whole; the input of a call stays the text that came."""
        made = {**self.begun, **self.fields, **{name: "".join(pieces) for name, pieces in self.texts.items()}}
        if self.citations:
            made["citations"] = [*(self.begun.get("citations") or ()), *self.citations]
        text = "".join(self.inputs)
        if text:
            made["input"] = text if self.call >= 0 else arguments_object(ToolCall("", "", text))
        return made


class MessageStreamDecoder(JsonEventDecoder):
    """Reads one streamed message; what comes after its end is passed over."""

    def __init__(self, plain: PlainDecoder, headers: Mapping[str, str]) -> None:
        super().__init__(plain, headers)
        self._message: dict[str, Any] | None = None
        self._usage: dict[str, Any] = {}
        self._blocks: list[_Block] = []
        self._at: dict[object, _Block] = {}
        """The block that is in the making at an index."""
        self._calls = 0
        self._has_ended = False

    def take(self, data: dict[str, Any], name: str) -> list[InferenceDelta]:
        """Take an event; those of unknown kinds, such as pings, are passed over.

        Raises:
            InferenceError: for an error that the provider tells.
        """
        kind = data.get("type") or name
        if self._has_ended:
            return []
        if kind == "error" or (data.get("error") and "type" not in data):
            raise self.failed(data)
        if kind == "message_start":
            return self._start(data["message"])
        if kind == "content_block_start":
            return self._begin(data.get("index"), data["content_block"])
        if kind == "content_block_delta":
            return self._grow(self._at[data.get("index")], data["delta"])
        if kind == "content_block_stop":
            return self._stop(self._at.pop(data.get("index"), None))
        if kind == "message_delta":
            self._change(data)
        self._has_ended = kind == "message_stop"
        return []

    def response(self) -> InferenceResponse:
        """Return the whole answer.

        Raises:
            InferenceError: when the stream ended before the message did.
        """
        message = self._message
        if message is None:
            raise self.cut_short("no message began")
        if not self._has_ended and not message.get("stop_reason"):
            raise self.cut_short("the message did not end")
        return response_of({**message, "content": [block.finished() for block in self._blocks], "usage": self._usage})

    def _start(self, message: dict[str, Any]) -> list[InferenceDelta]:
        """Begin the message, which may hold blocks already; a second beginning is that of the same message."""
        if self._message is not None:
            return []
        self._message = dict(message)
        self._count(message)
        found: list[InferenceDelta] = []
        for index, block in enumerate(message.get("content") or ()):
            found += self._begin(index, block) + self._stop(self._at.pop(index))
        return found

    def _begin(self, index: object, begun: dict[str, Any]) -> list[InferenceDelta]:
        block = self._at[index] = _Block(dict(begun))
        self._blocks.append(block)
        if begun.get("type") != _CALL:
            return _spoken(block, block.begun)
        block.call = self._calls
        self._calls += 1
        call_id, name = text_of(begun.get("id")), text_of(begun.get("name"))
        return [InferenceDelta("tool_call", index=block.call, call_id=call_id, name=name)]

    def _grow(self, block: _Block, delta: dict[str, Any]) -> list[InferenceDelta]:
        if isinstance(delta.get("partial_json"), str):
            return self._grow_input(block, delta["partial_json"])
        for name, value in delta.items():
            if name == "type":
                continue
            if name == "citation":
                block.citations.append(value)
            elif isinstance(value, str) and name != "signature":
                block.grow(name, value)
            else:
                block.fields[name] = value
        return _spoken(block, delta)

    def _grow_input(self, block: _Block, text: str) -> list[InferenceDelta]:
        if not text:
            return []
        block.inputs.append(text)
        return [InferenceDelta("arguments", text, block.call)] if block.call >= 0 else []

    def _stop(self, block: _Block | None) -> list[InferenceDelta]:
        """End a block; a call whose input came with its beginning tells it now."""
        if block is None or block.call < 0 or block.inputs or not block.begun.get("input"):
            return []
        return [InferenceDelta("arguments", input_json(block.begun["input"]), block.call)]

    def _change(self, data: dict[str, Any]) -> None:
        """Take what is known of the message at its end."""
        if self._message is not None:
            changed = data.get("delta") or {}
            self._message.update({name: value for name, value in changed.items() if value is not None})
        self._count(data)

    def _count(self, data: dict[str, Any]) -> None:
        """Note token counts; later ones include those before."""
        usage = data.get("usage")
        if isinstance(usage, dict):
            self._usage.update({name: value for name, value in usage.items() if value is not None})


def _spoken(block: _Block, said: Mapping[str, Any]) -> list[InferenceDelta]:
    """Tell what is new in a block of text or of thoughts."""
    kind = block.begun.get("type")
    if kind == "text" and text_of(said.get("text")):
        return [InferenceDelta("text", said["text"])]
    if kind == "thinking" and text_of(said.get("thinking")):
        return [InferenceDelta("reasoning", said["thinking"])]
    return []
