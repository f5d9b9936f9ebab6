"""`agentloop runs resume`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from functools import partial, wraps
from typing import Any

import click
from attrs import define, field

from agentloop.cli.console import call_text, console, exit_code, one_line, printable, shortcoming, summary
from agentloop.cli.errors import BadUsage, Interrupted, told_as_bad_usage
from agentloop.cli.execution import Decider, TerminalApprover, can_ask, executed, undecided
from agentloop.cli.journals import found, journal_option, journaled, told_of_journals, with_journal
from agentloop.cli.progress import Progress
from agentloop.cli.sources import loop_of
from agentloop.contracts.can_journal import CanJournal
from agentloop.errors import JournalError, MalformedArguments
from agentloop.journal.fork_effects import ForkPolicy
from agentloop.journal.forking import fork as forked
from agentloop.loop.agent_loop import AgentLoop
from agentloop.values.batches import parse_key
from agentloop.values.decisions import Decision, PendingCall, answer, approve, deny, edit
from agentloop.values.json import parse_json
from agentloop.values.records import InDoubt
from agentloop.values.serialization import to_json
from agentloop.values.state import AgentState
from agentloop.values.tool_calls import ToolCall

_DENIED = "the user has denied this call"


@define
class GivenDecisions:
    """What a command line decides; each decision is used once.

    Attributes:
        about: for a key, or for a place as `runs show` prints it (`2.1`), what makes the decision for the call.
    """

    about: dict[str, Callable[[PendingCall], Decision]] = field(factory=dict)

    def taken(self, state: AgentState, decide: Decider) -> Mapping[str, Decision]:
        """Return the decisions about the calls that wait; `decide` decides about those that the command line does not name.

        Raises:
            BadUsage: when a decision is about a call that does not wait.
        """
        waiting = [call for call in state.pending if not call.waits_for]
        named = {name: self._meant(name, waiting) for name in self.about}
        decisions = {call.key: self.about[name](call) for name, call in named.items()}
        self.about.clear()
        for call in waiting:
            if call.key in decisions:
                continue
            decision = decide(call)
            if decision is None:
                break
            decisions[call.key] = decision
        return decisions

    def check_used(self) -> None:
        """Refuse decisions that were for nothing, as when the execution has ended.

        Raises:
            BadUsage: when there are some.
        """
        if self.about:
            raise BadUsage(f"no call waits for a decision, so there is none for {', '.join(map(one_line, self.about))}")

    def _meant(self, name: str, waiting: Sequence[PendingCall]) -> PendingCall:
        meant = [call for call in waiting if call.key == name] or [call for call in waiting if _place(call.key) == name]
        if len(meant) == 1:
            return meant[0]
        known = ", ".join([f"{one_line(call.key)} ({call_text(call.call)})" for call in waiting]) or "none"
        problem = "is the place of several" if meant else "waits for no decision"
        raise BadUsage(f"{one_line(name)} {problem}; the calls that wait are {known}")


def decision_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--approve`, `--deny`, `--answer` and `--edit` to a command, which gets them as its argument `given`."""

    @wraps(command)
    def with_decisions(
        *arguments: Any,
        approve_keys: Sequence[str],
        denials: Sequence[str],
        answers: Sequence[str],
        edits: Sequence[str],
        **options: Any,
    ) -> None:
        given = GivenDecisions()
        for key in approve_keys:
            _add(given, key, _approval)
        for key, why in map(_split, denials):
            _add(given, key, partial(_denial, why or _DENIED))
        for key, text in map(_split, answers):
            _add(given, key, partial(_answer, _json(text, key)))
        for key, text in map(_split, edits):
            _add(given, key, partial(_edit, _arguments(text, key)))
        command(*arguments, given=given, **options)

    for option in reversed(_OPTIONS):
        option(with_decisions)
    return with_decisions


_OPTIONS = (
    click.option("--approve", "approve_keys", multiple=True, metavar="KEY", help="Let a call that waits run."),
    click.option(
        "--deny", "denials", multiple=True, metavar="KEY[=WHY]", help="Keep it from running, and tell the model why."
    ),
    click.option(
        "--answer", "answers", multiple=True, metavar="KEY=JSON", help="Settle it with a result, without running it."
    ),
    click.option(
        "--edit", "edits", multiple=True, metavar="KEY=JSON", help="Let it run with other arguments, a JSON object."
    ),
)


def _add(given: GivenDecisions, key: str, decision: Callable[[PendingCall], Decision]) -> None:
    if key in given.about:
        raise BadUsage(f"{one_line(key)} is decided twice")
    given.about[key] = decision


def _approval(call: PendingCall) -> Decision:
    return approve(call.digest)


def _denial(why: str, call: PendingCall) -> Decision:
    return deny(why, call.digest)


def _answer(value: object, call: PendingCall) -> Decision:
    return answer(value, call.digest)


def _edit(arguments: Mapping[str, object], call: PendingCall) -> Decision:
    return edit(arguments, call.digest)


def _split(told: str) -> tuple[str, str]:
    key, _, rest = told.partition("=")
    return key, rest


def _json(text: str, key: str) -> object:
    try:
        return parse_json(text)
    except ValueError as error:
        raise BadUsage(
            f"the answer for {one_line(key)} is not JSON: {error}; a text stands in quotation marks"
        ) from error


def _arguments(text: str, key: str) -> Mapping[str, object]:
    try:
        return ToolCall("", "", text or "?").arguments
    except MalformedArguments as error:
        raise BadUsage(f"the arguments for {one_line(key)} cannot be used: {one_line(str(error))}") from error


def _place(key: str) -> str:
    place = parse_key(key)
    return "" if place is None else f"{place[0]}.{place[1] + 1}"


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
    decide = TerminalApprover(console(stderr=True)) if can_ask() else undecided
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


_FORK_EPILOG = """\
\b
Examples:
  agentloop runs fork execution_6f1d --step 3
  agentloop runs fork execution_6f1d --step 3 --effects simulate support:loop
"""


@click.command(epilog=_FORK_EPILOG)
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
