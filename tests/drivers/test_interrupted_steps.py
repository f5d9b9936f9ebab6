"""Interrupted steps: no outcome is lost, whatever wraps the error on its way to the caller of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from attrs import field, frozen

from agentloop import (
    AgentLoop,
    AgentState,
    RequireApproval,
    ScriptedInference,
    ToolCall,
    ToolCallingDriver,
    ToolExecutor,
)
from agentloop.contracts.can_execute_tool_calls import CanExecuteToolCalls
from agentloop.contracts.can_use_tools import CanUseTools
from agentloop.contracts.tools import Tools
from agentloop.drivers import ForwardingDriver, StepDraft
from agentloop.errors import StepInterrupted
from agentloop.testing import Ledger, run_in_virtual_time, toy_call, toy_tools
from agentloop.testing.executor_bench import started_state
from agentloop.tools import tool
from agentloop.values import (
    ExecutionStatus,
    InferenceResponse,
    Message,
    ResponsePart,
    Text,
    ToolCalls,
    ToolExecutions,
    ToolStatus,
    Usage,
    approve,
    interrupted_state,
)
from agentloop.values.batches import apply_decisions


@frozen(kw_only=True)
class LimitedDriver(ToolCallingDriver):
    """Limits the calls of a step to one second."""

    async def execute(self, calls: ToolCalls, draft: StepDraft) -> ToolExecutions:
        async with asyncio.timeout(1):
            return await super().execute(calls, draft)


def test_a_timeout_of_a_driver_keeps_the_outcomes_of_the_batch() -> None:
    """Calls that ended in time keep their results; the timeout is the error of the step."""
    loop = AgentLoop(
        LimitedDriver(ScriptedInference([toy_call("echo", 1), toy_call("echo", 2, seconds=9)])), toy_tools(Ledger())
    )

    async def run() -> AgentState:
        return await loop.execute("go")

    state = run_in_virtual_time(run())
    assert state.status is ExecutionStatus.FAILED
    (step,) = state.steps
    assert [execution.status for execution in step.executions] == [ToolStatus.SUCCEEDED, ToolStatus.CANCELLED]
    assert [error.type for error in step.errors] == ["TimeoutError"]


def test_a_timeout_around_the_loop_raises_timeout_error_with_the_last_state() -> None:
    """`asyncio.timeout` and `asyncio.wait_for` work as with any coroutine, and `interrupted_state` returns the state."""
    loop = AgentLoop(ToolCallingDriver(ScriptedInference([toy_call("echo", 1, seconds=9)])), toy_tools(Ledger()))

    async def limited() -> AgentState | None:
        try:
            async with asyncio.timeout(1):
                await loop.execute("go")
        except TimeoutError as error:
            return interrupted_state(error)
        return None

    async def waited() -> AgentState | None:
        with pytest.raises(TimeoutError) as raised:
            await asyncio.wait_for(loop.execute("go"), 1)
        return interrupted_state(raised.value)

    for work in (limited, waited):
        state = run_in_virtual_time(work())
        assert state is not None
        assert state.status is ExecutionStatus.IN_PROGRESS
        assert [execution.status for execution in state.steps[0].executions] == [ToolStatus.CANCELLED]


@pytest.mark.parametrize("ending", ["cancelled", "failed"])
def test_a_driver_that_settles_decided_calls_keeps_their_outcomes(ending: str) -> None:
    """What it raises has the result of a call that ended before its sibling failed, or before the step was cancelled."""
    slow = toy_call("echo", 2, seconds=9) if ending == "cancelled" else toy_call("fail", 2, seconds=1)
    tools = Tools.of(toy_tools(Ledger()))
    driver = ToolCallingDriver(ScriptedInference([toy_call("echo", 1), slow]), tools=tools)
    loop = AgentLoop(driver, tools, interceptors=[RequireApproval([lambda _: True])])

    async def run() -> StepInterrupted:
        suspended = await loop.execute("go")
        decided = apply_decisions(suspended, {call.key: approve(call.digest) for call in suspended.pending})
        executor = ToolExecutor(raise_on_tool_failure=True).with_tools(tools)
        with pytest.raises((TimeoutError, StepInterrupted)) as raised:
            await asyncio.wait_for(driver.with_tool_runtime(tools, executor).use_tools(decided), 5)
        carrier = StepInterrupted.find_in(raised.value)
        assert carrier is not None
        return carrier

    (step,) = run_in_virtual_time(run()).state.steps
    first, second = step.executions
    assert (first.status, first.value) == (ToolStatus.SUCCEEDED, 1)
    assert second.status is (ToolStatus.CANCELLED if ending == "cancelled" else ToolStatus.FAILED)
    assert step.open_turn is None


async def test_an_execution_in_a_task_group_is_cancelled_like_any_coroutine() -> None:
    """When a sibling fails, the execution is cancelled and the group raises the error of the sibling alone."""
    started = asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        started.set()
        await asyncio.Event().wait()
        return ""

    async def fail() -> None:
        await started.wait()
        raise ValueError("the sibling failed")

    loop = AgentLoop(ToolCallingDriver(ScriptedInference([ToolCall("", "wait")])), [wait])
    with pytest.raises(ExceptionGroup) as raised:  # noqa: PT012  # the group is what raises
        async with asyncio.TaskGroup() as group:
            group.create_task(loop.execute("go"))
            group.create_task(fail())
    assert [str(error) for error in raised.value.exceptions] == ["the sibling failed"]


@frozen
class WrappingDriver(CanUseTools):
    """Raises an error of its own from any error of another driver."""

    driver: CanUseTools

    async def use_tools(self, state: AgentState) -> AgentState:
        try:
            return await self.driver.use_tools(state)
        except Exception as error:
            raise RuntimeError("wrapped") from error


def test_a_driver_that_wraps_an_error_loses_no_step() -> None:
    """The step is in the state, with the errors of both drivers."""
    tools = Tools.of(toy_tools(Ledger()))
    executor = ToolExecutor(raise_on_tool_failure=True).with_tools(tools)
    inference = ScriptedInference([toy_call("echo", 1), toy_call("fail", 2)])
    driver = ToolCallingDriver(inference, tools=tools, executor=executor)
    state = AgentLoop(WrappingDriver(driver)).execute_sync("go")
    (step,) = state.steps
    assert [execution.status for execution in step.executions] == [ToolStatus.SUCCEEDED, ToolStatus.FAILED]
    assert [error.type for error in step.errors] == ["BatchFailed", "RuntimeError"]


class BrokenExecutor(CanExecuteToolCalls):
    """Fails without the outcomes of the calls."""

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        raise OSError("no executor")


async def test_a_driver_raises_one_error_with_the_state_and_the_cause() -> None:
    """A driver raises `StepInterrupted`; calls whose outcome is unknown failed and may have run."""
    driver = ToolCallingDriver(ScriptedInference([toy_call("echo", 1)]), executor=BrokenExecutor())
    with pytest.raises(StepInterrupted, match="OSError: no executor") as raised:
        await driver.use_tools(started_state("agent", "run"))
    assert isinstance(raised.value.cause, OSError)
    assert raised.value.__cause__ is raised.value.cause
    (execution,) = raised.value.state.steps[0].executions
    assert (execution.status, execution.may_have_run) == (ToolStatus.FAILED, True)


@frozen
class RepeatingDriver(ForwardingDriver):
    """Lets its driver begin the step again after an error."""

    async def use_tools(self, state: AgentState) -> AgentState:
        try:
            return await super().use_tools(state)
        except StepInterrupted:
            return await super().use_tools(state)


@frozen(kw_only=True)
class FailingOnceDriver(ToolCallingDriver):
    """Fails after its first answer."""

    answers: list[str] = field(factory=list)

    async def decide(self, draft: StepDraft, messages: Sequence[Message]) -> tuple[ResponsePart, ...]:
        parts = await super().decide(draft, messages)
        self.answers.append("".join(part.text for part in parts if isinstance(part, Text)))
        if len(self.answers) == 1:
            raise RuntimeError("the first answer cannot be used")
        return parts


async def test_a_step_that_a_wrapper_repeats_has_the_tokens_of_all_attempts() -> None:
    """What a step has cost is in one place: a driver that begins it again goes on counting, and breaks no contract."""
    first = InferenceResponse((Text("one"),), usage=Usage(input_tokens=10, output_tokens=3))
    second = InferenceResponse((Text("two"),), usage=Usage(input_tokens=20, output_tokens=5))
    driver = FailingOnceDriver(ScriptedInference(first, second))
    state = await AgentLoop(RepeatingDriver(driver)).execute("go")
    assert state.status is ExecutionStatus.COMPLETED
    (step,) = state.steps
    assert (driver.answers, state.final_text) == (["one", "two"], "two")
    assert (step.usage.input_tokens, step.usage.output_tokens, step.inferences) == (30, 8, 2)


async def test_steps_of_a_driver_outside_of_a_loop_have_their_own_tokens_each() -> None:
    """Nobody clears the ledger of a driver that no loop has bound, so each step has one of its own."""
    response = InferenceResponse((Text("one"),), usage=Usage(input_tokens=10, output_tokens=3))
    driver = ToolCallingDriver(ScriptedInference(response, response))
    state = await driver.use_tools(await driver.use_tools(started_state("agent", "run")))
    assert [(step.usage.input_tokens, step.inferences) for step in state.steps] == [(10, 1), (10, 1)]
