"""`agentloop runs export`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from agentloop.cli.bad_usage import BadUsage, told_as_bad_usage
from agentloop.cli.named_loop import loop_of
from agentloop.cli.runs_journal import found, journal_option, with_journal
from agentloop.contracts.can_journal import CanJournal
from agentloop.journal.chain import verified
from agentloop.journal.exporting import pytest_source
from agentloop.values.journal_record import JournalRecord
from agentloop.values.serialisation import to_json

_EPILOG = """\
\b
Examples:
  agentloop runs export execution_6f1d > records.jsonl
  agentloop runs export execution_6f1d --pytest -o tests/test_refund.py
"""


@click.command(epilog=_EPILOG)
@click.argument("execution", metavar="ID")
@journal_option
@click.option(
    "--json", "as_json", is_flag=True, help="Write the records, one JSON document a line; so it is without options."
)
@click.option(
    "--pytest",
    "as_test",
    is_flag=True,
    help="Write a test: the answers of the model as a script, the tools as stand-ins that return what was recorded, and what "
    "came of it as expectations. It needs neither the journal, nor the network, nor your code.",
)
@click.option(
    "--loop",
    "loop_path",
    metavar="MODULE:LOOP",
    help="With --pytest: use the tools of this loop, as the model sees them, and its interceptors. What the tools return stays "
    "as it was recorded.",
)
@click.option(
    "-o", "--output", metavar="FILE", help="Write to this file, which must not be there yet, instead of stdout."
)
def export(
    execution: str, *, journal_file: str | None, as_json: bool, as_test: bool, loop_path: str | None, output: str | None
) -> None:
    """Write an execution down for others: as its records, or as a test that comes to what it came to.

    A failing execution becomes a test that reproduces the failure. What was kept out of the journal is not in it either.
    """
    if as_json and as_test:
        raise BadUsage("--json and --pytest are two forms; leave one of them out")
    if loop_path is not None and not as_test:
        raise BadUsage("--loop belongs to --pytest")
    if loop_path is not None:
        _check_loop(loop_path)
    records = with_journal(journal_file, lambda journal: _read(journal, execution))
    if as_test:
        text = pytest_source(records, records[0].execution_id, loop=loop_path or "")
    else:
        text = "".join([f"{to_json(record).decode()}\n" for record in records])
    _write(text, output)


def _check_loop(path: str) -> None:
    if ".py:" in path:
        raise BadUsage(f"the test imports the loop, so --loop takes module:loop, not the file in {path!r}")
    with told_as_bad_usage():
        loop_of(path)


async def _read(journal: CanJournal, beginning: str) -> Sequence[JournalRecord]:
    head = await found(journal, beginning)
    return verified(await journal.read(head.execution_id), head.execution_id)


def _write(text: str, output: str | None) -> None:
    if output is None:
        sys.stdout.write(text)
        return
    try:
        with Path(output).open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise BadUsage(f"there is a file {output} already; name another one with -o") from error
    except OSError as error:
        raise BadUsage(f"{output} cannot be written: {error.strerror or error}") from error
