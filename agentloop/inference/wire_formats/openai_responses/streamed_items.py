"""The items of a response while they are being written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from attrs import define, field, frozen

from agentloop.inference.wire_formats.openai_chat.responses import arguments_json, text_of
from agentloop.inference.wire_formats.openai_responses.input_items import CUSTOM
from agentloop.values.inference_delta import InferenceDelta
from agentloop.values.value import Value


@frozen(eq=False, repr=False)
class StreamedText(Value):
    """A text of an item that comes in pieces.

    Attributes:
        item: the type of the item.
        held_in: the entry of the item that holds it: a list of objects, or the text itself.
        key: the entry of the object, and of the event that tells it whole, that holds the text.
        type: the type of the object; empty where there is none.
        told_as: the kind of delta as which it is told.
    """

    item: str
    held_in: str
    key: str
    type: str
    told_as: Literal["text", "reasoning", "arguments"]


STREAMED: Mapping[str, StreamedText] = {
    "response.output_text": StreamedText("message", "content", "text", "output_text", "text"),
    "response.refusal": StreamedText("message", "content", "refusal", "refusal", "text"),
    "response.reasoning_summary_text": StreamedText("reasoning", "summary", "text", "summary_text", "reasoning"),
    "response.reasoning_text": StreamedText("reasoning", "content", "text", "reasoning_text", "reasoning"),
    "response.function_call_arguments": StreamedText("function_call", "arguments", "arguments", "", "arguments"),
    "response.custom_tool_call_input": StreamedText(CUSTOM, "input", "input", "", "arguments"),
}
"""What comes in pieces, by the name of its events without `.delta` and `.done`."""

_CALLS = frozenset({"function_call", CUSTOM})
_ANSWERS = frozenset({"message", *_CALLS})


@define(eq=False)
class _Item:
    """An item in the making.

    Attributes:
        data: the item as the service last told it.
        call: which call of the answer it is, from 0, once it was told; else None.
        texts: the pieces of its texts, by the name of their events and their place in the item.
        is_finished: whether the service told it as done.
    """

    data: dict[str, Any]
    call: int | None = None
    texts: dict[tuple[str, int], list[str]] = field(factory=dict)
    is_finished: bool = False

    @property
    def type(self) -> str:
        return text_of(self.data.get("type"))

    def whole(self) -> dict[str, Any]:
        """Return the item, with the texts that came in pieces where it has none itself."""
        made = dict(self.data)
        for name, texts in _by_name(self.texts).items():
            how = STREAMED[name]
            if not how.type:
                made[how.held_in] = made.get(how.held_in) or texts[0]
            elif not any(_texts(self.data, name)):
                pieces = [{"type": how.type, how.key: text} for text in texts]
                made[how.held_in] = [*(made.get(how.held_in) or ()), *pieces]
        return made


class StreamedItems:
    """Collects the items of a response by their place in it, and tells what is new as deltas."""

    def __init__(self) -> None:
        self._items: dict[int, _Item] = {}
        self._places: dict[str, int] = {}
        self._last: dict[str, int] = {}
        self._next = 0
        self._calls = 0
        self.finished: int = 0

    @property
    def are_an_answer(self) -> bool:
        """Whether there is text or a call, and everything that began is done."""
        items = self._items.values()
        return all(item.is_finished for item in items) and any(item.type in _ANSWERS for item in items)

    def whole(self) -> list[dict[str, Any]]:
        """Return the items in their order."""
        return [self._items[place].whole() for place in sorted(self._items)]

    def begin(self, place: object, data: dict[str, Any]) -> list[InferenceDelta]:
        """Take an item that begins."""
        item = self._item(place, text_of(data.get("id")), data)
        return self._tell_call(item)

    def extend(self, name: str, event: Mapping[str, Any]) -> list[InferenceDelta]:
        """Take a piece of a text."""
        item, index = self._addressed(name, event)
        return self._add(item, name, index, text_of(event.get("delta")))

    def complete(self, name: str, event: Mapping[str, Any]) -> list[InferenceDelta]:
        """Take a text that is told whole."""
        item, index = self._addressed(name, event)
        if event.get("name") and not item.data.get("name"):
            item.data["name"] = event["name"]
        return self._tell_call(item) + self._settle(item, name, index, text_of(event.get(STREAMED[name].key)))

    def finish(self, place: object, data: dict[str, Any]) -> list[InferenceDelta]:
        """Take an item that is done."""
        item = self._item(place, text_of(data.get("id")), data)
        if not item.is_finished:
            item.is_finished = True
            self.finished += 1
        item.data.update(data)
        found = self._tell_call(item)
        for name, index, text in _texts_in_order(item.data):
            found += self._settle(item, name, index, text)
        return found

    def catch_up(self, items: list[dict[str, Any]]) -> list[InferenceDelta]:
        """Take the items of the whole response, and tell those of which nothing came before."""
        found: list[InferenceDelta] = []
        for place, data in enumerate(items):
            if place not in self._items and text_of(data.get("id")) not in self._places:
                found += self.finish(place, data)
        return found

    def _item(self, place: object, item_id: str, data: dict[str, Any]) -> _Item:
        """Find an item by its place or else its id, or make it."""
        if not isinstance(place, int):
            place = self._places.get(item_id, self._next) if item_id else self._next
        if item_id:
            self._places[item_id] = place
        if place not in self._items:
            self._items[place] = _Item(dict(data))
            self._last[text_of(data.get("type"))] = place
            self._next = max(self._next, place + 1)
        return self._items[place]

    def _addressed(self, name: str, event: Mapping[str, Any]) -> tuple[_Item, int]:
        """Find the item and the place in it that an event speaks of; make the item if it did not begin."""
        how = STREAMED[name]
        place, item_id = event.get("output_index"), text_of(event.get("item_id"))
        if not isinstance(place, int) and item_id not in self._places:
            place = self._last.get(how.item)
        item = self._item(place, item_id, {"type": how.item, "id": item_id})
        index = event.get("summary_index" if how.held_in == "summary" else "content_index")
        return item, index if isinstance(index, int) else 0

    def _add(self, item: _Item, name: str, index: int, text: str) -> list[InferenceDelta]:
        if not text:
            return []
        how = STREAMED[name]
        before = "" if (name, index) in item.texts else _between(item, how)
        item.texts.setdefault((name, index), []).append(text)
        if how.told_as != "arguments":
            return [InferenceDelta(how.told_as, before + text)]
        return [] if item.call is None else [InferenceDelta("arguments", text, item.call)]

    def _settle(self, item: _Item, name: str, index: int, text: str) -> list[InferenceDelta]:
        """Take a text that is told whole: what is missing of it is told, and what came before is what it says."""
        if not text:
            return []
        told = "".join(item.texts.get((name, index), ()))
        found = self._add(item, name, index, text[len(told) :]) if text.startswith(told) else []
        item.texts[name, index] = [text]
        return found

    def _tell_call(self, item: _Item) -> list[InferenceDelta]:
        """Tell that a call begins, as soon as its name is known, and what came of its arguments so far."""
        name = text_of(item.data.get("name"))
        if item.type not in _CALLS or item.call is not None or not (name or item.is_finished):
            return []
        item.call = self._calls
        self._calls += 1
        call_id = text_of(item.data.get("call_id")) or text_of(item.data.get("id"))
        arguments = "".join(piece for pieces in item.texts.values() for piece in pieces)
        found = [InferenceDelta("tool_call", index=item.call, call_id=call_id, name=name)]
        return [*found, InferenceDelta("arguments", arguments, item.call)] if arguments else found


def _between(item: _Item, how: StreamedText) -> str:
    """Return what stands between the thoughts of one item."""
    return "\n" if how.told_as == "reasoning" and item.texts else ""


def _by_name(texts: Mapping[tuple[str, int], list[str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, index in sorted(texts):
        found.setdefault(name, []).append("".join(texts[name, index]))
    return found


def _texts_in_order(data: Mapping[str, Any]) -> list[tuple[str, int, str]]:
    """Return the texts that an item holds as they are read: thoughts in short before those in full, else by their places."""
    found = [
        (how.held_in != "summary", index, name, text)
        for name, how in STREAMED.items()
        if how.item == data.get("type")
        for index, text in enumerate(_texts(data, name))
    ]
    return [(name, index, text) for _, index, name, text in sorted(found)]


def _texts(data: Mapping[str, Any], name: str) -> Iterator[str]:
    """Go through the texts of one kind that an item holds; what is not of that kind is an empty one, so that places agree."""
    how = STREAMED[name]
    held = data.get(how.held_in)
    if not how.type:
        yield arguments_json(held) if held else ""
        return
    for piece in held if isinstance(held, list) else ():
        yield text_of(piece.get(how.key)) if isinstance(piece, dict) else ""
