"""A process whose agent pays by a grant: `grant_process.py PLACE LEDGER EXECUTION`; it recovers the execution if it has begun.

Each payment is a line in the ledger, which is on the disk before the payment returns. The process prints `paid` after each one.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence

from agentloop import AgentLoop, ScriptedInference, ToolCall, tool
from agentloop.contracts.can_journal import CanJournal
from agentloop.durable import open_journal
from agentloop.interception import RequireApproval
from agentloop.policies import AskUnlessGranted

CALLS = 4


def payer(journal: CanJournal, ledger: str, script: Sequence[Sequence[ToolCall] | str]) -> AgentLoop:
    """Return an agent that asks before it pays, unless that is granted."""

    @tool(effect="idempotent", sequential=True)
    def pay(amount: int, note: str) -> str:
        """Pay."""
        with open(ledger, "a", encoding="utf-8") as file:  # noqa: PTH123  # appended to by several processes
            file.write(f"{note}\n")
            file.flush()
            os.fsync(file.fileno())
        print("paid", flush=True)  # noqa: T201  # whoever kills the process waits for it
        return "paid"

    guard = AskUnlessGranted(RequireApproval("pay"))
    return AgentLoop.for_model(ScriptedInference(*script), tools=[pay], interceptors=[guard], journal=journal)


def script(execution_id: str) -> list[Sequence[ToolCall] | str]:
    """Return the answers of the model: two payments in each of several steps."""
    calls = [
        [ToolCall(str(index), "pay", f'{{"amount": 1, "note": "{execution_id}/{step}/{index}"}}') for index in range(2)]
        for step in range(CALLS)
    ]
    return [*calls, "Done."]


async def main(place: str, ledger: str, execution_id: str) -> None:
    """Run the execution to its end, or until calls wait."""
    journal = open_journal(place)
    loop = payer(journal, ledger, script(execution_id))
    state = await loop.get_or_start("Pay.", execution_id)
    print("waits" if state.pending else "done", flush=True)  # noqa: T201  # as above
    await journal.aclose()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
