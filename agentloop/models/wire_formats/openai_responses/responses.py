"""Decoding of responses of the Responses API.

Source: https://platform.openai.com/docs/api-reference/responses/object
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Literal

from attrs import define, field, frozen

from agentloop.models.wire_formats.decoding import BodyDecoder, JsonEventDecoder, decode_body, finish_reason
from agentloop.models.wire_formats.errors import find_error, truncation_error
from agentloop.models.wire_formats.fields import (
    CUT_OFF,
    arguments_json,
    count_of,
    object_of,
    output_with_reasoning,
    read_logprobs,
    text_of,
)
from agentloop.models.wire_formats.framing import ERROR_EVENTS
from agentloop.models.wire_formats.openai_responses.requests import CUSTOM_CALL, NAME, provider_state
from agentloop.values.inference import FinishReason, InferenceDelta, InferenceResponse, TokenLogprob, Usage
from agentloop.values.messages import ResponsePart
from agentloop.values.parts import ProviderPart, Reasoning, Text
from agentloop.values.tool_calls import ToolCall
from agentloop.values.value import Value

_OK = 200
_FINAL_STATUSES = frozenset({"completed", "complete", "incomplete"})
_BACKGROUND_STATUSES = frozenset({"queued", "in_progress"})
_INCOMPLETE_REASONS: Mapping[str, FinishReason] = {
    "max_output_tokens": FinishReason.LENGTH,
    "max_tokens": FinishReason.LENGTH,
    "content_filter": FinishReason.CONTENT_FILTER,
}
_UNFINISHED_STATUSES = frozenset({"incomplete", "in_progress"})
_CALL_TYPES = frozenset({"function_call", CUSTOM_CALL})


def decode_response(status: int, headers: Mapping[str, str], body: bytes) -> InferenceResponse:
    """Decode a complete response.

    Raises:
        InferenceError: typed by status and body.
    """
    return decode_body(
        status, headers, body, find_error=_find_error, decode=partial(_response, headers=headers), expected="a response"
    )


def _find_error(data: Any) -> dict[str, Any] | None:
    # An event that contains the response contains the error inside of it.
    response = data.get("response") if isinstance(data, dict) else None
    return _error_in(data) or _error_in(response)


def _error_in(data: Any) -> dict[str, Any] | None:
    if isinstance(data, dict) and data.get("status") == "failed" and not data.get("error"):
        return {"error": {"code": "server_error", "message": "the response failed; no reason is given"}}
    return find_error(data)


def _response(data: Any, headers: Mapping[str, str]) -> InferenceResponse:
    status = data.get("status")
    is_incomplete = status == "incomplete"
    parts = tuple(part for item in data["output"] for part in _parts(item, is_cut=is_incomplete))
    # A cancelled response is not whole, whatever it contains. A response in progress is whole only if it is empty: it answers a
    # request in the background.
    is_whole = not status or status in _FINAL_STATUSES or (status in _BACKGROUND_STATUSES and not parts)
    if not is_whole:
        raise truncation_error(f"the response ended too early, with the status {status!r}", _OK, headers)
    return InferenceResponse(
        parts,
        _finish_reason(text_of(status), text_of(object_of(data.get("incomplete_details")).get("reason")), parts),
        _usage(data.get("usage")),
        text_of(data.get("model")),
        text_of(data.get("id")),
        status if isinstance(status, str) else None,
        logprobs=[logprob for item in data["output"] for logprob in _logprobs(item)],
    )


def _finish_reason(status: str, reason: str, parts: tuple[ResponsePart, ...]) -> FinishReason:
    if status == "incomplete":
        found = finish_reason(reason, _INCOMPLETE_REASONS)
        return found if found.is_incomplete else FinishReason.ERROR  # also if the reason is unknown
    if status in _BACKGROUND_STATUSES:
        return FinishReason.OTHER
    if any(isinstance(part, ToolCall) for part in parts):
        return FinishReason.TOOL_CALLS
    if any(isinstance(part, Text) and _is_refusal(part) for part in parts):
        return FinishReason.CONTENT_FILTER
    return FinishReason.STOP if status else FinishReason.UNKNOWN


def _is_refusal(part: Text) -> bool:
    return object_of(provider_state(part.provider_data).get("content")).get("type") == "refusal"


def _usage(usage: Any) -> Usage:
    if not isinstance(usage, dict):
        return Usage()
    input_details = object_of(usage.get("input_tokens_details"))
    output_details = object_of(usage.get("output_tokens_details"))
    inputs, outputs = count_of(usage.get("input_tokens")), count_of(usage.get("output_tokens"))
    reasoning = count_of(output_details.get("reasoning_tokens"))
    return Usage(
        inputs,
        output_with_reasoning(
            inputs, outputs, reasoning, usage.get("total_tokens")
        ),  # some gateways count reasoning apart
        count_of(input_details.get("cached_tokens")),
        count_of(input_details.get("cache_write_tokens")),
        reasoning,
    )


# --- output items --------------------------------------------------------------------------------------------------


def _parts(item: dict[str, Any], *, is_cut: bool) -> Iterator[ResponsePart]:
    kind = item.get("type")
    if kind == "message":
        yield from _texts(item)
    elif kind == "reasoning":
        yield Reasoning(_reasoning_text(item), provider_data={NAME: _without_nulls(item)})
    elif kind in _CALL_TYPES:
        yield _call(item, is_cut=is_cut)
    else:
        yield ProviderPart(NAME, item)


def _texts(item: dict[str, Any]) -> Iterator[Text]:
    """Yield a text for each content of a message item, so that requests can return the contents separately."""
    state = {name: value for name, value in _without_nulls(item).items() if name not in {"type", "role", "content"}}
    contents = item.get("content") or ()
    for content in [{"text": contents}] if isinstance(contents, str) else contents:
        refusal = text_of(content.get("refusal"))
        text = text_of(content.get("text")) or refusal
        # An empty text is kept for the id of its item.
        if not text and not state.get("id"):
            continue
        notes: dict[str, Any] = {}
        if refusal:
            notes = {"type": "refusal"}
        elif content.get("annotations"):
            notes = {"annotations": content["annotations"]}
        provider_data = {"item": state, "content": notes} if notes else {"item": state}
        yield Text(text, provider_data={NAME: provider_data} if state.get("id") or notes else {})


def _logprobs(item: Mapping[str, Any]) -> Iterator[TokenLogprob]:
    """Yield the log probabilities of the texts of a message item."""
    contents = item.get("content") if item.get("type") == "message" else None
    for content in contents if isinstance(contents, list) else ():
        yield from read_logprobs(content.get("logprobs"))


def _reasoning_text(item: Mapping[str, Any]) -> str:
    contents = item.get("summary") or item.get("content") or ()
    return "\n".join(text_of(content.get("text")) for content in contents)


def _call(item: dict[str, Any], *, is_cut: bool) -> ToolCall:
    is_custom = item.get("type") == CUSTOM_CALL
    # The type of a custom call remains in its provider data, since requests encode it differently from a function call.
    neutral = {"call_id", "name", "input", "status"} if is_custom else {"call_id", "name", "arguments", "type"}
    state = {name: value for name, value in _without_nulls(item).items() if name not in neutral}
    arguments = (
        text_of(item.get("input"))
        if is_custom
        else arguments_json(item.get("arguments"), missing="" if is_cut else "{}")
    )
    # The text of a custom call never shows whether it is complete, so only the status `completed` says so. JSON mostly shows it.
    status = item.get("status")
    is_unfinished = status != "completed" if is_custom else status in _UNFINISHED_STATUSES
    return ToolCall(
        text_of(item.get("call_id")) or text_of(item.get("id")),
        text_of(item.get("name")),
        arguments,
        provider_data={NAME: state} if state else {},
        rejection=CUT_OFF if is_cut and is_unfinished else "",
    )


def _without_nulls(item: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if value is not None}


# --- streams -------------------------------------------------------------------------------------------------------

_FINAL_EVENTS: Mapping[str, str] = {
    "response.completed": "completed",
    "response.done": "completed",
    "response.incomplete": "incomplete",
    "response.failed": "failed",
    "response.cancelled": "cancelled",
}
"""The events that end a response, each with the status of a response that does not state its own."""


class ResponsesStreamDecoder(JsonEventDecoder):
    """Decodes a streamed response.

    The last event contains the complete response, which takes precedence. If a service leaves out items there, the items of the
    earlier events are used.
    """

    def __init__(self, decode_body: BodyDecoder, headers: Mapping[str, str]) -> None:
        super().__init__(decode_body, headers)
        self._items = StreamedItems()
        self._final: dict[str, Any] | None = None

    def find_error(self, data: Any) -> object:
        """Return the event, or the response in it, that reports an error."""
        return data if text_of(data.get("type")) in ERROR_EVENTS else _find_error(data)

    def process(self, data: dict[str, Any], name: str) -> list[InferenceDelta]:
        """Process one event; unknown events are ignored."""
        kind = text_of(data.get("type")) or name
        if kind in _FINAL_EVENTS:
            return self._end({"status": _FINAL_EVENTS[kind], **object_of(data.get("response"))})
        text_kind, _, change = kind.rpartition(".")
        if kind == "response.created":
            self._items, self._final = StreamedItems(), None
        elif kind == "response.output_item.added":
            return self._items.start(data.get("output_index"), data["item"])
        elif kind == "response.output_item.done":
            return self._items.finish(data.get("output_index"), data["item"])
        elif text_kind in STREAMED_TEXTS and change == "delta":
            return self._items.extend_text(text_kind, data)
        elif text_kind in STREAMED_TEXTS and change == "done":
            return self._items.finish_text(text_kind, data)
        return []

    def response(self) -> InferenceResponse:
        """Return the complete response.

        Raises:
            InferenceError: when the stream ended before the response did, or the response was cancelled.
        """
        # Complete items do not show that no further item would have followed.
        if self._final is None:
            raise self.truncation_error("it contains no event that ends the response")
        return _response(self._final, self.headers)

    def _end(self, response: dict[str, Any]) -> list[InferenceDelta]:
        failure = _error_in(response)
        if failure:
            raise self.reported_error(failure)
        items = response.get("output") or []
        # Some services send the last event without items, or with some of them only.
        has_all_items = bool(items) and len(items) >= self._items.finished_count
        deltas = self._items.add_missing(items)
        self.mark_done()
        self._final = {**response, "output": items if has_all_items else self._items.build()}
        return deltas


@frozen(eq=False, repr=False)
class StreamedField(Value):
    """Where a streamed text belongs.

    Attributes:
        item: the type of the item that contains it.
        entry: the entry of the item that contains it: a list of objects, or the text itself.
        key: the key of the text, in the object and in the event that contains the complete text.
        type: the type of the object; empty if the entry is the text itself.
        delta_kind: the kind of its deltas.
    """

    item: str
    entry: str
    key: str
    type: str
    delta_kind: Literal["text", "reasoning", "arguments"]


STREAMED_TEXTS: Mapping[str, StreamedField] = {
    "response.output_text": StreamedField("message", "content", "text", "output_text", "text"),
    "response.refusal": StreamedField("message", "content", "refusal", "refusal", "text"),
    "response.reasoning_summary_text": StreamedField("reasoning", "summary", "text", "summary_text", "reasoning"),
    "response.reasoning_text": StreamedField("reasoning", "content", "text", "reasoning_text", "reasoning"),
    "response.function_call_arguments": StreamedField("function_call", "arguments", "arguments", "", "arguments"),
    "response.custom_tool_call_input": StreamedField(CUSTOM_CALL, "input", "input", "", "arguments"),
}
"""The streamed texts, by the names of their events without `.delta` and `.done`."""


class StreamedItems:
    """Collects the items of a response by their position, and returns what is new as deltas.

    Attributes:
        finished_count: the number of items that are complete.
    """

    def __init__(self) -> None:
        self.finished_count: int = 0
        self._items: dict[int, _PartialItem] = {}
        self._positions_by_id: dict[str, int] = {}
        self._last_positions_by_type: dict[str, int] = {}
        self._next_position = 0
        self._call_count = 0

    def build(self) -> list[dict[str, Any]]:
        """Return the items in order, with the texts received so far."""
        return [self._items[position].build() for position in sorted(self._items)]

    def start(self, position: object, data: dict[str, Any]) -> list[InferenceDelta]:
        """Start an item."""
        item = self._item(position, text_of(data.get("id")), data)
        return self._start_call(item)

    def extend_text(self, name: str, event: Mapping[str, Any]) -> list[InferenceDelta]:
        """Add a fragment of a text."""
        item, index = self._addressed_item(name, event)
        return self._append(item, name, index, text_of(event.get("delta")))

    def finish_text(self, name: str, event: Mapping[str, Any]) -> list[InferenceDelta]:
        """Set a text to its complete value."""
        item, index = self._addressed_item(name, event)
        # Some services send the name of a call with its arguments only.
        if event.get("name") and not item.data.get("name"):
            item.data["name"] = event["name"]
        text = text_of(event.get(STREAMED_TEXTS[name].key))
        return self._start_call(item) + self._replace_text(item, name, index, text)

    def finish(self, position: object, data: dict[str, Any]) -> list[InferenceDelta]:
        """Set an item to its complete value."""
        item = self._item(position, text_of(data.get("id")), data)
        if not item.is_finished:
            item.is_finished = True
            self.finished_count += 1
        # The final item may lack entries of the initial one, such as the name of a call.
        item.data.update(data)
        deltas = self._start_call(item)
        for name, index, text in _texts_in_order(item.data):
            deltas += self._replace_text(item, name, index, text)
        return deltas

    def add_missing(self, items: list[dict[str, Any]]) -> list[InferenceDelta]:
        """Add the items of the complete response for which no event arrived."""
        deltas: list[InferenceDelta] = []
        for position, data in enumerate(items):
            if position not in self._items and text_of(data.get("id")) not in self._positions_by_id:
                deltas += self.finish(position, data)
        return deltas

    def _item(self, position: object, item_id: str, data: dict[str, Any]) -> _PartialItem:
        """Return the item at a position; without a position, the item with an id. It is created if it does not exist."""
        if not isinstance(position, int):
            position = self._positions_by_id.get(item_id, self._next_position)
        if item_id:
            self._positions_by_id[item_id] = position
        if position not in self._items:
            self._items[position] = _PartialItem(dict(data))
            self._last_positions_by_type[text_of(data.get("type"))] = position
            self._next_position = max(self._next_position, position + 1)
        return self._items[position]

    def _addressed_item(self, name: str, event: Mapping[str, Any]) -> tuple[_PartialItem, int]:
        """Return the item that a text event belongs to, and the index of the text in it."""
        streamed = STREAMED_TEXTS[name]
        position, item_id = event.get("output_index"), text_of(event.get("item_id"))
        # Some services omit both the index and the id: the event then belongs to the last item of the type.
        if not isinstance(position, int) and item_id not in self._positions_by_id:
            position = self._last_positions_by_type.get(streamed.item)
        item = self._item(position, item_id, {"type": streamed.item, "id": item_id})
        index = event.get("summary_index" if streamed.entry == "summary" else "content_index")
        return item, index if isinstance(index, int) else 0

    def _append(self, item: _PartialItem, name: str, index: int, text: str) -> list[InferenceDelta]:
        if not text:
            return []
        streamed = STREAMED_TEXTS[name]
        is_new = (name, index) not in item.texts
        # The response joins the texts of a reasoning item with line feeds, so the deltas do too.
        separator = "\n" if is_new and item.texts and streamed.delta_kind == "reasoning" else ""
        item.texts.setdefault((name, index), []).append(text)
        if streamed.delta_kind != "arguments":
            return [InferenceDelta(streamed.delta_kind, separator + text)]
        return [] if item.call_index is None else [InferenceDelta("arguments", text, item.call_index)]

    def _replace_text(self, item: _PartialItem, name: str, index: int, text: str) -> list[InferenceDelta]:
        """Set a text to its complete value, and return a delta for what was missing at its end."""
        if not text:
            return []
        received = "".join(item.texts.get((name, index), ()))
        # A complete text that differs from its fragments cannot be reported as a delta, but replaces them in the response.
        deltas = self._append(item, name, index, text[len(received) :]) if text.startswith(received) else []
        item.texts[name, index] = [text]
        return deltas

    def _start_call(self, item: _PartialItem) -> list[InferenceDelta]:
        """Return the start of a call once its name is known, with the arguments received so far."""
        name = text_of(item.data.get("name"))
        # A call is reported as soon as its name is known; without a name, when its item is complete.
        if item.type not in _CALL_TYPES or item.call_index is not None or not (name or item.is_finished):
            return []
        item.call_index = self._call_count
        self._call_count += 1
        call_id = text_of(item.data.get("call_id")) or text_of(item.data.get("id"))
        deltas = [InferenceDelta("tool_call", index=item.call_index, call_id=call_id, name=name)]
        arguments = "".join(text for fragments in item.texts.values() for text in fragments)
        return [*deltas, InferenceDelta("arguments", arguments, item.call_index)] if arguments else deltas


@define(eq=False)
class _PartialItem:
    """An item of which fragments may still arrive.

    Attributes:
        data: the item as last received.
        call_index: the 0-based index of the call among the calls of the response, once its start was reported.
        texts: the fragments of its texts, by event name and index in the item.
        is_finished: whether the complete item was received.
    """

    data: dict[str, Any]
    call_index: int | None = None
    texts: dict[tuple[str, int], list[str]] = field(factory=dict)
    is_finished: bool = False

    @property
    def type(self) -> str:
        return text_of(self.data.get("type"))

    def build(self) -> dict[str, Any]:
        """Return the item, with the streamed texts that its data does not contain."""
        item = dict(self.data)
        for name, texts in self._texts_by_name().items():
            streamed = STREAMED_TEXTS[name]
            if not streamed.type:
                item[streamed.entry] = item.get(streamed.entry) or texts[0]
            elif not any(_texts_of(self.data, name)):
                contents = [{"type": streamed.type, streamed.key: text} for text in texts]
                item[streamed.entry] = [*(item.get(streamed.entry) or ()), *contents]
        return item

    def _texts_by_name(self) -> dict[str, list[str]]:
        by_name: dict[str, list[str]] = {}
        for name, index in sorted(self.texts):
            by_name.setdefault(name, []).append("".join(self.texts[name, index]))
        return by_name


def _texts_in_order(data: Mapping[str, Any]) -> list[tuple[str, int, str]]:
    """Return the texts of an item with their event names and indexes: summaries first, then in the order of the indexes."""
    texts = [
        (streamed.entry != "summary", index, name, text)
        for name, streamed in STREAMED_TEXTS.items()
        if streamed.item == data.get("type")
        for index, text in enumerate(_texts_of(data, name))
    ]
    return [(name, index, text) for _, index, name, text in sorted(texts)]


def _texts_of(data: Mapping[str, Any], name: str) -> Iterator[str]:
    """Yield the texts of one kind in an item; contents of another kind yield empty texts, which keeps the indexes."""
    streamed = STREAMED_TEXTS[name]
    entry = data.get(streamed.entry)
    if not streamed.type:
        yield arguments_json(entry) if entry else ""
        return
    for content in entry if isinstance(entry, list) else ():
        yield text_of(content.get(streamed.key)) if isinstance(content, dict) else ""
