"""Exported tests of random executions reproduce them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agentloop import AgentLoop, AgentState, ScriptedInference, ToolCall, tool
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.tool import Tool
from agentloop.durable import MemoryJournal, build_fixture, pytest_source
from agentloop.errors import RateLimited
from agentloop.interception import RequireApproval
from agentloop.testing import play
from agentloop.values import Text, ToolResult, answer, approve, deny, edit
from agentloop.values.decisions import CallSuspended, Decision
from agentloop.values.steps import ExecutionStatus
from agentloop.values.stop import AgentStop, StopReason
from tests.durable.exported import (
    AnswerPayments,
    BlockPayments,
    ChangeArguments,
    ContinueAfterAnswer,
    FailAfterToolUse,
    FailBeforeSecondStep,
    RecoverFromErrors,
    RewriteResults,
    run_test,
)
from tests.generated import examples


@tool(effect="pure")
def look(x: int) -> list[int]:
    """Look."""
    return [x, x]


@tool
def pay(x: int) -> ToolResult:
    """Pay."""
    return ToolResult({"paid": x}, [Text(f"paid {x}, as the model receives it")])


@tool(effect="idempotent")
def fail(x: int) -> str:
    """Fail."""
    raise (KeyError if x % 2 else ConnectionError)(f"no {x}")


@tool
def stop(x: int) -> str:
    """Stop."""
    raise AgentStop(f"enough of {x}", reason=StopReason.STOP_REQUESTED if x % 2 else StopReason.COST_LIMIT)


@tool
def wait(x: int) -> str:
    """Wait."""
    raise CallSuspended(f"who is {x}?")


TOOLS: list[Tool] = [look, pay, fail, stop, wait]
CALLS = st.builds(
    ToolCall,
    st.sampled_from(["", "1", "2"]),
    st.sampled_from(["look", "look", "pay", "pay", "fail", "stop", "wait", "nope"]),
    st.sampled_from(['{"x": 1}', '{"x": 2}', '{"x":2}', '{"x": "2"}', "{", "[]", ""]),
)
SCRIPTS = st.lists(st.lists(CALLS | st.just("hm"), min_size=1, max_size=4) | st.just(RateLimited("slow")), max_size=4)
INTERCEPTORS: Sequence[type[CanIntercept]] = (
    AnswerPayments,
    ContinueAfterAnswer,
    BlockPayments,
    FailAfterToolUse,
    FailBeforeSecondStep,
    ChangeArguments,
    RecoverFromErrors,
    RewriteResults,
    RequireApproval,
)
DECISIONS = st.sampled_from([approve(), deny("no"), answer([1]), edit({"x": 5}), edit({"x": "5"})])


@settings(max_examples=examples(100), deadline=None)
@given(SCRIPTS, st.sets(st.sampled_from(INTERCEPTORS), max_size=2), st.lists(DECISIONS, max_size=2), st.integers(1, 5))
def test_every_exported_test_passes(
    script: list[Any], interceptors: set[type[CanIntercept]], decisions: list[Decision], max_steps: int
) -> None:
    """For random calls, interceptors, decisions, errors and limits, the exported test passes."""
    # Recovering from an interceptor that fails before every step never ends.
    assume(not {FailBeforeSecondStep, RecoverFromErrors} <= interceptors)
    journal = MemoryJournal()
    loop = AgentLoop.for_model(
        ScriptedInference(*script, "done"),
        tools=TOOLS,
        interceptors=[create() for create in sorted(interceptors, key=lambda kind: kind.__name__)],
        journal=journal,
        max_steps=max_steps,
    )
    state = loop.execute_sync("go", execution_id="e")
    for decision in decisions:
        if state.status is ExecutionStatus.SUSPENDED:
            state = asyncio.run(_resume(loop, state, decision))
    records = asyncio.run(journal.read("e"))
    played = play(build_fixture(records, "e"))
    assert _summarize(played) == _summarize(state)
    run_test(pytest_source(records, "e"))


async def _resume(loop: AgentLoop, state: AgentState, decision: Decision) -> AgentState:
    waiting = [call.key for call in state.pending if not call.waits_for]
    return await loop.resume("e", {waiting[0]: decision}) if waiting else state


def _summarize(state: AgentState) -> object:
    return (
        [
            [(execution.call, execution.status, execution.text, execution.error) for execution in step.executions]
            for step in state.steps
        ],
        [(error.type, error.message) for error in state.errors],
        state.status,
        state.final_text,
        [call.key for call in state.pending],
        None if state.stop_signal is None else state.stop_signal.reason,
    )


async def test_an_incomplete_record_can_be_exported() -> None:
    """The exported test of a cancelled execution, or of an incomplete record, stops where the record ends."""
    started = asyncio.Event()

    @tool
    async def slow() -> str:
        """Be slow."""
        started.set()
        await asyncio.Event().wait()
        return ""

    journal = MemoryJournal()
    script = ScriptedInference(ToolCall("1", "look", '{"x": 1}'), ToolCall("2", "slow"), "done")
    loop = AgentLoop.for_model(script, tools=[look, slow], journal=journal)
    task = asyncio.create_task(loop.execute("go", execution_id="e"))
    await started.wait()
    middle = await journal.read("e")
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    for records in (middle, await journal.read("e")):
        played = await asyncio.to_thread(play, build_fixture(records, "e"))
        assert played.status is ExecutionStatus.STOPPED
        await asyncio.to_thread(run_test, pytest_source(records, "e"))
