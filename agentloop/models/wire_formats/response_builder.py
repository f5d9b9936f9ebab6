"""Assembly of a response from the fragments of a stream."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Literal

from attrs import define, field

from agentloop.models.wire_formats.fields import CUT_OFF
from agentloop.values.inference import FinishReason, InferenceDelta
from agentloop.values.json import EMPTY_OBJECT
from agentloop.values.messages import ResponsePart
from agentloop.values.parts import ProviderPart, Reasoning, Text
from agentloop.values.tool_calls import ToolCall


class ResponseBuilder:
    """Collects the fragments of a stream in the order of their arrival, and returns a delta for each.

    Fragments of one part are joined by a key that the wire format chooses, such as the index of a block. Parts of different
    kinds need different keys. Text and reasoning without a key extend the last part if that is of the same kind.
    """

    __slots__ = ("_by_key", "_calls", "_parts")

    def __init__(self) -> None:
        self._parts: list[_PartialPart] = []
        self._by_key: dict[Hashable, _PartialPart] = {}
        self._calls = 0

    def text(self, text: str, key: Hashable = None) -> list[InferenceDelta]:
        """Add a fragment of text."""
        return self._append("text", text, key)

    def reasoning(self, text: str, key: Hashable = None) -> list[InferenceDelta]:
        """Add a fragment of reasoning."""
        return self._append("reasoning", text, key)

    def call(self, key: Hashable, call_id: str, name: str) -> list[InferenceDelta]:
        """Start a tool call."""
        part = _PartialPart("call", id=call_id, name=name, index=self._calls)
        self._calls += 1
        self._add(part)
        self._by_key[key] = part
        return [InferenceDelta("tool_call", index=part.index, call_id=call_id, name=name)]

    def arguments(self, key: Hashable, text: str) -> list[InferenceDelta]:
        """Add a fragment of the arguments of a started call."""
        part = self._by_key[key]
        if not text:
            return []
        part.texts.append(text)
        return [InferenceDelta("arguments", text, part.index)]

    def opaque(self, part: ProviderPart) -> None:
        """Add a complete part that only its provider understands."""
        self._add(_PartialPart("opaque", part=part))

    def call_id(self, key: Hashable) -> str:
        """Return the id of a started call."""
        return self._by_key[key].id

    def call_name(self, key: Hashable) -> str:
        """Return the name of a started call, or as much of it as has arrived."""
        return self._by_key[key].name

    def call_arguments(self, key: Hashable) -> str:
        """Return the arguments of a started call that have arrived."""
        return "".join(self._by_key[key].texts)

    def name_call(self, key: Hashable, call_id: str = "", name: str = "") -> None:
        """Set the id of a started call if it has none yet, and add a piece of its name until its arguments begin.

        Args:
            key: the key of the call.
            call_id: the id; may be empty.
            name: the piece; the name so far is the same name again.
        """
        part = self._by_key[key]
        part.id = part.id or call_id
        is_first = not part.name or (not part.texts and name != part.name)
        if is_first and len(part.name) <= _MAX_NAME:  # no tool has a longer one
            part.name += name

    def mark(self, key: Hashable, provider_data: Mapping[str, Any]) -> None:
        """Add data that the provider must get back with a part that has fragments already; an empty one is enough."""
        part = self._by_key[key]
        part.provider_data = {**part.provider_data, **provider_data}

    def reject(self, *keys: Hashable) -> None:
        """Mark started calls as cut off, so that they do not run."""
        for key in keys:
            self._by_key[key].rejection = CUT_OFF

    def reject_empty(self, *, or_objects: bool = True) -> None:
        """Mark the calls without arguments as cut off, in an answer that did not end normally.

        Args:
            or_objects: whether an empty object is no arguments either.
        """
        empty = {"", "null", "{}"} if or_objects else {"", "null"}
        for part in self._parts:
            if part.kind == "call" and "".join(part.texts).strip() in empty:
                part.rejection = CUT_OFF

    def parts(self, reason: FinishReason) -> tuple[ResponsePart, ...]:
        """Return the complete parts, in the order in which they started.

        Args:
            reason: why the model stopped. If it was interrupted, calls without arguments get none, since those may be missing.
        """
        empty = "" if reason.is_incomplete else "{}"
        built = [part.build(empty) for part in self._parts]
        return tuple([part for part in built if part is not None])

    @property
    def has_calls(self) -> bool:
        """Whether the response contains a tool call."""
        return self._calls > 0

    def _append(self, kind: Literal["text", "reasoning"], text: str, key: Hashable) -> list[InferenceDelta]:
        # Keys join fragments that are not adjacent, such as those of parallel calls.
        if key is not None:
            part = self._by_key.get(key)
        else:
            part = self._parts[-1] if self._parts and self._parts[-1].kind == kind else None
        if part is None:
            # An empty fragment with a key creates the part, so that provider data can be added to it.
            if not text and key is None:
                return []
            part = _PartialPart(kind)
            self._add(part)
            if key is not None:
                self._by_key[key] = part
        if not text:
            return []
        part.texts.append(text)
        return [InferenceDelta(kind, text)]

    def _add(self, part: _PartialPart) -> None:
        if len(self._parts) >= MAX_PARTS:
            raise ValueError(f"the answer has more than {MAX_PARTS:,} parts")
        self._parts.append(part)


MAX_PARTS = 10_000
"""The maximum number of parts of an answer: texts, thoughts, calls and others."""


_MAX_NAME = 1_000
"""The characters of the name of a tool from which on further pieces of it are not added."""


@define(eq=False)
class _PartialPart:
    """A part of which fragments may still arrive.

    Attributes:
        kind: the kind of the part.
        texts: the fragments of its text, or of a call's arguments.
        id: the id of a call.
        name: the tool name of a call.
        provider_data: data that the provider must get back with the part.
        part: an opaque part.
        index: the 0-based index of a call among the calls of the response.
        rejection: why a call must not run; empty for an ordinary call.
    """

    kind: Literal["text", "reasoning", "call", "opaque"]
    texts: list[str] = field(factory=list)
    id: str = ""
    name: str = ""
    provider_data: Mapping[str, Any] = EMPTY_OBJECT
    part: ProviderPart | None = None
    index: int = 0
    rejection: str = ""

    def build(self, empty: str) -> ResponsePart | None:
        text = "".join(self.texts)
        if self.kind == "call":
            # A call without arguments has none, which is an empty object.
            return ToolCall(
                self.id, self.name, text or empty, provider_data=self.provider_data, rejection=self.rejection
            )
        if self.kind == "opaque":
            return self.part
        # A part without text remains if the provider must get data back with it, such as a signature.
        if not text and not self.provider_data:
            return None
        kind = Text if self.kind == "text" else Reasoning
        return kind(text, provider_data=self.provider_data)
