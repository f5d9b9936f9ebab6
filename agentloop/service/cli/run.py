"""`agentloop run`: answer a question with a model and tools."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout

import click
from attrs import frozen

from agentloop.loop.agent_loop import AgentLoop, Input
from agentloop.service.cli.agent_options import (
    AgentOptions,
    RunLimits,
    Subject,
    agent_options,
    approvals,
    approve_option,
    decider,
    limit_options,
    print_unasked,
)
from agentloop.service.cli.attachments import attachment_option
from agentloop.service.cli.configuration import is_given
from agentloop.service.cli.console import (
    as_printable,
    create_console,
    describe_problem,
    exit_code_of,
    is_same_terminal,
    mask_log_records,
    summarize,
)
from agentloop.service.cli.errors import CommandInterrupted, InvalidUsage, as_usage_errors
from agentloop.service.cli.execution import Decider, SessionGrants, run_to_end
from agentloop.service.cli.journals import (
    JOURNAL_VARIABLE,
    as_journal_errors,
    complete_execution,
    find_execution,
    journal_argument,
    open_journal,
    recording_journal,
    session_option,
    with_journal,
    without_password,
)
from agentloop.service.cli.markdown import print_answer, renders_markdown
from agentloop.service.cli.progress import Progress, no_live_option
from agentloop.service.cli.runs_resume import describe_next_commands
from agentloop.values.serialization import to_json
from agentloop.values.state import AgentState
from agentloop.values.steps import ExecutionStatus
from agentloop.values.time_and_ids import RandomIds

# --- the journal ----------------------------------------------------------------------------------------------------


@frozen
class JournalTarget:
    """Where an execution is recorded.

    Attributes:
        file: the file of the journal.
        execution_id: the id of the execution.
        is_resumed: whether the execution is in the journal already.
        session: the session whose next turn the execution is; None for none.
    """

    file: str
    execution_id: str
    is_resumed: bool = False
    session: str | None = None

    @classmethod
    def of(cls, file: str | None, resumed: str | None, session: str | None = None) -> JournalTarget | None:
        """Return the target that the options name; None when nothing is recorded.

        Args:
            file: the value of `--journal`; None for the journal of the configuration file.
            resumed: the value of `--resume`.
            session: the value of `--session`.

        Raises:
            InvalidUsage: the options contradict each other, or there is no such execution.
        """
        file = recording_journal(file)
        # The id is chosen here, so that it can be printed before anything happens.
        if session is not None and (file is None or resumed is not None):
            raise InvalidUsage(
                "--session needs --journal FILE, in which the session is kept, and continues without --resume"
            )
        if resumed is None:
            return None if file is None else cls(file, RandomIds().new_id("execution"), session=session)
        if file is None:
            raise InvalidUsage(
                f"--resume requires the journal of the execution: --journal FILE ({JOURNAL_VARIABLE} is not used here)"
            )
        # The default journal and the variable do not apply: `run` writes only where --journal says.
        head = with_journal(file, lambda journal: find_execution(journal, resumed))
        return cls(file, head.execution_id, is_resumed=True)

    @property
    def resume_command(self) -> str:
        """How to resume the execution."""
        options = f"{journal_argument(self.file)} --resume {shlex.quote(self.execution_id)}"
        return f"run the same command with {options} instead of the question"

    def announce(self) -> None:
        """Print the id of the execution and how to resume it, before anything happens."""
        verb = "resuming" if self.is_resumed else "recorded as"
        click.echo(f"{verb} {self.execution_id} in {without_password(self.file)}", err=True)
        click.echo(f"to resume after an interruption: {self.resume_command}", err=True)

    @contextmanager
    def converting_errors(self) -> Iterator[None]:
        """Convert errors of the journal into errors of the command, and add the next commands to an interruption.

        Raises:
            CommandInterrupted: Ctrl-C was pressed, or SIGTERM received.
            InvalidUsage: a decision does not apply.
            JournalFailure: any other error of the journal.
        """
        try:
            with as_journal_errors():
                yield
        except (CommandInterrupted, KeyboardInterrupt) as interruption:
            argument = f" {journal_argument(self.file)}"
            next_commands = describe_next_commands(self.execution_id, self.resume_command, argument)
            account = "\n".join(filter(None, [str(interruption), next_commands]))
            raise CommandInterrupted(account, interruption) from None


# --- the command ----------------------------------------------------------------------------------------------------

_EPILOG = """\
\b
Examples:
  agentloop run --model demo --stream
  agentloop run "What is 12 % of 7,430?" --model openai:gpt-5 --tools sums.py
  agentloop run - --model ollama:qwen3 --tools shop.py:TOOLS < question.txt
  git diff | agentloop run -m openai:gpt-5 -s "You are a careful reviewer." "What is wrong here?"
  agentloop run -m openai:gpt-5 -a receipt.jpg "How much was it?"
  agentloop run "Where is order 7?" --model openai:gpt-5 --tools shop.toml --allow myapp.tools
  agentloop run "Tidy up my notes." --model openai:gpt-5 --tools notes.py --approve all
  agentloop run "Where is order 7?" --agent support.md --allow myapp.tools --var shop=Delft
  agentloop run "Where is order 7?" --agent support:loop
  agentloop run "Book the trip." --model openai:gpt-5 --tools travel.py --journal runs.db

\b
Exit codes:
  0    answered
  1    failed
  2    usage error: options, tools, or a missing API key
  3    stopped by a limit, or calls wait for a decision and there is no terminal to ask on
  130  interrupted by Ctrl-C; 143 by SIGTERM
"""


@click.command(epilog=_EPILOG)
@click.argument("question", required=False)
@attachment_option
@agent_options
@limit_options
@approve_option
@click.option(
    "--journal",
    "--db",
    "journal_file",
    type=click.Path(),
    metavar="FILE|URL",
    help="Record the execution in this SQLite file, which is created if needed, or in this PostgreSQL database: `agentloop "
    "runs` shows it, and an interrupted execution can be resumed.",
)
@click.option(
    "--resume",
    "resumed",
    metavar="ID",
    shell_complete=complete_execution,
    help="Resume this execution of the journal, interrupted or suspended, instead of asking a question. Repeat the other "
    "options of the original command.",
)
@session_option
@click.option("--quiet", is_flag=True, help="Print no progress, only the answer on stdout.")
@no_live_option
@click.option("--json", "as_json", is_flag=True, help="Print the final state as JSON instead of the answer.")
@click.pass_context
def run(  # one parameter for each option
    context: click.Context,
    *,
    question: str | None,
    attachments: Sequence[str],
    agent: AgentOptions,
    limits: RunLimits,
    approve: str | None,
    journal_file: str | None,
    resumed: str | None,
    session: str | None,
    quiet: bool,
    no_live: bool,
    as_json: bool,
) -> None:
    """Answer QUESTION with a model and your tools, for example `agentloop run -m ollama:qwen3 "What is 12 % of 7,430?"`.

    Text that is piped into the command precedes the question, or is the question if there is no other; a single - reads the
    question from stdin alone. The answer goes to stdout; the progress, and what the tools print, goes to stderr. An answer that --stream has shown is
    not repeated where both are the same terminal. The API key comes from the provider's environment variable, such as
    OPENAI_API_KEY. The tools run on this machine with your permissions.
    """
    if quiet and agent.driver.streaming and is_given(context, "stream"):
        raise InvalidUsage("--stream and --quiet contradict each other; omit one of them")
    if resumed is not None and (question is not None or attachments):
        raise InvalidUsage("--resume continues with the recorded question; omit the question and the attachments")
    target = JournalTarget.of(journal_file, resumed, session)
    # stdout has the answer alone, whatever modules and tools print.
    with redirect_stdout(sys.stderr), as_usage_errors():
        approve = approve or agent.default_approval
        agent.check()
        asked = (
            "" if resumed is not None else agent.read_input(question, attachments)
        )  # the recorded one is sent otherwise
        grants = SessionGrants()
        has_journal = target is not None
        guards = approvals(approve, grants, from_start=agent.has_strangers_words, has_journal=has_journal)
        subject = agent.build(guards)
        loop = limits.with_cost_asked(subject).apply(subject.loop, subject.model_name)
        if target is not None:
            loop = loop.replace(journal=open_journal(target.file, subject.secrets))
        grants.watch(loop)
        mask_log_records([loop.redaction])
        if not quiet:
            print_unasked(loop, approve)
        progress = None if quiet else Progress(create_console(stderr=True), live=not no_live)
        state, streamed = _execute(loop, subject, asked, decider(approve, grants), target, progress)
    _print_result(state, streamed, quiet=quiet, as_json=as_json)
    if state.status is not ExecutionStatus.COMPLETED and not (quiet and target is None):
        click.echo(_describe_continuation(state, target), err=True)
    context.exit(exit_code_of(state))


def _describe_continuation(state: AgentState, target: JournalTarget | None) -> str:
    """Return how to go on after a run that has not ended with an answer."""
    if target is None:
        return "Nothing is recorded: with --journal FILE, `agentloop runs show` shows what a run did, and what waits can be resumed."
    if state.pending:
        return f"The execution is in the journal; to resume it: {target.resume_command}."
    return (
        f"To show what it did: agentloop runs show {shlex.quote(target.execution_id)} {journal_argument(target.file)}"
    )


def _execute(  # noqa: PLR0917  # what is executed, how, and what is shown
    loop: AgentLoop,
    subject: Subject,
    question: Input,
    decide: Decider,
    target: JournalTarget | None,
    progress: Progress | None,
) -> tuple[AgentState, str]:
    """Return the final state, and the last text that was shown while it was generated."""
    if progress is None:
        return _run_recorded(loop, subject, question, decide, target), ""
    click.echo(subject.notice, err=True, nl=bool(subject.notice))
    if target is not None:
        target.announce()
    with progress:
        loop.wiretap(progress)
        state = _run_recorded(loop, subject, question, decide, target)
    return state, progress.streamed_text


def _run_recorded(
    loop: AgentLoop, subject: Subject, question: Input, decide: Decider, target: JournalTarget | None
) -> AgentState:
    if target is None:
        try:
            return run_to_end(loop, question, decide, subject.dependencies, principal=subject.principal)
        except CommandInterrupted as interruption:
            account = f"{interruption}\nNothing is recorded: with --journal FILE, an interrupted run can be resumed."
            raise CommandInterrupted(account, interruption) from None
    with target.converting_errors():
        return run_to_end(
            loop,
            question,
            decide,
            subject.dependencies,
            execution_id=target.execution_id,
            recovers=target.is_resumed,
            session=target.session,
            principal=subject.principal,
        )


def _print_result(state: AgentState, streamed: str, *, quiet: bool, as_json: bool) -> None:
    if not quiet:
        click.echo(summarize(state), err=True)
    problem = describe_problem(state)
    if problem:
        click.echo(problem, err=True)
    if state.pending:
        click.echo("Run the command on a terminal to be asked, or with --approve all or --approve none.", err=True)
    if as_json:
        click.echo(to_json(state))
        return
    # A retried response may have been streamed in part, so the texts are compared.
    text = state.final_text or ""
    was_shown = streamed == text.strip() and is_same_terminal(sys.stdout, sys.stderr)
    if text and not was_shown:
        _print_answer(text)


def _print_answer(text: str) -> None:
    console = create_console()
    if renders_markdown(console):
        print_answer(console, text)
        return
    answer = as_printable(text) if sys.stdout.isatty() else text
    click.echo(answer, color=True)  # unchanged: click removes colors where the output is not a terminal
