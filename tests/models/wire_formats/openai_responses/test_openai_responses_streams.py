"""Tests of the decoding of streams of the Responses API."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import ContextLengthExceeded, InferenceError, InvalidResponse, ProviderUnavailable, RateLimited
from agentloop.models.wire_formats.wire_format import wire_format
from agentloop.values import FinishReason, InferenceDelta, InferenceResponse
from tests.models.generated_requests import json_values
from tests.models.wire_formats.openai_responses.generated_items import Item, outputs, response
from tests.models.wire_formats.recorded_streams import Decoded, decode_stream, joined_text

FORMAT = wire_format("openai-responses")
Event = dict[str, Any]
TEXTS = {"output_text": "text", "refusal": "refusal", "summary_text": "text", "reasoning_text": "text"}
EVENTS = {"summary_text": "reasoning_summary_text"}


def sse(events: list[Event], *, named: bool = True) -> bytes:
    """Return events as server-sent events."""
    return "".join(
        (f"event: {event['type']}\n" if named else "") + f"data: {json.dumps(event)}\n\n" for event in events
    ).encode()


def decode(events: list[Event]) -> Decoded:
    """Decode a stream of these events."""
    return decode_stream(FORMAT, sse(events))


def decode_response(events: list[Event]) -> InferenceResponse:
    """Decode a stream of these events to a response."""
    response = decode(events)[1]
    assert isinstance(response, InferenceResponse), response
    return response


def halves(text: str) -> list[str]:
    """Return the halves of a text."""
    return [text[: len(text) // 2], text[len(text) // 2 :]]


def text_events(position: int, item: Item) -> Iterator[Event]:
    """Yield the events with the texts of an item, as the provider sends them."""
    for entry, index_name in (("summary", "summary_index"), ("content", "content_index")):
        for index, content in enumerate(item.get(entry, ())):
            kind = EVENTS.get(content["type"], content["type"])
            address = {"item_id": item["id"], "output_index": position, index_name: index}
            text = content[TEXTS[content["type"]]]
            yield from ({"type": f"response.{kind}.delta", "delta": half, **address} for half in halves(text))
            yield {"type": f"response.{kind}.done", TEXTS[content["type"]]: text, **address}
    for kind, name in (("function_call", "arguments"), ("custom_tool_call", "input")):
        if item["type"] == kind:
            address = {"item_id": item["id"], "output_index": position}
            yield from (
                {"type": f"response.{kind}_{name}.delta", "delta": half, **address} for half in halves(item[name])
            )
            yield {"type": f"response.{kind}_{name}.done", name: item[name], **address}


def stream_events(output: list[Item], **entries: Any) -> list[Event]:
    """Return the events of a stream with this response, as the provider sends them."""
    complete = response(output, **entries)
    events: list[Event] = [
        {"type": "response.created", "response": {**complete, "status": "in_progress", "output": []}}
    ]
    for position, item in enumerate(output):
        emptied = {name: "" if name in {"arguments", "input"} else value for name, value in item.items()}
        emptied |= {name: [] for name in ("summary", "content") if name in item}
        events.append({"type": "response.output_item.added", "output_index": position, "item": emptied})
        events += text_events(position, item)
        events.append({"type": "response.output_item.done", "output_index": position, "item": item})
    return [*events, {"type": "response.completed", "response": complete}]


def decode_complete(output: list[Item]) -> InferenceResponse:
    """Decode a complete response with this output."""
    return FORMAT.decode_response(200, {}, json.dumps(response(output)).encode())


@given(outputs)
def test_a_stream_is_decoded_like_a_complete_response(output: list[Item]) -> None:
    """The responses are equal, and the deltas add up to their texts."""
    deltas, response = decode(stream_events(output))
    assert response == decode_complete(output)
    assert isinstance(response, InferenceResponse)
    assert joined_text(deltas, "text") == response.text
    check_calls(deltas, response)


def check_calls(deltas: list[InferenceDelta], response: InferenceResponse) -> None:
    """Check that the deltas report the calls of a response."""
    started = [(delta.index, delta.call_id, delta.name) for delta in deltas if delta.kind == "tool_call"]
    assert started == [(index, call.id, call.name) for index, call in enumerate(response.tool_calls)]
    for index, call in enumerate(response.tool_calls):
        fragments = [delta for delta in deltas if delta.kind == "arguments" and delta.index == index]
        assert joined_text(fragments, "arguments") == call.arguments_json


OMITTED: Mapping[str, Callable[[Event], bool]] = {
    "deltas": lambda event: event["type"].endswith(".delta"),
    "complete texts": lambda event: event["type"].endswith(".done") and "item" not in event["type"],
    "started items": lambda event: event["type"].endswith(".added"),
    "the first event": lambda event: event["type"] == "response.created",
    "all but the last": lambda event: event["type"] != "response.completed",
}


@pytest.mark.parametrize("omitted", OMITTED)
@given(outputs)
def test_a_service_may_omit_events(omitted: str, output: list[Item]) -> None:
    """Data that is sent once is decoded and reported in deltas, whichever event contains it."""
    deltas, response = decode([event for event in stream_events(output) if not OMITTED[omitted](event)])
    assert response == decode_complete(output)
    assert isinstance(response, InferenceResponse)
    assert joined_text(deltas, "text") == response.text
    check_calls(deltas, response)


@pytest.mark.parametrize("omitted", ["deltas", "complete texts", "started items", "the first event"])
@given(outputs)
def test_the_last_event_may_omit_the_items(omitted: str, output: list[Item]) -> None:
    """The items of the earlier events are used then."""
    *events, last = [event for event in stream_events(output) if not OMITTED[omitted](event)]
    assert decode_response([*events, {**last, "response": {**last["response"], "output": []}}]) == decode_complete(
        output
    )


def test_a_response_can_consist_of_deltas_only() -> None:
    """Without complete items, the fragments are joined."""
    events: list[Event] = [
        {"type": "response.output_item.added", "item": {"type": "function_call", "call_id": "c", "name": "add"}},
        {"type": "response.function_call_arguments.delta", "delta": '{"a"'},
        {"type": "response.function_call_arguments.delta", "delta": ":1}"},
        {"type": "response.output_text.delta", "item_id": "m", "delta": "so"},
        {"type": "response.completed"},
    ]
    response = decode_response(events)
    assert [(call.id, call.name, call.arguments_json) for call in response.tool_calls] == [("c", "add", '{"a":1}')]
    assert response.text == "so"
    assert response.finish_reason is FinishReason.TOOL_CALLS


def test_a_call_is_reported_when_its_name_is_known() -> None:
    """Arguments are held back until then."""
    address = {"output_index": 0, "item_id": "fc_1"}
    events: list[Event] = [
        {"type": "response.function_call_arguments.delta", "delta": '{"a"', **address},
        {"type": "response.function_call_arguments.delta", "delta": ":1}", **address},
        {"type": "response.function_call_arguments.done", "name": "add", "arguments": '{"a":1}', **address},
    ]
    decoder = FORMAT.stream_decoder()
    assert decoder.feed(sse(events[:2])) == []
    assert decoder.feed(sse(events[2:])) == [
        InferenceDelta("tool_call", call_id="fc_1", name="add"),
        InferenceDelta("arguments", '{"a":1}'),
    ]


def test_deltas_of_one_reasoning_item_are_separated_by_line_feeds() -> None:
    """The joined deltas equal the reasoning of the response."""
    summary = [{"type": "summary_text", "text": "first"}, {"type": "summary_text", "text": "second"}]
    deltas, response = decode(stream_events([{"type": "reasoning", "id": "rs_1", "summary": summary}]))
    assert isinstance(response, InferenceResponse)
    assert joined_text(deltas, "reasoning") == response.reasoning == "first\nsecond"


MESSAGE = {
    "type": "message",
    "id": "m",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "hi"}],
}


def test_unknown_events_are_ignored() -> None:
    """The name of an event may be in its data or in the event field."""
    events = stream_events([MESSAGE])
    more = [event for known in events for event in ({"type": "response.new.delta", "delta": "x"}, known)]
    assert decode([*more, {"type": "keepalive"}]) == decode(events)
    bare = "".join(
        f"event: {event['type']}\ndata: {json.dumps({name: event[name] for name in event if name != 'type'})}\n\n"
        for event in events
    )
    assert decode_stream(FORMAT, bare.encode()) == decode(events) == decode_stream(FORMAT, sse(events, named=False))


def test_a_stream_without_an_end_is_an_invalid_response() -> None:
    """Complete items do not show that the response is complete; another attempt may bring the rest."""
    events = stream_events([MESSAGE])[:-1]
    for received in (events, events[:-1], events[:1]):
        error = decode(received)[1]
        assert isinstance(error, InvalidResponse)
        assert error.retryable


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
    """An error ends the stream at any point."""
    for events in ([event], [*stream_events([MESSAGE])[:4], event]):
        assert isinstance(decode(events)[1], kind)


def test_an_incomplete_response_has_a_finish_reason() -> None:
    """The last event has another name then."""
    *events, last = stream_events([MESSAGE])
    complete = {**last["response"], "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    response = decode_response([*events, {"type": "response.incomplete", "response": complete}])
    assert (response.text, response.finish_reason) == ("hi", FinishReason.LENGTH)


@given(outputs, st.sampled_from([1, 2, 7]))
def test_chunk_boundaries_do_not_matter(output: list[Item], step: int) -> None:
    """Chunks may end anywhere, also inside a character."""
    raw = "".join(f"data: {json.dumps(event, ensure_ascii=False)}\r\n\r\n" for event in stream_events(output)).encode()
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
def test_any_events_are_a_response_or_an_inference_error(events: list[Event]) -> None:
    """No malformed event raises another error."""
    assert isinstance(decode(events)[1], InferenceResponse | InferenceError)


@given(st.binary(), outputs, st.data())
def test_damaged_bytes_are_a_response_or_an_inference_error(
    noise: bytes, output: list[Item], data: st.DataObject
) -> None:
    """Random bytes, a truncated stream and one with replaced bytes raise no other error."""
    raw = sse(stream_events(output))
    position = data.draw(st.integers(0, len(raw) - 1))
    for damaged in (noise, raw[:position], raw[:position] + noise + raw[position + 1 :]):
        assert isinstance(decode_stream(FORMAT, damaged)[1], InferenceResponse | InferenceError)


def seconds_for(count: int) -> float:
    """Return the processor time to decode a stream with this many deltas, in seconds."""
    event = {
        "type": "response.output_text.delta",
        "item_id": "m",
        "output_index": 0,
        "content_index": 0,
        "delta": "word ",
    }
    done = {**event, "type": "response.output_text.done", "text": "word " * count}
    raw = sse([*[event] * count, done, {"type": "response.completed", "response": {"output": []}}])
    start = time.process_time()
    decode_stream(FORMAT, raw, 4096)
    return time.process_time() - start


def test_decoding_time_is_linear_in_the_length_of_the_stream() -> None:
    """Ten times the deltas take about ten times the processor time."""
    short, long = min(seconds_for(2_000) for _ in range(3)), seconds_for(20_000)
    for _ in range(9):
        if long < 30 * short:
            break
        long = min(long, seconds_for(20_000))  # cache misses can only add time
    assert long < 30 * short
