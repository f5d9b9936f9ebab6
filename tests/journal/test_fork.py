"""Forks: executions that begin in the middle of another one, with a policy about effects."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from agentloop import AgentLoop, ToolCallingDriver, ToolContext, tool
from agentloop.errors import JournalConflict, JournalError, UnknownExecution
from agentloop.interception import RequireApproval
from agentloop.journal import ForkPolicy, MemoryJournal, SqliteJournal
from agentloop.replay import replay
from agentloop.testing import Chronicle
from agentloop.values import AgentState, Effect, ExecutionStatus, RecordKind, ToolStatus, approve
from agentloop.values.json import parse_json
from tests.loop.recovery_bench import Model, Turn

SCRIPT: tuple[Turn, ...] = (
    [("look", {"n": 1})],
    [("pay", {"n": 1})],
    [("pay", {"n": 2}), ("pay", {"n": 2}), ("put", {"n": 1}), ("look", {"n": 2})],
    "Done.",
)
OTHER: tuple[Turn, ...] = (*SCRIPT[:2], [("pay", {"n": 2}), ("pay", {"n": 9}), ("put", {"n": 1})], "Otherwise.")


class World:
    """What tools have done, in order: the keys of the calls, and what each did."""

    def __init__(self) -> None:
        self.done: list[tuple[str, str]] = []

    def tools(self) -> list[Any]:
        """Return a pure, an idempotent and an effect tool."""

        @tool(effect=Effect.PURE)
        async def look(n: int, context: ToolContext) -> str:
            """Look."""
            self.done.append((context.idempotency_key, f"look {n}"))
            return f"saw {n}"

        @tool(effect=Effect.IDEMPOTENT)
        async def put(n: int, context: ToolContext) -> str:
            """Put."""
            self.done.append((context.idempotency_key, f"put {n}"))
            return f"put {n}"

        @tool
        async def pay(n: int, context: ToolContext) -> str:
            """Pay."""
            self.done.append((context.idempotency_key, f"pay {n}"))
            return f"receipt {len(self.done)}"

        return [look, put, pay]

    def loop(self, journal: Any, *turns: Turn, **parts: Any) -> AgentLoop:
        """Return a loop whose model follows a script."""
        return AgentLoop(ToolCallingDriver(Model(*(turns or SCRIPT))), self.tools(), journal=journal, **parts)

    def of(self, execution_id: str) -> list[str]:
        """Return what was done for an execution."""
        return [done for key, done in self.done if key.rsplit("/", 2)[0] == execution_id]


def outcomes(state: AgentState, step: int) -> Sequence[tuple[ToolStatus, Any]]:
    """Return what came of the calls of a step."""
    return [(one.status, one.value) for one in state.steps[step - 1].executions]


async def ran(*turns: Turn) -> tuple[Chronicle, World, AgentState]:
    """Record an execution `run`."""
    journal, world = Chronicle(), World()
    return journal, world, await world.loop(journal, *turns).execute("go", execution_id="run")


async def test_a_fork_has_the_state_of_its_step_and_goes_on_from_there() -> None:
    """It is an execution of its own, of an agent of its own; the original is as it was."""
    journal, world, state = await ran()
    before = await journal.read("run")
    fork = await journal.fork("run", 2)
    assert fork == "run/fork-1"
    begun = await journal.state(fork)
    at = await journal.state("run", 2)
    assert begun.messages == at.messages
    assert (begun.execution_id, begun.status, begun.step_count) == (fork, ExecutionStatus.IN_PROGRESS, 2)
    assert begun.agent_id != state.agent_id
    head = await journal.head(fork)
    assert head is not None
    assert (head.forked_from, head.input) == ("run", "go")
    ended = await world.loop(journal, *OTHER).recover(fork)
    assert ended.final_text == "Otherwise."
    assert [step.number for step in ended.steps] == [1, 2, 3, 4]
    assert await journal.read("run") == before
    assert await journal.verify() == ()
    assert await journal.state(fork) == ended


async def test_reuse_gives_each_recorded_outcome_once_and_runs_other_calls() -> None:
    """What the original paid after the step is not paid again; what it did not pay is."""
    journal, world, state = await ran()
    assert world.of("run") == ["look 1", "pay 1", "pay 2", "pay 2", "put 1", "look 2"]
    fork = await journal.fork("run", 2)
    ended = await world.loop(journal, *OTHER).recover(fork)
    assert world.of(fork) == ["pay 9"]
    assert outcomes(ended, 3)[0] == outcomes(state, 3)[0]
    assert outcomes(ended, 3)[2] == outcomes(state, 3)[2]


async def test_equal_calls_are_given_different_outcomes_in_order() -> None:
    """Two equal payments have two receipts; a third one is a payment."""
    journal, world, state = await ran()
    thrice: Turn = [("pay", {"n": 2})] * 3
    fork = await journal.fork("run", 2)
    ended = await world.loop(journal, *SCRIPT[:2], thrice, "Done.").recover(fork)
    assert outcomes(ended, 3)[:2] == outcomes(state, 3)[:2]
    assert world.of(fork) == ["pay 2"]


async def test_what_was_done_before_the_step_is_no_outcome_to_reuse() -> None:
    """The payment of step 2 stands in the fork's past; an equal one is another."""
    journal, world, _ = await ran()
    fork = await journal.fork("run", 2)
    await world.loop(journal, *SCRIPT[:2], [("pay", {"n": 1})], "Done.").recover(fork)
    assert world.of(fork) == ["pay 1"]


async def test_simulate_runs_no_call_with_an_effect() -> None:
    """A recorded outcome where there is one, else one that says it was simulated."""
    journal, world, state = await ran()
    fork = await journal.fork("run", 2, effects="simulate")
    ended = await world.loop(journal, *OTHER).recover(fork)
    assert world.of(fork) == []
    first, second, third = outcomes(ended, 3)
    assert first == outcomes(state, 3)[0]
    assert third == (ToolStatus.SUCCEEDED, "put 1")
    assert second[0] is ToolStatus.SUCCEEDED
    assert "was not run" in str(second[1])


async def test_forbid_blocks_calls_with_an_effect_and_tells_the_model() -> None:
    """Pure calls run."""
    journal, world, _ = await ran()
    fork = await journal.fork("run", 0, effects=ForkPolicy.FORBID)
    ended = await world.loop(journal).recover(fork)
    assert world.of(fork) == ["look 1", "look 2"]
    assert [status for status, _ in outcomes(ended, 3)][:3] == [ToolStatus.BLOCKED] * 3
    assert "may not have effects" in ended.steps[1].executions[0].error_message


@pytest.mark.parametrize("effects", list(ForkPolicy))
async def test_a_fork_that_is_interrupted_anywhere_goes_on_under_its_policy(effects: ForkPolicy) -> None:
    """After a crash at any record, no outcome is given twice and nothing is done twice."""
    journal, world, _ = await ran()
    fork = await journal.fork("run", 2, effects=effects)
    first = len(journal.order)
    expected = await world.loop(journal, *OTHER).recover(fork)
    done = world.of(fork)
    for count in range(first, len(journal.order)):
        left = await journal.crashed_after(count)
        again = World()
        ended = await again.loop(left, *OTHER).recover(fork)
        assert [s for s, _ in outcomes(ended, 3)] in (
            [s for s, _ in outcomes(expected, 3)],
            [ToolStatus.SUCCEEDED, ToolStatus.IN_DOUBT, ToolStatus.SUCCEEDED],  # the payment of the fork's own
        )
        assert set(again.of(fork)) <= set(done)


async def test_a_fork_of_a_fork_reuses_what_both_have_done() -> None:
    """What the fork did after the step, and what the original did that the fork did not get to."""
    journal, world, state = await ran()
    fork = await journal.fork("run", 1)
    await world.loop(journal, SCRIPT[0], [("pay", {"n": 5})], [("pay", {"n": 6})], "Done.").recover(fork)
    assert world.of(fork) == ["pay 5", "pay 6"]
    second = await journal.fork(fork, 2)
    assert second == "run/fork-1/fork-1"
    turns: tuple[Turn, ...] = (
        SCRIPT[0],
        [("pay", {"n": 5})],
        [("pay", {"n": 6}), ("pay", {"n": 1}), ("pay", {"n": 7})],
    )
    ended = await world.loop(journal, *turns, "Done.").recover(second)
    assert world.of(second) == ["pay 7"]
    assert outcomes(ended, 3)[1] == outcomes(state, 2)[0]


async def test_a_call_of_which_the_original_knows_no_end_is_not_made_again() -> None:
    """It may be under way; nobody knows."""
    journal, world, _ = await ran()
    intents = [n for n, one in enumerate(journal.order, 1) if one.kind is RecordKind.CALL_INTENT]
    left = await journal.crashed_after(intents[1])
    fork = await left.fork("run", 1)
    ended = await world.loop(left).recover(fork)
    assert outcomes(ended, 2)[0][0] is ToolStatus.IN_DOUBT


async def test_calls_that_wait_in_the_original_wait_in_the_fork() -> None:
    """They are calls of the fork: their keys are its own, and the original goes on untouched."""
    journal, world = MemoryJournal(), World()
    loop = world.loop(journal, [("pay", {"n": 1})], "Done.", interceptors=[RequireApproval("pay")])
    state = await loop.execute("go", execution_id="run")
    fork = await journal.fork("run", 1)
    waiting = await loop.recover(fork)
    assert waiting.status is ExecutionStatus.SUSPENDED
    assert [call.key for call in waiting.pending] == [f"{fork}/1/0"]
    ended = await loop.resume(fork, {f"{fork}/1/0": approve()})
    assert ended.status is ExecutionStatus.COMPLETED
    assert world.of(fork) == ["pay 1"]
    assert (await journal.state("run")) == state
    assert (await loop.resume("run", {"run/1/0": approve()})).status is ExecutionStatus.COMPLETED
    assert (await replay(journal, fork, loop)).is_equal


@pytest.mark.parametrize(("effects", "done"), [("reuse", ["pay 9"]), ("simulate", []), ("forbid", [])])
async def test_the_agents_of_a_fork_are_under_its_policy(effects: str, done: list[str]) -> None:
    """They run anew; what they would do to the world is what their caller may."""
    journal, world = MemoryJournal(), World()

    def office(amount: int, task: str) -> AgentLoop:
        child = world.loop(None, [("pay", {"n": 4})], [("pay", {"n": amount})], "Paid.")
        clerk = child.as_tool("clerk", "Pays.")
        model = Model([("look", {"n": 1})], [("clerk", {"task": task})], "Done.")
        return AgentLoop(ToolCallingDriver(model), [*world.tools(), clerk], journal=journal)

    await office(8, "pay").execute("go", execution_id="run")
    assert [one for _, one in world.done] == ["look 1", "pay 4", "pay 8"]
    fork = await journal.fork("run", 1, effects=effects)
    world.done.clear()
    ended = await office(9, "pay it").recover(fork)
    assert [one for _, one in world.done] == done
    called = ended.steps[1].executions[0]
    assert called.status is ToolStatus.SUCCEEDED
    child = await journal.state(f"{fork}/2/0/agent")
    assert child.parent_agent_id == ended.agent_id


async def test_an_agent_that_waits_in_the_original_waits_in_the_fork() -> None:
    """Its own execution is forked with its caller's, and each goes on for itself."""
    journal, world = MemoryJournal(), World()

    def office() -> AgentLoop:
        child = world.loop(None, [("pay", {"n": 4})], "Paid.", interceptors=[RequireApproval("pay")])
        model = Model([("clerk", {"task": "pay"})], "Done.")
        return AgentLoop(ToolCallingDriver(model), [child.as_tool("clerk", "Pays.")], journal=journal)

    state = await office().execute("go", execution_id="run")
    assert state.status is ExecutionStatus.SUSPENDED
    fork = await journal.fork("run", 1)
    waiting = await office().recover(fork)
    key = f"{fork}/1/0/agent/1/0"
    assert [call.key for call in waiting.pending] == [f"{fork}/1/0", key]
    ended = await office().resume(fork, {key: approve()})
    assert ended.status is ExecutionStatus.COMPLETED, ended.explain()
    assert world.done == [(key, "pay 4")]
    assert (await journal.state("run/1/0/agent")).status is ExecutionStatus.SUSPENDED
    again = await office().resume("run", {"run/1/0/agent/1/0": approve()})
    assert again.status is ExecutionStatus.COMPLETED
    assert await journal.verify() == ()


async def test_what_cannot_be_forked_is_refused_by_name() -> None:
    """An unknown execution, a step that is not there, an id that is taken, a policy that is none."""
    journal, _, _ = await ran()
    with pytest.raises(UnknownExecution):
        await journal.fork("other", 1)
    with pytest.raises(JournalError, match="no step 9: 4 are complete"):
        await journal.fork("run", 9)
    with pytest.raises(ValueError, match="maybe"):
        await journal.fork("run", 1, effects="maybe")
    await journal.fork("run", 1, fork_id="mine")
    with pytest.raises(JournalConflict, match="mine"):
        await journal.fork("run", 2, fork_id="mine")


async def test_forks_live_in_a_file_as_well(tmp_path: Path) -> None:
    """What a fork is, and where it comes from, lasts."""
    world = World()
    async with _sqlite(tmp_path) as journal:
        await world.loop(journal).execute("go", execution_id="run")
        fork = await journal.fork("run", 2, effects="simulate")
    async with _sqlite(tmp_path) as journal:
        head = await journal.head(fork)
        assert head is not None
        assert head.forked_from == "run"
        first = parse_json((await journal.read(fork))[0].body)
        assert first["fork"] == {"of": "run", "step": 2, "effects": "simulate"}
        ended = await world.loop(journal, *OTHER).recover(fork)
        assert world.of(fork) == []
        assert ended.status is ExecutionStatus.COMPLETED


def _sqlite(folder: Path) -> aclosing[SqliteJournal]:
    return aclosing(SqliteJournal(folder / "j.db"))
