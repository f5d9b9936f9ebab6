"""One call of a batch: what is known of it, how it ends, and what is laid around it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, Protocol

from attrs import define, evolve

from agentloop.errors import CallNotAllowed, UnknownTool
from agentloop.events.tool_calls import ToolCallBlocked, ToolCallCompleted, ToolCallRejected
from agentloop.executors.call_layers import OPEN, CallLayer, CallOutcome, Cut
from agentloop.executors.toolbox import ReadyTool, Toolbox
from agentloop.tools.fitting import defaults_of_call
from agentloop.values.bounds import Bounds
from agentloop.values.decisions import Approve, Decision, PendingCall
from agentloop.values.json import EMPTY_OBJECT, JsonObject
from agentloop.values.labels import Label
from agentloop.values.state import AgentState
from agentloop.values.tool_calls import Effect, ErrorInfo, ToolCall, ToolExecution, ToolResult, ToolStatus

EXITS = (KeyboardInterrupt, SystemExit, GeneratorExit)
"""What is raised to end the program, or because a coroutine is thrown away."""


class CanRunCall(Protocol):
    """Runs the tool of one call."""

    @property
    def outcome(self) -> CallOutcome:
        """The outcome so far, also when `run` raises or is cancelled."""

    @property
    def state(self) -> AgentState:
        """The state that the tool accesses."""

    async def run(self) -> CallOutcome:
        """Run the tool, and return the outcome."""

    def close(self) -> None:
        """Report nothing more: the call is settled, even if its tool is still running."""


class CallTask:
    """The task of a call.

    Attributes:
        task: the task.
        ended: done when the task ends. Unlike a task that is awaited, it does not pass a cancellation on.
        escaped: what the call raised that is no outcome, such as a failed assertion of a test; None if nothing.
    """

    __slots__ = ("_run", "ended", "escaped", "task")

    def __init__(self, run: Callable[[], Awaitable[None]], name: str) -> None:
        self._run = run
        self.escaped: BaseException | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None] = asyncio.create_task(self._complete(), name=name)
        self.task.add_done_callback(self._end)  # for a task that is cancelled before it begins

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return not self.task.done()

    async def _complete(self) -> None:
        try:
            await self._run()
        except (asyncio.CancelledError, *EXITS):
            raise
        except BaseException as error:  # noqa: BLE001  # raised again when it is the turn of the call
            self.escaped = error
        finally:
            self._end()  # here already: a callback of the task would come a turn of the event loop later

    def _end(self, _task: object = None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


_EVENTS: Mapping[ToolStatus, type[ToolCallBlocked | ToolCallRejected | ToolCallCompleted]] = {
    ToolStatus.BLOCKED: ToolCallBlocked,
    ToolStatus.REJECTED: ToolCallRejected,
}
"""The events of calls that did not start."""


@define(eq=False, kw_only=True)
class Call:
    """A call of a batch, from its admission to its end. Its batch and its layers change it.

    Attributes:
        step_number: the 1-based number of the step that it belongs to.
        index: its 0-based index among the calls of its step.
        key: its idempotency key.
        id: the id of its execution.
        call: the call; decisions and interceptors may replace it during admission, and its arguments may be coerced.
        requested: the call as the tool of another call made it; None for a call of a model.
        preceding: the number of calls of its step before it, with those that tools have made.
        rejection: why it must not run; empty if it may. The batch settles such a call as
            rejected when it prepares the call.
        decision: the decision about it, if it was pending.
        resumed: the pending call that its tool left when it suspended the call; None if the tool was not started before.
        suspensions: how often it was suspended before this batch.
        is_committed: whether it began before this batch, so that nothing may refuse it, and it goes on with the arguments that it
            began with.
        tool: its tool; None if there is no tool of this name.
        arguments: its arguments as the tool accepts them; None before they are known, and if they are invalid.
        ordering_key: calls with the same key run one after the other; empty for none.
        layers: what is laid around it, outermost first.
        outcome: its outcome so far.
        runner: runs its tool; None before it runs.
        is_noted: whether its layers have taken note of its end.
        task: the task in which it runs; None if it does not run in a task of its own.
        is_closed: whether the outcome is final, so that what still runs cannot change it.
        is_settled: whether the event of the final outcome was emitted.
    """

    step_number: int
    index: int
    key: str
    id: str
    call: ToolCall
    requested: ToolCall | None = None
    preceding: int = 0
    rejection: str = ""
    decision: Decision | None = None
    resumed: PendingCall | None = None
    suspensions: int = 0
    is_committed: bool = False
    tool: ReadyTool | None = None
    arguments: Mapping[str, Any] | None = None
    ordering_key: str = ""
    layers: tuple[CallLayer, ...] = ()
    outcome: CallOutcome = OPEN
    runner: CanRunCall | None = None
    is_noted: bool = False
    task: CallTask | None = None
    is_closed: bool = False
    is_settled: bool = False

    @property
    def is_open(self) -> bool:
        """Whether the call is neither settled nor pending."""
        return self.outcome.execution is None and self.outcome.pending is None

    @property
    def was_started(self) -> bool:
        """Whether it started before this batch. It resumes with the call that it started with."""
        return self.resumed is not None or self.is_committed

    @property
    def effect(self) -> Effect:
        """The effect of its tool; that of an unknown tool is assumed to be the worst."""
        return self.tool.spec.effect if self.tool is not None else Effect.EFFECT

    def prepare(self, toolbox: Toolbox, bounds: Bounds) -> ReadyTool:
        """Look up the tool, and prepare the arguments as the tool accepts them.

        Raises:
            ToolError: there is no such tool, the call must not run, or the arguments are invalid.
            Exception: what the tool's own code raises.
        """
        # A call that has started runs with its first arguments, to the letter, and an approved one with those that were shown.
        strict = self.was_started or isinstance(self.decision, Approve)
        self.tool = tool = toolbox.get(self.call.name)
        if self.rejection:
            raise CallNotAllowed(self.rejection)
        fitted, arguments = tool.admit(self.call, bounds, strict=strict)
        self.ordering_key = tool.ordering_key(fitted)
        self.call, self.arguments = fitted, arguments
        return tool

    # --- its outcome --------------------------------------------------------------------------------------------

    def suspended(self, reason: str, *, waits_for: str = "", begun: bool = False) -> PendingCall:
        """Return the call as it waits, in a suspension of its own: decisions about earlier ones do not apply to it.

        Args:
            reason: why it waits.
            waits_for: the key of the pending call that has to be settled first; empty if it waits for a decision.
            begun: whether its tool has started.
        """
        return PendingCall(
            self.key,
            self.call,
            reason,
            waits_for,
            begun=begun,
            suspension=self.suspensions + 1,
            definition="" if self.tool is None else self.tool.spec.definition,
            defaults=self.defaults,
            label=self.layers[0].label if self.layers else None,  # labels are outermost
        )

    @property
    def defaults(self) -> JsonObject:
        """What its tool adds to its arguments."""
        return EMPTY_OBJECT if self.tool is None else defaults_of_call(self.tool.tool, self.tool.spec, self.call)

    def execution(
        self,
        so_far: CallOutcome,
        status: ToolStatus,
        at: datetime,
        *,
        result: ToolResult | None = None,
        error: ErrorInfo | None = None,
        may_have_run: bool | None = None,
    ) -> ToolExecution:
        """Return its execution.

        Args:
            so_far: the outcome so far, which says whether and when the tool was started.
            status: how the call ended.
            at: when it ended.
            result: the result of a success.
            error: the error of any other status.
            may_have_run: overrides what the outcome so far, the status and the effect imply.
        """
        return ToolExecution(
            id=self.id,
            key=self.key,
            call=self.call,
            status=status,
            value=result.value if result is not None else None,
            content=result.content if result is not None else None,
            error=error,
            may_have_run=self.may_have_run(so_far, status) if may_have_run is None else may_have_run,
            started_at=so_far.started_at or at,
            ended_at=at,
            inner=so_far.inner,
            label=self._label_of(result),
        )

    def _label_of(self, result: ToolResult | None) -> Label | None:
        """Return the label of a result; that nobody else had a part in it counts only where calls are labeled."""
        label = None if result is None else result.label
        is_taken = label is None or label.is_foreign or (self.layers and self.layers[0].label is not None)
        return label if is_taken else None

    def settled(
        self,
        so_far: CallOutcome,
        status: ToolStatus,
        at: datetime,
        *,
        result: ToolResult | None = None,
        error: ErrorInfo | None = None,
        may_have_run: bool | None = None,
    ) -> CallOutcome:
        """Return the outcome so far, settled with an execution; arguments are those of `execution`."""
        execution = self.execution(so_far, status, at, result=result, error=error, may_have_run=may_have_run)
        return evolve(so_far, execution=execution, pending=None)

    def may_have_run(self, so_far: CallOutcome, status: ToolStatus) -> bool:
        """Return whether an effect cannot be excluded although the call ended with this status."""
        if status is ToolStatus.SUCCEEDED or self.effect is Effect.PURE:
            return False
        # A tool that was not started now may have had an effect before it suspended the call.
        return so_far.may_have_run or (self.tool is not None and self.resumed is not None)

    @property
    def event(self) -> type[ToolCallBlocked | ToolCallRejected | ToolCallCompleted]:
        """The class of the event of its outcome."""
        if self.outcome.started_at is not None:
            return ToolCallCompleted
        return _EVENTS.get(execution_of(self).status, ToolCallCompleted)

    # --- its layers ---------------------------------------------------------------------------------------------

    async def admit(self, until: CallLayer | None = None) -> None:
        """Let the layers look at the call, until one of them settles or suspends it; with a layer, only those outside of it."""
        for layer in self.layers:
            if layer is until:
                return
            if "admit" in layer.hooks:
                await layer.admit()
                if not self.is_open:
                    return

    async def keep(self, refused: str) -> None:
        """Let the layers note what would have been done to a committed call."""
        for layer in self.layers:
            if "keep" in layer.hooks:
                await layer.keep(refused)

    async def run(self) -> CallOutcome:
        """Run the tool inside the layers."""
        run = _no_tool if self.runner is None else self.runner.run
        for layer in reversed(self.layers):
            if "run" in layer.hooks:
                run = partial(layer.run, run)
        return await run()

    def so_far(self) -> CallOutcome:
        """Return the outcome so far. While a call runs, its runner knows how far it has come."""
        return self.with_facts(self.outcome) if self.runner is None else self.runner.outcome

    def with_facts(self, outcome: CallOutcome) -> CallOutcome:
        """Return an outcome so far with what the layers know of it."""
        for layer in reversed(self.layers):
            if "so_far" in layer.hooks:
                outcome = layer.so_far(outcome)
        return outcome

    def unrun(self, so_far: CallOutcome, reason: str) -> CallOutcome:
        """Return the outcome so far of a call that does not run on, with what it did before."""
        for layer in self.layers:
            if "unrun" in layer.hooks:
                so_far = layer.unrun(so_far, reason)
        return so_far

    def cut(self, so_far: CallOutcome, cut: Cut, at: datetime) -> CallOutcome:
        """Return how the call ends that is cut off: as its layers say, or else cancelled or failed."""

        def settle() -> CallOutcome:
            if cut.error is None:
                status, info = ToolStatus.CANCELLED, ErrorInfo("Cancelled", cut.reason)
            elif so_far.pending is not None:
                return so_far  # the tool has suspended the call, which it can resume
            else:
                status, info = ToolStatus.FAILED, ErrorInfo.of(cut.error)
            return self.settled(so_far, status, at, error=info)

        for layer in reversed(self.layers):
            if "cut" in layer.hooks:
                settle = partial(layer.cut, so_far, cut, settle)
        return settle()

    async def end(self) -> None:
        """Let the layers take note of the outcome, once unless it is cancelled."""
        for layer in self.layers:
            if "end" in layer.hooks:
                before = self.outcome
                after = await layer.end(before)
                # Not if it is the same: while the layer was waiting, the call may have been settled otherwise.
                if after is not before:
                    self.outcome = after
        self.is_noted = True

    async def settle(self, grace: float | None) -> None:
        """Let the layers complete the outcome."""
        for layer in self.layers:
            if "settle" in layer.hooks:
                await layer.settle(grace)

    def drop(self) -> list[asyncio.Task[Any]]:
        """Let the layers complete the outcome without waiting; return what of them still runs."""
        left = [layer.drop() for layer in self.layers if "drop" in layer.hooks]
        return [task for task in left if task is not None]


async def _no_tool() -> CallOutcome:
    raise UnknownTool("the call has no tool")  # a layer lets it run, which is in doubt without its tool


def execution_of(call: Call) -> ToolExecution:
    """Return the execution of a settled call."""
    assert call.outcome.execution is not None  # noqa: S101  # the call is settled
    return call.outcome.execution


def tool_of(call: Call) -> ReadyTool:
    """Return the tool of an admitted call."""
    assert call.tool is not None  # noqa: S101  # only calls with a tool join a group
    return call.tool
