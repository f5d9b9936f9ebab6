"""Budgets: what an execution may use up, and how it ends when that is nearly used up."""

from __future__ import annotations

import asyncio
import json
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
    TokenLimit,
    ToolCallingDriver,
)
from agentloop.errors import RateLimited
from agentloop.inference import wire_format
from agentloop.interception import Interceptor, Price, PriceTable, after_step, before_tool_use
from agentloop.interception.budgets.run import NOTICE
from agentloop.modes import ReActJsonMode, ReActTextMode, get_mode
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
    Text,
    ToolChoice,
    ToolStatus,
    Usage,
    approve,
    from_json,
    to_json,
)
from tests.interception.budget_models import Tireless, loop_of, outcome, reported

TABLE = PriceTable({"big-*": Price(input=10, output=50, cached_input=1)})
STEP_DOLLARS = 0.014  # 900 tokens read and 100 written

LIMITS: dict[str, dict[str, Any]] = {
    "step_limit": {"steps": 4},
    "tool_call_limit": {"tool_calls": 3},
    "token_limit": {"tokens": 8_000, "max_output_tokens": 300},
    "cost_limit": {"cost": 0.15, "prices": TABLE, "max_output_tokens": 300},
    "time_limit": {"seconds": 30},
}


@pytest.mark.parametrize("reason", LIMITS)
def test_near_a_limit_the_model_gives_its_last_answer(reason: str) -> None:
    """The last request offers no tools and says so; its answer is in the state, the reason is the limit's."""
    model = Tireless(calls=lambda: [toy_call("echo", 1, seconds=8)])
    state = run_in_virtual_time(loop_of(model, Budget(**LIMITS[reason])).execute("go"))
    assert outcome(state) == ("stopped", reason)
    assert state.final_text == "what I found"
    assert state.step_count > 1
    *before, last = model.requests
    assert all(request.tools for request in before)
    assert (last.tools, last.tool_choice) == ((), ToolChoice.none())
    assert last.messages[-1].text == NOTICE
    assert all(message.text != NOTICE for message in state.messages)


@pytest.mark.parametrize("driver", ["native", "structured", "validated", "react-json", "react-text"])
def test_what_a_request_had_beyond_its_length_is_expected_of_the_next(driver: str) -> None:
    """A driver or mode may describe the tools at length, and a provider count otherwise: that is known after one inference."""
    turns = [ScriptedTurn("", (toy_call("echo", number),), Usage(2_500, 50)) for number in range(9)]
    model = Scenario(turns=tuple(turns)).inference(NOTATIONS[driver])
    style = driver.removeprefix("react-")
    mode = {"json": ReActJsonMode(), "text": ReActTextMode()}.get(style)
    deciding = ReActDriver(model, output=mode) if mode else ToolCallingDriver(model, mode=get_mode(driver))
    loop = AgentLoop(
        deciding, toy_tools(Ledger()), interceptors=[Budget(tokens=10_000, wrap_up=0, max_output_tokens=300)]
    )
    state = run_in_virtual_time(loop.execute("go"))
    assert outcome(state) == ("stopped", "token_limit")
    assert (state.step_count, state.usage.total_tokens) == (3, 7_650)


@pytest.mark.parametrize("name", ["openai-chat", "openai-responses", "anthropic-messages", "gemini", "ollama"])
def test_every_wire_format_can_carry_the_last_request(name: str) -> None:
    """A conversation with calls, no tools on offer and the notice at its end is a request that no model may call tools in."""
    model = Tireless()
    run_in_virtual_time(loop_of(model, Budget(steps=3)).execute("go"))
    config = LLMConfig(model="any", base_url="http://localhost", wire_format=name)
    body = json.loads(wire_format(name).encode_request(model.requests[-1], config).body)
    assert NOTICE in json.dumps(body)
    offered = body.get("tools")
    assert not offered or body["tool_choice"] == {"type": "none"}


@pytest.mark.parametrize("reason", LIMITS)
def test_a_request_to_go_on_does_not_defeat_a_budget(reason: str) -> None:
    """Whoever asks for another step after each one is stopped all the same."""
    insist = after_step(lambda point: point.request_continuation(), priority=-5000)
    loop = loop_of(Tireless(calls=lambda: [toy_call("echo", 1, seconds=8)]), Budget(**LIMITS[reason]))
    state = run_in_virtual_time(loop.with_interceptors(insist).execute("go"))
    assert outcome(state) == ("stopped", reason)


@pytest.mark.parametrize("reason", ["token_limit", "cost_limit"])
@pytest.mark.parametrize("wrap_up", [0, 0.1, 0.5])
def test_no_more_is_used_than_there_is(reason: str, wrap_up: float) -> None:
    """An inference that might not fit is not made, whatever is kept back for the last answer."""
    state = run_in_virtual_time(loop_of(Tireless(), Budget(**LIMITS[reason], wrap_up=wrap_up)).execute("go"))
    assert outcome(state) == ("stopped", reason)
    assert state.has_final_response is (wrap_up > 0)
    if reason == "token_limit":
        assert (state.usage.total_tokens or 0) <= 8_000
    else:
        assert state.step_count * STEP_DOLLARS <= 0.15


def test_a_token_limit_finishes_the_inference_that_crosses_it_and_a_budget_does_not_make_it() -> None:
    """The two differ in whether the limit is looked at before or after."""
    crossing = run_in_virtual_time(loop_of(Tireless(), TokenLimit(2_500)).execute("go"))
    kept = run_in_virtual_time(loop_of(Tireless(), Budget(tokens=2_500, wrap_up=0)).execute("go"))
    assert (crossing.usage.total_tokens, kept.usage.total_tokens) == (3_000, 2_000)


def test_what_is_left_becomes_the_most_that_may_be_written() -> None:
    """Where less is left than a model may write, the request says so; what it asks for itself is not raised."""
    model = Tireless()
    run_in_virtual_time(loop_of(model, Budget(tokens=4_000, wrap_up=0, max_output_tokens=1_500)).execute("go"))
    asked = [request.options.max_tokens for request in model.requests]
    assert asked[0] is None
    assert asked[-1] is not None
    assert asked[-1] < 1_500
    modest = Tireless()
    driver = ToolCallingDriver(modest, options=InferenceOptions(max_tokens=200))
    run_in_virtual_time(loop_of(modest, Budget(tokens=4_000, wrap_up=0)).with_driver(driver).execute("go"))
    assert {request.options.max_tokens for request in modest.requests} == {200}


def test_calls_up_to_the_limit_are_no_reason_to_stop() -> None:
    """An execution that makes exactly as many calls as it may, and then answers, is completed."""
    loop = loop_of(ScriptedInference([toy_call("echo", 1), toy_call("echo", 2)], "done"), Budget(tool_calls=2))
    assert outcome(run_in_virtual_time(loop.execute("go"))) == ("completed", "completed")


def test_calls_too_many_are_blocked_and_the_model_may_still_answer() -> None:
    """A batch runs up to the limit; then the last answer is due."""
    ledger, model = Ledger(), Tireless(calls=lambda: [toy_call("echo", n) for n in range(5)])
    state = run_in_virtual_time(loop_of(model, Budget(tool_calls=3), ledger=ledger).execute("go"))
    assert outcome(state) == ("stopped", "tool_call_limit")
    statuses = [one.status for one in state.steps[0].executions]
    assert statuses == [ToolStatus.SUCCEEDED] * 3 + [ToolStatus.BLOCKED] * 2
    assert (len(ledger.calls), state.step_count, state.final_text) == (3, 2, "what I found")


class Stubborn(Tireless):
    """Calls tools though none is offered."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        said = [Text(self.text)] if self.text else []
        return InferenceResponse((*said, toy_call("echo", 1)), FinishReason.TOOL_CALLS, reported(request), "big-1")


@pytest.mark.parametrize("text", ["so far I know this", ""])
def test_a_last_answer_with_calls_is_an_answer_without_them(text: str) -> None:
    """Calls beside a last answer are dropped; where there is nothing else, they are blocked. None of them runs."""
    ledger = Ledger()
    state = run_in_virtual_time(loop_of(Stubborn(text), Budget(steps=2), ledger=ledger).execute("go"))
    assert outcome(state) == ("stopped", "step_limit")
    assert state.final_text == text
    assert (len(ledger.calls), state.step_count) == (1, 2)


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
    """Unknown is refused, estimated by length, or not counted, as the budget says; it is never taken for zero unasked."""
    model = Tireless(lambda _: Usage(), calls=lambda: [toy_call("echo", 1)])
    made = {
        "tokens": Budget(tokens=2_000, unknown=unknown, wrap_up=0, strict=False),
        "cost": Budget(cost=0.02, prices=TABLE, unknown=unknown, wrap_up=0, strict=False),
    }
    state = run_in_virtual_time(loop_of(model, made[limit]).with_max_steps(60).execute("go"))
    assert outcome(state) == ("stopped", reason)
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
    """A model that no price is known of is refused, taken for the dearest known, or free, as the budget says."""
    model = Tireless(model="unheard-of")
    loop = loop_of(model, Budget(cost=0.15, prices=TABLE, unknown=unknown, wrap_up=0)).with_max_steps(30)
    state = run_in_virtual_time(loop.execute("go"))
    assert outcome(state) == ("stopped", reason)
    assert state.stop_signal is not None
    if unknown == "refuse":
        assert state.step_count == 1
        assert "the price of the model 'unheard-of' is not known" in state.stop_signal.message


def test_a_model_that_is_named_and_has_no_price_is_refused_before_it_is_asked() -> None:
    """Where the budget or the request names the model, nothing is spent to find that its price is unknown."""
    model = Tireless()
    budget = Budget(cost=1, prices=TABLE, unknown="refuse", model="unheard-of")
    assert outcome(run_in_virtual_time(loop_of(model, budget).execute("go"))) == ("stopped", "cost_limit")
    assert not model.requests


def test_a_cost_limit_stops_before_the_inference_that_would_cross_it() -> None:
    """The money spent stays below the limit; there is no last answer unless a budget is asked for one."""
    state = run_in_virtual_time(loop_of(Tireless(), CostLimit(0.15, prices=TABLE, max_output_tokens=300)).execute("go"))
    assert outcome(state) == ("stopped", "cost_limit")
    assert 3 <= state.step_count <= 10
    assert state.stop_signal is not None
    assert state.stop_signal.context["cost"] == pytest.approx(state.step_count * STEP_DOLLARS)


def test_nothing_stays_set_aside_when_an_inference_fails() -> None:
    """An inference that fails gives back what was set aside for it, so that the next one fits."""
    limited = RateLimited("slow down")
    answer = InferenceResponse((Text("done"),), usage=Usage(900, 100))
    again = Budget(tokens=3_000, max_output_tokens=1_500, wrap_up=0)

    class Recover(Interceptor):
        def on_error(self, point: Any) -> Any:
            return point.recover()

    loop = loop_of(ScriptedInference(limited, limited, answer), again).with_interceptors(Recover())
    assert outcome(run_in_virtual_time(loop.execute("go"))) == ("completed", "completed")


def test_a_stored_state_keeps_its_count() -> None:
    """An execution that is stored after any step and gone on with elsewhere ends as one that was not."""
    for limits in LIMITS.values():
        whole, _ = run_in_virtual_time(_stored_after(None, limits))
        assert whole.step_count > 2
        for number in range(1, whole.step_count):
            again, stored = run_in_virtual_time(_stored_after(number, limits))
            assert stored.step_count == number
            assert (outcome(again), again.step_count) == (outcome(whole), whole.step_count)
            assert again.usage == whole.usage
            assert again.final_text == whole.final_text


async def _stored_after(number: int | None, limits: dict[str, Any]) -> tuple[AgentState, AgentState]:
    loop = loop_of(Tireless(calls=lambda: [toy_call("echo", 1, seconds=5)]), Budget(**limits))
    stored = AgentState.start("go", agent_id="agent", clock=LoopClock())
    if number is not None:
        async for state in loop.iterate(stored):
            stored = state
            if state.step_count == number:
                break
        stored = from_json(to_json(stored), AgentState)
    fresh = loop_of(Tireless(calls=lambda: [toy_call("echo", 1, seconds=5)]), Budget(**limits))
    return await fresh.execute(stored), stored


@pytest.mark.parametrize("budget", [Budget(steps=2, tool_calls=2), Budget(steps=2, tool_calls=2, wrap_up=0)])
def test_calls_that_waited_count_once(budget: Budget) -> None:
    """Settling calls that waited for a decision is no new step, and the calls are not counted again."""
    wait = before_tool_use(lambda point: point.suspend("may I?"))
    ledger = Ledger()
    loop = loop_of(ScriptedInference([toy_call("echo", 1), toy_call("echo", 2)], "done"), budget, ledger=ledger)
    loop = loop.with_max_steps(2).with_interceptors(wait)

    async def decided() -> AgentState:
        waiting = from_json(to_json(await loop.execute("go")), AgentState)
        assert waiting.status is ExecutionStatus.SUSPENDED
        return await loop.resume(waiting, {one.key: approve() for one in waiting.pending})

    state = run_in_virtual_time(decided())
    assert len(ledger.calls) == 2
    assert [one.status for one in state.steps[0].executions] == [ToolStatus.SUCCEEDED] * 2


def test_one_budget_serves_executions_side_by_side() -> None:
    """A budget given to a loop is one for each execution, not one for all."""
    loop = loop_of(Tireless(seconds=1), Budget(steps=3))

    async def together() -> list[AgentState]:
        return await asyncio.gather(*[loop.execute("go") for _ in range(5)])

    assert [(outcome(state), state.step_count) for state in run_in_virtual_time(together())] == [
        (("stopped", "step_limit"), 3)
    ] * 5


def test_a_budget_shows_what_it_limits() -> None:
    """A person reads the limits that were given, and the points that these need."""
    assert repr(Budget(steps=3, tokens=100)) == "Budget(steps=3, tokens=100)"
    assert repr(TokenLimit(100)) == "TokenLimit(tokens=100)"
    loop = AgentLoop(ToolCallingDriver(ScriptedInference()), toy_tools(Ledger()), interceptors=[TokenLimit(5)])
    assert "TokenLimit: before_step\n" in loop.describe() + "\n"


@pytest.mark.parametrize("wrong", [{"steps": -1}, {"wrap_up": 1}, {"unknown": "guess"}, {"max_output_tokens": 0}])
def test_a_budget_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    """What makes no sense is refused when the budget is made."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Budget(**wrong)
