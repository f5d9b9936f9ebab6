"""The scope of an execution: clock, ids, resources, log and dependencies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from inspect import isawaitable
from typing import Any, Self, TypeVar, cast

from attrs import evolve, field, frozen

from agentloop._shielding import is_task_cancelled
from agentloop.contracts.can_intercept import CanUseLabels
from agentloop.contracts.run_log import CallLog
from agentloop.errors import ForeignCancellation
from agentloop.values.bounds import DEFAULT_BOUNDS, Bounds
from agentloop.values.decisions import PendingCall
from agentloop.values.inference import InferenceResponse, Usage
from agentloop.values.labels import Label
from agentloop.values.run_requests import RunRequest
from agentloop.values.state import AgentState
from agentloop.values.steps import NO_USAGE
from agentloop.values.time_and_ids import Clock, IdSource, RandomIds, SystemClock
from agentloop.values.tool_calls import ToolCall, ToolExecution
from agentloop.values.value import Value

T = TypeVar("T")


class Resources:
    """A set of opened resources, by key. Its creator closes it; resources are closed in reverse order of opening."""

    __slots__ = ("_closers", "_opened")

    def __init__(self) -> None:
        self._opened: dict[Hashable, object] = {}
        self._closers: list[Callable[[], Awaitable[None] | None]] = []

    def open(self, key: Hashable, make: Callable[[], T], close: Callable[[T], Awaitable[None] | None]) -> T:
        """Return the resource of this key; open it if it is not open yet.

        Args:
            key: identifies the resource.
            make: opens the resource.
            close: closes it; plain or async.

        Raises:
            Exception: any error of `make`; the key stays free then.
        """
        if key not in self._opened:
            resource = self._opened[key] = make()
            self._closers.append(lambda: close(resource))
        return cast("T", self._opened[key])

    def find(self, key: Hashable) -> Any:
        """Return the resource of this key; None if it is not open."""
        return self._opened.get(key)

    def is_open(self, key: Hashable) -> bool:
        """Return whether a resource is open under this key."""
        return key in self._opened

    async def aclose(self) -> None:
        """Close all resources, even if some of them raise or the task is cancelled in between.

        Raises:
            ExceptionGroup: the errors of the closing functions.
            asyncio.CancelledError: the task was cancelled; the function that ran then was cancelled, the others have run.
        """
        errors: list[Exception] = []
        cancelled: asyncio.CancelledError | None = None
        # One at a time from the end: a closer may open or use resources that were opened before.
        while self._closers:
            closer = self._closers.pop()
            try:
                outcome = closer()
                if isawaitable(outcome):
                    await outcome
            except asyncio.CancelledError as error:
                if is_task_cancelled():
                    cancelled = error
                else:
                    errors.append(ForeignCancellation("a resource that was closed", error))
            except Exception as error:  # noqa: BLE001  # collected and raised below
                errors.append(error)
        self._opened.clear()
        if cancelled is not None:
            raise cancelled
        if errors:
            raise ExceptionGroup("not everything could be closed", errors)


class StepLedger:
    """What has happened in the current step, noted where it happens, so that no later failure can lose it.

    A run owns it. Drivers of the package write what they do into it, and build the step from it. The loop compares the result of a
    driver with it, and builds the step from it if the driver has lost what it did.

    Attributes:
        calls: the calls that were handed to the executor, by key, in order.
        executions: the outcomes of the settled calls, by key.
        pending: the calls that wait for a decision, by key.
        state: the state after the last batch; None before.
        usage: the tokens of the inferences that have ended.
        extra_usage: the tokens of inferences that interceptors made in the step, such as those of a judge. The loop adds them to
            the execution, whatever the driver does.
        inferences: the number of requests that were sent, with failed ones.
        other_inferences: how many of these were sent to models other than the driver's own.
        response: the last response; None before.
        label: who had a part in what the model has read before its last response, or before its suspended calls; None where nothing
            tracks that.
        has_waited: whether the event loop has run the calls of the step in tasks of their own.
    """

    __slots__ = (
        "_cancellations",
        "_task",
        "calls",
        "executions",
        "extra_usage",
        "has_waited",
        "inferences",
        "label",
        "other_inferences",
        "pending",
        "response",
        "state",
        "usage",
    )

    def __init__(self) -> None:
        self._task: asyncio.Task[Any] | None = None
        self._cancellations = 0
        self.has_waited: bool = False
        self.clear()

    def clear(self) -> None:
        """Begin a step, of which nothing has happened."""
        self.calls: dict[str, ToolCall] = {}
        self.executions: dict[str, ToolExecution] = {}
        self.pending: dict[str, PendingCall] = {}
        self.state: AgentState | None = None
        self.usage: Usage = NO_USAGE
        self.extra_usage: Usage = NO_USAGE
        self.inferences: int = 0
        self.other_inferences: int = 0
        self.response: InferenceResponse | None = None
        self.label: Label | None = None

    def begin_step(self) -> StepLedger:
        """Return the ledger of a step that a driver begins: this one in a run, which has cleared it, else a new one.

        A driver that a run asks once may begin more than once, such as inside of a wrapper that repeats it. All of that is one step.

        Raises:
            asyncio.CancelledError: the watched task was cancelled.
        """
        self.check_cancelled()
        return self if self._task is not None else StepLedger()

    def add_usage(self, usage: Usage) -> None:
        """Note the tokens of an inference."""
        self.usage = usage if self.usage is NO_USAGE else self.usage + usage

    def add_extra_usage(self, usage: Usage) -> None:
        """Note the tokens of an inference that an interceptor has made."""
        self.extra_usage = usage if self.extra_usage is NO_USAGE else self.extra_usage + usage

    def settle(self, execution: ToolExecution) -> None:
        """Note the outcome of a call of the step; calls that a tool makes itself are no part of it."""
        if execution.key in self.calls:
            self.executions[execution.key] = execution

    def watch_task(self) -> None:
        """Begin to watch the current task for cancellations."""
        self._task = asyncio.current_task()
        self._cancellations = 0 if self._task is None else self._task.cancelling()

    def check_cancelled(self) -> None:
        """Raise if the watched task was cancelled, even if some part has swallowed the cancellation.

        Raises:
            asyncio.CancelledError: the task was cancelled.
        """
        if self._task is not None and self._task.cancelling() > self._cancellations:
            raise asyncio.CancelledError


@frozen(eq=False, repr=False, kw_only=True)
class ExecutionScope(Value):
    """Everything that one execution uses besides its state.

    Attributes:
        clock: the source of times.
        ids: the source of ids.
        dependencies: the argument of `AgentLoop.execute(…, dependencies=…)`, for the tools.
        local_resources: resources of this execution; closed when it ends.
        shared_resources: resources that the executions of one loop share, such as connections. They stay open while the loop
            is entered by `async with`; otherwise they are the same as `local_resources`.
        kept_resources: resources that the executions of one event loop leave for later ones, such as idle connections; closed
            when the loop is closed or left.
        depth: the number of agents above this one; 0 for a top-level agent.
        inference_count: the number of requests that were sent before this run of the execution, as when it is resumed, to the
            model that gets the scope, which is the driver's own.
        other_inference_count: the number of those that the driver sent to other models, such as a planner.
        log: records inferences and tool calls; None without a journal.
        bounds: the bounds on the work that untrusted input can cause.
        ledger: notes what happens in the current step.
        callers: the states of the agents above this one, at the calls that it serves; the nearest first.
        steps_before: how many steps the execution had when the part that gets the scope took over by a handoff; 0 for parts of the
            executed loop. Steps before it are those of another loop, so that what led to them is new to the part.
        request: how the execution was asked for; None where nothing is known of that.
        labels: the interceptors that use labels, for the agents that serve calls, too; without one, nothing is labeled.
        is_read: whether somebody reads the answers while they are written; drivers that can stream answers do so then.
    """

    clock: Clock = field(factory=SystemClock)
    ids: IdSource = field(factory=RandomIds)
    dependencies: Any = None
    local_resources: Resources = field(factory=Resources)
    shared_resources: Resources = field(factory=Resources)
    kept_resources: Resources = field(factory=Resources)
    depth: int = 0
    inference_count: int = 0
    other_inference_count: int = 0
    log: CallLog | None = None
    bounds: Bounds = DEFAULT_BOUNDS
    ledger: StepLedger = field(factory=StepLedger)
    callers: tuple[AgentState, ...] = ()
    steps_before: int = 0
    request: RunRequest | None = None
    is_read: bool = False
    labels: tuple[CanUseLabels, ...] = ()

    @property
    def claim_token(self) -> int | None:
        """The token of the claim under which the execution runs; None without one."""
        return None if self.log is None else self.log.claim_token

    def for_another_model(self) -> Self:
        """Return the scope for another model of the driver, such as a planner; of several ones, each gets the count of all."""
        if not self.inference_count and not self.other_inference_count:
            return self
        return evolve(self, inference_count=self.other_inference_count, other_inference_count=0)

    def without_inferences(self) -> Self:
        """Return the scope for what sends requests that are not the driver's, such as an interceptor with a model of its own."""
        if not self.inference_count and not self.other_inference_count:
            return self
        return evolve(self, inference_count=0, other_inference_count=0)
