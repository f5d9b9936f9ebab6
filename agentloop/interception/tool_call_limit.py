"""A limit on tool calls."""

from __future__ import annotations

from attrs import field, frozen
from attrs.validators import ge

from agentloop.interception.interceptor import Interceptor
from agentloop.interception.step_limit import LIMIT_PRIORITY
from agentloop.values.json_value import JsonObject
from agentloop.values.points import BeforeToolUse
from agentloop.values.stop import StopReason


@frozen
class ToolCallLimit(Interceptor):
    """Stops an execution in which a model makes more than this many tool calls; the calls too many do not run.

    Every call that the model makes counts, whatever comes of it. A batch that goes over the limit runs up to it.

    Attributes:
        calls: the most calls of one execution.
    """

    calls: int = field(validator=ge(0))
    priority: int = LIMIT_PRIORITY

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        """Block a call too many, and stop."""
        open_turn = point.state.open_turn  # the calls of a step that waited are counted already
        counted = len(open_turn.slots) if open_turn is not None else 0
        number = point.state.tool_call_count - counted + point.index + 1
        if number <= self.calls:
            return point
        why = f"the limit of {self.calls} tool {'call' if self.calls == 1 else 'calls'} is reached"
        context = JsonObject(limit=self.calls, call=number)
        return point.stop(why, reason=StopReason.TOOL_CALL_LIMIT, context=context).block(why)
