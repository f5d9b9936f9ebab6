"""Sending a model back after an answer: the message that it gets, and how often it got one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from agentloop.values.messages import Message
from agentloop.values.points import AfterStep
from agentloop.values.state import AgentState

OWNER: Final = "agentloop.output_check"
"""The owner of the number of times that an execution has sent the model back, and the mark of the messages that did."""
WRITES: Final = ("state.context.messages", f"state.extensions.{OWNER}", "state.execution")
"""The paths that `ask_again` changes."""

_ASK = "Your answer was not accepted: {reason}\n\nGo on: do what is missing, then answer again in full."


def ask_again(point: AfterStep, reason: str) -> AfterStep:
    """Add a message that says why an answer was refused, and request another step.

    Args:
        point: the point after the step of the answer.
        reason: the reason, in words for the model.
    """
    state = point.state
    # The reason may quote the answer, so that it is as foreign as that; without labels, nothing is known of either.
    label = state.messages[-1].label if state.messages else None
    message = Message.user(_ASK.format(reason=reason), metadata={OWNER: True}, label=label)
    counted = {"execution": state.execution_id, "count": times_asked(state) + 1}
    return point.with_state(state.with_message(message).with_extension(OWNER, counted)).request_continuation()


def times_asked(state: AgentState) -> int:
    """Return how often the execution has sent the model back."""
    kept = state.extension(OWNER)
    count = kept.get("count") if isinstance(kept, Mapping) and kept.get("execution") == state.execution_id else 0
    return count if isinstance(count, int) else 0
