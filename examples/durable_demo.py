"""A worker is killed in the middle of three effects, and another one recovers its execution. From a shell:

    python examples/durable_demo.py

An agent pays an invoice in a worker process whose journal is a SQLite file. The worker is killed with SIGKILL when three of
its tools have had their effects but have not returned. A second worker recovers the execution from the journal, and a table
accounts for each effect: how often its call began, how often it happened, and what the journal says of it. The model is
scripted and needs no API key and no network; the processes, the files and SIGKILL are real.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Timer

from durable.office import HELD_MARK, Office
from durable.worker import ANSWER_MARK, EXECUTION_ID, QUESTION, SETTLED_MARK, journal_path, ledger_path
from rich.console import Console
from rich.table import Table
from rich.text import Text

import agentloop
from agentloop.durable.sqlite.sqlite_journal import SqliteJournal
from agentloop.durable.trees import INTERRUPTED, effective_status
from agentloop.errors import AgentLoopError
from agentloop.service.cli.console import as_one_line, create_console, format_call
from agentloop.service.cli.journals import CallAccount, account_for_calls
from agentloop.service.cli.main import replace_unencodable_output
from agentloop.values.reprs import format_count
from agentloop.values.tool_calls import Effect

_INTRODUCTION = (
    "An agent pays an invoice, in a worker process whose journal is a SQLite file. The model is scripted: it needs no API key and no "
    "network. The processes, the files and SIGKILL are real."
)
_NEXT_STEPS = """\
The same with a model and tools of your own; kill it whenever you like:
  agentloop run "a question" --model ollama:qwen3 --tools your_tools.py --journal runs.db
  agentloop runs list --journal runs.db"""
_LINES_BEFORE_KILL = {
    f"{HELD_MARK} set_status",
    f"{HELD_MARK} pay",
    f"{HELD_MARK} send_letter",
    f"{SETTLED_MARK} reserve_budget",
}
"""What the first worker prints before it is killed: three effects have happened, and their calls have not returned."""
_WORKER_TIMEOUT = 60.0
"""Seconds after which a worker that hangs is killed."""


class WorkerFailed(AgentLoopError):
    """A worker of the demo ended too early, or with an error."""


def main() -> None:
    """Play the demo, and exit with 0 when every effect happened once and is accounted for."""
    out = create_console()
    _print_heading(out, "A run that survives kill -9")
    out.print(_INTRODUCTION)
    with TemporaryDirectory(prefix="agentloop-durable-") as folder:
        try:
            is_correct = play(out, Path(folder))
        except WorkerFailed as error:
            sys.exit(f"Error: {error}")
    out.print(f"\n{_NEXT_STEPS}")
    sys.exit(0 if is_correct else 1)


def play(out: Console, folder: Path) -> bool:
    """Play the demo, and return whether every effect happened once and is reported correctly.

    Args:
        out: where the demo is printed.
        folder: where the journal and the ledger are written.

    Raises:
        WorkerFailed: a worker ended too early, or with an error.
    """
    _print_heading(out, "A worker begins")
    out.print(QUESTION)
    process_id = _run_worker(out, folder, "begin", kill_after=_LINES_BEFORE_KILL)
    _print_heading(out, "It is killed in the middle")
    out.print(
        f"Process {process_id} got SIGKILL. Three of its tools had had their effects, and had not returned. The journal records that "
        "their calls began; the ledger, which the journal knows nothing of, records what was done."
    )
    calls = asyncio.run(_read_interrupted(out, folder))
    office = Office(ledger_path(folder))
    out.print(_table(calls, office))
    _print_heading(out, "Another worker recovers the execution")
    _run_worker(out, folder, "recover")
    _print_heading(out, "The account of every effect")
    calls, finding_count = asyncio.run(_read_finished(folder))
    out.print(_table(calls, office))
    return _print_conclusion(out, calls, finding_count, office)


def _print_heading(out: Console, text: str) -> None:
    out.print(Text(f"\n{text}", "bold"))


# --- the workers ----------------------------------------------------------------------------------------------------


def _run_worker(out: Console, folder: Path, task: str, kill_after: set[str] | None = None) -> int:
    """Start a worker, print its output, and return its process id.

    Args:
        out: where the output is printed.
        folder: where the journal and the ledger are.
        task: `begin` or `recover`.
        kill_after: lines after which the worker is killed, in any order; None to let it end by itself.

    Raises:
        WorkerFailed: the worker ended before it printed these lines, or with an error.
    """
    command = [sys.executable, "-P", "-u", "-m", "durable.worker", str(folder), task]
    missing = set(kill_after or ())
    with subprocess.Popen(  # noqa: S603  # this Python, with a module of this example
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=_worker_environment(), encoding="utf-8"
    ) as process:
        with _killed_at_timeout(process):
            for line in process.stdout or ():
                missing.discard(line.strip())
                _print_line(out, line.rstrip("\n"))
                if kill_after and not missing:
                    process.kill()
                    break
            error = process.stderr.read() if process.stderr is not None else ""
            process.wait()
        if missing or (kill_after is None and process.returncode):
            raise WorkerFailed(f"the worker ended with {process.returncode}: {error.strip() or 'no error output'}")
        return process.pid


@contextmanager
def _killed_at_timeout(process: subprocess.Popen[str]) -> Iterator[None]:
    timer = Timer(_WORKER_TIMEOUT, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        process.kill()


def _worker_environment() -> dict[str, str]:
    """Return an environment in which a worker imports this example and this agentloop."""
    paths = [str(Path(__file__).parent), str(Path(agentloop.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUTF8": "1"}


def _print_line(out: Console, line: str) -> None:
    if line.startswith(f"{ANSWER_MARK} "):
        out.print(Text(line.removeprefix(f"{ANSWER_MARK} ")))
    elif line.startswith(f"{HELD_MARK} "):
        name = line.removeprefix(f"{HELD_MARK} ")
        out.print(Text(f"     ({name} has had its effect, and has not returned)", "italic cyan"))
    elif not line.startswith("@"):
        out.print(Text(line), no_wrap=True, overflow="ellipsis", crop=True)


# --- the account, from the journal and the ledger -------------------------------------------------------------------


async def _read_interrupted(out: Console, folder: Path) -> Sequence[CallAccount]:
    journal = SqliteJournal(journal_path(folder))
    try:
        head = await journal.head(EXECUTION_ID)
        if head is None or await effective_status(journal, head) != INTERRUPTED:
            raise WorkerFailed("the journal has no interrupted execution")
        out.print(f"The journal has {format_count(head.record_count, 'record')}; the execution is {INTERRUPTED}.\n")
        return account_for_calls(await journal.read(EXECUTION_ID))
    finally:
        await journal.aclose()


async def _read_finished(folder: Path) -> tuple[Sequence[CallAccount], int]:
    """Return the calls, and the number of problems with the records of the journal."""
    journal = SqliteJournal(journal_path(folder))
    try:
        return account_for_calls(await journal.read(EXECUTION_ID)), len(await journal.verify())
    finally:
        await journal.aclose()


def _calls_with_effects(calls: Sequence[CallAccount]) -> Sequence[CallAccount]:
    return [call for call in calls if call.effect not in {None, Effect.PURE}]


def _table(calls: Sequence[CallAccount], office: Office) -> Table:
    table = Table(box=None, pad_edge=False)
    columns: Sequence[tuple[str, Callable[[CallAccount], str]]] = (
        ("call", lambda call: format_call(call.call)),
        ("effect", lambda call: "" if call.effect is None else call.effect.value),
        ("began", lambda call: f"{call.start_count}x"),
        ("happened", lambda call: f"{len(office.entries(call.call.name, call.key))}x"),
        ("outcome", _outcome),
    )
    for name, _ in columns:
        table.add_column(name, overflow="fold")
    for call in _calls_with_effects(calls):
        table.add_row(*[cell(call) for _, cell in columns])
    return table


def _outcome(call: CallAccount) -> str:
    execution = call.execution
    return (
        call.outcome if execution is None or execution.has_error else f"{call.outcome}: {as_one_line(execution.text)}"
    )


def _print_conclusion(out: Console, calls: Sequence[CallAccount], finding_count: int, office: Office) -> bool:
    effects = _calls_with_effects(calls)
    happened_once = bool(effects) and all(len(office.entries(call.call.name, call.key)) == 1 for call in effects)
    have_outcomes = all(call.execution is not None for call in calls)
    out.print()
    out.print(
        f"{format_count(len(effects), 'effect')}: {'each' if happened_once else 'not each'} happened once, and "
        f"{'each' if have_outcomes else 'not each'} has an outcome. Recorded outcomes were reused. The idempotent call ran again with its "
        "key. The bank knew that the payment had arrived. Nobody could know whether the letter was sent, so its call is in doubt, "
        "and the model looked for itself."
    )
    out.print(f"The records of the journal are {'damaged' if finding_count else 'intact'}.")
    return happened_once and have_outcomes and not finding_count


if __name__ == "__main__":
    replace_unencodable_output()
    main()
