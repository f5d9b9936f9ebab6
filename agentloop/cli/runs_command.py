"""`agentloop runs`."""

from __future__ import annotations

import click

from agentloop.cli.runs_export import export
from agentloop.cli.runs_list import list_runs
from agentloop.cli.runs_resume import resume
from agentloop.cli.runs_show import show
from agentloop.cli.runs_verify import verify


@click.group()
def runs() -> None:
    """Look at the executions of a journal, go on with them, and check them.

    `agentloop run --journal FILE` and `AgentLoop(journal=SqliteJournal(FILE))` write them down.
    """


for _command in (list_runs, show, resume, verify, export):
    runs.add_command(_command)
