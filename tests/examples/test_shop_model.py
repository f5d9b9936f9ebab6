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

from agentloop.cli.options import MODES, DriverOptions
from agentloop.contracts.can_use_mode import CanUseMode
from agentloop.inference.wire_formats.wire_format import wire_format
from agentloop.modes.react_mode import ReActJsonMode
from agentloop.modes.structured import StructuredMode
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
_SPELLING = wire_format("openai-chat")
_DRIVERS = [
    DriverOptions(driver, mode).build(shop_demo.scripted_inference(), shop_demo.CAPABILITIES)
    for driver, modes in MODES.items()
    for mode in modes
]
WAYS: list[CanUseMode] = [
    *[driver.mode_for(driver.inference) for driver in _DRIVERS],  # type: ignore[attr-defined]  # both drivers have it
    StructuredMode(variant="json_object"),
    ReActJsonMode(constrain="json_object"),
    ReActJsonMode(constrain=None),
]
"""Every way in which a model can be asked, those for models of which less is known included."""
ORDER = '{"number":5,"item":"clock","cents":100,"status":"delivered"}'
FAILURE = 'LookupError: there is no order 1;\nObserved: "the closest number" is 77'


def _spoken(mode: CanUseMode) -> str:
    return "-".join([mode.name, *[str(getattr(mode, key)) for key in ("variant", "constrain") if hasattr(mode, key)]])


def exchange(name: str, result: str, status: ToolStatus = ToolStatus.SUCCEEDED) -> ToolExchange:
    """Make a call with this result, as the model is told it."""
    call = ToolCall("c", name, "{}")
    failed = status is not ToolStatus.SUCCEEDED
    kind, _, told = result.partition(": ")
    execution = ToolExecution(
        id="e",
        key="x/1/0",
        call=call,
        status=status,
        value=None if failed else result,
        error=ErrorInfo(kind, told) if failed else None,
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


def asked(
    *messages: Message, tools: tuple[ToolSpec, ...] | None = None, question: str = COMPLAINT.question
) -> InferenceRequest:
    """Make a request, before it is put into a mode."""
    offered = tuple([tool.spec for tool in TOOLS]) if tools is None else tools
    return InferenceRequest((Message.user(question), *messages), shop_demo.SYSTEM_PROMPT, offered)


def answered(request: InferenceRequest, mode: CanUseMode) -> InferenceResponse:
    """Ask the scripted model in a mode, and read its answer in it."""
    body = _SPELLING.encode_request(mode.render_request(request), shop_demo.CONFIG).body
    status, headers, answer = scripted_model.respond(scripted_model.PATH, body)
    return mode.parse_response(_SPELLING.decode_response(status, headers, answer), request)


def called(response: InferenceResponse) -> list[tuple[str, Any]]:
    """Return the calls of an answer."""
    return [(call.name, json.loads(call.arguments_json)) for call in response.tool_calls]


@pytest.mark.parametrize("mode", WAYS, ids=_spoken)
def test_it_begins_with_calls_side_by_side(mode: CanUseMode) -> None:
    """In every notation the first answer holds the same three calls."""
    assert called(answered(asked(), mode)) == [
        ("find_customer", {"name": "Ada Lovelace"}),
        ("track_order", {"number": 1002}),
        ("track_order", {"number": 1051}),
    ]


@pytest.mark.parametrize("mode", WAYS, ids=_spoken)
def test_it_works_with_the_results_it_sees(mode: CanUseMode) -> None:
    """The corrected number and the customer's id come from the results in the request, also where these span lines."""
    assert called(answered(asked(FIRST_TURN), mode)) == [
        ("track_order", {"number": 77}),
        ("list_orders", {"customer_id": 9}),
    ]


@pytest.mark.parametrize("mode", WAYS, ids=_spoken)
def test_without_tools_it_answers_with_what_it_has(mode: CanUseMode) -> None:
    """A request that offers no tools is answered with words, made of the results so far."""
    response = answered(asked(FIRST_TURN, Message.user("This is your last answer."), tools=()), mode)
    assert response.tool_calls == ()
    assert response.text.startswith("Dear A,")


@pytest.mark.parametrize("mode", WAYS, ids=_spoken)
def test_it_knows_no_other_question(mode: CanUseMode) -> None:
    """Another question, or other tools, are answered with what it is."""
    assert answered(asked(question="How are you?"), mode).text.startswith("I am a scripted model")
    other = (ToolSpec("add", "Add numbers.", {"type": "object"}),)
    assert answered(asked(tools=other), mode).text.startswith("I am a scripted model")


@pytest.mark.parametrize("mode", WAYS, ids=_spoken)
def test_a_new_question_begins_anew(mode: CanUseMode) -> None:
    """Calls that served an earlier question are not taken for those of the last one."""
    again = asked(FIRST_TURN, Message.assistant("Dear A."), Message.user(COMPLAINT.question))
    assert called(answered(again, mode)) == called(answered(asked(), mode))


@pytest.mark.parametrize("messages", [(), (FIRST_TURN,)])
def test_a_streamed_answer_is_the_whole_one(messages: tuple[Message, ...]) -> None:
    """The pieces of a stream come to the same answer, tokens included."""
    request = asked(*messages)
    body = _SPELLING.encode_request(request, shop_demo.CONFIG, stream=True).body
    status, headers, sent = scripted_model.respond(scripted_model.PATH, body)
    decoder = _SPELLING.stream_decoder(headers)
    pieces = decoder.feed(sent)
    response = decoder.close()
    whole = answered(request, WAYS[0])
    assert (status, response.parts, response.finish_reason) == (200, whole.parts, whole.finish_reason)
    assert response.usage.output_tokens == whole.usage.output_tokens
    told = "".join([piece.text for piece in pieces if piece.kind == "text"])
    assert told == whole.text
    assert len(pieces) > len(whole.parts)


def test_it_keeps_nothing_between_requests() -> None:
    """The same request gets the same answer, whatever was asked in between."""
    first, second = (
        _SPELLING.encode_request(request, shop_demo.CONFIG).body for request in (asked(), asked(FIRST_TURN))
    )
    before = scripted_model.respond(scripted_model.PATH, first)
    scripted_model.respond(scripted_model.PATH, second)
    assert scripted_model.respond(scripted_model.PATH, first) == before


def test_it_has_one_address() -> None:
    """A request to another path is answered with 404."""
    status, _, _ = scripted_model.respond("/v2/anything", b"{}")
    assert status == 404
