"""The world of a simulation: machines, the storage that they share, what goes wrong, and a ledger of what tools really did."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random as random_module
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TypeVar
from unittest.mock import patch

from attrs import define, field

from agentloop.contracts.can_journal import Claim
from agentloop.contracts.tool import ToolContext
from agentloop.durable.journal import Journal
from agentloop.durable.memory_journal import MemoryJournal
from agentloop.durable.postgres.postgres_journal import PostgresJournal
from agentloop.durable.sqlite.sqlite_journal import SqliteJournal
from agentloop.errors import JournalError, ProviderUnavailable
from agentloop.testing.simulation.event_loop import Machine, MachineClock, SeededIds, SimulatedLoop
from agentloop.testing.simulation.faults import PlannedFault, SimulatedFault
from agentloop.testing.simulation.postgres_network import SimulatedConnector
from agentloop.testing.simulation.postgres_server import Backend, SimulatedPostgres
from agentloop.testing.simulation.postgres_statements import function_of
from agentloop.testing.simulation.storage import MachineClaim, MachineJournal, run_now


@define(eq=False)
class EffectLedger:
    """What tools really did, whatever anybody has recorded of it.

    Attributes:
        effects: how often the call of a key had its effect.
        names: the name of the tool of each of these calls.
    """

    effects: Counter[str] = field(factory=Counter)
    names: dict[str, str] = field(factory=dict)
    _forgotten: dict[str, int] = field(factory=dict)

    def note(self, name: str, key: str, token: int | None) -> None:
        """Note an effect, unless it is one of a process that goes on with an execution which was deleted.

        Args:
            name: the name of the tool.
            key: the key of the call.
            token: the token of the claim under which it runs.
        """
        if token is not None and any(
            key.startswith(start) and token <= last for start, last in self._forgotten.items()
        ):
            return
        self.effects[key] += 1
        self.names[key] = name

    def forget(self, execution_id: str, token: int) -> None:
        """Forget the calls of an execution that is deleted now: another one of its id starts anew.

        Args:
            execution_id: the execution.
            token: the latest token of a claim; that of the other one is larger.
        """
        start = f"{execution_id}/"
        self._forgotten[start] = token
        for key in [key for key in self.effects if key.startswith(start)]:
            del self.effects[key]


T = TypeVar("T")

_WORST_CANCELLATION = 120.0
"""After how many seconds a cancelled task counts as deaf."""
_EXPIRIES = (0.1, 3.0, 20.0, 45.0)
"""After how many seconds the storage may give up the claims of a machine that it cannot reach."""
_QUIET = frozenset({"journal.read", "journal.session", "journal.connect", "queue.read", "queue.take", "queue.look"})
"""The places whose requests are not in the log."""
_READING = frozenset({"journal.read", "journal.session", "journal.connect", "journal.notify"})
"""The places where a transaction has nothing that a concurrent one could be in the way of."""
_LONGEST_RESTART = 20.0
_ARMED = frozenset(
    {
        SimulatedFault.REFUSE,
        SimulatedFault.UNANSWERED,
        SimulatedFault.SLOW,
        SimulatedFault.MODEL,
        SimulatedFault.TOOL,
        SimulatedFault.UNDO,
    }
)
"""The faults that occur at the next request or call of their kind."""


class SimulatedWorld:
    """What a simulation consists of.

    Args:
        seed: decides about everything.
        plan: what goes wrong.
        storage: `memory`, a journal on a server behind a network; `sqlite`, one file that processes of one computer share; or
            `postgres`, a simulated PostgreSQL server.

    Attributes:
        seed: the seed.
        random: makes the choices of tools, models and people.
        loop: the event loop.
        ledger: what tools really did.
        hits: how often each fault occurred, by kind and place.
        log: what has happened, one line for each event.
        problems: what is wrong.
        workers: the machines that ever ran.
        expiries: how many claims ended while their machine ran.
        cancelled: the tasks that were cancelled a short time ago, each with its machine.
        is_over: whether the run has ended.
        server: the PostgreSQL server; without any tables in use where the storage is another one.
        latest_token: the largest token of a claim that a machine has got, unless a PostgreSQL server gave it.
    """

    def __init__(self, seed: int, plan: Sequence[PlannedFault], *, storage: str = "memory") -> None:
        self.seed = seed
        self.random: Random = Random(f"world of {seed}")  # noqa: S311  # not for secrets
        self.loop: SimulatedLoop = SimulatedLoop(Random(f"order of {seed}"))  # noqa: S311  # not for secrets
        self.loop.after_step = self._after_step
        self.ledger: EffectLedger = EffectLedger()
        self.hits: Counter[tuple[str, str]] = Counter()
        self.log: list[str] = []
        self.problems: list[str] = []
        self.workers: list[SimulatedWorker] = []
        self.expiries: int = 0
        self.cancelled: list[tuple[Machine, asyncio.Task[None]]] = []
        self.is_over: bool = False
        self.latest_token: int = 0
        self._by_machine: dict[Machine, SimulatedWorker] = {}
        self._plan = sorted(plan, key=lambda fault: fault.at, reverse=True)
        self._armed: list[PlannedFault] = []
        self._steps = 0
        self._is_halted = False
        self._folder = Path(tempfile.mkdtemp(prefix="agentloop-simulation-")) if storage == "sqlite" else None
        self._memory = MemoryJournal()
        self.server: SimulatedPostgres = SimulatedPostgres(
            self.loop.time, function_of, self._note_deleted, self._deliver
        )
        self._is_postgres = storage == "postgres"

    # --- machines ---------------------------------------------------------------------------------------------------

    def start_workers(self, count: int, work: Callable[[SimulatedWorker], Coroutine[Any, Any, None]]) -> None:
        """Start machines; each looks for work again and again, and another one replaces it when it dies.

        Args:
            count: the number of machines.
            work: looks for work once, and does it.
        """
        for _ in range(count):
            self._start_worker(work)

    def halt(self) -> None:
        """Stop all machines for good, so that what is stored stays as it is while it is read."""
        self._is_halted = True
        for worker in self.workers:
            worker.machine.crash()

    def _start_worker(self, work: Callable[[SimulatedWorker], Coroutine[Any, Any, None]]) -> None:
        if self._is_halted:
            return
        worker = SimulatedWorker(self, f"m{len(self.workers) + 1}")
        self.workers.append(worker)
        self._by_machine[worker.machine] = worker
        worker.machine.start(worker.run(work))

    def open_store(self) -> Journal:
        """Return the storage, as one more process opens it."""
        if self._is_postgres:
            return self._postgres_journal(None)
        if self._folder is None:
            return self._memory
        return SqliteJournal(self._folder / "journal.db", synchronous="normal")

    def open_journal(self, worker: SimulatedWorker) -> tuple[Journal, Journal]:
        """Return the storage as the process of a machine opens it, and as the machine sees it."""
        if self._is_postgres:
            journal = self._postgres_journal(worker)
            return journal, journal
        store = self.open_store()
        return store, MachineJournal(store, worker)

    def _postgres_journal(self, worker: SimulatedWorker | None) -> Journal:
        connectors = [SimulatedConnector(self.server, worker, seconds) for seconds in (30.0, 5.0)]
        return PostgresJournal("postgresql://simulated/journal", connectors=(connectors[0], connectors[1]))

    def end_sessions(self, worker: SimulatedWorker, *, tells: bool) -> None:
        """Let the database server end the sessions of a machine."""
        self._tell_ended(self.server.end_sessions(worker), tells=lambda: tells)

    def _tell_ended(self, backends: Sequence[Backend], tells: Callable[[], bool]) -> None:
        for backend in backends:
            backend.has_told = tells()
            if backend.has_told:
                self._deliver(backend)

    def _deliver(self, backend: Backend) -> None:
        if isinstance(backend.owner, SimulatedWorker) and not backend.owner.is_cut:
            self.loop.call_outside(self.random.choice((0.0, 0.0, 0.02)), backend.wake)

    def _note_deleted(self, execution_ids: Collection[str]) -> None:
        rows = self.server.tables["executions"]
        for execution_id in sorted(execution_ids):
            self.deleted(execution_id, [str(each) for each in rows if str(each).startswith(f"{execution_id}/")])

    def deleted(self, execution_id: str, left: Sequence[str]) -> None:
        """Note that an execution is deleted now, and which executions below it are left."""
        self.problems += [f"{execution_id} is deleted, and {each} is left" for each in left]
        self.note(f"{execution_id} is deleted")
        self.ledger.forget(execution_id, max(self.latest_token, self.server.count_of("tokens")))

    @property
    def is_remote(self) -> bool:
        """Whether the storage is a server, behind a network."""
        return self._folder is None

    @property
    def waits_for_cancelled(self) -> bool:
        """Whether a task that was cancelled has not ended, and has time left to do so."""
        return any(not (job.done() or machine.is_dead) for machine, job in self.cancelled)

    def note(self, text: str) -> None:
        """Add a line to the log."""
        self.log.append(f"{self.loop.time():.3f} {text}")

    def digest(self) -> str:
        """Return the hash of the log: equal for equal runs."""
        return hashlib.sha256("\n".join([*self.log, str(self.loop.steps)]).encode()).hexdigest()

    # --- what goes wrong --------------------------------------------------------------------------------------------

    def _after_step(self, machine: Machine) -> None:
        self._steps += 1
        while self._plan and self._plan[-1].at <= self._steps and not machine.is_dead:
            worker, fault = self._by_machine.get(machine), self._plan[-1]
            if worker is None or not self._occurs(fault, worker):
                return
            self._plan.pop()

    def _occurs(self, fault: PlannedFault, worker: SimulatedWorker) -> bool:
        """Let a fault occur; return False if it has to wait for another opportunity."""
        kind, machine = fault.kind, worker.machine
        if kind in _ARMED:
            self._armed.append(fault)
            return True
        if kind is SimulatedFault.CANCEL and not worker.cancel():
            return False
        self.hit(kind, machine.place)
        self.note(f"{machine.name} {fault}")
        if kind is SimulatedFault.CRASH:
            machine.crash()
            self.loop.call_outside(min(fault.seconds, 5.0), worker.bury)
            self.loop.call_outside(fault.seconds, lambda: self._start_worker(worker.work))
            if not self.is_remote:
                worker.bury()
        elif kind is SimulatedFault.PAUSE:
            machine.pause(fault.seconds)
        elif kind in {SimulatedFault.EXPIRE, SimulatedFault.LOSE}:
            self.expiries += bool(worker.claims)
            self.loop.run_outside(lambda: worker.expire(tells=kind is SimulatedFault.LOSE))
        elif kind is SimulatedFault.CUT:
            worker.is_cut = True
            tells = self.random.random() < 0.5  # noqa: PLR2004  # an even chance
            self.loop.call_outside(fault.seconds, worker.heal)
            # A simulated PostgreSQL server finds out by itself.
            expire = worker.end_places if self._is_postgres else partial(worker.expire, tells=tells)
            self.loop.call_outside(self.random.choice(_EXPIRIES), expire)
            self.expiries += 1
        elif kind is SimulatedFault.RESTART:
            seconds = min(fault.seconds, _LONGEST_RESTART)
            ended = self.server.restart(seconds, self.random.choice((0.0, 0.0, 2.0)))
            self._tell_ended(ended, lambda: self.random.random() < 0.5)  # noqa: PLR2004  # an even chance
        elif kind is SimulatedFault.CLOCK:
            worker.clock.shift += fault.seconds
        return True

    def hit(self, kind: SimulatedFault, place: str) -> None:
        """Count a fault that occurs at a place."""
        self.hits[kind.value, place] += 1

    def take(self, kind: SimulatedFault, place: str) -> PlannedFault | None:
        """Return a fault that is due at the next opportunity of its kind, and count it; None if there is none."""
        found = next((fault for fault in self._armed if fault.kind is kind), None)
        if found is not None:
            self._armed.remove(found)
            self.hit(kind, place)
            self.note(f"{kind.value} at {place}")
        return found

    # --- the run ----------------------------------------------------------------------------------------------------

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        """Run the simulation to the end of a coroutine, with entropy from the seed."""
        entropy = Random(f"entropy of {self.seed}")  # noqa: S311  # not for secrets
        before = random_module.getstate()
        random_module.seed(f"module of {self.seed}")
        try:
            with patch.object(os, "urandom", entropy.randbytes):
                self.loop.run_until_complete(main)
        finally:
            self.is_over = True
            self.loop.discard()
            self.loop.close()
            random_module.setstate(before)
            for worker in self.workers:
                worker.bury()
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)


class SimulatedWorker:
    """A process on a machine of its own: it has a clock, ids, and a way to the storage.

    Args:
        world: the world.
        name: its name in the log.

    Attributes:
        world: the world.
        machine: its machine.
        clock: its clock.
        ids: its source of ids.
        journal: the storage as it sees it.
        claims: the claims that it has made, unless a PostgreSQL server has them.
        is_cut: whether it cannot reach the storage.
        work: what it does.
    """

    def __init__(self, world: SimulatedWorld, name: str) -> None:
        self.world = world
        self.machine: Machine = Machine(name, world.loop)
        self.clock: MachineClock = MachineClock(world.loop, world.random.choice((1.0, 0.999, 1.001)))
        self.clock.shift = world.random.choice((0.0, 0.0, -2.0, 3.0))
        self.ids: SeededIds = SeededIds(Random(f"ids of {name} in {world.seed}"))  # noqa: S311  # not for secrets
        self.claims: list[MachineClaim] = []
        self.is_cut: bool = False
        self.work: Callable[[SimulatedWorker], Coroutine[Any, Any, None]] = _rest
        self._places: list[Callable[[], None]] = []
        opened = world.open_journal(self)
        self._store: Journal = opened[0]
        self.journal: Journal = opened[1]
        self._job: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"SimulatedWorker({self.machine.name!r})"

    async def run(self, work: Callable[[SimulatedWorker], Coroutine[Any, Any, None]]) -> None:
        """Look for work again and again."""
        world, self.work = self.world, work
        while True:
            await asyncio.sleep(world.random.choice((0.0, 0.2, 1.5)))
            self._job = asyncio.create_task(work(self))
            await asyncio.wait((self._job,))
            job, self._job = self._job, None
            if job.cancelled():
                continue
            error = job.exception()
            if error is not None and not isinstance(error, (JournalError, ProviderUnavailable)):
                world.problems.append(f"{type(error).__name__} left a run: {error}")
                world.note(f"{self.machine.name} failed: {error!r}")

    def cancel(self) -> bool:
        """Cancel what the worker does now; return whether it does anything."""
        job = self._job
        if job is None or job.done() or job.cancelling():
            return False
        self.world.loop.run_outside(job.cancel)
        self.world.cancelled.append((self.machine, job))
        self.world.loop.call_outside(_WORST_CANCELLATION, lambda: self._check_cancelled(job))
        return True

    def _check_cancelled(self, job: asyncio.Task[None]) -> None:
        self.world.cancelled.remove((self.machine, job))
        if not (job.done() or self.machine.is_dead or self.is_cut):
            self.world.problems.append("a run goes on although it was cancelled")

    def expire(self, *, tells: bool) -> None:
        """Let the storage give up the claims of this worker.

        Args:
            tells: whether the worker is told.
        """
        claims, self.claims = self.claims, []
        for claim in claims:
            run_now(claim.storage_claim.release())
            if tells:
                claim.lose("the storage could not reach this machine")
        self.world.end_sessions(self, tells=tells)
        self.end_places()

    def end_places(self) -> None:
        """Let the server of the queues end the places of this worker."""
        places, self._places = self._places, []
        for end in () if self.world.is_over else places:
            end()

    def bury(self) -> None:
        """Give up what the operating system holds for the process when it has died."""
        self.expire(tells=False)
        if isinstance(self._store, SqliteJournal):
            for thread in (self._store._writer, self._store._reader):  # noqa: SLF001  # the operating system asks nobody, either
                thread.cut()
            self._store._claims.close()  # noqa: SLF001

    def heal(self) -> None:
        """Let the worker reach the storage again."""
        self.is_cut = False

    # --- the network ------------------------------------------------------------------------------------------------

    def claimed(self, claim: MachineClaim) -> None:
        """Note a claim that the storage has given to this worker."""
        world = self.world
        world.note(
            f"{self.machine.name} claims {claim.execution_id} with {claim.token if world.is_remote else 'a token'}"
        )
        self.claims.append(claim)
        world.latest_token = max(world.latest_token, claim.token)

    def give_up(self, claim: Claim) -> None:
        """Let the storage end a claim after some time, since its release has not arrived."""
        world = self.world
        world.loop.call_outside(world.random.choice(_EXPIRIES), lambda: run_now(claim.release()))

    def took_place(self, bury: Callable[[], None]) -> None:
        """Note how the server of the queues ends a place of this worker."""
        self._places.append(bury)

    def end_place(self, bury: Callable[[], None]) -> None:
        """Let the server of the queues end a place after some time, since its end has not arrived."""
        self.world.loop.call_outside(self.world.random.choice(_EXPIRIES), bury)

    def deleted(self, execution_id: str, left: Sequence[str]) -> None:
        """Note that an execution is deleted now, and which executions below it are left."""
        self.world.deleted(execution_id, left)

    async def way(self, place: str) -> None:
        """Take the time of one way to the storage or back.

        Raises:
            JournalError: the network is cut.
        """
        with self.machine.at(place):
            await self.delay(place)
            if self.is_cut:
                raise JournalError("the connection is lost")

    def _is_away(self) -> bool:
        return self.is_cut or self.world.is_over

    async def delay(self, place: str) -> None:
        """Take the time of one way."""
        fault = self.world.take(SimulatedFault.SLOW, place)
        seconds = fault.seconds if fault is not None else self.world.random.choice((0.0, 0.0, 0.001, 0.02))
        await asyncio.sleep(seconds)

    async def request(self, place: str, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Make a request to the storage.

        Raises:
            JournalError: the network is cut, or a fault occurs.
        """
        world = self.world
        with self.machine.at(place):
            await self.delay(place)
            if self._is_away() or world.take(SimulatedFault.REFUSE, place) is not None:
                raise JournalError("the connection is lost")
            if world.is_remote:
                result = world.loop.run_outside(lambda: run_now(call()))
            else:
                result = await call()
            if place not in _QUIET:
                world.note(f"{self.machine.name} {place}")
            if world.is_remote:
                await asyncio.sleep(world.random.choice((0.0, 0.0, 0.001, 0.02)))
            if self._is_away() or world.take(SimulatedFault.UNANSWERED, place) is not None:
                raise JournalError("the connection was lost before the answer came")
            return result

    # --- the connections to a PostgreSQL server -----------------------------------------------------------------------

    def at(self, place: str) -> AbstractContextManager[None]:
        """Note that the machine is at a place while the block runs."""
        return self.machine.at(place)

    def refuses(self, place: str) -> bool:
        """Return whether a request is to be lost on its way."""
        return self.world.take(SimulatedFault.REFUSE, place) is not None

    def drops(self, place: str) -> bool:
        """Return whether an answer is to be lost on its way."""
        return self.world.take(SimulatedFault.UNANSWERED, place) is not None

    def undoes(self, place: str) -> bool:
        """Return whether the server is to undo the transaction because of a concurrent one."""
        return place not in _READING and self.world.take(SimulatedFault.UNDO, place) is not None

    def note(self, place: str) -> None:
        """Note that the server does what a statement says."""
        if place not in _QUIET:
            self.world.note(f"{self.machine.name} {place}")

    def start_at_server(self, run: Callable[[], T]) -> T:
        """Call a function whose tasks go on whatever becomes of the machine."""
        return self.world.loop.run_outside(run)

    # --- tools and models -------------------------------------------------------------------------------------------

    @contextmanager
    def inference(self) -> Iterator[None]:
        """Note that a model is asked, which may not answer.

        Raises:
            ProviderUnavailable: it does not.
        """
        with self.machine.at("inference"):
            if self.world.take(SimulatedFault.MODEL, "inference") is not None:
                raise ProviderUnavailable("the model does not answer")
            yield

    def effect(self, name: str, context: ToolContext) -> None:
        """Note in the ledger that a tool has its effect now."""
        world = self.world
        if world.is_over or self.machine.is_dead:
            return
        key = context.idempotency_key
        world.ledger.note(name, key, context.claim_token)
        world.note(f"{self.machine.name} {name} {key}")

    def fail_tool(self, name: str) -> None:
        """Raise an error in a tool if that is planned.

        Raises:
            RuntimeError: it is.
        """
        if self.world.take(SimulatedFault.TOOL, f"tool.{name}") is not None:
            raise RuntimeError("the tool has failed")


async def _rest(_: SimulatedWorker) -> None:
    """Do nothing, until there is work."""
