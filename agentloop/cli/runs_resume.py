"""`agentloop runs resume` and `agentloop runs fork`: continue recorded executions."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from functools import partial, wraps
from typing import Any

import click
from attrs import define, field

from agentloop.cli.console import (
    as_one_line,
    as_printable,
    create_console,
    describe_problem,
    exit_code_of,
    format_call,
    format_call_number,
    summarize,
)
from agentloop.cli.errors import CommandInterrupted, InvalidUsage, as_usage_errors
from agentloop.cli.execution import (
    DENIED_BY_USER,
    Decider,
    TerminalApprover,
    can_prompt,
    collect_decisions,
    leave_pending,
    run_interruptibly,
)
from agentloop.cli.journals import as_journal_errors, attach_journal, find_execution, journal_option, with_journal
from agentloop.cli.progress import Progress
from agentloop.cli.sources import load_loop
from agentloop.contracts.can_journal import CanJournal
from agentloop.errors import JournalError, MalformedArguments
from agentloop.journal.fork_effects import ForkPolicy
from agentloop.journal.forking import fork as fork_execution
from agentloop.loop.agent_loop import AgentLoop
from agentloop.values.decisions import Decision, PendingCall, answer, approve, deny, edit
from agentloop.values.json import parse_json
from agentloop.values.records import InDoubt
from agentloop.values.serialization import to_json
from agentloop.values.state import AgentState
from agentloop.values.tool_calls import ToolCall

# --- the decisions of a command line --------------------------------------------------------------------------------


@define
class DecisionOptions:
    """The decisions of a command line. Each applies once.

    Attributes:
        by_name: for the key of a call, or its number as `runs show` prints it (`2.1`), a function that returns its decision.
    """

    by_name: dict[str, Callable[[PendingCall], Decision]] = field(factory=dict)

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
        return {**decisions, **collect_decisions(state, lambda call: decisions.get(call.key) or decide(call))}

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
        listed = ", ".join([f"{as_one_line(call.key)} ({format_call(call.call)})" for call in pending]) or "none"
        problem = "matches several calls" if matches else "is not a pending call"
        raise InvalidUsage(f"{as_one_line(name)} {problem}; the pending calls are {listed}")


def decision_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--approve`, `--deny`, `--answer` and `--edit` to a command, which receives them as its argument `decisions`."""

    @wraps(command)
    def with_decisions(
        *arguments: Any,
        approvals: Sequence[str],
        denials: Sequence[str],
        answers: Sequence[str],
        edits: Sequence[str],
        **options: Any,
    ) -> None:
        decisions = DecisionOptions()
        for key in approvals:
            decisions.add(key, _approve)
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
        "--deny", "denials", multiple=True, metavar="KEY[=WHY]", help="Do not run it, and tell the model the reason."
    ),
    click.option(
        "--answer", "answers", multiple=True, metavar="KEY=JSON", help="Use this result instead of running it."
    ),
    click.option(
        "--edit", "edits", multiple=True, metavar="KEY=JSON", help="Run it with other arguments, a JSON object."
    ),
)


def _approve(call: PendingCall) -> Decision:
    return approve(call.digest)


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
  130  interrupted by Ctrl-C
"""


@click.command(epilog=_RESUME_EPILOG, short_help="Resume an interrupted or suspended execution.")
@click.argument("execution", metavar="ID")
@click.argument("loop_path", metavar="MODULE:LOOP")
@journal_option
@decision_options
@click.option(
    "--in-doubt",
    type=click.Choice([policy.value for policy in InDoubt]),
    help="What to do about an interrupted call with an effect when its tool cannot find out whether it ran: tell the model, "
    "suspend for a decision, or fail the execution. The loop's policy by default.",
)
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
    quiet: bool,
    as_json: bool,
) -> None:
    """Resume an execution that was interrupted, or that waits for decisions.

    Recorded work is not repeated: responses of the model and outcomes of calls are reused. MODULE:LOOP is the loop that
    started the execution, or a function that returns it; file.py:loop works too. KEY is the key of a call, or its number in
    `agentloop runs show`, such as 2.1. On a terminal, you are asked about pending calls that no option decides.
    """
    with as_usage_errors(), as_journal_errors():
        loop = attach_journal(load_loop(loop_path), journal_file)
        assert loop.journal is not None  # noqa: S101  # it was just attached
        execution_id = asyncio.run(find_execution(loop.journal, execution)).execution_id
        with redirect_stdout(sys.stderr):
            state = resume_run(loop, execution_id, decisions, in_doubt=in_doubt, quiet=quiet)
    print_result(state, quiet=quiet, as_json=as_json)
    context.exit(exit_code_of(state))


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
        InvalidUsage: a decision names a call that is not pending.
    """
    decide = TerminalApprover(create_console(stderr=True)) if can_prompt() else leave_pending
    with Progress(create_console(stderr=True)) as progress:
        # The loop belongs to the program of the user and may be used again, so the wiretap is removed at the end.
        subscription = None if quiet else loop.wiretap(progress)
        try:
            state = run_interruptibly(loop.recover(execution_id, in_doubt=in_doubt))
            while state.pending and (applied := _apply(decisions, state, decide)):
                state = run_interruptibly(loop.resume(execution_id, applied))
        except CommandInterrupted as interruption:
            raise CommandInterrupted(f"{interruption}\n{describe_next_commands(execution_id)}") from None
        finally:
            if subscription is not None:
                subscription.cancel()
    # Only after the run is it known which calls were suspended.
    decisions.check_all_applied()
    return state


def _apply(decisions: DecisionOptions, state: AgentState, decide: Decider) -> Mapping[str, Decision]:
    try:
        return decisions.apply(state, decide)
    except KeyboardInterrupt:
        raise CommandInterrupted(as_printable(state.explain())) from None


def describe_next_commands(execution_id: str, journal_argument: str = "") -> str:
    """Return the commands for an execution that Ctrl-C has stopped.

    Args:
        execution_id: the execution.
        journal_argument: the option that names the journal, if the commands need it.
    """
    return (
        f"The execution is recorded as {execution_id}.\n"
        f"to show what it did: agentloop runs show {execution_id}{journal_argument}\n"
        f"to continue from one of its steps: agentloop runs fork {execution_id}{journal_argument} --step N"
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
    elif state.final_text:
        answer = as_printable(state.final_text) if sys.stdout.isatty() else state.final_text
        click.echo(answer, color=True)


# --- fork -----------------------------------------------------------------------------------------------------------

_FORK_EPILOG = """\
\b
Examples:
  agentloop runs fork execution_6f1d --step 3
  agentloop runs fork execution_6f1d --step 3 --effects simulate support:loop
"""


@click.command(epilog=_FORK_EPILOG, short_help="Start an execution from a step of another one.")
@click.argument("execution", metavar="ID")
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
        loop = attach_journal(load_loop(loop_path), journal_file)
        assert loop.journal is not None  # noqa: S101  # it was just attached
        fork_id = asyncio.run(_fork(loop.journal, execution, step, effects))
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
