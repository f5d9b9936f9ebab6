"""Calls whose tools were started while the model still wrote its answer: the batch finds the tool running, or finished."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.executors.batch import CallState
from agentloop.executors.call_layers import Admission, CallLayer, CanLayerCalls
from agentloop.executors.invocation import NotUsed

if TYPE_CHECKING:
    from agentloop.executors.eager import EagerBatch

EAGER_RUNS = "agentloop.executors.eager"
"""The key of the early runs among the resources of an execution; a text, so that the class is loaded only when it is used."""


class EarlyStart(CanLayerCalls):
    """Uses the early runs of an execution."""

    def __init__(self, scope: ExecutionScope) -> None:
        self._scope = scope

    def open(self, call: CallState, batch: Admission) -> CallLayer | None:  # noqa: ARG002
        """Return what uses the early run of a call; None for a call inside a call, and if none was started early."""
        runs = self._scope.local_resources.find(EAGER_RUNS)
        if runs is None or runs.latest is None or call.admitted.requested is not None:
            return None
        return _EarlyCall(call, runs.latest)


class _EarlyCall(CallLayer):
    __slots__ = ("_call", "_runs")

    def __init__(self, call: CallState, runs: EagerBatch) -> None:
        self._call = call
        self._runs = runs

    async def use(self, proceed: Callable[[], Awaitable[Any]]) -> Any:
        invocation = self._call.runner
        if invocation is None or not invocation.is_first_attempt:
            return await proceed()
        with invocation.begun_elsewhere():
            ended = await self._runs.finish(invocation)
            if ended is None:
                raise NotUsed
            value, error = ended
            if error is not None:
                raise error
            return value
        return await proceed()
