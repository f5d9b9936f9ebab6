"""Executions of every kind do not diverge when unchanged code replays them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentloop import AgentLoop, CancellationToken, Interceptor, ReActDriver, ToolCallingDriver, handoff_to, tool
from agentloop.contracts import CanIntercept, CanUseTools
from agentloop.durable import MemoryJournal, SqliteJournal, replay
from agentloop.errors import AgentStop, RateLimited
from agentloop.interception import AfterStep, OnError, RequireApproval, StopOnRepeatedCalls
from agentloop.models import ScriptedInference
from agentloop.policies import Budget, Resilience, SummarizeHistory
from agentloop.testing import NOTATIONS, CountingIds, CrashableJournal, ManualClock, Scenario, ScriptedTurn
from agentloop.testing.toys import Ledger, toy_call, toy_tools
from agentloop.values import ExecutionStatus, RecordKind, StopReason, ToolCall, approve, deny, edit
from tests.durable.recovery_bench import Model
from tests.durable.replaying.bench import SCRIPT, loop_of, record_run, tools
from tests.durable.replaying.bench import Ledger as EffectLedger

SCENARIO = Scenario(
    turns=(
        ScriptedTurn("Let me look.", (toy_call("echo", 1), toy_call("fail", 2, id="a"), toy_call("keyed", 1, id="b"))),
        ScriptedTurn("", (toy_call("alone", 1), toy_call("broken", 3), toy_call("whoami", 4))),
        ScriptedTurn("done"),
    )
)
"""A conversation that every driver can follow."""


async def _assert_equal(journal: Any, execution_id: str, loop: AgentLoop, *, complete: bool = True) -> None:
    result = await replay(journal, execution_id, loop)
    assert result.is_equal, result.explain()
    assert result.is_complete is complete, result
    assert result.blocked == ()


def _driver(notation: str, *, streaming: bool) -> CanUseTools:
    model = SCENARIO.inference(NOTATIONS[notation])
    if notation.startswith("react"):
        return ReActDriver(model, output="json" if notation.endswith("json") else "text", streaming=streaming)
    return ToolCallingDriver(model, mode=notation, streaming=streaming)  # type: ignore[arg-type]  # the name of a mode


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("notation", sorted(NOTATIONS))
async def test_drivers_and_modes(notation: str, *, streaming: bool) -> None:
    """Replays are equal under every driver and mode, with and without streaming."""
    journal = MemoryJournal()

    def loop() -> AgentLoop:
        driver = _driver(notation, streaming=streaming)
        return AgentLoop(driver, toy_tools(Ledger()), journal=journal, clock=ManualClock(), ids=CountingIds())

    state = await loop().execute(SCENARIO.question, execution_id="run")
    assert state.final_text == "done"
    await _assert_equal(journal, "run", loop())


async def test_a_scripted_driver_without_a_model() -> None:
    """A driver that makes no inferences decides again in the replay."""
    journal = MemoryJournal()
    loop = AgentLoop(SCENARIO.driver(), toy_tools(Ledger()), journal=journal)
    await loop.execute(SCENARIO.question, execution_id="run")
    await _assert_equal(journal, "run", loop)


async def test_suspended_calls_and_decisions() -> None:
    """Recorded decisions are applied again, and the states are compared at every suspension."""
    journal = MemoryJournal()

    def loop() -> AgentLoop:
        model = Model(
            [("pay", {"amount": 1}), ("pay", {"amount": 2}), ("look", {"n": 1})], [("pay", {"amount": 3})], "Done."
        )
        return AgentLoop(
            ToolCallingDriver(model), tools(EffectLedger()), journal=journal, interceptors=[RequireApproval("pay")]
        )

    state = await loop().execute("go", execution_id="run")
    await _assert_equal(journal, "run", loop(), complete=False)
    state = await loop().resume(state, {"run/1/0": approve()})
    state = await loop().resume(state, {"run/1/1": edit({"amount": 20})})
    state = await loop().resume("run", {"run/2/0": deny("too much")})
    assert state.status is ExecutionStatus.COMPLETED
    await _assert_equal(journal, "run", loop())
    changed = loop().with_interceptors(RequireApproval("look"))
    assert (await replay(journal, "run", changed)).divergence is not None


async def test_agents_as_tools() -> None:
    """A sub-agent is one call in the replay of its caller; its own execution is replayed with its own loop."""
    journal = MemoryJournal()

    def office() -> tuple[AgentLoop, AgentLoop]:
        child = loop_of()
        model = Model([("clerk", {"task": "pay"}), ("clerk", {"task": "pay more"})], "Done.")
        return child, AgentLoop(ToolCallingDriver(model), [child.as_tool("clerk", "Pays.")], journal=journal)

    await office()[1].execute("go", execution_id="run")
    await _assert_equal(journal, "run", office()[1])
    for place in range(2):
        await _assert_equal(journal, f"run/1/{place}/agent", office()[0])


async def test_a_handoff_and_a_handoff_back() -> None:
    """A replay follows handoffs to other loops and back."""
    journal = MemoryJournal()

    def desk() -> AgentLoop:
        loops: list[AgentLoop] = []
        back = handoff_to(lambda: loops[0], name="back", description="Back.")
        desk = Model([("over", {})], [("over", {})], [("back", {})], "Done here.")
        clerk = AgentLoop(ToolCallingDriver(desk), [*tools(EffectLedger()), back], system_prompt="You are the clerk.")
        over = handoff_to(clerk, name="over", description="Over.")
        first = AgentLoop(
            ToolCallingDriver(Model([("over", {})], "", [("look", {"n": 1})], "Done.")), [*tools(EffectLedger()), over]
        )
        loops.append(first.replace(journal=journal))
        return loops[0]

    loop = desk()
    state = await loop.execute("go", execution_id="run")
    assert state.step_count > 1
    await _assert_equal(journal, "run", loop)
    await _assert_equal(journal, "run", desk())


async def test_messages_sent_during_an_execution() -> None:
    """Sent messages are received at the recorded steps again, also one that arrived right after the final answer."""
    journal = MemoryJournal()

    class SendsMessages(Interceptor):
        def after_step(self, point: AfterStep) -> AfterStep:
            if point.state.step_count in {1, 2}:
                loop.inbox("run").send(f"after {point.state.step_count}")
            return point

    loop = loop_of([("look", {"n": 1})], "An answer.", "Another.", journal=journal, interceptors=[SendsMessages()])
    state = await loop.execute("go", execution_id="run")
    assert [message.text for message in state.messages if message.role == "user"] == ["go", "after 1", "after 2"]
    await _assert_equal(journal, "run", loop_of("unused"))


async def test_errors_of_models_and_of_interceptors() -> None:
    """A failed inference fails again with the same error, so that interceptors handle it the same way."""
    journal = MemoryJournal()

    class Recovers(Interceptor):
        def on_error(self, point: OnError) -> OnError:
            return point.recover() if isinstance(point.error, RateLimited) else point

    def loop(*lines: Any) -> AgentLoop:
        model = ScriptedInference(*lines)
        return AgentLoop(ToolCallingDriver(model), tools(EffectLedger()), journal=journal, interceptors=[Recovers()])

    state = await loop(RateLimited("slow down"), ValueError("broken")).execute("go", execution_id="run")
    assert [error.type for error in state.errors] == ["RateLimited", "ValueError"]
    await _assert_equal(journal, "run", loop())


STOPS: dict[str, Callable[[], CanIntercept]] = {
    "steps": lambda: Budget(steps=2),
    "tokens": lambda: Budget(tokens=400),
    "calls": lambda: Budget(tool_calls=1),
    "no final answer": lambda: Budget(tool_calls=1, wrap_up=0),
    "no progress": StopOnRepeatedCalls,
    "resilience": Resilience,
    "summaries": lambda: SummarizeHistory(ScriptedInference(*["A summary."] * 5), tokens=30),
}


@pytest.mark.parametrize("name", list(STOPS))
async def test_limits_and_other_interceptors(name: str) -> None:
    """Interceptors that decide by the state decide the same in a replay."""
    journal = await record_run(interceptors=[STOPS[name]()])
    await _assert_equal(journal, "run", loop_of(interceptors=[STOPS[name]()]))


async def test_a_tool_that_stops_the_execution() -> None:
    """The stop signal of a tool is recorded with its call, and applied again."""

    @tool
    async def stop() -> str:
        """Stop."""
        raise AgentStop("enough", reason=StopReason.NO_PROGRESS)

    journal = await record_run([("stop", {})], "Never said.", tool_list=[stop])
    state = await journal.state("run")
    assert state.stop_signal is not None
    assert state.stop_signal.reason is StopReason.NO_PROGRESS
    await _assert_equal(journal, "run", loop_of(tool_list=[stop]))


async def test_a_retried_answer_of_a_declared_type() -> None:
    """An answer that was rejected for its type is rejected and retried again."""
    journal = await record_run("not a number", "42", output_type=int)
    assert len([record for record in await journal.read("run") if record.kind == "inference_recorded"]) == 2
    await _assert_equal(journal, "run", loop_of("unused", output_type=int))


async def test_an_execution_that_its_user_stopped_is_compared_up_to_the_stop() -> None:
    """A stop from outside is not a divergence, and the steps before it are compared."""
    token, journal = CancellationToken(), MemoryJournal()

    class Stops(Interceptor):
        def after_step(self, point: AfterStep) -> AfterStep:
            if point.state.step_count == 2:
                token.cancel("the user went home")
            return point

    loop = loop_of(journal=journal, interceptors=[token, Stops()])
    state = await loop.execute("go", execution_id="run")
    assert state.stop_signal is not None
    assert state.stop_signal.reason is StopReason.USER_REQUESTED
    result = await replay(journal, "run", loop_of())
    assert result.is_equal, result.explain()
    assert result.steps == 2
    assert result.end_reason == "the recorded execution was stopped from outside, user_requested: the user went home"
    changed = await replay(journal, "run", loop_of(tool_list=tools(EffectLedger(), pay="Pay!")))
    assert changed.divergence is not None


async def test_an_execution_whose_task_was_cancelled_is_compared_up_to_the_cancellation() -> None:
    """The cancelled step is not a divergence."""
    started, journal = asyncio.Event(), MemoryJournal()

    @tool(name="look", effect="pure")
    async def stuck(n: int) -> str:
        """Hang."""
        started.set()
        await asyncio.Event().wait()
        return str(n)

    run = asyncio.create_task(loop_of(journal=journal, tool_list=[stuck]).execute("go", execution_id="run"))
    await started.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    result = await replay(journal, "run", loop_of(tool_list=[stuck]))
    assert result.is_equal, result.explain()
    assert result.end_reason == "the record ends here: the execution was interrupted, or is still running"


async def test_a_recovered_execution_is_replayed_as_one_execution() -> None:
    """An execution is equal after a crash at any record, both with and without a recovery."""
    journal = CrashableJournal()
    await loop_of(journal=journal).execute("go", execution_id="run")
    for count in range(1, len(journal.appended)):
        survived = await journal.after_crash(count)
        interrupted = await replay(survived, "run", loop_of())
        assert interrupted.is_equal, interrupted.explain()
        assert interrupted.end_reason == "the record ends here: the execution was interrupted, or is still running"
        state = await loop_of(journal=survived).recover("run")
        assert state.status is ExecutionStatus.COMPLETED
        await _assert_equal(survived, "run", loop_of())


async def test_forks() -> None:
    """The outcomes that replace calls in a fork are recorded, and used again."""
    journal = await record_run()
    for step in range(len(SCRIPT)):
        for effects in ("reuse", "simulate", "forbid"):
            fork = await journal.fork("run", step, effects=effects)
            await loop_of(journal=journal).recover(fork)
            await _assert_equal(journal, fork, loop_of())


async def test_a_second_execution_of_an_agent() -> None:
    """A second execution starts with the conversation of the first, and both are equal."""
    journal = MemoryJournal()
    state = await loop_of("One.", journal=journal).execute("first", execution_id="one")
    await loop_of("One.", "Two.", journal=journal).execute(state.with_message("second"), execution_id="two")
    await _assert_equal(journal, "one", loop_of("unused"))
    await _assert_equal(journal, "two", loop_of("unused"))


async def test_masked_values_are_compared_as_masked() -> None:
    """A secret in arguments, outcomes or the system prompt does not cause a divergence."""
    for fields, steps in (((), 4), (("amount",), 1)):
        journal = MemoryJournal(secrets=["hunter22", "paid 5"], secret_fields=fields)
        loop = loop_of(journal=journal, system_prompt="The word is hunter22.")
        await loop.execute("It is hunter22.", execution_id="run")
        result = await replay(journal, "run", loop_of(system_prompt="The word is hunter22."))
        assert result.is_equal, result.explain()
        assert result.steps == steps
    assert "tool call of the model is masked" in result.end_reason


async def test_an_execution_in_a_file(tmp_path: Path) -> None:
    """A replay reads a `SqliteJournal` like a journal in memory."""
    journal = SqliteJournal(tmp_path / "j.db")
    await loop_of(journal=journal).execute("go", execution_id="run")
    await _assert_equal(journal, "run", loop_of())
    await journal.aclose()


def test_the_first_turn_of_the_scenario_has_calls() -> None:
    """The first turn of the scenario has three calls, so the replays above compare calls."""
    assert all(isinstance(call, ToolCall) for call in SCENARIO.turns[0].calls)
    assert len(SCENARIO.turns[0].calls) == 3


async def test_a_message_sent_before_a_recovery() -> None:
    """A message that is received by a step with a recorded inference does not cause a divergence."""
    journal = CrashableJournal()
    await loop_of(journal=journal).execute("go", execution_id="run")
    kinds = [record.kind for record in journal.appended]
    survived = await journal.after_crash(kinds.index(RecordKind.INFERENCE_RECORDED) + 1)
    loop = loop_of(journal=survived)
    loop.inbox("run").send("Hurry.")
    state = await loop.recover("run")
    assert [message.text for message in state.messages if message.role == "user"] == ["go", "Hurry."]
    await _assert_equal(survived, "run", loop_of())


async def test_the_time_before_a_recovery_does_not_count() -> None:
    """A time limit that held in the recorded execution holds in the replay."""
    journal, clock = CrashableJournal(), ManualClock()
    await loop_of(journal=journal, clock=clock).execute("go", execution_id="run")
    survived = await journal.after_crash(4)
    clock.advance(10_000)
    loop = loop_of(journal=survived, clock=clock, interceptors=[Budget(seconds=60, wrap_up=0)])
    assert (await loop.recover("run")).status is ExecutionStatus.COMPLETED
    await _assert_equal(survived, "run", loop_of(interceptors=[Budget(seconds=60, wrap_up=0)]))
