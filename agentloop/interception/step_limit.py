"""A limit on steps."""

from __future__ import annotations

from attrs import field, frozen
from attrs.validators import ge

from agentloop.interception.interceptor import Interceptor
from agentloop.values.json_value import JsonObject
from agentloop.values.points import BeforeStep
from agentloop.values.stop import StopReason

LIMIT_PRIORITY = 1000
"""Limits stand outside of other interceptors, so that nothing is done for a step that is not taken."""


@frozen
class StepLimit(Interceptor):
    """Stops an execution that has taken this many steps without coming to an answer (law 5).

    Attributes:
        steps: the most steps of one execution.
    """

    steps: int = field(validator=ge(1))
    priority: int = LIMIT_PRIORITY

    def before_step(self, point: BeforeStep) -> BeforeStep:
        """Stop instead of taking one step too many; to settle calls that waited is still the step that they belong to."""
        if point.state.step_count < self.steps or point.state.open_turn is not None:
            return point
        return point.stop(
            f"the limit of {self.steps} {'step' if self.steps == 1 else 'steps'} is reached",
            reason=StopReason.STEP_LIMIT,
            context=JsonObject(limit=self.steps, steps=point.state.step_count),
        )
