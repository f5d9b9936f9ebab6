"""What happens to the workers and the database in chaos runs, each as a function that returns the account."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from attrs import define, frozen

from agentloop.service.cluster import Cluster
from tests.chaos import work
from tests.chaos.account import Account
from tests.chaos.fleet import ENGINE, PLAIN, QUEUED, ROOT, SLOWLY, Process, wait_until
from tests.chaos.ledger import BEFORE, Ledger, at_lines
from tests.chaos.trial import Trial, open_trial
from tests.chaos.work import Work
from tests.postgres import PostgresServer, TcpProxy, cut_connections, new_database

SQLITE, POSTGRES = "SQLite", "PostgreSQL"
KILL, STOP = "SIGKILL", "SIGSTOP"


@define
class Bench:
    """Where chaos runs take place.

    Attributes:
        folder: the parent of their folders.
        store: the kind of database.
        kind: the kind of workers.
        seed: chooses the lines of the ledger at which faults happen.
        count: how many executions run.
        server: the server of PostgreSQL, which faults may stop; None for SQLite.
    """

    folder: Path
    store: str
    kind: str = PLAIN
    seed: int = 1
    count: int = 24
    server: PostgresServer | None = None
    _trials: int = 0

    @contextmanager
    def trial(self, works: Sequence[Work], *, proxy: TcpProxy | None = None) -> Iterator[Trial]:
        """Open a chaos run on an empty database.

        Args:
            works: what runs.
            proxy: what the workers' connections lead through; None for none.
        """
        self._trials += 1
        folder = self.folder / f"trial-{self._trials}"
        with ExitStack() as stack:
            if self.server is None:
                database = inspected = str(folder / "runs.db")
            else:
                inspected = stack.enter_context(new_database(self.server.url))
                database = inspected if proxy is None else proxy.url(inspected)
            yield stack.enter_context(
                open_trial(folder, database, works, kind=self.kind, seed=self.seed, inspected=inspected)
            )

    @property
    def own_server(self) -> PostgresServer:
        """The server, of a bench on PostgreSQL."""
        assert self.server is not None
        return self.server


# --- workers that die ---------------------------------------------------------------------------------------------------


def nothing(bench: Bench) -> Account:
    """No fault: what a run without one leaves."""
    with bench.trial(work.mixed(bench.count)) as trial:
        trial.begin()
        return trial.finish()


def random_kills(bench: Bench) -> Account:
    """A worker is killed for every six executions, at a line of the ledger, and replaced."""
    return _kill(bench, work.mixed(bench.count))


def random_kills_of_effects(bench: Bench) -> Account:
    """The same, where every call has an effect that nobody can look up."""
    return _kill(bench, work.effects(bench.count))


def _kill(bench: Bench, works: Sequence[Work]) -> Account:
    with bench.trial(works) as trial:
        # Few enough that no execution reaches the cap of recoveries by kills that it did not cause.
        trial.plan(at_lines(trial.choose_lines(max(1, bench.count // 6)), KILL))
        trial.begin()
        return trial.finish()


def kill_at_each_line(bench: Bench) -> Account:
    """Each of many equal executions has its worker killed once, each at another line of the ledger."""
    steps = (("pay",), ("book", "put", "grind"), ("seal", "read"))
    lines = Work("", steps).line_count
    with bench.trial([Work(f"run-{number:02}", steps) for number in range(1, lines + 1)]) as trial:
        trial.fleet.slots = 1  # a kill is to hit one execution
        trial.plan({f"run-{number:02}:{number}": KILL for number in range(1, lines + 1)})
        trial.begin()
        account = trial.finish()
        kills = len(trial.ledger.signals())
        if kills != lines:
            account.wrong.append(f"{kills} of {lines} workers were killed")
        return account


def all_replaced(bench: Bench) -> Account:
    """All workers are killed at once, twice; new ones with other names take over."""
    with bench.trial(work.mixed(bench.count)) as trial:
        trial.begin()
        for line in trial.choose_lines(2):
            trial.wait_for_line(line)
            for process in trial.fleet.processes:
                process.send(signal.SIGKILL)
        return trial.finish()


def all_drained(bench: Bench) -> Account:
    """All workers get SIGTERM at once; new ones take over."""
    with bench.trial(work.mixed(bench.count)) as trial:
        trial.begin()
        trial.wait_for_line(trial.choose_lines(1)[0])
        for process in list(trial.fleet.processes):
            process.send(signal.SIGTERM)
        return trial.finish()


# --- workers that only look dead ----------------------------------------------------------------------------------------


def stopped_worker(bench: Bench) -> Account:
    """A worker is stopped by SIGSTOP until the others have done all they can, and continues.

    On PostgreSQL the server drops its connections meanwhile, as after a timeout, so that others take over its executions.
    """
    with bench.trial(work.mixed(bench.count)) as trial:
        trial.plan(at_lines(trial.choose_lines(1, last=0.4), STOP))
        trial.begin()
        stopped = _wait_for_stopped(trial)
        if bench.server is not None:
            cut_connections(trial.inspected)
        _wait_until_left_alone(trial, stopped)
        stopped.send(signal.SIGCONT)
        return trial.finish()


def _wait_for_stopped(trial: Trial) -> Process:
    found: list[Process] = []

    def is_stopped() -> bool:
        trial.fleet.tend()
        found.extend(process for process in trial.fleet.processes if process.is_stopped)
        return bool(found)

    wait_until(is_stopped, "no worker has stopped itself")
    return found[0]


def _wait_until_left_alone(trial: Trial, stopped: Process) -> None:
    """Wait until the others have done all they can; a process that is stopped can hold the lock of a SQLite file meanwhile."""
    count, since = 0, time.monotonic()

    def is_alone() -> bool:
        nonlocal count, since
        if trial.ledger.count != count:
            count, since = trial.ledger.count, time.monotonic()
        return time.monotonic() - since > _STANDSTILL or _is_left_alone(trial, stopped)

    wait_until(is_alone, "the others have not ended their executions", interval=SLOWLY)


_STANDSTILL = 8.0
"""Seconds without a line of the ledger after which the others are taken to wait for the stopped worker."""


def _is_left_alone(trial: Trial, stopped: Process) -> bool:
    """Return whether all executions have ended that the stopped worker does not run, as far as the ledger says."""
    last = {line.key.split("/")[0]: line.worker for line in trial.ledger.lines()}
    held = {name for name, worker in last.items() if worker == stopped.name}
    heads = trial.heads()
    return all(
        name in heads and heads[name].status.is_terminal
        for name in [each.execution_id for each in trial.works]
        if name not in held
    )


# --- a database that fails ----------------------------------------------------------------------------------------------


def crashed_database(bench: Bench) -> Account:
    """PostgreSQL is stopped at once and restarted, twice."""
    with bench.trial(work.mixed(bench.count)) as trial:
        trial.begin()
        for line in trial.choose_lines(2):
            trial.wait_for_line(line)
            bench.own_server.stop("immediate")
            bench.own_server.start()
        return trial.finish()


def crashed_database_and_worker(bench: Bench) -> Account:
    """PostgreSQL is stopped at once and restarted; a worker is killed while it is down."""
    with bench.trial(work.mixed(bench.count)) as trial:
        trial.begin()
        trial.wait_for_line(trial.choose_lines(1)[0])
        bench.own_server.stop("immediate")
        trial.fleet.processes[0].send(signal.SIGKILL)
        bench.own_server.start()
        return trial.finish()


def terminated_backends(bench: Bench) -> Account:
    """The server ends all connections, four times; claims are lost, and live executions are taken away."""
    with bench.trial(work.mixed(bench.count)) as trial:
        trial.begin()
        for line in trial.choose_lines(4):
            trial.wait_for_line(line)
            cut_connections(trial.inspected)
        return trial.finish()


def _through_proxy(bench: Bench, fail: Callable[[TcpProxy], None]) -> Account:
    """Let all workers reach the database through a proxy that fails twice."""
    proxy = TcpProxy(bench.own_server.url)
    try:
        with bench.trial(work.mixed(bench.count), proxy=proxy) as trial:
            trial.begin()
            for line in trial.choose_lines(2):
                trial.wait_for_line(line)
                fail(proxy)
            return trial.finish()
    finally:
        proxy.close()


def cut_network(bench: Bench) -> Account:
    """The network between workers and database resets all connections, twice."""
    return _through_proxy(bench, TcpProxy.cut)


def half_closed_network(bench: Bench) -> Account:
    """The network closes all connections in one direction, twice."""
    return _through_proxy(bench, TcpProxy.close_half)


def lost_answers(bench: Bench) -> Account:
    """The network loses the answers of the database until workers have given up waiting, twice."""

    def fail(proxy: TcpProxy) -> None:
        proxy.hang_answers()
        _let_time_pass()
        proxy.heal()

    return _through_proxy(bench, fail)


def hanging_network(bench: Bench) -> Account:
    """The network drops every packet for some time, twice."""

    def fail(proxy: TcpProxy) -> None:
        proxy.hang()
        _let_time_pass()
        proxy.heal()

    return _through_proxy(bench, fail)


def _let_time_pass(seconds: float = 4.0) -> None:
    """Let a network be down for some time; there is nothing to wait for."""
    signal.sigtimedwait((), seconds)


# --- what only an engine does -------------------------------------------------------------------------------------------


def killed_submitter(bench: Bench) -> Account:
    """The process that submits is killed in the middle: what it submitted runs, and submitting again starts only the rest."""
    with bench.trial(work.mixed(bench.count)) as trial:
        for _ in range(3):
            trial.fleet.start()
        half = len(trial.works) // 2
        _submit(trial, trial.works, CHAOS_KILL_AFTER=str(half)).wait()
        submitted = {each.execution_id for each in trial.works[:half]}
        wait_until(lambda: _ended(trial) == submitted, "what was submitted has not ended", interval=SLOWLY)
        trial.fleet.submit(trial.works)
        return trial.finish()


def _submit(trial: Trial, works: Sequence[Work], **environment: str) -> subprocess.Popen[bytes]:
    """Submit executions in a process of its own, and do not wait for its end."""
    values = trial.fleet.environment("submitter") | environment
    return subprocess.Popen(trial.fleet.submission(works), cwd=ROOT, env=values)


def _ended(trial: Trial) -> set[str]:
    trial.fleet.tend()
    return {name for name, head in trial.heads().items() if head.status.is_terminal and "/" not in name}


def submitted_twice(bench: Bench) -> Account:
    """Two processes submit the same executions at once, each twice."""
    with bench.trial(work.mixed(bench.count)) as trial:
        for _ in range(3):
            trial.fleet.start()
        submitters = [_submit(trial, (*trial.works, *trial.works)) for _ in range(2)]
        codes = [submitter.wait() for submitter in submitters]
        account = trial.finish()
        account.wrong += [f"a submission ended with {code}" for code in codes if code]
        return account


def two_of_one_name(bench: Bench) -> Account:
    """A second worker of a name that a live one has refuses to start, and disturbs nothing."""
    with bench.trial(work.mixed(bench.count)) as trial:
        first = trial.fleet.start("twin")
        trial.fleet.submit(trial.works)
        trial.wait_for_line(trial.choose_lines(1, last=0.4)[0])
        trial.fleet.replaces = False
        second = trial.fleet.start("twin")
        wait_until(lambda: not second.is_running, "the second worker of the name has not ended")
        account = trial.finish()
        if second.popen.returncode == 0 or "twin" not in second.output.read_text():
            account.wrong.append("the second worker of the name did not say why it refuses to start")
        if first.popen.returncode != -signal.SIGKILL:
            account.wrong.append(f"the first worker of the name ended with {first.popen.returncode}")
        return account


def old_version(bench: Bench) -> Account:
    """Executions of an old version wait for a worker of this version, while those of a new one run; none is lost."""
    works = work.mixed(bench.count)
    old, new = works[: len(works) // 2], works[len(works) // 2 :]
    with bench.trial(works) as trial:
        fleet = trial.fleet
        fleet.replaces, fleet.version = False, "1"
        first = fleet.start()
        assert _submit(trial, old, CHAOS_VERSION="1").wait() == 0
        trial.wait_for_line(trial.choose_lines(1, last=0.3)[0])
        first.send(signal.SIGKILL)
        fleet.version = "2"
        fleet.start()
        assert _submit(trial, new, CHAOS_VERSION="2").wait() == 0
        wait_until(
            lambda: {each.execution_id for each in new} <= _ended(trial), "the new version has not ended its work"
        )
        taken = {line.key.split("/")[0] for line in trial.ledger.lines() if line.worker == "worker-2"}
        fleet.version = "1"
        fleet.start()
        account = trial.finish()
        account.wrong += [f"the new version took {each.execution_id}" for each in old if each.execution_id in taken]
        return account


def poison(bench: Bench) -> Account:
    """An execution that kills its worker ends as failed after some recoveries, with an error that says so; the others end.

    Where a queued call kills the workers, that call fails, and its execution goes on.
    """
    works = [*work.mixed(bench.count), Work("poison", (("crash",),))]
    with bench.trial(works) as trial:
        trial.ends_as["poison"] = "completed" if bench.kind == QUEUED else "failed"
        trial.begin()
        account = trial.finish()
        deaths = sum(line.tool == "crash" for line in trial.ledger.lines())
        if not 1 < deaths <= _MAX_DEATHS:
            account.wrong.append(f"the poisonous execution killed {deaths} workers")
        return account


_MAX_DEATHS = 4
"""The first attempt, and three recoveries."""


def stopped_by_command(bench: Bench) -> Account:
    """Executions are stopped from another process while their tools run; they end as stopped, and their calls are accounted for."""
    works = [Work(f"run-{number:02}", (("pay", "linger"),)) for number in range(bench.count)]
    with bench.trial(works) as trial:
        trial.ends_as |= {each.execution_id: "stopped" for each in works}
        trial.begin()
        wait_until(lambda: _lingering(trial.ledger) == bench.count, "not all tools have begun")
        started = time.monotonic()
        asyncio.run(_stop_all(trial))
        account = trial.finish()
        if time.monotonic() - started > _STOP_SECONDS:
            account.wrong.append(f"the stops took {time.monotonic() - started:.1f} seconds")
        return account


_STOP_SECONDS = 15.0


def _lingering(ledger: Ledger) -> int:
    return sum(line.tool == "linger" and line.phase == BEFORE for line in ledger.lines())


async def _stop_all(trial: Trial) -> None:
    async with Cluster(trial.inspected) as cluster:
        for each in trial.works:
            await cluster.stop(each.execution_id, "not needed any more", principal="operator")


def taken_away(bench: Bench) -> Account:
    """A live worker loses its connections and cannot have new ones: others take over its executions while its tools run."""
    proxy = TcpProxy(bench.own_server.url)
    try:
        with bench.trial(work.mixed(bench.count)) as trial:
            direct, trial.fleet.database = trial.fleet.database, proxy.url(trial.inspected)
            trial.fleet.start()
            trial.fleet.database = direct
            trial.fleet.start()
            trial.fleet.start()
            trial.fleet.submit(trial.works)
            for line in trial.choose_lines(2):
                trial.wait_for_line(line)
                proxy.refuse()
                _wait_for_progress(trial, len(trial.works))
                proxy.heal()
            return trial.finish()
    finally:
        proxy.close()


def _wait_for_progress(trial: Trial, lines: int) -> None:
    """Wait until the ledger has some more lines, or all executions have ended."""
    target = trial.ledger.count + lines
    wait_until(lambda: trial.ledger.count >= target or trial.is_over(), "nothing goes on", interval=SLOWLY)


# --- long executions ----------------------------------------------------------------------------------------------------


def long_execution(bench: Bench, steps: int = 1000) -> Account:
    """An execution of many steps is killed near its end, and continues within five seconds of its next worker's start."""
    with bench.trial([Work("long", (("tick",),) * steps)]) as trial:
        number = 4 * (steps - 5)
        trial.plan(at_lines([number], KILL))
        trial.begin(workers=1)
        trial.wait_for_line(number)
        started = time.monotonic()
        trial.wait_for_line(number + 1)
        seconds = time.monotonic() - started
        account = trial.finish()
        account.notes["resumed after"] = f"{seconds:.1f} s"
        if seconds > _RESUME_SECONDS:
            account.wrong.append(f"the execution continued after {seconds:.1f} seconds")
        return account


_RESUME_SECONDS = 5.0


# --- all of them --------------------------------------------------------------------------------------------------------


@frozen
class Fault:
    """A fault, and where it can happen.

    Attributes:
        run: plays it.
        kinds: the kinds of workers.
        stores: the databases.
        quick: how many executions the short form has, which tests play; 0 for none.
    """

    run: Callable[[Bench], Account]
    kinds: Sequence[str] = (PLAIN, ENGINE, QUEUED)
    stores: Sequence[str] = (SQLITE, POSTGRES)
    quick: int = 4

    @property
    def name(self) -> str:
        """The name of the fault."""
        return self.run.__name__.replace("_", " ")


_ENGINES = (ENGINE, QUEUED)
FAULTS: Sequence[Fault] = (
    Fault(nothing),
    Fault(random_kills),
    Fault(random_kills_of_effects),
    Fault(kill_at_each_line, quick=0),
    Fault(all_replaced),
    Fault(all_drained),
    Fault(stopped_worker),
    Fault(crashed_database, stores=[POSTGRES]),
    Fault(crashed_database_and_worker, stores=[POSTGRES]),
    Fault(terminated_backends, stores=[POSTGRES]),
    Fault(cut_network, stores=[POSTGRES]),
    Fault(half_closed_network, stores=[POSTGRES]),
    Fault(lost_answers, stores=[POSTGRES]),
    Fault(hanging_network, stores=[POSTGRES]),
    Fault(taken_away, stores=[POSTGRES]),
    Fault(killed_submitter, kinds=_ENGINES),
    Fault(submitted_twice, kinds=_ENGINES),
    Fault(two_of_one_name, kinds=[ENGINE]),
    Fault(old_version, kinds=_ENGINES),
    Fault(poison, kinds=_ENGINES),
    Fault(stopped_by_command, kinds=_ENGINES),
    Fault(long_execution, kinds=[PLAIN, ENGINE], quick=0),
)
