"""The scripted person who decides about the calls that wait."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from agentloop.cli.console import call_text, one_line
from agentloop.values.decisions import Decision, PendingCall, approve, deny, edit

VOUCHER_CENTS = 1_500


class Person:
    """Approves tickets, makes vouchers smaller, and denies all else; shows what it decides.

    Args:
        console: where that is shown.
    """

    def __init__(self, console: Console) -> None:
        self._console = console

    def __call__(self, call: PendingCall) -> Decision:
        """Decide about one call."""
        self._console.print(Text(f"  ?  {call_text(call.call)}  waits: {one_line(call.reason)}", "yellow"))
        if call.call.name == "open_ticket":
            return self._says("yes", approve(call.digest))
        if call.call.name == "give_voucher":
            smaller = {**call.call.arguments, "cents": VOUCHER_CENTS}
            return self._says(f"yes, but cents={VOUCHER_CENTS}", edit(smaller, call.digest))
        return self._says("no", deny("the person in charge says no", call.digest))

    def _says(self, words: str, decision: Decision) -> Decision:
        self._console.print(Text(f"     the person (scripted): {words}", "yellow"))
        return decision
