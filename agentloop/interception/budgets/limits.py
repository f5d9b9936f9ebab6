"""A limit on steps."""

from __future__ import annotations

from typing import ClassVar, Self

from attrs import field, frozen
from attrs.validators import ge, gt

from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.interception.budgets.budget import Budget
from agentloop.values.json import JsonObject
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


@frozen(repr=False)
class TimeLimit(Budget):
    """Stops an execution that has lasted this long, also in the middle of an inference or of a tool call.

    An inference that is cut off is not in the state; calls that are cut off end as timed out, and their siblings are
    kept.

    Attributes:
        seconds: the most seconds of one execution, from its beginning.
    """

    seconds: float = field(validator=gt(0))
    wrap_up: float = field(default=0.0, init=False)
    lends: ClassVar[bool] = False


@frozen(repr=False)
class TokenLimit(Budget):
    """Stops an execution that has used this many tokens, input and output together.

    Where a provider reports no usage, the tokens are estimated from the length of the conversation: unknown is not zero.

    Attributes:
        tokens: the most tokens of one execution. The inference that crosses the limit is still finished and kept; a `Budget`
            does not make it.
    """

    tokens: int = field(validator=ge(1))
    wrap_up: float = field(default=0.0, init=False)
    strict: bool = field(default=False, init=False)
    lends: ClassVar[bool] = False


@frozen(repr=False)
class CostLimit(Budget):
    """Stops an execution instead of making an inference that may cost more than is left of this many dollars.

    Prices are those that providers publish, unless `prices` says others; what is not known is estimated, unless `unknown`
    says otherwise.

    Attributes:
        cost: the most dollars of one execution.
    """

    cost: float = field(validator=gt(0))
    wrap_up: float = field(default=0.0, init=False)
    lends: ClassVar[bool] = False


@frozen(repr=False)
class ToolCallLimit(Budget):
    """Stops an execution in which a model makes more than this many tool calls; the calls too many do not run.

    Every call that the model makes counts, whatever comes of it. A batch that goes over the limit runs up to it.

    Attributes:
        tool_calls: the most calls of one execution.
    """

    tool_calls: int = field(validator=ge(0))
    wrap_up: float = field(default=0.0, init=False)
    lends: ClassVar[bool] = False
