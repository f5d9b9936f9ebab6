"""The script of the demo's first question: two orders, one of them misnumbered, and a broken lamp."""

from __future__ import annotations

import re
from typing import Any

from agentloop.cli.demo.conversation_seen import ConversationSeen
from agentloop.cli.demo.move import Move
from agentloop.cli.demo.script import Script

QUESTION = (
    "Ada Lovelace writes: Where are my orders 1002 and 1051? And the desk lamp that you sent me arrived broken. "
    "I would like my money back."
)
_TOOLS = frozenset({"find_customer", "track_order", "list_orders", "refund", "open_ticket", "give_voucher"})
_VOUCHER_CENTS = 2_500
_BOTH_ORDERS = 2
_LOOKS = 4
_BOOKED = "is booked"


def next_move(seen: ConversationSeen) -> Move:
    """Decide what to do next."""
    if not seen.has("track_order"):
        return _looks_up()
    lamp = _lamp(seen)
    if not seen.has("list_orders") and seen.found("find_customer"):
        return _corrects_the_number(seen)
    if not seen.has("refund") and lamp is not None:
        return Move("", (("refund", {"order_number": lamp["number"], "cents": lamp["cents"]}),))
    if not seen.has("open_ticket") and lamp is not None and not seen.results("refund")[-1].endswith(_BOOKED):
        return _asks_a_colleague(seen, lamp)
    if len(seen.results("track_order")) < _LOOKS:
        return Move("Before I answer, I look at the first order once more.", (("track_order", {"number": 1002}),))
    return last_answer(seen)


def last_answer(seen: ConversationSeen) -> Move:
    """Answer with what was found."""
    customers = seen.found("find_customer")
    if not customers:
        return Move("I could not find the customer, so I cannot say anything about the orders.")
    told = [*_told_orders(seen), *_told_lamp(seen)]
    return Move("\n\n".join([f"Dear {customers[-1]['name']},", *told, "You will hear from us if anything changes."]))


COMPLAINT = Script(QUESTION, _TOOLS, next_move, last_answer)


def _looks_up() -> Move:
    return Move(
        "I look up the customer and both orders.",
        (
            ("find_customer", {"name": "Ada Lovelace"}),
            ("track_order", {"number": 1002}),
            ("track_order", {"number": 1051}),
        ),
    )


def _corrects_the_number(seen: ConversationSeen) -> Move:
    listing = ("list_orders", {"customer_id": seen.found("find_customer")[-1]["id"]})
    numbers = re.findall(r"\d+", seen.results("track_order")[-1])
    if not numbers:
        return Move("", (listing,))
    meant = int(numbers[-1])
    return Move(f"There is no such order; {meant} is likely meant.", (("track_order", {"number": meant}), listing))


def _asks_a_colleague(seen: ConversationSeen, lamp: dict[str, Any]) -> Move:
    customer = seen.found("find_customer")[-1]
    subject = f"Refund {_money(lamp)} for order {lamp['number']}: the {lamp['item']} arrived broken"
    return Move(
        "I may not do that myself, so I ask a colleague, and make up for the trouble.",
        (
            ("open_ticket", {"customer_id": customer["id"], "subject": subject}),
            ("give_voucher", {"customer_id": customer["id"], "cents": _VOUCHER_CENTS}),
        ),
    )


def _told_orders(seen: ConversationSeen) -> list[str]:
    tracked = {order["number"]: order for order in seen.found("track_order")}
    told = [f"Order {number}, your {order['item']}, is {order['status']}." for number, order in tracked.items()]
    if len(tracked) == _BOTH_ORDERS:
        told.insert(1, f"There is no order 1051; you may mean {list(tracked)[1]}.")
    return [" ".join(told)] if told else []


def _told_lamp(seen: ConversationSeen) -> list[str]:
    lamp = _lamp(seen)
    if lamp is None:
        return []
    told = [f"I am sorry about the {lamp['item']}."]
    if seen.has("refund"):
        told.append(_told_refund(seen, _money(lamp)))
    told += [f"For the trouble, {one}." for one in seen.results("give_voucher") if one.startswith("voucher")]
    return [" ".join(told)]


def _told_refund(seen: ConversationSeen, money: str) -> str:
    refund = seen.results("refund")[-1]
    if refund.endswith(_BOOKED):
        return f"You get {money} back: {refund}."
    for ticket in seen.results("open_ticket"):
        if ticket.startswith("ticket"):
            return f"A refund of {money} needs a colleague, whom I have asked: {ticket}."
    return f"A refund of {money} needs a colleague, whom I could not ask; please write to us again."


def _lamp(seen: ConversationSeen) -> dict[str, Any] | None:
    listed = seen.found("list_orders")[-1:]
    return next((order for orders in listed for order in orders if "lamp" in order["item"]), None)


def _money(order: dict[str, Any]) -> str:
    return f"{order['cents'] / 100:.2f}"
