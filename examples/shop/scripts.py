"""The two questions that the scripted model can answer, and how it answers them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import frozen
from shop.conversation import Conversation
from shop.notations import Turn


@frozen
class Script:
    """How one question is answered, decided from the conversation alone.

    Attributes:
        question: the question.
        tools: the names of the tools that the script needs.
        next_turn: returns the next turn while tools are offered.
        final_turn: answers with the results so far, without tools.
    """

    question: str
    tools: frozenset[str]
    next_turn: Callable[[Conversation], Turn]
    final_turn: Callable[[Conversation], Turn]


# --- the complaint: two orders, one of them with a wrong number, and a broken lamp -----------------------------------

_VOUCHER_CENTS = 2_500
_ORDERS_IN_QUESTION = 2
_MAX_LOOKUPS = 4
_IS_BOOKED = "is booked"


def _complaint_turn(conversation: Conversation) -> Turn:
    if not conversation.has_called("track_order"):
        return _look_up_everything()
    lamp = _lamp_order(conversation)
    if not conversation.has_called("list_orders") and conversation.values_of("find_customer"):
        return _correct_number(conversation)
    if not conversation.has_called("refund") and lamp is not None:
        return Turn("", (("refund", {"order_number": lamp["number"], "cents": lamp["cents"]}),))
    if not conversation.has_called("open_ticket") and lamp is not None and not _is_refunded(conversation):
        return _ask_colleague(conversation, lamp)
    if len(conversation.results_of("track_order")) < _MAX_LOOKUPS:
        return Turn("Before I answer, I look at the first order once more.", (("track_order", {"number": 1002}),))
    return _complaint_answer(conversation)


def _look_up_everything() -> Turn:
    return Turn(
        "I look up the customer and both orders.",
        (
            ("find_customer", {"name": "Ada Lovelace"}),
            ("track_order", {"number": 1002}),
            ("track_order", {"number": 1051}),
        ),
    )


def _correct_number(conversation: Conversation) -> Turn:
    listing = ("list_orders", {"customer_id": conversation.values_of("find_customer")[-1]["id"]})
    numbers = re.findall(r"\d+", conversation.results_of("track_order")[-1])
    if not numbers:
        return Turn("", (listing,))
    number = int(numbers[-1])
    return Turn(f"There is no such order; {number} is likely meant.", (("track_order", {"number": number}), listing))


def _ask_colleague(conversation: Conversation, lamp: Mapping[str, Any]) -> Turn:
    customer = conversation.values_of("find_customer")[-1]
    subject = f"Refund {_money(lamp)} for order {lamp['number']}: the {lamp['item']} arrived broken"
    return Turn(
        "I may not do that myself, so I ask a colleague, and make up for the trouble.",
        (
            ("open_ticket", {"customer_id": customer["id"], "subject": subject}),
            ("give_voucher", {"customer_id": customer["id"], "cents": _VOUCHER_CENTS}),
        ),
    )


def _complaint_answer(conversation: Conversation) -> Turn:
    customers = conversation.values_of("find_customer")
    if not customers:
        return Turn("I could not find the customer, so I cannot say anything about the orders.")
    paragraphs = [
        f"Dear {customers[-1]['name']},",
        _order_sentences(conversation),
        _lamp_sentences(conversation),
        "You will hear from us if anything changes.",
    ]
    return Turn("\n\n".join(filter(None, paragraphs)))


def _order_sentences(conversation: Conversation) -> str:
    tracked = {order["number"]: order for order in conversation.values_of("track_order")}
    sentences = [f"Order {number}, your {order['item']}, is {order['status']}." for number, order in tracked.items()]
    if len(tracked) == _ORDERS_IN_QUESTION:
        sentences.insert(1, f"There is no order 1051; you may mean {list(tracked)[1]}.")
    return " ".join(sentences)


def _lamp_sentences(conversation: Conversation) -> str:
    lamp = _lamp_order(conversation)
    if lamp is None:
        return ""
    sentences = [f"I am sorry about the {lamp['item']}."]
    if conversation.has_called("refund"):
        sentences.append(_refund_sentence(conversation, _money(lamp)))
    vouchers = [result for result in conversation.results_of("give_voucher") if result.startswith("voucher")]
    return " ".join([*sentences, *[f"For the trouble, {voucher}." for voucher in vouchers]])


def _refund_sentence(conversation: Conversation, money: str) -> str:
    if _is_refunded(conversation):
        return f"You get {money} back: {conversation.results_of('refund')[-1]}."
    for ticket in conversation.results_of("open_ticket"):
        if ticket.startswith("ticket"):
            return f"A refund of {money} needs a colleague, whom I have asked: {ticket}."
    return f"A refund of {money} needs a colleague, whom I could not ask; please write to us again."


def _is_refunded(conversation: Conversation) -> bool:
    return conversation.results_of("refund")[-1].endswith(_IS_BOOKED)


def _lamp_order(conversation: Conversation) -> Mapping[str, Any] | None:
    listings = conversation.values_of("list_orders")[-1:]
    return next((order for listing in listings for order in listing if "lamp" in order["item"]), None)


def _money(order: Mapping[str, Any]) -> str:
    return f"{order['cents'] / 100:.2f}"


COMPLAINT = Script(
    "Ada Lovelace writes: Where are my orders 1002 and 1051? And the desk lamp that you sent me arrived broken. "
    "I would like my money back.",
    frozenset({"find_customer", "track_order", "list_orders", "refund", "open_ticket", "give_voucher"}),
    _complaint_turn,
    _complaint_answer,
)


# --- the status letters: more work than the budget of steps allows ---------------------------------------------------

_NAMES = ("Charles Babbage", "Grace Hopper", "Ada Lovelace")


def _letters_turn(conversation: Conversation) -> Turn:
    if not conversation.has_called("find_customer"):
        return Turn("I look all three up.", tuple([("find_customer", {"name": name}) for name in _NAMES]))
    customers, done = conversation.values_of("find_customer"), len(conversation.results_of("list_orders"))
    if done >= len(customers):
        return _letters_answer(conversation)
    customer = customers[done]
    return Turn(f"Now the orders of {customer['name']}.", (("list_orders", {"customer_id": customer["id"]}),))


def _letters_answer(conversation: Conversation) -> Turn:
    customers, listings = conversation.values_of("find_customer"), conversation.values_of("list_orders")
    sentences = [
        f"{customer['name']}: {_order_list(orders)}." for customer, orders in zip(customers, listings, strict=False)
    ]
    missing = [customer["name"] for customer in customers[len(listings) :]]
    if missing:
        sentences.append(f"I did not get to {' and '.join(missing)}.")
    return Turn("\n".join(sentences) or "I could not find anything out.")


def _order_list(orders: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join([f"{order['item']} ({order['status']})" for order in orders]) or "no orders"


STATUS_LETTERS = Script(
    "Charles Babbage, Grace Hopper and Ada Lovelace each want to know how their orders are doing. Tell me what to write to "
    "them, one after the other.",
    frozenset({"find_customer", "list_orders"}),
    _letters_turn,
    _letters_answer,
)
