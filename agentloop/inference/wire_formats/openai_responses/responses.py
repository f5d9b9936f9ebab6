"""Responses of the Responses API.

Source: https://platform.openai.com/docs/api-reference/responses/object
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from attrs import define, field, frozen

from agentloop.inference.wire_formats.errors import read_whole_answer
from agentloop.inference.wire_formats.fields import arguments_json, count_of, object_of, text_of
from agentloop.inference.wire_formats.openai_responses.requests import CUSTOM, NAME
from agentloop.inference.wire_formats.stream_decoder import JsonEventDecoder, PlainDecoder
from agentloop.values.inference import FinishReason, InferenceDelta, InferenceResponse, Usage
from agentloop.values.messages import ResponsePart
from agentloop.values.parts import ProviderPart, Reasoning, Text
from agentloop.values.tool_calls import ToolCall
from agentloop.values.value import Value

_DONE = frozenset({"completed", "complete"})
_INCOMPLETE: Mapping[str, FinishReason] = {
    "max_output_tokens": FinishReason.LENGTH,
    "max_tokens": FinishReason.LENGTH,
    "content_filter": FinishReason.CONTENT_FILTER,
}


def decode_response(status: int, headers: Mapping[str, str], body: bytes) -> InferenceResponse:
    """Read an answer.

    Raises:
        InferenceError: typed by status and body.
    """
    return read_whole_answer(status, headers, body, failure=failure_in, read=response_of, what="a response")


def failure_in(data: Any) -> dict[str, Any] | None:
    """Find what tells an error: the response itself, when it holds one or says that it failed."""
    if not isinstance(data, dict):
        return None
    if data.get("error"):
        return data
    if data.get("status") == "failed":
        return {"error": {"code": "server_error", "message": "the response failed; no reason is given"}}
    return None


def response_of(data: Any) -> InferenceResponse:
    """Read a response object; what is not of its shape raises `KeyError`, `TypeError`, `AttributeError` or `ValueError`."""
    parts = tuple(part for item in data["output"] for part in _parts(item))
    status = data.get("status")
    return InferenceResponse(
        parts,
        _finish_reason(text_of(status), text_of(object_of(data.get("incomplete_details")).get("reason")), parts),
        _usage(data.get("usage")),
        text_of(data.get("model")),
        text_of(data.get("id")),
        status if isinstance(status, str) else None,
    )


def _finish_reason(status: str, reason: str, parts: tuple[ResponsePart, ...]) -> FinishReason:
    if status == "incomplete":
        return _INCOMPLETE.get(reason, FinishReason.OTHER)
    if status and status not in _DONE:
        return FinishReason.OTHER
    if any(isinstance(part, ToolCall) for part in parts):
        return FinishReason.TOOL_CALLS
    if any(isinstance(part, Text) and _is_refusal(part) for part in parts):
        return FinishReason.CONTENT_FILTER
    return FinishReason.STOP if status else FinishReason.UNKNOWN


def _is_refusal(part: Text) -> bool:
    return object_of(object_of(part.provider_data.get(NAME)).get("content")).get("type") == "refusal"


def _usage(usage: Any) -> Usage:
    if not isinstance(usage, dict):
        return Usage()
    read, written = object_of(usage.get("input_tokens_details")), object_of(usage.get("output_tokens_details"))
    return Usage(
        count_of(usage.get("input_tokens")),
        count_of(usage.get("output_tokens")),
        count_of(read.get("cached_tokens")),
        count_of(read.get("cache_write_tokens")),
        count_of(written.get("reasoning_tokens")),
    )


def _parts(item: dict[str, Any]) -> Iterator[ResponsePart]:
    kind = item.get("type")
    if kind == "message":
        yield from _texts(item)
    elif kind == "reasoning":
        yield Reasoning(reasoning_text(item), provider_data={NAME: _without_nulls(item)})
    elif kind in {"function_call", CUSTOM}:
        yield _call(item)
    else:
        yield ProviderPart(NAME, item)


def _texts(item: dict[str, Any]) -> Iterator[Text]:
    """Read a message: a text for each piece of its content, so that the pieces can be told apart when they go back."""
    kept = {name: value for name, value in _without_nulls(item).items() if name not in {"type", "role", "content"}}
    content = item.get("content") or ()
    for piece in [{"text": content}] if isinstance(content, str) else content:
        refusal = text_of(piece.get("refusal"))
        text = text_of(piece.get("text")) or refusal
        if not text and not kept.get("id"):
            continue
        noted = (
            {"type": "refusal"}
            if refusal
            else {"annotations": piece["annotations"]}
            if piece.get("annotations")
            else {}
        )
        state = {"item": kept, "content": noted} if noted else {"item": kept}
        yield Text(text, provider_data={NAME: state} if kept.get("id") or noted else {})


def reasoning_text(item: Mapping[str, Any]) -> str:
    """Return the thoughts of a reasoning item: its summary, or what it shows of them in full."""
    pieces = item.get("summary") or item.get("content") or ()
    return "\n".join(text_of(piece.get("text")) for piece in pieces)


def _call(item: dict[str, Any]) -> ToolCall:
    is_custom = item.get("type") == CUSTOM
    sent = {"call_id", "name", "arguments", "type"} if not is_custom else {"call_id", "name", "input", "status"}
    kept = {name: value for name, value in _without_nulls(item).items() if name not in sent}
    arguments = text_of(item.get("input")) if is_custom else arguments_json(item.get("arguments"))
    call_id = text_of(item.get("call_id")) or text_of(item.get("id"))
    return ToolCall(call_id, text_of(item.get("name")), arguments, provider_data={NAME: kept} if kept else {})


def _without_nulls(item: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if value is not None}


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
            elif not any(_streamed_texts(self.data, name)):
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
        for index, text in enumerate(_streamed_texts(data, name))
    ]
    return [(name, index, text) for _, index, name, text in sorted(found)]


def _streamed_texts(data: Mapping[str, Any], name: str) -> Iterator[str]:
    """Go through the texts of one kind that an item holds; what is not of that kind is an empty one, so that places agree."""
    how = STREAMED[name]
    held = data.get(how.held_in)
    if not how.type:
        yield arguments_json(held) if held else ""
        return
    for piece in held if isinstance(held, list) else ():
        yield text_of(piece.get(how.key)) if isinstance(piece, dict) else ""


_ERRORS = frozenset({"error", "response.error"})
_ENDS: Mapping[str, str] = {
    "response.completed": "completed",
    "response.done": "completed",
    "response.incomplete": "incomplete",
    "response.failed": "failed",
    "response.cancelled": "cancelled",
}
"""The events that end an answer, and the status that each means when it names none."""


class ResponsesStreamDecoder(JsonEventDecoder):
    """Reads one streamed response.

    The last event holds the whole response, and that is what counts; its items are those that came before where a service
    leaves them out of it.
    """

    def __init__(self, plain: PlainDecoder, headers: Mapping[str, str]) -> None:
        super().__init__(plain, headers)
        self._items = StreamedItems()
        self._begun: dict[str, Any] = {}
        self._ended: dict[str, Any] | None = None

    def take(self, data: dict[str, Any], name: str) -> list[InferenceDelta]:
        """Take an event; those that are not known mean nothing.

        Raises:
            InferenceError: for an error that the provider tells.
        """
        kind = text_of(data.get("type")) or name
        if kind in _ERRORS or (not kind and data.get("error")):
            raise self.failed(data)
        if kind in _ENDS:
            return self._end({"status": _ENDS[kind], **object_of(data.get("response"))})
        if kind == "response.created":
            self._items, self._ended = StreamedItems(), None
            self._begun = object_of(data.get("response"))
        elif kind == "response.output_item.added":
            return self._items.begin(data.get("output_index"), data["item"])
        elif kind == "response.output_item.done":
            return self._items.finish(data.get("output_index"), data["item"])
        elif kind.endswith(".delta") and kind[: -len(".delta")] in STREAMED:
            return self._items.extend(kind[: -len(".delta")], data)
        elif kind.endswith(".done") and kind[: -len(".done")] in STREAMED:
            return self._items.complete(kind[: -len(".done")], data)
        return []

    def response(self) -> InferenceResponse:
        """Return the whole answer.

        Raises:
            InferenceError: when the stream ended before the response did, unless all that had begun was complete.
        """
        if self._ended is not None:
            return response_of(self._ended)
        if not self._items.are_an_answer:
            raise self.cut_short("the response did not end")
        return response_of({**self._begun, "status": None, "usage": None, "output": self._items.whole()})

    def _end(self, response: dict[str, Any]) -> list[InferenceDelta]:
        failed = failure_in(response)
        if failed:
            raise self.failed(failed)
        items = response.get("output") or []
        are_all = bool(items) and len(items) >= self._items.finished
        found = self._items.catch_up(items)
        self._ended = {**response, "output": items if are_all else self._items.whole()}
        return found
