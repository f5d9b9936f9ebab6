"""Budgets: limits on what an execution may use, and its end near a limit."""

from __future__ import annotations

import asyncio
import json
from itertools import count
from typing import Any

import pytest

from agentloop import (
    AgentLoop,
    AgentState,
    Budget,
    CostLimit,
    LLMConfig,
    ReActDriver,
    ScriptedInference,
    TimeLimit,
    TokenLimit,
    ToolCall,
    ToolCallingDriver,
    ToolCallLimit,
    tool,
)
from agentloop.contracts import CanIntercept, ExecutionScope
from agentloop.errors import RateLimited
from agentloop.interception import Interceptor, at
from agentloop.models import get_mode
from agentloop.models.modes.react import ReActJsonMode, ReActTextMode
from agentloop.models.wire_formats.wire_format import WIRE_FORMATS, wire_format
from agentloop.policies import Price, PriceTable, current_budget
from agentloop.policies.budgets.account import UsageMeter
from agentloop.policies.budgets.run import NOTICE
from agentloop.testing import (
    NOTATIONS,
    Ledger,
    LoopClock,
    Scenario,
    ScriptedTurn,
    run_in_virtual_time,
    toy_call,
    toy_tools,
)
from agentloop.values import (
    ExecutionStatus,
    FinishReason,
    InferenceOptions,
    InferenceRequest,
    InferenceResponse,
    Message,
    Text,
    ToolChoice,
    ToolStatus,
    Usage,
    approve,
    from_json,
    to_json,
)
from agentloop.values.estimates import BYTES_PER_TOKEN
from tests.compilers.conversations import with_question, with_steps
from tests.policies.budget_models import PersistentModel, constant_usage, create_loop, status_and_reason

TABLE = PriceTable({"big-*": Price(input=10, output=50, cached_input=1)})
STEP_DOLLARS = 0.014  # 900 input tokens and 100 output tokens

LIMITS: dict[str, dict[str, Any]] = {
    "step_limit": {"steps": 4},
    "tool_call_limit": {"tool_calls": 3},
    "token_limit": {"tokens": 8_000, "max_output_tokens": 300},
    "cost_limit": {"cost": 0.15, "prices": TABLE, "max_output_tokens": 300},
    "time_limit": {"seconds": 30},
}


@pytest.mark.parametrize("reason", LIMITS)
def test_near_a_limit_the_model_gives_its_last_answer(reason: str) -> None:
    """The last request offers no tools and has the notice; its answer is in the state, with the reason of the limit."""
    numbers = count()
    model = PersistentModel(calls=lambda: [toy_call("echo", next(numbers), seconds=8)])
    state = run_in_virtual_time(create_loop(model, Budget(**LIMITS[reason])).execute("go"))
    assert status_and_reason(state) == ("stopped", reason)
    assert state.final_text == "what I found"
    assert state.step_count > 1
    *before, last = model.requests
    assert all(request.tools for request in before)
    assert (last.tools, last.tool_choice) == ((), ToolChoice.none())
    assert last.messages[-1].text == NOTICE
    assert all(message.text != NOTICE for message in state.messages)


@pytest.mark.parametrize("driver", ["native", "structured", "validated", "react-json", "react-text"])
def test_input_beyond_the_measured_length_is_expected_of_the_next_request(driver: str) -> None:
    """When a request has more tokens than its length suggests, the next estimate is that much higher."""
    turns = [ScriptedTurn("", (toy_call("echo", number),), Usage(2_500, 50)) for number in range(9)]
    model = Scenario(turns=tuple(turns)).inference(NOTATIONS[driver])
    style = driver.removeprefix("react-")
    mode = {"json": ReActJsonMode(), "text": ReActTextMode()}.get(style)
    tool_driver = ReActDriver(model, output=mode) if mode else ToolCallingDriver(model, mode=get_mode(driver))
    loop = AgentLoop(
        tool_driver, toy_tools(Ledger()), interceptors=[Budget(tokens=10_000, wrap_up=0, max_output_tokens=300)]
    )
    state = run_in_virtual_time(loop.execute("go"))
    assert status_and_reason(state) == ("stopped", "token_limit")
    assert (state.step_count, state.usage.total_tokens) == (3, 7_650)


@pytest.mark.parametrize("name", WIRE_FORMATS)
def test_every_wire_format_can_carry_the_last_request(name: str) -> None:
    """Each wire format encodes a conversation with calls, no offered tools and the notice so that no tool can be called."""
    model = PersistentModel()
    run_in_virtual_time(create_loop(model, Budget(steps=3)).execute("go"))
    config = LLMConfig(model="any", base_url="http://localhost", wire_format=name)
    body = json.loads(wire_format(name).encode_request(model.requests[-1], config).body)
    assert NOTICE in json.dumps(body)
    offered = body.get("tools")
    assert not offered or body["tool_choice"] == {"type": "none"}


@pytest.mark.parametrize("reason", LIMITS)
def test_a_requested_continuation_does_not_override_a_budget(reason: str) -> None:
    """An execution with a request for continuation after each step still stops at the limit."""
    insist = at("after_step", lambda point: point.request_continuation(), priority=-5000)
    numbers = count()
    model = PersistentModel(calls=lambda: [toy_call("echo", next(numbers), seconds=8)])
    loop = create_loop(model, Budget(**LIMITS[reason]))
    state = run_in_virtual_time(loop.with_interceptors(insist).execute("go"))
    assert status_and_reason(state) == ("stopped", reason)


@pytest.mark.parametrize("reason", ["token_limit", "cost_limit"])
@pytest.mark.parametrize("wrap_up", [0, 0.1, 0.5])
def test_a_budget_is_never_exceeded(reason: str, wrap_up: float) -> None:
    """An inference that may exceed the limit is not made, whatever is reserved for the last answer."""
    state = run_in_virtual_time(create_loop(PersistentModel(), Budget(**LIMITS[reason], wrap_up=wrap_up)).execute("go"))
    assert status_and_reason(state) == ("stopped", reason)
    assert state.has_final_response is (wrap_up > 0)
    if reason == "token_limit":
        assert (state.usage.total_tokens or 0) <= 8_000
    else:
        assert state.step_count * STEP_DOLLARS <= 0.15


def test_a_token_limit_is_checked_after_an_inference_and_a_budget_before() -> None:
    """A token limit lets the inference that crosses it finish; a budget does not make it."""
    crossing = run_in_virtual_time(create_loop(PersistentModel(), TokenLimit(2_500)).execute("go"))
    stopping = run_in_virtual_time(create_loop(PersistentModel(), Budget(tokens=2_500, wrap_up=0)).execute("go"))
    assert (crossing.usage.total_tokens, stopping.usage.total_tokens) == (3_000, 2_000)


def test_the_output_of_a_request_is_limited_to_what_remains() -> None:
    """When less remains than the model may write, the request gets a lower `max_tokens`; it is never raised."""
    model = PersistentModel()
    run_in_virtual_time(create_loop(model, Budget(tokens=4_000, wrap_up=0, max_output_tokens=1_500)).execute("go"))
    max_tokens = [request.options.max_tokens for request in model.requests]
    assert max_tokens[0] is None
    assert max_tokens[-1] is not None
    assert max_tokens[-1] < 1_500
    modest = PersistentModel()
    driver = ToolCallingDriver(modest, options=InferenceOptions(max_tokens=200))
    run_in_virtual_time(create_loop(modest, Budget(tokens=4_000, wrap_up=0)).replace(driver=driver).execute("go"))
    assert {request.options.max_tokens for request in modest.requests} == {200}


def test_calls_up_to_the_limit_do_not_stop_the_execution() -> None:
    """An execution that makes the maximum number of calls and then answers is completed."""
    loop = create_loop(ScriptedInference([toy_call("echo", 1), toy_call("echo", 2)], "done"), Budget(tool_calls=2))
    assert status_and_reason(run_in_virtual_time(loop.execute("go"))) == ("completed", "completed")


def test_calls_beyond_the_limit_are_blocked_and_the_model_may_still_answer() -> None:
    """A batch runs up to the limit; then the model gives its last answer."""
    ledger, model = Ledger(), PersistentModel(calls=lambda: [toy_call("echo", n) for n in range(5)])
    state = run_in_virtual_time(create_loop(model, Budget(tool_calls=3), ledger=ledger).execute("go"))
    assert status_and_reason(state) == ("stopped", "tool_call_limit")
    statuses = [execution.status for execution in state.steps[0].executions]
    assert statuses == [ToolStatus.SUCCEEDED] * 3 + [ToolStatus.BLOCKED] * 2
    assert (len(ledger.calls), state.step_count, state.final_text) == (3, 2, "what I found")


class StubbornModel(PersistentModel):
    """A model that calls tools even though none is offered."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        parts = [Text(self.text)] if self.text else []
        return InferenceResponse(
            (*parts, toy_call("echo", 1)), FinishReason.TOOL_CALLS, constant_usage(request), "big-1"
        )


@pytest.mark.parametrize("text", ["so far I know this", ""])
def test_calls_in_a_last_answer_do_not_run(text: str) -> None:
    """Calls are removed from a last answer with text; in one without text they are rejected, since no tool is offered."""
    ledger = Ledger()
    state = run_in_virtual_time(create_loop(StubbornModel(text), Budget(steps=2), ledger=ledger).execute("go"))
    assert status_and_reason(state) == ("stopped", "step_limit")
    assert (state.final_text or "") == text
    assert (len(ledger.calls), state.step_count) == (1, 2)
    assert [execution.status for execution in state.steps[1].executions] == ([] if text else [ToolStatus.REJECTED])


@pytest.mark.parametrize(
    ("limit", "unknown", "reason"),
    [
        ("tokens", "refuse", "token_limit"),
        ("tokens", "estimate", "token_limit"),
        ("tokens", "allow", "step_limit"),
        ("cost", "refuse", "cost_limit"),
        ("cost", "estimate", "cost_limit"),
        ("cost", "allow", "step_limit"),
    ],
)
def test_tokens_that_are_not_reported(limit: str, unknown: Any, reason: str) -> None:
    """The budget decides whether unknown tokens stop the execution, are estimated by length, or are not counted."""
    model = PersistentModel(lambda _: Usage(), calls=lambda: [toy_call("echo", 1)])
    budgets = {
        "tokens": Budget(tokens=2_000, unknown=unknown, wrap_up=0, strict=False),
        "cost": Budget(cost=0.02, prices=TABLE, unknown=unknown, wrap_up=0, strict=False),
    }
    state = run_in_virtual_time(create_loop(model, budgets[limit]).replace(max_steps=60).execute("go"))
    assert status_and_reason(state) == ("stopped", reason)
    assert state.stop_signal is not None
    if unknown == "refuse":
        assert state.step_count == 1
        assert "does not report" in state.stop_signal.message
    elif unknown == "estimate":
        assert 1 < state.step_count < 60
        assert state.stop_signal.context["estimated"] is True


@pytest.mark.parametrize(
    ("unknown", "reason"), [("refuse", "cost_limit"), ("estimate", "cost_limit"), ("allow", "step_limit")]
)
def test_models_without_a_price(unknown: Any, reason: str) -> None:
    """The budget decides whether a model without a price stops the execution, has the highest known price, or is free."""
    model = PersistentModel(model="unheard-of")
    loop = create_loop(model, Budget(cost=0.15, prices=TABLE, unknown=unknown, wrap_up=0)).replace(max_steps=30)
    state = run_in_virtual_time(loop.execute("go"))
    assert status_and_reason(state) == ("stopped", reason)
    assert state.stop_signal is not None
    if unknown == "refuse":
        assert state.step_count == 1
        assert "the price of the model 'unheard-of' is not known" in state.stop_signal.message


def test_a_named_model_without_a_price_is_refused_before_the_first_request() -> None:
    """If the budget names the model, an unknown price is noticed without sending a request."""
    model = PersistentModel()
    budget = Budget(cost=1, prices=TABLE, unknown="refuse", model="unheard-of")
    assert status_and_reason(run_in_virtual_time(create_loop(model, budget).execute("go"))) == ("stopped", "cost_limit")
    assert not model.requests


def test_a_cost_limit_stops_before_the_inference_that_would_cross_it() -> None:
    """The cost stays below the limit, and there is no last answer."""
    state = run_in_virtual_time(
        create_loop(PersistentModel(), CostLimit(0.15, prices=TABLE, max_output_tokens=300)).execute("go")
    )
    assert status_and_reason(state) == ("stopped", "cost_limit")
    assert 3 <= state.step_count <= 10
    assert state.stop_signal is not None
    assert state.stop_signal.context["cost"] == pytest.approx(state.step_count * STEP_DOLLARS)


def test_a_failed_inference_releases_its_reservation() -> None:
    """After an inference that failed, the next one has the same room."""
    limited = RateLimited("slow down")
    answer = InferenceResponse((Text("done"),), usage=Usage(900, 100))
    budget = Budget(tokens=3_000, max_output_tokens=1_500, wrap_up=0)

    class Recover(Interceptor):
        def on_error(self, point: Any) -> Any:
            return point.recover()

    loop = create_loop(ScriptedInference(limited, limited, answer), budget).with_interceptors(Recover())
    assert status_and_reason(run_in_virtual_time(loop.execute("go"))) == ("completed", "completed")


def test_a_stored_state_keeps_its_usage() -> None:
    """An execution that is stored after any step and resumed elsewhere ends like one that was not."""
    for limits in LIMITS.values():
        expected, _ = run_in_virtual_time(execute_stored_after(None, limits))
        assert expected.step_count > 2
        for number in range(1, expected.step_count):
            resumed, stored = run_in_virtual_time(execute_stored_after(number, limits))
            assert stored.step_count == number
            assert status_and_reason(resumed) == status_and_reason(expected)
            assert resumed.step_count == expected.step_count
            assert resumed.usage == expected.usage
            assert resumed.final_text == expected.final_text


async def execute_stored_after(number: int | None, limits: dict[str, Any]) -> tuple[AgentState, AgentState]:
    loop = create_loop(PersistentModel(calls=lambda: [toy_call("echo", 1, seconds=5)]), Budget(**limits))
    stored = AgentState.start("go", agent_id="agent", clock=LoopClock())
    if number is not None:
        async for state in loop.iterate(stored):
            stored = state
            if state.step_count == number:
                break
        stored = from_json(to_json(stored), AgentState)
    fresh = create_loop(PersistentModel(calls=lambda: [toy_call("echo", 1, seconds=5)]), Budget(**limits))
    return await fresh.execute(stored), stored


@pytest.mark.parametrize("budget", [Budget(steps=2, tool_calls=2), Budget(steps=2, tool_calls=2, wrap_up=0)])
def test_suspended_calls_count_once(budget: Budget) -> None:
    """Settling suspended calls is no new step, and the calls are not counted again."""
    suspend = at("before_tool_use", lambda point: point.suspend("may I?"))
    ledger = Ledger()
    loop = create_loop(ScriptedInference([toy_call("echo", 1), toy_call("echo", 2)], "done"), budget, ledger=ledger)
    loop = loop.replace(max_steps=2).with_interceptors(suspend)

    async def execute_and_resume() -> AgentState:
        suspended = from_json(to_json(await loop.execute("go")), AgentState)
        assert suspended.status is ExecutionStatus.SUSPENDED
        return await loop.resume(suspended, {call.key: approve() for call in suspended.pending})

    state = run_in_virtual_time(execute_and_resume())
    assert len(ledger.calls) == 2
    assert [execution.status for execution in state.steps[0].executions] == [ToolStatus.SUCCEEDED] * 2


def test_each_execution_has_the_whole_budget() -> None:
    """Concurrent executions of a loop do not share its budget."""
    loop = create_loop(PersistentModel(seconds=1), Budget(steps=3))

    async def execute_five() -> list[AgentState]:
        return await asyncio.gather(*[loop.execute("go") for _ in range(5)])

    assert [(status_and_reason(state), state.step_count) for state in run_in_virtual_time(execute_five())] == [
        (("stopped", "step_limit"), 3)
    ] * 5


def test_a_budget_shows_what_it_limits() -> None:
    """The repr has the limits, and the description of the loop the points that they require."""
    assert repr(Budget(steps=3, tokens=100)) == "Budget(steps=3, tokens=100)"
    assert repr(TokenLimit(100)) == "TokenLimit(tokens=100)"
    assert repr(CostLimit(0.5, prices=TABLE, priority=7)) == "CostLimit(priority=7, cost=0.5)"
    assert repr(TimeLimit(1.5)) == "TimeLimit(seconds=1.5)"
    assert repr(ToolCallLimit(3)) == "ToolCallLimit(tool_calls=3)"
    loop = AgentLoop(ToolCallingDriver(ScriptedInference()), toy_tools(Ledger()), interceptors=[TokenLimit(5)])
    assert "TokenLimit   -        before_step  state.execution.continuation\n" in loop.describe() + "\n"


@pytest.mark.parametrize("budget", [Budget(steps=3, tokens=100), TokenLimit(100)])
def test_a_budget_of_an_execution_is_equal_and_shows_the_same(budget: Budget | TokenLimit) -> None:
    """What an execution has used is no part of what is limited."""
    bound = budget.with_execution_scope(ExecutionScope())
    assert bound == budget
    assert repr(bound) == repr(budget)


@pytest.mark.parametrize(
    ("limit", "amount"),
    [
        (Budget(steps=0, wrap_up=0), "0 steps"),
        (Budget(steps=1, wrap_up=0), "1 step"),
        (Budget(steps=2, wrap_up=0), "2 steps"),
        (TimeLimit(0.5), "0.5 seconds"),
        (TimeLimit(1), "1 second"),
        (TimeLimit(1.5), "1.5 seconds"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_a_stop_names_its_limit_in_the_singular_or_plural(limit: CanIntercept, amount: str) -> None:
    """Only one of a unit is in the singular; none, and less than one, is in the plural."""
    state = run_in_virtual_time(create_loop(PersistentModel(seconds=0.4), limit).execute("go"))
    assert state.stop_signal is not None
    assert state.stop_signal.message == f"the limit of {amount} is reached"


# --- counting ---------------------------------------------------------------------------------------------------------


def test_each_inference_between_steps_is_counted_once() -> None:
    """The state has their total; without prices they cost nothing."""
    start = AgentState.start("go")
    state, meter = start.with_execution_started("run", start.created_at), UsageMeter()
    counted = []
    for _ in range(3):
        state = state.with_usage(Usage(100, 20))
        for _ in range(2):
            meter.count(state)
        counted.append((meter.tokens, meter.cost))
    assert counted == [(120, 0), (240, 0), (360, 0)]


def test_an_inference_between_steps_whose_tokens_are_not_reported_is_as_long_as_the_conversation() -> None:
    """Its input is estimated; its output, which no message shows, counts nothing."""
    state = with_steps(with_question(AgentState.start(), "q" * 400), Message.assistant("a" * 400)).with_usage(Usage())
    meter = UsageMeter()
    meter.count(state)
    assert (meter.tokens, meter.is_estimated) == (400 // BYTES_PER_TOKEN, True)


@pytest.mark.parametrize(
    ("budget", "reason", "message"),
    [
        (Budget(tokens=8_500, strict=False), "token_limit", "8,500 tokens is nearly reached: 8,000 used"),
        (Budget(cost=0.119, prices=TABLE, strict=False), "cost_limit", "0.119 dollars is nearly reached: 0.112 used"),
    ],
    ids=["tokens", "cost"],
)
def test_without_reservations_the_last_answer_comes_when_only_the_reserve_remains(
    budget: Budget, reason: str, message: str
) -> None:
    """The inference may cross the limit, but it is the last one, and says what was found."""
    state = run_in_virtual_time(create_loop(PersistentModel(), budget).execute("go"))
    assert status_and_reason(state) == ("stopped", reason)
    assert (state.step_count, state.final_text) == (9, "what I found")
    assert state.stop_signal is not None
    assert state.stop_signal.message == f"the limit of {message}"


def test_a_resumed_call_is_not_counted_again_while_it_runs() -> None:
    """Both calls of the step are used up, also the later one, which ran before."""

    @tool
    def spare() -> int | None:
        """Return how many calls are left."""
        budget = current_budget()
        assert budget is not None
        return budget.account.unused.tool_calls

    suspend = at("before_tool_use", lambda point: point.suspend("may I?") if point.call.name == "spare" else point)
    model = ScriptedInference([ToolCall("1", "spare"), toy_call("echo", 2)], "done")
    loop = AgentLoop(
        ToolCallingDriver(model),
        [spare, *toy_tools(Ledger())],
        interceptors=[Budget(tool_calls=2, wrap_up=0), suspend],
    )

    async def execute_and_resume() -> AgentState:
        suspended = await loop.execute("go")
        return await loop.resume(suspended, {call.key: approve() for call in suspended.pending})

    state = run_in_virtual_time(execute_and_resume())
    assert [execution.value for execution in state.steps[0].executions] == [0, 2]


@pytest.mark.parametrize(
    "parameters", [{"steps": -1}, {"wrap_up": 1}, {"wrap_up": -0.1}, {"unknown": "guess"}, {"max_output_tokens": 0}]
)
def test_an_invalid_budget_is_refused(parameters: dict[str, Any]) -> None:
    """Construction raises an error that names the parameter."""
    with pytest.raises(ValueError, match=next(iter(parameters))):
        Budget(**parameters)
