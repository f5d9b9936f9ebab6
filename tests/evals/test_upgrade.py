"""The check before a deploy: what becomes of executions that wait or run, with the new code."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from agentloop import AgentLoop, FunctionInference, RequireApproval, ScriptedInference, ToolCall, tool
from agentloop.durable import MemoryJournal
from agentloop.evals import EvalSuite, Outlook, check_upgrade
from agentloop.values import InferenceRequest
from tests.evals.invoices import PAID, clerk


def waiting(**parts: Any) -> AgentLoop:
    return clerk(0.0, interceptors=[RequireApproval("pay")], **parts)


async def paused(journal: MemoryJournal) -> None:
    """Record an execution that was interrupted while its model answered."""
    begun = asyncio.Event()

    async def answer(request: InferenceRequest) -> ToolCall:
        if not any(message.exchanges for message in request.messages):
            return ToolCall("1", "invoice", '{"number": 3}')
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    loop = AgentLoop.for_model(
        FunctionInference(answer), tools=waiting().tools, interceptors=[RequireApproval("pay")], journal=journal
    )
    task = asyncio.create_task(loop.execute("Pay invoice 3", execution_id="runs"))
    await begun.wait()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def unfinished() -> MemoryJournal:
    """Return a journal with an execution that waits, one that was interrupted, and others that are none of the check's business."""
    journal = MemoryJournal()
    await waiting(journal=journal).execute("Pay invoice 7", execution_id="waits")
    await paused(journal)
    await clerk(1.0, journal=journal).execute("Pay invoice 9", execution_id="has ended")
    trials = EvalSuite("s", [], {"a": waiting()})
    assert (await trials.run(journal=journal)).trials == ()
    return journal


async def test_equal_code_goes_on() -> None:
    """Nothing runs for that, and executions that have ended are not looked at."""
    journal = await unfinished()
    PAID.clear()
    report = await check_upgrade(waiting(), journal)
    assert report.is_safe, report
    assert [(check.execution_id, check.status.value) for check in report.checks] == [
        ("waits", "suspended"),
        ("runs", "in_progress"),
    ]
    assert str(report).startswith("2 continues equal, 0 diverges, 0 cannot continue")
    assert PAID == []


async def test_a_change_is_named_with_its_place() -> None:
    """The step, the field, and why."""
    journal = await unfinished()
    report = await check_upgrade(waiting(system_prompt="Be quick."), journal)
    assert not report.is_safe
    places = [(check.outlook, check.step, check.place) for check in report.checks]
    assert places == [(Outlook.DIVERGES, 0, "state.context.system_prompt")] * 2
    assert (
        'waits (suspended): diverges: at the beginning: state.context.system_prompt differs: nothing → "Be quick."'
        in str(report)
    )
    unguarded = await check_upgrade(clerk(0.0), journal)
    (diverged,) = unguarded.of(Outlook.DIVERGES)
    assert (diverged.execution_id, diverged.step) == ("waits", 2)
    assert "RequireApproval" in diverged.why


async def test_a_call_whose_tool_is_gone_cannot_continue() -> None:
    """Neither can one whose arguments the new tool refuses, nor one whose record is damaged."""
    journal = await unfinished()

    @tool
    def pay(amount: int) -> str:
        """Pay."""
        return f"{amount}"

    reading = [waiting().tools.by_name["invoice"]]
    gone = AgentLoop.for_model(ScriptedInference(), tools=reading)
    other = AgentLoop.for_model(ScriptedInference(), tools=[pay, *reading])
    (check,) = (await check_upgrade(gone, journal)).of(Outlook.CANNOT)
    assert (check.execution_id, check.why) == ("waits", "a call of 'pay' waits, and the new code has no such tool")
    (check,) = (await check_upgrade(other, journal)).of(Outlook.CANNOT)
    assert check.why.startswith("a call of 'pay' waits, and the new tool does not take its arguments: $: ")


async def test_each_execution_is_checked_with_its_own_loop() -> None:
    """A journal may hold those of several agents."""
    journal = await unfinished()
    report = await check_upgrade(lambda head: waiting() if head.execution_id == "waits" else None, journal)
    assert [check.execution_id for check in report.checks] == ["waits"]
    assert not (await check_upgrade(waiting(), journal, where=lambda head: head.agent_name == "other")).checks
