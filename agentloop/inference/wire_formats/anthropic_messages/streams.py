"""Streams of Messages: blocks that are put together from their pieces, and then read as those of a whole answer.

Source: https://docs.anthropic.com/en/docs/build-with-claude/streaming
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import define, field

from agentloop.inference.wire_formats.anthropic_messages.blocks import input_json, text_of
from agentloop.inference.wire_formats.anthropic_messages.responses import response_of
from agentloop.inference.wire_formats.call_arguments import arguments_object
from agentloop.inference.wire_formats.stream_decoder import JsonEventDecoder, PlainDecoder
from agentloop.values.inference_delta import InferenceDelta
from agentloop.values.inference_response import InferenceResponse
from agentloop.values.tool_call import ToolCall

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
