"""Deciding about calls that wait: by asking the person at the terminal, or as the command line says."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TypeAlias

from rich.console import Console
from rich.prompt import Prompt
from rich.text import Text

from agentloop.cli.terminal_text import call_text, one_line, printable
from agentloop.errors import MalformedArguments
from agentloop.values.agent_state import AgentState
from agentloop.values.decision import Decision, approve, deny, edit
from agentloop.values.json_text import format_json
from agentloop.values.pending_call import PendingCall
from agentloop.values.tool_call import ToolCall

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


class Asking:
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
