"""Injected context: a tool gets a database and the id of its call, which the model neither sees nor chooses."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from attrs import frozen

from agentloop import AgentLoop, ScriptedInference, ToolCall, ToolContext, tool


@frozen
class Shop:
    database: sqlite3.Connection
    user: str


@tool
async def add_order(item: str, context: ToolContext[Shop]) -> str:
    """Order an item."""
    shop = context.dependencies
    row = (context.idempotency_key, shop.user, item)
    shop.database.execute("INSERT OR IGNORE INTO orders VALUES (?, ?, ?)", row)  # twice is as once
    return f"{shop.user} ordered a {item}"


print("the model sees:", *add_order.spec.parameters["properties"])
with closing(sqlite3.connect(":memory:")) as database:
    database.execute("CREATE TABLE orders (key TEXT PRIMARY KEY, user TEXT, item TEXT)")
    model = ScriptedInference(ToolCall("1", "add_order", '{"item": "lamp"}'), "The lamp is ordered.")
    loop = AgentLoop.for_model(model, tools=[add_order])
    state = loop.execute_sync("A lamp, please.", execution_id="order-1", dependencies=Shop(database, "Ada"))
    print(state.final_text)
    print(database.execute("SELECT * FROM orders").fetchall())
