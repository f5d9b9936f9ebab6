"""Layers around calls as people write them, which keep every law: they watch, limit, repeat, refuse, keep and bind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from copy import copy
from datetime import datetime
from typing import Any

from agentloop.contracts import Tool
from agentloop.contracts.tool import CanCallTools
from agentloop.executors.admission import Admission, CanLayerCalls
from agentloop.executors.call import Call
from agentloop.executors.call_layers import Attempt, CallLayer, CallOutcome, RunCall, UseTool
from agentloop.values import Effect, ErrorInfo, ToolExecution, ToolStatus


class Watches(CanLayerCalls):
    """Notes which calls run, and how they ended, by key."""

    def __init__(self) -> None:
        self.running: set[str] = set()
        self.statuses: dict[str, str] = {}

    def open(self, call: Call, batch: Admission) -> CallLayer:
        return _Watched(self, call.key)


class _Watched(CallLayer):
    def __init__(self, watches: Watches, key: str) -> None:
        self.watches, self.key = watches, key

    async def run(self, proceed: RunCall) -> CallOutcome:
        self.watches.running.add(self.key)
        try:
            return await proceed()
        finally:
            self.watches.running.discard(self.key)

    async def end(self, outcome: CallOutcome) -> CallOutcome:
        waits = outcome.execution is None
        self.watches.statuses[self.key] = "pending" if waits else str(outcome.execution and outcome.execution.status)
        return outcome


class Limits(CanLayerCalls):
    """Runs at most two calls of a tool at once. Calls that make calls themselves do not count."""

    def __init__(self) -> None:
        self.permits: dict[str, asyncio.Semaphore] = {}

    def open(self, call: Call, batch: Admission) -> CallLayer:
        return _Limited(self, call)

    @asynccontextmanager
    async def permit(self, call: Call) -> AsyncIterator[None]:
        if call.tool is None or isinstance(call.tool.tool, CanCallTools):
            yield
        else:
            async with self.permits.setdefault(call.call.name, asyncio.Semaphore(2)):
                yield


class _Limited(CallLayer):
    def __init__(self, limits: Limits, call: Call) -> None:
        self.limits, self.call = limits, call

    async def run(self, proceed: RunCall) -> CallOutcome:
        async with self.limits.permit(self.call):
            return await proceed()


class RepeatsPureCalls(CanLayerCalls):
    """Tries a call of a pure tool up to three times."""

    def open(self, call: Call, batch: Admission) -> CallLayer:
        return _Repeated(call)


class _Repeated(CallLayer):
    def __init__(self, call: Call) -> None:
        self.call = call

    async def around(self, started_at: datetime, proceed: Attempt) -> ToolExecution:
        execution = await proceed()
        for pause in (0.1, 0.2):
            if self.call.effect is not Effect.PURE or execution.status != "failed":
                break
            await asyncio.sleep(pause)
            execution = await proceed()
        return execution


class AsksAboutEffects(CanLayerCalls):
    """Suspends each call with an effect until somebody has decided about it."""

    def open(self, call: Call, batch: Admission) -> CallLayer | None:
        return _Asked(call, batch) if call.decision is None and not call.was_started else None


class _Asked(CallLayer):
    def __init__(self, call: Call, batch: Admission) -> None:
        self.call, self.batch = call, batch

    async def admit(self) -> None:
        if self.call.effect is Effect.EFFECT:
            self.batch.suspend(self.call, "it has an effect")


class KeepsResults(CanLayerCalls):
    """Uses a pure tool once for equal arguments, and keeps the value; what fails is not kept."""

    def __init__(self) -> None:
        self.values: dict[Hashable, Any] = {}

    def open(self, call: Call, batch: Admission) -> CallLayer:
        return _Kept(self.values, call)


class _Kept(CallLayer):
    def __init__(self, values: dict[Hashable, Any], call: Call) -> None:
        self.values, self.call = values, call

    async def use(self, proceed: UseTool) -> Any:
        if self.call.effect is not Effect.PURE or (self.call.tool is not None and self.call.tool.calls_tools):
            return await proceed()
        key = (self.call.call.name, self.call.call.arguments_json)
        if key not in self.values:
            self.values[key] = await proceed()
        return self.values[key]


class CopiesTools(CanLayerCalls):
    """Gives each call a tool of its own."""

    def open(self, call: Call, batch: Admission) -> CallLayer:
        return _Copied()


class _Copied(CallLayer):
    def bind(self, tool: Tool) -> Tool:
        return copy(tool)


class AllowsFewCalls(CanLayerCalls):
    """Blocks calls after the first three of an execution; a call that goes on is none of them."""

    def __init__(self) -> None:
        self.left = 3

    def open(self, call: Call, batch: Admission) -> CallLayer | None:
        return None if call.was_started else _Allowed(self, call, batch)


class _Allowed(CallLayer):
    def __init__(self, feature: AllowsFewCalls, call: Call, batch: Admission) -> None:
        self.feature, self.call, self.batch = feature, call, batch

    async def admit(self) -> None:
        if self.feature.left:
            self.feature.left -= 1
        else:
            self.batch.block(self.call, "there were three calls")


class Masks(CanLayerCalls):
    """Replaces what a tool returns, and keeps what it raises."""

    def open(self, call: Call, batch: Admission) -> CallLayer:
        return _Masked()


class _Masked(CallLayer):
    async def use(self, proceed: UseTool) -> Any:
        await proceed()
        return "***"


class EndsSlowCalls(CanLayerCalls):
    """Ends a call after a second: its tool is cancelled, and may have run."""

    def open(self, call: Call, batch: Admission) -> CallLayer:
        return _Timed(call, batch)


class _Timed(CallLayer):
    def __init__(self, call: Call, batch: Admission) -> None:
        self.call, self.batch = call, batch

    async def run(self, proceed: RunCall) -> CallOutcome:
        try:
            async with asyncio.timeout(1):
                return await proceed()
        except TimeoutError:
            now, reason = self.batch.runtime.scope.clock.now(), ErrorInfo("TooSlow", "it took more than a second")
            return self.call.settled(self.call.so_far(), ToolStatus.TIMED_OUT, now, error=reason)


class Stores(CanLayerCalls):
    """Stores how each call ended, which takes a while, one report at a time."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.reports: dict[str, CallOutcome] = {}

    def open(self, call: Call, batch: Admission) -> CallLayer:
        return _Stored(self, call.key)


class _Stored(CallLayer):
    def __init__(self, feature: Stores, key: str) -> None:
        self.feature, self.key = feature, key

    async def end(self, outcome: CallOutcome) -> CallOutcome:
        async with self.feature.lock:
            await asyncio.sleep(0.1)
            self.feature.reports[self.key] = outcome
        return outcome


class Corrects(CanLayerCalls):
    """Replaces an argument, so that the call is admitted once more, and notes the number of calls in the state."""

    def open(self, call: Call, batch: Admission) -> CallLayer | None:
        return None if call.was_started or call.decision is not None else _Corrected(call, batch)


class _Corrected(CallLayer):
    def __init__(self, call: Call, batch: Admission) -> None:
        self.call, self.batch = call, batch

    async def admit(self) -> None:
        call, state = self.call, self.batch.state
        self.batch.state = state.with_metadata(corrected=state.context.metadata.get("corrected", 0) + 1)
        if call.call.arguments.get("value") == 3:
            call.call = call.call.with_arguments({**call.call.arguments, "value": 4})
            await self.batch.readmit(call)


LAWFUL_LAYERS = (
    Watches,
    Limits,
    RepeatsPureCalls,
    AsksAboutEffects,
    KeepsResults,
    CopiesTools,
    AllowsFewCalls,
    Masks,
    EndsSlowCalls,
    Stores,
    Corrects,
)
