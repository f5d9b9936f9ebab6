"""`agentloop run`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack, redirect_stdout

import click

from agentloop.cli.approvals import Asking, Decider, approved, can_ask, denied, undecided
from agentloop.cli.bad_usage import BadUsage, told_as_bad_usage
from agentloop.cli.execution import concluded
from agentloop.cli.limits import Limits, limit_options
from agentloop.cli.manner import Manner, manner_options
from agentloop.cli.mcp_servers import mcp_option, servers_from
from agentloop.cli.outcome import exit_code, shortcoming, summary
from agentloop.cli.progress import Progress
from agentloop.cli.runs_recorded import Recorded
from agentloop.cli.subject import Subject, subject_of
from agentloop.cli.terminal import console, on_one_terminal
from agentloop.cli.terminal_text import printable
from agentloop.inference.presets import PRESETS
from agentloop.interception.approval import Approval
from agentloop.loop.agent_loop import AgentLoop
from agentloop.values.agent_state import AgentState
from agentloop.values.serialisation import to_json

_EPILOG = """\
\b
Examples:
  agentloop run --model demo --driver react
  agentloop run "What is 12 % of 7,430?" --model openai:gpt-5 --tools sums.py
  agentloop run - --model ollama:qwen3 --tools shop.py:TOOLS < question.txt
  agentloop run "Where is order 7?" --model openai:gpt-5 --tools shop.toml --allow myapp.tools
  agentloop run "Tidy up my notes." --model openai:gpt-5 --tools notes.py --approve ask
  agentloop run "Book the trip." --model openai:gpt-5 --tools travel.py --journal runs.db

\b
Exit codes:
  0    answered
  1    failed
  2    asked for in a wrong way: options, tools, a missing key
  3    stopped by a limit, or calls wait for a decision and nobody could be asked
  130  interrupted by Ctrl-C
"""


@click.command(epilog=_EPILOG)
@click.argument("question", required=False)
@click.option(
    "--model",
    required=True,
    metavar="PROVIDER:MODEL",
    help="The model, such as openai:gpt-5; or demo, a scripted one that needs no key and no network, with a question and "
    f"tools of its own. Providers: {', '.join(PRESETS)}.",
)
@click.option("--base-url", metavar="URL", help="Another address than the provider's own, as of a server of yours.")
@click.option(
    "--tools",
    "places",
    multiple=True,
    metavar="FILE[:NAME]",
    help="A Python file whose tools the model may call, or one tool, ensemble or list of tools in it; or a TOML file that "
    "describes ensembles, or one of them. May be repeated.",
)
@mcp_option
@click.option("--allow", multiple=True, metavar="MODULE", help="A module that a TOML file may name. May be repeated.")
@click.option("--system", default="", metavar="TEXT", help="Instructions that stand before the question.")
@manner_options
@limit_options
@click.option(
    "--approve",
    type=click.Choice(["ask", "all", "none"]),
    help="Hold back the calls of tools that change something, and ask about each on the terminal, let all run, or deny "
    "all. When left out, tools just run; only calls that an ensemble holds back are asked about.",
)
@click.option(
    "--journal",
    "journal_file",
    metavar="FILE",
    help="Write down what happens, in a SQLite file that is made when it is not there: `agentloop runs` shows it, and an "
    "interrupted execution can be gone on with.",
)
@click.option(
    "--resume",
    "resumed",
    metavar="ID",
    help="Go on with this execution of the journal, interrupted or waiting, instead of asking a question. The other options are "
    "those that it began with.",
)
@click.option("--quiet", is_flag=True, help="Show no progress: only the answer, on stdout.")
@click.option("--json", "as_json", is_flag=True, help="Write the final state, as JSON, instead of the answer.")
@click.pass_context
def run(  # noqa: PLR0913  # an option each
    context: click.Context,
    *,
    question: str | None,
    model: str,
    base_url: str | None,
    places: Sequence[str],
    mcp: Sequence[str],
    allow: Sequence[str],
    system: str,
    manner: Manner,
    limits: Limits,
    approve: str | None,
    journal_file: str | None,
    resumed: str | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Let a model answer QUESTION, with tools of yours. A single - reads the question from stdin.

    The answer goes to stdout; progress, and what the tools print, goes to stderr. An answer that --stream has shown is not
    shown again where both are the same terminal. The key is taken from the provider's
    environment variable, such as OPENAI_API_KEY. The tools run on this machine, with your rights.
    """
    if manner.streaming and quiet:
        raise BadUsage("--stream shows what the model writes, and --quiet shows nothing; leave one of them out")
    recorded = Recorded.of(journal_file, resumed, question)
    question = "go on" if resumed is not None else question
    with ExitStack() as stack:
        with redirect_stdout(sys.stderr), told_as_bad_usage():
            subject = subject_of(model, question, places, stack, allow=allow, base_url=base_url, system=system)
            interceptors = [
                *subject.rules,
                *limits.interceptors(subject.model_name),
                *([] if approve is None else [Approval()]),
            ]
            loop = AgentLoop(
                manner.driver(subject.inference, subject.models),
                subject.tools.plus(*servers_from(mcp)),
                system_prompt=subject.system_prompt,
                max_steps=limits.max_steps,
                interceptors=interceptors,
                journal=None if recorded is None else recorded.journal(subject.secrets),
            )
            state, shown = _executed(loop, subject, _decider(approve), recorded, quiet=quiet)
        _tell(state, subject, shown, quiet=quiet, as_json=as_json)
        if state.pending and recorded is not None:
            click.echo(f"It waits in the journal; {recorded.way_on}.", err=True)
    context.exit(exit_code(state))


def _decider(approve: str | None) -> Decider:
    if approve == "all":
        return approved
    if approve == "none":
        return denied
    return Asking(console(stderr=True)) if can_ask() else undecided


def _executed(
    loop: AgentLoop, subject: Subject, decide: Decider, recorded: Recorded | None, *, quiet: bool
) -> tuple[AgentState, str]:
    """Return the final state, and the last text of the model that was shown while it was written."""
    if quiet:
        return _concluded(loop, subject, decide, recorded), ""
    click.echo(subject.notice, err=True, nl=bool(subject.notice))
    if recorded is not None:
        recorded.tell()
    with Progress(console(stderr=True)) as progress:
        loop.wiretap(progress)
        state = _concluded(loop, subject, decide, recorded)
    return state, progress.written


def _concluded(loop: AgentLoop, subject: Subject, decide: Decider, recorded: Recorded | None) -> AgentState:
    if recorded is None:
        return concluded(loop, subject.question, decide, subject.dependencies)
    with recorded.told():
        return concluded(
            loop,
            subject.question,
            decide,
            subject.dependencies,
            execution_id=recorded.execution_id,
            goes_on=recorded.goes_on,
        )


def _tell(state: AgentState, subject: Subject, shown: str, *, quiet: bool, as_json: bool) -> None:
    if not quiet:
        for line in filter(None, [summary(state), subject.account()]):
            click.echo(line, err=True)
    short = shortcoming(state)
    if short:
        click.echo(short, err=True)
    if state.pending:
        click.echo("Run it on a terminal to be asked about each, or with --approve all or --approve none.", err=True)
    if as_json:
        click.echo(to_json(state))
    elif state.final_text and not (shown == state.final_text.strip() and on_one_terminal(sys.stdout, sys.stderr)):
        answer = printable(state.final_text) if sys.stdout.isatty() else state.final_text
        click.echo(answer, color=True)  # as it is: click would take colours out where the output is not a terminal
