"""The script of the demo's second question: more work than its budget allows."""

from __future__ import annotations

from typing import Any

from agentloop.cli.demo.conversation_seen import ConversationSeen
from agentloop.cli.demo.move import Move
from agentloop.cli.demo.script import Script

QUESTION = (
    "Charles Babbage, Grace Hopper and Ada Lovelace each want to know how their orders are doing. Tell me what to write to "
    "them, one after the other."
)
_NAMES = ("Charles Babbage", "Grace Hopper", "Ada Lovelace")
_TOOLS = frozenset({"find_customer", "list_orders"})


def next_move(seen: ConversationSeen) -> Move:
    """Look all customers up at once, then the orders of one after the other."""
    if not seen.has("find_customer"):
        return Move("I look all three up.", tuple([("find_customer", {"name": name}) for name in _NAMES]))
    found, done = seen.found("find_customer"), len(seen.results("list_orders"))
    if done >= len(found):
        return last_answer(seen)
    return Move(f"Now the orders of {found[done]['name']}.", (("list_orders", {"customer_id": found[done]["id"]}),))


def last_answer(seen: ConversationSeen) -> Move:
    """Tell what was found, and what was not looked at."""
    found, listed = seen.found("find_customer"), seen.found("list_orders")
    told = [f"{one['name']}: {_listed(orders)}." for one, orders in zip(found, listed, strict=False)]
    left = [customer["name"] for customer in found[len(listed) :]]
    if left:
        told.append(f"I have not come to {' and '.join(left)}.")
    return Move("\n".join(told) or "I have not found anything out.")


def _listed(orders: list[dict[str, Any]]) -> str:
    return ", ".join([f"{order['item']} ({order['status']})" for order in orders]) or "no orders"


ROUNDS = Script(QUESTION, _TOOLS, next_move, last_answer)
