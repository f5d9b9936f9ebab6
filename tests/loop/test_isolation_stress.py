"""Many concurrent executions of one loop: states never mix (law 9), and nothing is left (law 19)."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar

from agentloop import (
    AgentLoop,
    AgentState,
    CanInfer,
    ToolCall,
    ToolCallingDriver,
    ToolContext,
    from_json,
    to_json,
    tool,
)
from agentloop.events import ToolCallCompleted
from agentloop.testing import LoopClock, run_in_virtual_time
from agentloop.values import ExecutionStatus, FinishReason, InferenceRequest, InferenceResponse, Text, ToolStatus, Usage
from agentloop.values.interruptions import interrupted_state

EXECUTIONS, STEPS = 200, 4
NAMES = ("slow", "quick", "threaded", "failing", "hasty", "missing")
WHO: ContextVar[str] = ContextVar("who", default="nobody")


def identify(owner: str, state: AgentState, context: ToolContext) -> list[str]:
    """Identify the user of this call in all available ways, and mark the context for later code."""
    before = WHO.get()
    WHO.set(owner)
    return [owner, state.messages[0].text, context.execution_id, str(context.dependencies), before]


@tool(effect="pure")
async def slow(owner: str, seconds: float, state: AgentState, context: ToolContext) -> list[str]:
    """Identify the user after a delay."""
    await asyncio.sleep(seconds)
    return identify(owner, state, context)


@tool(effect="pure")
async def quick(owner: str, seconds: float, state: AgentState, context: ToolContext) -> list[str]:
    """Identify the user at once."""
    return identify(owner, state, context)


@tool(effect="pure")
def threaded(owner: str, seconds: float, state: AgentState, context: ToolContext) -> list[str]:
    """Identify the user in a thread."""
    return identify(owner, state, context)


@tool(effect="pure")
async def failing(owner: str, seconds: float) -> str:
    """Fail after a delay."""
    await asyncio.sleep(seconds)
    raise RuntimeError(owner)


@tool(effect="pure", timeout=0.5)
async def hasty(owner: str, seconds: float) -> str:
    """Exceed the timeout."""
    await asyncio.sleep(1 + seconds)
    return owner


class ModelOfUsers(CanInfer):
    """A model that calls all tools in each step, and answers with the name of the user at the end."""

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        owner = request.messages[0].text
        step = sum(message.role == "assistant" for message in request.messages)
        number = int(owner.removeprefix("user "))
        await asyncio.sleep(number % 7 / 10)
        usage = Usage(number, step, 0, 0, 0)
        if step == STEPS:
            return InferenceResponse((Text(owner),), FinishReason.STOP, usage)
        names = NAMES[number % len(NAMES) :] + NAMES[: number % len(NAMES)]
        calls = [
            ToolCall("same", name, f'{{"owner": "{owner}", "seconds": {(number * step + place) % 5}}}')
            for place, name in enumerate(names)
        ]
        return InferenceResponse(calls, FinishReason.TOOL_CALLS, usage)


def expected(owner: str, execution_id: str, name: str) -> tuple[ToolStatus, object]:
    match name:
        case "missing":
            return ToolStatus.REJECTED, None
        case "failing":
            return ToolStatus.FAILED, None
        case "hasty":
            return ToolStatus.TIMED_OUT, None
    return ToolStatus.SUCCEEDED, (owner, owner, execution_id, f"of {owner}", "nobody")


def assert_isolated(state: AgentState, number: int) -> None:
    """Assert that everything in a state belongs to its user."""
    owner, execution_id = f"user {number}", f"run {number}"
    assert (state.status, state.final_text) == (ExecutionStatus.COMPLETED, owner)
    assert (state.execution_id, state.step_count) == (execution_id, STEPS + 1)
    assert state.usage.input_tokens == number * (STEPS + 1)
    for step in state.steps[:STEPS]:
        assert {execution.name for execution in step.executions} == set(NAMES)
        for place, result in enumerate(step.executions):
            assert result.key == f"{execution_id}/{step.number}/{place}"
            assert result.call.arguments["owner"] == owner
            assert (result.status, result.value) == expected(owner, execution_id, result.name)
            assert owner in result.error_message or result.name != "failing"
    assert from_json(to_json(state), AgentState) == state


async def execute(loop: AgentLoop, number: int) -> AgentState | asyncio.CancelledError:
    """Execute for a user; when cancelled, return the state that the error carries."""
    owner = f"user {number}"
    try:
        return await loop.execute(owner, execution_id=f"run {number}", dependencies=f"of {owner}")
    except asyncio.CancelledError as cancelled:
        return cancelled


async def all_at_once(loop: AgentLoop) -> list[AgentState | asyncio.CancelledError]:
    ended = await asyncio.gather(*[execute(loop, number) for number in range(EXECUTIONS)])
    assert WHO.get() == "nobody"
    assert asyncio.all_tasks() == {asyncio.current_task()}
    return ended


def test_two_hundred_executions_of_one_loop_are_isolated() -> None:
    """Calls, results, context, dependencies, events and usage belong to one execution each; no task or thread is left."""
    threads = set(threading.enumerate())
    loop = AgentLoop(ToolCallingDriver(ModelOfUsers()), [slow, quick, threaded, failing, hasty], clock=LoopClock())
    reported: list[tuple[str, str]] = []
    loop.on(ToolCallCompleted, lambda event: reported.append((event.execution_id, event.execution.key)))
    states = run_in_virtual_time(all_at_once(loop))
    for number, state in enumerate(states):
        assert isinstance(state, AgentState)
        assert_isolated(state, number)
        keys = [key for execution_id, key in reported if execution_id == state.execution_id]
        assert keys == [
            execution.key for step in state.steps for execution in step.executions if execution.name != "missing"
        ]
    assert set(threading.enumerate()) <= threads


async def cancel_half(loop: AgentLoop) -> list[AgentState | asyncio.CancelledError]:
    """Cancel every other execution while all of them run."""
    tasks = [asyncio.create_task(execute(loop, number)) for number in range(EXECUTIONS)]
    await asyncio.sleep(3)
    for task in tasks[::2]:
        task.cancel()
    ended = await asyncio.gather(*tasks)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    return ended


def test_cancelling_some_executions_does_not_affect_the_others() -> None:
    """Half are cancelled and carry their own state; the others end as they would alone; no task or thread is left."""
    threads = set(threading.enumerate())
    loop = AgentLoop(ToolCallingDriver(ModelOfUsers()), [slow, quick, threaded, failing, hasty], clock=LoopClock())
    ended = run_in_virtual_time(cancel_half(loop))
    for number, result in enumerate(ended):
        if number % 2:
            assert isinstance(result, AgentState)
            assert_isolated(result, number)
            continue
        assert isinstance(result, asyncio.CancelledError)
        state = interrupted_state(result)
        assert state is not None
        assert state.messages[0].text == f"user {number}"
        assert state.status is ExecutionStatus.IN_PROGRESS
        assert all(call.call.arguments["owner"] == f"user {number}" for step in state.steps for call in step.executions)
    assert set(threading.enumerate()) <= threads
