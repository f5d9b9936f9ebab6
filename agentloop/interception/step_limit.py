"""A limit on steps."""

from __future__ import annotations

from typing import ClassVar, Self

from attrs import field, frozen
from attrs.validators import ge

from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.interception.budget import Budget
from agentloop.values.json_value import JsonObject
from agentloop.values.points import BeforeStep
from agentloop.values.stop import StopReason


@frozen(repr=False)
class StepLimit(Budget):
    """Stops an execution that has taken this many steps without coming to an answer (law 5).

    Every loop has one, so it needs less than other budgets do: its count stands in the state.

    Attributes:
        steps: the most steps of one execution.
    """

    steps: int = field(validator=ge(1))
    wrap_up: float = field(default=0.0, init=False)
    lends: ClassVar[bool] = False

    def with_execution_scope(self, scope: ExecutionScope) -> Self:  # noqa: ARG002  # the state says all there is to know
        """Return it as it is: there is nothing to bind."""
        return self

    def before_step(self, point: BeforeStep) -> BeforeStep:
        """Stop instead of taking one step too many; calls that waited are settled in the step that made them."""
        state, last = point.state, point.state.last_step
        if state.step_count < self.steps or (last is not None and last.open_turn is not None):
            return point
        return point.stop(
            f"the limit of {self.steps} {'step' if self.steps == 1 else 'steps'} is reached",
            reason=StopReason.STEP_LIMIT,
            context=JsonObject(limit=self.steps, steps=state.step_count),
        )
