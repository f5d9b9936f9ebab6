"""What is new in a request, as plain JSON data whose size does not grow with the conversation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from attrs import evolve

from agentloop.journal.kept import remade, told
from agentloop.journal.sameness import same
from agentloop.values.inference_request import InferenceRequest
from agentloop.values.message import Message
from agentloop.values.serialisation import from_plain, to_plain


def request_delta(
    before: InferenceRequest | None, after: InferenceRequest, place_of: Callable[[Message], int | None]
) -> dict[str, Any]:
    """Return what has to be done to `before` to make `after` of it.

    Args:
        before: the request of the inference before it in the execution; None to tell the whole of the later one.
        after: the request.
        place_of: tells where in the recorded conversation a message stands; None when it does not. It is not told again.
    """
    delta: dict[str, Any] = {}
    light = evolve(after, messages=())
    if before is None or not same(light, evolve(before, messages=()), ordered=True):
        delta["request"] = to_plain(light)

    def tell(message: Message) -> Any:
        place = place_of(message)
        return to_plain(message) if place is None else place

    messages = told(() if before is None else before.messages, after.messages, tell)
    if messages is not None:
        delta["messages"] = messages
    return delta


def request_with(
    before: InferenceRequest | None, delta: dict[str, Any], conversation: Sequence[Message]
) -> InferenceRequest:
    """Return the later request, of the earlier one and what `request_delta` made of the two.

    Args:
        before: the request before it.
        delta: what is new.
        conversation: the recorded conversation.

    Raises:
        InvalidDocument: when the data are not the form of a request.
    """
    light = from_plain(delta["request"], InferenceRequest) if "request" in delta else before
    assert light is not None  # noqa: S101  # what is told of nothing before is told whole

    def read(data: Any) -> Message:
        return conversation[data] if isinstance(data, int) else from_plain(data, Message)

    return evolve(light, messages=remade(() if before is None else before.messages, delta.get("messages"), read))
