"""Layers around calls that break one law each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any, ClassVar

from attrs import evolve

from agentloop.executors.admission import Admission, CanLayerCalls
from agentloop.executors.call import Call, tool_of
from agentloop.executors.call_layers import Attempt, CallLayer, CallOutcome, Cut, RunCall, UseTool
from agentloop.testing import CallLayerKit
from agentloop.values import ErrorInfo, ToolExecution, ToolStatus
from tests.testing.zoo.zoo import Member

LEFT: list[asyncio.Task[Any]] = []


class Lays(CanLayerCalls):
    """Opens a layer of one class for every call.

    Attributes:
        running: the keys of the calls that have begun and not ended.
        outcomes: outcomes that layers have kept.
        permits: for at most two calls at once.
        count: a number for the layers.
        call: the call for which a layer was opened last.
    """

    def __init__(self, layer: Callable[[Call, Admission, Lays], CallLayer]) -> None:
        self.layer = layer
        self.running: list[str] = []
        self.outcomes: dict[Any, Any] = {}
        self.permits = asyncio.Semaphore(2)
        self.count = 0
        self.call: Call | None = None

    def open(self, call: Call, batch: Admission) -> CallLayer | None:
        self.call = call
        return self.layer(call, batch, self)


class Span(CallLayer):
    """Notes that a call runs, and that it has ended. Keeps all laws; the classes below break one each."""

    def __init__(self, call: Call, batch: Admission, feature: Lays) -> None:
        self.call, self.batch, self.feature = call, batch, feature

    async def run(self, proceed: RunCall) -> CallOutcome:
        self.feature.running.append(self.call.key)
        try:
            return await proceed()
        finally:
            self.feature.running.remove(self.call.key)

    def settled(self, status: ToolStatus, reason: str) -> CallOutcome:
        """Return the outcome of the call with this status."""
        now = self.batch.runtime.scope.clock.now()
        return self.call.settled(self.call.so_far(), status, now, error=ErrorInfo("Layer", reason))


# --- what has begun does not end ----------------------------------------------------------------------------------------


class LeavesSpans(Span):
    """Breaks law 58: the span of a call that is cancelled never ends."""

    async def run(self, proceed: RunCall) -> CallOutcome:
        self.feature.running.append(self.call.key)
        outcome = await proceed()
        self.feature.running.remove(self.call.key)
        return outcome


class EndsTheLastSpan(Span):
    """Breaks law 58: of two calls that run at once, the one that ends first ends the span of the other."""

    async def run(self, proceed: RunCall) -> CallOutcome:
        self.feature.running.append(self.call.key)
        try:
            return await proceed()
        finally:
            self.feature.outcomes[self.feature.running.pop()] = self.batch.runtime.scope.clock.now()


class EndsSpansAtSuccess(Span):
    """Breaks law 58: the span of a call that is suspended never ends."""

    async def run(self, proceed: RunCall) -> CallOutcome:
        self.feature.running.append(self.call.key)
        try:
            return await proceed()
        except BaseException:
            self.feature.running.remove(self.call.key)
            raise

    async def end(self, outcome: CallOutcome) -> CallOutcome:
        if outcome.execution is not None and self.call.key in self.feature.running:
            self.feature.running.remove(self.call.key)
        return outcome


class KeepsPermits(Span):
    """Breaks law 34: a call that is cancelled keeps its permit, and later calls wait forever."""

    async def run(self, proceed: RunCall) -> CallOutcome:
        await self.feature.permits.acquire()
        outcome = await proceed()
        self.feature.permits.release()
        return outcome


class UploadsLater(Span):
    """Breaks law 19: the report about each call is sent by a task that nobody ends."""

    async def end(self, outcome: CallOutcome) -> CallOutcome:
        LEFT.append(asyncio.ensure_future(asyncio.sleep(3600)))
        return outcome


# --- cancellation and errors --------------------------------------------------------------------------------------------


class SwallowsCancellation(Span):
    """Breaks law 34: a call that is cancelled has failed, and the execution goes on."""

    async def run(self, proceed: RunCall) -> CallOutcome:
        try:
            return await proceed()
        except asyncio.CancelledError:
            return self.settled(ToolStatus.FAILED, "it was interrupted")


class ShieldsTools(Span):
    """Breaks law 34: a tool goes on when its call is cancelled."""

    async def use(self, proceed: UseTool) -> Any:
        task = asyncio.ensure_future(proceed())
        LEFT.append(task)
        return await asyncio.shield(task)


class GivesUp(Span):
    """Breaks law 34: a tool that takes long goes on behind its call, which has failed."""

    async def run(self, proceed: RunCall) -> CallOutcome:
        task: asyncio.Task[Any] = asyncio.ensure_future(proceed())
        LEFT.append(task)
        done, _ = await asyncio.wait((task,), timeout=30)
        return task.result() if done else self.settled(ToolStatus.TIMED_OUT, "it took too long")


class CatchesEverything(Span):
    """Breaks law 16: a tool that suspends its call is taken for one that has failed."""

    async def use(self, proceed: UseTool) -> Any:
        try:
            return await proceed()
        except Exception as error:  # noqa: BLE001
            return f"Error: {error}"


class LosesWaitingCalls(Span):
    """Breaks law 16: a call that waits for a decision has failed."""

    async def end(self, outcome: CallOutcome) -> CallOutcome:
        return outcome if outcome.execution is not None else self.settled(ToolStatus.FAILED, "it has no result")


class AsksForever(Span):
    """Breaks law 16: a call that a person has approved waits again."""

    async def admit(self) -> None:
        if self.call.effect == "effect":
            self.batch.suspend(self.call, "look at it")


class DeniesInterruptedCalls(Span):
    """Breaks law 14: of a call that began before a crash it says that it did not run."""

    async def admit(self) -> None:
        if self.call.is_committed:
            self.batch.block(self.call, "it was interrupted")


# --- how often a call runs, and what of it --------------------------------------------------------------------------------


class RetriesEverything(Span):
    """Breaks law 14: an effect that has failed is tried again."""

    async def around(self, started_at: datetime, proceed: Attempt) -> ToolExecution:
        execution = await proceed()
        return await proceed() if execution.has_error else execution


class UsesTwice(Span):
    """Breaks law 14: the second result is compared with the first."""

    async def use(self, proceed: UseTool) -> Any:
        first = await proceed()
        second = await proceed()
        return first if first == second else second


class RunsTwice(Span):
    """Breaks law 14: a call whose outcome is an error runs once more."""

    async def run(self, proceed: RunCall) -> CallOutcome:
        outcome = await proceed()
        return await proceed() if outcome.execution is not None and outcome.execution.has_error else outcome


class UsesToolsDirectly(Span):
    """Breaks law 35: the tool is used without the layers inside."""

    async def use(self, proceed: UseTool) -> Any:
        tool = tool_of(self.call).tool
        return await tool.use(**(self.call.arguments or {}))


class AnswersEqualCalls(Span):
    """Breaks law 25: the outcome of an equal call is returned, with its id."""

    async def run(self, proceed: RunCall) -> CallOutcome:
        key = (self.call.call.name, self.call.call.arguments_json)
        if key not in self.feature.outcomes:
            self.feature.outcomes[key] = await proceed()
        outcome: CallOutcome = self.feature.outcomes[key]
        return outcome


class NumbersIds(Span):
    """Breaks law 25: outcomes have the numbers of the feature in place of their ids."""

    async def end(self, outcome: CallOutcome) -> CallOutcome:
        if outcome.execution is None:
            return outcome
        self.feature.count += 1
        return evolve(outcome, execution=evolve(outcome.execution, id=f"audit-{self.feature.count}"))


class HidesEffects(Span):
    """Breaks law 25: a call that has failed has not run, so that the model tries again."""

    async def end(self, outcome: CallOutcome) -> CallOutcome:
        if outcome.execution is None or not outcome.execution.has_error:
            return outcome
        return evolve(outcome, execution=evolve(outcome.execution, may_have_run=False))


class RebuildsOutcomes(Span):
    """Breaks law 38: an outcome is built anew, without the stop that the tool has requested."""

    async def run(self, proceed: RunCall) -> CallOutcome:
        outcome = await proceed()
        return CallOutcome(execution=outcome.execution, pending=outcome.pending, started_at=outcome.started_at)


class LeavesCallsOpen(Span):
    """Breaks law 1: a call that is cut off has no outcome."""

    def cut(self, so_far: CallOutcome, cut: Cut, settle: Callable[[], CallOutcome]) -> CallOutcome:
        return so_far


class RaisesInCuts(Span):
    """Breaks law 21: the layer expects that a call which is cut off has an outcome, and raises."""

    def cut(self, so_far: CallOutcome, cut: Cut, settle: Callable[[], CallOutcome]) -> CallOutcome:
        assert so_far.execution is not None, "no outcome"
        return settle()


# --- what belongs to whom -------------------------------------------------------------------------------------------------


class MixesOutcomes(Span):
    """Breaks law 9: the outcome waits on the feature, where that of another call takes its place."""

    async def run(self, proceed: RunCall) -> CallOutcome:
        self.feature.outcomes["last"] = await proceed()
        await asyncio.sleep(0)
        outcome: CallOutcome = self.feature.outcomes["last"]
        return outcome


class RemembersTheLastCall(Span):
    """Breaks law 9: the call is read from the feature, which knows the one that was opened last."""

    async def end(self, outcome: CallOutcome) -> CallOutcome:
        last = self.feature.call
        if outcome.execution is None or last is None or not outcome.execution.succeeded:
            return outcome
        return evolve(outcome, execution=outcome.execution.with_value(f"{last.call.name}: {outcome.execution.text}"))


class BlocksWhileAnotherRuns(Span):
    """Breaks law 9: a tool that runs in any execution of the process blocks equal calls of the others."""

    names: ClassVar[set[str]] = set()

    async def admit(self) -> None:
        if self.call.call.name in self.names:
            self.batch.block(self.call, "it is running")

    async def run(self, proceed: RunCall) -> CallOutcome:
        self.names.add(self.call.call.name)
        try:
            return await proceed()
        finally:
            self.names.discard(self.call.call.name)


class NumbersByEnd(Span):
    """Breaks law 8: results are numbered in the order in which the tools end."""

    async def use(self, proceed: UseTool) -> Any:
        value = await proceed()
        self.feature.count += 1
        return f"{value} (#{self.feature.count})"


class NotesTwice(Span):
    """Breaks law 58: an outcome that is noted again, since the call was cancelled, has two notes."""

    async def end(self, outcome: CallOutcome) -> CallOutcome:
        if outcome.execution is None:
            return outcome
        noted = evolve(outcome.execution, error=ErrorInfo("Noted", f"{outcome.execution.error_message} (noted)"))
        outcome = evolve(outcome, execution=noted) if outcome.execution.has_error else outcome
        self.call.outcome = outcome
        await asyncio.sleep(0.01)
        return outcome


class OneCallAtATime(Span):
    """Breaks law 58: a tool that makes calls itself waits for a call that waits for the tool."""

    async def run(self, proceed: RunCall) -> CallOutcome:
        lock = self.feature.outcomes.setdefault("lock", asyncio.Lock())
        async with lock:
            return await proceed()


class BlocksTheLoop(Span):
    """Breaks law 45: the report about each call is written by a function that blocks."""

    async def end(self, outcome: CallOutcome) -> CallOutcome:
        _write_slowly()
        return outcome


def _write_slowly() -> None:
    time.sleep(0.2)


class EndsEarly(Span):
    """Breaks law 58: the layer has left the call while the layers inside still run."""

    async def run(self, proceed: RunCall) -> CallOutcome:
        task: asyncio.Task[CallOutcome] = asyncio.ensure_future(proceed())
        LEFT.append(task)
        await asyncio.wait((task,), timeout=0.5)
        return task.result() if task.done() else self.settled(ToolStatus.TIMED_OUT, "it took too long")


# --- found when the kit was written -----------------------------------------------------------------------------------------


class AddsArguments(Span):
    """Breaks law 17: the tool gets an argument that its schema does not have."""

    async def admit(self) -> None:
        self.call.arguments = {**(self.call.arguments or {}), "trace": self.call.key}


class FailsOpen(Span):
    """Breaks law 11: an interceptor that raises inside is taken for a tool that has failed."""

    async def run(self, proceed: RunCall) -> CallOutcome:
        try:
            return await proceed()
        except Exception as error:  # noqa: BLE001
            return self.settled(ToolStatus.FAILED, str(error))


class RestoresState(Span):
    """Breaks law 22: the state is that from before the call again."""

    async def admit(self) -> None:
        self.state = self.batch.state

    async def settle(self, grace: float | None) -> None:
        self.batch.state = self.state


class MasksLate(Span):
    """Breaks law 10: an outcome is masked when its event has been emitted."""

    async def settle(self, grace: float | None) -> None:
        asyncio.get_running_loop().call_soon(self.mask)

    def mask(self) -> None:
        execution = self.call.outcome.execution
        if execution is not None and execution.succeeded:
            self.call.outcome = evolve(self.call.outcome, execution=execution.with_value("***"))


def _layer(law: int, layer: Any) -> Member:
    def make(examples: int) -> CallLayerKit:
        return CallLayerKit(lambda: Lays(layer), begun=lambda feature: feature.running, examples=examples)

    return Member(layer, law, make)


LAYERS: tuple[Member, ...] = (
    _layer(1, LeavesCallsOpen),
    _layer(8, NumbersByEnd),
    _layer(9, MixesOutcomes),
    _layer(9, RemembersTheLastCall),
    _layer(9, BlocksWhileAnotherRuns),
    _layer(10, MasksLate),
    _layer(11, FailsOpen),
    _layer(14, RetriesEverything),
    _layer(14, UsesTwice),
    _layer(14, RunsTwice),
    _layer(14, DeniesInterruptedCalls),
    _layer(16, CatchesEverything),
    _layer(16, LosesWaitingCalls),
    _layer(16, AsksForever),
    _layer(17, AddsArguments),
    _layer(19, UploadsLater),
    _layer(21, RaisesInCuts),
    _layer(22, RestoresState),
    _layer(25, AnswersEqualCalls),
    _layer(25, NumbersIds),
    _layer(25, HidesEffects),
    _layer(34, KeepsPermits),
    _layer(34, SwallowsCancellation),
    _layer(34, ShieldsTools),
    _layer(34, GivesUp),
    _layer(35, UsesToolsDirectly),
    _layer(38, RebuildsOutcomes),
    _layer(45, BlocksTheLoop),
    _layer(58, LeavesSpans),
    _layer(58, EndsTheLastSpan),
    _layer(58, EndsSpansAtSuccess),
    _layer(58, NotesTwice),
    _layer(58, OneCallAtATime),
    _layer(58, EndsEarly),
)
