"""Executions of `agentloop run` that are written down."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import click
from attrs import frozen

from agentloop.cli.bad_usage import BadUsage
from agentloop.cli.interrupted import Interrupted
from agentloop.cli.runs_journal import VARIABLE, found, told_of_journals, with_journal
from agentloop.cli.runs_resume import how_to_go_on
from agentloop.inference.secret import Secret
from agentloop.journal.sqlite.sqlite_journal import SqliteJournal
from agentloop.values.id_source import RandomIds

_SHORTEST_SECRET = 4
"""What is shorter, as the keys that local servers do not look at, would be found everywhere."""


@frozen
class Recorded:
    """Where an execution is written down.

    Attributes:
        file: the journal.
        execution_id: the id of the execution.
        goes_on: whether the execution is in the journal already.
    """

    file: str
    execution_id: str
    goes_on: bool = False

    @classmethod
    def of(cls, file: str | None, resumed: str | None, question: str | None) -> Recorded | None:
        """Return what the options of a command say; None when nothing is written down.

        Raises:
            BadUsage: when they contradict each other, or there is no such execution.
        """
        if resumed is None:
            return None if file is None else cls(file, RandomIds().new_id("execution"))
        if file is None:
            raise BadUsage(
                f"--resume needs the journal that the execution is in: --journal FILE ({VARIABLE} is not looked at)"
            )
        if question is not None:
            raise BadUsage("--resume goes on with what was asked; leave the question out")
        head = with_journal(file, lambda journal: found(journal, resumed))
        return cls(file, head.execution_id, goes_on=True)

    def journal(self, secrets: Iterable[Secret]) -> SqliteJournal:
        """Return the journal, in which these secrets are masked."""
        return SqliteJournal(self.file, secrets=[one for one in secrets if len(one.reveal()) >= _SHORTEST_SECRET])

    @property
    def way_on(self) -> str:
        """How the execution is gone on with when it is interrupted, in words."""
        options = f"--journal {shlex.quote(self.file)} --resume {shlex.quote(self.execution_id)}"
        return f"to go on with it, run the same command with {options} and without the question"

    def tell(self) -> None:
        """Say under which id it is written down, before anything happens."""
        what = "goes on with" if self.goes_on else "recorded as"
        click.echo(f"{what} {self.execution_id} in {self.file}\nshould it be interrupted: {self.way_on}", err=True)

    @contextmanager
    def told(self) -> Iterator[None]:
        """Say at Ctrl-C what can be done; tell what the journal refuses as an error of the command.

        Raises:
            Interrupted: by Ctrl-C.
            BadUsage: when something cannot be decided.
            JournalTrouble: for any other error of the journal.
        """
        try:
            with told_of_journals():
                yield
        except Interrupted as stop:
            journal = f" --journal {shlex.quote(self.file)}"
            raise Interrupted(f"{stop}\n{how_to_go_on(self.execution_id, journal)}") from None
