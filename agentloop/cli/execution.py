"""Executions that a person can interrupt."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Mapping
from typing import TypeAlias

from rich.console import Console
from rich.prompt import Prompt
from rich.text import Text

from agentloop.cli.console import call_text, one_line, printable
from agentloop.cli.errors import Interrupted
from agentloop.errors import MalformedArguments
from agentloop.loop.agent_loop import AgentLoop
from agentloop.values.decisions import Decision, PendingCall, approve, deny, edit
from agentloop.values.interruptions import interrupted_state
from agentloop.values.json import format_json
from agentloop.values.state import AgentState
from agentloop.values.tool_calls import ToolCall

Decider: TypeAlias = Callable[[PendingCall], Decision | None]
"""What decides about one call; None leaves it undecided."""

_WORDS = {"y": "y", "yes": "y", "n": "n", "no": "n", "e": "e", "edit": "e", "r": "r", "reason": "r"}
_DENIED = "the user has denied this call"


def decided(state: AgentState, decide: Decider) -> Mapping[str, Decision]:
    """Return the decisions about the calls that wait for one, in their order; it ends with the first that has none."""
    decisions: dict[str, Decision] = {}
    for call in state.pending:
        if call.waits_for:
            continue
        decision = decide(call)
        if decision is None:
            break
        decisions[call.key] = decision
    return decisions


def approved(call: PendingCall) -> Decision:
    """Let every call run."""
    return approve(call.digest)


def denied(call: PendingCall) -> Decision:
    """Let no call run."""
    return deny("calls that need approval are not approved here", call.digest)


def undecided(_: PendingCall) -> None:
    """Decide nothing."""


def can_ask() -> bool:
    """Say whether there is a person to ask: both what is read and what is shown is a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


class TerminalApprover:
    """Asks the person at the terminal about each call: y runs it, n does not, e edits its arguments, r denies it with a reason.

    Args:
        console: where the questions go.
    """

    def __init__(self, console: Console) -> None:
        self._console = console

    def __call__(self, call: PendingCall) -> Decision | None:
        """Ask about one call; None when there is no answer, as at the end of the input."""
        self._console.print(Text(f"{call_text(call.call)}  waits: {one_line(call.reason)}", "yellow"))
        try:
            return self._asked(call)
        except EOFError:
            self._console.print()
            return None

    def _asked(self, call: PendingCall) -> Decision:
        chosen = ""
        while not chosen:
            said = self._line("Run it? (y)es, (n)o, (e)dit the arguments, no for a (r)eason")
            chosen = _WORDS.get(said.strip().lower(), "")
        if chosen == "y":
            return approve(call.digest)
        if chosen == "e":
            return self._edited(call)
        reason = self._line("Reason, for the model") if chosen == "r" else ""
        return deny(reason or _DENIED, call.digest)

    def _edited(self, call: PendingCall) -> Decision:
        self._console.print(Text(f"Arguments now: {printable(call.call.arguments_json)}"))
        while True:
            written = self._line("Arguments, as one JSON object; empty leaves them as they are")
            if not written.strip():
                return approve(call.digest)
            try:
                arguments = ToolCall("", call.call.name, written).arguments
            except MalformedArguments as error:
                self._console.print(Text(one_line(str(error)), "red"))
                continue
            self._console.print(Text(f"Runs with {one_line(format_json(arguments).decode())}"))
            return edit(arguments, call.digest)

    def _line(self, question: str) -> str:
        return Prompt.ask(Text(question), console=self._console)


def concluded(
    loop: AgentLoop,
    question: str,
    decide: Decider,
    dependencies: object = None,
    *,
    execution_id: str | None = None,
    goes_on: bool = False,
) -> AgentState:
    """Run a loop to its end; where calls wait, have them decided about and go on.

    Args:
        loop: the loop.
        question: what it is asked.
        decide: what decides about calls that wait.
        dependencies: what tools get as `ToolContext.dependencies`.
        execution_id: the id of the execution; drawn when left out.
        goes_on: whether the execution is in the loop's journal, and is gone on with.

    Raises:
        Interrupted: by Ctrl-C, also while a person is being asked.
    """
    if goes_on and execution_id is not None:
        state = executed(loop.recover(execution_id, dependencies=dependencies))
    else:
        state = executed(loop.execute(question, execution_id=execution_id, dependencies=dependencies))
    try:
        while decisions := decided(state, decide):
            state = executed(loop.resume(state, decisions, dependencies=dependencies))
    except KeyboardInterrupt:
        raise Interrupted(printable(state.explain())) from None
    return state


def executed(execution: Coroutine[object, object, AgentState]) -> AgentState:
    """Run an execution of a loop to its end, in an event loop made for it.

    Raises:
        Interrupted: by Ctrl-C; with the account of what was done until then.
    """
    return asyncio.run(_interruptible(execution))


async def _interruptible(execution: Coroutine[object, object, AgentState]) -> AgentState:
    try:
        return await execution
    except asyncio.CancelledError as cancelled:  # asyncio makes Ctrl-C of the first signal a cancellation
        state = interrupted_state(cancelled)
        account = printable(state.explain()) if state is not None else "nothing was done yet"
        raise Interrupted(account) from None
