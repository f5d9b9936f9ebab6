"""Defects that are put into the package on purpose, to see that the simulation finds them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from attrs import evolve, frozen

from agentloop.durable import MemoryJournal, memory_journal
from agentloop.durable.fork_effects import ForkEffects
from agentloop.durable.held_claims import HeldClaims
from agentloop.durable.recorder import ExecutionRecorder
from agentloop.durable.sessions import SessionQueue
from agentloop.executors.call_layers import OPEN, CallOutcome
from agentloop.executors.journaled_call import JournaledCall
from agentloop.testing.simulation.scenarios import RecoveryScenario, WorkerTools
from agentloop.testing.simulation.world import SimulatedWorker
from agentloop.tools.decorator import tool
from agentloop.values.tool_calls import ToolResult, ToolStatus

Replace = Callable[..., Any]


@frozen
class Liar:
    """A defect.

    Attributes:
        scenario: where it is looked for.
        finds: a part of the problem that it causes.
        seeds: within how many seeds it is found.
        parts: what is replaced: an object, a name, and what is there instead.
    """

    scenario: str
    finds: str
    seeds: int
    parts: Sequence[tuple[Any, str, Replace]]

    @contextmanager
    def lies(self) -> Iterator[None]:
        """Put the defect in while the block runs."""
        with ExitStack() as stack:
            for owner, name, instead in self.parts:
                stack.enter_context(patch.object(owner, name, instead))
            yield


def nothing(*_: Any, **__: Any) -> None:
    """Do nothing where something is to be checked or done."""


def never(*_: Any) -> bool:
    """Say no."""
    return False


_append = MemoryJournal.append_using
_answer = ForkEffects.answer
_work = RecoveryScenario.work
_tools = WorkerTools.all
_first_state = SessionQueue.first_state
_record_decisions = ExecutionRecorder.record_decisions


async def lose_tail(self: Any, head: Any, records: Any, claim: Any, uses: Any) -> None:
    """Store all but the last record of a larger group."""
    if len(records) > 2:
        records = records[:-1]
        head = evolve(head, record_count=records[-1].sequence, last_hash=records[-1].hash)
    await _append(self, head, records, claim, uses)


async def begin_at_once(self: Any, key: str) -> None:
    """Let the tool run before its intent is durable."""
    self._put_intent(key)


async def repeat(self: Any, *_: Any) -> None:
    """Run an interrupted call again, whatever its effect."""
    await self._repeat("")


async def believe(self: Any, recorded: Any, _why: str) -> None:
    """Tell of success where nobody knows."""
    done = self._call.execution(OPEN, ToolStatus.SUCCEEDED, self._now(), result=ToolResult("done"))
    self._outcome = CallOutcome(execution=done, started_at=recorded.intent.at, may_have_run=True)
    self._note_start()


def forget_decisions(self: Any, *_: Any) -> None:
    """Record no decision."""
    self._decisions = []


def bind_wrongly(self: Any, decisions: Mapping[str, Any], pending: Any) -> None:
    """Bind decisions to another suspension."""
    _record_decisions(self, decisions, pending)
    self._decisions = [{**each, "digest": "0"} for each in self._decisions]


def reuse_again(self: Any, intent: Any, *, delegates: bool) -> Any:
    """Keep an outcome that was reused."""
    before = list(self.outcomes)
    answer = _answer(self, intent, delegates=delegates)
    self.outcomes = before
    return answer


async def go_on(self: Any, worker: SimulatedWorker) -> None:
    """Hear no cancellation."""
    task = asyncio.ensure_future(_work(self, worker))
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.sleep(300)


async def begin_with_both(self: Any, command: Any, loop: Any) -> Any:
    """Add the message of a turn to the conversation twice."""
    return (await _first_state(self, command, loop)).with_message(command.message)


def repeatable(self: WorkerTools) -> Any:
    """Declare the tool that pays as repeatable."""
    return [tool(effect="idempotent")(self.pay), *_tools(self)[1:]]


async def delete_alone(self: Any, execution_id: str) -> bool:
    """Delete an execution without those of its agents."""
    if execution_id in self._claims:
        return False
    return bool(self._delete(execution_id))


LIARS: Mapping[str, Liar] = {
    "fencing": Liar("recovery", "", 40, [(HeldClaims, "check", nothing), (memory_journal, "check_follows", nothing)]),
    "claim": Liar(
        "recovery",
        "",
        40,
        [
            (HeldClaims, "__contains__", never),
            (HeldClaims, "check", nothing),
            (memory_journal, "check_follows", nothing),
        ],
    ),
    "lost tail": Liar("recovery", "", 10, [(MemoryJournal, "append_using", lose_tail)]),
    "intent order": Liar("recovery", "had its effect", 60, [(ExecutionRecorder, "begin_call", begin_at_once)]),
    "repeated effect": Liar("recovery", "were permitted", 60, [(JournaledCall, "_reconcile", repeat)]),
    "invented outcome": Liar("recovery", "never had its effect", 60, [(JournaledCall, "_leave_in_doubt", believe)]),
    "wrong declaration": Liar("recovery", "were permitted", 60, [(WorkerTools, "all", repeatable)]),
    "lost decision": Liar(
        "approvals", "without a decision", 20, [(ExecutionRecorder, "record_decisions", forget_decisions)]
    ),
    "unbound decision": Liar(
        "approvals", "another suspension", 20, [(ExecutionRecorder, "record_decisions", bind_wrongly)]
    ),
    "deaf cancellation": Liar("recovery", "although it was cancelled", 40, [(RecoveryScenario, "work", go_on)]),
    "kept claims": Liar("recovery", "does not end", 20, [(HeldClaims, "remove", never)]),
    "orphans": Liar("deletion", "", 40, [(MemoryJournal, "delete", delete_alone)]),
    "second reuse": Liar("forks", "", 20, [(ForkEffects, "answer", reuse_again)]),
    "no reuse": Liar("forks", "repeats an effect", 10, [(ForkEffects, "answer", nothing)]),
    "doubled message": Liar("sessions", "the conversation has", 10, [(SessionQueue, "first_state", begin_with_both)]),
}
"""The defects, by name."""
