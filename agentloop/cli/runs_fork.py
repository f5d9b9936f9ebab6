"""`agentloop runs fork`."""

from __future__ import annotations

import asyncio
import sys
from contextlib import redirect_stdout

import click

from agentloop.cli.bad_usage import BadUsage, told_as_bad_usage
from agentloop.cli.named_loop import loop_of
from agentloop.cli.outcome import exit_code
from agentloop.cli.runs_decisions import GivenDecisions
from agentloop.cli.runs_journal import found, journal_option, told_of_journals, with_journal
from agentloop.cli.runs_journaled import journaled
from agentloop.cli.runs_resume import gone_on, tell
from agentloop.contracts.can_journal import CanJournal
from agentloop.errors import JournalError
from agentloop.journal.fork_effects import ForkPolicy
from agentloop.journal.forking import fork as forked

_EPILOG = """\
\b
Examples:
  agentloop runs fork execution_6f1d --step 3
  agentloop runs fork execution_6f1d --step 3 --effects simulate support:loop
"""


@click.command(epilog=_EPILOG)
@click.argument("execution", metavar="ID")
@click.argument("loop_path", metavar="[MODULE:LOOP]", required=False)
@journal_option
@click.option(
    "--step",
    type=click.IntRange(min=0),
    required=True,
    help="The step after which it goes another way; 0 for the beginning.",
)
@click.option(
    "--effects",
    type=click.Choice([policy.value for policy in ForkPolicy]),
    default=ForkPolicy.REUSE.value,
    show_default=True,
    help="What becomes of calls that are not pure. reuse: one that the original made too gets what came of that, others run. "
    "simulate: none runs; what the original did not do is taken as done. forbid: none runs, and the model is told so.",
)
@click.option("--quiet", is_flag=True, help="Show no progress: only the id, or the answer, on stdout.")
@click.option(
    "--json", "as_json", is_flag=True, help="With MODULE:LOOP: write the final state, as JSON, instead of the answer."
)
@click.pass_context
def fork(
    context: click.Context,
    *,
    execution: str,
    loop_path: str | None,
    journal_file: str | None,
    step: int,
    effects: str,
    quiet: bool,
    as_json: bool,
) -> None:
    """Begin an execution in the middle of another one, with the state that it had after a step.

    The other one stays as it is. With MODULE:LOOP the new one goes on at once; without, its id is written to stdout, and
    `agentloop runs resume` goes on with it.
    """
    if loop_path is None:
        if as_json:
            raise BadUsage("--json writes what the fork comes to, so it needs MODULE:LOOP")
        fork_id = with_journal(journal_file, lambda journal: _begun(journal, execution, step, effects))
        click.echo(fork_id)
        if not quiet:
            click.echo(f"Go on with it: agentloop runs resume {fork_id} module:loop", err=True)
        return
    with told_as_bad_usage(), told_of_journals():
        loop = journaled(loop_of(loop_path), journal_file)
        assert loop.journal is not None  # noqa: S101  # it was just given one
        fork_id = asyncio.run(_begun(loop.journal, execution, step, effects))
        if not quiet:
            click.echo(f"recorded as {fork_id}", err=True)
        with redirect_stdout(sys.stderr):
            state = gone_on(loop, fork_id, GivenDecisions(), quiet=quiet)
    tell(state, quiet=quiet, as_json=as_json)
    context.exit(exit_code(state))


async def _begun(journal: CanJournal, beginning: str, step: int, effects: str) -> str:
    head = await found(journal, beginning)
    try:
        return await forked(journal, head.execution_id, step, effects=effects)
    except JournalError as error:
        if type(error) is JournalError:  # there is no such step
            raise BadUsage(str(error)) from error
        raise
