"""Parts around the one under test that note what it got and what it did, before a loop mends it."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TypeVar

from attrs import define, field, frozen

from agentloop.drivers.forwarding import ForwardingDriver
from agentloop.errors import ContractViolation
from agentloop.executors.forwarding import ForwardingExecutor
from agentloop.interception.interceptor import Interceptor
from agentloop.testing.kit import require
from agentloop.values.batches import ToolCalls, ToolExecutions
from agentloop.values.interruptions import BatchInterrupted, StepInterrupted
from agentloop.values.points import (
    AfterInference,
    AfterToolUse,
    AroundToolUse,
    BeforeInference,
    BeforeToolUse,
    ProceedToolUse,
    StatePoint,
)
from agentloop.values.serialization import to_json
from agentloop.values.state import AgentState
from agentloop.values.tool_calls import ToolExecution

S = TypeVar("S", bound=StatePoint)


@define(eq=False, repr=False)
class ObservedBatch:
    """One call of an executor.

    Attributes:
        calls: the batch.
        state: the state that it got.
        outcome: what it returned, or what its error carries; None for neither.
        error: what it raised; None if it returned.
        is_late: whether it was called after the cancellation of the task.
    """

    calls: ToolCalls
    state: AgentState
    outcome: ToolExecutions | None = None
    error: BaseException | None = None
    is_late: bool = False


@define(eq=False, repr=False)
class ObservedStep:
    """One call of a driver.

    Attributes:
        before: the state that it got.
        before_json: that state as JSON, as it was then.
        batches: the batches that it had executed.
        after: what it returned, or the state that its error carries; None for neither.
        error: what it raised; None if it returned.
        was_cancelled: whether the task was cancelled meanwhile.
    """

    before: AgentState
    before_json: bytes
    batches: list[ObservedBatch] = field(factory=list)
    after: AgentState | None = None
    error: BaseException | None = None
    was_cancelled: bool = False

    @property
    def result(self) -> str:
        """What the driver gave, for messages."""
        return f"{type(self.error).__name__}: {self.error}" if self.error is not None else "a state"

    @property
    def outcomes(self) -> dict[str, ToolExecution]:
        """The executions that the driver got from the executor, by key."""
        answers = [batch.outcome for batch in self.batches if batch.outcome is not None]
        return {execution.key: execution for answer in answers for execution in answer.executions}

    @property
    def executions(self) -> dict[str, ToolExecution]:
        """The executions of the step as the driver gave it back, by key; none without a step."""
        step = self.after.last_step if self.after is not None else None
        executions = {} if step is None else {execution.key: execution for execution in step.executions}
        last = self.before.last_step
        settled = set() if last is None else {execution.key for execution in last.executions}
        return {key: execution for key, execution in executions.items() if key not in settled}


@frozen(eq=False, repr=False)
class DriverObserver(ForwardingDriver):
    """Notes each step of a driver.

    Attributes:
        steps: the steps so far.
    """

    steps: list[ObservedStep] = field(factory=list, repr=False)

    async def use_tools(self, state: AgentState) -> AgentState:
        """Take a step, and note it."""
        step, cancellations = ObservedStep(state, to_json(state)), _cancellations()
        self.steps.append(step)
        try:
            after: object = await self.inner.use_tools(state)
            step.after = after if isinstance(after, AgentState) else None
        except BaseException as error:
            carrier = StepInterrupted.find_in(error)
            step.error, step.after = error, None if carrier is None else carrier.state
            raise
        finally:
            step.was_cancelled = _cancellations() > cancellations
        return after  # type: ignore[return-value]  # the loop refuses what is no state


@frozen
class ExecutorObserver(ForwardingExecutor):
    """Notes each batch of an executor, with the step that it belongs to.

    Attributes:
        steps: the steps so far, by those who take them.
    """

    steps: list[ObservedStep] = field(factory=list, repr=False)

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        """Execute a batch, and note it."""
        batch = ObservedBatch(tool_calls, state, is_late=_cancellations() > 0)
        if self.steps:
            self.steps[-1].batches.append(batch)
        try:
            batch.outcome = await self.inner.execute_tools(tool_calls, state)
        except BaseException as error:
            carrier = BatchInterrupted.find_in(error)
            batch.error, batch.outcome = error, None if carrier is None else carrier.executions
            raise
        return batch.outcome


class Tally(Interceptor):
    """Counts the points that it passes, in the state and by itself, so that a state that lost one is found.

    Attributes:
        counts: the number of passages of each point.
        losses: where the state lacked earlier passages.
    """

    priority = 10**6
    _NAME = "tally"

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.losses: list[str] = []
        self._noted = 0

    def before_inference(self, point: BeforeInference) -> BeforeInference:
        """Count a request."""
        return self._note(point)

    def after_inference(self, point: AfterInference) -> AfterInference:
        """Count a response."""
        return self._note(point)

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        """Count a call."""
        return self._note(point)

    def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
        """Count an outcome."""
        return self._note(point)

    def find_loss(self, state: AgentState) -> str:
        """Return what the final state lacks; empty for nothing."""
        if self.losses:
            return self.losses[0]
        noted = self._read(state)
        return "" if noted == self._noted else f"of {self._noted} changes by an interceptor, the state has {noted}"

    def _note(self, point: S) -> S:
        noted = self._read(point.state)
        if noted != self._noted:
            self.losses.append(
                f"at {point.point_name}, the state has {noted} of {self._noted} changes by an interceptor"
            )
        self.counts[point.point_name] += 1
        self._noted += 1
        return point.with_state(point.state.with_metadata(**{self._NAME: self._noted}))

    def _read(self, state: AgentState) -> int:
        noted = state.context.metadata.get(self._NAME, 0)
        return noted if isinstance(noted, int) else 0


class RaisingInterceptor(Interceptor):
    """Raises at one point.

    Args:
        point: the name of the point.
        value: only for calls whose argument `value` is this one; None for all.
    """

    def __init__(self, point: str, value: int | None = None) -> None:
        self._point = point
        self._value = value

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        """Raise, or do nothing."""
        self._raise_at("before_tool_use", point.arguments.get("value"))
        return point

    async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        """Raise, or do nothing."""
        self._raise_at("around_tool_use", point.arguments.get("value"))
        return await proceed()

    def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
        """Raise, or do nothing."""
        self._raise_at("after_tool_use", point.execution.value)
        return point

    def _raise_at(self, name: str, value: object) -> None:
        if self._point == name and self._value in {None, value}:
            raise RuntimeError(f"this interceptor raises at {name}")


def require_unbroken(law: int, state: AgentState) -> None:
    """Check that no part of a loop broke its contract in a run: the loop mends a step, and reports who broke it.

    Raises:
        LawViolation: a step has a `ContractViolation` among its errors.
    """
    broken = [error.message for error in state.errors if error.type == ContractViolation.__name__]
    require(law, not broken, "; ".join(broken))


def _cancellations() -> int:
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()
