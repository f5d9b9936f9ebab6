"""Calls whose tools were started while the model still wrote its answer: the batch finds the tool running, or finished."""

from __future__ import annotations

from typing import Any

from agentloop.executors.admission import Admission, CanLayerCalls
from agentloop.executors.call import Call
from agentloop.executors.call_layers import CallLayer, UseTool
from agentloop.executors.eager import EagerBatch, EagerRuns
from agentloop.executors.invocation import ToolInvocation


class EarlyStart(CanLayerCalls):
    """Uses the early runs of an execution.

    Args:
        runs: the early runs.
    """

    def __init__(self, runs: EagerRuns) -> None:
        self._runs = runs

    def open(self, call: Call, batch: Admission) -> CallLayer | None:  # noqa: ARG002
        """Return what uses the early run of a call; None for a call that a tool makes, and if nothing was started early."""
        latest = self._runs.latest
        return None if latest is None or call.requested is not None else _EarlyCall(call, latest)


class _EarlyCall(CallLayer):
    __slots__ = ("_call", "_runs")

    def __init__(self, call: Call, runs: EagerBatch) -> None:
        self._call = call
        self._runs = runs

    async def use(self, proceed: UseTool) -> Any:
        """Wait for the early run of the first attempt, and return or raise what it has; without one, use the tool now."""
        invocation = self._call.runner
        if not isinstance(invocation, ToolInvocation) or not invocation.is_first_attempt:
            return await proceed()
        # The tool counts as begun from here on, also if the call is cancelled meanwhile; only a run that is not used does not count.
        invocation.count_use(1)
        ended = await self._runs.finish(invocation)
        if ended is None:
            invocation.count_use(-1)
            return await proceed()
        value, error = ended
        if error is not None:
            raise error
        return value
