"""The scripted model of the shop: it speaks Chat Completions, in every notation in which tools can be offered."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
import shop_demo
from shop import scripted_model
from shop.scripts import COMPLAINT
from shop.tools import TOOLS

from agentloop.contracts.can_use_mode import CanUseMode
from agentloop.models.modes.react import ReActJsonMode
from agentloop.models.modes.structured import StructuredMode
from agentloop.models.wire_formats.wire_format import wire_format
from agentloop.service.cli.agent_options import MODES, DriverOptions
from agentloop.values import (
    ErrorInfo,
    InferenceRequest,
    InferenceResponse,
    Message,
    ToolCall,
    ToolExchange,
    ToolExecution,
    ToolSpec,
    ToolStatus,
)

_NOW = datetime(2026, 1, 1, tzinfo=UTC)
_WIRE_FORMAT = wire_format("openai-chat")
_DRIVERS = [
    DriverOptions(driver, mode).build(shop_demo.scripted_inference(), shop_demo.CAPABILITIES)
    for driver, modes in MODES.items()
    for mode in modes
]
ALL_MODES: list[CanUseMode] = [
    *[driver.mode_for(driver.inference) for driver in _DRIVERS],  # type: ignore[attr-defined]  # both drivers have it
    StructuredMode(variant="json_object"),
    ReActJsonMode(constrain="json_object"),
    ReActJsonMode(constrain=None),
]
"""Every mode, with the variants for models of limited capabilities."""
ORDER = '{"number":5,"item":"clock","cents":100,"status":"delivered"}'
FAILURE = 'LookupError: there is no order 1;\nObserved: "the closest number" is 77'


def _mode_id(mode: CanUseMode) -> str:
    return "-".join([mode.name, *[str(getattr(mode, key)) for key in ("variant", "constrain") if hasattr(mode, key)]])


def exchange(name: str, result: str, status: ToolStatus = ToolStatus.SUCCEEDED) -> ToolExchange:
    """Return a call with this result, as a model sees it."""
    call = ToolCall("c", name, "{}")
    is_failed = status is not ToolStatus.SUCCEEDED
    error_type, _, message = result.partition(": ")
    execution = ToolExecution(
        id="e",
        key="x/1/0",
        call=call,
        status=status,
        value=None if is_failed else result,
        error=ErrorInfo(error_type, message) if is_failed else None,
        started_at=_NOW,
        ended_at=_NOW,
    )
    return ToolExchange(call, execution)


FIRST_TURN = Message.assistant(
    "I look.",
    exchange("find_customer", '{"id":9,"name":"A","email":"e"}'),
    exchange("track_order", ORDER),
    exchange("track_order", FAILURE, ToolStatus.FAILED),
)


def request_for(
    *messages: Message, tools: tuple[ToolSpec, ...] | None = None, question: str = COMPLAINT.question
) -> InferenceRequest:
    """Return a request that no mode has rendered yet."""
    offered = tuple([tool.spec for tool in TOOLS]) if tools is None else tools
    return InferenceRequest((Message.user(question), *messages), shop_demo.SYSTEM_PROMPT, offered)


def response_to(request: InferenceRequest, mode: CanUseMode) -> InferenceResponse:
    """Send a request to the scripted model in a mode, and parse the response."""
    body = _WIRE_FORMAT.encode_request(mode.render_request(request), shop_demo.CONFIG).body
    status, headers, answer = scripted_model.respond(scripted_model.PATH, body)
    return mode.parse_response(_WIRE_FORMAT.decode_response(status, headers, answer), request)


def calls_of(response: InferenceResponse) -> list[tuple[str, Any]]:
    """Return the names and arguments of the calls in a response."""
    return [(call.name, json.loads(call.arguments_json)) for call in response.tool_calls]


@pytest.mark.parametrize("mode", ALL_MODES, ids=_mode_id)
def test_the_first_response_has_parallel_calls(mode: CanUseMode) -> None:
    """In every notation, the first response has the same three calls."""
    assert calls_of(response_to(request_for(), mode)) == [
        ("find_customer", {"name": "Ada Lovelace"}),
        ("track_order", {"number": 1002}),
        ("track_order", {"number": 1051}),
    ]


@pytest.mark.parametrize("mode", ALL_MODES, ids=_mode_id)
def test_the_next_calls_depend_on_the_results(mode: CanUseMode) -> None:
    """The corrected number and the customer's id come from the results in the request, which may span lines."""
    assert calls_of(response_to(request_for(FIRST_TURN), mode)) == [
        ("track_order", {"number": 77}),
        ("list_orders", {"customer_id": 9}),
    ]


@pytest.mark.parametrize("mode", ALL_MODES, ids=_mode_id)
def test_a_request_without_tools_gets_an_answer(mode: CanUseMode) -> None:
    """A request that offers no tools gets an answer from the results so far."""
    response = response_to(request_for(FIRST_TURN, Message.user("This is your last answer."), tools=()), mode)
    assert response.tool_calls == ()
    assert response.text.startswith("Dear A,")


@pytest.mark.parametrize("mode", ALL_MODES, ids=_mode_id)
def test_an_unknown_question_is_answered_honestly(mode: CanUseMode) -> None:
    """For another question, or with other tools, the model says that it is scripted."""
    assert response_to(request_for(question="How are you?"), mode).text.startswith("I am a scripted model")
    other = (ToolSpec("add", "Add numbers.", {"type": "object"}),)
    assert response_to(request_for(tools=other), mode).text.startswith("I am a scripted model")


@pytest.mark.parametrize("mode", ALL_MODES, ids=_mode_id)
def test_a_repeated_question_starts_again(mode: CanUseMode) -> None:
    """Calls for an earlier question do not count for the last one."""
    again = request_for(FIRST_TURN, Message.assistant("Dear A."), Message.user(COMPLAINT.question))
    assert calls_of(response_to(again, mode)) == calls_of(response_to(request_for(), mode))


@pytest.mark.parametrize("messages", [(), (FIRST_TURN,)])
def test_a_streamed_response_equals_the_whole_one(messages: tuple[Message, ...]) -> None:
    """The chunks of a stream add up to the same response and the same tokens."""
    request = request_for(*messages)
    body = _WIRE_FORMAT.encode_request(request, shop_demo.CONFIG, stream=True).body
    status, headers, stream = scripted_model.respond(scripted_model.PATH, body)
    decoder = _WIRE_FORMAT.stream_decoder(headers)
    deltas = decoder.feed(stream)
    response = decoder.close()
    whole = response_to(request, ALL_MODES[0])
    assert (status, response.parts, response.finish_reason) == (200, whole.parts, whole.finish_reason)
    assert response.usage.output_tokens == whole.usage.output_tokens
    assert "".join([delta.text for delta in deltas if delta.kind == "text"]) == whole.text
    assert len(deltas) > len(whole.parts)


def test_the_model_is_stateless() -> None:
    """The same request gets the same response, whatever other requests came in between."""
    first, second = (
        _WIRE_FORMAT.encode_request(request, shop_demo.CONFIG).body
        for request in (request_for(), request_for(FIRST_TURN))
    )
    before = scripted_model.respond(scripted_model.PATH, first)
    scripted_model.respond(scripted_model.PATH, second)
    assert scripted_model.respond(scripted_model.PATH, first) == before


def test_the_model_has_one_address() -> None:
    """A request to another path gets 404."""
    status, _, _ = scripted_model.respond("/v2/anything", b"{}")
    assert status == 404
