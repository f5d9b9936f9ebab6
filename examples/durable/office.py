"""The office of the durable demo: a ledger unknown to the journal, and one tool for each way to recover a call."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path

from attrs import frozen

from agentloop.contracts.tool import Tool, ToolContext
from agentloop.tools.decorator import tool
from agentloop.values.records import Reconciliation, did_not_happen, happened


@frozen
class LedgerEntry:
    """An effect that a tool had.

    Attributes:
        tool: the name of the tool.
        key: the idempotency key of the call.
        description: what was done.
        process: the id of the process that did it.
    """

    tool: str
    key: str
    description: str
    process: int


@frozen
class Office:
    """The world outside of the agent: a ledger of everything that was done.

    Attributes:
        ledger: the file of the ledger, one JSON document per line. It outlives every process.
        holds_calls: whether tools wait after their effect and before they return, so that their process can be killed there.
    """

    ledger: Path
    holds_calls: bool = False

    def perform(self, tool: str, key: str, description: str) -> None:
        """Have an effect: append it to the ledger and flush it to disk."""
        line = json.dumps({"tool": tool, "key": key, "description": description, "process": os.getpid()})
        with self.ledger.open("a", encoding="utf-8") as ledger:
            ledger.write(f"{line}\n")
            ledger.flush()
            os.fsync(ledger.fileno())

    def entries(self, tool: str, key: str = "") -> list[LedgerEntry]:
        """Return the effects of a tool: those of one call, or all when the key is empty."""
        if not self.ledger.exists():
            return []
        lines = self.ledger.read_text(encoding="utf-8").splitlines()
        entries = [LedgerEntry(**json.loads(line)) for line in lines]
        return [entry for entry in entries if entry.tool == tool and key in {"", entry.key}]


# --- the tools ------------------------------------------------------------------------------------------------------

HELD_MARK = "@held"
"""Printed before the name of a tool that has had its effect and does not return."""
INVOICE: Mapping[str, int | str] = {"number": 71, "supplier": "Babbage & Sons", "cents": 12_900}


@tool(effect="pure")
def read_invoice(number: int) -> dict[str, int | str]:
    """Read an invoice.

    Args:
        number: its number.
    """
    return {**INVOICE, "number": number}


@tool
def reserve_budget(number: int, cents: int, context: ToolContext[Office]) -> str:
    """Reserve the money for an invoice.

    Args:
        number: the invoice.
        cents: the amount.
        context: supplied by the loop.
    """
    context.dependencies.perform("reserve_budget", context.idempotency_key, f"{cents} cents for invoice {number}")
    return "reserved"


@tool(effect="idempotent")
async def set_status(number: int, status: str, context: ToolContext[Office]) -> str:
    """Set the status of an invoice. A repeated call with the same key changes nothing.

    Args:
        number: the invoice.
        status: its new status.
        context: supplied by the loop.
    """
    office = context.dependencies
    if not office.entries("set_status", context.idempotency_key):
        office.perform("set_status", context.idempotency_key, f"invoice {number} is {status}")
    await _hold(office, "set_status")
    return status


def _reconcile_payment(context: ToolContext[Office]) -> Reconciliation:
    """Ask the bank whether a payment with this key has arrived."""
    return happened("paid") if context.dependencies.entries("pay", context.idempotency_key) else did_not_happen()


@tool(reconcile=_reconcile_payment)
async def pay(number: int, cents: int, context: ToolContext[Office]) -> str:
    """Pay an invoice.

    Args:
        number: the invoice.
        cents: the amount.
        context: supplied by the loop.
    """
    office = context.dependencies
    office.perform("pay", context.idempotency_key, f"{cents} cents for invoice {number}")
    await _hold(office, "pay")
    return "paid"


@tool
async def send_letter(to: str, text: str, context: ToolContext[Office]) -> str:
    """Send a letter.

    Args:
        to: the recipient.
        text: the text of the letter.
        context: supplied by the loop.
    """
    office = context.dependencies
    office.perform("send_letter", context.idempotency_key, f"to {to}: {text}")
    await _hold(office, "send_letter")
    return "sent"


@tool(effect="pure")
def list_letters(context: ToolContext[Office]) -> list[str]:
    """List the letters that were sent.

    Args:
        context: supplied by the loop.
    """
    return [entry.description for entry in context.dependencies.entries("send_letter")]


TOOLS: tuple[Tool, ...] = (read_invoice, reserve_budget, set_status, pay, send_letter, list_letters)


async def _hold(office: Office, name: str) -> None:
    if office.holds_calls:
        print(f"{HELD_MARK} {name}", flush=True)  # the parent process reads it and kills this one
        await asyncio.Event().wait()
