"""Whatever happens in an execution, the test that is made of it comes to the same."""

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
from agentloop.errors import RateLimited
from agentloop.interception import RequireApproval
from agentloop.journal import MemoryJournal, build_fixture, pytest_source
from agentloop.testing import play
from agentloop.values import Text, ToolResult, answer, approve, deny, edit
from agentloop.values.decisions import CallSuspended, Decision
from agentloop.values.steps import ExecutionStatus
from agentloop.values.stop import AgentStop, StopReason
from tests.journal.exported import (
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


@tool(effect="pure")
def look(x: int) -> list[int]:
    """Look."""
    return [x, x]


@tool
def pay(x: int) -> ToolResult:
    """Pay."""
    return ToolResult({"paid": x}, [Text(f"paid {x}, as the model sees it")])


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
LINES = st.lists(st.lists(CALLS | st.just("hm"), min_size=1, max_size=4) | st.just(RateLimited("slow")), max_size=4)
RULES: Sequence[type[CanIntercept]] = (
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


@settings(max_examples=100, deadline=None)
@given(LINES, st.sets(st.sampled_from(RULES), max_size=2), st.lists(DECISIONS, max_size=2), st.integers(1, 5))
def test_every_execution_becomes_a_test_that_passes(
    lines: list[Any], rules: set[type[CanIntercept]], decisions: list[Decision], most: int
) -> None:
    """Random calls, rules, decisions, errors and limits: the same calls, outcomes, status, errors and answer."""
    assume(
        not {FailBeforeSecondStep, RecoverFromErrors} <= rules
    )  # who goes on after a rule that fails before every step does so for ever
    journal, script = MemoryJournal(), [*lines, "done"]
    loop = AgentLoop.for_model(
        ScriptedInference(*script),
        tools=TOOLS,
        interceptors=[rule() for rule in sorted(rules, key=lambda one: one.__name__)],
        journal=journal,
        max_steps=most,
    )
    state = loop.execute_sync("go", execution_id="e")
    for decision in decisions:
        if state.status is ExecutionStatus.SUSPENDED:
            state = asyncio.run(_resumed(loop, state, decision))
    records = asyncio.run(journal.read("e"))
    played = play(build_fixture(records, "e"))
    assert _account(played) == _account(state)
    run_test(pytest_source(records, "e"))


async def _resumed(loop: AgentLoop, state: AgentState, decision: Decision) -> AgentState:
    waiting = [call.key for call in state.pending if not call.waits_for]
    return await loop.resume("e", {waiting[0]: decision}) if waiting else state


def _account(state: AgentState) -> object:
    return (
        [[(one.call, one.status, one.text, one.error) for one in step.executions] for step in state.steps],
        [(error.type, error.message) for error in state.errors],
        state.status,
        state.final_text,
        [call.key for call in state.pending],
        None if state.stop_signal is None else state.stop_signal.reason,
    )


async def test_an_execution_that_was_cut_off_becomes_a_test_of_what_there_is() -> None:
    """Cancelled, or with a record that ends in the middle, it stops where the record does."""
    begun = asyncio.Event()

    @tool
    async def slow() -> str:
        """Be slow."""
        begun.set()
        await asyncio.Event().wait()
        return ""

    journal = MemoryJournal()
    script = ScriptedInference(ToolCall("1", "look", '{"x": 1}'), ToolCall("2", "slow"), "done")
    loop = AgentLoop.for_model(script, tools=[look, slow], journal=journal)
    task = asyncio.create_task(loop.execute("go", execution_id="e"))
    await begun.wait()
    middle = await journal.read("e")
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    for records in (middle, await journal.read("e")):
        played = await asyncio.to_thread(play, build_fixture(records, "e"))
        assert played.status is ExecutionStatus.STOPPED
        await asyncio.to_thread(run_test, pytest_source(records, "e"))
