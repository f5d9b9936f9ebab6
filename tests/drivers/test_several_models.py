"""Drivers with several models: which requests count for which model when an execution is continued."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Self

import pytest
from attrs import evolve, frozen

from agentloop import AgentLoop, CanInfer, Message, RequireApproval, ScriptedInference, ToolCall, tool
from agentloop.contracts import CanAcceptExecutionScope, ExecutionScope
from agentloop.drivers import InferringDriver, StepDraft
from agentloop.durable import MemoryJournal
from agentloop.errors import ClaimLost
from agentloop.interception import ToolSelection
from agentloop.testing import Fault, FaultPlan, LoopClock, run_in_virtual_time
from agentloop.values import InferenceRequest, ResponsePart, ToolStatus, approve


@frozen(kw_only=True)
class PlansAndChecks(InferringDriver):
    """Asks a second model for a plan in the first step, and whether an answer is right."""

    planner: CanInfer

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        bound = super().with_execution_scope(scope)
        assert isinstance(self.planner, CanAcceptExecutionScope)
        return evolve(bound, planner=self.planner.with_execution_scope(scope.for_another_model()))

    async def decide(self, draft: StepDraft, messages: Sequence[Message]) -> tuple[ResponsePart, ...]:
        if draft.state.extension("plan") is None:
            plan = await self.infer(draft, InferenceRequest(messages, "Plan."), inference=self.planner)
            draft.state = draft.state.with_extension("plan", plan.text)
        response = await self.infer(draft, self.request(draft, messages))
        if not response.tool_calls:
            verdict = await self.infer(draft, InferenceRequest(messages, "Right?"), inference=self.planner)
            assert verdict.text == "yes"
        return response.parts


@tool
async def pay(cents: int) -> str:
    """Pay."""
    return f"paid {cents}"


CALLS = [ToolCall(str(cents), "pay", f'{{"cents": {cents}}}') for cents in (5, 7)]


def make_driver() -> PlansAndChecks:
    """Return a driver with the scripts of two calls, a plan and a verdict."""
    return PlansAndChecks(ScriptedInference(*CALLS, "Paid twice."), planner=ScriptedInference("the plan", "yes"))


def test_each_model_continues_with_its_own_script_when_an_execution_is_resumed() -> None:
    """The state says how many requests went to other models, and so it does in another process."""
    state = AgentLoop(make_driver(), [pay], interceptors=[RequireApproval()]).execute_sync("Pay.")
    assert (state.inference_count, state.other_inference_count) == (2, 1)
    for _ in CALLS:
        loop = AgentLoop(make_driver(), [pay], interceptors=[RequireApproval()])  # as in another process
        state = loop.resume_sync(state, {call.key: approve(call.digest) for call in state.pending})
    assert (state.final_text, state.errors) == ("Paid twice.", ())
    assert (state.inference_count, state.other_inference_count) == (5, 2)


@pytest.mark.parametrize("number", [1, 2])
def test_each_model_continues_with_its_own_script_when_an_execution_is_recovered(number: int) -> None:
    """The records of an incomplete step say it, too."""
    journal = MemoryJournal()

    def make_loop() -> AgentLoop:
        return AgentLoop(make_driver(), [pay], clock=LoopClock(), journal=journal)

    with FaultPlan(Fault.die("tool:pay", when="after", number=number)) as plan, pytest.raises(ClaimLost):
        run_in_virtual_time(plan.apply(make_loop()).execute("Pay.", execution_id="run"))
    state = run_in_virtual_time(make_loop().recover("run"))
    assert (state.final_text, state.errors) == ("Paid twice.", ())
    assert state.steps[number - 1].executions[0].status is ToolStatus.IN_DOUBT
    assert (state.inference_count, state.other_inference_count) == (5, 2)


def test_models_of_interceptors_start_anew() -> None:
    """Their requests are not those of the driver."""
    scope = ExecutionScope(inference_count=3, other_inference_count=2)
    assert scope.for_another_model().inference_count == 2
    assert scope.for_another_model().for_another_model().inference_count == 0
    assert scope.without_inferences().inference_count == 0
    assert ExecutionScope().without_inferences().for_another_model().inference_count == 0


def test_a_loop_without_a_second_model_records_none() -> None:
    """States and records of ordinary drivers are as before."""
    journal = MemoryJournal()
    loop = AgentLoop.for_model(ScriptedInference("Hi."), journal=journal)
    state = asyncio.run(loop.execute("Hello.", execution_id="run"))
    assert state.other_inference_count == 0
    assert "other" not in "".join(record.body for record in asyncio.run(journal.read("run")))


@frozen(kw_only=True)
class PlansAndJudges(PlansAndChecks):
    """Also lets another model judge each answer, with its calls, and may write the calls anew."""

    rewrites: Callable[[ToolCall], ToolCall] = lambda call: call

    async def decide(self, draft: StepDraft, messages: Sequence[Message]) -> tuple[ResponsePart, ...]:
        await self.infer(draft, InferenceRequest(messages, "Plan."), inference=self.planner)
        response = await self.infer(draft, self.request(draft, messages))
        await self.infer(draft, InferenceRequest(messages, "Right?"), inference=self.planner)
        return tuple([self.rewrites(part) if isinstance(part, ToolCall) else part for part in response.parts])


def run_judged(rewrites: Callable[[ToolCall], ToolCall], *interceptors: ToolSelection) -> tuple[ToolStatus, str]:
    """Return how one call of the model ended, and what the model read about it."""
    own = ScriptedInference(CALLS[0], "Paid.")
    driver = PlansAndJudges(own, planner=ScriptedInference(*["fine"] * 4), rewrites=rewrites)
    state = AgentLoop(driver, [pay], interceptors=interceptors).execute_sync("Pay.")
    (execution,) = state.steps[0].executions
    return execution.status, execution.text


@pytest.mark.parametrize(
    "rewrites",
    [
        lambda call: call,
        lambda call: evolve(call, id="another id"),
        lambda call: evolve(call, arguments_json='{"cents": 6}'),
        lambda call: ToolCall("made up", "pay", '{"cents": 9}'),
    ],
)
def test_calls_are_checked_against_the_request_of_the_model_that_made_them(
    rewrites: Callable[[ToolCall], ToolCall],
) -> None:
    """A planner and a judge, which are offered no tools, get no call rejected."""
    assert run_judged(rewrites)[0] is ToolStatus.SUCCEEDED


def test_a_tool_that_the_request_leaves_out_is_refused_whoever_is_asked_afterwards() -> None:
    """The request of the model that called decides in this direction, too."""
    status, text = run_judged(lambda call: call, ToolSelection(hide=["pay"]))
    assert (status, text) == (
        ToolStatus.REJECTED,
        "CallNotAllowed: the tool 'pay' is not offered now; answer without it",
    )
