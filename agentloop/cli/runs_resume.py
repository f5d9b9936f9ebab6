"""`agentloop runs resume`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout

import click

from agentloop.cli.approvals import Asking, Decider, can_ask, undecided
from agentloop.cli.bad_usage import told_as_bad_usage
from agentloop.cli.execution import executed
from agentloop.cli.interrupted import Interrupted
from agentloop.cli.named_loop import loop_of
from agentloop.cli.outcome import exit_code, shortcoming, summary
from agentloop.cli.progress import Progress
from agentloop.cli.runs_decisions import GivenDecisions, decision_options
from agentloop.cli.runs_journal import found, journal_option, told_of_journals
from agentloop.cli.runs_journaled import journaled
from agentloop.cli.terminal import console
from agentloop.cli.terminal_text import printable
from agentloop.loop.agent_loop import AgentLoop
from agentloop.values.agent_state import AgentState
from agentloop.values.decision import Decision
from agentloop.values.in_doubt import InDoubt
from agentloop.values.serialisation import to_json

_EPILOG = """\
\b
Examples:
  agentloop runs resume execution_6f1d support:loop
  agentloop runs resume execution_6f1d support.py:loop --approve 2.1 --deny 2.2="ask again on Monday"

\b
Exit codes:
  0    answered
  1    failed, or the journal does not let it go on
  2    asked for in a wrong way
  3    stopped by a limit, or calls wait for a decision and nobody could be asked
  130  interrupted by Ctrl-C
"""


@click.command(epilog=_EPILOG)
@click.argument("execution", metavar="ID")
@click.argument("loop_path", metavar="MODULE:LOOP")
@journal_option
@decision_options
@click.option(
    "--in-doubt",
    type=click.Choice([policy.value for policy in InDoubt]),
    help="What becomes of a call with an effect that was interrupted, when its tool cannot find out whether it has run: the "
    "model is told, a person decides, or the execution fails. As the loop says when left out.",
)
@click.option("--quiet", is_flag=True, help="Show no progress: only the answer, on stdout.")
@click.option("--json", "as_json", is_flag=True, help="Write the final state, as JSON, instead of the answer.")
@click.pass_context
def resume(  # an option each
    context: click.Context,
    *,
    execution: str,
    loop_path: str,
    journal_file: str | None,
    given: GivenDecisions,
    in_doubt: str | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Go on with an execution that was interrupted, or that waits for decisions.

    What is recorded is not done again: answers of the model and outcomes of calls are used as they are. MODULE:LOOP is the
    loop that began it, or a function that makes it; a file, as support.py:loop, will do. A KEY is the key of a call, or its place
    as `agentloop runs show` tells it, such as 2.1. What waits and is not decided here is asked about on the terminal.
    """
    with told_as_bad_usage(), told_of_journals():
        loop = journaled(loop_of(loop_path), journal_file)
        assert loop.journal is not None  # noqa: S101  # it was just given one
        execution_id = asyncio.run(found(loop.journal, execution)).execution_id
        with redirect_stdout(sys.stderr):
            state = gone_on(loop, execution_id, given, in_doubt=in_doubt, quiet=quiet)
    tell(state, quiet=quiet, as_json=as_json)
    context.exit(exit_code(state))


def gone_on(
    loop: AgentLoop, execution_id: str, given: GivenDecisions, *, in_doubt: str | None = None, quiet: bool = False
) -> AgentState:
    """Recover an execution, and resume it as long as what waits can be decided; show its progress.

    Args:
        loop: the loop, with its journal.
        execution_id: the execution.
        given: the decisions of the command line.
        in_doubt: what becomes of calls in doubt; as the loop says when left out.
        quiet: whether nothing is shown.

    Raises:
        Interrupted: by Ctrl-C.
        BadUsage: when decisions were given for calls that do not wait.
    """
    decide = Asking(console(stderr=True)) if can_ask() else undecided
    with Progress(console(stderr=True)) as progress:
        subscription = None if quiet else loop.wiretap(progress)
        try:
            state = executed(loop.recover(execution_id, in_doubt=in_doubt))
            while state.pending and (decisions := _decided(state, given, decide)):
                state = executed(loop.resume(execution_id, decisions))
        except Interrupted as stop:
            raise Interrupted(f"{stop}\n{how_to_go_on(execution_id)}") from None
        finally:
            if subscription is not None:
                subscription.cancel()
    given.check_used()
    return state


def how_to_go_on(execution_id: str, journal: str = "") -> str:
    """Say what can be done about an execution that Ctrl-C has stopped.

    Args:
        execution_id: the execution.
        journal: the option that names the journal, if the commands need it.
    """
    return (
        f"It is recorded as {execution_id}: `agentloop runs show {execution_id}{journal}` tells what it did, and `agentloop "
        f"runs fork {execution_id}{journal} --step N` makes another that goes on from one of its steps."
    )


def _decided(state: AgentState, given: GivenDecisions, decide: Decider) -> Mapping[str, Decision]:
    try:
        return given.taken(state, decide)
    except KeyboardInterrupt:
        raise Interrupted(printable(state.explain())) from None


def tell(state: AgentState, *, quiet: bool, as_json: bool) -> None:
    """Write the answer to stdout, and what else there is to say to stderr."""
    if not quiet:
        click.echo(summary(state), err=True)
    short = shortcoming(state)
    if short:
        click.echo(short, err=True)
    if state.pending:
        click.echo(
            "Decide about each with --approve, --deny, --answer or --edit, or run it on a terminal to be asked.",
            err=True,
        )
        for call in state.pending:
            if not call.waits_for:
                click.echo(f"  --approve {printable(call.key)}", err=True)
    if as_json:
        click.echo(to_json(state))
    elif state.final_text:
        answer = printable(state.final_text) if sys.stdout.isatty() else state.final_text
        click.echo(answer, color=True)
