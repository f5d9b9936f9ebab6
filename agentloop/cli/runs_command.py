"""`agentloop runs`."""

from __future__ import annotations

import click

from agentloop.cli.runs_export import export
from agentloop.cli.runs_fork import fork
from agentloop.cli.runs_list import list_runs
from agentloop.cli.runs_replay import replay
from agentloop.cli.runs_resume import resume
from agentloop.cli.runs_show import show
from agentloop.cli.runs_verify import verify


@click.group()
def runs() -> None:
    """Look at the executions of a journal, go on with them, and check them.

    `agentloop run --journal FILE` and `AgentLoop(journal=SqliteJournal(FILE))` write them down. An ID is the id of an
    execution, or its beginning; MODULE:LOOP is a loop in a module, or a function that makes one.
    """


for _command in (list_runs, show, resume, replay, fork, verify, export):
    runs.add_command(_command)
