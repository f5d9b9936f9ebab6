"""Eleven defects that are common in agent loops, each shown to be absent here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from attrs import field, frozen

from agentloop import (
    AgentLoop,
    AgentState,
    Interceptor,
    ScriptedDriver,
    ScriptedInference,
    StepLimit,
    StopReason,
    TimeLimit,
    TokenLimit,
    ToolCall,
    ToolCallingDriver,
    ToolCallLimit,
    ToolExecutor,
    tool,
)
from agentloop.contracts import ToolPolicy
from agentloop.drivers import Driver, ScenarioStep, StepDraft
from agentloop.drivers.inferring_driver import InferringDriver
from agentloop.events import InterceptorRan, ToolCallBlocked, ToolCallCompleted, ToolCallRejected, ToolCallStarted
from agentloop.interception import at
from agentloop.models import LLMConfig, wire_format
from agentloop.testing import Ledger, LoopClock, run_in_virtual_time, toy_call, toy_tools
from agentloop.testing.toys import ToyTool
from agentloop.values import Event, InferenceRequest, Message, ResponsePart, ToolExecutions, ToolStatus
from agentloop.values.batches import ToolCalls
from agentloop.values.points import (
    AfterInference,
    AfterToolUse,
    AroundInference,
    BeforeInference,
    BeforeToolUse,
    ProceedInference,
)


def scripted(*lines: Any, ledger: Ledger | None = None, **parts: Any) -> AgentLoop:
    tools = toy_tools(ledger or Ledger())
    return AgentLoop(ToolCallingDriver(ScriptedInference(*lines)), tools, clock=LoopClock(), **parts)


def run(loop: AgentLoop) -> tuple[AgentState, list[Event]]:
    """Run in virtual time with a listener for every event."""
    events: list[Event] = []
    loop.wiretap(events.append)
    return run_in_virtual_time(loop.execute("go")), events


def call_events(events: Sequence[Event]) -> list[tuple[str, str]]:
    """Return the events of calls, each with the name of the tool."""
    names: list[tuple[str, str]] = []
    for event in events:
        if isinstance(event, ToolCallStarted):
            names.append((type(event).__name__, event.call.name))
        elif isinstance(event, ToolCallCompleted | ToolCallBlocked | ToolCallRejected):
            names.append((type(event).__name__, event.execution.name))
    return names


@pytest.mark.parametrize("driver", ["tool calling", "scripted"])
def test_1_state_changes_of_tool_interceptors_are_kept(driver: str) -> None:
    """Changes before and after each call of a parallel batch are in the final state, and later calls see earlier ones."""

    class Counting(Interceptor):
        def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
            seen = point.state.context.metadata.get("before", 0)
            return point.with_state(point.state.with_metadata(before=seen + 1))

        def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
            seen = point.state.context.metadata.get("after", 0)
            return point.with_state(point.state.with_metadata(after=seen + 1))

    drivers: dict[str, Driver] = {
        "tool calling": ToolCallingDriver(
            ScriptedInference([toy_call("echo", n, seconds=3 - n) for n in range(3)], "done")
        ),
        "scripted": ScriptedDriver(
            ScenarioStep.tool_calls(*[("echo", {"value": n, "seconds": 3 - n}) for n in range(3)]),
            ScenarioStep.final("done"),
        ),
    }
    state, _ = run(AgentLoop(drivers[driver], toy_tools(Ledger()), interceptors=[Counting()]))
    assert state.context.metadata == {"before": 3, "after": 3}


def test_2_a_call_is_reported_as_completed_after_its_interceptor() -> None:
    """The event follows the interceptor, and has what the state and the model get."""
    redact = at("after_tool_use", lambda point: point.with_value("***"))
    state, events = run(scripted([toy_call("echo", 1)], "done", interceptors=[redact]))
    after = [
        type(event).__name__
        for event in events
        if isinstance(event, ToolCallCompleted)
        or (isinstance(event, InterceptorRan) and event.point == "after_tool_use")
    ]
    assert after == ["InterceptorRan", "ToolCallCompleted"]
    (completed,) = [event for event in events if isinstance(event, ToolCallCompleted)]
    assert completed.execution.value == "***"
    assert state.steps[0].executions[0] == completed.execution


def test_3_a_blocked_call_is_reported() -> None:
    """A blocked call has an event of its own, with the reason."""
    block = at("before_tool_use", lambda point: point.block("not today"))
    state, events = run(scripted([toy_call("echo", 1)], "done", interceptors=[block]))
    (blocked,) = [event for event in events if isinstance(event, ToolCallBlocked)]
    assert blocked.execution == state.steps[0].executions[0]
    assert "not today" in blocked.execution.error_message


@frozen(kw_only=True)
class TwoInferencesDriver(InferringDriver):
    """A driver with two inferences per step."""

    async def decide(self, draft: StepDraft, messages: Sequence[Message]) -> tuple[ResponsePart, ...]:
        request = InferenceRequest(tuple(messages), tools=self.tools.specs)
        await self.infer(draft, request)
        return (await self.infer(draft, request)).parts


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streaming"])
@pytest.mark.parametrize(("kind", "inferences"), [(ToolCallingDriver, 2), (TwoInferencesDriver, 4)])
def test_4_inference_interceptors_run_under_every_driver(
    kind: type[InferringDriver], inferences: int, *, streaming: bool
) -> None:
    """Each inference passes all three points, under each driver, streamed or not."""
    passed: list[str] = []

    class RecordsPoints(Interceptor):
        def before_inference(self, point: BeforeInference) -> BeforeInference:
            passed.append("before")
            return point

        async def around_inference(self, point: AroundInference, proceed: ProceedInference) -> Any:
            passed.append("around")
            return await proceed()

        def after_inference(self, point: AfterInference) -> AfterInference:
            passed.append("after")
            return point

    echo = [toy_call("echo", 1)]
    model = ScriptedInference(echo, "done") if inferences == 2 else ScriptedInference("", echo, "", "done")
    driver = kind(model, streaming=streaming)
    state, _ = run(AgentLoop(driver, toy_tools(Ledger()), interceptors=[RecordsPoints()]))
    assert state.final_text == "done"
    assert passed == ["before", "around", "after"] * inferences


@tool
async def book(nights: int, rooms: list[dict[str, str]]) -> str:
    """Book rooms."""
    BOOKED.append(nights)
    return "booked"


BOOKED: list[int] = []


def test_5_arguments_are_validated_against_the_whole_schema() -> None:
    """Types, nested types and names are checked, not only required ones; invalid calls do not run."""
    BOOKED.clear()
    wrong = [
        {"nights": "three", "rooms": []},
        {"nights": 1, "rooms": [{"bed": 2}]},
        {"nights": 1, "rooms": [], "discount": True},
        {"nights": 1},
    ]
    calls = [ToolCall(str(n), "book", json.dumps(arguments)) for n, arguments in enumerate(wrong)]
    right = ToolCall("right", "book", '{"nights": 2, "rooms": [{"bed": "wide"}]}')
    loop = AgentLoop(ToolCallingDriver(ScriptedInference([*calls, right], "done")), [book])
    state, _ = run(loop)
    statuses = [execution.status.value for execution in state.steps[0].executions]
    assert statuses == ["rejected"] * 4 + ["succeeded"]
    assert BOOKED == [2]


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"max_steps": 2}, StopReason.STEP_LIMIT),
        ({"interceptors": [StepLimit(2)]}, StopReason.STEP_LIMIT),
        ({"interceptors": [ToolCallLimit(2)]}, StopReason.TOOL_CALL_LIMIT),
        ({"interceptors": [TokenLimit(30)]}, StopReason.TOKEN_LIMIT),
        ({"interceptors": [TimeLimit(1.5)]}, StopReason.TIME_LIMIT),
    ],
    ids=["max_steps", "steps", "tool calls", "tokens", "seconds"],
)
def test_6_every_limit_stops_the_execution(parts: dict[str, Any], reason: StopReason) -> None:
    """An execution of a hundred steps ends at the limit, keeps its work, and does no more than allowed."""
    ledger = Ledger()
    state, _ = run(scripted(*[[toy_call("echo", n, seconds=1)] for n in range(100)], ledger=ledger, **parts))
    assert state.stop_signal is not None
    assert (state.status.value, state.stop_signal.reason) == ("stopped", reason)
    assert len(ledger.calls) == 2
    assert state.steps[0].executions[0].value == 0


def test_6_the_limits_of_calls_hold() -> None:
    """Timeouts of an executor and of a tool, and the limit of concurrent calls, are enforced."""
    executor = ToolExecutor(default_timeout=5, max_concurrency=1)
    hasty = ToyTool("in_haste", Ledger(), lambda value, _: value, ToolPolicy(timeout=1.0))
    batch = [toy_call("echo", 1, seconds=9), toy_call("in_haste", 2, seconds=3), toy_call("echo", 3, seconds=1)]
    loop = scripted(batch, "done", executor=executor)
    loop = loop.replace(tools=[*loop.tools, hasty])
    state, _ = run(loop)
    step = state.steps[0]
    assert [execution.status.value for execution in step.executions] == ["timed_out", "timed_out", "succeeded"]
    times = [(execution.started_at, execution.ended_at) for execution in step.executions]
    assert all(begins >= ended for (_, ended), (begins, _) in pairwise(times))


@frozen
class MarkingExecutor(ToolExecutor):
    """A subclass of the executor that counts its batches."""

    batches: list[int] = field(factory=list)

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        self.batches.append(len(tool_calls.calls))
        return await super().execute_tools(tool_calls, state)


def test_7_changing_the_tools_keeps_the_executor() -> None:
    """A copy of the loop with other tools runs their calls with the same executor."""
    executor = MarkingExecutor()
    loop = AgentLoop(ToolCallingDriver(ScriptedInference([toy_call("echo", 1)], "done")), [book], executor=executor)
    state, _ = run(loop.replace(tools=toy_tools(Ledger())))
    assert state.steps[0].executions[0].succeeded
    assert executor.batches == [1]


def test_8_a_parallel_batch_is_one_assistant_message() -> None:
    """In the state and on the wire, the calls of one response are in one message, followed by their results."""
    state, _ = run(scripted(["All of them.", *[toy_call("echo", n) for n in range(3)]], "done"))
    assert [message.role for message in state.messages] == ["user", "assistant", "assistant"]
    config = LLMConfig(model="any", base_url="http://localhost")
    body = wire_format("openai-chat").encode_request(InferenceRequest(state.messages), config).body
    sent = json.loads(body)["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "tool", "tool", "assistant"]
    assert len(sent[1]["tool_calls"]) == 3
    assert [message["tool_call_id"] for message in sent[2:5]] == [message["id"] for message in sent[1]["tool_calls"]]


@tool(effect="pure")
async def anything(word: str = "nothing") -> str:
    """Take what may be left out."""
    return word


@pytest.mark.parametrize("text", ['{"word": "a', "{word: 'a'}", "[]", "word", '{"word": "a"}}', '{"word": NaN}'])
def test_9_malformed_arguments_are_rejected_and_never_run_as_empty_ones(text: str) -> None:
    """Text that is not a JSON object is rejected and kept as it is, also if all parameters are optional."""
    loop = AgentLoop(ToolCallingDriver(ScriptedInference([ToolCall("1", "anything", text)], "done")), [anything])
    state, events = run(loop)
    (outcome,) = state.steps[0].executions
    assert outcome.status is ToolStatus.REJECTED
    assert outcome.error is not None
    assert outcome.error.type == "MalformedArguments"
    assert outcome.call.arguments_json == text
    assert call_events(events) == [("ToolCallRejected", "anything")]


def test_10_a_blocked_call_is_never_reported_as_started() -> None:
    """In a batch of both, only the calls that run are reported as started."""

    def odd_only(point: BeforeToolUse) -> BeforeToolUse:
        return point if point.arguments["value"] % 2 else point.block("even")

    ledger = Ledger()
    batch = [toy_call("echo", 1), toy_call("plain", 2), toy_call("echo", 3)]
    _, events = run(scripted(batch, "done", ledger=ledger, interceptors=[at("before_tool_use", odd_only)]))
    assert sorted(call_events(events)) == [
        ("ToolCallBlocked", "plain"),
        ("ToolCallCompleted", "echo"),
        ("ToolCallCompleted", "echo"),
        ("ToolCallStarted", "echo"),
        ("ToolCallStarted", "echo"),
    ]
    assert [arguments["value"] for _, arguments in ledger.calls] == [1, 3]


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        (StepLimit(2), StopReason.STEP_LIMIT),
        (TokenLimit(30), StopReason.TOKEN_LIMIT),
        (ToolCallLimit(2), StopReason.TOOL_CALL_LIMIT),
        (TimeLimit(1.5), StopReason.TIME_LIMIT),
    ],
    ids=["steps", "tokens", "tool calls", "seconds"],
)
@pytest.mark.parametrize("priority", [-1000, 1000], ids=["inside", "outside"])
def test_11_a_requested_continuation_does_not_bypass_a_limit(
    limit: Interceptor, reason: StopReason, priority: int
) -> None:
    """An execution whose interceptor requests a continuation after each step is stopped by its limit."""
    insist = at("after_step", lambda point: point.request_continuation(), priority=priority)
    ledger = Ledger()
    lines = [[toy_call("echo", n, seconds=1)] for n in range(100)]
    state, _ = run(scripted(*lines, ledger=ledger, interceptors=[insist, limit]))
    assert state.stop_signal is not None
    assert (len(ledger.calls), state.stop_signal.reason) == (2, reason)
