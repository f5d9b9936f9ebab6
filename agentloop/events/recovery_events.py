"""What becomes of recorded inferences and calls when an execution goes on after an interruption."""

from __future__ import annotations

from enum import StrEnum

from attrs import field, frozen

from agentloop.events.resilience_events import ToolCallDecided
from agentloop.values.event import Event
from agentloop.values.inference_response import InferenceResponse
from agentloop.values.tool_call import ToolCall


class Recovery(StrEnum):
    """What becomes of a call that had begun when its execution was interrupted.

    `REUSED`: its recorded outcome is used. `REPEATED`: it is run again with the same key, as its effect allows, or since its
    tool says that it has not run. `CONTINUED`: its tool goes on from a record of its own. `PROBED`: its tool says that it has
    run, and what came of it. `IN_DOUBT`: nobody knows whether it has run.
    """

    REUSED = "reused"
    REPEATED = "repeated"
    CONTINUED = "continued"
    PROBED = "probed"
    IN_DOUBT = "in_doubt"


@frozen(eq=False, repr=False)
class InferenceReused(Event):
    """A recorded response was used, and the model not asked.

    Attributes:
        response: the response.
    """

    response: InferenceResponse


@frozen(eq=False, repr=False)
class ToolCallRecovered(ToolCallDecided):
    """It was decided what becomes of a call that had begun when its execution was interrupted.

    Attributes:
        recovery: what becomes of it.
        reason: why, where that is not said by `recovery`.
    """

    recovery: Recovery = field(converter=Recovery)
    reason: str = ""


@frozen(eq=False, repr=False)
class ToolCallIntentKept(ToolCallDecided):
    """A call that had begun was to be changed or kept from running; what was recorded of it holds.

    Attributes:
        recorded: the call as it had begun.
        refused: what was to become of it now.
    """

    recorded: ToolCall
    refused: str
