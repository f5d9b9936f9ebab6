"""The tools of the durable demo: one for each way in which a call can be gone on with after a crash."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from agentloop.cli.demo.office import Office
from agentloop.contracts.tool import Tool, ToolContext
from agentloop.tools.decorator import tool
from agentloop.values.records import Reconciliation, did_not_happen, happened

HELD = "@held"
"""What a tool says when it stops in the middle, with its name."""
INVOICE: Mapping[str, int | str] = {"number": 71, "supplier": "Babbage & Sons", "cents": 12_900}


@tool(effect="pure")
def read_invoice(number: int) -> dict[str, int | str]:
    """Read an invoice.

    Args:
        number: its number.
    """
    return {**INVOICE, "number": number}


@tool
def reserve_budget(number: int, cents: int, context: ToolContext) -> str:
    """Reserve the money for an invoice.

    Args:
        number: the invoice.
        cents: how much.
        context: given by the program.
    """
    _office(context).do("reserve_budget", context.idempotency_key, f"{cents} cents for invoice {number}")
    return "reserved"


@tool(effect="idempotent")
async def set_status(number: int, status: str, context: ToolContext) -> str:
    """Set the status of an invoice. Called twice with one key, it is set once.

    Args:
        number: the invoice.
        status: its new status.
        context: given by the program.
    """
    office = _office(context)
    if not office.done("set_status", context.idempotency_key):
        office.do("set_status", context.idempotency_key, f"invoice {number} is {status}")
    await _held(office, "set_status")
    return status


def _paid(context: ToolContext) -> Reconciliation:
    """Ask the bank whether a payment with this key has arrived."""
    return happened("paid") if _office(context).done("pay", context.idempotency_key) else did_not_happen()


@tool(reconcile=_paid)
async def pay(number: int, cents: int, context: ToolContext) -> str:
    """Pay an invoice.

    Args:
        number: the invoice.
        cents: how much.
        context: given by the program.
    """
    office = _office(context)
    office.do("pay", context.idempotency_key, f"{cents} cents for invoice {number}")
    await _held(office, "pay")
    return "paid"


@tool
async def send_letter(to: str, text: str, context: ToolContext) -> str:
    """Send a letter.

    Args:
        to: to whom.
        text: what it says.
        context: given by the program.
    """
    office = _office(context)
    office.do("send_letter", context.idempotency_key, f"to {to}: {text}")
    await _held(office, "send_letter")
    return "sent"


@tool(effect="pure")
def list_letters(context: ToolContext) -> list[str]:
    """List the letters that were sent.

    Args:
        context: given by the program.
    """
    return [one.about for one in _office(context).done("send_letter")]


TOOLS: tuple[Tool, ...] = (read_invoice, reserve_budget, set_status, pay, send_letter, list_letters)
"""All of them."""


async def _held(office: Office, name: str) -> None:
    if office.holds:
        print(f"{HELD} {name}", flush=True)  # noqa: T201  # to the process that is going to kill this one
        await asyncio.Event().wait()


def _office(context: ToolContext) -> Office:
    office = context.dependencies
    assert isinstance(office, Office)  # noqa: S101  # the worker gives one
    return office
