"""A process that answers tickets of five tenants, each tenant under one sum: `python -m tests.policies.account_process DATABASE LEDGER COST FIRST COUNT`.

It is killed at any time. Another process with the same arguments then continues what it has begun.
"""

from __future__ import annotations

import asyncio
import os
import sys

from agentloop import AgentLoop, AgentState, ToolCallingDriver
from agentloop.contracts import CanInfer
from agentloop.durable import open_journal
from agentloop.errors import JournalConflict
from agentloop.events import BudgetShareUsed
from agentloop.policies import BudgetAccount, Price, PriceTable
from agentloop.values import FinishReason, InferenceRequest, InferenceResponse, Text, Usage

TENANTS = ("red", "green", "blue", "black", "white")
SLOTS = 2
"""How many requests of one process are in flight at most."""
PRICE = Price(input=10, output=50)
"""Dollars for a million tokens."""
MAX_OUTPUT = 300
RESERVED = 15_300_000_000
"""The most that is reserved for one request: its few input tokens, and 300 output tokens."""
EXCESS = 16_200_000_000 - 15_000_000_000
"""The most by which an answer costs more than was reserved for it."""
_ANSWER_SECONDS = 0.05
_PAUSE = 0.02


def usage_of(ticket: int) -> Usage:
    """Return what the answer to a ticket takes; every tenth one is longer than what was reserved for it."""
    return Usage(20, 320 if ticket // len(TENANTS) % 10 == 0 else 280)


def tenant_of(ticket: int) -> str:
    """Return whose ticket it is."""
    return TENANTS[ticket % len(TENANTS)]


def cost_of(ticket: int) -> int:
    """Return what the answer to a ticket costs, in units of 10^-12 dollars."""
    usage = usage_of(ticket)
    return 10**6 * ((usage.input_tokens or 0) * round(PRICE.input) + (usage.output_tokens or 0) * round(PRICE.output))


class Provider(CanInfer):
    """Charges each request when it arrives, in a file that outlives the process, and answers a moment later."""

    def __init__(self, ledger: str) -> None:
        self._file = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Answer the ticket whose number is the message."""
        ticket = int(request.messages[-1].text)
        os.write(self._file, f"{ticket}\n".encode())
        await asyncio.sleep(_ANSWER_SECONDS)
        return InferenceResponse((Text("done"),), FinishReason.STOP, usage_of(ticket), "big-1")


def create_account(cost: float) -> BudgetAccount:
    """Return the account, which is kept in the journal of the executions."""
    return BudgetAccount(
        "tickets",
        cost=cost,
        by=lambda state: str(state.context.metadata["tenant"]),
        prices=PriceTable({"big-*": PRICE}),
        model="big-1",
        max_output_tokens=MAX_OUTPUT,
    )


async def main(place: str, ledger: str, cost: float, tickets: range) -> None:
    """Answer the tickets, and print a line for each, and for each announced part of a sum."""
    journal = open_journal(place)
    loop = AgentLoop(ToolCallingDriver(Provider(ledger)), interceptors=[create_account(cost)], journal=journal)
    loop.on(BudgetShareUsed, lambda event: _report("share", event.key.owner, event.percent))
    waiting = iter(tickets)

    async def answer_some() -> None:
        for ticket in waiting:
            state = await _answer(loop, ticket)
            _report("ticket", ticket, state.status.value)

    await asyncio.gather(*[answer_some() for _ in range(SLOTS)])
    await journal.aclose()


def _report(*words: object) -> None:
    sys.stdout.write(f"{' '.join(map(str, words))}\n")
    sys.stdout.flush()


async def _answer(loop: AgentLoop, ticket: int) -> AgentState:
    begun = AgentState.start(str(ticket)).with_metadata(tenant=tenant_of(ticket))
    while True:
        try:
            return await loop.get_or_start(begun, f"ticket-{ticket}")
        except JournalConflict:  # the killed process has not ended yet
            await asyncio.sleep(_PAUSE)


if __name__ == "__main__":
    _first = int(sys.argv[4])
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3]), range(_first, _first + int(sys.argv[5]))))
