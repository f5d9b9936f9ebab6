"""The durable demo: a worker is killed in the middle of three effects, another one goes on, and every effect is accounted for."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

from rich.console import Console
from rich.table import Table
from rich.text import Text

import agentloop
from agentloop.cli.console import call_text, counted, one_line
from agentloop.cli.demo.durable_worker import ANSWER, EXECUTION, QUESTION, SETTLED, journal_of, ledger_of
from agentloop.cli.demo.office import Office
from agentloop.cli.demo.office_tools import HELD
from agentloop.cli.journals import INTERRUPTED, CallAccount, calls_in, standing
from agentloop.errors import AgentLoopError
from agentloop.journal.sqlite.sqlite_journal import SqliteJournal
from agentloop.values.tool_calls import Effect

_HELD = {f"{HELD} set_status", f"{HELD} pay", f"{HELD} send_letter", f"{SETTLED} reserve_budget"}
"""What the first worker has said when it is in the middle of everything: three effects have happened and not been told."""
_LONGEST = 60.0
"""After so many seconds a worker that hangs is ended."""


class WorkerFailed(AgentLoopError):
    """A worker of the demo did not do what it is there for."""


def play(out: Console, folder: Path) -> bool:
    """Play it; say whether every effect happened once, and was told as it is.

    Args:
        out: where it is shown.
        folder: where journal and ledger are kept.

    Raises:
        WorkerFailed: when a worker ends by itself too early, or fails.
    """
    _title(out, "A worker begins")
    out.print(QUESTION)
    killed = _work(out, folder, "begin", until=_HELD)
    _title(out, "It is killed in the middle")
    out.print(
        f"Process {killed} got SIGKILL: three of its tools had had their effects in the world, and had not told of them. The journal "
        "holds that they began; the ledger, which the journal does not know, holds what was done."
    )
    calls = asyncio.run(_told_after_crash(out, folder))
    out.print(_table(calls, _office(folder)))
    _title(out, "Another worker goes on")
    _work(out, folder, "recover")
    _title(out, "The account of every effect")
    calls, findings = asyncio.run(_account(folder))
    out.print(_table(calls, _office(folder)))
    return _tell_end(out, calls, findings, _office(folder))


# --- the workers ------------------------------------------------------------------------------------------------


def _work(out: Console, folder: Path, what: str, until: set[str] | None = None) -> int:
    """Start a worker and show what it says, to its end or until it has said all of these; then kill it. Return its process id."""
    command = [sys.executable, "-P", "-u", "-m", "agentloop.cli.demo.durable_worker", str(folder), what]
    missing = set(until or ())
    with subprocess.Popen(  # noqa: S603  # this Python, with a module of this package
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=_environment(), encoding="utf-8"
    ) as process:
        with _ended_if_it_hangs(process):
            for line in process.stdout or ():
                missing.discard(line.strip())
                _show(out, line.rstrip("\n"))
                if until and not missing:
                    process.kill()
                    break
            error = process.stderr.read() if process.stderr is not None else ""
            process.wait()
        if missing or (until is None and process.returncode):
            raise WorkerFailed(f"the worker ended with {process.returncode}: {error.strip() or 'it said nothing'}")
        return process.pid


@contextmanager
def _ended_if_it_hangs(process: subprocess.Popen[str]) -> Iterator[None]:
    timer = Timer(_LONGEST, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        process.kill()


def _environment() -> dict[str, str]:
    """Return the environment of a worker, in which it finds this agentloop."""
    here = str(Path(agentloop.__file__).parents[1])
    paths = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUTF8": "1"}


def _show(out: Console, line: str) -> None:
    if line.startswith(f"{ANSWER} "):
        out.print(Text(line.removeprefix(f"{ANSWER} ")))
    elif line.startswith(f"{HELD} "):
        out.print(
            Text(f"     ({line.removeprefix(f'{HELD} ')} has had its effect, and has not returned)", "italic cyan")
        )
    elif not line.startswith("@"):
        out.print(Text(line), no_wrap=True, overflow="ellipsis", crop=True)


# --- what the journal and the ledger say ------------------------------------------------------------------------


async def _told_after_crash(out: Console, folder: Path) -> Sequence[CallAccount]:
    journal = SqliteJournal(journal_of(folder))
    try:
        head = await journal.head(EXECUTION)
        if head is None or await standing(journal, head) != INTERRUPTED:
            raise WorkerFailed("the journal does not hold an interrupted execution")
        out.print(f"The journal holds {counted(head.record_count, 'record')}; the execution is {INTERRUPTED}.\n")
        return calls_in(await journal.read(EXECUTION))
    finally:
        await journal.aclose()


async def _account(folder: Path) -> tuple[Sequence[CallAccount], int]:
    """Return the calls, and how many records are not as they were written."""
    journal = SqliteJournal(journal_of(folder))
    try:
        return calls_in(await journal.read(EXECUTION)), len(await journal.verify())
    finally:
        await journal.aclose()


def _office(folder: Path) -> Office:
    return Office(ledger_of(folder))


def _effects(calls: Sequence[CallAccount]) -> Sequence[CallAccount]:
    return [call for call in calls if call.effect not in {None, Effect.PURE}]


def _table(calls: Sequence[CallAccount], office: Office) -> Table:
    table = Table(box=None, pad_edge=False)
    columns: Sequence[tuple[str, Callable[[CallAccount], str]]] = (
        ("intended", lambda call: call_text(call.call)),
        ("effect", lambda call: "" if call.effect is None else call.effect.value),
        ("began", lambda call: f"{call.begun}x"),
        ("happened", lambda call: f"{len(office.done(call.call.name, call.key))}x"),
        ("told as", _told),
    )
    for name, _ in columns:
        table.add_column(name, overflow="fold")
    for call in _effects(calls):
        table.add_row(*[make(call) for _, make in columns])
    return table


def _told(call: CallAccount) -> str:
    execution = call.execution
    return call.told if execution is None or execution.has_error else f"{call.told}: {one_line(execution.text)}"


def _tell_end(out: Console, calls: Sequence[CallAccount], findings: int, office: Office) -> bool:
    happened = [len(office.done(call.call.name, call.key)) for call in _effects(calls)]
    once = happened == [1] * len(happened) and bool(happened)
    told = all(call.execution is not None for call in calls)
    out.print()
    out.print(
        f"{counted(len(happened), 'effect')}: {'each happened once' if once else 'not each happened once'}, and "
        f"{'each has an outcome' if told else 'not each has an outcome'}. What was recorded was not done again; the idempotent call ran "
        "again with its key, the bank was asked about the payment, and the letter, about which nobody can be asked, was told to the "
        "model as in doubt, which then looked for itself."
    )
    out.print(f"The records of the journal are {'as they were written' if not findings else 'damaged'}.")
    return once and told and not findings


def _title(out: Console, text: str) -> None:
    out.print(Text(f"\n{text}", "bold"))
