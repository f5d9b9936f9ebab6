"""`agentloop run`: answer a question with a model and tools."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import wraps
from glob import escape
from typing import Any

import click
from attrs import frozen

from agentloop.cli import demo
from agentloop.cli.console import (
    as_printable,
    create_console,
    describe_problem,
    exit_code_of,
    is_same_terminal,
    summarize,
)
from agentloop.cli.errors import CommandInterrupted, InvalidUsage, as_usage_errors
from agentloop.cli.execution import (
    Decider,
    TerminalApprover,
    approve_call,
    can_prompt,
    deny_call,
    leave_pending,
    run_to_end,
)
from agentloop.cli.inventory import load_servers, mcp_option
from agentloop.cli.journals import JOURNAL_VARIABLE, as_journal_errors, closed_at_end, find_execution, with_journal
from agentloop.cli.options import DriverOptions, driver_options
from agentloop.cli.progress import Progress
from agentloop.cli.runs_resume import describe_next_commands
from agentloop.cli.sources import load_tools
from agentloop.contracts.can_infer import CanInfer
from agentloop.contracts.tools import Tools
from agentloop.inference.config import LLMConfig
from agentloop.inference.http_inference import HttpInference
from agentloop.inference.model_rows import CapabilityRow
from agentloop.inference.presets import PRESETS
from agentloop.interception.budgets.budget import Budget, TimeLimit
from agentloop.interception.interceptor import Interceptor
from agentloop.interception.rules import RequireApproval, Rule
from agentloop.journal.sqlite.sqlite_journal import SqliteJournal
from agentloop.loop.agent_loop import AgentLoop
from agentloop.mcp.ensemble import McpEnsemble
from agentloop.values.secrets import Secret
from agentloop.values.serialization import to_json
from agentloop.values.state import AgentState
from agentloop.values.time_and_ids import RandomIds
from agentloop.values.tool_calls import Effect

# --- limits ---------------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class RunLimits:
    """The limits of an execution.

    Attributes:
        max_steps: the maximum number of steps.
        timeout: the maximum time, in seconds; None for no limit.
        max_tokens: the maximum number of tokens, input and output; None for no limit.
        max_cost: the maximum cost, in dollars; None for no limit.
    """

    max_steps: int
    timeout: float | None = None
    max_tokens: int | None = None
    max_cost: float | None = None

    def interceptors(self, model: str) -> list[Interceptor]:
        """Return interceptors that enforce all limits except that of steps.

        Args:
            model: the name of the model, whose price the cost is computed from.

        Raises:
            InvalidUsage: the timeout is not a positive number.
            ConfigurationError: prices are needed and not installed.
        """
        interceptors: list[Interceptor] = []
        if self.timeout is not None:
            # click has no range that excludes NaN.
            try:
                interceptors.append(TimeLimit(self.timeout))
            except ValueError as error:
                raise InvalidUsage(f"--timeout must be a number of seconds above 0, not {self.timeout:g}") from error
        if self.max_tokens is not None or self.max_cost is not None:
            interceptors.append(Budget(tokens=self.max_tokens, cost=self.max_cost, model=model))
        return interceptors


def limit_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add options for limits to a command, which receives them as its argument `limits`."""

    @wraps(command)
    def with_limits(
        *arguments: Any,
        max_steps: int,
        timeout: float | None,
        max_tokens: int | None,
        max_cost: float | None,
        **options: Any,
    ) -> None:
        limits = RunLimits(max_steps=max_steps, timeout=timeout, max_tokens=max_tokens, max_cost=max_cost)
        command(*arguments, limits=limits, **options)

    # Decorators apply from the bottom up; reversed, the help lists the options as above.
    for option in reversed(_LIMIT_OPTIONS):
        option(with_limits)
    return with_limits


_LIMIT_OPTIONS = (
    click.option(
        "--max-steps",
        default=50,
        show_default=True,
        type=click.IntRange(min=1),
        metavar="STEPS",
        help="Stop after this many steps.",
    ),
    click.option("--timeout", type=float, metavar="SECONDS", help="Stop after this time."),
    click.option(
        "--max-tokens",
        type=click.IntRange(min=1),
        metavar="TOKENS",
        help="Use at most this many tokens, input and output; some are reserved for a last answer.",
    ),
    click.option(
        "--max-cost",
        type=click.FloatRange(min=0, min_open=True),
        metavar="DOLLARS",
        help="Spend at most this much, at published prices (requires the extra `prices`). Models without a known price are "
        "assumed expensive.",
    ),
)


# --- the journal ----------------------------------------------------------------------------------------------------

_MIN_MASKED_SECRET = 4
"""The minimum length of a secret that is masked: placeholder keys of local servers, such as `-`, would match everywhere."""


@frozen
class JournalTarget:
    """Where an execution is recorded.

    Attributes:
        file: the file of the journal.
        execution_id: the id of the execution.
        is_resumed: whether the execution is in the journal already.
    """

    file: str
    execution_id: str
    is_resumed: bool = False

    @classmethod
    def of(cls, file: str | None, resumed: str | None, question: str | None) -> JournalTarget | None:
        """Return the target that the options name; None when nothing is recorded.

        Args:
            file: the value of `--journal`.
            resumed: the value of `--resume`.
            question: the question.

        Raises:
            InvalidUsage: the options contradict each other, or there is no such execution.
        """
        # The id is chosen here, so that it can be printed before anything happens.
        if resumed is None:
            return None if file is None else cls(file, RandomIds().new_id("execution"))
        if file is None:
            raise InvalidUsage(
                f"--resume requires the journal of the execution: --journal FILE ({JOURNAL_VARIABLE} is not used here)"
            )
        if question is not None:
            raise InvalidUsage("--resume continues with the recorded question; omit the question")
        # The default journal and the variable do not apply: `run` writes only where --journal says.
        head = with_journal(file, lambda journal: find_execution(journal, resumed))
        return cls(file, head.execution_id, is_resumed=True)

    def open(self, secrets: Iterable[Secret]) -> SqliteJournal:
        """Return the journal, which masks these secrets and is closed when the command ends."""
        masked = [secret for secret in secrets if len(secret.reveal()) >= _MIN_MASKED_SECRET]
        return closed_at_end(SqliteJournal(self.file, secrets=masked))

    @property
    def resume_command(self) -> str:
        """How to resume the execution."""
        options = f"--journal {shlex.quote(self.file)} --resume {shlex.quote(self.execution_id)}"
        return f"run the same command with {options} instead of the question"

    def announce(self) -> None:
        """Print the id of the execution and how to resume it, before anything happens."""
        verb = "resuming" if self.is_resumed else "recorded as"
        click.echo(f"{verb} {self.execution_id} in {self.file}", err=True)
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
            journal_argument = f" --journal {shlex.quote(self.file)}"
            next_commands = describe_next_commands(self.execution_id, self.resume_command, journal_argument)
            account = "\n".join(filter(None, [str(interruption), next_commands]))
            raise CommandInterrupted(account, interruption) from None


# --- the subject ----------------------------------------------------------------------------------------------------

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
        notice: a line about the model, printed before the progress; may be empty.
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


def build_subject(
    model: str,
    question: str | None,
    places: Sequence[str],
    *,
    allow: Sequence[str],
    base_url: str | None,
    system: str,
) -> Subject:
    """Build the subject from the arguments of the command.

    Args:
        model: the model string, or `demo`.
        question: the question, or `-` to read it from stdin; None for the demo's own question.
        places: the files of the tools.
        allow: the modules that TOML files of tools may name.
        base_url: the address of the model, if it is not the provider's own.
        system: the system prompt.

    Raises:
        InvalidUsage: the arguments contradict each other.
        ConfigurationError: there is no such model or tool.
    """
    if model == DEMO_MODEL:
        if base_url is not None:
            raise InvalidUsage("the model demo runs in this process and has no address; omit --base-url")
        text = demo.QUESTION if question is None else _read_question(question)
        return _demo_subject(text, load_tools(places, allow) if places else None, system)
    if question is None:
        raise click.UsageError("Missing argument 'QUESTION'; only the model demo has a question of its own")
    text, tools = _read_question(question), load_tools(places, allow)
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
        # Tools of the user do not know the demo's services.
        dependencies=demo.Cluster() if tools is None else None,
        notice=_DEMO_NOTICE,
    )


def _read_question(question: str) -> str:
    if question == "-":
        try:
            question = sys.stdin.read()
        except UnicodeDecodeError as error:
            raise InvalidUsage(f"the question on stdin is not text: {error}") from error
    if not question.strip():
        raise click.UsageError("the question is empty")
    return question


# --- the command ----------------------------------------------------------------------------------------------------

_EPILOG = """\
\b
Examples:
  agentloop run --model demo --stream
  agentloop run "What is 12 % of 7,430?" --model openai:gpt-5 --tools sums.py
  agentloop run - --model ollama:qwen3 --tools shop.py:TOOLS < question.txt
  agentloop run "Where is order 7?" --model openai:gpt-5 --tools shop.toml --allow myapp.tools
  agentloop run "Tidy up my notes." --model openai:gpt-5 --tools notes.py --approve all
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
@click.option(
    "--model",
    required=True,
    metavar="PROVIDER:MODEL",
    help="The model, such as openai:gpt-5; or demo, a scripted model with its own question and tools, without an API key or a "
    f"network. Providers: {', '.join(PRESETS)}.",
)
@click.option("--base-url", metavar="URL", help="The address of the API, if it is not the provider's.")
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
@click.option("--system", default="", metavar="TEXT", help="The system prompt.")
@driver_options
@limit_options
@click.option(
    "--approve",
    type=click.Choice(["ask", "all", "none"]),
    help="What to do about calls that need approval, which are those of tools that are not pure and of all MCP servers: ask "
    "about each on the terminal, which is the default, approve all, or deny all. The model demo, whose own tools change nothing "
    "outside of the process, needs no approval.",
)
@click.option(
    "--journal",
    "journal_file",
    metavar="FILE",
    help="Record the execution in this SQLite file, which is created if needed: `agentloop runs` shows it, and an "
    "interrupted execution can be resumed.",
)
@click.option(
    "--resume",
    "resumed",
    metavar="ID",
    help="Resume this execution of the journal, interrupted or suspended, instead of asking a question. Repeat the other "
    "options of the original command.",
)
@click.option("--quiet", is_flag=True, help="Print no progress, only the answer on stdout.")
@click.option("--json", "as_json", is_flag=True, help="Print the final state as JSON instead of the answer.")
@click.pass_context
def run(  # noqa: PLR0913  # one parameter for each option
    context: click.Context,
    *,
    question: str | None,
    model: str,
    base_url: str | None,
    places: Sequence[str],
    mcp: Sequence[str],
    allow: Sequence[str],
    system: str,
    driver: DriverOptions,
    limits: RunLimits,
    approve: str | None,
    journal_file: str | None,
    resumed: str | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Answer QUESTION with a model and your tools. A single - reads the question from stdin.

    The answer goes to stdout; the progress, and what the tools print, goes to stderr. An answer that --stream has shown is
    not repeated where both are the same terminal. The API key comes from the provider's environment variable, such as
    OPENAI_API_KEY. The tools run on this machine with your permissions.
    """
    if driver.streaming and quiet:
        raise InvalidUsage("--stream and --quiet contradict each other; omit one of them")
    approve = approve or ("all" if model == DEMO_MODEL and not places else "ask")
    target = JournalTarget.of(journal_file, resumed, question)
    question = "resume" if resumed is not None else question  # not sent: the recorded question is
    if model == DEMO_MODEL and (driver.name != "tools" or driver.mode not in _DEMO_MODES):
        raise InvalidUsage("the model demo calls tools natively; use --driver tools with --mode auto or native")
    # stdout has the answer alone, whatever modules and tools print.
    with redirect_stdout(sys.stderr), as_usage_errors():
        subject = build_subject(model, question, places, allow=allow, base_url=base_url, system=system)
        servers = load_servers(mcp)
        loop = AgentLoop(
            driver.build(subject.inference, subject.capabilities),
            subject.tools.plus(*servers),
            system_prompt=subject.system_prompt,
            max_steps=limits.max_steps,
            interceptors=[*limits.interceptors(subject.model_name), *_approvals(approve, servers)],
            journal=None if target is None else target.open(subject.secrets),
        )
        state, streamed = _execute(loop, subject, _decider(approve), target, quiet=quiet)
    _print_result(state, streamed, quiet=quiet, as_json=as_json)
    if state.pending and target is not None:
        click.echo(f"The execution is in the journal; to resume it: {target.resume_command}.", err=True)
    context.exit(exit_code_of(state))


_INSIDE_ENSEMBLES = -901  # so that a person reads the reason of an ensemble that asks itself


def _approvals(approve: str, servers: Iterable[McpEnsemble]) -> list[Interceptor]:
    """Return what suspends the calls of tools that may change something, and every call of a server."""
    if approve == "all":
        return []  # calls that an ensemble suspends are approved when they are pending
    effects = [Rule(effect=effect) for effect in Effect if effect is not Effect.PURE]
    return [
        RequireApproval(
            [*effects, *[Rule(ensemble=escape(server.name)) for server in servers]], priority=_INSIDE_ENSEMBLES
        )
    ]


def _decider(approve: str) -> Decider:
    if approve == "all":
        return approve_call
    if approve == "none":
        return deny_call
    return TerminalApprover(create_console(stderr=True)) if can_prompt() else leave_pending


def _execute(
    loop: AgentLoop, subject: Subject, decide: Decider, target: JournalTarget | None, *, quiet: bool
) -> tuple[AgentState, str]:
    """Return the final state, and the last text that was shown while it was generated."""
    if quiet:
        return _run_recorded(loop, subject, decide, target), ""
    click.echo(subject.notice, err=True, nl=bool(subject.notice))
    if target is not None:
        target.announce()
    with Progress(create_console(stderr=True)) as progress:
        loop.wiretap(progress)
        state = _run_recorded(loop, subject, decide, target)
    return state, progress.streamed_text


def _run_recorded(loop: AgentLoop, subject: Subject, decide: Decider, target: JournalTarget | None) -> AgentState:
    if target is None:
        return run_to_end(loop, subject.question, decide, subject.dependencies)
    with target.converting_errors():
        return run_to_end(
            loop,
            subject.question,
            decide,
            subject.dependencies,
            execution_id=target.execution_id,
            recovers=target.is_resumed,
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
    text = state.answer_text or ""
    was_shown = streamed == text.strip() and is_same_terminal(sys.stdout, sys.stderr)
    if text and not was_shown:
        answer = as_printable(text) if sys.stdout.isatty() else text
        click.echo(answer, color=True)  # unchanged: click removes colors where the output is not a terminal
