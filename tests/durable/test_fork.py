"""Forks: executions that start from a step of another one, with a policy for effects."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from agentloop import AgentLoop, ToolCallingDriver, ToolContext, tool
from agentloop.durable import MemoryJournal, SqliteJournal, replay
from agentloop.durable.fork_effects import ForkPolicy
from agentloop.errors import JournalConflict, JournalError, UnknownExecution
from agentloop.interception import RequireApproval, at
from agentloop.models import RunProgram
from agentloop.policies import Budget, Guardrails
from agentloop.testing import CrashableJournal
from agentloop.testing.journal_bench import append_claimed
from agentloop.values import AgentState, Effect, ExecutionStatus, RecordKind, ToolStatus, approve
from agentloop.values.decisions import CallSuspended
from agentloop.values.json import parse_json
from tests.durable.recovery_bench import Model, Turn

SCRIPT: tuple[Turn, ...] = (
    [("look", {"n": 1})],
    [("pay", {"n": 1})],
    [("pay", {"n": 2}), ("pay", {"n": 2}), ("put", {"n": 1}), ("look", {"n": 2})],
    "Done.",
)
OTHER: tuple[Turn, ...] = (*SCRIPT[:2], [("pay", {"n": 2}), ("pay", {"n": 9}), ("put", {"n": 1})], "Otherwise.")


class World:
    """The effects of tools.

    Attributes:
        effects: the keys of the calls, with what each did, in order.
    """

    def __init__(self) -> None:
        self.effects: list[tuple[str, str]] = []

    def tools(self) -> list[Any]:
        """Return a pure tool, an idempotent tool and a tool with an effect."""

        @tool(effect=Effect.PURE)
        async def look(n: int, context: ToolContext) -> str:
            """Look."""
            self.effects.append((context.idempotency_key, f"look {n}"))
            return f"saw {n}"

        @tool(effect=Effect.IDEMPOTENT)
        async def put(n: int, context: ToolContext) -> str:
            """Put."""
            self.effects.append((context.idempotency_key, f"put {n}"))
            return f"put {n}"

        @tool(repeatable=True)
        async def pay(n: int, context: ToolContext) -> str:
            """Pay."""
            self.effects.append((context.idempotency_key, f"pay {n}"))
            return f"receipt {len(self.effects)}"

        return [look, put, pay]

    def loop(self, journal: Any, *turns: Turn, **parts: Any) -> AgentLoop:
        """Return a loop whose model follows a script."""
        return AgentLoop(ToolCallingDriver(Model(*(turns or SCRIPT))), self.tools(), journal=journal, **parts)

    def effects_of(self, execution_id: str) -> list[str]:
        """Return the effects of an execution."""
        return [effect for key, effect in self.effects if key.rsplit("/", 2)[0] == execution_id]


def outcomes(state: AgentState, step: int) -> Sequence[tuple[ToolStatus, Any]]:
    """Return the outcomes of the calls of a step."""
    return [(execution.status, execution.value) for execution in state.steps[step - 1].executions]


async def record_source(*turns: Turn) -> tuple[CrashableJournal, World, AgentState]:
    """Record an execution with the id `run`."""
    journal, world = CrashableJournal(), World()
    return journal, world, await world.loop(journal, *turns).execute("go", execution_id="run")


async def test_a_fork_starts_with_the_state_after_the_step() -> None:
    """The fork is an execution of its own agent, and its source is not changed."""
    journal, world, state = await record_source()
    before = await journal.read("run")
    fork = await journal.fork("run", 2)
    assert fork == "run/fork-1"
    initial = await journal.state(fork)
    source = await journal.state("run", 2)
    assert initial.messages == source.messages
    assert (initial.execution_id, initial.status, initial.step_count) == (fork, ExecutionStatus.IN_PROGRESS, 2)
    assert initial.agent_id != state.agent_id
    head = await journal.head(fork)
    assert head is not None
    assert (head.forked_from, head.input) == ("run", "go")
    ended = await world.loop(journal, *OTHER).recover(fork)
    assert ended.final_text == "Otherwise."
    assert [step.number for step in ended.steps] == [1, 2, 3, 4]
    assert await journal.read("run") == before
    assert await journal.verify() == ()
    assert await journal.state(fork) == ended


async def test_a_decision_that_an_input_requires_is_required_in_the_fork() -> None:
    """The guardrail holds for the rest of the execution, whichever of its steps the fork begins with."""
    journal, world = CrashableJournal(), World()
    guard = Guardrails(input=[lambda _: ["it is suspicious"]], on_input="ask")
    await world.loop(journal, interceptors=[guard]).execute("go", execution_id="run")
    fork = await journal.fork("run", 1)
    state = await world.loop(journal, *SCRIPT, interceptors=[guard]).recover(fork)
    assert [(call.call.name, call.reason) for call in state.pending] == [("pay", "guardrail: it is suspicious")]
    assert world.effects_of(fork) == []


async def test_what_was_used_and_changed_before_the_fork_counts_in_it() -> None:
    """The steps of agents count for its budget, and changes stay in the account."""
    journal = CrashableJournal()

    def loop_of(task: str) -> AgentLoop:
        agent = AgentLoop(ToolCallingDriver(Model([("look", {"n": 1})], "Seen.")), World().tools())
        tools = [agent.as_tool("agent", "Looks.", budget_share=1.0)]
        layers = [
            Budget(steps=6, wrap_up=0),
            at("after_step", lambda point: point.with_state(point.state.with_metadata(steps=point.state.step_count))),
        ]
        driver = ToolCallingDriver(Model(*[[("agent", {"task": f"{task} {number}"})] for number in range(4)]))
        return AgentLoop(driver, tools, interceptors=layers, journal=journal, provenance="values")

    source = await loop_of("look").execute("go", execution_id="run")
    fork = await journal.fork("run", 1)
    state = await loop_of("look elsewhere").recover(fork)
    assert (state.step_count, state.stop_signal) == (source.step_count, source.stop_signal)
    assert len(state.interceptor_writes) == len(source.interceptor_writes) > state.step_count


async def test_reuse_takes_each_recorded_outcome_once_and_runs_other_calls() -> None:
    """Payments that the source made after the step are reused; other payments run."""
    journal, world, state = await record_source()
    assert world.effects_of("run") == ["look 1", "pay 1", "pay 2", "pay 2", "put 1", "look 2"]
    fork = await journal.fork("run", 2)
    ended = await world.loop(journal, *OTHER).recover(fork)
    assert world.effects_of(fork) == ["pay 9"]
    assert outcomes(ended, 3)[0] == outcomes(state, 3)[0]
    assert outcomes(ended, 3)[2] == outcomes(state, 3)[2]


async def test_equal_calls_reuse_different_outcomes_in_order() -> None:
    """Two equal payments reuse two receipts; a third one runs."""
    journal, world, state = await record_source()
    thrice: Turn = [("pay", {"n": 2})] * 3
    fork = await journal.fork("run", 2)
    ended = await world.loop(journal, *SCRIPT[:2], thrice, "Done.").recover(fork)
    assert outcomes(ended, 3)[:2] == outcomes(state, 3)[:2]
    assert world.effects_of(fork) == ["pay 2"]


async def test_outcomes_before_the_step_are_not_reused() -> None:
    """A payment that equals one from before the step runs."""
    journal, world, _ = await record_source()
    fork = await journal.fork("run", 2)
    await world.loop(journal, *SCRIPT[:2], [("pay", {"n": 1})], "Done.").recover(fork)
    assert world.effects_of(fork) == ["pay 1"]


async def test_simulate_runs_no_call_with_an_effect() -> None:
    """A call has the recorded outcome of an equal call, or else one that says it was simulated."""
    journal, world, state = await record_source()
    fork = await journal.fork("run", 2, effects="simulate")
    ended = await world.loop(journal, *OTHER).recover(fork)
    assert world.effects_of(fork) == []
    first, second, third = outcomes(ended, 3)
    assert first == outcomes(state, 3)[0]
    assert third == (ToolStatus.SUCCEEDED, "put 1")
    assert second[0] is ToolStatus.SUCCEEDED
    assert "was not run" in str(second[1])


async def test_forbid_blocks_calls_with_an_effect() -> None:
    """Calls with an effect are blocked with an error for the model; pure calls run."""
    journal, world, _ = await record_source()
    fork = await journal.fork("run", 0, effects=ForkPolicy.FORBID)
    ended = await world.loop(journal).recover(fork)
    assert world.effects_of(fork) == ["look 1", "look 2"]
    assert [status for status, _ in outcomes(ended, 3)][:3] == [ToolStatus.BLOCKED] * 3
    assert "may not have effects" in ended.steps[1].executions[0].error_message


@pytest.mark.parametrize("effects", list(ForkPolicy))
async def test_an_interrupted_fork_keeps_its_policy(effects: ForkPolicy) -> None:
    """After a crash at any record, no outcome is reused twice and no effect happens twice."""
    journal, world, _ = await record_source()
    fork = await journal.fork("run", 2, effects=effects)
    first = len(journal.appended)
    expected = await world.loop(journal, *OTHER).recover(fork)
    effects_of_fork = world.effects_of(fork)
    for count in range(first, len(journal.appended)):
        left = await journal.after_crash(count)
        again = World()
        ended = await again.loop(left, *OTHER).recover(fork)
        assert [status for status, _ in outcomes(ended, 3)] in (
            [status for status, _ in outcomes(expected, 3)],
            [ToolStatus.SUCCEEDED, ToolStatus.IN_DOUBT, ToolStatus.SUCCEEDED],  # the fork's own payment
        )
        assert set(again.effects_of(fork)) <= set(effects_of_fork)


async def test_a_fork_of_a_fork_reuses_outcomes_of_both() -> None:
    """It reuses outcomes of the fork after the step, and those of the source that the fork did not reuse."""
    journal, world, state = await record_source()
    fork = await journal.fork("run", 1)
    await world.loop(journal, SCRIPT[0], [("pay", {"n": 5})], [("pay", {"n": 6})], "Done.").recover(fork)
    assert world.effects_of(fork) == ["pay 5", "pay 6"]
    second = await journal.fork(fork, 2)
    assert second == "run/fork-1/fork-1"
    turns: tuple[Turn, ...] = (
        SCRIPT[0],
        [("pay", {"n": 5})],
        [("pay", {"n": 6}), ("pay", {"n": 1}), ("pay", {"n": 7})],
    )
    ended = await world.loop(journal, *turns, "Done.").recover(second)
    assert world.effects_of(second) == ["pay 7"]
    assert outcomes(ended, 3)[1] == outcomes(state, 2)[0]


async def test_a_call_without_a_recorded_outcome_is_in_doubt() -> None:
    """A call that the source started and that may be running does not run in the fork."""
    journal, world, _ = await record_source()
    intents = [n for n, record in enumerate(journal.appended, 1) if record.kind is RecordKind.CALL_INTENT]
    left = await journal.after_crash(intents[1])
    fork = await left.fork("run", 1)
    ended = await world.loop(left).recover(fork)
    assert outcomes(ended, 2)[0][0] is ToolStatus.IN_DOUBT


async def test_pending_calls_of_the_source_are_pending_in_the_fork() -> None:
    """They have keys of the fork, and the source can be resumed as before."""
    journal, world = MemoryJournal(), World()
    loop = world.loop(journal, [("pay", {"n": 1})], "Done.", interceptors=[RequireApproval("pay")])
    state = await loop.execute("go", execution_id="run")
    fork = await journal.fork("run", 1)
    waiting = await loop.recover(fork)
    assert waiting.status is ExecutionStatus.SUSPENDED
    assert [call.key for call in waiting.pending] == [f"{fork}/1/0"]
    ended = await loop.resume(fork, {f"{fork}/1/0": approve()})
    assert ended.status is ExecutionStatus.COMPLETED
    assert world.effects_of(fork) == ["pay 1"]
    assert (await journal.state("run")) == state
    assert (await loop.resume("run", {"run/1/0": approve()})).status is ExecutionStatus.COMPLETED
    assert (await replay(journal, fork, loop)).is_equal


async def test_a_fork_that_waits_in_a_later_step_has_the_steps_before_it() -> None:
    """The calls that wait are those of the last step, and the earlier ones are as they were."""
    journal, world = MemoryJournal(), World()
    loop = world.loop(
        journal, [("look", {"n": 1})], [("pay", {"n": 1})], "Done.", interceptors=[RequireApproval("pay")]
    )
    state = await loop.execute("go", execution_id="run")
    fork = await journal.fork("run", 2)
    waiting = await loop.recover(fork)
    assert [step.number for step in waiting.steps] == [1, 2]
    assert waiting.steps[0] == state.steps[0]
    assert [call.key for call in waiting.pending] == [f"{fork}/2/0"]
    ended = await loop.resume(fork, {f"{fork}/2/0": approve()})
    assert ended.status is ExecutionStatus.COMPLETED
    assert world.effects_of(fork) == ["pay 1"]


@pytest.mark.parametrize(("effects", "expected"), [("reuse", ["pay 9"]), ("simulate", []), ("forbid", [])])
async def test_the_policy_applies_to_agents_of_the_fork(effects: str, expected: list[str]) -> None:
    """An agent that serves a call of the fork runs again under the policy of the fork."""
    journal, world = MemoryJournal(), World()

    def office(amount: int, task: str) -> AgentLoop:
        child = world.loop(None, [("pay", {"n": 4})], [("pay", {"n": amount})], "Paid.")
        clerk = child.as_tool("clerk", "Pays.")
        model = Model([("look", {"n": 1})], [("clerk", {"task": task})], "Done.")
        return AgentLoop(ToolCallingDriver(model), [*world.tools(), clerk], journal=journal)

    await office(8, "pay").execute("go", execution_id="run")
    assert [effect for _, effect in world.effects] == ["look 1", "pay 4", "pay 8"]
    fork = await journal.fork("run", 1, effects=effects)
    world.effects.clear()
    ended = await office(9, "pay it").recover(fork)
    assert [effect for _, effect in world.effects] == expected
    called = ended.steps[1].executions[0]
    assert called.status is ToolStatus.SUCCEEDED
    child = await journal.state(f"{fork}/2/0/agent")
    assert child.parent_agent_id == ended.agent_id


async def test_a_suspended_agent_of_the_source_is_suspended_in_the_fork() -> None:
    """The execution of the agent is forked with that of its caller, and both can be resumed independently."""
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
    assert world.effects == [(key, "pay 4")]
    assert (await journal.state("run/1/0/agent")).status is ExecutionStatus.SUSPENDED
    again = await office().resume("run", {"run/1/0/agent/1/0": approve()})
    assert again.status is ExecutionStatus.COMPLETED
    assert await journal.verify() == ()


async def test_the_progress_of_a_suspended_tool_is_known_in_the_fork() -> None:
    """A call that its tool suspended goes on in the fork from what the tool has stored."""
    journal = MemoryJournal()

    @tool
    async def order(context: ToolContext) -> str:
        """Order."""
        if context.resumed is None:
            raise CallSuspended("the shop is closed", progress={"tried": 1})
        return f"tried {context.resumed.progress}"

    loop = AgentLoop(ToolCallingDriver(Model([("order", {})], "Done.")), [order], journal=journal)
    await loop.execute("go", execution_id="run")
    fork = await journal.fork("run", 1)
    waiting = await loop.recover(fork)
    ended = await loop.resume(fork, {f"{fork}/1/0": approve(waiting.pending[0].digest)})
    assert outcomes(ended, 1) == [(ToolStatus.SUCCEEDED, "tried {'tried': 1}")]


PROGRAM = """
import asyncio
first = await put(n=1)
both = await asyncio.gather(put(n=2), pay(n=3))
[first, both, await clerk(task="pay"), await put(n=4)]
"""


def program_office(journal: MemoryJournal, world: World) -> AgentLoop:
    """Return a loop that runs a program, which pays and calls an agent that pays; each payment needs an approval."""
    approval = RequireApproval("pay")
    clerk = world.loop(None, [("pay", {"n": 5})], "Paid.", interceptors=[approval]).as_tool("clerk", "Pays.")
    driver = ToolCallingDriver(Model([("run_program", {"code": PROGRAM})], "Done."))
    return AgentLoop(driver, [*world.tools(), clerk, RunProgram()], journal=journal, interceptors=[approval])


async def approve_next(loop: AgentLoop, state: AgentState) -> AgentState:
    """Approve the calls that wait."""
    decisions = {call.key: approve(call.digest) for call in state.pending if not call.waits_for}
    return await loop.resume(state.execution_id, decisions)


async def test_a_suspended_program_of_the_source_is_suspended_in_the_fork() -> None:
    """Its settled calls are not made again, those that wait are made under the keys of the fork, and agents that it called are forked."""
    journal, world = MemoryJournal(), World()
    loop = program_office(journal, world)
    waiting = await loop.execute("go", execution_id="run")
    fork = await journal.fork("run", 1)
    world.effects.clear()
    called = await approve_next(loop, await loop.recover(fork))
    assert world.effects == [(f"{fork}/1/0/program/2", "pay 3")]
    agent = f"{fork}/1/0/program/3/agent"
    assert [call.key for call in called.pending] == [f"{fork}/1/0", f"{fork}/1/0/program/3", f"{agent}/1/0"]
    second = await journal.fork(fork, 1)
    world.effects.clear()
    for each in (second, fork):
        ended = await approve_next(loop, await loop.recover(each))
        assert ended.status is ExecutionStatus.COMPLETED, ended.explain()
        assert [inner.status for inner in ended.steps[0].executions[0].inner] == [ToolStatus.SUCCEEDED] * 5
        place = f"{each}/1/0/program"
        assert world.effects == [(f"{place}/3/agent/1/0", "pay 5"), (f"{place}/4", "put 4")]
        world.effects.clear()
        assert (await replay(journal, each, loop)).is_equal
    assert await journal.state("run") == waiting
    assert await journal.verify() == ()


async def test_a_fork_that_reuses_the_outcome_of_a_program_can_be_replayed() -> None:
    """The program did not run in the fork, and does not run in the replay."""
    journal, world = MemoryJournal(), World()
    loop = program_office(journal, world)
    state = await approve_next(loop, await loop.execute("go", execution_id="run"))
    await approve_next(loop, state)
    fork = await journal.fork("run", 0)
    world.effects.clear()
    assert (await loop.recover(fork)).status is ExecutionStatus.COMPLETED
    result = await replay(journal, fork, loop)
    assert result.is_equal, result.explain()
    assert world.effects == []


@pytest.mark.parametrize("missing", ["run", "run/2/0/agent"])
async def test_a_fork_does_not_run_without_the_records_that_it_reuses(missing: str) -> None:
    """Without those of its source, or of an agent that served a call of it, calls would be made again."""
    journal, partial_copy, world = MemoryJournal(), MemoryJournal(), World()

    def office(amount: int, journal: MemoryJournal) -> AgentLoop:
        clerk = world.loop(None, [("pay", {"n": amount})], "Paid.").as_tool("clerk", "Pays.")
        model = Model([("look", {"n": 1})], [("clerk", {"task": "pay"})], "Done.")
        return AgentLoop(ToolCallingDriver(model), [*world.tools(), clerk], journal=journal)

    await office(8, journal).execute("go", execution_id="run")
    fork = await journal.fork("run", 1)
    for head in await journal.list():
        if head.execution_id != missing:
            await append_claimed(partial_copy, head, await journal.read(head.execution_id))
    world.effects.clear()
    with pytest.raises(UnknownExecution, match=f"reuses the effects of execution '{missing}'"):
        await office(8, partial_copy).recover(fork)
    assert not world.effects


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_forks_at_the_same_time_get_ids_of_their_own(tmp_path: Path, kind: str) -> None:
    """None of them is refused because another one has taken the next free number."""
    async with aclosing(MemoryJournal() if kind == "memory" else SqliteJournal(tmp_path / "j.db")) as journal:
        await World().loop(journal, "Done.").execute("go", execution_id="run")
        forks = await asyncio.gather(*[journal.fork("run", 0) for _ in range(4)])
        assert len(set(forks)) == 4
        assert {head.execution_id for head in await journal.list()} == {"run", *forks}


async def test_a_fork_follows_one_that_was_interrupted() -> None:
    """The agents of a fork that has no record of its own do not keep others from being made."""
    journal, world = CrashableJournal(), World()
    clerk = world.loop(None, [("pay", {"n": 4})], "Paid.", interceptors=[RequireApproval("pay")])
    office = AgentLoop(
        ToolCallingDriver(Model([("clerk", {"task": "pay"})], "Done.")),
        [clerk.as_tool("clerk", "Pays.")],
        journal=journal,
    )
    await office.execute("go", execution_id="run")
    interrupted = await journal.fork("run", 1)
    left = await journal.after_crash(len(journal.appended) - 1)
    assert await left.head(interrupted) is None
    assert await left.head(f"{interrupted}/1/0/agent") is not None
    fork = await left.fork("run", 1)
    assert fork != interrupted
    assert (await office.replace(journal=left).recover(fork)).status is ExecutionStatus.SUSPENDED


async def test_invalid_forks_are_refused() -> None:
    """An unknown execution, a missing step, a used id and an unknown policy raise errors that name them."""
    journal, _, _ = await record_source()
    with pytest.raises(UnknownExecution):
        await journal.fork("other", 1)
    with pytest.raises(JournalError, match="no step 9: 4 steps are complete"):
        await journal.fork("run", 9)
    with pytest.raises(ValueError, match="maybe"):
        await journal.fork("run", 1, effects="maybe")
    await journal.fork("run", 1, fork_id="mine")
    with pytest.raises(JournalConflict, match="mine"):
        await journal.fork("run", 2, fork_id="mine")


async def test_a_fork_can_be_recovered_from_a_file(tmp_path: Path) -> None:
    """The source and the policy of a fork are stored."""
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
        assert world.effects_of(fork) == []
        assert ended.status is ExecutionStatus.COMPLETED


def _sqlite(folder: Path) -> aclosing[SqliteJournal]:
    return aclosing(SqliteJournal(folder / "j.db"))
