"""A model that follows a script, behind OpenAI's Chat Completions.

It keeps nothing between requests: like a real one, it decides from the conversation in the request alone, and what it says
is made of the results that it finds there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from agentloop.cli.demo.conversation_seen import ConversationSeen

NAME = "scripted-support-agent"
PATH = "/v1/chat/completions"

_JSON = {"content-type": "application/json"}
_BYTES_PER_TOKEN = 4


def answer(path: str, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
    """Answer an HTTP request with status, headers and body.

    Args:
        path: the path of the request's URL.
        body: its body, a request for a chat completion.
    """
    if path != PATH:
        return 404, _JSON, json.dumps({"error": {"message": f"there is nothing at {path}"}}).encode()
    seen = ConversationSeen.in_request(body)
    message = next_message(seen)
    return 200, _JSON, json.dumps(_completion(message, len(seen.calls), body)).encode()


def next_message(seen: ConversationSeen) -> dict[str, Any]:
    """Decide what the model says next."""
    if not seen.has("track_order"):
        return _looks_up()
    if not seen.has("list_orders"):
        return _corrects_the_number(seen)
    if not seen.has("refund"):
        return _refunds(seen)
    if not seen.has("open_ticket"):
        return _asks_a_colleague(seen)
    return _answers(seen)


def _looks_up() -> dict[str, Any]:
    return _message(
        "I look up the customer and both orders.",
        ("find_customer", {"name": "Ada Lovelace"}),
        ("track_order", {"number": 1002}),
        ("track_order", {"number": 1051}),
    )


def _corrects_the_number(seen: ConversationSeen) -> dict[str, Any]:
    failed = seen.results("track_order")[-1]
    meant = int(re.findall(r"\d+", failed)[-1])
    return _message(
        f"There is no such order; {meant} is likely meant.",
        ("track_order", {"number": meant}),
        ("list_orders", {"customer_id": seen.found("find_customer")["id"]}),
    )


def _refunds(seen: ConversationSeen) -> dict[str, Any]:
    lamp = _lamp(seen)
    return _message("", ("refund", {"order_number": lamp["number"], "cents": lamp["cents"]}))


def _asks_a_colleague(seen: ConversationSeen) -> dict[str, Any]:
    lamp = _lamp(seen)
    subject = f"Refund {_money(lamp)} for order {lamp['number']}: the {lamp['item']} arrived broken"
    call = ("open_ticket", {"customer_id": seen.found("find_customer")["id"], "subject": subject})
    return _message("I may not do that myself, so I ask a colleague.", call)


def _answers(seen: ConversationSeen) -> dict[str, Any]:
    first, _, second = seen.results("track_order")
    telescope, cards = json.loads(first), json.loads(second)
    customer, lamp, ticket = seen.found("find_customer"), _lamp(seen), seen.results("open_ticket")[-1]
    return _message(
        f"Dear {customer['name']},\n\n"
        f"order {telescope['number']}, your {telescope['item']}, is {telescope['status']}. There is no order 1051; you may "
        f"mean {cards['number']}, your {cards['item']}: it is {cards['status']}.\n\n"
        f"I am sorry about the {lamp['item']}. A refund of {_money(lamp)} needs a colleague, whom I have asked: {ticket}. "
        f"You will hear from us at {customer['email']}."
    )


def _lamp(seen: ConversationSeen) -> dict[str, Any]:
    orders: list[dict[str, Any]] = seen.found("list_orders")
    return next(order for order in orders if "lamp" in order["item"])


def _money(order: dict[str, Any]) -> str:
    return f"{order['cents'] / 100:.2f}"


def _message(text: str, *calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    if calls:
        message["tool_calls"] = [
            {"id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
            for index, (name, arguments) in enumerate(calls)
        ]
    return message


def _completion(message: dict[str, Any], number: int, body: bytes) -> dict[str, Any]:
    asked, said = len(body) // _BYTES_PER_TOKEN, len(json.dumps(message)) // _BYTES_PER_TOKEN
    finish = "tool_calls" if "tool_calls" in message else "stop"
    return {
        "id": f"chatcmpl-demo-{number}",
        "object": "chat.completion",
        "created": 0,
        "model": NAME,
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": {"prompt_tokens": asked, "completion_tokens": said, "total_tokens": asked + said},
    }
