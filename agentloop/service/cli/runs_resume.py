"""`agentloop runs resume`, `fork`, `recover` and `send`: continue recorded executions."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from functools import partial, wraps
from typing import Any

import click
from attrs import define, evolve, field

from agentloop._event_loops import run_in_event_loop
from agentloop.contracts.can_journal import CanJournal
from agentloop.contracts.tool import CanContinueCall, CanReconcileCall
from agentloop.durable.commands import check_in_time, send_message
from agentloop.durable.fork_effects import ForkPolicy
from agentloop.durable.forking import fork as fork_execution
from agentloop.durable.journal import Journal
from agentloop.durable.trees import INTERRUPTED, effective_status
from agentloop.errors import (
    AgentLoopError,
    InboxClosed,
    InvalidDependencies,
    InvalidParameter,
    JournalConflict,
    JournalError,
    MalformedArguments,
)
from agentloop.loop.agent_loop import AgentLoop
from agentloop.service.cli.console import (
    as_one_line,
    as_printable,
    create_console,
    describe_problem,
    exit_code_of,
    format_call,
    format_call_number,
    format_pending_call,
    summarize,
)
from agentloop.service.cli.errors import CommandInterrupted, InvalidUsage, as_usage_errors
from agentloop.service.cli.execution import (
    DENIED_BY_USER,
    Decider,
    TerminalApprover,
    can_prompt,
    collect_decisions,
    leave_pending,
    obey_commands,
    run_interruptibly,
)
from agentloop.service.cli.grants import read_grant
from agentloop.service.cli.journals import (
    FC,
    account_for_calls,
    as_journal_errors,
    attach_journal,
    complete_execution,
    find_execution,
    journal_option,
    with_journal,
)
from agentloop.service.cli.progress import Progress
from agentloop.service.cli.sources import dependencies_option, load_dependencies, load_loop
from agentloop.values.commands import ExecutionCommand
from agentloop.values.decisions import Decision, PendingCall, answer, approve, deny, edit
from agentloop.values.grants import Grant
from agentloop.values.json import parse_json
from agentloop.values.messages import Message
from agentloop.values.records import ExecutionHead, InDoubt, RecordKind, caller_of
from agentloop.values.reprs import format_count
from agentloop.values.serialization import to_json
from agentloop.values.state import AgentState
from agentloop.values.steps import ExecutionStatus
from agentloop.values.tool_calls import Effect, ToolCall
from agentloop.values.visible_text import escape_invisible

# --- the decisions of a command line --------------------------------------------------------------------------------


@define
class DecisionOptions:
    """The decisions of a command line. Each applies once.

    Attributes:
        principal: who decides, for the record; empty when that is unknown.
        by_name: for the key of a call, or its number as `runs show` prints it (`2.1`), a function that returns its decision.
    """

    by_name: dict[str, Callable[[PendingCall], Decision]] = field(factory=dict)
    principal: str = ""

    def add(self, name: str, decision: Callable[[PendingCall], Decision]) -> None:
        """Add a decision.

        Raises:
            InvalidUsage: there is a decision for this name already.
        """
        if name in self.by_name:
            raise InvalidUsage(f"{as_one_line(name)} is decided twice")
        self.by_name[name] = decision

    def apply(self, state: AgentState, decide: Decider) -> Mapping[str, Decision]:
        """Return decisions about the pending calls; `decide` decides about calls that the command line does not name.

        Raises:
            InvalidUsage: a decision names a call that is not pending.
        """
        pending = [call for call in state.pending if not call.waits_for]
        named = {name: self._find(name, pending) for name in self.by_name}
        decisions = {call.key: self.by_name[name](call) for name, call in named.items()}
        # Cleared, so that a later suspension of the same run is not decided by these options.
        self.by_name.clear()
        decided = {**decisions, **collect_decisions(state, lambda call: decisions.get(call.key) or decide(call))}
        return {key: evolve(decision, principal=self.principal) for key, decision in decided.items()}

    def check_all_applied(self) -> None:
        """Reject decisions that did not apply, as when the execution has ended.

        Raises:
            InvalidUsage: decisions are left.
        """
        if self.by_name:
            raise InvalidUsage(
                f"no call waits for a decision, so {', '.join(map(as_one_line, self.by_name))} cannot be decided"
            )

    def _find(self, name: str, pending: Sequence[PendingCall]) -> PendingCall:
        # A call number is unique in one execution only; calls of a sub-agent may have the same number.
        matches = [call for call in pending if call.key == name]
        matches = matches or [call for call in pending if format_call_number(call.key) == name]
        if len(matches) == 1:
            return matches[0]
        listed = ", ".join([f"{as_one_line(call.key)} ({format_pending_call(call)})" for call in pending]) or "none"
        problem = "matches several calls" if matches else "is not a pending call"
        raise InvalidUsage(f"{as_one_line(name)} {problem}; the pending calls are {listed}")


def decision_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--approve`, `--grant`, `--endorse`, `--deny`, `--answer` and `--edit` to a command, which receives them as its argument `decisions`."""

    @wraps(command)
    def with_decisions(
        *arguments: Any,
        approvals: Sequence[str],
        given: Sequence[str],
        endorsements: Sequence[str],
        denials: Sequence[str],
        answers: Sequence[str],
        edits: Sequence[str],
        principal: str,
        **options: Any,
    ) -> None:
        decisions = DecisionOptions(principal=principal)
        for key in approvals:
            decisions.add(key, _approve)
        for key, text in map(_split, given):
            decisions.add(key, partial(_approve_from_now_on, _parse_grant(text, key)))
        for key, text in map(_split, endorsements):
            decisions.add(key, partial(_endorse, [name.strip() for name in text.split(",") if name.strip()]))
        for key, reason in map(_split, denials):
            decisions.add(key, partial(_deny, reason or DENIED_BY_USER))
        for key, text in map(_split, answers):
            decisions.add(key, partial(_answer, _parse_answer(text, key)))
        for key, text in map(_split, edits):
            decisions.add(key, partial(_edit, _parse_arguments(text, key)))
        command(*arguments, decisions=decisions, **options)

    # Decorators apply from the bottom up; reversed, the help lists the options as below.
    for option in reversed(_DECISION_OPTIONS):
        option(with_decisions)
    return with_decisions


_DECISION_OPTIONS = (
    click.option(
        "--approve",
        "approvals",
        multiple=True,
        metavar="KEY",
        help="Run a pending call. Each of these options may be repeated.",
    ),
    click.option(
        "--grant",
        "given",
        multiple=True,
        metavar="KEY=LIMITS",
        help="Run it, and later calls of its tool within limits, as in 2.1='amount <= 50; 10 uses; total amount <= 300; until 2026-12-24'. "
        "Each part is optional.",
    ),
    click.option(
        "--endorse",
        "endorsements",
        multiple=True,
        metavar="KEY[=NAMES]",
        help="Run it, and count the values of these arguments, as in 1.1/program/1=to,amount, as yours in later calls of its tool by the "
        "programs of this execution; without names, all values that somebody else has written.",
    ),
    click.option(
        "--deny", "denials", multiple=True, metavar="KEY[=WHY]", help="Do not run it, and tell the model the reason."
    ),
    click.option(
        "--answer", "answers", multiple=True, metavar="KEY=JSON", help="Use this result instead of running it."
    ),
    click.option(
        "--edit", "edits", multiple=True, metavar="KEY=JSON", help="Run it with other arguments, a JSON object."
    ),
    click.option("--as", "principal", metavar="NAME", default="", help="Who decides, for the record."),
)


def _approve(call: PendingCall) -> Decision:
    return approve(call.digest)


def _approve_from_now_on(grant: Grant, call: PendingCall) -> Decision:
    return approve(call.digest, grant=grant)


def _endorse(names: Sequence[str], call: PendingCall) -> Decision:
    other = [name for name in names if name not in call.endorsable]
    if other or not call.endorsable:
        can = ", ".join(map(as_one_line, call.endorsable)) or "nothing"
        raise InvalidUsage(
            f"of {as_one_line(call.key)} you can endorse {can}: what others wrote, in a call of a planned program"
        )
    return approve(call.digest, endorse=names or call.endorsable)


def _parse_grant(text: str, key: str) -> Grant:
    try:
        return read_grant(text)
    except InvalidParameter as error:
        raise InvalidUsage(f"the grant for {as_one_line(key)} cannot be read: {as_one_line(str(error))}") from error


def _deny(reason: str, call: PendingCall) -> Decision:
    return deny(reason, call.digest)


def _answer(value: object, call: PendingCall) -> Decision:
    return answer(value, call.digest)


def _edit(arguments: Mapping[str, object], call: PendingCall) -> Decision:
    return edit(arguments, call.digest)


def _split(option: str) -> tuple[str, str]:
    key, _, text = option.partition("=")
    return key, text


def _parse_answer(text: str, key: str) -> object:
    try:
        return parse_json(text)
    except ValueError as error:
        raise InvalidUsage(
            f"the answer for {as_one_line(key)} is not JSON: {error}; a string needs double quotes"
        ) from error


def _parse_arguments(text: str, key: str) -> Mapping[str, object]:
    try:
        # Empty arguments mean `{}` to a tool call; here they are a mistake.
        return ToolCall("", "", text or "?").arguments
    except MalformedArguments as error:
        raise InvalidUsage(f"the arguments for {as_one_line(key)} are invalid: {as_one_line(str(error))}") from error


# --- resume ---------------------------------------------------------------------------------------------------------

_RESUME_EPILOG = """\
\b
Examples:
  agentloop runs resume execution_6f1d support:loop
  agentloop runs resume execution_6f1d support.py:loop --approve 2.1 --deny 2.2="ask again on Monday"

\b
Exit codes:
  0    answered
  1    failed, or the journal cannot be used
  2    usage error
  3    stopped by a limit, or calls wait for a decision and there is no terminal to ask on
  130  interrupted by Ctrl-C; 143 by SIGTERM
"""


@click.command(epilog=_RESUME_EPILOG, short_help="Resume an interrupted or suspended execution.")
@click.argument("execution", metavar="ID", shell_complete=complete_execution)
@click.argument("loop_path", metavar="MODULE:LOOP")
@journal_option
@decision_options
@click.option(
    "--in-doubt",
    type=click.Choice([policy.value for policy in InDoubt]),
    help="What to do about an interrupted call with an effect when its tool cannot find out whether it ran: tell the model, "
    "suspend for a decision, or fail the execution. The loop's policy by default.",
)
@dependencies_option
@click.option("--quiet", is_flag=True, help="Print no progress, only the answer on stdout.")
@click.option("--json", "as_json", is_flag=True, help="Print the final state as JSON instead of the answer.")
@click.pass_context
def resume(  # one parameter for each option
    context: click.Context,
    *,
    execution: str,
    loop_path: str,
    journal_file: str | None,
    decisions: DecisionOptions,
    in_doubt: str | None,
    dependencies: str | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Resume an execution that was interrupted, or that waits for decisions.

    Recorded work is not repeated: responses of the model and outcomes of calls are reused. MODULE:LOOP is the loop that
    started the execution, or a function that returns it; file.py:loop works too. KEY is the key of a call, or its number in
    `agentloop runs show`, such as 2.1. On a terminal, you are asked about pending calls that no option decides.
    """
    with as_usage_errors(), as_journal_errors():
        loop = _load(loop_path, journal_file, dependencies)
        assert loop.journal is not None  # noqa: S101  # it was just attached
        execution_id = run_in_event_loop(find_execution(loop.journal, execution)).execution_id
        with redirect_stdout(sys.stderr):
            state = resume_run(loop, execution_id, decisions, in_doubt=in_doubt, quiet=quiet)
    print_result(state, quiet=quiet, as_json=as_json)
    context.exit(exit_code_of(state))


def _load(path: str, journal_file: str | None, dependencies: str | None) -> AgentLoop:
    """Return a loop with its journal, and with the dependencies that the command names in place of its own."""
    loop = attach_journal(load_loop(path), journal_file)
    made = load_dependencies(dependencies)
    return loop if made is None else loop.replace(dependencies=made)


def resume_run(
    loop: AgentLoop, execution_id: str, decisions: DecisionOptions, *, in_doubt: str | None = None, quiet: bool = False
) -> AgentState:
    """Recover an execution, and resume it while its pending calls can be decided.

    Args:
        loop: the loop, with its journal.
        execution_id: the execution.
        decisions: the decisions of the command line.
        in_doubt: the policy for calls in doubt; the loop's by default.
        quiet: whether to print no progress.

    Raises:
        CommandInterrupted: Ctrl-C was pressed.
        InvalidUsage: a decision names a call that is not pending, or a tool declares dependencies.
    """
    decide = TerminalApprover(create_console(stderr=True)) if can_prompt() else leave_pending
    with Progress(create_console(stderr=True)) as progress:
        # The loop belongs to the program of the user and may be used again, so the wiretap is removed at the end.
        subscription = None if quiet else loop.wiretap(progress)
        try:
            state = _recover_obeying(loop, execution_id, in_doubt)
            while state.pending and (applied := _apply(decisions, state, decide)):
                resume_with = partial(AgentLoop.resume, state=execution_id, decisions=applied)
                state = run_interruptibly(obey_commands(loop, execution_id, resume_with))
        except CommandInterrupted as interruption:
            next_commands = describe_next_commands(execution_id, f"agentloop runs resume {execution_id} module:loop")
            raise CommandInterrupted(f"{interruption}\n{next_commands}", interruption) from None
        except InvalidDependencies as error:
            raise InvalidUsage(_describe_dependencies(error, execution_id)) from error
        finally:
            if subscription is not None:
                subscription.cancel()
    # Only after the run is it known which calls were suspended.
    decisions.check_all_applied()
    return state


def _recover_obeying(loop: AgentLoop, execution_id: str, in_doubt: str | None) -> AgentState:
    """Recover an execution, which obeys the commands of other processes."""
    recover_it = partial(AgentLoop.recover, execution_id=execution_id, in_doubt=in_doubt)
    return run_interruptibly(obey_commands(loop, execution_id, recover_it))


def _describe_dependencies(error: InvalidDependencies, execution_id: str) -> str:
    return (
        f"{error}, or name them with --dependencies MODULE:NAME; a program can continue the execution, too, as with "
        f"loop.recover_sync({execution_id!r}, dependencies=…), or with resume_sync and the decisions if calls are pending"
    )


def _apply(decisions: DecisionOptions, state: AgentState, decide: Decider) -> Mapping[str, Decision]:
    try:
        return decisions.apply(state, decide)
    except KeyboardInterrupt as interruption:
        raise CommandInterrupted(escape_invisible(state.explain()), interruption) from None


def describe_next_commands(execution_id: str, resume_command: str, journal_argument: str = "") -> str:
    """Return the commands for an execution that Ctrl-C or SIGTERM has interrupted.

    Args:
        execution_id: the execution.
        resume_command: how to resume it.
        journal_argument: the option that names the journal, if the commands need it.
    """
    return (
        f"The execution is recorded as {execution_id}.\n"
        f"to show what it did: agentloop runs show {execution_id}{journal_argument}\n"
        f"to resume it: {resume_command}"
    )


def print_result(state: AgentState, *, quiet: bool, as_json: bool) -> None:
    """Print the answer or the state to stdout, and the summary and any problem to stderr."""
    if not quiet:
        click.echo(summarize(state), err=True)
    problem = describe_problem(state)
    if problem:
        click.echo(problem, err=True)
    if state.pending:
        click.echo(
            "Decide about each with --approve, --deny, --answer or --edit, or run the command on a terminal.", err=True
        )
        for call in state.pending:
            if not call.waits_for:
                click.echo(f"  --approve {as_printable(call.key)}", err=True)
    if as_json:
        click.echo(to_json(state))
    elif text := state.final_text:
        answer = as_printable(text) if sys.stdout.isatty() else text
        click.echo(answer, color=True)


# --- fork -----------------------------------------------------------------------------------------------------------

_FORK_EPILOG = """\
\b
Examples:
  agentloop runs fork execution_6f1d --step 3
  agentloop runs fork execution_6f1d --step 3 --effects simulate support:loop
"""


@click.command(epilog=_FORK_EPILOG, short_help="Start an execution from a step of another one.")
@click.argument("execution", metavar="ID", shell_complete=complete_execution)
@click.argument("loop_path", metavar="[MODULE:LOOP]", required=False)
@journal_option
@click.option(
    "--step",
    type=click.IntRange(min=0),
    metavar="N",
    required=True,
    help="The step after which the fork starts; 0 for the beginning.",
)
@click.option(
    "--effects",
    type=click.Choice([policy.value for policy in ForkPolicy]),
    default=ForkPolicy.REUSE.value,
    show_default=True,
    help="What to do about calls that are not pure. reuse: a call that the original made too gets its outcome, others run. "
    "simulate: none runs; calls that the original did not make count as successful. forbid: none runs, and the model sees an error.",
)
@dependencies_option
@click.option("--quiet", is_flag=True, help="Print no progress, only the id or the answer on stdout.")
@click.option(
    "--json", "as_json", is_flag=True, help="With MODULE:LOOP: print the final state as JSON instead of the answer."
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
    dependencies: str | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Start a new execution from the state that another one had after a step.

    The original stays as it is. With MODULE:LOOP the fork runs at once; without it, its id is printed to stdout, and
    `agentloop runs resume` runs it.
    """
    if loop_path is None:
        if as_json:
            raise InvalidUsage("--json prints the final state of the fork, so it needs MODULE:LOOP")
        fork_id = with_journal(journal_file, lambda journal: _fork(journal, execution, step, effects))
        click.echo(fork_id)
        if not quiet:
            click.echo(f"to run it: agentloop runs resume {fork_id} module:loop", err=True)
        return
    with as_usage_errors(), as_journal_errors():
        loop = _load(loop_path, journal_file, dependencies)
        assert loop.journal is not None  # noqa: S101  # it was just attached
        fork_id = run_in_event_loop(_fork(loop.journal, execution, step, effects))
        if not quiet:
            click.echo(f"recorded as {fork_id}", err=True)
        with redirect_stdout(sys.stderr):
            state = resume_run(loop, fork_id, DecisionOptions(), quiet=quiet)
    print_result(state, quiet=quiet, as_json=as_json)
    context.exit(exit_code_of(state))


async def _fork(journal: CanJournal, prefix: str, step: int, effects: str) -> str:
    head = await find_execution(journal, prefix)
    try:
        return await fork_execution(journal, head.execution_id, step, effects=effects)
    except JournalError as error:
        if type(error) is JournalError:  # the execution has no such step; subclasses are failures of the journal
            raise InvalidUsage(str(error)) from error
        raise


# --- recover --------------------------------------------------------------------------------------------------------

_RECOVER_EPILOG = """\
\b
Examples:
  agentloop runs recover --all support:loop --dry-run
  agentloop runs recover --all support:loop

\b
Exit codes:
  0    all were recovered and answered, or there was nothing to recover
  1    one failed, or could not be recovered
  2    usage error
  3    one was stopped by a limit, or waits for decisions
  130  interrupted by Ctrl-C; 143 by SIGTERM
"""


@click.command(epilog=_RECOVER_EPILOG, short_help="Recover interrupted executions.")
@click.argument("executions", metavar="[ID]...", nargs=-1, shell_complete=complete_execution)
@click.argument("loop_path", metavar="MODULE:LOOP")
@journal_option
@click.option("--all", "recovers_all", is_flag=True, help="Recover every interrupted execution that no process runs.")
@click.option(
    "--in-doubt",
    type=click.Choice([policy.value for policy in InDoubt]),
    help="What to do about interrupted calls that may have run; the loop's policy by default.",
)
@dependencies_option
@click.option("--dry-run", is_flag=True, help="Print what would be reused, run again or in doubt; run nothing.")
@click.pass_context
def recover(
    context: click.Context,
    *,
    executions: Sequence[str],
    loop_path: str,
    journal_file: str | None,
    recovers_all: bool,
    in_doubt: str | None,
    dependencies: str | None,
    dry_run: bool,
) -> None:
    """Continue interrupted executions, each with those of its sub-agents, one after the other.

    Recorded work is not repeated. For each execution, the interrupted calls are listed with what happens to them. An error of
    one does not stop the others. Executions that a live process runs are left alone; naming one is an error.
    """
    if bool(executions) == recovers_all:
        raise click.UsageError("name executions, or all of them with --all")
    with as_usage_errors(), as_journal_errors():
        loop = _load(loop_path, journal_file, dependencies)
        assert loop.journal is not None  # noqa: S101  # it was just attached
        heads = run_in_event_loop(_find_interrupted(loop.journal, executions))
        with redirect_stdout(sys.stderr):
            codes = {
                _recover(loop, head.execution_id, in_doubt, dry_run=dry_run, is_named=bool(executions))
                for head in heads
            }
    if not heads:
        click.echo("no interrupted executions", err=True)
    # A failure counts more than an execution that waits.
    context.exit(next((code for code in (1, 3) if code in codes), 0))


async def _find_interrupted(journal: CanJournal, prefixes: Sequence[str]) -> list[ExecutionHead]:
    """Return the named executions, or all interrupted ones that serve no call of another execution, the oldest first."""
    if prefixes:
        return [await find_execution(journal, prefix) for prefix in prefixes]
    heads = await journal.list(status=ExecutionStatus.IN_PROGRESS, unclaimed=True)
    # Agents that serve calls continue with their callers; one whose caller has ended is not continued.
    return [head for head in reversed(heads) if not caller_of(head.execution_id)]


def _recover(loop: AgentLoop, execution_id: str, in_doubt: str | None, *, dry_run: bool, is_named: bool) -> int:
    """Recover an execution, print its outcome, and return the exit code for it."""
    assert loop.journal is not None  # noqa: S101  # of the caller
    name = as_one_line(execution_id)
    try:
        for line in run_in_event_loop(_describe_interruption(loop.journal, execution_id, loop)):
            click.echo(f"{name}: {line}", err=True)
        if dry_run:
            return 0
        with Progress(create_console(stderr=True)) as progress:
            subscription = loop.wiretap(progress)
            try:
                state = _recover_obeying(loop, execution_id, in_doubt)
            finally:
                subscription.cancel()
    except JournalConflict as conflict:
        click.echo(f"{name}: skipped: {as_one_line(str(conflict))}", err=True)
        return 1 if is_named else 0
    except InvalidDependencies as error:
        click.echo(f"{name}: not recovered: {as_one_line(_describe_dependencies(error, execution_id))}", err=True)
        return 1
    except AgentLoopError as error:
        click.echo(f"{name}: not recovered: {type(error).__name__}: {as_one_line(str(error))}", err=True)
        return 1
    click.echo(f"{name}: {state.status.value}", err=True)
    return exit_code_of(state)


async def _describe_interruption(journal: CanJournal, execution_id: str, loop: AgentLoop) -> list[str]:
    """Return a line about what is reused of an execution, and one about each interrupted call."""
    records = await journal.read(execution_id)
    calls = account_for_calls(records)
    reused = sum([record.kind is RecordKind.INFERENCE_RECORDED for record in records])
    settled = sum([call.execution is not None for call in calls])
    interrupted = [
        f"{format_call(call.call)} was interrupted: {_describe_recovery(loop.tools.get(call.call.name), call.effect)}"
        for call in calls
        if call.execution is None and call.pending is None and call.effect is not None
    ]
    return [f"reuses {format_count(reused, 'response')} and {format_count(settled, 'outcome')}", *interrupted]


def _describe_recovery(tool: object, effect: Effect) -> str:
    """Return what happens to an interrupted call with this effect, as far as it is known without its tool."""
    if isinstance(tool, CanContinueCall) and tool.continues_calls:
        return "the agent continues"
    if effect is not Effect.EFFECT:
        return "runs again"
    if tool is not None and isinstance(tool, CanReconcileCall):
        return "is in doubt unless its tool can tell whether it ran"
    return "is in doubt"


# --- send -----------------------------------------------------------------------------------------------------------

person_option: Callable[[FC], FC] = click.option(
    "--as", "principal", metavar="NAME", default="", help="Who you are, for the record."
)


@click.command(short_help="Send a message to an execution.")
@click.argument("execution", metavar="ID", shell_complete=complete_execution)
@click.argument("text", metavar="TEXT")
@journal_option
@person_option
def send(*, execution: str, text: str, journal_file: str | None, principal: str) -> None:
    """Send a message to an execution, whichever process runs it; the model receives it before the next step.

    Example: `agentloop runs send execution_6f1d "Leave out the invoices of March."`.

    If no process runs the execution, the message waits until one does. One that came too late, because the execution was
    about to end, is not lost: `runs show` lists it. Workers, servers, `run`, `chat` and `runs resume`, `fork` and `recover`
    receive messages while they run an execution; a program of yours does with a `CommandListener`.
    """

    async def post(journal: Journal) -> str:
        head = await find_execution(journal, execution)
        name = as_one_line(head.execution_id)
        try:
            command = await send_message(journal, head.execution_id, Message.user(text), principal=principal)
            return f"{name}: {await _follow_message(journal, command)}"
        except InboxClosed as error:
            raise InvalidUsage(as_one_line(str(error))) from error

    click.echo(with_journal(journal_file, post))


_DELIVERY_SECONDS = 3.0
"""How long `send` waits for a running execution to receive the message."""
_LOOK_SECONDS = 0.1


async def _follow_message(journal: Journal, command: ExecutionCommand) -> str:
    """Wait until a message is delivered, as long as a process runs its execution, and return what became of it.

    Raises:
        InboxClosed: the execution has ended without it.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(_DELIVERY_SECONDS):
            while any(each.id == command.id for each in await journal.commands([command.execution_id])):
                await check_in_time(journal, command)
                head = await find_execution(journal, command.execution_id)
                if await effective_status(journal, head) in {INTERRUPTED, ExecutionStatus.SUSPENDED.value}:
                    return "sent; the message waits until a process runs the execution"
                await journal.wait_for_change(command.execution_id, timeout=_LOOK_SECONDS)
            return "received"
    return "sent; the execution has not received it yet"
