"""Defects that are put into the package on purpose, to see that the simulation finds them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from unittest.mock import patch

from attrs import evolve, frozen

from agentloop.durable import MemoryJournal, memory_journal
from agentloop.durable.fork_effects import ForkEffects
from agentloop.durable.held_claims import HeldClaims
from agentloop.durable.postgres.connections import StatementFailed
from agentloop.durable.postgres.statements import RecordAppend, Statements
from agentloop.durable.recorder import ExecutionRecorder
from agentloop.durable.sessions import SessionQueue
from agentloop.errors import DatabaseUnavailable
from agentloop.executors.call_layers import OPEN, CallOutcome
from agentloop.executors.journaled_call import JournaledCall
from agentloop.interception.cancellation import CancellationToken
from agentloop.loop.inbox import Inboxes
from agentloop.service.cluster.jobs import JobRunner
from agentloop.service.server.executions import LocalExecutions
from agentloop.service.server.feeds import _Position
from agentloop.service.server.operations import Operations
from agentloop.service.simulation.cluster import ClusterScenario
from agentloop.service.simulation.server import ServerScenario
from agentloop.testing.simulation import postgres_statements
from agentloop.testing.simulation.faults import SimulatedFault, plan_faults
from agentloop.testing.simulation.memory_queue import MemoryQueue
from agentloop.testing.simulation.runs import SimulatedRun, simulate
from agentloop.testing.simulation.scenarios import RecoveryScenario, SimulatedScenario, WorkerTools
from agentloop.testing.simulation.storage import MachinePlace, MachineQueue
from agentloop.testing.simulation.world import SimulatedWorker
from agentloop.tools.decorator import tool
from agentloop.values.jobs import JobState
from agentloop.values.tool_calls import ToolResult, ToolStatus

_MANY = 40


@frozen
class Liar:
    """A defect.

    Attributes:
        scenario: where it is looked for.
        finds: a part of the problem that it causes.
        seeds: within how many seeds it is found.
        parts: what is replaced: an object, a name, and what is there instead.
        kinds: the faults to which a plan of many faults is confined, for a defect that needs one of them at a rare place.
        storage: where records are.
    """

    scenario: str | type[SimulatedScenario]
    finds: str
    seeds: int
    parts: Sequence[tuple[Any, str, Any]]
    kinds: Sequence[SimulatedFault] = ()
    storage: str = "memory"

    def run(self, seed: int) -> SimulatedRun:
        """Run a seed of the scenario."""
        plan = plan_faults(seed, kinds=self.kinds, most=_MANY, gap=60) if self.kinds else None
        return simulate(seed, self.scenario, plan=plan, storage=self.storage)

    @contextmanager
    def lies(self) -> Iterator[None]:
        """Put the defect in while the block runs."""
        with ExitStack() as stack:
            for owner, name, instead in self.parts:
                stack.enter_context(patch.object(owner, name, instead))
            yield


def nothing(*_: Any, **__: Any) -> None:
    """Do nothing where something is to be checked or done."""


def always(*_: Any) -> bool:
    """Say yes."""
    return True


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


# --- in a cluster -------------------------------------------------------------------------------------------------------

_take_now = MemoryQueue.take_now
_startable = MemoryQueue._startable
_enqueue = MachineQueue.enqueue
_run_job = JobRunner._run
_take_messages = Inboxes.take


async def take_twice(self: Any, worker: str, request: str = "") -> Any:
    """Hand out a job that another worker has."""
    for each in self._jobs.values():
        if each.state is JobState.RUNNING and each.worker != worker:
            each.state = JobState.WAITING
    return await _take_now(self, worker, request)


async def put_nothing_back(self: Any, worker: str, jobs: Any) -> int:
    """Leave jobs with the worker that puts them back."""
    return len(jobs)


async def hand_nothing_over(self: Any, until_idle: Any, *, grace: float) -> int:
    """Drain a worker without putting back what it has."""
    await self.close()
    return 0


def hold_all(self: Any, _: str, job: Any) -> Any:
    """Believe every worker what it says about a job."""
    found = self._jobs.get((job.kind, job.id))
    return found if found is not None and not found.state.is_terminal else None


def newest_first(self: Any, worker: str) -> Any:
    """Let the newest job start first."""
    return iter(list(_startable(self, worker))[-1:])


def ask_anew(self: Any) -> str:
    """Give each request of a `take` a name of its own, so that one whose answer was lost is not asked again."""
    self._requests += 1
    return f"{self._note.name}/{self._requests}"


async def enqueue_hopefully(self: Any, job: Any) -> None:
    """Say that a job is queued although the server could not be reached."""
    with suppress(DatabaseUnavailable):
        await _enqueue(self, job)


async def end_interrupted(self: Any, job: Any) -> None:
    """End a job whose run was interrupted."""
    try:
        await _run_job(self, job)
    except asyncio.CancelledError:
        await asyncio.shield(self._place.end(job))
        raise


def take_messages_twice(self: Any, execution_id: str) -> Any:
    """Let a step receive each message two times."""
    messages = _take_messages(self, execution_id)
    return [*messages, *messages]


def leave_jobs(self: Any, worker: str) -> None:
    """End the place of a worker, and leave its jobs with it."""
    self._places.pop(worker, None)


# --- in a server --------------------------------------------------------------------------------------------------------

_new_id = Operations._new_id
_position = _Position.__init__


def forget_key(self: Any, principal: Any, name: Any, key: str) -> str:
    """Ignore the idempotency key."""
    return _new_id(self, principal, name, "")


def begin_anew(self: Any, after: int, delta_count: int, written: Any) -> None:
    """Send a client that comes back all events again."""
    _position(self, 0, delta_count, written)


def skip_one(self: Any, after: int, delta_count: int, written: Any) -> None:
    """Leave out an event when a client comes back."""
    _position(self, after + 2 if after else 0, delta_count, written)


async def send_nothing(self: Any, *_: Any) -> None:
    """Accept a message, and forget it."""


async def recover_nothing(self: Any) -> None:
    """Leave the executions of a server that has died."""


# --- with PostgreSQL ----------------------------------------------------------------------------------------------------

_store = RecordAppend._store


async def take_undone_for_stored(self: Any, connection: Any) -> bool:
    """Take a transaction that the server has undone for one that it has stored."""
    try:
        return await _store(self, connection)
    except StatementFailed as failure:
        if failure.is_transient:
            return True
        raise


async def read_root_alone(self: Any, connection: Any, execution_id: str) -> Any:
    """Delete an execution without those below it."""
    return (execution_id,) if await self.read_root(connection, execution_id) == execution_id else ()


def is_released(_: Any, session: int | None) -> bool:
    """Take over only what was released, and nothing of the dead."""
    return session is None


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
    "cluster: double take": Liar(ClusterScenario, "and", 40, [(MemoryQueue, "take_now", take_twice)]),
    "cluster: lost put-back": Liar(ClusterScenario, "", 40, [(MemoryQueue, "put_back", put_nothing_back)]),
    "cluster: no hand-over": Liar(ClusterScenario, "kept the jobs", 40, [(JobRunner, "hand_over", hand_nothing_over)]),
    "cluster: deaf cancellation": Liar(ClusterScenario, "told to stop", 40, [(CancellationToken, "cancel", nothing)]),
    "cluster: lost tail": Liar(ClusterScenario, "", 40, [(MemoryJournal, "append_using", lose_tail)]),
    "cluster: message taken twice": Liar(ClusterScenario, "", 40, [(Inboxes, "take", take_messages_twice)]),
    "cluster: late word": Liar(ClusterScenario, "", 40, [(MemoryQueue, "_held", hold_all)]),
    "cluster: newest first": Liar(ClusterScenario, "started before", 40, [(MemoryQueue, "_startable", newest_first)]),
    "cluster: no limit": Liar(ClusterScenario, "of the queue narrow", 40, [(MemoryQueue, "_has_room", always)]),
    "cluster: lost answer": Liar(
        ClusterScenario,
        "kept the jobs",
        40,
        [(MachinePlace, "_request", property(ask_anew))],
        [SimulatedFault.UNANSWERED],
    ),
    "cluster: lost job": Liar(
        ClusterScenario, "", 40, [(MachineQueue, "enqueue", enqueue_hopefully)], [SimulatedFault.REFUSE]
    ),
    "cluster: interruption as end": Liar(ClusterScenario, "", 40, [(JobRunner, "_run", end_interrupted)]),
    "cluster: work of the dead": Liar(ClusterScenario, "", 40, [(MemoryQueue, "bury", leave_jobs)]),
    "server: forgotten key": Liar(ServerScenario, "one request has started", 40, [(Operations, "_new_id", forget_key)]),
    "server: doubled events": Liar(ServerScenario, "came behind", 40, [(_Position, "__init__", begin_anew)]),
    "server: lost events": Liar(ServerScenario, "never came", 40, [(_Position, "__init__", skip_one)]),
    "server: lost message": Liar(ServerScenario, "was accepted", 40, [(LocalExecutions, "send", send_nothing)]),
    "server: no recovery": Liar(
        ServerScenario, "does not end", 40, [(LocalExecutions, "_recover_all", recover_nothing)]
    ),
    "postgres: undone, and taken for stored": Liar(
        "recovery", "", 40, [(RecordAppend, "_store", take_undone_for_stored)], storage="postgres"
    ),
    "postgres: orphans": Liar(
        "deletion", "is left", 40, [(Statements, "read_tree", read_root_alone)], storage="postgres"
    ),
    "postgres: claims of the dead": Liar(
        "recovery", "does not end", 40, [(postgres_statements, "_is_free", is_released)], storage="postgres"
    ),
    "server: deaf stop": Liar(ServerScenario, "", 40, [(CancellationToken, "cancel", nothing)]),
}
"""The defects, by name."""
