"""What of the way in which a driver asks its model does not stand in the request: its own prompt, its way to show calls."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from attrs import evolve

from agentloop.contracts.execution_log import Offer
from agentloop.values.inference_request import InferenceRequest
from agentloop.values.message import Message
from agentloop.values.parts import Text
from agentloop.values.serialisation import to_plain
from agentloop.values.tool_call import ToolCall
from agentloop.values.tool_execution import ToolExchange, ToolExecution, ToolStatus

_THEN = datetime(2026, 1, 1, tzinfo=UTC)


def offered_form(offer: Offer | None, request: InferenceRequest) -> dict[str, Any] | None:
    """Return, as plain JSON data, how a model gets requests like this one; None when it gets them as they are.

    In place of the conversation stands a short one that is always the same, so that the size does not grow with the run.

    Args:
        offer: makes of a request what the model gets.
        request: the request.
    """
    if offer is None:
        return None
    plain: dict[str, Any] = to_plain(offer(evolve(request, messages=_sample(request))))
    return plain


def _sample(request: InferenceRequest) -> tuple[Message, ...]:
    """Return a conversation in which the first tool was called, if there is one."""
    asked = Message.user("A question.")
    if not request.tools:
        return (asked,)
    call = ToolCall("sample", request.tools[0].name, "{}")
    execution = ToolExecution(
        id="sample",
        key="sample/1/0",
        call=call,
        status=ToolStatus.SUCCEEDED,
        value="An outcome.",
        started_at=_THEN,
        ended_at=_THEN,
    )
    return asked, Message.assistant(Text("A text."), ToolExchange(call, execution)), Message.user("Another question.")
