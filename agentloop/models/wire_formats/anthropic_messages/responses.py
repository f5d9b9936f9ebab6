"""Decoding of responses of the Messages API.

Source: https://docs.anthropic.com/en/api/messages
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import define, evolve, field

from agentloop.models.wire_formats.anthropic_messages.content import CONTAINER, NAME, part_of
from agentloop.models.wire_formats.decoding import BodyDecoder, JsonEventDecoder, decode_body, finish_reason, reason_of
from agentloop.models.wire_formats.fields import CUT_OFF, arguments_json, count_of, object_of, text_of
from agentloop.values.inference import FinishReason, InferenceDelta, InferenceResponse, Usage
from agentloop.values.messages import ResponsePart
from agentloop.values.parts import ProviderPart
from agentloop.values.tool_calls import ToolCall, arguments_object

_FINISH_REASONS: Mapping[str, FinishReason] = {
    "end_turn": FinishReason.STOP,
    "stop_sequence": FinishReason.STOP,
    "tool_use": FinishReason.TOOL_CALLS,
    "max_tokens": FinishReason.LENGTH,
    "model_context_window_exceeded": FinishReason.LENGTH,
    "refusal": FinishReason.CONTENT_FILTER,
}
_PAUSES = frozenset({"pause_turn", "compaction"})
"""The reasons after which the provider goes on when it gets the message back: its tools, or a summary, have taken their time."""


def decode_response(status: int, headers: Mapping[str, str], body: bytes) -> InferenceResponse:
    """Decode a complete response.

    Raises:
        InferenceError: typed by status and body.
    """
    return decode_body(status, headers, body, decode=_message, expected="a message")


def _message(message: Mapping[str, Any]) -> InferenceResponse:
    """Decode a message; in one assembled from a stream, the inputs of calls are still JSON text."""
    content, reason = message["content"], reason_of(message.get("stop_reason"))
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content or ()
    parts: list[ResponsePart] = [part for part in map(part_of, blocks) if part is not None]
    finish = _finish_reason(reason, has_calls=any(isinstance(part, ToolCall) for part in parts))
    # The limit of tokens may have cut off the last block. An input that is an object does not show it, unlike JSON text.
    last, block = (parts[-1], blocks[len(blocks) - 1]) if parts else (None, {})
    if finish.is_incomplete and isinstance(last, ToolCall) and not isinstance(block.get("input"), str):
        parts[-1] = evolve(last, rejection=CUT_OFF)
    container = object_of(message.get(CONTAINER))
    if container.get("id"):
        parts.append(ProviderPart(NAME, {CONTAINER: container}))
    return InferenceResponse(
        parts,
        finish,
        _usage(message.get("usage")),
        text_of(message.get("model")),
        text_of(message.get("id")),
        reason if reason or message.get("stop_reason") == "" else None,
        wants_to_continue=reason in _PAUSES and finish is not FinishReason.TOOL_CALLS,
    )


def _finish_reason(reason: str, *, has_calls: bool) -> FinishReason:
    # Some services report "end_turn" although the message contains calls.
    if has_calls and reason in {"end_turn", "", *_PAUSES}:
        return FinishReason.TOOL_CALLS
    return finish_reason(reason, _FINISH_REASONS)


def _usage(usage: Any) -> Usage:
    """Return the token counts; `input_tokens` of this provider excludes tokens read from or written to its cache."""
    if not isinstance(usage, dict):
        return Usage()
    uncached, output = count_of(usage.get("input_tokens")), count_of(usage.get("output_tokens"))
    cache_read = count_of(usage.get("cache_read_input_tokens"))
    cache_write = count_of(usage.get("cache_creation_input_tokens"))
    return Usage(
        None if uncached is None else uncached + (cache_read or 0) + (cache_write or 0),
        output,
        cache_read,
        cache_write,
        count_of(object_of(usage.get("output_tokens_details")).get("thinking_tokens")),
        hosted_tool_calls=sum(count_of(count) or 0 for count in object_of(usage.get("server_tool_use")).values()),
    )


class MessageStreamDecoder(JsonEventDecoder):
    """Decodes a streamed message; events after `message_stop` are ignored, except errors."""

    def __init__(self, decode_body: BodyDecoder, headers: Mapping[str, str]) -> None:
        super().__init__(decode_body, headers)
        self._message: dict[str, Any] | None = None
        self._usage: dict[str, Any] = {}
        self._blocks: list[_PartialBlock] = []
        self._open_blocks: dict[object, _PartialBlock] = {}
        self._calls = 0
        self._has_ended = False

    def process(self, data: dict[str, Any], name: str) -> list[InferenceDelta]:
        """Process one event; events of other types, such as pings, are ignored."""
        kind = data.get("type") or name
        if self._has_ended:
            return []
        if kind == "message_start":
            return self._start_message(data["message"])
        if kind == "content_block_start":
            return self._start_block(data.get("index"), data["content_block"])
        if kind == "content_block_delta":
            # An unknown index raises KeyError, which the template converts to InvalidResponse.
            return self._extend_block(self._open_blocks[data.get("index")], data["delta"])
        if kind == "content_block_stop":
            return self._stop_block(self._open_blocks.pop(data.get("index"), None))
        if kind == "message_delta":
            self._update_message(data)
        self._has_ended = kind == "message_stop"
        if self._has_ended:
            self.mark_done()
        return []

    def response(self) -> InferenceResponse:
        """Return the complete response.

        Raises:
            InferenceError: when the stream ended before the message did.
        """
        message = self._message
        if message is None:
            raise self.truncation_error("it contains no message")
        if not self._has_ended and not message.get("stop_reason"):
            raise self.truncation_error("the message is incomplete")
        return _message({**message, "content": [block.build() for block in self._blocks], "usage": self._usage})

    def _start_message(self, message: dict[str, Any]) -> list[InferenceDelta]:
        # Some services repeat the event for the same message.
        if self._message is not None:
            return []
        self._message = dict(message)
        self._update_usage(message)
        deltas: list[InferenceDelta] = []
        for index, block in enumerate(message.get("content") or ()):
            deltas += self._start_block(index, block) + self._stop_block(self._open_blocks.pop(index))
        return deltas

    def _start_block(self, index: object, initial: dict[str, Any]) -> list[InferenceDelta]:
        block = self._open_blocks[index] = _PartialBlock(dict(initial))
        self._blocks.append(block)
        if initial.get("type") != "tool_use":
            return _deltas(block, block.initial)
        block.call_index = self._calls
        self._calls += 1
        call_id, name = text_of(initial.get("id")), text_of(initial.get("name"))
        return [InferenceDelta("tool_call", index=block.call_index, call_id=call_id, name=name)]

    def _extend_block(self, block: _PartialBlock, delta: dict[str, Any]) -> list[InferenceDelta]:
        if isinstance(delta.get("partial_json"), str):
            return self._extend_input(block, delta["partial_json"])
        for name, value in delta.items():
            if name == "type":
                continue
            if name == "citation":
                block.citations.append(value)
            # Texts grow, while a signature and other values replace what was there.
            elif isinstance(value, str) and name != "signature":
                block.append_text(name, value)
            else:
                block.replaced[name] = value
        return _deltas(block, delta)

    def _extend_input(self, block: _PartialBlock, text: str) -> list[InferenceDelta]:
        if not text:
            return []
        block.inputs.append(text)
        return [InferenceDelta("arguments", text, block.call_index)] if block.call_index >= 0 else []

    def _stop_block(self, block: _PartialBlock | None) -> list[InferenceDelta]:
        """End a block; return the arguments of a call that arrived complete with the start of the block."""
        if block is None or block.call_index < 0 or block.inputs or not block.initial.get("input"):
            return []
        return [InferenceDelta("arguments", arguments_json(block.initial["input"]), block.call_index)]

    def _update_message(self, data: dict[str, Any]) -> None:
        if self._message is not None:
            changes = data.get("delta") or {}
            self._message.update({name: value for name, value in changes.items() if value is not None})
        self._update_usage(data)

    def _update_usage(self, data: dict[str, Any]) -> None:
        """Update the token counts, which are cumulative."""
        usage = data.get("usage")
        if isinstance(usage, dict):
            # Null means that the count is not repeated, not that it is unknown.
            self._usage.update({name: value for name, value in usage.items() if value is not None})


@define(eq=False)
class _PartialBlock:
    """A block of which fragments may still arrive.

    Attributes:
        initial: the block as it started.
        call_index: the 0-based index of the call among the calls of the response; -1 for other blocks.
        texts: the fragments of its string entries, by name.
        inputs: the fragments of its input.
        citations: the citations that arrived.
        replaced: entries that replace those of the initial block.
    """

    initial: Mapping[str, Any]
    call_index: int = -1
    texts: dict[str, list[str]] = field(factory=dict)
    inputs: list[str] = field(factory=list)
    citations: list[Any] = field(factory=list)
    replaced: dict[str, Any] = field(factory=dict)

    def append_text(self, name: str, text: str) -> None:
        """Add a fragment of a string entry."""
        fragments = self.texts.get(name)
        if fragments is None:
            fragments = self.texts[name] = [text_of(self.initial.get(name))]
        fragments.append(text)

    def build(self) -> dict[str, Any]:
        """Return the block as in a complete response, except that the input of a call remains JSON text."""
        texts = {name: "".join(fragments) for name, fragments in self.texts.items()}
        block = {**self.initial, **self.replaced, **texts}
        if self.citations:
            block["citations"] = [*(self.initial.get("citations") or ()), *self.citations]
        input_json = "".join(self.inputs)
        if input_json:
            # The input of a call remains text, so that it is stored exactly as the model wrote it.
            is_call = self.call_index >= 0
            block["input"] = input_json if is_call else arguments_object(ToolCall("", "", input_json))
        return block


def _deltas(block: _PartialBlock, fragment: Mapping[str, Any]) -> list[InferenceDelta]:
    """Return the deltas for a fragment of a text or thinking block."""
    kind = block.initial.get("type")
    if kind == "text" and text_of(fragment.get("text")):
        return [InferenceDelta("text", fragment["text"])]
    if kind == "thinking" and text_of(fragment.get("thinking")):
        return [InferenceDelta("reasoning", fragment["thinking"])]
    return []
