"""`agentloop run`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import wraps
from typing import Any

import click
from attrs import frozen

from agentloop.cli import demo
from agentloop.cli.console import console, exit_code, on_one_terminal, printable, shortcoming, summary
from agentloop.cli.errors import BadUsage, Interrupted, told_as_bad_usage
from agentloop.cli.execution import Decider, TerminalApprover, approved, can_ask, concluded, denied, undecided
from agentloop.cli.inventory import mcp_option, servers_from
from agentloop.cli.journals import VARIABLE, found, told_of_journals, with_journal
from agentloop.cli.options import Manner, manner_options
from agentloop.cli.progress import Progress
from agentloop.cli.runs_resume import how_to_go_on
from agentloop.cli.sources import tools_from
from agentloop.contracts.can_infer import CanInfer
from agentloop.contracts.tools import Tools
from agentloop.inference.config import LLMConfig
from agentloop.inference.http_inference import HttpInference
from agentloop.inference.model_rows import CapabilityRow
from agentloop.inference.presets import PRESETS
from agentloop.interception.budgets.budget import Budget, TimeLimit
from agentloop.interception.interceptor import Interceptor
from agentloop.interception.rules import RequireApproval
from agentloop.journal.sqlite.sqlite_journal import SqliteJournal
from agentloop.loop.agent_loop import AgentLoop
from agentloop.values.secrets import Secret
from agentloop.values.serialization import to_json
from agentloop.values.state import AgentState
from agentloop.values.time_and_ids import RandomIds


@frozen(kw_only=True)
class RunLimits:
    """What an execution may use up.

    Attributes:
        max_steps: the most steps.
        timeout: the most seconds; None for no limit.
        max_tokens: the most tokens, read and written; None for no limit.
        max_cost: the most dollars; None for no limit.
    """

    max_steps: int
    timeout: float | None = None
    max_tokens: int | None = None
    max_cost: float | None = None

    def interceptors(self, model: str) -> list[Interceptor]:
        """Return what keeps the limits other than that of steps.

        Args:
            model: the model that is asked, by whose price money is counted.

        Raises:
            BadUsage: when the time is none.
            ConfigurationError: when prices are needed and not installed.
        """
        made: list[Interceptor] = []
        if self.timeout is not None:
            try:
                made.append(TimeLimit(self.timeout))
            except ValueError as error:
                raise BadUsage(f"--timeout is a number of seconds above 0, not {self.timeout:g}") from error
        if self.max_tokens is not None or self.max_cost is not None:
            made.append(Budget(tokens=self.max_tokens, cost=self.max_cost, model=model))
        return made


def limit_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add options for limits to a command, which gets them as its argument `limits`."""

    @wraps(command)
    def with_limits(
        *given: Any,
        max_steps: int,
        timeout: float | None,
        max_tokens: int | None,
        max_cost: float | None,
        **options: Any,
    ) -> None:
        limits = RunLimits(max_steps=max_steps, timeout=timeout, max_tokens=max_tokens, max_cost=max_cost)
        command(*given, limits=limits, **options)

    for option in reversed(_OPTIONS):
        option(with_limits)
    return with_limits


_OPTIONS = (
    click.option(
        "--max-steps", default=50, show_default=True, type=click.IntRange(min=1), help="Stop after this many steps."
    ),
    click.option("--timeout", type=float, metavar="SECONDS", help="Stop after this long. No limit when left out."),
    click.option(
        "--max-tokens",
        type=click.IntRange(min=1),
        metavar="TOKENS",
        help="Use no more tokens than this in all, read and written; a part is kept back for a last answer.",
    ),
    click.option(
        "--max-cost",
        type=click.FloatRange(min=0, min_open=True),
        metavar="DOLLARS",
        help="Spend no more than this, by the prices that providers publish (needs the extra prices). A model whose price is "
        "not known is taken for a dear one.",
    ),
)


_SHORTEST_SECRET = 4
"""What is shorter, as the keys that local servers do not look at, would be found everywhere."""


@frozen
class JournalTarget:
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
    def of(cls, file: str | None, resumed: str | None, question: str | None) -> JournalTarget | None:
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


DEMO_MODEL = "demo"
"""The model that needs no API key and no network."""
_DEMO_MODES = ("auto", "native")
_DEMO_NOTICE = "The model is scripted: it needs no API key and no network, and it answers the demo's question only."


@frozen(kw_only=True)
class Subject:
    """What `agentloop run` executes: the question, the model and the tools.

    Attributes:
        question: the user's message.
        inference: the model.
        model_name: the model's name, without its provider.
        tools: the tools that the model may call.
        system_prompt: the instructions before the question.
        secrets: values that the journal masks.
        capabilities: capability rows that precede the published ones.
        dependencies: what the tools receive as `ToolContext.dependencies`.
        notice: a line about the model, shown before the progress; may be empty.
    """

    question: str
    inference: CanInfer
    model_name: str
    tools: Tools
    system_prompt: str
    secrets: Sequence[Secret] = ()
    capabilities: Sequence[CapabilityRow] = ()
    dependencies: object = None
    notice: str = ""


def subject_of(
    model: str,
    question: str | None,
    places: Sequence[str],
    *,
    allow: Sequence[str],
    base_url: str | None,
    system: str,
) -> Subject:
    """Return what the arguments of the command name.

    Args:
        model: the model string, or `demo`.
        question: the question, or `-` to read it from stdin; None for the demo's own question.
        places: the files of the tools.
        allow: the modules that TOML files of tools may name.
        base_url: the address of the model, if it is not the provider's own.
        system: the system prompt.

    Raises:
        BadUsage: the arguments contradict each other.
        ConfigurationError: there is no such model or tool.
    """
    if model == DEMO_MODEL:
        if base_url is not None:
            raise BadUsage("the model demo runs in this process and has no address; omit --base-url")
        text = demo.QUESTION if question is None else _read(question)
        return _demo_subject(text, tools_from(places, allow) if places else None, system)
    if question is None:
        raise click.UsageError("Missing argument 'QUESTION'; only the model demo has a question of its own")
    text, tools = _read(question), tools_from(places, allow)
    config = LLMConfig.parse(model, base_url=base_url)
    return Subject(
        question=text,
        inference=HttpInference(config),
        model_name=config.model,
        tools=tools,
        system_prompt=system,
        secrets=config.secrets,
    )


def _demo_subject(question: str, tools: Tools | None, system: str) -> Subject:
    return Subject(
        question=question,
        inference=demo.scripted_inference(),
        model_name=demo.MODEL_NAME,
        tools=Tools.of(demo.TOOLS) if tools is None else tools,
        system_prompt=system or demo.SYSTEM_PROMPT,
        capabilities=demo.CAPABILITIES,
        dependencies=demo.Cluster() if tools is None else None,
        notice=_DEMO_NOTICE,
    )


def _read(question: str) -> str:
    if question == "-":
        try:
            question = sys.stdin.read()
        except UnicodeDecodeError as error:
            raise BadUsage(f"the question on stdin is not text: {error}") from error
    if not question.strip():
        raise click.UsageError("the question is empty")
    return question


_EPILOG = """\
\b
Examples:
  agentloop run --model demo --stream
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
    limits: RunLimits,
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
    recorded = JournalTarget.of(journal_file, resumed, question)
    question = "go on" if resumed is not None else question
    if model == DEMO_MODEL and (manner.driver_name != "tools" or manner.mode not in _DEMO_MODES):
        raise BadUsage("the model demo calls tools natively; use --driver tools with --mode auto or native")
    with redirect_stdout(sys.stderr), told_as_bad_usage():
        subject = subject_of(model, question, places, allow=allow, base_url=base_url, system=system)
        interceptors = [*limits.interceptors(subject.model_name), *([] if approve is None else [RequireApproval()])]
        loop = AgentLoop(
            manner.driver(subject.inference, subject.capabilities),
            subject.tools.plus(*servers_from(mcp)),
            system_prompt=subject.system_prompt,
            max_steps=limits.max_steps,
            interceptors=interceptors,
            journal=None if recorded is None else recorded.journal(subject.secrets),
        )
        state, shown = _executed(loop, subject, _decider(approve), recorded, quiet=quiet)
    _tell(state, shown, quiet=quiet, as_json=as_json)
    if state.pending and recorded is not None:
        click.echo(f"It waits in the journal; {recorded.way_on}.", err=True)
    context.exit(exit_code(state))


def _decider(approve: str | None) -> Decider:
    if approve == "all":
        return approved
    if approve == "none":
        return denied
    return TerminalApprover(console(stderr=True)) if can_ask() else undecided


def _executed(
    loop: AgentLoop, subject: Subject, decide: Decider, recorded: JournalTarget | None, *, quiet: bool
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


def _concluded(loop: AgentLoop, subject: Subject, decide: Decider, recorded: JournalTarget | None) -> AgentState:
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


def _tell(state: AgentState, shown: str, *, quiet: bool, as_json: bool) -> None:
    if not quiet:
        click.echo(summary(state), err=True)
    short = shortcoming(state)
    if short:
        click.echo(short, err=True)
    if state.pending:
        click.echo("Run it on a terminal to be asked about each, or with --approve all or --approve none.", err=True)
    if as_json:
        click.echo(to_json(state))
    elif state.final_text and not (shown == state.final_text.strip() and on_one_terminal(sys.stdout, sys.stderr)):
        answer = printable(state.final_text) if sys.stdout.isatty() else state.final_text
        click.echo(answer, color=True)  # as it is: click would take colors out where the output is not a terminal
