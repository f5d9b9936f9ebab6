"""A payment that happens exactly once: the process ends after the payment and before its record, and another one goes on."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from pathlib import Path

from agentloop import AgentLoop, ScriptedInference, ToolCall
from agentloop.testing import CrashableJournal
from agentloop.toolkits import sql_effect
from agentloop.values import RecordKind

SHOP = Path(sys.argv[1] if sys.argv[1:] else ".") / "shop.db"


@sql_effect(lambda: sqlite3.connect(SHOP))
def pay(shop: sqlite3.Connection, order: int, cents: int) -> dict[str, int]:
    """Pay an order."""
    shop.execute("INSERT INTO payments VALUES (?, ?)", (order, cents))
    return {"order": order, "paid": cents}


MODEL = (ToolCall("1", "pay", '{"order": 7, "cents": 500}'), "Order 7 is paid.")


async def main() -> None:
    with sqlite3.connect(SHOP) as shop:
        shop.execute("CREATE TABLE IF NOT EXISTS payments (number INTEGER, cents INTEGER)")

    journal = CrashableJournal()
    loop = AgentLoop.for_model(ScriptedInference(*MODEL), tools=[pay], journal=journal)
    await loop.execute("Pay order 7.", execution_id="order-7")

    # What a crash leaves that comes after the payment, and before the record of its outcome.
    paid = next(i for i, record in enumerate(journal.appended) if record.kind is RecordKind.CALL_OUTCOME)
    left = await journal.after_crash(paid)

    loop = AgentLoop.for_model(ScriptedInference(*MODEL[1:]), tools=[pay], journal=left)
    state = await loop.recover("order-7")
    print("the call again:", state.steps[0].executions[0].value)
    print("payments:", sqlite3.connect(SHOP).execute("SELECT number, cents FROM payments").fetchall())


if __name__ == "__main__":
    asyncio.run(main())
