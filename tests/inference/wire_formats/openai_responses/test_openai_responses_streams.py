"""Streams of the Responses API."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import ContextLengthExceeded, InferenceError, InvalidResponse, ProviderUnavailable, RateLimited
from agentloop.inference.wire_formats.wire_format import wire_format
from agentloop.values import FinishReason, InferenceDelta, InferenceResponse
from tests.inference.generated_requests import json_values
from tests.inference.wire_formats.openai_responses.generated_items import Item, outputs, response
from tests.inference.wire_formats.recorded_streams import Decoded, decode_stream, joined_text

FORMAT = wire_format("openai-responses")
Event = dict[str, Any]
TEXTS = {"output_text": "text", "refusal": "refusal", "summary_text": "text", "reasoning_text": "text"}
EVENTS = {"summary_text": "reasoning_summary_text"}


def sse(events: list[Event], *, named: bool = True) -> bytes:
    """Spell events as server-sent events."""
    return "".join(
        (f"event: {event['type']}\n" if named else "") + f"data: {json.dumps(event)}\n\n" for event in events
    ).encode()


def told(events: list[Event]) -> Decoded:
    """Read a stream of these events."""
    return decode_stream(FORMAT, sse(events))


def answer(events: list[Event]) -> InferenceResponse:
    """Read a stream of these events that is an answer."""
    found = told(events)[1]
    assert isinstance(found, InferenceResponse), found
    return found


def halves(text: str) -> list[str]:
    """Cut a text in two."""
    return [text[: len(text) // 2], text[len(text) // 2 :]]


def pieces_of(place: int, item: Item) -> Iterator[Event]:
    """Tell the texts of an item in pieces, as the provider does."""
    for held, index_name in (("summary", "summary_index"), ("content", "content_index")):
        for index, piece in enumerate(item.get(held, ())):
            kind = EVENTS.get(piece["type"], piece["type"])
            at = {"item_id": item["id"], "output_index": place, index_name: index}
            text = piece[TEXTS[piece["type"]]]
            yield from ({"type": f"response.{kind}.delta", "delta": half, **at} for half in halves(text))
            yield {"type": f"response.{kind}.done", TEXTS[piece["type"]]: text, **at}
    for kind, name in (("function_call", "arguments"), ("custom_tool_call", "input")):
        if item["type"] == kind:
            at = {"item_id": item["id"], "output_index": place}
            yield from ({"type": f"response.{kind}_{name}.delta", "delta": half, **at} for half in halves(item[name]))
            yield {"type": f"response.{kind}_{name}.done", name: item[name], **at}


def stream_of(output: list[Item], **entries: Any) -> list[Event]:
    """Tell a response in events, as the provider does."""
    whole = response(output, **entries)
    events: list[Event] = [{"type": "response.created", "response": {**whole, "status": "in_progress", "output": []}}]
    for place, item in enumerate(output):
        emptied = {name: "" if name in {"arguments", "input"} else value for name, value in item.items()}
        emptied |= {name: [] for name in ("summary", "content") if name in item}
        events.append({"type": "response.output_item.added", "output_index": place, "item": emptied})
        events += pieces_of(place, item)
        events.append({"type": "response.output_item.done", "output_index": place, "item": item})
    return [*events, {"type": "response.completed", "response": whole}]


def decoded(output: list[Item]) -> InferenceResponse:
    """Decode the same response in one piece."""
    return FORMAT.decode_response(200, {}, json.dumps(response(output)).encode())


@given(outputs)
def test_a_stream_is_read_as_the_response_in_one_piece(output: list[Item]) -> None:
    """The response is the same, and the deltas are the texts of it."""
    deltas, found = told(stream_of(output))
    assert found == decoded(output)
    assert isinstance(found, InferenceResponse)
    assert joined_text(deltas, "text") == found.text
    check_calls(deltas, found)


def check_calls(deltas: list[InferenceDelta], found: InferenceResponse) -> None:
    """Check that deltas tell the calls of a response."""
    begun = [(delta.index, delta.call_id, delta.name) for delta in deltas if delta.kind == "tool_call"]
    assert begun == [(index, call.id, call.name) for index, call in enumerate(found.tool_calls)]
    for index, call in enumerate(found.tool_calls):
        pieces = [delta for delta in deltas if delta.kind == "arguments" and delta.index == index]
        assert joined_text(pieces, "arguments") == call.arguments_json


LEFT_OUT: Mapping[str, Callable[[Event], bool]] = {
    "deltas": lambda event: event["type"].endswith(".delta"),
    "texts told whole": lambda event: event["type"].endswith(".done") and "item" not in event["type"],
    "items that begin": lambda event: event["type"].endswith(".added"),
    "the first event": lambda event: event["type"] == "response.created",
    "everything but the last": lambda event: event["type"] != "response.completed",
}


@pytest.mark.parametrize("left_out", LEFT_OUT)
@given(outputs)
def test_a_service_may_leave_events_out(left_out: str, output: list[Item]) -> None:
    """What is told once is known, and told in deltas, whichever of the events it comes in."""
    deltas, found = told([event for event in stream_of(output) if not LEFT_OUT[left_out](event)])
    assert found == decoded(output)
    assert isinstance(found, InferenceResponse)
    assert joined_text(deltas, "text") == found.text
    check_calls(deltas, found)


@pytest.mark.parametrize("left_out", ["deltas", "texts told whole", "items that begin", "the first event"])
@given(outputs)
def test_a_last_event_without_items_counts_as_one_with_those_before(left_out: str, output: list[Item]) -> None:
    """Some services keep the last event short."""
    *events, last = [event for event in stream_of(output) if not LEFT_OUT[left_out](event)]
    assert answer([*events, {**last, "response": {**last["response"], "output": []}}]) == decoded(output)


def test_an_answer_of_deltas_alone_is_complete() -> None:
    """Without any item told whole, the pieces are put together."""
    events: list[Event] = [
        {"type": "response.output_item.added", "item": {"type": "function_call", "call_id": "c", "name": "add"}},
        {"type": "response.function_call_arguments.delta", "delta": '{"a"'},
        {"type": "response.function_call_arguments.delta", "delta": ":1}"},
        {"type": "response.output_text.delta", "item_id": "m", "delta": "so"},
        {"type": "response.completed"},
    ]
    found = answer(events)
    assert [(call.id, call.name, call.arguments_json) for call in found.tool_calls] == [("c", "add", '{"a":1}')]
    assert found.text == "so"
    assert found.finish_reason is FinishReason.TOOL_CALLS


def test_a_call_is_told_when_its_name_is_known() -> None:
    """A delta without a name would tell nobody which tool is called."""
    at = {"output_index": 0, "item_id": "fc_1"}
    events: list[Event] = [
        {"type": "response.function_call_arguments.delta", "delta": '{"a"', **at},
        {"type": "response.function_call_arguments.delta", "delta": ":1}", **at},
        {"type": "response.function_call_arguments.done", "name": "add", "arguments": '{"a":1}', **at},
    ]
    decoder = FORMAT.stream_decoder()
    assert decoder.feed(sse(events[:2])) == []
    assert decoder.feed(sse(events[2:])) == [
        InferenceDelta("tool_call", call_id="fc_1", name="add"),
        InferenceDelta("arguments", '{"a":1}'),
    ]


def test_thoughts_of_one_item_are_told_on_lines_of_their_own() -> None:
    """The deltas read as the response does."""
    summary = [{"type": "summary_text", "text": "first"}, {"type": "summary_text", "text": "second"}]
    deltas, found = told(stream_of([{"type": "reasoning", "id": "rs_1", "summary": summary}]))
    assert isinstance(found, InferenceResponse)
    assert joined_text(deltas, "reasoning") == found.reasoning == "first\nsecond"


SAID = {
    "type": "message",
    "id": "m",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "hi"}],
}


def test_events_that_are_not_known_mean_nothing() -> None:
    """An API grows; names of events may stand in the data or beside it."""
    events = stream_of([SAID])
    more = [event for known in events for event in ({"type": "response.new.delta", "delta": "x"}, known)]
    assert told([*more, {"type": "keepalive"}]) == told(events)
    bare = "".join(
        f"event: {event['type']}\ndata: {json.dumps({name: event[name] for name in event if name != 'type'})}\n\n"
        for event in events
    )
    assert decode_stream(FORMAT, bare.encode()) == told(events) == decode_stream(FORMAT, sse(events, named=False))


def test_a_stream_without_an_end_is_an_answer_if_all_that_began_is_done() -> None:
    """A service may leave the last event out; a call that is cut off is never run."""
    events = stream_of([SAID])[:-1]
    assert (answer(events).text, answer(events).finish_reason) == ("hi", FinishReason.UNKNOWN)
    assert isinstance(told(events[:-1])[1], InvalidResponse)
    assert isinstance(told(events[:1])[1], InvalidResponse)


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        ({"type": "error", "code": "server_error", "message": "Broken."}, ProviderUnavailable),
        ({"type": "error", "error": {"type": "too_many_requests", "message": "Slow down."}}, RateLimited),
        ({"type": "error", "code": None, "message": "Your input exceeds the context window."}, ContextLengthExceeded),
        (
            {"type": "response.failed", "response": {"error": {"code": "rate_limit_exceeded", "message": "Slow."}}},
            RateLimited,
        ),
        ({"type": "response.failed", "response": {"status": "failed", "error": None}}, ProviderUnavailable),
        ({"type": "response.failed"}, ProviderUnavailable),
    ],
)
def test_an_error_in_the_stream_is_a_typed_error(event: Event, kind: type[InferenceError]) -> None:
    """An error ends the stream, wherever it comes."""
    for events in ([event], [*stream_of([SAID])[:4], event]):
        assert isinstance(told(events)[1], kind)


def test_an_answer_that_is_incomplete_says_why() -> None:
    """The last event has another name then."""
    *events, last = stream_of([SAID])
    whole = {**last["response"], "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    found = answer([*events, {"type": "response.incomplete", "response": whole}])
    assert (found.text, found.finish_reason) == ("hi", FinishReason.LENGTH)


@given(outputs, st.sampled_from([1, 2, 7]))
def test_how_a_stream_is_cut_makes_no_difference(output: list[Item], step: int) -> None:
    """Pieces may end anywhere, also inside of a character."""
    raw = "".join(f"data: {json.dumps(event, ensure_ascii=False)}\r\n\r\n" for event in stream_of(output)).encode()
    assert decode_stream(FORMAT, raw, step) == decode_stream(FORMAT, raw)


odd_events = st.fixed_dictionaries(
    {
        "type": st.sampled_from(
            [
                "response.created",
                "response.output_item.added",
                "response.output_item.done",
                "response.output_text.delta",
                "response.output_text.done",
                "response.reasoning_summary_text.delta",
                "response.function_call_arguments.delta",
                "response.function_call_arguments.done",
                "response.completed",
            ]
        )
        | json_values
    },
    optional={
        "delta": json_values,
        "text": json_values,
        "name": json_values,
        "arguments": json_values,
        "output_index": st.integers(-1, 3) | json_values,
        "content_index": st.integers(-1, 3) | json_values,
        "item_id": st.sampled_from(["a", "b"]) | json_values,
        "item": st.fixed_dictionaries(
            {"type": st.sampled_from(["message", "reasoning", "function_call"]) | json_values},
            optional={
                "id": st.sampled_from(["a", "b"]) | json_values,
                "name": json_values,
                "content": json_values | st.lists(st.fixed_dictionaries({"text": json_values})),
                "summary": json_values,
                "arguments": json_values,
            },
        )
        | json_values,
        "response": st.fixed_dictionaries({}, optional={"output": json_values, "status": json_values}) | json_values,
    },
)


@given(st.lists(odd_events, max_size=8))
def test_anything_like_a_stream_is_an_answer_or_an_inference_error(events: list[Event]) -> None:
    """No event with something odd in any of its places raises another error."""
    assert isinstance(told(events)[1], InferenceResponse | InferenceError)


@given(st.binary(), outputs, st.data())
def test_damaged_bytes_are_an_answer_or_an_inference_error(
    noise: bytes, output: list[Item], data: st.DataObject
) -> None:
    """Random bytes, a stream that is cut off, and one with other bytes in it."""
    raw = sse(stream_of(output))
    place = data.draw(st.integers(0, len(raw) - 1))
    for damaged in (noise, raw[:place], raw[:place] + noise + raw[place + 1 :]):
        assert isinstance(decode_stream(FORMAT, damaged)[1], InferenceResponse | InferenceError)


def seconds_for(count: int) -> float:
    """Measure how long a stream with this many pieces takes to read."""
    event = {
        "type": "response.output_text.delta",
        "item_id": "m",
        "output_index": 0,
        "content_index": 0,
        "delta": "word ",
    }
    done = {**event, "type": "response.output_text.done", "text": "word " * count}
    raw = sse([*[event] * count, done, {"type": "response.completed", "response": {"output": []}}])
    begun = time.process_time()
    decode_stream(FORMAT, raw, 4096)
    return time.process_time() - begun


def test_time_grows_with_the_length_of_the_stream() -> None:
    """Ten times the pieces take about ten times as long, of what the processor does: no other process adds to that."""
    short, long = min(seconds_for(2_000) for _ in range(3)), seconds_for(20_000)
    for _ in range(9):
        if long < 30 * short:
            break
        long = min(long, seconds_for(20_000))  # caches that others have filled can only add to it
    assert long < 30 * short
