"""The contexts of the interceptor points."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from agentloop.errors import MalformedArguments, NotJson
from agentloop.values.decisions import Answer, Approve, Block, Suspend
from agentloop.values.inference import InferenceRequest, InferenceResponse
from agentloop.values.messages import Message
from agentloop.values.parts import Text
from agentloop.values.points import (
    POINTS,
    AfterExecution,
    AfterInference,
    AfterStep,
    AfterToolUse,
    AroundToolUse,
    BeforeExecution,
    BeforeInference,
    BeforeStep,
    BeforeToolUse,
    OnError,
    OnStop,
    StatePoint,
)
from agentloop.values.state import AgentState
from agentloop.values.stop import Continuation, StopReason, StopSignal
from agentloop.values.tool_calls import ErrorInfo, ToolCall, ToolExecution, ToolSpec, ToolStatus

NOW = datetime(2024, 1, 1, tzinfo=UTC)
STATE = AgentState.start("hello", agent_id="a").with_execution_started("run", NOW)
CALL = ToolCall("1", "find", '{"a": 1}')
SPEC = ToolSpec("find", "Find.", {"type": "object"})
EXECUTION = ToolExecution(
    id="e", key="run/1/0", call=CALL, status=ToolStatus.SUCCEEDED, value=1, started_at=NOW, ended_at=NOW
)
REQUEST = InferenceRequest([Message.user("hello")])
RESPONSE = InferenceResponse([Text("hi")])
BEFORE_TOOL = BeforeToolUse(STATE, CALL, SPEC, "run/1/0")
AROUND_TOOL = AroundToolUse(STATE, CALL, SPEC, "run/1/0", "e", NOW)

STATE_POINTS: list[StatePoint] = [
    *[kind(STATE) for kind in (BeforeExecution, BeforeStep, AfterStep, OnStop, AfterExecution)],
    BeforeInference(STATE, REQUEST),
    AfterInference(STATE, REQUEST, RESPONSE),
    BEFORE_TOOL,
    AfterToolUse(STATE, EXECUTION, SPEC),
    OnError(STATE, ValueError("no")),
]


def test_every_point_with_a_state_is_listed_here() -> None:
    """A point that is added later needs an example here."""
    assert {type(point) for point in STATE_POINTS} == {kind for kind in POINTS.values() if issubclass(kind, StatePoint)}


@pytest.mark.parametrize("point", STATE_POINTS, ids=lambda point: type(point).__name__)
def test_a_state_is_changed_in_a_copy_of_the_same_point(point: Any) -> None:
    """The copy has the same class and equal other fields; the original is unchanged."""
    other = STATE.with_message("more")
    changed = point.with_state(other)
    assert type(changed) is type(point)
    assert changed.state == other
    assert changed.with_state(STATE) == point
    assert point.state is STATE


@pytest.mark.parametrize("point", STATE_POINTS, ids=lambda point: type(point).__name__)
def test_every_point_with_a_state_can_stop(point: Any) -> None:
    """The signal is added to the state; by default it is soft."""
    assert point.stop("enough").state.stop_signal == StopSignal(StopReason.STOP_REQUESTED, "enough")
    stopped = point.stop("over", reason=StopReason.COST_LIMIT, source="me", context={"a": 1})
    assert stopped.state.stop_signal == StopSignal(StopReason.COST_LIMIT, "over", "me", {"a": 1})


def test_a_continuation_can_be_requested_after_a_step() -> None:
    """The request is stored in the state."""
    asked = AfterStep(STATE).request_continuation()
    assert asked.state.execution is not None
    assert asked.state.execution.continuation == Continuation((), requested=True)


def test_an_inference_can_be_changed_or_answered() -> None:
    """The request, the answer before asking, and the answer after it are replaced in copies."""
    point = BeforeInference(STATE, REQUEST)
    other = REQUEST.with_system_prompt("new")
    assert point.with_request(other) == BeforeInference(STATE, other)
    assert point.answer(RESPONSE) == BeforeInference(STATE, REQUEST, RESPONSE)
    changed = RESPONSE.with_text("new")
    assert AfterInference(STATE, REQUEST, RESPONSE).with_response(changed) == AfterInference(STATE, REQUEST, changed)


def test_a_call_can_be_changed_before_it_runs() -> None:
    """Another call, or the same with other arguments."""
    assert BEFORE_TOOL.arguments == {"a": 1}
    assert BEFORE_TOOL.with_arguments({"a": [2]}).call == CALL.with_arguments_json('{"a":[2]}')
    other = ToolCall("2", "other")
    assert BEFORE_TOOL.with_call(other).call == other
    assert BEFORE_TOOL.call is CALL


@pytest.mark.parametrize("arguments", [{"a": float("nan")}, {"a": {1}}, {"a": [object()]}])
def test_arguments_of_an_interceptor_must_be_json(arguments: dict[str, object]) -> None:
    """Arguments without a JSON form are refused at once, never converted."""
    with pytest.raises(NotJson):
        BEFORE_TOOL.with_arguments(arguments)


def test_malformed_arguments_raise_on_access() -> None:
    """The accessor raises the same error as the call itself."""
    with pytest.raises(MalformedArguments):
        _ = BEFORE_TOOL.with_call(ToolCall("1", "find", "{")).arguments


def test_a_call_can_be_blocked_answered_or_suspended() -> None:
    """The last verdict counts; a call that was decided does not wait again."""
    assert BEFORE_TOOL.verdict is None
    assert BEFORE_TOOL.block("no").verdict == Block("no")
    assert BEFORE_TOOL.block("no").answer([1]).verdict == Answer((1,))
    assert BEFORE_TOOL.suspend("ask").verdict == Suspend("ask")
    decided = BeforeToolUse(STATE, CALL, SPEC, "run/1/0", decision=Approve())
    assert decided.suspend("ask") == decided
    assert decided.block("no").verdict == Block("no")


def test_a_layer_around_a_call_can_make_its_outcome() -> None:
    """The execution has the id, key, call and time of its call."""
    common: dict[str, Any] = {"id": "e", "key": "run/1/0", "call": CALL, "started_at": NOW, "ended_at": NOW}
    assert AROUND_TOOL.arguments == {"a": 1}
    assert AROUND_TOOL.succeed([1]) == ToolExecution(status=ToolStatus.SUCCEEDED, value=[1], **common)
    assert AROUND_TOOL.succeed(1, [Text("one")]).content == (Text("one"),)
    assert AROUND_TOOL.fail("no") == ToolExecution(
        status=ToolStatus.FAILED, error=ErrorInfo("ToolFailed", "no"), **common
    )
    late = AROUND_TOOL.fail("late", type="ToolTimedOut", status=ToolStatus.TIMED_OUT)
    assert (late.status, late.error) == (ToolStatus.TIMED_OUT, ErrorInfo("ToolTimedOut", "late"))


def test_an_outcome_can_be_changed_after_the_call() -> None:
    """Value, content and error are replaced; the call that ran is read off the execution."""
    point = AfterToolUse(STATE, EXECUTION)
    assert point.call == CALL
    assert point.with_value([2]).execution.value == (2,)
    assert point.with_value(2, [Text("two")]).execution.content == (Text("two"),)
    failed = point.with_error("no", type="TooCold").execution
    assert (failed.status, failed.error, failed.value) == (ToolStatus.FAILED, ErrorInfo("TooCold", "no"), None)
    assert point.with_execution(failed).execution is failed
    assert point.execution is EXECUTION


def test_an_error_can_be_replaced_or_recovered_from() -> None:
    """Recovery continues the execution, and the error remains in the step."""
    point, other = OnError(STATE, ValueError("no")), KeyError("x")
    assert point.recovered is False
    assert point.recover().recovered is True
    assert point.recover().error is point.error
    assert point.with_error(other).error is other
