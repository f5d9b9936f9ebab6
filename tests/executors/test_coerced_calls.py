"""Calls with coerced arguments: what is shown, approved and recorded is what runs."""

from __future__ import annotations

from typing import Any

import pytest

from agentloop import AgentLoop, ReActDriver, ScriptedInference, ToolCall, ToolCallingDriver, ToolExecutor, tool
from agentloop.durable import MemoryJournal, replay
from agentloop.durable.chain import verify_records
from agentloop.durable.fold import fold_records
from agentloop.events import ToolCallCompleted, ToolCallStarted, ValidationFailed
from agentloop.interception import Permissions, RequireApproval
from agentloop.policies import Resilience
from agentloop.testing import ExecutorBench
from agentloop.tools.coercion import NUMBER_FROM_TEXT
from agentloop.values import Event, RecordKind, ToolStatus, approve, edit
from tests.durable.recovery_bench import truncate

WRITTEN = '{"n": "3"}'


def bank(paid: list[Any], **options: Any) -> Any:
    """Return a tool that records the arguments of its calls."""

    @tool(**options)
    async def pay(n: int) -> str:
        """Pay."""
        paid.append(n)
        return f"paid {n}"

    return pay


def paying_loop(paid: list[Any], **parts: Any) -> AgentLoop:
    """Return a loop whose model pays once, with a number in quotation marks."""
    driver = ToolCallingDriver(ScriptedInference([ToolCall("c", "pay", WRITTEN)], "Done."))
    return AgentLoop(driver, [bank(paid)], **parts)


async def test_the_call_keeps_its_text_and_the_execution_has_what_ran() -> None:
    """The conversation has the model's text, the execution and its events the coerced arguments with the repairs."""
    paid: list[Any] = []
    loop, events = paying_loop(paid), list[Event]()
    loop.wiretap(events.append)
    state = await loop.execute("Pay.")
    (exchange,) = state.messages[1].exchanges
    assert exchange.call.arguments_json == WRITTEN
    assert exchange.call.repairs == ()
    assert (exchange.execution.call.arguments_json, exchange.execution.call.id) == ('{"n":3}', "c")
    assert exchange.execution.call.repairs == (NUMBER_FROM_TEXT,)
    started = next(event for event in events if isinstance(event, ToolCallStarted))
    completed = next(event for event in events if isinstance(event, ToolCallCompleted))
    assert started.call == completed.execution.call == exchange.execution.call
    assert paid == [3]


async def test_rules_and_approvals_see_what_runs() -> None:
    """An interceptor decides about the coerced arguments, and an approval is for them."""
    paid: list[Any] = []
    large = Permissions(deny=[lambda point: point.arguments["n"] > 2])
    denied = await paying_loop(paid, interceptors=[large]).execute("Pay.")
    assert denied.steps[0].executions[0].status is ToolStatus.BLOCKED

    loop = paying_loop(paid, interceptors=[RequireApproval()])
    waiting = await loop.execute("Pay.", execution_id="run")
    (pending,) = waiting.pending
    assert pending.call.arguments == {"n": 3}
    assert pending.call.repairs == (NUMBER_FROM_TEXT,)
    state = await loop.resume(waiting, {pending.key: approve(pending.digest)})
    assert state.steps[0].executions[0].call == pending.call
    assert paid == [3]


async def test_a_decision_that_edits_is_coerced_too() -> None:
    """Arguments of a person are read as kindly as those of a model."""
    paid: list[Any] = []
    loop = paying_loop(paid, interceptors=[RequireApproval()])
    waiting = await loop.execute("Pay.", execution_id="run")
    await loop.resume(waiting, {waiting.pending[0].key: edit({"n": "4"})})
    assert paid == [4]


async def test_the_intent_holds_what_runs_and_recovery_agrees() -> None:
    """Wherever the records end, the recovered execution has the same calls, and a started call its recorded arguments."""
    journal, paid = MemoryJournal(), list[Any]()
    final = await paying_loop(paid, journal=journal).execute("Pay.", execution_id="run")
    records = await journal.read("run")
    (intent,) = [record for record in records if record.kind is RecordKind.CALL_INTENT]
    assert '"arguments_json":"{\\"n\\":3}"' in intent.body
    for count in range(1, len(records) + 1):
        again: list[Any] = []
        loop = paying_loop(again, journal=await truncate(journal, "run", count))
        state = await loop.recover("run")
        assert state.final_text == "Done."
        assert state.steps[0].executions[0].call == final.steps[0].executions[0].call
        assert again in ([], [3])
    report = await replay(journal, "run", paying_loop([]))
    assert report.divergence is None
    folded = fold_records(verify_records(records, "run"), "run").state
    assert folded == final


async def test_duplicates_are_found_among_what_runs() -> None:
    """`"3"` and `3` are the same call."""
    paid: list[Any] = []
    pay = bank(paid, deduplicate="exact")
    bench = ExecutorBench([pay], interceptors=[Resilience()])
    await bench.run(ToolCall("1", "pay", WRITTEN), ToolCall("2", "pay", '{"n": 3}'))
    assert paid == [3]


async def test_a_strict_executor_coerces_nothing() -> None:
    """The call is rejected with the error that names the place."""
    paid: list[Any] = []
    (done,) = (
        await ExecutorBench([bank(paid)], ToolExecutor(strict=True)).run(ToolCall("1", "pay", WRITTEN))
    ).executions
    assert (done.status, done.call.arguments_json, paid) == (ToolStatus.REJECTED, WRITTEN, [])
    assert "$.n" in done.error_message


CALL = {
    "structured": '{"next": [{"tool": "pay", "arguments": {"n": "3"}}]}',
    "validated": '<tool_call>{"name": "pay", "arguments": {"n": "3"}}</tool_call>',
    "react": '{"thought": "I pay.", "type": "tool", "tool": "pay", "args": {"n": "3"}}',
}
DONE = {
    "structured": '{"next": [{"answer": "Done."}]}',
    "validated": "Done.",
    "react": '{"type": "final", "answer": "Done."}',
}


@pytest.mark.parametrize("mode", CALL)
@pytest.mark.parametrize("strict", ["kind", "tool", "executor"])
async def test_a_model_is_asked_again_exactly_if_the_executor_would_reject(mode: str, strict: str) -> None:
    """A call that is coerced is not asked for again, and a call of a strict tool or executor is."""
    paid: list[Any] = []
    right = CALL[mode].replace('"3"', "3")
    model = ScriptedInference(CALL[mode], *([right] if strict != "kind" else []), DONE[mode])
    driver: Any = ReActDriver(model, output="json") if mode == "react" else ToolCallingDriver(model, mode=mode)  # type: ignore[arg-type]  # a name of a mode
    executor = ToolExecutor(strict=strict == "executor")
    loop = AgentLoop(driver, [bank(paid, strict=strict == "tool")], executor=executor)
    events: list[Event] = []
    loop.wiretap(events.append)
    state = await loop.execute("Pay.")
    assert (paid, state.final_text) == ([3], "Done.")
    assert sum(isinstance(event, ValidationFailed) for event in events) == (strict != "kind")
