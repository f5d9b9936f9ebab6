"""A response that is put together from the pieces of a stream."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from attrs import define, field

from agentloop.values.inference import InferenceDelta
from agentloop.values.json import EMPTY_OBJECT
from agentloop.values.messages import ResponsePart
from agentloop.values.parts import ProviderPart, Reasoning, Text
from agentloop.values.tool_calls import ToolCall


@define(eq=False)
class _Piece:
    """A part in the making.

    Attributes:
        kind: `text`, `reasoning`, `call` or `opaque`.
        texts: the pieces of its text, or of a call's arguments.
        id: the id of a call.
        name: the name of a call's tool.
        provider_data: what the provider wants back.
        part: an opaque part, whole.
        index: which call of the answer it is, from 0.
    """

    kind: str
    texts: list[str] = field(factory=list)
    id: str = ""
    name: str = ""
    provider_data: Mapping[str, Any] = EMPTY_OBJECT
    part: ProviderPart | None = None
    index: int = 0

    def finished(self) -> ResponsePart | None:
        text = "".join(self.texts)
        if self.kind == "call":
            return ToolCall(self.id, self.name, text or "{}", provider_data=self.provider_data)
        if self.kind == "opaque":
            return self.part
        if not text and not self.provider_data:
            return None
        kind = Text if self.kind == "text" else Reasoning
        return kind(text, provider_data=self.provider_data)


class ResponseBuilder:
    """Collects the pieces of a stream, in the order in which they came, and tells each as a delta.

    Pieces belong together by a key of the format's choosing: the index of a block, the id of a call. Text and reasoning without
    a key go on with the part before, if that is of the same kind.
    """

    __slots__ = ("_by_key", "_calls", "_pieces")

    def __init__(self) -> None:
        self._pieces: list[_Piece] = []
        self._by_key: dict[Hashable, _Piece] = {}
        self._calls = 0

    def text(self, text: str, key: Hashable = None) -> list[InferenceDelta]:
        """Take a piece of text."""
        return self._spoken("text", text, key)

    def reasoning(self, text: str, key: Hashable = None) -> list[InferenceDelta]:
        """Take a piece of reasoning."""
        return self._spoken("reasoning", text, key)

    def call(self, key: Hashable, call_id: str, name: str) -> list[InferenceDelta]:
        """Begin a call."""
        piece = _Piece("call", id=call_id, name=name, index=self._calls)
        self._calls += 1
        self._pieces.append(piece)
        self._by_key[key] = piece
        return [InferenceDelta("tool_call", index=piece.index, call_id=call_id, name=name)]

    def arguments(self, key: Hashable, text: str) -> list[InferenceDelta]:
        """Take a piece of the arguments of a call that has begun."""
        piece = self._by_key[key]
        if not text:
            return []
        piece.texts.append(text)
        return [InferenceDelta("arguments", text, piece.index)]

    def opaque(self, part: ProviderPart) -> None:
        """Take a part that only its provider understands."""
        self._pieces.append(_Piece("opaque", part=part))

    def has(self, key: Hashable) -> bool:
        """Say whether a part of this key has begun."""
        return key in self._by_key

    def call_id(self, key: Hashable) -> str:
        """Return the id that the call of this key began with."""
        return self._by_key[key].id

    def name_call(self, key: Hashable, call_id: str = "", name: str = "") -> None:
        """Complete the id or the name of a call that has begun without it."""
        piece = self._by_key[key]
        piece.id, piece.name = piece.id or call_id, piece.name or name

    def replace_text(self, key: Hashable, text: str) -> None:
        """Replace what was collected for a part by what the provider says it is in the end."""
        self._by_key[key].texts = [text]

    def mark(self, key: Hashable, provider_data: Mapping[str, Any]) -> None:
        """Note what the provider wants back with a part."""
        piece = self._by_key[key]
        piece.provider_data = {**piece.provider_data, **provider_data}

    def parts(self) -> tuple[ResponsePart, ...]:
        """Return the finished parts, in the order in which they began."""
        finished = [piece.finished() for piece in self._pieces]
        return tuple([part for part in finished if part is not None])

    @property
    def has_calls(self) -> bool:
        """Whether any call has begun."""
        return self._calls > 0

    def _spoken(self, kind: str, text: str, key: Hashable) -> list[InferenceDelta]:
        piece = self._by_key.get(key) if key is not None else self._last(kind)
        if piece is None:
            if not text and key is None:
                return []
            piece = _Piece(kind)
            self._pieces.append(piece)
            if key is not None:
                self._by_key[key] = piece
        if not text:
            return []
        piece.texts.append(text)
        return [InferenceDelta("text" if kind == "text" else "reasoning", text)]

    def _last(self, kind: str) -> _Piece | None:
        return self._pieces[-1] if self._pieces and self._pieces[-1].kind == kind else None
